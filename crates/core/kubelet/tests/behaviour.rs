//! Common cases of admission, in small.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use berth_kubelet::{
    Admission, Certainty, CpuManagerPolicy, CpuOption, CpuOptions, Hint, Kubelet, KubeletConfig,
    MemoryManagerPolicy, Reason, Rejection, ReservedCpus, ReservedMemory, TopologyPolicy,
    TopologyScope, Verdict,
};
use berth_model::device::PreferredAllocation;
use berth_model::idset::CpuSet;
use berth_model::machine::{CoreSpec, Machine, MachineSpec, NumaSpec};
use berth_model::numa::NumaMask;
use berth_model::resource::MemoryKind;
use berth_testkit::node::{RegularMachine, pod, spread_devices};

const GPU: &str = "nvidia.com/gpu";

/// Two sockets with 16 cores of two threads, 64 GiB and 4 GPUs each; CPUs 0 and 32 and 1 GiB of
/// node 0 are reserved for the system.
fn node(policy: TopologyPolicy, options: &[CpuOption]) -> Kubelet {
    node_with(policy, options, PreferredAllocation::LowestId)
}

fn node_with(
    policy: TopologyPolicy,
    options: &[CpuOption],
    preferred: PreferredAllocation,
) -> Kubelet {
    let machine = RegularMachine {
        sockets: 2,
        numa_per_socket: 1,
        cores_per_numa: 16,
        threads: 2,
        memory_bytes: 64 << 30,
    };
    let machine = machine.build().unwrap();
    let mut gpus = spread_devices(GPU, 8, &machine);
    gpus.preferred = preferred;
    let config = KubeletConfig {
        topology_policy: policy,
        topology_scope: TopologyScope::Pod,
        cpu_manager: CpuManagerPolicy::Static {
            options: options.iter().copied().collect(),
            reserved: ReservedCpus::Explicit("0,32".parse().unwrap()),
        },
        memory_manager: MemoryManagerPolicy::Static {
            reserved: vec![ReservedMemory { numa: 0, kind: MemoryKind::Ordinary, bytes: 1 << 30 }],
        },
        ..KubeletConfig::default()
    };
    Kubelet::new(machine, config, vec![gpus]).unwrap()
}

fn admit(
    kubelet: &mut Kubelet,
    name: &str,
    cpus: &str,
    memory: &str,
    gpus: &str,
) -> Result<Admission, Rejection> {
    let pod = pod(name, &[("cpu", cpus), ("memory", memory), (GPU, gpus)]).unwrap();
    let demand = kubelet.demand(&pod).unwrap();
    kubelet.admit(name, &demand)
}

#[test]
fn cpus_memory_and_gpus_come_from_one_numa_node_where_they_fit() {
    let mut kubelet = node(TopologyPolicy::SingleNumaNode, &[]);
    let admission = admit(&mut kubelet, "a", "8", "16Gi", "4").unwrap();
    let given = &admission.containers[0];
    let on_node_0 = NumaMask::single(0);
    assert_eq!(given.affinity, Some(Hint { numa: Some(on_node_0), preferred: true }));
    assert_eq!(given.cpus.unwrap().to_string(), "1-4,33-36");
    assert_eq!(given.memory[0].numa, on_node_0);
    assert_eq!(kubelet.pools().next().unwrap().ids(given.devices[0].devices).len(), 4);
}

#[test]
fn four_free_gpus_split_over_sockets_are_no_place_for_a_pod_of_four() {
    let mut kubelet = node(TopologyPolicy::SingleNumaNode, &[]);
    admit(&mut kubelet, "left", "4", "8Gi", "2").unwrap();
    // The second pod would go beside the first; a third prevents that.
    admit(&mut kubelet, "filler", "24", "8Gi", "0").unwrap();
    admit(&mut kubelet, "right", "4", "8Gi", "2").unwrap();
    kubelet.remove("filler");
    assert_eq!(kubelet.free_devices(0).len(), 4);
    let rejection = admit(&mut kubelet, "four", "4", "8Gi", "4").unwrap_err();
    assert_eq!(rejection.reason, Reason::TopologyAffinityError);
    assert_eq!(rejection.message, "Resources cannot be allocated with Topology locality");
    // Under best-effort it runs, across both sockets.
    let mut lenient = node(TopologyPolicy::BestEffort, &[]);
    admit(&mut lenient, "left", "4", "8Gi", "2").unwrap();
    admit(&mut lenient, "filler", "24", "8Gi", "0").unwrap();
    admit(&mut lenient, "right", "4", "8Gi", "2").unwrap();
    lenient.remove("filler");
    let admission = admit(&mut lenient, "four", "4", "1Gi", "4").unwrap();
    assert!(!admission.containers[0].affinity.unwrap().preferred);
}

#[test]
fn restricted_lets_a_pod_span_sockets_only_if_it_must() {
    let mut kubelet = node(TopologyPolicy::Restricted, &[]);
    assert!(admit(&mut kubelet, "must", "40", "100Gi", "8").is_ok());
    kubelet.remove("must");
    // 8 GPUs need both sockets, 4 CPUs do not: the hints never agree.
    let rejection = admit(&mut kubelet, "need not", "4", "8Gi", "8").unwrap_err();
    assert_eq!(rejection.reason, Reason::TopologyAffinityError);
}

#[test]
fn half_cores_are_refused_after_the_topology_is_judged() {
    let mut kubelet = node(TopologyPolicy::SingleNumaNode, &[CpuOption::FullPcpusOnly]);
    let rejection = admit(&mut kubelet, "odd", "3", "8Gi", "1").unwrap_err();
    assert_eq!(rejection.reason.as_str(), "SMTAlignmentError");
    assert_eq!(
        rejection.message,
        "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"
    );
    let misaligned = admit(&mut kubelet, "odd and wide", "3", "8Gi", "8").unwrap_err();
    assert_eq!(misaligned.reason, Reason::TopologyAffinityError);
}

#[test]
fn too_much_memory_passes_the_topology_manager_and_fails_later() {
    let mut kubelet = node(TopologyPolicy::SingleNumaNode, &[]);
    let rejection = admit(&mut kubelet, "huge", "4", "200Gi", "1").unwrap_err();
    assert_eq!(rejection.reason, Reason::UnexpectedAdmissionError);
    assert!(rejection.message.contains("failed to find NUMA nodes to extend"), "{rejection:?}");
}

#[test]
fn memory_of_a_group_goes_back_to_its_lowest_node() {
    let mut kubelet = node(TopologyPolicy::BestEffort, &[]);
    // 80 and 20 GiB on both nodes together, filled from the lowest: 63 and 17, then 20.
    admit(&mut kubelet, "first", "4", "80Gi", "0").unwrap();
    admit(&mut kubelet, "second", "4", "20Gi", "0").unwrap();
    let free = |kubelet: &Kubelet| kubelet.free_memory()[0].bytes.clone();
    assert_eq!(free(&kubelet), [Some(0), Some(27 << 30)]);
    kubelet.remove("second");
    assert_eq!(free(&kubelet), [Some(20 << 30), Some(27 << 30)]);
    kubelet.remove("first");
    assert_eq!(free(&kubelet), [Some(63 << 30), Some(64 << 30)]);
}

#[test]
fn devices_without_a_preference_are_given_as_a_set_of_outcomes() {
    let none = PreferredAllocation::NotImplemented;
    let mut kubelet = node_with(TopologyPolicy::SingleNumaNode, &[], none);
    let admission = admit(&mut kubelet, "a", "4", "8Gi", "2").unwrap();
    let given = &admission.containers[0].devices[0];
    assert_eq!(given.certainty, Certainty::PerNuma);
    assert!(given.certain.is_empty());
    assert_eq!(given.candidates.to_string(), "0-3");
    // What is left of a NUMA node is certain again in number, and everything once it is empty.
    assert_eq!(kubelet.device_certainty(0), Certainty::PerNuma);
    kubelet.remove("a");
    assert_eq!(kubelet.device_certainty(0), Certainty::Exact);
}

#[test]
fn unhealthy_devices_are_not_handed_out_but_still_count_for_what_is_narrow() {
    let mut kubelet = node(TopologyPolicy::Restricted, &[]);
    (0..4).for_each(|gpu| assert!(kubelet.set_device_health(0, gpu, false)));
    assert!(!kubelet.set_device_health(0, 8, true), "there is no such device");
    // Six GPUs need two nodes, and four are left.
    assert!(admit(&mut kubelet, "six", "4", "8Gi", "6").is_err());
    let admission = admit(&mut kubelet, "four", "4", "8Gi", "4").unwrap();
    assert_eq!(admission.containers[0].devices[0].devices.to_string(), "4-7");
}

#[test]
fn an_admitted_pod_keeps_its_allocation() {
    let mut kubelet = node(TopologyPolicy::SingleNumaNode, &[]);
    let first = admit(&mut kubelet, "a", "4", "8Gi", "1").unwrap();
    assert_eq!(admit(&mut kubelet, "a", "4", "8Gi", "1").unwrap(), first);
    assert!(kubelet.remove("a"));
    assert!(!kubelet.remove("a"));
}

#[test]
fn a_node_can_be_rebuilt_from_its_pods_allocations() {
    let mut kubelet = node(TopologyPolicy::SingleNumaNode, &[]);
    let held = admit(&mut kubelet, "a", "4", "8Gi", "2").unwrap();
    let mut rebuilt = node(TopologyPolicy::SingleNumaNode, &[]);
    rebuilt.adopt("a", &held).unwrap();
    assert_eq!(rebuilt.assignment("a"), kubelet.assignment("a"));
    assert_eq!(rebuilt.shared_cpus(), kubelet.shared_cpus());
    assert_eq!(rebuilt.free_memory(), kubelet.free_memory());
    assert_eq!(rebuilt.free_devices(0), kubelet.free_devices(0));
    let again = rebuilt.adopt("a", &held).unwrap_err();
    assert_eq!(again.to_string(), "pod \"a\": name: is on the node already; remove it first");
    let mut elsewhere = held.clone();
    elsewhere.containers[0].cpus = Some("200-203".parse().unwrap());
    let error = rebuilt.adopt("b", &elsewhere).unwrap_err();
    assert_eq!(error.field, "containers[main].cpus");
    let error = rebuilt.adopt("b", &held).unwrap_err();
    assert_eq!(error.field, "containers[main].devices");
}

#[test]
fn would_admit_changes_nothing() {
    let mut kubelet = node(TopologyPolicy::SingleNumaNode, &[]);
    let pod = pod("a", &[("cpu", "4"), ("memory", "8Gi"), (GPU, "1")]).unwrap();
    let demand = kubelet.demand(&pod).unwrap();
    let numa = Some(NumaMask::single(0));
    let verdict = Verdict::Admit { numa, preferred: true, certain: true };
    for _ in 0..3 {
        assert_eq!(kubelet.would_admit(&demand), verdict);
    }
    assert_eq!(kubelet.free_devices(0).len(), 8);
    assert_eq!(kubelet.pods().count(), 0);
    assert!(kubelet.admit("a", &demand).is_ok());
}

/// The kubelet chose {2, 3, 4, 5}, but by then the last element reads 7.
#[test]
fn distribution_remembers_the_wrong_combination_of_four_nodes() {
    let machine = RegularMachine {
        sockets: 2,
        numa_per_socket: 4,
        cores_per_numa: 16,
        threads: 1,
        memory_bytes: 1 << 30,
    };
    let config = KubeletConfig {
        cpu_manager: CpuManagerPolicy::Static {
            options: CpuOptions::from_iter([CpuOption::DistributeCpusAcrossNuma]),
            reserved: ReservedCpus::Explicit(CpuSet::from_iter([0, 16])),
        },
        ..KubeletConfig::default()
    };
    let mut kubelet = Kubelet::new(machine.build().unwrap(), config, Vec::new()).unwrap();
    let pod = pod("a", &[("cpu", "60"), ("memory", "1Gi")]).unwrap();
    let demand = kubelet.demand(&pod).unwrap();
    let cpus = kubelet.admit("a", &demand).unwrap().containers[0].cpus.unwrap();
    let nodes = kubelet.machine().numa().iter().filter(|node| node.cpus.intersects(&cpus));
    assert_eq!(nodes.map(|node| node.id).collect::<Vec<_>>(), [2, 3, 4, 7]);
}

/// With single threads reserved, free CPUs do not form whole cores everywhere, and a loop of the
/// kubelet that distributes the remainder core by core never ends.
#[test]
fn distribution_in_whole_cores_can_hang_the_kubelet() {
    let node = |id| NumaSpec { id, memory_bytes: 8 << 30, ..NumaSpec::default() };
    let core = |core: usize| CoreSpec {
        numa: core as u32 / 4,
        socket: core as u32 / 8,
        uncore: None,
        threads: vec![2 * core, 2 * core + 1],
    };
    let machine = Machine::new(MachineSpec {
        sockets: Some(2),
        numa: (0..4).map(node).collect(),
        cores: (0..16).map(core).collect(),
    });
    let config = KubeletConfig {
        cpu_manager: CpuManagerPolicy::Static {
            options: [CpuOption::DistributeCpusAcrossNuma, CpuOption::FullPcpusOnly]
                .into_iter()
                .collect(),
            reserved: ReservedCpus::Explicit("0,8,16-17,24-27".parse().unwrap()),
        },
        ..KubeletConfig::default()
    };
    let kubelet = Kubelet::new(machine.unwrap(), config, Vec::new()).unwrap();
    let pod = pod("a", &[("cpu", "22"), ("memory", "1Gi")]).unwrap();
    let demand = kubelet.demand(&pod).unwrap();
    let verdict = Verdict::Reject { reason: Reason::KubeletFault, certain: true };
    assert_eq!(kubelet.would_admit(&demand), verdict);
}
