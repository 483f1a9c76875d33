//! An API server that keeps pods, nodes, budgets and one Lease.
//!
//! Owns what is stored, its versions and its history, and the rules of writing: preconditions, compare and
//! swap, disruption budgets, graceful termination. Must not know who asks, except to write it down.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_control::core::{Condition, SeenPod, StatusUpdate};
use berth_control::lease::{LeaseView, PodRef};
use berth_kubelet::NodeTopology;
use berth_model::node::Node;
use berth_model::policy::DisruptionBudget;
use berth_model::spec::{GpuGrant, Phase};
use k8s_openapi::api::coordination::v1::Lease;

use crate::calls::{Answer, Caller, Request};
use crate::term::UNPROCESSABLE;

/// A pod, and what only the world knows of it.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) seen: SeenPod,
    /// The workload it belongs to.
    pub(crate) workload: usize,
    /// Whether another scheduler bound it.
    pub(crate) by_others: bool,
    /// Its owner has made it so that the API refuses every change but the owner's.
    pub(crate) rigid: bool,
}

/// Something that is not a pod, as watches show it.
#[derive(Clone, Debug)]
pub(crate) enum Shown {
    /// A node, what is said of its inside, and whether that was exported by somebody who has seen its pods.
    Node(Box<Node>, Option<Arc<NodeTopology>>, bool),
    NodeGone(Arc<str>),
    Budget(DisruptionBudget),
}

/// A line of the history.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Pod(Box<SeenPod>),
    PodGone(PodRef),
    Other(Shown),
}

/// What the checker is told, in the order in which it happened.
#[derive(Clone, Debug)]
pub(crate) enum Fact {
    /// The Lease was written, by whom, and for whom.
    Lease {
        by: Caller,
        holder: String,
    },
    /// A pod was bound; `None`: by another scheduler.
    Bound {
        by: Option<Caller>,
        uid: Arc<str>,
        node: Arc<str>,
    },
    /// A pod has changed.
    Pod(Box<Stored>),
    PodGone(Arc<str>),
    Node(Box<Node>),
    NodeGone(Arc<str>),
}

/// The server.
#[derive(Debug, Default)]
pub(crate) struct Server {
    pub(crate) version: u64,
    /// By name; all are of one namespace.
    pub(crate) pods: BTreeMap<Arc<str>, Stored>,
    pub(crate) nodes: BTreeMap<Arc<str>, (Node, Option<Arc<NodeTopology>>)>,
    pub(crate) budgets: BTreeMap<Arc<str>, DisruptionBudget>,
    pub(crate) lease: Option<Lease>,
    pub(crate) history: Vec<(u64, Change)>,
    /// What has happened since the checker was last told.
    pub(crate) facts: Vec<Fact>,
}

impl Server {
    pub(crate) fn handle(&mut self, request: Request, by: Caller) -> Answer {
        match request {
            Request::ReadLease => match &self.lease {
                Some(lease) => Answer::Lease(Box::new(lease.clone())),
                None => Answer::NoLease,
            },
            Request::CreateLease(_) if self.lease.is_some() => Answer::Failed(409),
            Request::CreateLease(lease) => self.write_lease(*lease, by),
            Request::ReplaceLease(lease) => match &self.lease {
                None => Answer::Failed(404),
                Some(known)
                    if known.metadata.resource_version != lease.metadata.resource_version =>
                {
                    Answer::Failed(409)
                }
                Some(_) => self.write_lease(*lease, by),
            },
            Request::ListPods => {
                Answer::Pods(self.pods.values().map(|pod| pod.seen.clone()).collect(), self.version)
            }
            Request::ListOthers => {
                let nodes = self.nodes.values();
                let nodes = nodes.map(|(node, inside)| {
                    Shown::Node(Box::new(node.clone()), inside.clone(), false)
                });
                let budgets = self.budgets.values().cloned().map(Shown::Budget);
                Answer::Others(nodes.chain(budgets).collect(), self.version)
            }
            Request::ReadPod(pod) => match self.find(&pod) {
                Ok(stored) => Answer::Pod(Box::new(stored.seen.clone())),
                Err(_) => Answer::Failed(404),
            },
            Request::Touch(pod) if self.is_rigid(&pod) => Answer::Failed(UNPROCESSABLE),
            Request::Touch(pod) => self.change(&pod, |_| {}),
            Request::Bind { pod, version, node, grant } => {
                self.bind(&pod, Some(version), (node, grant), Some(by))
            }
            Request::Evict(pod) => self.evict(&pod),
            Request::Tell(told) => self.tell(&told),
        }
    }

    fn write_lease(&mut self, mut lease: Lease, by: Caller) -> Answer {
        self.version += 1;
        lease.metadata.resource_version = Some(self.version.to_string());
        let holder = LeaseView::new(lease.clone()).holder().to_owned();
        self.lease = Some(lease.clone());
        self.facts.push(Fact::Lease { by, holder });
        Answer::Lease(Box::new(lease))
    }

    /// The pod of this name, if it is the one that is meant; else the code.
    fn find(&self, pod: &PodRef) -> Result<&Stored, u16> {
        match self.pods.get(&pod.name) {
            None => Err(404),
            Some(stored) if stored.seen.object.uid != pod.uid => Err(409),
            Some(stored) => Ok(stored),
        }
    }

    pub(crate) fn is_rigid(&self, pod: &PodRef) -> bool {
        self.find(pod).is_ok_and(|stored| stored.rigid)
    }

    /// Changes a pod by some rule.
    pub(crate) fn change(&mut self, pod: &PodRef, how: impl FnOnce(&mut Stored)) -> Answer {
        let mut stored = match self.find(pod) {
            Ok(stored) => stored.clone(),
            Err(code) => return Answer::Failed(code),
        };
        how(&mut stored);
        self.put(stored);
        Answer::Done
    }

    pub(crate) fn put(&mut self, mut stored: Stored) {
        self.version += 1;
        stored.seen.version = self.version;
        self.history.push((self.version, Change::Pod(Box::new(stored.seen.clone()))));
        self.facts.push(Fact::Pod(Box::new(stored.clone())));
        self.pods.insert(stored.seen.object.name.clone(), stored);
    }

    pub(crate) fn remove(&mut self, name: &Arc<str>) {
        if let Some(stored) = self.pods.remove(name) {
            self.version += 1;
            self.history.push((self.version, Change::PodGone(stored.seen.reference())));
            self.facts.push(Fact::PodGone(stored.seen.object.uid));
        }
    }

    pub(crate) fn bind(
        &mut self,
        pod: &PodRef,
        version: Option<u64>,
        (node, grant): (Arc<str>, Option<GpuGrant>),
        by: Option<Caller>,
    ) -> Answer {
        let stored = match self.find(pod) {
            Ok(stored) => stored,
            Err(code) => return Answer::Failed(code),
        };
        if stored.rigid {
            return Answer::Failed(UNPROCESSABLE);
        }
        let object = &stored.seen.object;
        let is_other = version.is_some_and(|version| version != stored.seen.version);
        if is_other || object.node.is_some() || object.phase != Phase::Alive {
            return Answer::Failed(409);
        }
        let uid = object.uid.clone();
        let bound = self.change(pod, |stored| {
            stored.by_others = by.is_none();
            stored.seen.object.node = Some(node.clone());
            stored.seen.object.gpu_grant = grant;
            stored.seen.condition = None;
        });
        self.facts.push(Fact::Bound { by, uid, node });
        bound
    }

    /// What the eviction API does: a pod without a node goes at once, others with their grace period,
    /// if the budget allows it.
    fn evict(&mut self, pod: &PodRef) -> Answer {
        let stored = match self.find(pod) {
            Ok(stored) => stored.clone(),
            Err(code) => return Answer::Failed(code),
        };
        if matches!(stored.seen.object.phase, Phase::Terminating { .. }) {
            return Answer::Done;
        }
        if stored.seen.object.phase == Phase::Finished || stored.seen.object.node.is_none() {
            self.remove(&pod.name);
            return Answer::Done;
        }
        let labels = &stored.seen.object.spec.labels;
        let heeds = |budget: &&mut DisruptionBudget| {
            budget.selector.as_ref().is_some_and(|selector| selector.matches(labels))
        };
        let mut budgets: Vec<&mut DisruptionBudget> =
            self.budgets.values_mut().filter(heeds).collect();
        if budgets.iter().any(|budget| budget.disruptions_allowed <= 0) {
            return Answer::Failed(429);
        }
        for budget in &mut budgets {
            budget.disruptions_allowed -= 1;
        }
        let changed: Vec<DisruptionBudget> = budgets.into_iter().map(|one| one.clone()).collect();
        for budget in changed {
            self.version += 1;
            self.history.push((self.version, Change::Other(Shown::Budget(budget))));
        }
        self.change(pod, |stored| {
            stored.seen.object.phase = Phase::Terminating { by_preemption: true };
        })
    }

    fn tell(&mut self, told: &StatusUpdate) -> Answer {
        if told.condition.is_none() && told.nominated.is_none() {
            return Answer::Done;
        }
        if self.is_rigid(&told.pod) {
            return Answer::Failed(UNPROCESSABLE);
        }
        if let Ok(stored) = self.find(&told.pod)
            && told.version != stored.seen.version
        {
            return Answer::Failed(409);
        }
        let StatusUpdate { condition, nominated, .. } = told.clone();
        self.change(&told.pod, |stored| {
            if let Some(Condition { reason, message }) = condition {
                stored.seen.condition = Some(Condition { reason, message });
            }
            if let Some(nominated) = nominated {
                stored.seen.object.nominated = nominated;
            }
        })
    }

    pub(crate) fn put_node(
        &mut self,
        node: Node,
        inside: Option<Arc<NodeTopology>>,
        exported: bool,
    ) {
        self.version += 1;
        self.facts.push(Fact::Node(Box::new(node.clone())));
        let shown = Shown::Node(Box::new(node.clone()), inside.clone(), exported);
        self.history.push((self.version, Change::Other(shown)));
        self.nodes.insert(node.name.clone(), (node, inside));
    }

    pub(crate) fn remove_node(&mut self, name: &Arc<str>) {
        if self.nodes.remove(name).is_some() {
            self.version += 1;
            self.facts.push(Fact::NodeGone(name.clone()));
            self.history.push((self.version, Change::Other(Shown::NodeGone(name.clone()))));
        }
    }

    pub(crate) fn put_budget(&mut self, budget: DisruptionBudget) {
        self.version += 1;
        self.history.push((self.version, Change::Other(Shown::Budget(budget.clone()))));
        self.budgets.insert(budget.name.clone(), budget);
    }
}
