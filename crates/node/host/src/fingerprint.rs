//! Detects changes of a machine from a few small files, in well under a millisecond.
//!
//! sysfs sends no notifications, so callers poll. A changed fingerprint does not tell what changed: read
//! everything again.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::kubelet::{CPU_STATE, DEVICE_STATE, KubeletPaths, MEMORY_STATE};
use crate::root::Root;

/// Files that tell the hardware and its driver.
const LINES: [&str; 4] = [
    "sys/devices/system/cpu/online",
    "sys/devices/system/node/online",
    "sys/devices/system/node/has_memory",
    "proc/driver/nvidia/version",
];

/// Recorded answers of NVML.
const RECORDED: &str = "nvml.json";

const NODES: &str = "sys/devices/system/node";
const DEVICES: &str = "sys/bus/pci/devices";

/// Equal fingerprints mean that nothing changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// Of hardware and drivers.
    pub hardware: u64,
    /// Of the kubelet's files.
    pub kubelet: u64,
}

impl Fingerprint {
    pub fn read(root: &Root, paths: &KubeletPaths) -> Self {
        root.begin_reading();
        Self { hardware: hardware(root), kubelet: kubelet(root, paths) }
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

fn kubelet(root: &Root, paths: &KubeletPaths) -> u64 {
    let mut hasher = DefaultHasher::new();
    for name in [CPU_STATE, MEMORY_STATE, DEVICE_STATE] {
        root.stamp(&paths.state(name)).hash(&mut hasher);
    }
    paths.configuration.as_ref().map(|path| root.stamp(path)).hash(&mut hasher);
    hasher.finish()
}
