//! A cluster as `kubectl get -o yaml|json` prints it.
//!
//! Owns the way from its objects to what the engine and the simulation take: nodes with their inside
//! and their GPUs, pods where they are, and everything that decides about them. Finished pods are left
//! out; pods of any scheduler count. Kinds that mean nothing to placement are passed over. Must not
//! know what is decided, nor which pods are to come.

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

/// The label of a node's zone.
pub const ZONE: &str = "topology.kubernetes.io/zone";

/// A namespace and a name in it.
pub type FullName = (Arc<str>, Arc<str>);

/// A cluster.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// Its nodes, in order of name.
    pub nodes: Vec<ClusterNode>,
    /// Its pods that have not finished, placed or not.
    pub pods: Vec<PodObject>,
    /// Its priority classes.
    pub priority_classes: Vec<PriorityClass>,
    /// Its quotas.
    pub quotas: Vec<Quota>,
    /// What containers get that say nothing.
    pub limit_ranges: Vec<core::LimitRange>,
    /// Pools that can grow.
    pub pools: Vec<Pool>,
    /// Names of its namespaces; empty if none were told.
    pub namespaces: Vec<Arc<str>>,
    /// Which Deployment a ReplicaSet belongs to.
    pub deployments: BTreeMap<FullName, Arc<str>>,
    /// From what claims of devices are made.
    pub claim_templates: BTreeMap<FullName, resource::ResourceClaimTemplateSpec>,
    /// Everything else, as the engine is told.
    pub others: Vec<Event>,
    /// The latest moment that anything tells of.
    pub now_ms: i64,
}

/// A node with what is known of its inside.
#[derive(Clone, Debug)]
pub struct ClusterNode {
    /// The node.
    pub node: Node,
    /// What it looks like inside.
    pub inside: Inside,
    /// How those who share a GPU are kept apart.
    pub sharing: Isolation,
    /// What it says an hour of it costs, in millionths of a dollar.
    pub stated_microusd_per_hour: Option<i64>,
}

/// Resources of NVIDIA's plugin.
const DOMAIN: &str = "nvidia.com/";

/// Most NUMA nodes' worth of CPUs that a node of unknown inside is taken to have, to simulate it.
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
    /// What the engine is told of its inside; `None`: it is not known.
    pub fn topology(&self) -> Result<Option<Arc<NodeTopology>>, String> {
        Ok(self.inside.topology().map_err(|error| error.to_string())?.map(Arc::new))
    }

    /// Its pool; empty if it names none.
    pub fn pool(&self) -> &str {
        pool_of(&self.node.labels).map_or("", AsRef::as_ref)
    }

    /// Its zone; empty if it names none.
    pub fn zone(&self) -> &str {
        self.node.labels.get(ZONE).map_or("", AsRef::as_ref)
    }

    /// Says in its resources what its GPUs offer, after they have been divided otherwise.
    pub fn offer_anew(&mut self) -> Result<(), DivisionError> {
        let pools = device_pools(&self.inside.gpus, self.inside.naming, PREFERRED)?;
        self.node.allocatable.retain(|name, _| !name.as_str().starts_with(DOMAIN));
        for pool in pools {
            let count = Quantity::from_units(pool.devices.len() as i64, Format::DecimalSi);
            self.node.allocatable.insert(pool.resource, count);
        }
        Ok(())
    }

    /// The node as the simulation takes it. One of unknown inside is taken to have one NUMA node and a
    /// kubelet with Kubernetes' defaults, which aligns nothing.
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

    /// What the engine is told of it.
    pub fn events(&self) -> Result<[Event; 2], String> {
        let topology = self.topology()?;
        let node = self.node.name.clone();
        Ok([Event::Node(self.node.clone()), Event::Topology { node, topology }])
    }
}

impl Cluster {
    /// The node of this name.
    pub fn node(&self, name: &str) -> Option<&ClusterNode> {
        self.nodes.iter().find(|node| *node.node.name == *name)
    }

    /// What the engine is told of everything.
    pub fn events(&self) -> Result<Vec<Event>, String> {
        let mut events = self.others.clone();
        events.extend(self.priority_classes.iter().cloned().map(Event::PriorityClass));
        events.extend(self.quotas.iter().cloned().map(Event::Quota));
        for node in &self.nodes {
            let of_node = node.events();
            events.extend(of_node.map_err(|error| format!("Node {}: {error}", node.node.name))?);
        }
        events.extend(self.pools.iter().cloned().map(Event::Pool));
        // In the order in which kubelets saw them, so that what they hold can be worked out.
        let mut pods: Vec<&PodObject> = self.pods.iter().collect();
        pods.sort_by_key(|pod| (pod.started_at_ms, pod.created_at_ms, pod.uid.clone()));
        events.extend(pods.into_iter().cloned().map(Event::Pod));
        Ok(events)
    }
}
