//! What the scheduler reads of a published node is the node.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::BTreeMap;

use berth_agent::publish::{self, Offered, Resident, Subject};
use berth_agent::{GpuReading, Reading};
use berth_api::Lower as _;
use berth_api::topology::{NodeResourceTopology, Zone};
use berth_host::pci::DeviceNuma;
use berth_host::synthetic::{self, SyntheticMachine};
use berth_kubelet::{KubeletVersion, MemoryManagerPolicy};
use berth_model::numa::NumaMask;
use berth_topology::{Inside, fingerprint};
use k8s_openapi::api::core::v1 as core;
use serde_json::json;

mod support;
use support::{Node, Pod, divide, gpu_uuid, slice_uuid, uid};

const STRICT: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
    topologyManagerPolicy: restricted\ntopologyManagerScope: pod\n\
    topologyManagerPolicyOptions: {prefer-closest-numa-nodes: \"true\"}\n\
    cpuManagerPolicy: static\n\
    cpuManagerPolicyOptions: {full-pcpus-only: \"true\", prefer-align-cpus-by-uncorecache: \"true\"}\n\
    reservedSystemCPUs: \"0\"\nmemoryManagerPolicy: Static\n\
    reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]\n";
const STRICT_WITHOUT_DISTANCES: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\n\
    kind: KubeletConfiguration\ntopologyManagerPolicy: restricted\ncpuManagerPolicy: static\n\
    reservedSystemCPUs: \"0\"\nmemoryManagerPolicy: Static\n\
    reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]\n";
const LOOSE: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn machines() -> Vec<(&'static str, SyntheticMachine)> {
    vec![
        ("EPYC 9654 NPS1", synthetic::epyc_9654(1)),
        ("EPYC 9654 NPS2", synthetic::epyc_9654(2)),
        ("EPYC 9654 NPS4", synthetic::epyc_9654(4)),
        ("EPYC 7763 NPS1", synthetic::epyc_7763(1)),
        ("EPYC 7763 NPS4", synthetic::epyc_7763(4)),
        ("Xeon SNC2", synthetic::xeon_8480_snc2()),
        ("Xeon with memory on the package", synthetic::hbm_xeon()),
        ("with holes", synthetic::with_holes()),
        ("no device tells", synthetic::without_numa_of_devices(synthetic::epyc_9654(2))),
        ("no GPU", synthetic::no_gpu()),
        ("a virtual machine", synthetic::bare_gpu_vm()),
    ]
}

fn reading(node: &Node) -> Reading {
    let (root, _directory) = node.written();
    Reading::read(&root, node.gpus.clone())
}

fn published(reading: &Reading, residents: &[Resident]) -> (NodeResourceTopology, Vec<Offered>) {
    let offered = publish::offered(reading);
    let subject = Subject { reading, offered: &offered, residents };
    (publish::topology(subject, "n1", Some("u1")), offered)
}

/// The Node with the kubelet's status and the agent's labels.
fn object(reading: &Reading, offered: &[Offered]) -> core::Node {
    let mut shown = BTreeMap::from([
        ("cpu".to_owned(), reading.machine.cpus.len().to_string()),
        ("memory".to_owned(), reading.machine.memory_bytes.to_string()),
    ]);
    for one in offered {
        let count = offered.iter().filter(|other| other.resource == one.resource).count();
        shown.insert(one.resource.clone(), count.to_string());
    }
    let labels = publish::labels(reading, offered);
    serde_json::from_value(json!({
        "metadata": { "name": "n1", "labels": labels },
        "status": {
            "capacity": shown, "allocatable": shown,
            "nodeInfo": { "kubeletVersion": "v1.36.1", "architecture": "", "bootID": "",
                "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": "" },
        },
    }))
    .unwrap()
}

fn read(reading: &Reading, exported: &NodeResourceTopology, offered: &[Offered]) -> Inside {
    let node = object(reading, offered);
    berth_topology::read(&node, &node.lower().unwrap(), Some(exported), None).unwrap()
}

#[test]
fn every_machine_survives_publishing() {
    for (name, machine) in machines() {
        for configuration in [STRICT, LOOSE] {
            let mut node = Node::new(machine.clone());
            node.configuration = configuration;
            if name == "with holes" && configuration == STRICT {
                // A kubelet would crash with that option where ids have gaps.
                node.configuration = STRICT_WITHOUT_DISTANCES;
            }
            if name == "no GPU" {
                node.gpus = GpuReading::default();
            }
            let reading = reading(&node);
            let (exported, offered) = published(&reading, &[]);
            let inside = read(&reading, &exported, &offered);
            let (read_machine, read_kubelet) = inside.machine.clone().unwrap();
            assert_eq!(*read_machine, reading.machine.to_model().unwrap(), "{name}");
            let kubelet = reading.kubelet.configuration.as_ref().unwrap();
            let kubelet = kubelet.to_model(KubeletVersion::V1_36).unwrap();
            assert_eq!(read_kubelet, kubelet, "{name}");
            let pins = matches!(kubelet.memory_manager, MemoryManagerPolicy::Static { .. });
            assert_eq!(pins, configuration == STRICT);
            // GPUs are where the kernel reports them.
            let mut real: Vec<NumaMask> = reading
                .pci
                .gpus()
                .filter(|gpu| reading.gpus.at(&gpu.address).is_some())
                .map(|gpu| match &gpu.numa {
                    DeviceNuma::Reported { node } => {
                        NumaMask::single(read_machine.numa_position(*node).unwrap())
                    }
                    _ => NumaMask::EMPTY,
                })
                .collect();
            let mut told: Vec<NumaMask> = inside.gpus.iter().map(|gpu| gpu.numa).collect();
            real.sort_unstable();
            told.sort_unstable();
            assert_eq!(told, real, "{name}");
            for gpu in &inside.gpus {
                assert_eq!(gpu.product, "NVIDIA-H100-80GB-HBM3");
                assert_eq!(gpu.memory_bytes, 81_559 << 20);
            }
        }
    }
}

fn amount<'a>(zone: &'a Zone, name: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let found = zone.resources.iter().find(|one| one.name == name)?;
    Some((&found.capacity.0, &found.allocatable.0, &found.available.0))
}

fn pod(number: usize, cpus: &str, resource: &'static str, id: String, told: Option<u32>) -> Pod {
    Pod {
        uid: uid(number),
        containers: vec![("server", cpus.to_owned(), String::new(), Vec::new())],
        devices: vec![("server", resource, id, told)],
        ..Pod::default()
    }
}

#[test]
fn resources_of_pods_are_not_available() {
    let mut node = Node::new(synthetic::epyc_9654(1));
    node.configuration = STRICT;
    divide(&mut node.gpus.gpus[0], 7);
    node.pods.push(pod(1, "4-7,196-199", "nvidia.com/gpu", gpu_uuid(1), Some(0)));
    node.pods.push(pod(2, "100-101", "nvidia.com/mig-1g.10gb", slice_uuid(0, 3), Some(0)));
    let reading = reading(&node);
    let here = |number: usize, name: &str| Resident {
        namespace: "team".to_owned(),
        name: name.to_owned(),
        uid: uid(number),
    };
    let residents = [here(1, "a"), here(2, "b"), here(3, "c")];
    let (exported, _) = published(&reading, &residents);
    let [first, second] = exported.zones.as_slice() else { panic!("{:?}", exported.zones) };
    assert_eq!((first.name.as_str(), first.zone_type.as_str()), ("node-0", "Node"));
    assert_eq!(amount(first, "cpu"), Some(("192", "191", "183")));
    assert_eq!(amount(second, "cpu"), Some(("192", "192", "190")));
    assert_eq!(amount(first, "nvidia.com/gpu"), Some(("3", "3", "2")));
    assert_eq!(amount(first, "nvidia.com/mig-1g.10gb"), Some(("7", "7", "6")));
    assert_eq!(amount(second, "nvidia.com/gpu"), Some(("4", "4", "4")));
    let gib = |gib: u64| (gib << 30).to_string();
    // Two GiB are in hugepages, one is kept for the system.
    let (all, left) = (gib(768), gib(765));
    assert_eq!(amount(first, "memory"), Some((all.as_str(), left.as_str(), left.as_str())));
    let costs: Vec<_> = first.costs.iter().map(|cost| (cost.name.as_str(), cost.value)).collect();
    assert_eq!(costs, [("node-0", 10), ("node-1", 32)]);
    let said = |name: &str| exported.attribute(name).unwrap();
    assert_eq!(said("topologyManagerPolicy"), "restricted");
    assert_eq!(said("topologyManagerScope"), "pod");
    assert_eq!(said("berth.dev/reserved-system-cpus"), "0");
    assert_eq!(said("berth.dev/reserved-memory"), "0:memory=1073741824");
    assert_eq!(said(fingerprint::METHOD_ATTRIBUTE), "all");
    let pods = [("team", "a"), ("team", "b"), ("team", "c")];
    assert_eq!(said(fingerprint::ATTRIBUTE), fingerprint::of(pods));
    assert_eq!(exported.topology_policies, ["RestrictedPodLevel"]);
    let owner = &exported.metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("Node", "u1"));
}

#[test]
fn ended_pods_hold_nothing() {
    let mut node = Node::new(synthetic::epyc_9654(1));
    node.pods.push(pod(1, "4-7", "nvidia.com/gpu", gpu_uuid(1), Some(0)));
    let mut reading = reading(&node);
    reading.cgroups.pods.clear();
    let (exported, _) = published(&reading, &[]);
    assert_eq!(amount(&exported.zones[0], "cpu"), Some(("192", "191", "191")));
    assert_eq!(amount(&exported.zones[0], "nvidia.com/gpu"), Some(("4", "4", "4")));
}

#[test]
fn devices_of_a_plugin_without_topology_are_in_no_zone() {
    let mut node = Node::new(synthetic::epyc_9654(1));
    node.pods.push(pod(1, "4-7", "nvidia.com/gpu", gpu_uuid(1), None));
    let (exported, _) = published(&reading(&node), &[]);
    assert!(exported.zones.iter().all(|zone| amount(zone, "nvidia.com/gpu").is_none()));
    // What the plugin reported counts, even if it is wrong.
    node.pods[0].devices[0].3 = Some(1);
    let (exported, _) = published(&reading(&node), &[]);
    assert_eq!(amount(&exported.zones[0], "nvidia.com/gpu"), Some(("3", "3", "3")));
    assert_eq!(amount(&exported.zones[1], "nvidia.com/gpu"), Some(("5", "5", "4")));
}

#[test]
fn topologies_of_other_exporters_are_completed_by_annotations() {
    let mut node = Node::new(synthetic::epyc_9654(1));
    node.configuration = STRICT;
    let reading = reading(&node);
    let (mut exported, offered) = published(&reading, &[]);
    // As NFD's topology updater writes it.
    exported.attributes.retain(|one| !one.name.starts_with("berth.dev/"));
    exported.zones.iter_mut().for_each(|zone| zone.attributes.clear());
    let mut object = object(&reading, &offered);
    object.metadata.annotations = Some(publish::annotations(&reading).into_iter().collect());
    let inside =
        berth_topology::read(&object, &object.lower().unwrap(), Some(&exported), None).unwrap();
    let kubelet = reading.kubelet.configuration.as_ref().unwrap();
    let kubelet = kubelet.to_model(KubeletVersion::V1_36).unwrap();
    assert_eq!(inside.machine.unwrap().1, kubelet);
}

#[test]
fn labels_match_gpu_feature_discovery() {
    let mut node = Node::new(synthetic::epyc_9654(1));
    node.gpus.gpus.iter_mut().for_each(|gpu| divide(gpu, 7));
    let first = reading(&node);
    let labels = publish::labels(&first, &publish::offered(&first));
    let said = |name: &str| labels.get(name).map(String::as_str);
    assert_eq!(said("nvidia.com/gpu.product"), Some("NVIDIA-H100-80GB-HBM3"));
    assert_eq!(said("nvidia.com/gpu.memory"), Some("81559"));
    assert_eq!(said("nvidia.com/gpu.count"), Some("8"));
    assert_eq!(said("nvidia.com/mig-1g.10gb.count"), Some("56"));
    assert_eq!(said("berth.dev/mig-1g.10gb"), Some("7"));
    let geometry = ["berth.dev/numa-nodes", "berth.dev/sockets", "berth.dev/threads-per-core"];
    assert_eq!(geometry.map(said), [Some("2"); 3]);
    // Slices offered as GPUs, with three replicas each.
    let mut shared = Vec::new();
    for gpu in 0..8 {
        for slice in 0..7 {
            shared.extend((0..3).map(|share| Offered {
                resource: "nvidia.com/gpu".to_owned(),
                id: format!("{}::{share}", slice_uuid(gpu, slice)),
                numa: vec![0],
            }));
        }
    }
    let labels = publish::labels(&first, &shared);
    let said = |name: &str| labels.get(name).map(String::as_str);
    let product = Some("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb-SHARED");
    assert_eq!(said("nvidia.com/gpu.product"), product);
    assert_eq!(
        (said("nvidia.com/gpu.count"), said("nvidia.com/gpu.replicas")),
        (Some("56"), Some("3"))
    );
    let irregular = reading(&Node::new(synthetic::hbm_xeon()));
    assert!(!publish::labels(&irregular, &[]).contains_key("berth.dev/numa-nodes"));
    let legal = |text: &str| text.len() <= 63 && !text.contains([' ', '+', '/', '(']);
    assert!(labels.values().all(|text| legal(text)), "{labels:?}");
}

#[test]
fn publishing_is_deterministic() {
    let node = Node::new(synthetic::epyc_9654(4));
    assert_eq!(published(&reading(&node), &[]), published(&reading(&node), &[]));
}

#[test]
fn a_node_with_missing_data_is_published_as_far_as_known() {
    let directory = support::directory();
    let reading = Reading::read(&berth_host::Root::new(directory.path()), GpuReading::default());
    let (exported, offered) = published(&reading, &[]);
    assert_eq!((exported.zones.len(), offered.len()), (1, 0));
    assert!(exported.topology_policies.is_empty());
    assert_eq!(exported.attribute("topologyManagerPolicy"), None);
}
