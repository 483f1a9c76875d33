//! A cluster as `kubectl get -o yaml|json` prints it, lowered for the engine and the simulation: nodes
//! with topology and GPUs, pods where they are, and all objects that affect scheduling.
//!
//! Finished pods are omitted; pods of any scheduler count. Kinds that do not affect scheduling are
//! ignored.

mod prices;
mod read;

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_engine::event::Event;
use berth_kubelet::KubeletConfig;
use berth_kubelet::NodeTopology;
use berth_model::gpu::{DivisionError, device_pools};
use berth_model::machine::RegularMachine;
use berth_model::node::Node;
use berth_model::policy::{Pool, PriorityClass, Quota};
use berth_model::quantity::{Format, Quantity};
use berth_model::resource::ResourceName;
use berth_model::spec::PodObject;
use berth_model::workload::pool_of;
use berth_sim::experiment::{Isolation, NodeSetup};
use berth_topology::{Inside, PREFERRED};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::resource::v1 as resource;

pub use prices::{PRICE, Prices};
pub use read::{Objects, Read, read, read_sound};

pub const ZONE: &str = "topology.kubernetes.io/zone";

/// Namespace and name.
pub type FullName = (Arc<str>, Arc<str>);

#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// In order of name.
    pub nodes: Vec<ClusterNode>,
    /// Pods that have not finished, bound or pending.
    pub pods: Vec<PodObject>,
    pub priority_classes: Vec<PriorityClass>,
    pub quotas: Vec<Quota>,
    pub limit_ranges: Vec<core::LimitRange>,
    /// From Pool and NodePool objects.
    pub pools: Vec<Pool>,
    /// Empty if the objects contain none.
    pub namespaces: Vec<Arc<str>>,
    /// The Deployment of each ReplicaSet.
    pub deployments: BTreeMap<FullName, Arc<str>>,
    pub claim_templates: BTreeMap<FullName, resource::ResourceClaimTemplateSpec>,
    /// Everything else as events for the engine.
    pub others: Vec<Event>,
    /// The latest time in any object.
    pub now_ms: i64,
}

/// A node with its topology as far as it is known.
#[derive(Clone, Debug)]
pub struct ClusterNode {
    pub node: Node,
    pub inside: Inside,
    pub sharing: Isolation,
    /// From the node's annotation.
    pub stated_microusd_per_hour: Option<i64>,
}

const DOMAIN: &str = "nvidia.com/";

/// Limit for simulated nodes of unknown topology.
const CPUS_MAX: i64 = 1024;

impl From<NodeSetup> for ClusterNode {
    fn from(setup: NodeSetup) -> Self {
        Self {
            node: setup.node,
            inside: Inside {
                machine: Some((setup.machine, setup.kubelet)),
                gpus: setup.gpus,
                naming: setup.naming,
                mps: setup.sharing == Isolation::MpsCapped,
                others: Vec::new(),
                free: Vec::new(),
            },
            sharing: setup.sharing,
            stated_microusd_per_hour: Some(setup.microusd_per_hour),
        }
    }
}

impl ClusterNode {
    /// `None` if it is unknown.
    pub fn topology(&self) -> Result<Option<Arc<NodeTopology>>, String> {
        Ok(self.inside.topology().map_err(|error| error.to_string())?.map(Arc::new))
    }

    /// Empty if it has none.
    pub fn pool(&self) -> &str {
        pool_of(&self.node.labels).map_or("", AsRef::as_ref)
    }

    /// Empty if it has none.
    pub fn zone(&self) -> &str {
        self.node.labels.get(ZONE).map_or("", AsRef::as_ref)
    }

    /// Updates the allocatable devices after a change of the GPUs' layouts.
    pub fn update_devices(&mut self) -> Result<(), DivisionError> {
        let pools = device_pools(&self.inside.gpus, self.inside.naming, PREFERRED)?;
        self.node.allocatable.retain(|name, _| !name.as_str().starts_with(DOMAIN));
        for pool in pools {
            let count = Quantity::from_units(pool.devices.len() as i64, Format::DecimalSi);
            self.node.allocatable.insert(pool.resource, count);
        }
        Ok(())
    }

    /// The node for the simulation. Without a known topology it has one NUMA node and a kubelet with
    /// Kubernetes' defaults, which aligns nothing.
    pub fn setup(&self, prices: &Prices) -> Result<NodeSetup, String> {
        let (machine, kubelet) = match &self.inside.machine {
            Some((machine, kubelet)) => (machine.clone(), kubelet.clone()),
            None => {
                let amount = |name: &ResourceName| self.node.allocatable.get(name);
                let cpus = amount(&ResourceName::cpu()).map_or(1, |cpu| cpu.value());
                let memory = amount(&ResourceName::memory()).map_or(0, |memory| memory.value());
                let machine = RegularMachine {
                    sockets: 1,
                    numa_per_socket: 1,
                    cores_per_numa: cpus.clamp(1, CPUS_MAX) as usize,
                    threads: 1,
                    memory_bytes: u64::try_from(memory).unwrap_or(0),
                };
                let machine = machine.build().map_err(|error| error.to_string())?;
                (Arc::new(machine), KubeletConfig::default())
            }
        };
        Ok(NodeSetup {
            node: self.node.clone(),
            machine,
            kubelet,
            gpus: self.inside.gpus.clone(),
            naming: self.inside.naming,
            preferred: PREFERRED,
            sharing: self.sharing,
            microusd_per_hour: prices
                .node(&self.node, &self.inside.gpus, self.stated_microusd_per_hour)
                .unwrap_or(0),
        })
    }

    /// The node's events for the engine.
    pub fn events(&self) -> Result<[Event; 2], String> {
        let topology = self.topology()?;
        let node = self.node.name.clone();
        Ok([Event::Node(self.node.clone()), Event::Topology { node, topology }])
    }
}

impl Cluster {
    pub fn node(&self, name: &str) -> Option<&ClusterNode> {
        self.nodes.iter().find(|node| *node.node.name == *name)
    }

    /// All events for the engine.
    pub fn events(&self) -> Result<Vec<Event>, String> {
        let mut events = self.others.clone();
        events.extend(self.priority_classes.iter().cloned().map(Event::PriorityClass));
        events.extend(self.quotas.iter().cloned().map(Event::Quota));
        for node in &self.nodes {
            let of_node = node.events();
            events.extend(of_node.map_err(|error| format!("Node {}: {error}", node.node.name))?);
        }
        events.extend(self.pools.iter().cloned().map(Event::Pool));
        // In the order of the kubelets, because assignments depend on it.
        let mut pods: Vec<&PodObject> = self.pods.iter().collect();
        pods.sort_by_key(|pod| (pod.started_at_ms, pod.created_at_ms, pod.uid.clone()));
        events.extend(pods.into_iter().cloned().map(Event::Pod));
        Ok(events)
    }
}
