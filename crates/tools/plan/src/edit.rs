//! Changes of a cluster, as `--what-if` takes them. Each applies to the result of those before it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use berth_engine::Engine;
use berth_engine::event::Event;
use berth_inspect::PodRef;
use berth_kubelet::NodeTopology;
use berth_manifest::closest;
use berth_model::gpu::{Gpu, MigStrategy, part_of};
use berth_model::idset::DeviceSet;
use berth_model::label::Labels;
use berth_model::mig::{Board, Layout};
use berth_model::quantity::Quantity;
use berth_model::resource::ResourceName;
use berth_model::spec::PodObject;
use berth_scenario::cluster::{Cluster, ClusterNode};
use thiserror::Error;

use crate::run::{is_replaced, replacement};

/// How many nodes one change can add.
const NODES_MAX: u32 = 10_000;

const FORMS: &str = "add=NODE_OR_POOL:COUNT, remove=NODE, drain=NODE, cordon=NODE, lose-zone=ZONE, \
                     repartition=NODE/GPU:LAYOUT or quota=NAMESPACE/NAME:RESOURCE=AMOUNT";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Adds empty copies of a node, or of a pool's first node.
    Add {
        like: String,
        count: u32,
    },
    Remove {
        node: String,
    },
    /// Cordons the node and evicts its pods.
    Drain {
        node: String,
    },
    Cordon {
        node: String,
    },
    /// Removes all nodes of a zone.
    LoseZone {
        zone: String,
    },
    /// Changes the MIG layout of a GPU and evicts the pods that hold a part of it.
    Repartition {
        node: String,
        /// The number of the GPU.
        gpu: usize,
        /// `3g.40gb@4+1g.10gb@0`, `3g.40gb+1g.10gb` wherever they fit, or `whole`.
        layout: String,
    },
    /// Sets a hard limit of a ResourceQuota.
    Quota {
        namespace: String,
        name: String,
        resource: String,
        amount: Quantity,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("--what-if {edit}: {problem}")]
pub struct EditError {
    /// As on the command line.
    pub edit: String,
    /// With the remedy.
    pub problem: String,
}

#[derive(Debug, Default)]
pub(crate) struct Changed {
    /// For the engine.
    pub(crate) events: Vec<Event>,
    /// Evicted pods that no controller replaces.
    pub(crate) lost: Vec<PodRef>,
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Add { like, count } => write!(f, "add={like}:{count}"),
            Self::Remove { node } => write!(f, "remove={node}"),
            Self::Drain { node } => write!(f, "drain={node}"),
            Self::Cordon { node } => write!(f, "cordon={node}"),
            Self::LoseZone { zone } => write!(f, "lose-zone={zone}"),
            Self::Repartition { node, gpu, layout } => {
                write!(f, "repartition={node}/{gpu}:{layout}")
            }
            Self::Quota { namespace, name, resource, amount } => {
                write!(f, "quota={namespace}/{name}:{resource}={amount}")
            }
        }
    }
}

impl FromStr for Edit {
    type Err = EditError;

    fn from_str(text: &str) -> Result<Self, EditError> {
        let error = |problem: String| EditError { edit: text.to_owned(), problem };
        let (kind, rest) = text
            .split_once('=')
            .ok_or_else(|| error(format!("unknown change (expected {FORMS})")))?;
        let name = |rest: &str| -> Result<String, EditError> {
            match rest {
                "" => Err(error("a name is required after \"=\"".to_owned())),
                name => Ok(name.to_owned()),
            }
        };
        match kind {
            "add" => {
                let (like, count) = rest.rsplit_once(':').unwrap_or((rest, "1"));
                let count = count.parse().ok().filter(|count| (1..=NODES_MAX).contains(count));
                let problem = || error(format!("the count after \":\" must be 1 to {NODES_MAX}"));
                Ok(Self::Add { like: name(like)?, count: count.ok_or_else(problem)? })
            }
            "remove" => Ok(Self::Remove { node: name(rest)? }),
            "drain" => Ok(Self::Drain { node: name(rest)? }),
            "cordon" => Ok(Self::Cordon { node: name(rest)? }),
            "lose-zone" => Ok(Self::LoseZone { zone: name(rest)? }),
            "repartition" => {
                let parts = rest.split_once(':').and_then(|(place, layout)| {
                    let (node, gpu) = place.split_once('/')?;
                    let number = gpu.strip_prefix("gpu-").unwrap_or(gpu);
                    Some((node.to_owned(), number.parse().ok()?, layout.trim().to_owned()))
                });
                let form = "expected repartition=NODE/GPU:LAYOUT \
                            (e.g. repartition=node-a/0:3g.40gb@0+3g.40gb@4)";
                let (node, gpu, layout) = parts.ok_or_else(|| error(form.to_owned()))?;
                if layout.contains(',') {
                    let profiles: Vec<&str> = layout.split(',').map(str::trim).collect();
                    let meant = profiles.join("+");
                    let problem = format!("profiles are separated by \"+\", not commas: {meant}");
                    return Err(error(problem));
                }
                Ok(Self::Repartition { node: name(&node)?, gpu, layout })
            }
            "quota" => {
                let parts = rest.split_once(':').and_then(|(place, change)| {
                    let (namespace, name) = place.split_once('/')?;
                    let (resource, amount) = change.split_once('=')?;
                    Some((namespace.to_owned(), name.to_owned(), resource.to_owned(), amount))
                });
                let form = "expected quota=NAMESPACE/NAME:RESOURCE=AMOUNT \
                            (e.g. quota=ml/gpus:requests.nvidia.com/gpu=16)";
                let (namespace, name, resource, amount) =
                    parts.ok_or_else(|| error(form.to_owned()))?;
                let amount =
                    Quantity::parse(amount).map_err(|problem| error(problem.to_string()))?;
                Ok(Self::Quota { namespace, name, resource, amount })
            }
            other => {
                let known =
                    ["add", "remove", "drain", "cordon", "lose-zone", "repartition", "quota"];
                let meant = closest(other, &known)
                    .map_or_else(String::new, |meant| format!("; did you mean {meant}?"));
                Err(error(format!("unknown change {other:?}{meant} (expected {FORMS})")))
            }
        }
    }
}

impl Edit {
    pub(crate) fn apply(
        &self,
        cluster: &mut Cluster,
        engine: &Engine,
    ) -> Result<Changed, EditError> {
        let mut changed = Changed::default();
        match self {
            Self::Add { like, count } => self.add(cluster, like, *count, &mut changed)?,
            Self::Remove { node } => {
                let at = self.position(cluster, node)?;
                self.remove(cluster, at, &mut changed);
            }
            Self::LoseZone { zone } => {
                let zones = || cluster.nodes.iter().map(ClusterNode::zone);
                if zone.is_empty() || !zones().any(|one| one == zone) {
                    let known = zones().filter(|zone| !zone.is_empty());
                    return Err(self.unknown("zone", zone, known));
                }
                while let Some(at) = cluster.nodes.iter().position(|node| node.zone() == zone) {
                    self.remove(cluster, at, &mut changed);
                }
            }
            Self::Cordon { node } => {
                let at = self.position(cluster, node)?;
                cordon(&mut cluster.nodes[at], &mut changed);
            }
            Self::Drain { node } => {
                let at = self.position(cluster, node)?;
                cordon(&mut cluster.nodes[at], &mut changed);
                let name = cluster.nodes[at].node.name.clone();
                let stays = |pod: &PodObject| {
                    pod.spec.controller.as_ref().is_some_and(|owner| &*owner.kind == "DaemonSet")
                };
                displace(cluster, &mut changed, |pod| {
                    pod.node.as_ref() == Some(&name) && !stays(pod)
                });
            }
            Self::Repartition { node, gpu, layout } => {
                let at = self.position(cluster, node)?;
                self.repartition(cluster, engine, (at, *gpu), layout, &mut changed)?;
            }
            Self::Quota { namespace, name, resource, amount } => {
                let full = format!("{namespace}/{name}");
                let of = |quota: &berth_model::policy::Quota| {
                    format!("{}/{}", quota.namespace, quota.name)
                };
                let Some(at) = cluster.quotas.iter().position(|quota| of(quota) == full) else {
                    let known: Vec<String> = cluster.quotas.iter().map(of).collect();
                    return Err(self.unknown("quota", &full, known.iter().map(String::as_str)));
                };
                let quota = &mut cluster.quotas[at];
                quota.hard.insert(ResourceName::new(resource.as_str()), *amount);
                changed.events.push(Event::Quota(quota.clone()));
            }
        }
        Ok(changed)
    }

    fn error(&self, problem: impl Into<String>) -> EditError {
        EditError { edit: self.to_string(), problem: problem.into() }
    }

    fn unknown<'a>(
        &self,
        what: &str,
        name: &str,
        known: impl Iterator<Item = &'a str>,
    ) -> EditError {
        let mut known: Vec<&str> = known.collect();
        known.sort_unstable();
        known.dedup();
        let remedy = match closest(name, &known) {
            Some(meant) => format!("did you mean {meant:?}?"),
            None if known.is_empty() => format!("the cluster has no {what}"),
            None => {
                let some: Vec<&str> = known.iter().take(5).copied().collect();
                let more = if known.len() > some.len() { ", …" } else { "" };
                format!("known: {}{more}", some.join(", "))
            }
        };
        self.error(format!("{what} {name:?} not found; {remedy}"))
    }

    fn position(&self, cluster: &Cluster, node: &str) -> Result<usize, EditError> {
        let found = cluster.nodes.iter().position(|one| *one.node.name == *node);
        found.ok_or_else(|| {
            self.unknown("node", node, cluster.nodes.iter().map(|one| &*one.node.name))
        })
    }

    fn add(
        &self,
        cluster: &mut Cluster,
        like: &str,
        count: u32,
        changed: &mut Changed,
    ) -> Result<(), EditError> {
        let named = |node: &&ClusterNode| *node.node.name == *like;
        let of_pool = |node: &&ClusterNode| node.pool() == like;
        let found = cluster.nodes.iter().find(named).or_else(|| cluster.nodes.iter().find(of_pool));
        let Some(original) = found.cloned() else {
            if cluster.pools.iter().any(|pool| *pool.name == *like) {
                return Err(self.error(format!("pool {like:?} has no node to copy")));
            }
            let nodes = cluster.nodes.iter();
            let known = nodes.flat_map(|node| [&*node.node.name, node.pool()]);
            return Err(self.unknown("node or pool", like, known.filter(|name| !name.is_empty())));
        };
        let daemons: Vec<PodObject> = cluster
            .pods
            .iter()
            .filter(|pod| pod.node.as_ref() == Some(&original.node.name))
            .filter(|pod| {
                pod.spec.controller.as_ref().is_some_and(|owner| &*owner.kind == "DaemonSet")
            })
            .cloned()
            .collect();
        let mut number = 0;
        for _ in 0..count {
            let name = loop {
                number += 1;
                let name = format!("{}-new-{number}", original.node.name);
                if cluster.node(&name).is_none() {
                    break Arc::<str>::from(name);
                }
            };
            let node = copy(&original, &name);
            changed.events.extend(node.events().map_err(|problem| self.error(problem))?);
            cluster.nodes.push(node);
            for daemon in &daemons {
                let mut pod = daemon.clone();
                pod.uid = format!("{name}/{}", daemon.uid).into();
                pod.node = Some(name.clone());
                changed.events.push(Event::Pod(pod.clone()));
                cluster.pods.push(pod);
            }
        }
        Ok(())
    }

    fn remove(&self, cluster: &mut Cluster, at: usize, changed: &mut Changed) {
        let node = cluster.nodes.remove(at);
        let name = node.node.name;
        displace(cluster, changed, |pod| pod.node.as_ref() == Some(&name));
        changed.events.push(Event::Topology { node: name.clone(), topology: None });
        changed.events.push(Event::NodeGone(name));
    }

    fn repartition(
        &self,
        cluster: &mut Cluster,
        engine: &Engine,
        (at, number): (usize, usize),
        layout: &str,
        changed: &mut Changed,
    ) -> Result<(), EditError> {
        let mut node = cluster.nodes[at].clone();
        let count = node.inside.gpus.len();
        let Some(gpu) = node.inside.gpus.get_mut(number) else {
            let problem = match count {
                0 => format!("{} has no GPUs", node.node.name),
                1 => format!("{} has only GPU 0", node.node.name),
                _ => format!("{} has GPUs 0 to {}", node.node.name, count - 1),
            };
            return Err(self.error(problem));
        };
        let holders = holders(engine, &cluster.nodes[at], number, &cluster.pods);
        gpu.mig = self.layout(gpu, layout)?;
        if gpu.mig.is_some() && node.inside.naming.mig == MigStrategy::None {
            node.inside.naming.mig = MigStrategy::Mixed;
        }
        node.update_devices().map_err(|problem| self.error(problem.to_string()))?;
        let topology = node.topology().map_err(|problem| self.error(problem))?;
        let name = node.node.name.clone();
        displace(cluster, changed, |pod| holders.contains(&pod.uid));
        let stay = cluster.pods.iter().filter(|pod| pod.node.as_ref() == Some(&name));
        let topology = topology.map(|topology| {
            Arc::new(stay.fold(NodeTopology::clone(&topology), |topology, pod| {
                keeping(topology, engine, &name, &pod.uid)
            }))
        });
        changed.events.push(Event::Node(node.node.clone()));
        changed.events.push(Event::Topology { node: name, topology });
        cluster.nodes[at] = node;
        Ok(())
    }

    fn layout(&self, gpu: &Gpu, text: &str) -> Result<Option<Layout>, EditError> {
        if matches!(text, "whole" | "off") {
            return Ok(None);
        }
        let board = Board::by_product(&gpu.product, Some(gpu.memory_bytes >> 20))
            .or_else(|_| Board::by_product(&gpu.product, None))
            .map_err(|problem| self.error(problem.to_string()))?;
        if text.contains('@') {
            let layout = Layout::parse(board, text);
            return layout.map(Some).map_err(|problem| self.error(problem.to_string()));
        }
        let mut wanted = Vec::new();
        for name in text.split('+').map(str::trim).filter(|name| !name.is_empty()) {
            let profile = board.profile(name).map_err(|problem| self.error(problem.to_string()))?;
            wanted.push(profile);
        }
        let empty = Layout::empty(board).map_err(|problem| self.error(problem.to_string()))?;
        let layout = empty.with_all(&wanted).filter(|layout| !layout.is_empty());
        layout.map(Some).ok_or_else(|| {
            self.error(format!("layout {text} does not fit on a {}", board.product()))
        })
    }
}

/// The topology with the devices that a pod holds, if all of them still exist: repartitioning one GPU
/// does not affect pods on others.
fn keeping(topology: NodeTopology, engine: &Engine, node: &str, uid: &str) -> NodeTopology {
    let Some((before, true)) = engine.kubelet(node) else { return topology };
    let Some(mut held) = before.assignment(uid) else { return topology };
    let after = topology.empty_kubelet();
    for given in held.containers.iter_mut().flat_map(|one| &mut one.devices) {
        let Some(pool) = after.pool_of(given.resource.as_str()) else { return topology };
        let (Some(old), Some(new)) = (before.pools().nth(given.pool), after.pools().nth(pool))
        else {
            return topology;
        };
        let again = |set: DeviceSet| -> DeviceSet {
            let ids = set.iter().filter_map(|at| old.devices.get(at));
            ids.filter_map(|one| new.devices.iter().position(|other| other.id == one.id)).collect()
        };
        let devices = again(given.devices);
        if devices.len() < given.devices.len() {
            return topology;
        }
        (given.pool, given.devices) = (pool, devices);
        (given.certain, given.candidates) = (again(given.certain), again(given.candidates));
    }
    topology.clone().with_held(uid, &held).unwrap_or(topology)
}

/// A new node without pods.
fn copy(original: &ClusterNode, name: &Arc<str>) -> ClusterNode {
    let mut node = original.clone();
    node.node.name = name.clone();
    node.node.unschedulable = false;
    node.node.taints.retain(|taint| !taint.key.starts_with("node.kubernetes.io/"));
    node.node.images.clear();
    let labels: Labels = node
        .node
        .labels
        .iter()
        .map(|(key, value)| {
            let own = key.as_ref() == "kubernetes.io/hostname";
            (key.clone(), if own { name.clone() } else { value.clone() })
        })
        .collect();
    node.node.labels = labels;
    node
}

fn cordon(node: &mut ClusterNode, changed: &mut Changed) {
    node.node.unschedulable = true;
    changed.events.push(Event::Node(node.node.clone()));
}

/// Evicts pods. Those with a controller are replaced by pending ones.
fn displace(cluster: &mut Cluster, changed: &mut Changed, goes: impl Fn(&PodObject) -> bool) {
    let (gone, stay): (Vec<PodObject>, Vec<PodObject>) =
        std::mem::take(&mut cluster.pods).into_iter().partition(|pod| goes(pod));
    cluster.pods = stay;
    for pod in gone {
        changed.events.push(Event::PodGone(pod.uid.clone()));
        let daemon = pod.spec.controller.as_ref().is_some_and(|owner| &*owner.kind == "DaemonSet");
        if is_replaced(&pod) {
            let new = replacement(&pod, cluster.now_ms);
            changed.events.push(Event::Pod(new.clone()));
            cluster.pods.push(new);
        } else if !daemon {
            changed.lost.push(PodRef::from(&pod));
        }
    }
}

/// UIDs of pods that hold, or may hold, a part of a GPU. On a node of unknown topology, all pods with
/// GPUs.
fn holders(engine: &Engine, node: &ClusterNode, gpu: usize, pods: &[PodObject]) -> Vec<Arc<str>> {
    let here = pods.iter().filter(|pod| pod.node.as_ref() == Some(&node.node.name));
    let kubelet = engine.kubelet(&node.node.name).filter(|(_, believed)| *believed);
    let has = |pod: &&PodObject| {
        let Some((kubelet, held)) =
            kubelet.and_then(|(kubelet, _)| Some((kubelet, kubelet.assignment(&pod.uid)?)))
        else {
            let mut containers = pod.spec.pod.containers.iter();
            return containers.any(|container| {
                let mut asked = container.resources.requests.keys();
                asked.any(|name| name.as_str().starts_with("nvidia.com/"))
            });
        };
        held.containers.iter().flat_map(|one| &one.devices).any(|given| {
            let pool = kubelet.pools().nth(given.pool);
            let of_gpu = |at: usize| {
                let device = pool.and_then(|pool| pool.devices.get(at));
                let part = device.and_then(|device| part_of(&node.inside.gpus, &device.id));
                part.is_some_and(|part| part.gpu == gpu)
            };
            given.devices.iter().any(of_gpu)
        })
    };
    here.filter(has).map(|pod| pod.uid.clone()).collect()
}
