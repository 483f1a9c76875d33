//! `would_admit` runs millions of times: on common nodes it must not touch the heap.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::ops::AddAssign;

use allocation_counter::measure;
use berth_kubelet::{
    CpuManagerPolicy, CpuOptions, Kubelet, KubeletConfig, MemoryManagerPolicy, PodDemand,
    ReservedCpus, ReservedMemory, TopologyPolicy, TopologyScope,
};
use berth_model::idset::CpuSet;
use berth_model::pod::{ContainerKind, Pod};
use berth_model::resource::MemoryKind;
use berth_testkit::node::{RegularMachine, pod, spread_devices};

/// A node with whole GPUs, three kinds of MIG slices and NICs.
const RESOURCES: [&str; 5] = [
    "nvidia.com/gpu",
    "nvidia.com/mig-1g.10gb",
    "nvidia.com/mig-2g.20gb",
    "nvidia.com/mig-3g.40gb",
    "rdma/hca",
];

fn node(numa_per_socket: usize, policy: TopologyPolicy, scope: TopologyScope) -> Kubelet {
    let machine = RegularMachine {
        sockets: 2,
        numa_per_socket,
        cores_per_numa: 32 / numa_per_socket,
        threads: 2,
        memory_bytes: (256 << 30) / numa_per_socket as u64,
    };
    let machine = machine.build().unwrap();
    let pools = RESOURCES.map(|resource| spread_devices(resource, 8, &machine));
    let config = KubeletConfig {
        topology_policy: policy,
        topology_scope: scope,
        cpu_manager: CpuManagerPolicy::Static {
            options: CpuOptions::default(),
            reserved: ReservedCpus::Explicit(CpuSet::from_iter([0])),
        },
        memory_manager: MemoryManagerPolicy::Static {
            reserved: vec![ReservedMemory { numa: 0, kind: MemoryKind::Ordinary, bytes: 1 << 30 }],
        },
        ..KubeletConfig::default()
    };
    Kubelet::new(machine, config, pools.into()).unwrap()
}

/// A serving pod: a container that loads the model, a sidecar, the server.
fn serving_pod() -> Pod {
    let limits = [
        ("cpu", "6"),
        ("memory", "40Gi"),
        ("nvidia.com/gpu", "2"),
        ("nvidia.com/mig-1g.10gb", "1"),
        ("rdma/hca", "1"),
    ];
    let mut serving = pod("serving", &limits).unwrap();
    for (name, kind) in [("proxy", ContainerKind::Sidecar), ("load", ContainerKind::Init)] {
        let mut container = serving.containers[0].clone();
        container.name = name.to_owned();
        container.kind = kind;
        serving.containers.insert(0, container);
    }
    serving
}

#[test]
fn would_admit_does_not_touch_the_heap() {
    use TopologyPolicy::{BestEffort, None, Restricted, SingleNumaNode};
    let (mut admitted, mut rejected) = (0, 0);
    for numa_per_socket in [1, 2, 4] {
        for policy in [None, BestEffort, Restricted, SingleNumaNode] {
            for scope in [TopologyScope::Container, TopologyScope::Pod] {
                let mut kubelet = node(numa_per_socket, policy, scope);
                let demand = PodDemand::new(&serving_pod(), kubelet.config().version).unwrap();
                for round in 0..3 {
                    let allocations = measure(|| {
                        let verdict = kubelet.would_admit(&demand);
                        (if verdict.admits() { &mut admitted } else { &mut rejected })
                            .add_assign(1);
                    });
                    let place = format!("{numa_per_socket} {policy} {scope} round {round}");
                    assert_eq!(allocations.count_total, 0, "{place}");
                    let _ = kubelet.admit(&format!("pod-{round}"), &demand);
                }
            }
        }
    }
    assert!(admitted > 10 && rejected > 10, "{admitted} admitted, {rejected} rejected");
}
