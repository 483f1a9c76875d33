//! A node's topology, read from its objects: the one reader for the scheduler, the linter and dumps.
//!
//! A Node, its labels and its NodeResourceTopology, if there is one, become a machine, its kubelet's
//! configuration and its devices. Without either the topology is unknown. Device ids are made up, because
//! no object lists them.

pub mod assignment;
pub mod detail;
pub mod fingerprint;
mod gpus;
mod machine;

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_api::FieldPath;
use berth_api::crd::PoolTopology;
use berth_api::topology::NodeResourceTopology;
use berth_kubelet::{ConfigError, KubeletConfig, NodeTopology};
use berth_model::device::{DevicePool, PreferredAllocation};
use berth_model::gpu::{DivisionError, Gpu, GpuInventory, Naming, device_pools};
use berth_model::machine::Machine;
use berth_model::node::Node;
use berth_model::numa::NumaMask;
use berth_model::quantity::Quantity;
use berth_model::resource::ResourceName;
use k8s_openapi::api::core::v1 as core;

pub use machine::{field_of, key_of, marked};

/// NVIDIA's plugin chooses by the links between GPUs, which no object describes.
pub const PREFERRED: PreferredAllocation = PreferredAllocation::Unpredictable;

/// Devices by NUMA nodes and resource.
pub type DeviceCounts = Vec<(NumaMask, BTreeMap<ResourceName, u64>)>;

#[derive(Clone, Debug, PartialEq)]
pub struct Inside {
    /// With the kubelet's configuration; `None` if unknown.
    pub machine: Option<(Arc<Machine>, KubeletConfig)>,
    /// Their ids are made up.
    pub gpus: Vec<Gpu>,
    pub naming: Naming,
    /// Whether GPUs are shared under MPS.
    pub mps: bool,
    /// Devices other than known GPUs.
    pub others: Vec<DevicePool>,
    /// Free devices, as the exporter reports them.
    pub free: DeviceCounts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Node,
    /// The NodeResourceTopology.
    Topology,
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{field}: {message}; {remedy}")]
pub struct TopologyError {
    /// The object that the field is in.
    pub origin: Origin,
    pub field: FieldPath,
    pub message: String,
    pub remedy: String,
}

/// Reads a node, given as the API's object and as the model. Its NodeResourceTopology takes precedence over
/// its labels, and these over its pool.
pub fn read(
    node: &core::Node,
    model: &Node,
    exported: Option<&NodeResourceTopology>,
    pool: Option<&PoolTopology>,
) -> Result<Inside, TopologyError> {
    let (described, origin) = match (exported, pool) {
        (Some(topology), _) => (machine::exported(node, topology), Origin::Topology),
        (None, Some(pool)) => (machine::labelled(&machine::in_pool(node, pool)), Origin::Node),
        (None, None) => (machine::labelled(node), Origin::Node),
    };
    let described = described.map_err(|error| TopologyError { origin, ..error })?;
    let hardware = match &described {
        Some(described) => gpus::hardware(&model.labels, &described.devices),
        None => gpus::hardware(&model.labels, &offered(&model.allocatable)),
    };
    let (machine, free) = match described {
        Some(described) => (Some((Arc::new(described.machine), described.kubelet)), described.free),
        None => (None, Vec::new()),
    };
    let gpus::Hardware { gpus, naming, mps, others } = hardware;
    let inside = Inside { machine, gpus, naming, mps, others, free };
    match inside.topology() {
        Ok(_) => Ok(inside),
        Err(error) => Err(TopologyError {
            origin,
            field: FieldPath::root(),
            message: format!("invalid kubelet configuration: {error}"),
            remedy: "correct the configuration, or leave it out".to_owned(),
        }),
    }
}

impl Inside {
    /// Of a node with an invalid topology. Its labels and allocatable resources still describe its GPUs.
    pub fn of_unknown_machine(node: &Node) -> Self {
        let hardware = gpus::hardware(&node.labels, &offered(&node.allocatable));
        let gpus::Hardware { gpus, naming, mps, others } = hardware;
        Self { machine: None, gpus, naming, mps, others, free: Vec::new() }
    }

    /// The devices that its plugins list. NVIDIA's plugin may fail for its GPUs.
    pub fn devices(&self) -> Result<Vec<DevicePool>, DivisionError> {
        let mut pools = device_pools(&self.gpus, self.naming, PREFERRED)?;
        pools.extend(self.others.iter().cloned());
        Ok(pools)
    }

    /// `None` if the machine is unknown.
    pub fn topology(&self) -> Result<Option<NodeTopology>, ConfigError> {
        let Some((machine, kubelet)) = &self.machine else { return Ok(None) };
        let gpus =
            GpuInventory { gpus: self.gpus.clone(), naming: self.naming, preferred: PREFERRED };
        let (machine, kubelet) = (machine.clone(), kubelet.clone());
        NodeTopology::with_gpus(machine, kubelet, gpus, self.others.clone()).map(Some)
    }
}

/// The devices of a node of unknown topology.
fn offered(allocatable: &BTreeMap<ResourceName, Quantity>) -> DeviceCounts {
    let extended = allocatable.iter().filter(|(name, _)| name.is_extended());
    let counts = extended
        .map(|(name, amount)| (name.clone(), u64::try_from(amount.value()).unwrap_or(0)))
        .filter(|(_, count)| *count > 0);
    vec![(NumaMask::EMPTY, counts.collect())]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use berth_api::Lower as _;
    use serde_json::json;

    use super::*;

    fn read_node(
        metadata: &serde_json::Value,
        cpus: &str,
        zone_cpus: Option<&str>,
    ) -> Result<Inside, TopologyError> {
        let status = json!({ "capacity": { "cpu": cpus }, "allocatable": { "cpu": cpus } });
        let node = json!({ "metadata": metadata, "status": status });
        let node: core::Node = serde_json::from_value(node).unwrap();
        let exported = zone_cpus.map(|cpus| {
            let cpu = json!({ "name": "cpu", "capacity": cpus, "allocatable": "1" });
            let zone = json!({ "name": "node-0", "type": "Node", "resources": [cpu] });
            serde_json::from_value(json!({ "zones": [zone] })).unwrap()
        });
        read(&node, &node.lower().unwrap(), exported.as_ref(), None)
    }

    #[test]
    fn an_absurd_number_of_cpus_is_an_error() {
        let plain = json!({ "name": "n" });
        let annotations =
            json!({ "berth.dev/numa-nodes": "1", "berth.dev/cpu-manager-policy": "static" });
        let labelled = json!({ "name": "n", "annotations": annotations });
        for (metadata, cpus, zone) in [
            (&plain, "8", Some("9223372036854775807")),
            (&plain, "8", Some("100000")),
            (&labelled, "9000000000000000", None),
        ] {
            let error = read_node(metadata, cpus, zone).unwrap_err();
            assert!(error.message.contains("exceed the supported"), "{error}");
        }
        assert!(read_node(&labelled, "8", None).unwrap().machine.is_some());
        assert!(read_node(&plain, "8", Some("8")).unwrap().machine.is_some());
    }
}
