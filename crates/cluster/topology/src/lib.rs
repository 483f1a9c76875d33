//! The inside of a node, read from what its cluster says about it: the same for dumps and live
//! clusters.
//!
//! Turns a Node, its labels and its NodeResourceTopology, if there is one, into a machine, its
//! kubelet's configuration and its devices. A node about which neither says anything stays unknown.
//! Device ids are made up, because neither lists them.

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
use berth_kubelet::KubeletConfig;
use berth_kubelet::NodeTopology;
use berth_model::device::{DevicePool, PreferredAllocation};
use berth_model::gpu::{DivisionError, Gpu, Naming, device_pools};
use berth_model::machine::Machine;
use berth_model::node::Node;
use berth_model::numa::NumaMask;
use berth_model::quantity::Quantity;
use berth_model::resource::ResourceName;
use k8s_openapi::api::core::v1 as core;

pub use machine::{field_of, key_of, marked};

/// NVIDIA's plugin goes by the links between GPUs, of which nobody tells.
pub const PREFERRED: PreferredAllocation = PreferredAllocation::Unpredictable;

/// How many devices of which resource are attached where.
pub type DeviceCounts = Vec<(NumaMask, BTreeMap<ResourceName, u64>)>;

/// A node's inside.
#[derive(Clone, Debug, PartialEq)]
pub struct Inside {
    /// Sockets, NUMA nodes, CPUs and memory, and how the kubelet is set up; `None`: not known.
    pub machine: Option<(Arc<Machine>, KubeletConfig)>,
    /// Its GPUs. Their ids are made up.
    pub gpus: Vec<Gpu>,
    /// Under which names the plugin offers them.
    pub naming: Naming,
    /// Whether those who share a GPU are kept apart by MPS.
    pub mps: bool,
    /// Its other devices.
    pub others: Vec<DevicePool>,
    /// How many devices the exporter says are free where, if it says so.
    pub free: DeviceCounts,
}

/// Which object says what is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Teller {
    /// The Node.
    Node,
    /// The NodeResourceTopology.
    Topology,
}

/// What is wrong, with which field of which object.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{field}: {message}; {remedy}")]
pub struct Wrong {
    /// The object.
    pub by: Teller,
    /// Its field.
    pub field: FieldPath,
    /// What is wrong with it.
    pub message: String,
    /// What to do.
    pub remedy: String,
}

/// The inside of a node, which is given as the API and as the model have it, as its exporter tells, or
/// else its labels, or else its pool.
///
/// # Errors
/// When what is told cannot be.
pub fn read(
    node: &core::Node,
    lowered: &Node,
    exported: Option<&NodeResourceTopology>,
    pool: Option<&PoolTopology>,
) -> Result<Inside, Wrong> {
    let (told, by) = match (exported, pool) {
        (Some(topology), _) => (machine::exported(node, topology), Teller::Topology),
        (None, Some(pool)) => (machine::labelled(&machine::in_pool(node, pool)), Teller::Node),
        (None, None) => (machine::labelled(node), Teller::Node),
    };
    let told = told.map_err(|wrong| Wrong { by, ..wrong })?;
    let hardware = match &told {
        Some(told) => gpus::hardware(&lowered.labels, &told.devices),
        None => gpus::hardware(&lowered.labels, &offered(&lowered.allocatable)),
    };
    let (machine, free) = match told {
        Some(told) => (Some((Arc::new(told.machine), told.kubelet)), told.free),
        None => (None, Vec::new()),
    };
    let gpus::Hardware { gpus, naming, mps, others } = hardware;
    let inside = Inside { machine, gpus, naming, mps, others, free };
    match inside.topology() {
        Ok(_) => Ok(inside),
        Err(error) => Err(Wrong {
            by,
            field: FieldPath::root(),
            message: format!("no kubelet runs like this: {error}"),
            remedy: "correct what the node says of its inside, or leave it out".to_owned(),
        }),
    }
}

impl Inside {
    /// The inside of a node of whose machine nothing can be believed: what GPUs it has is still told by
    /// its labels and by what it offers.
    pub fn of_unknown_machine(node: &Node) -> Self {
        let hardware = gpus::hardware(&node.labels, &offered(&node.allocatable));
        let gpus::Hardware { gpus, naming, mps, others } = hardware;
        Self { machine: None, gpus, naming, mps, others, free: Vec::new() }
    }

    /// The devices that its plugins list.
    ///
    /// # Errors
    /// When the plugin offers nothing at all.
    pub fn devices(&self) -> Result<Vec<DevicePool>, DivisionError> {
        let mut pools = device_pools(&self.gpus, self.naming, PREFERRED)?;
        pools.extend(self.others.iter().cloned());
        Ok(pools)
    }

    /// What the engine is told of it; `None`: it is not known.
    ///
    /// # Errors
    /// When no kubelet runs like this.
    pub fn topology(&self) -> Result<Option<NodeTopology>, String> {
        let Some((machine, kubelet)) = &self.machine else { return Ok(None) };
        let devices = self.devices().map_err(|error| error.to_string())?;
        let topology = NodeTopology::new(machine.clone(), kubelet.clone(), devices);
        topology.map(Some).map_err(|error| error.to_string())
    }
}

/// What a node of unknown inside offers.
fn offered(allocatable: &BTreeMap<ResourceName, Quantity>) -> DeviceCounts {
    let extended = allocatable.iter().filter(|(name, _)| name.is_extended());
    let counts = extended
        .map(|(name, amount)| (name.clone(), u64::try_from(amount.value()).unwrap_or(0)))
        .filter(|(_, count)| *count > 0);
    vec![(NumaMask::EMPTY, counts.collect())]
}
