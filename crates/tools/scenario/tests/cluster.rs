//! Clusters from dumps: what nodes look like inside, and who is where.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use berth_engine::event::Event;
use berth_kubelet::{
    CpuManagerPolicy, MemoryManagerPolicy, ReservedCpus, TopologyPolicy, TopologyScope,
};
use berth_manifest::{Source, Strictness, read_as};
use berth_model::numa::NumaMask;
use berth_scenario::cluster::{Cluster, ClusterNode, Objects, Prices, read};

fn cluster_or(text: &str) -> Result<Cluster, String> {
    let source = Source::new("dump.yaml", text);
    let documents = read_as(&source, Strictness::Dump).map_err(|error| error.to_string())?;
    let objects = Objects::new(documents).map_err(|error| error.to_string())?;
    read(&objects).map_err(|error| error.to_string())
}

fn cluster(text: &str) -> Cluster {
    cluster_or(text).unwrap()
}

fn node_of(text: &str) -> ClusterNode {
    cluster(text).nodes.remove(0)
}

/// A node with so many CPUs, 512 GiB and devices, of which 8 GiB are not for pods.
fn node(cpus: u32, devices: &str) -> String {
    format!(
        "apiVersion: v1
kind: Node
metadata:
  name: a
  labels: {{nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3, nvidia.com/gpu.memory: '81559'}}
status:
  capacity: {{cpu: '{cpus}', memory: 512Gi, pods: '110'{devices}}}
  allocatable: {{cpu: '{}', memory: 504Gi, pods: '110'{devices}}}
  nodeInfo: {{kubeletVersion: v1.35.2-eks-1}}
---
",
        cpus - 2
    )
}

const HEAD: &str = "apiVersion: topology.node.k8s.io/v1alpha2
kind: NodeResourceTopology
metadata: {name: a}
";

/// As node feature discovery writes it where the kubelet pins CPUs and memory.
fn two_sockets() -> String {
    let zone = |id: u32, other: u32, allocatable: u32, memory: u64| {
        format!(
            "- name: node-{id}
  type: Node
  costs: [{{name: node-{id}, value: 10}}, {{name: node-{other}, value: 21}}]
  resources:
  - {{name: cpu, capacity: '32', allocatable: '{allocatable}', available: '12'}}
  - {{name: memory, capacity: '274877906944', allocatable: '{memory}', available: '{memory}'}}
  - {{name: nvidia.com/gpu, capacity: '4', allocatable: '4', available: '1'}}
"
        )
    };
    format!(
        "{HEAD}topologyPolicies: [SingleNUMANodePodLevel]
attributes:
- {{name: topologyManagerPolicy, value: single-numa-node}}
- {{name: topologyManagerScope, value: pod}}
zones:
{}{}",
        zone(0, 1, 30, 266_287_972_352),
        zone(1, 0, 32, 274_877_906_944)
    )
}

#[test]
fn two_sockets_are_read_with_their_policies() {
    let node = node_of(&(node(64, ", nvidia.com/gpu: '8'") + &two_sockets()));
    let (machine, kubelet) = node.inside.machine.clone().unwrap();
    assert_eq!((machine.sockets().len(), machine.numa().len(), machine.cpus().len()), (2, 2, 64));
    assert_eq!(machine.numa()[0].cpus.to_string(), "0-15,32-47", "siblings come last");
    assert_eq!(machine.numa()[1].distances, [21, 10]);
    assert_eq!(kubelet.topology_policy, TopologyPolicy::SingleNumaNode);
    assert_eq!(kubelet.topology_scope, TopologyScope::Pod);
    assert_eq!(kubelet.version.to_string(), "1.35");
    let CpuManagerPolicy::Static { reserved: ReservedCpus::Explicit(kept), .. } =
        &kubelet.cpu_manager
    else {
        panic!("{:?}", kubelet.cpu_manager)
    };
    assert_eq!(kept.to_string(), "0,32", "both threads of a core");
    let MemoryManagerPolicy::Static { reserved } = &kubelet.memory_manager else {
        panic!("{:?}", kubelet.memory_manager)
    };
    assert_eq!((reserved.len(), reserved[0].numa, reserved[0].bytes), (1, 0, 8 << 30));
    let numa: Vec<NumaMask> = node.inside.gpus.iter().map(|gpu| gpu.numa).collect();
    assert_eq!(numa[3..5], [NumaMask::single(0), NumaMask::single(1)]);
    let topology = node.topology().unwrap().unwrap();
    let kubelet = topology.empty_kubelet();
    let pool = kubelet.pool_of("nvidia.com/gpu").unwrap();
    let free: Vec<(NumaMask, usize)> = kubelet.free_by_numa(pool).collect();
    assert_eq!(free, [(NumaMask::single(0), 4), (NumaMask::single(1), 4)]);
}

#[test]
fn numa_nodes_close_to_each_other_share_a_socket() {
    let distance = |from: u32, to: u32| match (from == to, from / 4 == to / 4) {
        (true, _) => 10,
        (_, true) => 12,
        _ => 32,
    };
    let mut text = format!("{HEAD}zones:\n");
    for id in 0..8 {
        let costs: Vec<String> =
            (0..8).map(|to| format!("{{name: node-{to}, value: {}}}", distance(id, to))).collect();
        text += &format!(
            "- {{name: node-{id}, type: Node, costs: [{}], resources: [{{name: cpu, capacity: '16', \
             allocatable: '{}'}}]}}\n",
            costs.join(", "),
            if id == 0 { 14 } else { 16 },
        );
    }
    let (machine, kubelet) = node_of(&(node(128, "") + &text)).inside.machine.unwrap();
    let of_sockets: Vec<usize> = machine.sockets().iter().map(|one| one.numa.count()).collect();
    assert_eq!(of_sockets, [4, 4], "four NUMA nodes per socket");
    assert!(matches!(kubelet.cpu_manager, CpuManagerPolicy::Static { .. }));
    assert_eq!(kubelet.topology_policy, TopologyPolicy::None);
    assert_eq!(machine.numa()[7].memory_bytes, 64 << 30, "divided evenly where zones say nothing");
}

#[test]
fn where_cpus_are_not_pinned_zones_tell_of_devices_alone() {
    let text = format!(
        "{HEAD}zones:
- {{name: node-0, type: Node, resources: [{{name: nvidia.com/gpu, capacity: '2', allocatable: '2'}}]}}
- {{name: node-1, type: Node, resources: [{{name: nvidia.com/gpu, capacity: '2', allocatable: '2'}}]}}
"
    );
    let node = node_of(&(node(64, ", nvidia.com/gpu: '5'") + &text));
    let (machine, kubelet) = node.inside.machine.clone().unwrap();
    assert_eq!(machine.cpus().len(), 64);
    assert_eq!(kubelet.cpu_manager, CpuManagerPolicy::None);
    assert_eq!(kubelet.memory_manager, MemoryManagerPolicy::None);
    assert_eq!(machine.sockets().len(), 2, "without distances each is a socket");
    let numa: Vec<NumaMask> = node.inside.gpus.iter().map(|gpu| gpu.numa).collect();
    assert_eq!(numa.len(), 5);
    assert_eq!(numa[4], NumaMask::EMPTY, "no zone lists the fifth");
}

#[test]
fn devices_that_several_zones_list_are_attached_to_all_of_them() {
    let text = format!(
        "{HEAD}zones:
- {{name: node-0, type: Node, resources: [{{name: nvidia.com/gpu, allocatable: '4'}}]}}
- {{name: node-1, type: Node, resources: [{{name: nvidia.com/gpu, allocatable: '4'}}]}}
"
    );
    let node = node_of(&(node(8, ", nvidia.com/gpu: '4'") + &text));
    assert!(
        node.inside.gpus.iter().all(|gpu| gpu.numa == NumaMask::first(2))
            && node.inside.gpus.len() == 4
    );
}

#[test]
fn attributes_say_what_zones_cannot() {
    let text = two_sockets().replace(
        "attributes:\n",
        "attributes:
- {name: cpuManagerPolicy, value: static}
- {name: cpuManagerPolicyOptions, value: 'full-pcpus-only=true,align-by-socket=false'}
- {name: reservedSystemCPUs, value: '0-1,32-33'}
- {name: memoryManagerPolicy, value: None}
- {name: topologyManagerPolicyOptions, value: 'max-allowable-numa-nodes=16'}
",
    );
    let (_, kubelet) = node_of(&(node(64, "") + &text)).inside.machine.unwrap();
    let CpuManagerPolicy::Static { options, reserved } = kubelet.cpu_manager else { panic!() };
    let options: Vec<String> = options.iter().map(|option| option.to_string()).collect();
    assert_eq!(options, ["full-pcpus-only"]);
    assert_eq!(reserved, ReservedCpus::Explicit("0-1,32-33".parse().unwrap()));
    assert_eq!(kubelet.memory_manager, MemoryManagerPolicy::None);
    assert_eq!(kubelet.max_allowable_numa_nodes, Some(16));
}

#[test]
fn policies_that_exporters_wrote_before_attributes_count_too() {
    let mut text = two_sockets();
    let attributes = text.find("attributes:").unwrap();
    let zones = text.find("zones:").unwrap();
    text.replace_range(attributes..zones, "");
    let (_, kubelet) = node_of(&(node(64, "") + &text)).inside.machine.unwrap();
    assert_eq!(kubelet.topology_policy, TopologyPolicy::SingleNumaNode);
    assert_eq!(kubelet.topology_scope, TopologyScope::Pod);
}

#[test]
fn labels_tell_of_regular_machines() {
    let text = node(64, ", nvidia.com/gpu: '8'").replace(
        "labels: {",
        "labels: {berth.dev/numa-nodes: '4', berth.dev/sockets: '2', \
         berth.dev/topology-manager-policy: restricted, berth.dev/cpu-manager-policy: static, ",
    );
    let node = node_of(&text);
    let (machine, kubelet) = node.inside.machine.clone().unwrap();
    assert_eq!((machine.sockets().len(), machine.numa().len()), (2, 4));
    assert_eq!(machine.numa()[1].distances, [12, 10, 21, 21]);
    assert_eq!(kubelet.topology_policy, TopologyPolicy::Restricted);
    let CpuManagerPolicy::Static { reserved, .. } = &kubelet.cpu_manager else { panic!() };
    assert_eq!(*reserved, ReservedCpus::Millis(2000));
    assert_eq!(kubelet.memory_manager, MemoryManagerPolicy::None, "nobody says so");
    assert_eq!(node.inside.gpus[2].numa, NumaMask::single(1));
    assert!(node.topology().unwrap().is_some());
}

#[test]
fn what_nobody_tells_stays_unknown() {
    let unknown = node_of(&node(64, ", nvidia.com/gpu: '8'"));
    assert!(unknown.inside.machine.is_none() && unknown.topology().unwrap().is_none());
    assert_eq!(unknown.inside.gpus.len(), 8);
    // To simulate it, something has to be assumed.
    let setup = unknown.setup(&Prices::default()).unwrap();
    assert_eq!((setup.machine.numa().len(), setup.machine.cpus().len()), (1, 62));
    assert_eq!(setup.microusd_per_hour, 8 * 6_880_000);
    let no_numa = format!("{HEAD}zones:\n- {{name: socket-0, type: Socket}}\n");
    assert!(node_of(&(node(64, "") + &no_numa)).inside.machine.is_none());
}

#[test]
fn an_impossible_field_is_reported_with_its_position() {
    let exported = |zones: &str| node(8, "") + HEAD + zones;
    for (text, expected) in [
        (
            exported("zones: [{name: left, type: Node}]\n"),
            "dump.yaml:14:16: NodeResourceTopology a: zones[0].name: zone name \"left\" does not \
             end in a NUMA node id; use a name such as node-0",
        ),
        (
            exported(
                "zones: [{name: node-0, type: Node, resources: [{name: cpu, capacity: much}]}]\n",
            ),
            "dump.yaml:14:70: NodeResourceTopology a: zones[0].resources[0].capacity: ",
        ),
        (
            exported(
                "attributes: [{name: topologyManagerPolicy, value: strict}]\nzones: [{name: node-0, \
                 type: Node}]\n",
            ),
            "dump.yaml:14:51: NodeResourceTopology a: attributes[0].value: ",
        ),
        (
            exported(
                "zones: [{name: node-0, type: Node, resources: [{name: cpu, capacity: 9M}]}]\n",
            ),
            "dump.yaml:14:8: NodeResourceTopology a: zones: 9000000 CPUs exceed the supported 1024",
        ),
        (
            node(8, "").replace("labels: {", "labels: {berth.dev/numa-nodes: two, "),
            "dump.yaml:5:34: Node a: metadata.labels[berth.dev/numa-nodes]: \"two\" is not an integer",
        ),
        (
            node(8, "") + &node(8, ""),
            "dump.yaml:14:9: Node a: metadata.name: duplicate object, first at dump.yaml:1:1; ",
        ),
        (
            node(8, "")
                .replace("labels: {", "annotations: {berth.dev/price-per-hour: free}\n  labels: {"),
            "dump.yaml:5:43: Node a: metadata.annotations[berth.dev/price-per-hour]: invalid price",
        ),
    ] {
        let error = cluster_or(&text).unwrap_err();
        assert!(error.starts_with(expected), "{error}\n{expected}");
    }
}

#[test]
fn an_object_that_owns_itself_is_refused() {
    let owned = |name: &str, by: &str| {
        format!(
            "---\napiVersion: apps/v1\nkind: ReplicaSet\nmetadata:\n  name: {name}\n  ownerReferences: \
             [{{apiVersion: apps/v1, kind: ReplicaSet, name: {by}, uid: x}}]\nspec: {{selector: {{}}}}\n"
        )
    };
    let error = cluster_or(&(owned("a", "b") + &owned("b", "c") + &owned("c", "a"))).unwrap_err();
    assert!(error.contains("dump.yaml:20:20: ReplicaSet c: metadata.ownerReferences"), "{error}");
    assert!(
        error
            .contains("ownership cycle: ReplicaSet a → ReplicaSet b → ReplicaSet c → ReplicaSet a"),
        "{error}"
    );
    assert!(cluster_or(&(owned("a", "b") + &owned("b", "c"))).is_ok());
}

#[test]
fn pods_of_any_scheduler_count_until_they_have_finished() {
    let pod = |name: &str, scheduler: &str, phase: &str| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, creationTimestamp: \
             '2026-11-01T00:00:00Z'}}\nspec: {{schedulerName: {scheduler}, nodeName: a, containers: \
             [{{name: c, image: i}}]}}\nstatus: {{phase: {phase}, futureField: 1}}\n"
        )
    };
    let text = node(8, "")
        + &pod("one", "default-scheduler", "Running")
        + &pod("two", "volcano", "Pending")
        + &pod("three", "default-scheduler", "Succeeded");
    let cluster = cluster(&text);
    let names: Vec<&str> = cluster.pods.iter().map(|pod| &*pod.name).collect();
    assert_eq!(names, ["one", "two"]);
    assert_eq!(cluster.now_ms, 1_793_491_200_000);
    let events = cluster.events().unwrap();
    let node = events.iter().position(|event| matches!(event, Event::Node(_))).unwrap();
    let pod = events.iter().position(|event| matches!(event, Event::Pod(_))).unwrap();
    assert!(node < pod);
}

#[test]
fn pools_grow_like_the_nodes_they_have_up_to_their_limits() {
    let pool = "---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: gpus}
spec:
  limits: {nvidia.com/gpu: '32', cpu: '1000'}
  template:
    spec:
      taints: [{key: nvidia.com/gpu, value: 'true', effect: NoSchedule}]
      requirements: []
";
    let text = node(64, ", nvidia.com/gpu: '8'")
        .replace("labels: {", "labels: {karpenter.sh/nodepool: gpus, ");
    let cluster = cluster(&(text + pool));
    assert_eq!(cluster.pools.len(), 1);
    assert_eq!(cluster.pools[0].growth, Some(3), "24 more GPUs");
    assert_eq!(cluster.pools[0].template.taints.len(), 1);
}
