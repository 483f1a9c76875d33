//! Builders for machines, devices and pods, for tests and benches.

use berth_model::device::{Device, DevicePool, PreferredAllocation};
use berth_model::machine::Machine;
pub use berth_model::machine::RegularMachine;
use berth_model::numa::NumaMask;
use berth_model::pod::{Container, ContainerKind, Pod, Resources};
use berth_model::quantity::{Quantity, QuantityError};
use berth_model::resource::{ResourceList, ResourceName};

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
