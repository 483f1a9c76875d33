//! Kubelets' files read as what they say, in all versions.
//!
//! The state files in `vectors` were written by the code of Kubernetes 1.37 itself.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use berth_host::kubelet::{Checksum, Configuration, KubeletPaths};
use berth_host::synthetic::{Tree, add_kubelet};
use berth_host::{Diagnosis, KubeletFiles};
use berth_kubelet::{
    CpuManagerPolicy, CpuOption, KubeletVersion, MemoryManagerPolicy, ReservedCpus, TopologyPolicy,
    TopologyScope,
};
use serde_json::json;

mod support;

const CPU_V2: &str = include_str!("vectors/cpu-v2.json");
const CPU_V4: &str = include_str!("vectors/cpu-v4.json");
const MEMORY_V1: &str = include_str!("vectors/mem-v1.json");
const MEMORY_V3: &str = include_str!("vectors/mem-v3.json");
const DEVICES_V2: &str = include_str!("vectors/dev-v2.json");
const UID: &str = "3f6e8b1a-52c5-4a3e-9a3e-0d4f1f7f2a11";

const CONFIGURATION: &str = "\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
clusterDNS: [192.0.2.10]
topologyManagerPolicy: single-numa-node
topologyManagerScope: pod
topologyManagerPolicyOptions:
  prefer-closest-numa-nodes: \"true\"
cpuManagerPolicy: static
cpuManagerPolicyOptions:
  full-pcpus-only: \"true\"
reservedSystemCPUs: 0-1,64-65
memoryManagerPolicy: Static
reservedMemory:
- numaNode: 0
  limits: {memory: 1Gi}
- numaNode: 1
  limits: {memory: 1Gi, hugepages-1Gi: 2Gi}
systemReserved: {cpu: 500m, memory: 1Gi}
kubeReserved: {cpu: 500m, memory: 924Mi}
evictionHard: {memory.available: 100Mi}
";

fn read(tree: &Tree) -> (KubeletFiles, Vec<Diagnosis>) {
    let (root, _directory) = support::written(tree);
    KubeletFiles::read(&root)
}

fn host(cpus: Option<&str>, memory: Option<&str>, devices: Option<&str>) -> Tree {
    let mut tree = Tree::default();
    add_kubelet(&mut tree, CONFIGURATION, cpus, memory, devices);
    tree
}

#[test]
fn a_configuration_configures_the_model() {
    let (files, diagnoses) = read(&host(Some(CPU_V2), Some(MEMORY_V1), Some(DEVICES_V2)));
    assert_eq!(diagnoses, []);
    let configuration = files.configuration.unwrap();
    let planned = configuration.to_model(KubeletVersion::V1_36).unwrap();
    assert_eq!(planned.topology_policy, TopologyPolicy::SingleNumaNode);
    assert_eq!(planned.topology_scope, TopologyScope::Pod);
    assert!(planned.prefer_closest_numa_nodes);
    let CpuManagerPolicy::Static { options, reserved } = planned.cpu_manager else { panic!() };
    assert!(options.has(CpuOption::FullPcpusOnly));
    assert_eq!(reserved, ReservedCpus::Explicit("0-1,64-65".parse().unwrap()));
    let MemoryManagerPolicy::Static { reserved } = planned.memory_manager else { panic!() };
    let bytes: Vec<_> = reserved.iter().map(|one| (one.numa, one.bytes)).collect();
    assert_eq!(bytes, [(0, 1 << 30), (1, 2 << 30), (1, 1 << 30)]);

    let by_amount = Configuration { reserved_system_cpus: None, ..configuration.clone() };
    let planned = by_amount.to_model(KubeletVersion::V1_36).unwrap();
    let CpuManagerPolicy::Static { reserved, .. } = planned.cpu_manager else { panic!() };
    assert_eq!(reserved, ReservedCpus::Millis(1000));

    let unknown = Configuration { cpu_manager_policy: "dynamic".into(), ..configuration };
    let error = unknown.to_model(KubeletVersion::V1_36).unwrap_err().to_string();
    assert_eq!(error, "cpuManagerPolicy: unknown policy \"dynamic\"; use none or static");
}

#[test]
fn drop_in_files_and_flags_override_in_order() {
    let mut tree = host(Some(CPU_V2), Some(MEMORY_V1), None);
    let file = |fields: &str| {
        format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{fields}\n")
    };
    tree.file(
        "etc/d/10-one.conf",
        file("topologyManagerPolicy: restricted\nkubeReserved: {cpu: 1}"),
    )
    .file("etc/d/20/two.conf", file("topologyManagerPolicy: best-effort"))
    .file("etc/d/30-not.yaml", file("topologyManagerPolicy: none"))
    .file("etc/d/40-broken.conf", "- a list\n");
    let (root, _directory) = support::written(&tree);
    let mut paths = KubeletPaths::detect(&root);
    paths.config_dir = Some("etc/d".to_owned());
    paths.flags = json!({"topologyManagerScope": "container"});
    let (files, diagnoses) = KubeletFiles::read_at(&root, &paths);
    let configuration = files.configuration.unwrap();
    assert_eq!(configuration.topology_manager_policy, "best-effort");
    assert_eq!(configuration.topology_manager_scope, "container");
    assert_eq!(configuration.kube_reserved["cpu"], "1");
    assert_eq!(configuration.kube_reserved["memory"], "924Mi", "maps are merged");
    assert_eq!(diagnoses.len(), 1, "{diagnoses:?}");
    assert_eq!(diagnoses[0].path, "/etc/d/40-broken.conf");
}

#[test]
fn cpus_are_read_from_every_version() {
    let (files, diagnoses) = read(&host(Some(CPU_V2), Some(MEMORY_V1), None));
    assert_eq!(diagnoses, []);
    let state = files.cpus.unwrap();
    assert_eq!((state.version, state.policy.as_str()), (2, "static"));
    assert_eq!(state.checksum, Some(Checksum::Right));
    assert_eq!(state.shared.to_string(), "0-1,3-7,32-65,67-71,80-127");
    let first = &state.containers[0];
    assert_eq!((first.pod.as_deref(), first.container.as_str()), (Some(UID), "server"));
    assert_eq!(first.cpus.to_string(), "8-15,72-79");
    assert_eq!(state.containers.len(), 3);

    let (files, _) = read(&host(Some(CPU_V4), None, None));
    let newer = files.cpus.unwrap();
    assert_eq!((newer.version, newer.checksum), (4, Some(Checksum::Right)));
    assert_eq!(newer.containers, state.containers);
    assert_eq!(newer.pods[0].cpus.to_string(), "16-18");

    // By container id, as kubelets until 1.17 wrote it; the checksum is one of Kubernetes' own tests.
    let first = r#"{"policyName":"none","defaultCPUSet":"1-3","entries":{"containerID1":"4-6",
        "containerID2":"1-3"},"checksum":3680390589}"#;
    let (files, _) = read(&host(Some(first), None, None));
    let state = files.cpus.unwrap();
    assert_eq!((state.version, state.checksum), (1, Some(Checksum::Right)));
    assert_eq!(
        (&state.containers[0].pod, state.containers[0].container.as_str()),
        (&None, "containerID1")
    );
}

#[test]
fn memory_is_read_from_every_version() {
    for (text, version) in [(MEMORY_V1, 1), (MEMORY_V3, 3)] {
        let (files, diagnoses) = read(&host(Some(CPU_V2), Some(text), None));
        assert_eq!(diagnoses, []);
        let state = files.memory.unwrap();
        assert_eq!((state.version, state.checksum), (version, Some(Checksum::Right)));
        assert_eq!(state.nodes[0].memory["memory"].free_bytes, 235_149_459_456);
        assert_eq!((state.nodes[0].assignments, &state.nodes[1].group[..]), (1, &[1][..]));
        let blocks = &state.containers[0].blocks;
        assert_eq!((blocks[0].bytes, &blocks[0].nodes[..]), (32 << 30, &[0][..]));
    }
}

#[test]
fn devices_are_read_from_both_versions() {
    let (files, diagnoses) = read(&host(Some(CPU_V2), Some(MEMORY_V1), Some(DEVICES_V2)));
    assert_eq!(diagnoses, []);
    let state = files.devices.unwrap();
    assert_eq!((state.version, state.checksum), (2, Some(Checksum::Right)));
    assert_eq!(state.entries[0].resource, "nvidia.com/gpu");
    let numa: Vec<_> = state.entries[0].devices.iter().map(|one| one.numa.clone()).collect();
    assert_eq!(numa, [vec![0], vec![1]]);
    assert_eq!(state.entries[1].devices[0].numa, [0u32; 0], "−1 is no NUMA node");
    assert_eq!(state.registered["rdma/hca"], ["mlx5_0"]);

    let older = r#"{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":
        "nvidia.com/gpu","DeviceIDs":["a","b"],"AllocResp":""}],"RegisteredDevices":{}},"Checksum":7}"#;
    let (files, diagnoses) = read(&host(Some(CPU_V2), Some(MEMORY_V1), Some(older)));
    let state = files.devices.unwrap();
    assert_eq!((state.version, state.checksum), (1, Some(Checksum::Wrong)));
    let ids: Vec<_> = state.entries[0].devices.iter().map(|one| one.id.as_str()).collect();
    assert_eq!(ids, ["a", "b"]);
    assert!(diagnoses[0].what.contains("wrong checksum"), "{diagnoses:?}");
}

#[test]
fn a_device_of_two_numa_nodes_is_one_device() {
    let text = r#"{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"r",
        "DeviceIDs":{"1":["a"],"0":["a"]},"AllocResp":null}],"RegisteredDevices":null}}"#;
    let (files, _) = read(&host(None, None, Some(text)));
    let state = files.devices.unwrap();
    assert_eq!(state.checksum, Some(Checksum::Absent));
    assert_eq!(state.entries[0].devices[0].numa, [0, 1]);
}

#[test]
fn invalid_state_has_a_diagnosis_and_the_rest_is_read() {
    let mut tree = host(
        Some(r#"{"policyName":"none","defaultCpuSet":"0-x","entries":{"u":{"a":"1","b":7}}}"#),
        Some("{"),
        Some("[]"),
    );
    tree.file(
        "var/lib/kubelet/config.yaml",
        CONFIGURATION.replace("0-1,64-65", "zero").replace("cpu: 500m, memory: 1Gi", "cpu: [1]"),
    );
    let (files, diagnoses) = read(&tree);
    let configuration = files.configuration.unwrap();
    assert_eq!(configuration.topology_manager_policy, "single-numa-node");
    assert_eq!(configuration.reserved_system_cpus, None);
    assert!(configuration.system_reserved.is_empty());
    let state = files.cpus.unwrap();
    assert_eq!(state.containers[0].cpus.to_string(), "1");
    assert!(files.memory.is_none() && files.devices.is_none());
    let found: Vec<String> = diagnoses.iter().map(ToString::to_string).collect();
    for part in [
        "reservedSystemCPUs is not a list of CPUs",
        "systemReserved is not a map of strings",
        "the shared pool",
        "memory_manager_state: is not valid JSON",
        "kubelet_internal_checkpoint: has no Data",
        "was written under policy \"none\", but \"static\" is configured",
    ] {
        assert!(found.iter().any(|one| one.contains(part)), "{part:?} in {found:#?}");
    }
}

#[test]
fn without_a_kubelet_there_is_one_diagnosis() {
    let (files, diagnoses) = read(&Tree::default());
    assert_eq!(files, KubeletFiles::default());
    assert_eq!(diagnoses.len(), 1, "{diagnoses:?}");
    assert_eq!(diagnoses[0].path, "/var/lib/kubelet/config.yaml");
}

#[test]
fn paths_come_from_the_running_kubelet() {
    let mut tree = Tree::default();
    tree.line("proc/1/comm", "systemd")
        // One that has ended and whose parent has not looked yet.
        .line("proc/76/comm", "kubelet")
        .file("proc/76/cmdline", "")
        .line("proc/77/comm", "kubelet")
        .file(
            "proc/77/cmdline",
            "/usr/bin/kubelet\0--config=/srv/k.yaml\0--cpu-manager-policy\0static\0",
        )
        .file("srv/k.yaml", CONFIGURATION);
    let (root, _directory) = support::written(&tree);
    let (paths, diagnoses) = KubeletPaths::of_running(&root);
    assert_eq!(diagnoses, []);
    let (files, _) = KubeletFiles::read_at(&root, &paths.unwrap());
    assert!(files.configuration.unwrap().pins_cpus());
}
