//! Replacement of private names in recordings.
//!
//! Replacements are numbered in the order of what they replace, so sorted lists stay sorted.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::states;
use crate::cgroup::Cgroups;

/// Prefixes of network interfaces and RDMA devices named by kernels, drivers and udev.
const INTERFACES: [&str; 14] = [
    "bnxt", "cxgb", "efa", "en", "eth", "hns", "ib", "irdma", "mlx", "qedr", "rdmap", "roce",
    "rxe", "usnic",
];

/// Names in cgroup trees that are the same on all hosts.
const CGROUP_NAMES: [&str; 13] = [
    "cgroup.controllers",
    "cgroup.procs",
    "container",
    "cpuset.cpus",
    "cpuset.cpus.effective",
    "cpuset.effective_cpus",
    "cpuset.effective_mems",
    "cpuset.mems",
    "cpuset.mems.effective",
    "init.scope",
    "kubelet",
    "kubelet.slice",
    "unified",
];

/// A run of this many hexadecimal digits may be a hardware address.
const ADDRESS_DIGITS: usize = 12;

/// Replacements by original name.
#[derive(Debug, Default)]
pub(super) struct Names {
    pods: BTreeMap<String, String>,
    containers: BTreeMap<String, String>,
    container_names: BTreeMap<String, String>,
    devices: BTreeMap<String, String>,
    /// Other UUIDs, interfaces and nested cgroups, numbered as they are found.
    others: BTreeMap<String, String>,
}

impl Names {
    pub(super) fn of<'a>(cgroups: &Cgroups, states: impl Iterator<Item = &'a Value>) -> Self {
        let mut found = states::PrivateNames::default();
        for state in states {
            found.collect(state);
        }
        for pod in &cgroups.pods {
            found.pods.insert(pod.uid.clone());
            found.containers.extend(pod.containers.iter().map(|one| one.id.clone()));
        }
        let numbered = |all: BTreeSet<String>, name: fn(usize) -> String| {
            let pairs = all.into_iter().enumerate();
            pairs.map(|(at, one)| (one, name(at + 1))).collect::<BTreeMap<_, _>>()
        };
        Self {
            pods: numbered(found.pods, uuid),
            containers: numbered(found.containers, |number| format!("{number:064x}")),
            container_names: numbered(found.container_names, |number| {
                format!("container-{number:05}")
            }),
            devices: numbered(found.devices, uuid),
            others: BTreeMap::new(),
        }
    }

    pub(super) fn pod(&mut self, uid: &str) -> String {
        let number = self.pods.len() + 1;
        self.pods.entry(uid.to_owned()).or_insert_with(|| uuid(number)).clone()
    }

    pub(super) fn container(&mut self, id: &str) -> String {
        let number = self.containers.len() + 1;
        self.containers.entry(id.to_owned()).or_insert_with(|| format!("{number:064x}")).clone()
    }

    pub(super) fn container_name(&mut self, name: &str) -> String {
        let number = self.container_names.len() + 1;
        let new = || format!("container-{number:05}");
        self.container_names.entry(name.to_owned()).or_insert_with(new).clone()
    }

    /// A device id: `GPU-<uuid>`, with `::3` appended for a share. PCI addresses, small numbers and names
    /// given by drivers are kept.
    pub(super) fn device(&mut self, id: &str) -> String {
        let address = id.len() == 12 && id.contains(':') && id.contains('.');
        let digits = id.bytes().all(|byte| byte.is_ascii_digit()) && id.len() < 6;
        if is_interface(id) || address || digits {
            return id.to_owned();
        }
        let (base, share) = match id.split_once("::") {
            Some((base, share)) if share.bytes().all(|byte| byte.is_ascii_digit()) => {
                (base, Some(share))
            }
            _ => (id, None),
        };
        let kind = if base.starts_with("GPU-") {
            "GPU-"
        } else if base.starts_with("MIG-") {
            "MIG-"
        } else {
            "device-"
        };
        let number = self.devices.len() + 1;
        let replacement = self.devices.entry(base.to_owned()).or_insert_with(|| uuid(number));
        match share {
            Some(share) => format!("{kind}{replacement}::{share}"),
            None => format!("{kind}{replacement}"),
        }
    }

    pub(super) fn into_devices(self) -> BTreeMap<String, String> {
        self.devices
    }

    pub(super) fn path(&mut self, path: &str) -> String {
        if let Some(inside) = path.strip_prefix("sys/fs/cgroup/") {
            return format!("sys/fs/cgroup/{}", self.cgroup(inside));
        }
        let parts: Vec<&str> = path.split('/').collect();
        let mut kept: Vec<String> = Vec::with_capacity(parts.len());
        let mut before = "";
        for part in parts {
            let keeps = match before {
                "net" | "infiniband" => is_interface(part),
                _ => !has_uuid(part),
            };
            kept.push(if keeps { part.to_owned() } else { self.other(part) });
            before = part;
        }
        kept.join("/")
    }

    /// A path in a cgroup tree: only names that are the same on all hosts are kept.
    pub(super) fn cgroup(&mut self, path: &str) -> String {
        let parts = path.split('/').map(|part| self.cgroup_part(part));
        parts.collect::<Vec<_>>().join("/")
    }

    fn cgroup_part(&mut self, part: &str) -> String {
        if let Some(uid) = crate::cgroup::pod_named(part) {
            let replacement = self.pod(&uid);
            return match part.strip_suffix(".slice") {
                Some(slice) => {
                    let (before, _) = slice.rsplit_once("-pod").unwrap_or((slice, ""));
                    format!("{before}-pod{}.slice", replacement.replace('-', "_"))
                }
                None => format!("pod{replacement}"),
            };
        }
        if let Some(id) = crate::cgroup::container_named(part) {
            return part.replace(&id, &self.container(&id));
        }
        let known = part.is_empty()
            || crate::cgroup::is_level(part)
            || CGROUP_NAMES.contains(&part)
            || part.split(',').all(|one| ["cpu", "cpuacct", "cpuset"].contains(&one));
        if known { part.to_owned() } else { self.other(part) }
    }

    fn other(&mut self, name: &str) -> String {
        let unit = [".slice", ".scope", ".service"].into_iter().find(|unit| name.ends_with(unit));
        let number = self.others.len() + 1;
        let new = || format!("other{number}{}", unit.unwrap_or(""));
        self.others.entry(name.to_owned()).or_insert_with(new).clone()
    }
}

/// A UUID that is not in use.
fn uuid(number: usize) -> String {
    format!("{:08x}-0000-4000-8000-{:012x}", number, number)
}

/// Whether kernels, drivers or udev choose names like this, and it contains no hardware address.
fn is_interface(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let digits = name.split(|one: char| !one.is_ascii_hexdigit());
    name.len() <= 15
        && name.bytes().all(plain)
        && digits.map(str::len).max().unwrap_or(0) < ADDRESS_DIGITS
        && INTERFACES.iter().any(|prefix| name.starts_with(prefix))
        && name.bytes().any(|byte| byte.is_ascii_digit())
}

fn has_uuid(name: &str) -> bool {
    let lengths: Vec<usize> = name.split('-').map(str::len).collect();
    let hexadecimal = name.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    hexadecimal && lengths == [8, 4, 4, 4, 12]
}
