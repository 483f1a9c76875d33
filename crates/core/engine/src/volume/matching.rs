//! Matches claims that wait for their pod with existing volumes, or checks that one can be
//! provisioned.

use berth_model::affinity::NodeTerm;
use berth_model::label::Operator;
use berth_model::node::Node;
use berth_model::storage::{Claim, PersistentVolume, StorageCapacity, StorageClass};
use smallvec::SmallVec;

use super::storage::Storage;

const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

#[derive(Clone, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) claim: &'a Claim,
    /// Pre-bound to this claim, by name.
    reserved: SmallVec<[&'a PersistentVolume; 1]>,
    /// Available, the smallest first, then by name.
    free: Vec<&'a PersistentVolume>,
    pub(super) provision: Provision<'a>,
}

impl<'a> Wanted<'a> {
    pub(super) fn new(storage: &'a Storage, claim: &'a Claim, provision: Provision<'a>) -> Self {
        let mut wanted = Self { claim, reserved: SmallVec::new(), free: Vec::new(), provision };
        let class = claim.class.as_deref().unwrap_or_default();
        for volume in storage.volumes_of_class(class).filter(|volume| holds(volume, claim)) {
            match &volume.claim {
                Some(_) if is_kept_for(volume, claim) => wanted.reserved.push(volume),
                Some(_) => {}
                None if suits(volume, claim) => wanted.free.push(volume),
                None => {}
            }
        }
        // Among equal sizes kube-scheduler takes any.
        wanted.free.sort_by_key(|volume| volume.capacity_bytes);
        wanted
    }

    pub(super) fn request_bytes(&self) -> i64 {
        self.claim.request_bytes
    }

    /// The volume for the claim on a node, except `taken` ones. A pre-bound one comes first; if it
    /// cannot be reached there is none.
    pub(super) fn find(&self, node: &Node, taken: &[&str]) -> Option<&'a PersistentVolume> {
        let left = |volume: &&&PersistentVolume| !taken.contains(&volume.name.as_ref());
        let within_reach =
            |volume: &PersistentVolume| reaches(volume.node_affinity.as_deref(), node);
        if let Some(volume) = self.reserved.iter().find(left) {
            return Some(*volume).filter(|volume| within_reach(volume));
        }
        self.free.iter().filter(left).find(|volume| within_reach(volume)).copied()
    }
}

fn holds(volume: &PersistentVolume, claim: &Claim) -> bool {
    volume.capacity_bytes >= claim.request_bytes
        && volume.mode == claim.mode
        && volume.attributes_class == claim.attributes_class
        && !volume.deleting
}

/// Whether an available volume may be bound to the claim.
fn suits(volume: &PersistentVolume, claim: &Claim) -> bool {
    volume.available
        && claim.selector.as_ref().is_none_or(|selector| selector.matches(&volume.labels))
        && claim.access.iter().all(|mode| volume.access.contains(mode))
}

fn is_kept_for(volume: &PersistentVolume, claim: &Claim) -> bool {
    volume.claim.as_ref().is_some_and(|kept_for| {
        kept_for.name == claim.name
            && kept_for.namespace == claim.namespace
            && (kept_for.uid.is_empty() || kept_for.uid == claim.uid)
    })
}

/// Whether a volume with this node affinity can be reached from a node. Conditions on the node's
/// name are ignored unless invalid: Kubernetes evaluates labels only.
pub(super) fn reaches(terms: Option<&[NodeTerm]>, node: &Node) -> bool {
    let matches = |term: &NodeTerm| {
        let asks = !term.labels.is_empty() || !term.name.is_empty();
        asks && !term.name.contains(&Operator::Never)
            && term.labels.iter().all(|requirement| requirement.matches(&node.labels))
    };
    terms.is_none_or(|terms| terms.iter().any(matches))
}

#[derive(Clone, Debug)]
pub(super) struct Provision<'a> {
    class: &'a StorageClass,
    /// Where the driver has enough space; `None` if it does not publish capacity.
    space: Option<SmallVec<[&'a StorageCapacity; 1]>>,
}

impl<'a> Provision<'a> {
    pub(super) fn new(storage: &'a Storage, claim: &Claim, class: &'a StorageClass) -> Self {
        let is_told = claim.request_bytes > 0 && storage.tracks_capacity(&class.provisioner);
        let has_space = |capacity: &&StorageCapacity| {
            capacity.class == class.name
                && capacity.largest_bytes.is_some_and(|largest| largest >= claim.request_bytes)
        };
        let space = is_told.then(|| storage.capacities().filter(has_space).collect());
        Self { class, space }
    }

    /// Whether the class provisions, and for this node.
    pub(super) fn is_possible(&self, node: &Node) -> bool {
        let provisioner = self.class.provisioner.as_ref();
        let topologies = &self.class.allowed_topologies;
        !provisioner.is_empty()
            && provisioner != NO_PROVISIONER
            && (topologies.is_empty() || topologies.iter().any(|term| term.matches(node)))
    }

    /// Whether there is enough space for this node, as far as published.
    pub(super) fn has_space(&self, node: &Node) -> bool {
        self.space.as_ref().is_none_or(|space| {
            let nodes = space.iter().filter_map(|capacity| capacity.nodes.as_ref());
            nodes.into_iter().any(|nodes| nodes.matches(&node.labels))
        })
    }
}
