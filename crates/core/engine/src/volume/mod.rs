//! The four volume plugins of kube-scheduler 1.36, as functions of storage objects, a pod and a
//! node.
//!
//! What depends on the pod alone is derived once, in [`PodVolumes::new`]; plugins are evaluated per
//! node one by one, because other plugins come between.

mod binding;
mod delayed;
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
use crate::decision::DelayedVolume;
use crate::verdict::Rejection;

/// The identity of a pod: claims of generic ephemeral volumes must have been created for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner<'a> {
    pub(crate) name: &'a str,
    pub(crate) uid: &'a str,
}

#[derive(Clone, Debug)]
pub(crate) struct PodVolumes<'a> {
    storage: &'a Storage,
    restrictions: Restrictions<'a>,
    limits: Limits<'a>,
    binding: Binding<'a>,
    zones: Zones<'a>,
}

impl<'a> PodVolumes<'a> {
    /// The plugins' PreFilter, in order. `None` if the pod has no volumes; `Err` if it is rejected
    /// for the whole cluster.
    ///
    /// `in_use` says whether a pod on any node uses the claim of this namespace and name in a
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

    /// References of another pod to this pod's ReadWriteOncePod claims; needed by
    /// [`Self::restrictions`] for pods added or removed.
    pub(crate) fn exclusive_references(&self, other: &PodSpec) -> i64 {
        self.restrictions.references(other)
    }

    /// VolumeRestrictions on a node with `pods`, after changes of [`Self::exclusive_references`] by
    /// `references_delta` in total.
    pub(crate) fn restrictions<'p>(
        &self,
        pods: impl Iterator<Item = &'p PodSpec>,
        references_delta: i64,
    ) -> Result<(), Rejection> {
        self.restrictions.check(pods, references_delta)
    }

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

    pub(crate) fn binding(&self, node: &Node) -> Result<(), Rejection> {
        self.binding.check(self.storage, node)
    }

    /// What has to be bound or provisioned if a pod goes to a node; empty if it cannot.
    pub(crate) fn delayed(
        storage: &Storage,
        pod: &PodSpec,
        owner: Owner<'_>,
        node: &Node,
    ) -> Vec<DelayedVolume> {
        let binding = Binding::new(storage, pod, owner);
        binding.map(|binding| binding.delayed(node)).unwrap_or_default()
    }

    pub(crate) fn zone(&self, node: &Node) -> Result<(), Rejection> {
        self.zones.check(&node.labels)
    }
}
