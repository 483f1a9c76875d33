//! Whether a machine may have changed: a few small files, read in well under a millisecond.
//!
//! Owns which files tell that CPUs, memory, hugepages, devices or drivers came or went, and that the kubelet
//! wrote something. sysfs notifies nobody of these, so whoever wants to know looks now and then. Must not
//! know what changed: whoever sees another pulse reads everything again.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::kubelet::{CPU_STATE, DEVICE_STATE, KubeletPlaces, MEMORY_STATE};
use crate::root::Root;

/// Files whose text says what hardware there is, and how it is driven.
const LINES: [&str; 4] = [
    "sys/devices/system/cpu/online",
    "sys/devices/system/node/online",
    "sys/devices/system/node/has_memory",
    "proc/driver/nvidia/version",
];

/// What a driver said, where it was recorded.
const RECORDED: &str = "nvml.json";

const NODES: &str = "sys/devices/system/node";
const DEVICES: &str = "sys/bus/pci/devices";

/// How a machine looked. Two that are alike mean that nothing changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pulse {
    /// Of the hardware and its drivers.
    pub hardware: u64,
    /// Of the kubelet's files.
    pub kubelet: u64,
}

impl Pulse {
    /// Looks at the machine below `root`, and at its kubelet's files.
    pub fn read(root: &Root, places: &KubeletPlaces) -> Self {
        root.begin();
        Self { hardware: hardware(root), kubelet: kubelet(root, places) }
    }
}

fn hardware(root: &Root) -> u64 {
    let mut hasher = DefaultHasher::new();
    for path in LINES {
        root.line(path).ok().hash(&mut hasher);
    }
    root.stamp(RECORDED).hash(&mut hasher);
    root.names(DEVICES).unwrap_or_default().hash(&mut hasher);
    for node in root.names(NODES).unwrap_or_default() {
        let at = format!("{NODES}/{node}/hugepages");
        for size in root.names(&at).unwrap_or_default() {
            root.line(&format!("{at}/{size}/nr_hugepages")).ok().hash(&mut hasher);
        }
    }
    hasher.finish()
}

fn kubelet(root: &Root, places: &KubeletPlaces) -> u64 {
    let mut hasher = DefaultHasher::new();
    for name in [CPU_STATE, MEMORY_STATE, DEVICE_STATE] {
        root.stamp(&places.state(name)).hash(&mut hasher);
    }
    places.configuration.as_ref().map(|path| root.stamp(path)).hash(&mut hasher);
    hasher.finish()
}
