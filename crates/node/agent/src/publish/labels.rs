//! Labels of the Node:
//! - `berth.dev/numa-nodes`, `berth.dev/sockets`, `berth.dev/threads-per-core`, if all NUMA nodes are alike;
//! - `berth.dev/mig-1g.10gb: "7"` for each MIG profile and its maximum count, if all GPUs are alike;
//! - those of GPU feature discovery under `nvidia.com/`: product, memory, count, replicas, slices.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::keys::MIG_PROFILE_PREFIX;

use crate::gpus::{DriverGpu, Instance};
use crate::publish::Offered;
use crate::report::{Reading, base};

/// Resources of NVIDIA's device plugin.
const WHOLE: &str = "nvidia.com/gpu";
const SHARED: &str = ".shared";
const MIG: &str = "nvidia.com/mig-";

/// Kubernetes' limit of a label value.
const VALUE_CHARS_MAX: usize = 63;

pub fn labels(reading: &Reading, offered: &[Offered]) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    geometry(reading, &mut all);
    let gpus = &reading.gpus.gpus;
    if let Some(first) = gpus.first()
        && gpus.iter().all(|gpu| gpu.product == first.product)
    {
        accelerators(reading, first, offered, &mut all);
        profiles(first, &mut all);
    }
    all
}

fn geometry(reading: &Reading, all: &mut BTreeMap<String, String>) {
    let machine = &reading.machine;
    let (Some(first), sockets) = (machine.numa.first(), machine.sockets.len()) else { return };
    let alike = machine
        .numa
        .iter()
        .all(|node| node.cpus.len() == first.cpus.len() && node.memory_bytes == first.memory_bytes);
    if !alike
        || sockets == 0
        || first.cpus.is_empty()
        || !machine.numa.len().is_multiple_of(sockets)
    {
        return;
    }
    let mut add = |name: &str, count: usize| all.insert(name.to_owned(), count.to_string());
    add("berth.dev/numa-nodes", machine.numa.len());
    add("berth.dev/sockets", sockets);
    add("berth.dev/threads-per-core", machine.threads_per_core());
}

fn profiles(gpu: &DriverGpu, all: &mut BTreeMap<String, String>) {
    for profile in &gpu.profiles {
        let name = format!("{MIG_PROFILE_PREFIX}{}", slice(&profile.name));
        all.insert(name, profile.instances.to_string());
    }
}

/// A profile as in resource names and labels, which cannot contain a plus sign.
fn slice(profile: &str) -> String {
    profile.replace('+', ".").chars().filter(|one| is_plain(*one)).collect()
}

fn is_plain(one: char) -> bool {
    one.is_ascii_alphanumeric() || matches!(one, '-' | '_' | '.')
}

fn value(text: &str) -> String {
    let text: String = text.replace(' ', "-").chars().filter(|one| is_plain(*one)).collect();
    let short: String = text.chars().take(VALUE_CHARS_MAX).collect();
    short.trim_matches(['-', '_', '.']).to_owned()
}

/// The labels of GPU feature discovery.
fn accelerators(
    reading: &Reading,
    first: &DriverGpu,
    offered: &[Offered],
    all: &mut BTreeMap<String, String>,
) {
    let Some(product) = &first.product else { return };
    let mut say = |name: String, text: String| all.insert(name, value(&text));
    let whole: Vec<&Offered> = offered
        .iter()
        .filter(|one| one.resource.strip_suffix(SHARED).unwrap_or(&one.resource) == WHOLE)
        .collect();
    let instances: Vec<Option<&Instance>> = whole
        .iter()
        .map(|one| reading.gpus.with_uuid(base(&one.id)).and_then(|(_, instance)| instance))
        .collect();
    let mut product = product.clone();
    let mut memory = first.memory.map(|memory| memory.total_bytes);
    let mut count = reading.gpus.gpus.len();
    // Slices of one profile that are offered as if they were GPUs.
    if let Some(Some(one)) = instances.first()
        && let Some(profile) = &one.profile
    {
        product = format!("{product}-MIG-{}", slice(profile));
        memory = one.memory_bytes;
        count = bases(&whole).len();
    }
    let replicas = whole.len() / bases(&whole).len().max(1);
    if replicas > 1 {
        say(format!("{WHOLE}.replicas"), replicas.to_string());
        if whole.iter().all(|one| one.resource == WHOLE) {
            product += "-SHARED";
        }
    }
    say(format!("{WHOLE}.product"), product);
    say(format!("{WHOLE}.count"), count.to_string());
    if let Some(bytes) = memory {
        say(format!("{WHOLE}.memory"), (bytes >> 20).to_string());
    }
    say("nvidia.com/mig.capable".to_owned(), first.mig.is_some().to_string());
    let slices: BTreeSet<&str> = offered
        .iter()
        .map(|one| one.resource.strip_suffix(SHARED).unwrap_or(&one.resource))
        .filter(|resource| resource.starts_with(MIG))
        .collect();
    for resource in slices {
        let is_own =
            |one: &&Offered| one.resource.strip_suffix(SHARED).unwrap_or(&one.resource) == resource;
        let own: Vec<&Offered> = offered.iter().filter(is_own).collect();
        let count = bases(&own).len();
        say(format!("{resource}.count"), count.to_string());
        if own.len() > count {
            say(format!("{resource}.replicas"), (own.len() / count.max(1)).to_string());
        }
    }
}

fn bases<'a>(devices: &[&'a Offered]) -> BTreeSet<&'a str> {
    devices.iter().map(|one| base(&one.id)).collect()
}
