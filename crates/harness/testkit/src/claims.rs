//! MIG slices that are claimed as devices, as NVIDIA's driver publishes them where it makes slices when
//! they are given: every profile at every start, and the memory units that each uses up.

use std::ops::Range;
use std::sync::Arc;

use berth_model::dra::DeviceClass;
use berth_model::dra::claim::{Claim, ClaimSpec, Count, DeviceRequest, Request, RequestKind};
use berth_model::dra::slice::{Attribute, CounterSet, Device, NodeScope, ResourceSlice, SlicePool};
use berth_model::mig::{Board, Profile};
use berth_model::quantity::{Format, Quantity};

/// The driver.
pub const DRIVER: &str = "gpu.nvidia.com";

const CLASS: &str = "mig.nvidia.com";

/// The class of all slices.
pub fn slice_class() -> DeviceClass {
    DeviceClass { name: CLASS.into(), ..DeviceClass::default() }
}

/// A claim for one slice that this expression selects.
pub fn slice_claim(namespace: &Arc<str>, name: &str, selector: &str) -> Claim {
    let ask = DeviceRequest {
        class: CLASS.into(),
        selectors: vec![selector.into()],
        count: Count::Exactly(1),
        ..DeviceRequest::default()
    };
    let requests = vec![Request { name: "slice".into(), kind: RequestKind::Exactly(ask) }];
    Claim {
        namespace: namespace.clone(),
        name: name.into(),
        uid: format!("uid-{name}").into(),
        spec: ClaimSpec { requests, ..ClaimSpec::default() },
        ..Claim::default()
    }
}

/// The expression that selects slices of a profile.
pub fn of_profile(profile: &str) -> String {
    format!("device.attributes['{DRIVER}'].profile == '{profile}'")
}

/// What is published of a node's GPUs: their counters, and their slices of some profiles.
pub fn published_slices(
    node: &Arc<str>,
    board: &'static Board,
    gpus: Range<usize>,
    profiles: &[&'static Profile],
) -> [ResourceSlice; 2] {
    let one = Quantity::from_units(1, Format::DecimalSi);
    let set = |gpu: usize, units: Range<u8>| CounterSet {
        name: format!("gpu-{gpu}-counter-set").into(),
        counters: units.map(|unit| (format!("memory-slice-{unit}").into(), one)).collect(),
    };
    let mut devices = Vec::new();
    for gpu in gpus.clone() {
        for profile in profiles {
            for start in profile.starts().iter().flat_map(|starts| starts.iter()) {
                let end = start + profile.memory_units().unwrap_or(0);
                let attributes = [
                    ("type", "mig".to_owned()),
                    ("profile", profile.to_string()),
                    ("productName", board.product().to_owned()),
                ];
                let attributes =
                    attributes.map(|(name, text)| (name.into(), Attribute::Text(text.into())));
                let kind = profile.to_string().replace('.', "");
                devices.push(Device {
                    name: format!("gpu-{gpu}-mig-{kind}-{start}").into(),
                    attributes: attributes.into(),
                    consumes: vec![set(gpu, start..end)],
                    ..Device::default()
                });
            }
        }
    }
    let slice = |what: &str, devices, shared_counters| ResourceSlice {
        name: format!("{node}-{what}").into(),
        driver: DRIVER.into(),
        pool: SlicePool { name: node.clone(), generation: 1, slice_count: 2 },
        scope: NodeScope::Node(node.clone()),
        devices,
        shared_counters,
    };
    let units = board.memory_units().unwrap_or(0);
    let counters = gpus.map(|gpu| set(gpu, 0..units)).collect();
    [slice("counters", Vec::new(), counters), slice("slices", devices, Vec::new())]
}

/// The GPU, the profile without its dot, and the start that the name of a slice tells.
pub fn slice_of(device: &str) -> Option<(usize, &str, u8)> {
    let (gpu, rest) = device.strip_prefix("gpu-")?.split_once("-mig-")?;
    let (kind, start) = rest.rsplit_once('-')?;
    Some((gpu.parse().ok()?, kind, start.parse().ok()?))
}
