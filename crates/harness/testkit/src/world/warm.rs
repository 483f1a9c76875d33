//! What is kept warm, asked the long way round: whether it could be used, and whom it keeps away.
//!
//! Owns the laws' idea of headroom. Where it is kept is the engine's word; that it can be used there is
//! found out by putting it on the node's kubelet. Must share nothing with the engine.

use std::sync::Arc;

use berth_kubelet::Kubelet;
use berth_model::node::Node;
use berth_model::spec::PodSpec;
use berth_model::workload::{Headroom, PoolClasses, WorkloadClass, pool_of};

use super::books::{Books, Entry, Spot};
use super::rules::{Scene, Why, object};
use crate::cluster::pending;

/// So many are kept on one node at most.
const ON_NODE_MAX: usize = 64;

/// Something that is kept on a node.
struct Reserved {
    class: WorkloadClass,
    name: Arc<str>,
    entry: Entry,
}

impl Books {
    /// The pod's class of work.
    pub(super) fn class_of(&self, spec: &PodSpec) -> WorkloadClass {
        self.class_rules.class_of(spec)
    }

    /// Whether the node's pool is for a class of work.
    pub(super) fn pool_admits(&self, class: WorkloadClass, node: &Node) -> bool {
        let pool = pool_of(&node.labels).and_then(|name| self.pools.get(name));
        match pool.map(|pool| pool.classes) {
            Some(PoolClasses::Only(classes)) => classes.contains(class),
            _ => true,
        }
    }

    /// What is kept on a node, the strongest claim first, then by name.
    fn reserved(&self, node: &Arc<str>) -> Vec<Reserved> {
        let mut rooms: Vec<_> = self.warm.iter().collect();
        rooms.sort_by(|one, other| (other.class, &one.name).cmp(&(one.class, &other.name)));
        let mut all = Vec::new();
        for room in rooms {
            let Some(headroom) = self.headrooms.get(&room.name) else { continue };
            for _ in room.nodes.iter().filter(|one| *one == node) {
                let (class, name) = (room.class, room.name.clone());
                all.push(Reserved { class, name, entry: entry(headroom, all.len()) });
            }
        }
        all
    }
}

/// A pod like the template, without what it wants of others.
fn entry(headroom: &Headroom, number: usize) -> Entry {
    let mut spec = PodSpec { class: Some(headroom.class), ..(*headroom.template).clone() };
    spec.host_ports.clear();
    spec.spread.clear();
    spec.pod_affinity = Default::default();
    let mut object = pending(&Arc::new(spec), 0);
    object.uid = format!("{} {number}", headroom.name).into();
    Entry {
        object,
        spot: Spot::Nowhere,
        decided: false,
        evicted_at_ms: None,
        replaces_evicted_at_ms: None,
        grant: None,
    }
}

/// A node as it would be.
#[derive(Clone)]
struct Stack<'a, 'n> {
    scene: Scene<'a>,
    kubelet: Option<Kubelet>,
    node: &'n Arc<str>,
}

impl<'a> Stack<'a, '_> {
    /// One more; whether there is room.
    fn add(&mut self, entry: &'a Entry) -> bool {
        self.scene.add(entry, self.node, self.kubelet.as_mut()).is_ok()
    }

    /// Those of some that could be there one beside the other.
    fn usable(mut self, of: impl Iterator<Item = &'a Reserved>) -> Vec<&'a Entry> {
        of.map(|one| &one.entry).filter(|one| self.add(one)).collect()
    }
}

impl Scene<'_> {
    /// Whether all that is kept on a node from pods like this could be used with the pod there, as far
    /// as it could without.
    pub(super) fn spares(
        &self,
        pod: &Entry,
        node: &Arc<str>,
        kubelet: Option<&Kubelet>,
    ) -> Result<(), Why> {
        if !self.kubelets || !self.is_known(node) {
            return Ok(());
        }
        let class = self.books.class_of(pod.spec());
        let mut kept = self.books.reserved(node);
        kept.retain(|one| one.class > class);
        let plain = Stack { scene: self.clone(), kubelet: kubelet.cloned(), node };
        let usable = plain.clone().usable(kept.iter());
        let mut with = plain;
        if usable.is_empty() || with.add(pod) && usable.into_iter().all(|one| with.add(one)) {
            return Ok(());
        }
        Err("what is kept warm there could not be used any more")
    }

    /// What is said to be kept on a node and could not be used there, in words.
    pub(super) fn useless(&self, node: &Arc<str>) -> Option<String> {
        let kept = self.books.reserved(node);
        let object_of = self.books.nodes.get(node)?;
        let mut stack = Stack { scene: self.clone(), kubelet: self.kubelet_of(node), node };
        let plain = stack.clone();
        kept.iter().enumerate().find_map(|(at, one)| {
            let spec = one.entry.spec();
            let allowed =
                object(spec, object_of).is_ok() && self.books.pool_admits(one.class, object_of);
            let mut first = plain.clone();
            let stronger = kept[..at].iter().filter(|other| other.class > one.class);
            let fits = stack.add(&one.entry)
                && first.add(&one.entry)
                && stronger.into_iter().all(|other| first.add(&other.entry));
            let uid = &one.entry.object.uid;
            (!allowed || !fits).then(|| format!("{uid:?} on {node} (allowed: {allowed})"))
        })
    }

    /// A node that could take one more of a headroom, though something weaker would have to go.
    pub(super) fn keeper(&self, name: &Arc<str>) -> Option<&Arc<str>> {
        let headroom = self.books.headrooms.get(name)?;
        let one = entry(headroom, usize::MAX);
        let class = headroom.class;
        self.books.nodes.iter().find_map(|(node, object_of)| {
            let awaited =
                self.books.pods.values().any(|pod| pod.spot == Spot::Awaits(node.clone()));
            let kept = self.books.reserved(node);
            if awaited
                || !self.is_known(node)
                || kept.len() >= ON_NODE_MAX
                || object(one.spec(), object_of).is_err()
                || !self.books.pool_admits(class, object_of)
            {
                return None;
            }
            let plain = Stack { scene: self.clone(), kubelet: self.kubelet_of(node), node };
            // In order of claim, so that it has its turn among its equals.
            let before = |other: &&Reserved| {
                other.class > class || other.class == class && other.name <= *name
            };
            let mut in_order = plain.clone();
            let usable = plain.clone().usable(kept.iter().filter(before));
            let equals = kept.iter().filter(|other| other.class == class && other.name > *name);
            let fits_in_order = usable.iter().all(|other| in_order.add(other))
                && in_order.add(&one)
                && equals.into_iter().all(|other| in_order.add(&other.entry));
            let stronger = plain.clone().usable(kept.iter().filter(|other| other.class > class));
            let mut first = plain;
            let fits_first = first.add(&one) && stronger.into_iter().all(|other| first.add(other));
            (fits_in_order && fits_first).then_some(node)
        })
    }
}
