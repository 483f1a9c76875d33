//! Devices that pods hold, recognized by the ids of device plugins: UUIDs of GPUs and slices, with `::3` appended for
//! shares, PCI addresses, names of RDMA devices. A plugin's NUMA node counts only where the machine reports none.

use berth_host::Diagnosis;
use berth_host::kubelet::HeldDevice;
use berth_host::pci::{Device, Kind};

use super::Reading;
use crate::audit::{DeviceKind, Held};

/// Maximum number of diagnoses of plugins that contradict the machine.
const CONTRADICTIONS_MAX: usize = 16;

/// A device id without the number of a share.
pub(crate) fn base(id: &str) -> &str {
    id.split_once("::").map_or(id, |(base, _)| base)
}

/// Held devices with the UID of their pod, and diagnoses of plugins that contradict the machine.
pub fn holdings(reading: &Reading) -> (Vec<(String, Held)>, Vec<Diagnosis>) {
    let mut all = Vec::new();
    let mut contradictions: Vec<Diagnosis> = Vec::new();
    let entries = reading.kubelet.devices.iter().flat_map(|state| &state.entries);
    for entry in entries {
        for device in &entry.devices {
            let found = found(reading, &entry.resource, device);
            let differs = found.certain
                && !device.numa.is_empty()
                && !found.numa.iter().any(|node| device.numa.contains(node));
            if differs && contradictions.len() < CONTRADICTIONS_MAX {
                let what = format!(
                    "the plugin reported {} {} on NUMA node {:?}, but it is on {:?}: its pods are aligned with \
                     the wrong CPUs",
                    entry.resource, device.id, device.numa, found.numa
                );
                contradictions.push(Diagnosis {
                    path: "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint".to_owned(),
                    what,
                    remedy: "update the device plugin, or restart it when no pod uses it"
                        .to_owned(),
                });
            }
            all.push((
                entry.pod.clone(),
                Held {
                    container: entry.container.clone(),
                    resource: entry.resource.clone(),
                    id: device.id.clone(),
                    kind: found.kind,
                    numa: found.numa,
                    has_topology: !device.numa.is_empty(),
                    pids: found.pids,
                },
            ));
        }
    }
    (all, contradictions)
}

struct Found {
    kind: DeviceKind,
    numa: Vec<u32>,
    /// Whether the machine reports the NUMA node.
    certain: bool,
    pids: Vec<u32>,
}

fn found(reading: &Reading, resource: &str, device: &HeldDevice) -> Found {
    let base = base(&device.id);
    let shared = base != device.id;
    let of_gpu = |whole: DeviceKind| if shared { DeviceKind::Share } else { whole };
    let place = device_behind(reading, &device.id);
    if let Some((gpu, instance)) = reading.gpus.with_uuid(base) {
        let whole = if instance.is_some() { DeviceKind::Slice } else { DeviceKind::Gpu };
        let pids = gpu.processes.iter().map(|process| process.pid).collect();
        return Found { pids, ..placed(of_gpu(whole), place, device) };
    }
    if let Some(place) = place {
        let kind = match place.kind {
            Kind::Gpu => of_gpu(DeviceKind::Gpu),
            _ => DeviceKind::Other,
        };
        return placed(kind, Some(place), device);
    }
    let kind = by_resource(resource).map_or(DeviceKind::Other, of_gpu);
    placed(kind, None, device)
}

/// The PCI device of an id: the UUID of a GPU or slice, an address, or a name.
pub(crate) fn device_behind<'a>(reading: &'a Reading, id: &str) -> Option<&'a Device> {
    let base = base(id);
    match reading.gpus.with_uuid(base) {
        Some((gpu, _)) => gpu.address.as_deref().and_then(|address| reading.pci.at(address)),
        None => on_pci(reading, base),
    }
}

fn placed(kind: DeviceKind, place: Option<&Device>, device: &HeldDevice) -> Found {
    let node = place.and_then(|place| place.numa.node());
    let numa = node.map_or_else(|| device.numa.clone(), |node| vec![node]);
    Found { kind, numa, certain: node.is_some(), pids: Vec::new() }
}

fn on_pci<'a>(reading: &'a Reading, id: &str) -> Option<&'a Device> {
    let named =
        |device: &&Device| device.rdma.iter().chain(&device.interfaces).any(|name| name == id);
    reading.pci.at(id).or_else(|| reading.pci.devices.iter().find(named))
}

/// Guesses from the resource name, if nothing else tells.
fn by_resource(resource: &str) -> Option<DeviceKind> {
    let (vendor, name) = resource.split_once('/')?;
    match (vendor, name) {
        ("nvidia.com", "gpu") | ("amd.com", "gpu") => Some(DeviceKind::Gpu),
        ("nvidia.com", "gpu.shared") => Some(DeviceKind::Share),
        ("nvidia.com", name) if name.starts_with("mig-") => Some(DeviceKind::Slice),
        ("gpu.intel.com", "i915" | "xe") => Some(DeviceKind::Gpu),
        _ => None,
    }
}
