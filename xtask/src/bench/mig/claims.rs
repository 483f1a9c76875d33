//! MIG slices that are claimed (Dynamic Resource Allocation): the engine places pods whose claims name a
//! profile, on nodes of eight GPUs whose slices are made when they are given.
//!
//! Devices and counters are published as NVIDIA's driver does: every profile at every start, and the
//! memory units that each uses up.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use berth_engine::decision::Decision;
use berth_engine::event::Event;
use berth_engine::{Engine, Profile as SchedulerProfile};
use berth_model::dra::DeviceClass;
use berth_model::dra::claim::{Claim, ClaimSpec, Count, DeviceAsk, Request, Wanted};
use berth_model::dra::pod::{ClaimSource, PodClaim};
use berth_model::dra::slice::{Attribute, CounterSet, Device, PoolPart, Reach, ResourceSlice};
use berth_model::mig::{Board, Profile};
use berth_model::node::Node;
use berth_model::quantity::{Format, Quantity};
use berth_model::spec::{PodObject, PodSpec};
use berth_testkit::cluster::{pending, resources, template};

const DRIVER: &str = "gpu.nvidia.com";
const CLASS: &str = "mig.nvidia.com";
const GPUS_PER_NODE: usize = 8;

/// A cluster whose slices are claimed.
pub(super) struct Claims {
    engine: Engine,
    spec: Arc<PodSpec>,
    profiles: Vec<&'static Profile>,
    /// By the number of the request that holds it.
    live: BTreeMap<(usize, u8), u64>,
    next: u64,
}

impl Claims {
    pub(super) fn new(
        profile: SchedulerProfile,
        board: &'static Board,
        gpus: usize,
        profiles: &[&'static Profile],
    ) -> Result<Self> {
        let mut engine = Engine::new(profile);
        engine.apply(Event::DeviceClass(DeviceClass {
            name: CLASS.into(),
            ..DeviceClass::default()
        }));
        for first in (0..gpus).step_by(GPUS_PER_NODE) {
            let name: Arc<str> = format!("node-{first:04}").into();
            let allocatable = resources(&[("cpu", "256"), ("memory", "2Ti"), ("pods", "250")]);
            let allocatable =
                allocatable.map_err(|error| anyhow::anyhow!("cannot build a node: {error}"))?;
            engine.apply(Event::Node(Node { name: name.clone(), allocatable, ..Node::default() }));
            let last = gpus.min(first + GPUS_PER_NODE);
            for slice in slices(&name, board, first..last, profiles) {
                engine.apply(Event::DeviceSlice(slice));
            }
        }
        let spec = template("claiming", 0, &[("cpu", "1"), ("memory", "1Gi")]);
        let spec = spec.map_err(|error| anyhow::anyhow!("cannot build a pod: {error}"))?;
        let profiles = profiles.to_vec();
        Ok(Self { engine, spec: Arc::new(spec), profiles, live: BTreeMap::new(), next: 0 })
    }

    /// The GPU and start that a request gets.
    pub(super) fn place(&mut self, profile: usize) -> Result<Option<(usize, u8)>> {
        let number = self.next;
        self.next += 1;
        let claim = self.claim(number, self.profiles[profile]);
        let source = ClaimSource::Named(claim.name.clone());
        let claims = [PodClaim { name: "slice".into(), source }].into();
        let pod = PodObject { claims, ..pending(&self.spec, number) };
        self.engine.apply(Event::DeviceClaim(claim));
        self.engine.apply(Event::Pod(pod));
        let Some(Decision::Bind(binding)) = self.engine.decide(0) else {
            self.forget(number);
            return Ok(None);
        };
        let devices = binding.devices.context("a binding without devices")?;
        let device = devices.allocations.iter().flat_map(|(_, one)| &one.devices).next();
        let place = place_of(&device.context("an allocation without a device")?.id.device)?;
        self.live.insert(place, number);
        Ok(Some(place))
    }

    pub(super) fn release(&mut self, gpu: usize, start: u8) -> Result<()> {
        let number = self.live.remove(&(gpu, start)).context("nothing to release")?;
        self.forget(number);
        Ok(())
    }

    fn forget(&mut self, number: u64) {
        let (pod, claim) = (pending(&self.spec, number).uid, claim_name(number));
        self.engine.apply(Event::PodGone(pod));
        self.engine.apply(Event::DeviceClaimGone(self.spec.namespace.clone(), claim));
    }

    fn claim(&self, number: u64, profile: &Profile) -> Claim {
        let selector = format!("device.attributes['{DRIVER}'].profile == '{profile}'");
        let ask = DeviceAsk {
            class: CLASS.into(),
            selectors: vec![selector.into()],
            count: Count::Exactly(1),
            ..DeviceAsk::default()
        };
        let requests = vec![Request { name: "slice".into(), wanted: Wanted::Exactly(ask) }];
        let name = claim_name(number);
        Claim {
            namespace: self.spec.namespace.clone(),
            uid: name.clone(),
            name,
            spec: ClaimSpec { requests, ..ClaimSpec::default() },
            ..Claim::default()
        }
    }
}

fn claim_name(number: u64) -> Arc<str> {
    format!("claim-{number:08}").into()
}

fn device_name(gpu: usize, profile: &Profile, start: u8) -> Arc<str> {
    let profile = profile.to_string().replace('.', "");
    format!("gpu-{gpu}-mig-{profile}-{start}").into()
}

/// The GPU and the start that a device's name tells.
fn place_of(device: &str) -> Result<(usize, u8)> {
    let mut words = device.split('-');
    let gpu = words.nth(1).context("no GPU")?.parse()?;
    let start = words.next_back().context("no start")?.parse()?;
    Ok((gpu, start))
}

/// The counters of a node's GPUs, and every slice that each can have.
fn slices(
    node: &Arc<str>,
    board: &'static Board,
    gpus: std::ops::Range<usize>,
    profiles: &[&'static Profile],
) -> [ResourceSlice; 2] {
    let units = |units: std::ops::Range<u8>| {
        let one = Quantity::from_units(1, Format::DecimalSi);
        units.map(|unit| (Arc::from(format!("memory-slice-{unit}")), one)).collect()
    };
    let set = |gpu: usize, counters| CounterSet {
        name: format!("gpu-{gpu}-counter-set").into(),
        counters,
    };
    let all = board.memory_units().unwrap_or(0);
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
                    attributes.map(|(name, text)| (Arc::from(name), Attribute::Text(text.into())));
                devices.push(Device {
                    name: device_name(gpu, profile, start),
                    attributes: attributes.into(),
                    consumes: vec![set(gpu, units(start..end))],
                    ..Device::default()
                });
            }
        }
    }
    let slice = |what: &str, devices, shared_counters| ResourceSlice {
        name: format!("{node}-{what}").into(),
        driver: DRIVER.into(),
        pool: PoolPart { name: node.clone(), generation: 1, slice_count: 2 },
        reach: Reach::Node(node.clone()),
        devices,
        shared_counters,
    };
    let counters = gpus.map(|gpu| set(gpu, units(0..all))).collect();
    [slice("counters", Vec::new(), counters), slice("slices", devices, Vec::new())]
}
