//! Builders for machines, devices and pods, for tests and benches.

use std::collections::BTreeMap;

use berth_model::device::{Device, DevicePool, PreferredAllocation};
use berth_model::machine::{CoreSpec, Machine, MachineError, MachineSpec, NumaSpec};
use berth_model::numa::NumaMask;
use berth_model::pod::{Container, ContainerKind, Pod, Resources};
use berth_model::quantity::{Quantity, QuantityError};
use berth_model::resource::{ResourceList, ResourceName};

/// A regular machine: every NUMA node has as many cores and as much memory as the others.
#[derive(Clone, Copy, Debug)]
pub struct RegularMachine {
    /// Sockets.
    pub sockets: usize,
    /// NUMA nodes in each socket.
    pub numa_per_socket: usize,
    /// Physical cores in each NUMA node.
    pub cores_per_numa: usize,
    /// Hardware threads of each core.
    pub threads: usize,
    /// Memory of each NUMA node.
    pub memory_bytes: u64,
}

impl RegularMachine {
    /// The machine, with siblings numbered as Linux does on x86: all first threads come first.
    pub fn build(self) -> Result<Machine, MachineError> {
        let nodes = self.sockets * self.numa_per_socket;
        let cores = nodes * self.cores_per_numa;
        let distance = |from: usize, to: usize| match from {
            _ if from == to => 10,
            _ if from / self.numa_per_socket == to / self.numa_per_socket => 12,
            _ => 32,
        };
        let numa = (0..nodes)
            .map(|id| NumaSpec {
                id: id as u32,
                memory_bytes: self.memory_bytes,
                hugepages: BTreeMap::new(),
                distances: (0..nodes).map(|to| distance(id, to)).collect(),
            })
            .collect();
        let cores = (0..cores)
            .map(|core| CoreSpec {
                numa: (core / self.cores_per_numa) as u32,
                socket: (core / self.cores_per_numa / self.numa_per_socket) as u32,
                uncore: None,
                threads: (0..self.threads).map(|thread| thread * cores + core).collect(),
            })
            .collect();
        Machine::new(MachineSpec { sockets: Some(self.sockets), numa, cores })
    }
}

/// `count` devices spread evenly over the NUMA nodes, lowest ids on the lowest nodes.
pub fn spread_devices(resource: &str, count: usize, machine: &Machine) -> DevicePool {
    let nodes = machine.numa().len();
    let device = |index: usize| Device {
        id: format!("{}-{index}", resource.rsplit('/').next().unwrap_or(resource)),
        numa: NumaMask::single(index * nodes / count),
        misplaced: false,
        healthy: true,
    };
    DevicePool {
        resource: resource.into(),
        preferred: PreferredAllocation::LowestId,
        devices: (0..count).map(device).collect(),
    }
}

/// A pod of one container with these limits, requests being equal to them.
pub fn pod(name: &str, limits: &[(&str, &str)]) -> Result<Pod, QuantityError> {
    let limits = limits
        .iter()
        .map(|(name, text)| Ok((ResourceName::new(*name), Quantity::parse(text)?)))
        .collect::<Result<ResourceList, QuantityError>>()?;
    let resources = Resources { requests: limits.clone(), limits };
    let container = Container { name: "main".to_owned(), kind: ContainerKind::App, resources };
    Ok(Pod { name: name.to_owned(), containers: vec![container], ..Pod::default() })
}
