//! Volumes: what ties a pod to nodes because of what it stores and where.
//!
//! Owns the four volume plugins of kube-scheduler 1.36 with their verdicts, codes and words, as
//! functions of storage objects, a pod and a node. Must not know how pods are found on nodes, which
//! of them are evicted or nominated, nor the other plugins.
//!
//! What depends on the pod alone is worked out once, in [`PodVolumes::new`]. What is asked per node
//! is asked plugin by plugin, because other plugins come between.

mod binding;
mod events;
mod late;
mod limits;
mod matching;
mod migration;
mod restrictions;
mod storage;
#[cfg(test)]
mod tests;
mod zone;

use berth_model::node::Node;
use berth_model::spec::PodSpec;

use self::binding::Binding;
use self::limits::Limits;
use self::restrictions::Restrictions;
pub(crate) use self::storage::Storage;
use self::zone::Zones;
use crate::decision::LateVolume;
use crate::verdict::Rejection;

/// Who a pod is: claims of generic ephemeral volumes must have been made for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// Its UID.
    pub(crate) uid: &'a str,
}

/// A pod's volumes, ready to be asked about on many nodes.
#[derive(Clone, Debug)]
pub(crate) struct PodVolumes<'a> {
    storage: &'a Storage,
    restrictions: Restrictions<'a>,
    limits: Limits<'a>,
    binding: Binding<'a>,
    zones: Zones<'a>,
}

impl<'a> PodVolumes<'a> {
    /// What the plugins' PreFilter does, in their order. `None` if the pod has no volumes that
    /// matter; an error if it is turned down for the whole cluster.
    ///
    /// `in_use` says of a claim, by namespace and name, whether any pod on a node names it in a
    /// volume that is not ephemeral.
    pub(crate) fn new(
        storage: &'a Storage,
        pod: &'a PodSpec,
        owner: Owner<'_>,
        in_use: &dyn Fn(&str, &str) -> bool,
    ) -> Result<Option<Self>, Rejection> {
        if pod.volumes.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self {
            storage,
            restrictions: Restrictions::new(storage, pod, in_use)?,
            limits: Limits::new(storage, pod),
            binding: Binding::new(storage, pod, owner)?,
            zones: Zones::new(storage, pod)?,
        }))
    }

    /// How many references to this pod's ReadWriteOncePod claims come with another pod, or go with
    /// it: what [`Self::restrictions`] has to be told of pods that are taken away or added.
    pub(crate) fn exclusive_references(&self, other: &PodSpec) -> i64 {
        self.restrictions.references(other)
    }

    /// VolumeRestrictions on a node where `pods` run, after pods have been taken away and added that
    /// change [`Self::exclusive_references`] by `references_delta` in all.
    pub(crate) fn restrictions<'p>(
        &self,
        pods: impl Iterator<Item = &'p PodSpec>,
        references_delta: i64,
    ) -> Result<(), Rejection> {
        self.restrictions.check(pods, references_delta)
    }

    /// NodeVolumeLimits on the node of this name, where `pods` run.
    pub(crate) fn limits<'p>(
        &self,
        node: &str,
        pods: impl Iterator<Item = &'p PodSpec>,
    ) -> Result<(), Rejection>
    where
        'a: 'p,
    {
        self.limits.check(self.storage, node, pods)
    }

    /// VolumeBinding.
    pub(crate) fn binding(&self, node: &Node) -> Result<(), Rejection> {
        self.binding.check(self.storage, node)
    }

    /// What is to be bound or provisioned if a pod goes to a node. Nothing if it cannot go there.
    pub(crate) fn late(
        storage: &Storage,
        pod: &PodSpec,
        owner: Owner<'_>,
        node: &Node,
    ) -> Vec<LateVolume> {
        let binding = Binding::new(storage, pod, owner);
        binding.map(|binding| binding.late(node)).unwrap_or_default()
    }

    /// VolumeZone.
    pub(crate) fn zone(&self, node: &Node) -> Result<(), Rejection> {
        self.zones.check(&node.labels)
    }
}
