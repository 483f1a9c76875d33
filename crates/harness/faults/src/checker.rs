//! What must hold in every world, whatever goes wrong in it.
//!
//! Owns books of its own, kept from what the API server did. Must share nothing with the engine but its
//! vocabulary.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_model::node::Node;
use berth_model::resource::ResourceName;
use berth_model::spec::{Phase, PodObject, PodSpec};

use crate::calls::Caller;
use crate::server::{Fact, Stored};
use crate::workloads::requests;

/// An order that was decided before news of a rejection may still be announced for so long.
const DECIDED_BEFORE_MS: u64 = 12_000;

/// Within this time after a rejection nothing alike is to be sent there, even if a clock runs fast. Later
/// than that whoever did not see it happen may try again.
const DISTRUST_MS: u64 = 170_000;

/// A rejection that a leader was told of.
#[derive(Debug)]
struct ReportedRejection {
    by: Caller,
    node: Arc<str>,
    spec: Arc<PodSpec>,
    at_ms: u64,
    /// When it happened.
    refused_ms: u64,
}

/// The books.
#[derive(Debug, Default)]
pub(crate) struct Checker {
    pods: BTreeMap<Arc<str>, Stored>,
    nodes: BTreeMap<Arc<str>, Node>,
    /// Where pods are, and by whose decision.
    places: BTreeMap<Arc<str>, Arc<str>>,
    /// The order of those who hold or held the Lease.
    ranks: BTreeMap<Caller, u64>,
    holder: String,
    /// The latest who has begun to decide.
    deciding: u64,
    told: Vec<ReportedRejection>,
    /// When a node last changed in a way that makes another try worthwhile.
    changed_ms: BTreeMap<Arc<str>, u64>,
    /// The last change of a node that a leader was told of.
    change_told: BTreeMap<(Caller, Arc<str>), Option<u64>>,
    /// Pods that ran, and do not any more.
    ran: BTreeSet<Arc<str>>,
    /// When kubelets rejected pods.
    refused_ms: BTreeMap<Arc<str>, u64>,
    /// Since when a pod is announced by whom.
    announced_ms: BTreeMap<(Caller, Arc<str>), u64>,
}

impl Checker {
    /// Somebody begins to decide.
    pub(crate) fn begins(&mut self, by: Caller) {
        let rank = self.ranks.get(&by).copied().unwrap_or(0);
        self.deciding = self.deciding.max(rank);
    }

    /// A leader announces that it will bind these, and no others.
    pub(crate) fn announces(&mut self, by: Caller, listed: &BTreeSet<Arc<str>>, now_ms: u64) {
        self.announced_ms.retain(|(who, uid), _| *who != by || listed.contains(uid));
        for uid in listed {
            self.announced_ms.entry((by, uid.clone())).or_insert(now_ms);
        }
    }

    /// A leader is told that a kubelet rejected a pod. If the node has changed since then, the leader is
    /// told of that, too, by and by.
    pub(crate) fn told_of_refusal(&mut self, by: Caller, pod: &PodObject, now_ms: u64) {
        let Some(node) = &pod.node else { return };
        let spec = &pod.spec;
        let Some(refused_ms) = self.refused_ms.get(&pod.uid).copied() else { return };
        if self.changed_ms.get(node).is_some_and(|changed_ms| *changed_ms >= refused_ms) {
            return;
        }
        let same =
            |told: &ReportedRejection| told.by == by && told.node == *node && told.spec == *spec;
        if !self.told.iter().any(same) {
            let (node, spec) = (node.clone(), spec.clone());
            self.told.push(ReportedRejection { by, node, spec, at_ms: now_ms, refused_ms });
        }
    }

    /// A leader is told how a node is; if that is a change, it may be one from before a rejection.
    pub(crate) fn told_of_node(&mut self, by: Caller, node: &Arc<str>) {
        let changed_ms = self.changed_ms.get(node).copied();
        if changed_ms.is_some()
            && self.change_told.insert((by, node.clone()), changed_ms) != Some(changed_ms)
        {
            self.told.retain(|told| told.by != by || told.node != *node);
        }
    }

    /// A leader is told that a pod is gone, perhaps later than of a rejection that it has looked up.
    pub(crate) fn told_of_departure(&mut self, by: Caller, uid: &Arc<str>) {
        if let Some(node) = self.places.get(uid).filter(|_| self.ran.contains(uid)).cloned() {
            self.told_of_node(by, &node);
        }
    }

    /// A node is another one now.
    pub(crate) fn node_changed(&mut self, node: &Arc<str>, now_ms: u64) {
        self.changed_ms.insert(node.clone(), now_ms);
        self.told.retain(|told| told.node != *node);
    }

    /// Which nodes rejected such a pod and are to be left alone by this leader.
    pub(crate) fn refused_by(&self, by: Caller, spec: &Arc<PodSpec>) -> Vec<Arc<str>> {
        let told = self.told.iter().filter(|told| told.by == by && told.spec == *spec);
        told.map(|told| told.node.clone()).collect()
    }

    /// Nodes that rejected anything this leader knows of.
    pub(crate) fn distrusted_by(&self, by: Caller) -> Vec<Arc<str>> {
        let told = self.told.iter().filter(|told| told.by == by);
        told.map(|told| told.node.clone()).collect()
    }

    /// Writes down what happened; gives what must not be.
    pub(crate) fn note(&mut self, fact: Fact, now_ms: u64) -> Option<String> {
        match fact {
            Fact::Lease { by, holder } => self.lease(by, holder),
            Fact::Bound { by, uid, node } => self.bound(by?, &uid, &node, now_ms),
            Fact::Pod(pod) => self.pod(*pod, now_ms),
            Fact::PodGone(uid) => {
                let pod = self.pods.remove(&uid);
                if let Some(pod) = pod.filter(|pod| pod.seen.object.phase != Phase::Finished) {
                    self.left(&pod, now_ms);
                }
                None
            }
            Fact::Node(node) => {
                let before = self.nodes.insert(node.name.clone(), (*node).clone());
                let looks = |node: &Node| {
                    (node.allocatable.clone(), node.labels.clone(), node.taints.clone())
                };
                if before.is_some_and(|before| looks(&before) != looks(&node)) {
                    self.node_changed(&node.name, now_ms);
                }
                None
            }
            Fact::NodeGone(name) => {
                self.nodes.remove(&name);
                self.node_changed(&name, now_ms);
                None
            }
        }
    }

    /// Whoever takes the Lease comes after all others, and of those only the last may write it.
    fn lease(&mut self, by: Caller, holder: String) -> Option<String> {
        let last = self.ranks.values().copied().max().unwrap_or(0);
        let takes = !holder.is_empty() && holder != self.holder || !self.ranks.contains_key(&by);
        self.holder = holder;
        if takes {
            self.ranks.insert(by, last + 1);
            return None;
        }
        let rank = self.ranks.get(&by).copied().unwrap_or(0);
        (rank != last)
            .then(|| format!("{by:?}, leader number {rank}, wrote the Lease of number {last}"))
    }

    fn bound(
        &mut self,
        by: Caller,
        uid: &Arc<str>,
        node: &Arc<str>,
        now_ms: u64,
    ) -> Option<String> {
        let rank = self.ranks.get(&by).copied().unwrap_or(0);
        if rank < self.deciding {
            return Some(format!(
                "{by:?}, leader number {rank}, bound {uid} to {node} after number {} had begun to decide",
                self.deciding
            ));
        }
        let pod = &self.pods.get(uid)?.seen;
        if pod.invalid.is_some() {
            return Some(format!("{by:?} bound {uid}, whose requests cannot be read"));
        }
        let spec = &pod.object.spec;
        let announced_ms = self.announced_ms.get(&(by, uid.clone())).copied();
        let again = self.told.iter().find(|told| {
            let known = told.by == by && told.node == *node && told.spec == *spec;
            let after = announced_ms.is_some_and(|at| at > told.at_ms + DECIDED_BEFORE_MS);
            known && after && now_ms < told.refused_ms + DISTRUST_MS
        });
        again.map(|told| {
            format!("{uid} was sent to {node}, which had rejected its like at {} ms", told.at_ms)
        })
    }

    fn pod(&mut self, pod: Stored, now_ms: u64) -> Option<String> {
        let object = &pod.seen.object;
        let uid = object.uid.clone();
        let before = self.pods.insert(uid.clone(), pod.clone());
        if object.phase == Phase::Finished
            && let Some(before) =
                before.filter(|before| before.seen.object.phase != Phase::Finished)
        {
            self.left(&before, now_ms);
        }
        let Some(node) = &object.node else { return None };
        if pod.seen.rejected.is_some() {
            self.refused_ms.entry(uid.clone()).or_insert(now_ms);
        }
        let first = self.places.entry(uid.clone()).or_insert_with(|| node.clone());
        if first != node {
            return Some(format!("{uid} was bound to {first} and then to {node}"));
        }
        if let Some(condition) = &pod.seen.condition {
            return Some(format!("{uid} is on {node} and called {}", condition.reason));
        }
        self.overcommitted(node)
    }

    /// A pod that ran makes its node another one when it leaves.
    fn left(&mut self, pod: &Stored, now_ms: u64) {
        let object = &pod.seen.object;
        if let (Some(node), true) = (&object.node, object.started_at_ms.is_some()) {
            self.node_changed(&node.clone(), now_ms);
            self.ran.insert(object.uid.clone());
        }
    }

    /// What replicas gave of a node is never more than it has.
    fn overcommitted(&self, name: &Arc<str>) -> Option<String> {
        let node = self.nodes.get(name)?;
        let mut sums: BTreeMap<ResourceName, i128> = BTreeMap::new();
        let mut names = Vec::new();
        for pod in self.pods.values() {
            let object = &pod.seen.object;
            if object.node.as_ref() != Some(name)
                || object.phase == Phase::Finished
                || pod.by_others
            {
                continue;
            }
            names.push(object.uid.to_string());
            for (resource, amount) in requests(&object.spec) {
                *sums.entry(resource).or_insert(0) += amount;
            }
        }
        let over = sums.iter().find(|(resource, sum)| {
            let there = node.allocatable.get(*resource).map_or(0, |amount| amount.nanos());
            **sum > there
        });
        over.map(|(resource, _)| format!("too much {resource} of {name} is given: {names:?}"))
    }
}
