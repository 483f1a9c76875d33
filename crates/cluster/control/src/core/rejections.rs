//! Pods that kubelets rejected, and the nodes whose topology is therefore distrusted.
//!
//! This rule excludes a livelock: a pod of a template that a kubelet rejected is not bound to that node again
//! until the node has changed: a pod that ran there has left, its labels, taints or allocatable differ (a
//! restart of the kubelet shows in the taints), or another topology is exported. Time alone does not help,
//! unless the rejection was not observed live: if it was found in a list or arrived out of order, it is
//! unknown whether the node has changed since. The exported topology does not count until it is exported by an
//! exporter that has seen the pods of the node or, where there is no exporter, for a while.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use berth_kubelet::NodeTopology;
use berth_model::affinity::NodeTerm;
use berth_model::label::{Labels, Operator};
use berth_model::node::Node;
use berth_model::resource::ResourceList;
use berth_model::spec::{PodObject, PodSpec};
use berth_model::taint::Taint;

use super::effect::SeenPod;
use super::tombstones::Tombstones;

/// Labels that differ between the pods of one StatefulSet or indexed Job.
const OF_ONE_REPLICA: [&str; 3] = [
    "apps.kubernetes.io/pod-index",
    "statefulset.kubernetes.io/pod-name",
    "batch.kubernetes.io/job-completion-index",
];

/// How far the watches of pods and nodes may be apart.
const WATCHES_APART_MS: i64 = 120_000;

/// Labels, taints and allocatable of a node.
type Offer = (Labels, Vec<Taint>, ResourceList);

#[derive(Debug)]
struct Rejection {
    reason: Arc<str>,
    /// The version of the rejected pod.
    version: u64,
    /// When it expires, if it is unknown whether the node has changed since.
    until_ms: Option<i64>,
}

#[derive(Debug, Default)]
pub(super) struct Rejections {
    /// By template and node.
    by_template: HashMap<u64, BTreeMap<Arc<str>, Rejection>>,
    /// Nodes whose topology is distrusted, and until when.
    distrusted: BTreeMap<Arc<str>, i64>,
    /// The last known topology of each node.
    topologies: HashMap<Arc<str>, Arc<NodeTopology>>,
    offers: HashMap<Arc<str>, Offer>,
    /// Pods whose rejection has been counted: watches repeat events.
    known: Tombstones,
    /// When each node was last seen to change.
    changed_ms: HashMap<Arc<str>, i64>,
}

impl Rejections {
    /// A hash that pods of one template share, whatever their replica.
    pub(super) fn template(pod: &PodObject) -> u64 {
        let hash = BuildHasherDefault::<DefaultHasher>::default();
        if !OF_ONE_REPLICA.iter().any(|key| pod.spec.labels.get(key).is_some()) {
            return hash.hash_one(&pod.spec);
        }
        let kept = pod.spec.labels.iter().filter(|(key, _)| !OF_ONE_REPLICA.contains(&&***key));
        let labels = kept.map(|(key, value)| (key.clone(), value.clone())).collect();
        hash.hash_one(&PodSpec { labels, ..(*pod.spec).clone() })
    }

    /// A node rejected a pod, and is distrusted for a while. `witnessed`: the rejection was observed live.
    pub(super) fn add(
        &mut self,
        pod: &SeenPod,
        (node, reason): (&Arc<str>, Arc<str>),
        witnessed: bool,
        (now_ms, until_ms): (i64, i64),
    ) {
        let changed_ms = self.changed_ms.get(node);
        let just_changed = changed_ms.is_some_and(|changed| now_ms - changed < WATCHES_APART_MS);
        let nodes = self.by_template.entry(Self::template(&pod.object)).or_default();
        let until_ms_if_unseen = Some(until_ms).filter(|_| !witnessed || just_changed);
        let rejection = Rejection { reason, version: pod.version, until_ms: until_ms_if_unseen };
        nodes.insert(node.clone(), rejection);
        self.distrusted.insert(node.clone(), until_ms);
    }

    /// A pod has left a node. Rejections up to this version are lifted; later ones get a time limit. Returns the
    /// templates that may go there again.
    pub(super) fn left(
        &mut self,
        node: &Arc<str>,
        version: u64,
        (now_ms, doubt_ms): (i64, i64),
    ) -> Vec<u64> {
        for nodes in self.by_template.values_mut() {
            if let Some(rejection) = nodes.get_mut(node).filter(|one| one.version > version) {
                rejection.until_ms.get_or_insert(now_ms + doubt_ms);
            }
        }
        self.lift_up_to(node, version, now_ms)
    }

    /// Drops expired rejections. Returns their templates.
    pub(super) fn fade(&mut self, now_ms: i64) -> Vec<u64> {
        let mut faded = Vec::new();
        self.by_template.retain(|template, nodes| {
            let before = nodes.len();
            nodes.retain(|_, rejection| rejection.until_ms.is_none_or(|until| until > now_ms));
            if nodes.len() < before {
                faded.push(*template);
            }
            !nodes.is_empty()
        });
        faded.sort_unstable();
        faded
    }

    /// Whether the rejection of this pod is seen for the first time.
    pub(super) fn is_new(&mut self, uid: &Arc<str>) -> bool {
        let is_new = !self.known.contains(uid);
        if is_new {
            self.known.add(uid);
        }
        is_new
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_template.is_empty()
    }

    /// Whether the node rejected the pod's template and has not changed since.
    pub(super) fn has_rejected(&self, node: &str, pod: &PodObject) -> bool {
        let nodes = self.by_template.get(&Self::template(pod));
        nodes.is_some_and(|nodes| nodes.contains_key(node))
    }

    pub(super) fn is_distrusted(&self, node: &str) -> bool {
        self.distrusted.contains_key(node)
    }

    pub(super) fn set_topology(&mut self, node: &Arc<str>, topology: Option<Arc<NodeTopology>>) {
        match topology {
            Some(topology) => self.topologies.insert(node.clone(), topology),
            None => self.topologies.remove(node),
        };
    }

    /// Whether labels, taints or allocatable of a known node have changed.
    pub(super) fn has_changed(&mut self, node: &Node) -> bool {
        let Node { labels, taints, allocatable, .. } = node;
        let known = self.offers.get(&node.name);
        if known
            .is_some_and(|known| (&known.0, &known.1, &known.2) == (labels, taints, allocatable))
        {
            return false;
        }
        let is_new = known.is_none();
        let offer = (labels.clone(), taints.clone(), allocatable.clone());
        self.offers.insert(node.name.clone(), offer);
        !is_new
    }

    pub(super) fn forget_node(&mut self, node: &Arc<str>) {
        self.lift(node, 0);
        self.changed_ms.remove(node);
        self.distrusted.remove(node);
        self.topologies.remove(node);
        self.offers.remove(node);
    }

    /// The node has changed. Returns the templates that may go there again.
    pub(super) fn lift(&mut self, node: &Arc<str>, now_ms: i64) -> Vec<u64> {
        self.lift_up_to(node, u64::MAX, now_ms)
    }

    fn lift_up_to(&mut self, node: &Arc<str>, version: u64, now_ms: i64) -> Vec<u64> {
        self.changed_ms.insert(node.clone(), now_ms);
        let mut lifted = Vec::new();
        self.by_template.retain(|template, nodes| {
            if nodes.get(node).is_some_and(|rejection| rejection.version <= version) {
                nodes.remove(node);
                lifted.push(*template);
            }
            !nodes.is_empty()
        });
        lifted.sort_unstable();
        lifted
    }

    /// Ends distrust. Returns the last known topology if the node was distrusted.
    pub(super) fn trust(&mut self, node: &Arc<str>) -> Option<Option<Arc<NodeTopology>>> {
        self.distrusted.remove(node)?;
        Some(self.topologies.get(node).cloned())
    }

    /// Nodes whose distrust has expired.
    pub(super) fn expired(&self, now_ms: i64) -> Vec<Arc<str>> {
        let over = self.distrusted.iter().filter(|(_, until)| **until <= now_ms);
        over.map(|(node, _)| node.clone()).collect()
    }

    pub(super) fn next_ms(&self) -> Option<i64> {
        let unseen = self.by_template.values().flat_map(BTreeMap::values);
        let unseen = unseen.filter_map(|rejection| rejection.until_ms);
        self.distrusted.values().copied().chain(unseen).min()
    }

    /// The pod, with node affinity against nodes whose kubelets rejected its template.
    pub(super) fn excluding(&self, pod: &PodObject) -> PodObject {
        let mut pod = pod.clone();
        if pod.node.is_some() || self.is_empty() {
            return pod;
        }
        let Some(nodes) = self.by_template.get(&Self::template(&pod)) else { return pod };
        let elsewhere = Operator::NotIn(nodes.keys().cloned().collect());
        let mut spec = (*pod.spec).clone();
        let terms = match spec.node_affinity.required.take() {
            None => vec![NodeTerm { labels: Vec::new(), name: vec![elsewhere] }],
            Some(mut terms) => {
                // A term without conditions matches no node, and must not come to match any.
                terms.retain(|term| !term.labels.is_empty() || !term.name.is_empty());
                terms.iter_mut().for_each(|term| term.name.push(elsewhere.clone()));
                terms
            }
        };
        spec.node_affinity.required = Some(terms);
        pod.spec = Arc::new(spec);
        pod
    }

    /// A sentence about the nodes that the pod is excluded from; empty if there are none.
    pub(super) fn note(&self, pod: &PodObject) -> String {
        let Some(nodes) = self.by_template.get(&Self::template(pod)) else { return String::new() };
        let named: Vec<String> =
            nodes.iter().take(3).map(|(node, of)| format!("{node} ({})", of.reason)).collect();
        let more = nodes.len().saturating_sub(3);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!(
            " Not bound again to {}{more}, whose kubelet rejected a pod of this template, until the node changes.",
            named.join(", ")
        )
    }
}
