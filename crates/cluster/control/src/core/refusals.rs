//! What kubelets refused, and which nodes are therefore not believed.
//!
//! Owns the rule that makes a livelock impossible: a pod of a template that a kubelet has refused is not
//! sent to that node again until the node has changed, that is, until a pod that ran there has left, the
//! node's labels, taints or what it offers have changed (a kubelet that restarts shows in its taints), or
//! something else is exported about its inside. Time alone does not help, unless we have not seen it
//! happen: of a refusal that is found in a list, or told of out of order, nobody knows whether the node has
//! changed since. The node's own account of its inside does not count until it is exported by somebody
//! who has seen the pods that are there, or, where nobody exports it, for a while.
//!
//! Must not know how pods are placed: what may not be is added to what the pod itself wants of nodes.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use berth_engine::event::NodeTopology;
use berth_model::affinity::NodeTerm;
use berth_model::label::{Labels, Operator};
use berth_model::node::Node;
use berth_model::resource::ResourceList;
use berth_model::spec::{PodObject, PodSpec};
use berth_model::taint::Taint;

use super::buried::Buried;
use super::effect::SeenPod;

/// What tells the pods of one StatefulSet or indexed Job apart.
const OF_ONE_REPLICA: [&str; 3] = [
    "apps.kubernetes.io/pod-index",
    "statefulset.kubernetes.io/pod-name",
    "batch.kubernetes.io/job-completion-index",
];

/// Pods and nodes are told of by watches of their own, and one may be so much later than the other.
const WATCHES_APART_MS: i64 = 120_000;

/// Labels and taints of a node, and what it offers.
type Offer = (Labels, Vec<Taint>, ResourceList);

/// That a node refused pods of a template.
#[derive(Debug)]
struct Refusal {
    reason: Arc<str>,
    /// The version of the pod that says so.
    version: u64,
    /// Until when it counts, if nobody knows whether the node has changed since.
    until_ms: Option<i64>,
}

/// What is known of refusals.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// By template: the nodes that refused it.
    by_template: HashMap<u64, BTreeMap<Arc<str>, Refusal>>,
    /// Nodes that are not believed, until when.
    distrusted: BTreeMap<Arc<str>, i64>,
    /// The last topology that was told of each node.
    topologies: HashMap<Arc<str>, Arc<NodeTopology>>,
    /// What nodes are like from outside.
    offers: HashMap<Arc<str>, Offer>,
    /// Pods whose refusal is known: watches repeat themselves.
    known: Buried,
    /// When we were told that a node has changed.
    changed_ms: HashMap<Arc<str>, i64>,
}

impl Refusals {
    /// Pods of one template have the same number. Labels that tell replicas apart do not count.
    pub(super) fn template(pod: &PodObject) -> u64 {
        let hash = BuildHasherDefault::<DefaultHasher>::default();
        if !OF_ONE_REPLICA.iter().any(|key| pod.spec.labels.get(key).is_some()) {
            return hash.hash_one(&pod.spec);
        }
        let kept = pod.spec.labels.iter().filter(|(key, _)| !OF_ONE_REPLICA.contains(&&***key));
        let labels = kept.map(|(key, value)| (key.clone(), value.clone())).collect();
        hash.hash_one(&PodSpec { labels, ..(*pod.spec).clone() })
    }

    /// A node refused a pod; it is distrusted for a while, and `witnessed` if we have seen it happen.
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
        let refusal = Refusal { reason, version: pod.version, until_ms: until_ms_if_unseen };
        nodes.insert(node.clone(), refusal);
        self.distrusted.insert(node.clone(), until_ms);
    }

    /// A pod has left a node, which may go for what was refused up to a version, and perhaps for what was
    /// refused later: that counts for a while. Gives the templates that may go there again.
    pub(super) fn left(
        &mut self,
        node: &Arc<str>,
        version: u64,
        (now_ms, doubt_ms): (i64, i64),
    ) -> Vec<u64> {
        for nodes in self.by_template.values_mut() {
            if let Some(refusal) = nodes.get_mut(node).filter(|one| one.version > version) {
                refusal.until_ms.get_or_insert(now_ms + doubt_ms);
            }
        }
        self.lift_up_to(node, version, now_ms)
    }

    /// Forgets what was not seen to happen and is over. Gives the templates that may go there again.
    pub(super) fn fade(&mut self, now_ms: i64) -> Vec<u64> {
        let mut faded = Vec::new();
        self.by_template.retain(|template, nodes| {
            let before = nodes.len();
            nodes.retain(|_, refusal| refusal.until_ms.is_none_or(|until| until > now_ms));
            if nodes.len() < before {
                faded.push(*template);
            }
            !nodes.is_empty()
        });
        faded.sort_unstable();
        faded
    }

    /// Whether it was not known that this pod was refused. From now on it is.
    pub(super) fn is_news(&mut self, uid: &Arc<str>) -> bool {
        let is_news = !self.known.contains(uid);
        if is_news {
            self.known.add(uid);
        }
        is_news
    }

    /// Whether nobody has refused anything.
    pub(super) fn is_empty(&self) -> bool {
        self.by_template.is_empty()
    }

    /// Whether a node refused such a pod and has not changed since.
    pub(super) fn has_refused(&self, node: &str, pod: &PodObject) -> bool {
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

    /// Whether a node is not what it was before.
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

    /// The node has changed. Gives the templates that may go there again.
    pub(super) fn lift(&mut self, node: &Arc<str>, now_ms: i64) -> Vec<u64> {
        self.lift_up_to(node, u64::MAX, now_ms)
    }

    fn lift_up_to(&mut self, node: &Arc<str>, version: u64, now_ms: i64) -> Vec<u64> {
        self.changed_ms.insert(node.clone(), now_ms);
        let mut lifted = Vec::new();
        self.by_template.retain(|template, nodes| {
            if nodes.get(node).is_some_and(|refusal| refusal.version <= version) {
                nodes.remove(node);
                lifted.push(*template);
            }
            !nodes.is_empty()
        });
        lifted.sort_unstable();
        lifted
    }

    /// The node is believed again: what was last told of it, if it was distrusted.
    pub(super) fn trust(&mut self, node: &Arc<str>) -> Option<Option<Arc<NodeTopology>>> {
        self.distrusted.remove(node)?;
        Some(self.topologies.get(node).cloned())
    }

    /// Nodes that have been distrusted for long enough.
    pub(super) fn expired(&self, now_ms: i64) -> Vec<Arc<str>> {
        let over = self.distrusted.iter().filter(|(_, until)| **until <= now_ms);
        over.map(|(node, _)| node.clone()).collect()
    }

    pub(super) fn next_ms(&self) -> Option<i64> {
        let unseen = self.by_template.values().flat_map(BTreeMap::values);
        let unseen = unseen.filter_map(|refusal| refusal.until_ms);
        self.distrusted.values().copied().chain(unseen).min()
    }

    /// The pod, kept away from nodes whose kubelets refused its template.
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

    /// Which nodes a pod is kept away from, in words; empty if none.
    pub(super) fn told(&self, pod: &PodObject) -> String {
        let Some(nodes) = self.by_template.get(&Self::template(pod)) else { return String::new() };
        let named: Vec<String> =
            nodes.iter().take(3).map(|(node, of)| format!("{node} ({})", of.reason)).collect();
        let more = nodes.len().saturating_sub(3);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!(
            " Not sent again to {}{more}, whose kubelet refused such a pod, until the node changes.",
            named.join(", ")
        )
    }
}
