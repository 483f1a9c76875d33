//! VolumeBinding: whether a pod's claims can be bound or provisioned on a node.
//!
//! Without the plugin's score, which needs the feature gate `StorageCapacityScoring`, off by
//! default.

use berth_model::affinity::NodeTerm;
use berth_model::node::Node;
use berth_model::spec::{PodSpec, Volume};
use berth_model::storage::{Claim, InTreePlugin, PersistentVolume, VolumeSource};
use smallvec::SmallVec;

use super::Owner;
use super::matching::{Provision, Wanted, reaches};
use super::migration;
use super::storage::Storage;
use crate::decision::DelayedVolume;
use crate::verdict::{Code, Plugin, Reason, Rejection};

const NO_VOLUME: &str = "node(s) didn't find available persistent volumes to bind";
const OUT_OF_REACH: &str = "node(s) didn't match PersistentVolume's node affinity";
const NO_SPACE: &str = "node(s) did not have enough free storage";
const VOLUME_GONE: &str =
    "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";
const NOT_BOUND: &str = "pod has unbound immediate PersistentVolumeClaims";

#[derive(Clone, Debug, Default)]
pub(super) struct Binding<'a> {
    /// In the order of the pod's volumes.
    bound: SmallVec<[Bound<'a>; 2]>,
    /// Being provisioned for a node.
    provisioning: SmallVec<[Provisioning<'a>; 1]>,
    /// To be bound or provisioned on the pod's node, the smallest request first.
    waiting: SmallVec<[Wanted<'a>; 1]>,
}

#[derive(Clone, Debug)]
struct Provisioning<'a> {
    claim: &'a Claim,
    node: &'a str,
    provision: Provision<'a>,
}

#[derive(Clone, Debug)]
enum Bound<'a> {
    Gone,
    /// On nodes that match one of the terms; `None`: everywhere.
    Within(Option<&'a [NodeTerm]>),
    /// The same, but nodes whose in-tree plugin has migrated to CSI must match one of the last
    /// terms.
    Moved(Option<&'a [NodeTerm]>, InTreePlugin, Vec<NodeTerm>),
}

impl<'a> Binding<'a> {
    /// `Err` for the whole cluster if a claim is unusable.
    pub(super) fn new(
        storage: &'a Storage,
        pod: &'a PodSpec,
        owner: Owner<'_>,
    ) -> Result<Self, Rejection> {
        let mut claims: SmallVec<[&Claim; 4]> = SmallVec::new();
        for volume in &pod.volumes {
            if let Volume::Claim { name, ephemeral } = volume {
                let claim = storage.claim(&pod.namespace, name);
                let claim = usable(claim, name, ephemeral.then_some(owner))?;
                claims.push(claim);
            }
        }
        let mut binding = Self::default();
        let mut all_bound = true;
        for claim in claims {
            all_bound &= binding.add(storage, claim)?;
        }
        if !all_bound {
            return Err(Rejection::unresolvable(Plugin::VolumeBinding, Reason::Text(NOT_BOUND)));
        }
        // Equal ones stay in the order of the pod's volumes, as in kube-scheduler's sort up to
        // twelve claims.
        binding.waiting.sort_by_key(Wanted::request_bytes);
        Ok(binding)
    }

    fn add(&mut self, storage: &'a Storage, claim: &'a Claim) -> Result<bool, Rejection> {
        if let Some(name) = claim.volume.as_deref().filter(|_| claim.bind_completed) {
            self.bound.push(Bound::new(storage, name));
            return Ok(true);
        }
        let Some(class) = storage.class_of(claim) else { return Ok(false) };
        let Some(waits) = class.waits_for_consumer else {
            // The API server always sets it. Without it kube-scheduler fails with this message.
            let name = &class.name;
            return Err(unusable(format!("VolumeBindingMode not set for StorageClass \"{name}\"")));
        };
        if !waits || claim.volume.is_some() {
            return Ok(false);
        }
        let provision = Provision::new(storage, claim, class);
        match claim.selected_node.as_deref() {
            Some(node) => self.provisioning.push(Provisioning { claim, node, provision }),
            None => self.waiting.push(Wanted::new(storage, claim, provision)),
        }
        Ok(true)
    }

    pub(super) fn check(&self, storage: &Storage, node: &Node) -> Result<(), Rejection> {
        let bound = self.bound_conflict(storage, node);
        let unbound = self.unbound_conflict(node);
        if bound.is_none() && unbound.is_none() {
            return Ok(());
        }
        // In kube-scheduler's order.
        let reasons = match bound {
            Some(VOLUME_GONE) => [unbound, bound],
            _ => [bound, unbound],
        };
        Err(Rejection {
            plugin: Plugin::VolumeBinding,
            code: Code::UnschedulableAndUnresolvable,
            reasons: reasons.into_iter().flatten().map(Reason::Text).collect(),
        })
    }

    fn bound_conflict(&self, storage: &Storage, node: &Node) -> Option<&'static str> {
        self.bound.iter().find_map(|bound| match bound {
            Bound::Gone => Some(VOLUME_GONE),
            Bound::Within(terms) => (!reaches(*terms, node)).then_some(OUT_OF_REACH),
            Bound::Moved(terms, plugin, moved) => {
                let csi_node = storage.csi_node(&node.name);
                let has_moved = csi_node.is_some_and(|csi_node| {
                    csi_node.migrated_plugins.iter().any(|name| name.as_ref() == plugin.name())
                });
                let terms = if has_moved { Some(moved.as_slice()) } else { *terms };
                (!reaches(terms, node)).then_some(OUT_OF_REACH)
            }
        })
    }

    fn unbound_conflict(&self, node: &Node) -> Option<&'static str> {
        if self.provisioning.iter().any(|provisioning| provisioning.node != node.name.as_ref()) {
            return Some(NO_VOLUME);
        }
        let found = self.found(node);
        let unmatched = found.iter().filter(|(_, volume)| volume.is_none());
        let unmatched = unmatched.map(|(wanted, _)| &wanted.provision);
        let provisioning = self.provisioning.iter().map(|provisioning| &provisioning.provision);
        provisioning.chain(unmatched).find_map(|provision| {
            if !provision.is_possible(node) {
                Some(NO_VOLUME)
            } else if !provision.has_space(node) {
                Some(NO_SPACE)
            } else {
                None
            }
        })
    }
}

impl<'a> Binding<'a> {
    /// The existing volume for each waiting claim on a node, each volume once.
    fn found(&self, node: &Node) -> SmallVec<[(&Wanted<'a>, Option<&'a PersistentVolume>); 2]> {
        let mut taken: SmallVec<[&str; 4]> = SmallVec::new();
        let mut found = SmallVec::new();
        for wanted in &self.waiting {
            let volume = wanted.find(node, &taken);
            taken.extend(volume.map(|volume| &*volume.name));
            found.push((wanted, volume));
        }
        found
    }

    /// What has to be bound or provisioned if the pod goes to this node.
    pub(super) fn delayed(&self, node: &Node) -> Vec<DelayedVolume> {
        let delayed = |claim: &Claim, volume: Option<&PersistentVolume>| DelayedVolume {
            claim: claim.name.clone(),
            volume: volume.map(|volume| volume.name.clone()),
        };
        let provisioning =
            self.provisioning.iter().map(|provisioning| delayed(provisioning.claim, None));
        let found = self.found(node);
        provisioning
            .chain(found.iter().map(|(wanted, volume)| delayed(wanted.claim, *volume)))
            .collect()
    }
}

impl<'a> Bound<'a> {
    fn new(storage: &'a Storage, name: &str) -> Self {
        let Some(volume) = storage.volume(name) else { return Self::Gone };
        let terms = volume.node_affinity.as_deref();
        let VolumeSource::InTree(disk) = &volume.source else { return Self::Within(terms) };
        match migration::affinity(volume, disk.plugin) {
            Some(moved) => Self::Moved(terms, disk.plugin, moved),
            None => Self::Within(terms),
        }
    }
}

/// Checks that a claim is usable. `owner` is the pod for which an ephemeral claim must have been
/// created.
fn usable<'a>(
    claim: Option<&'a Claim>,
    name: &str,
    owner: Option<Owner<'_>>,
) -> Result<&'a Claim, Rejection> {
    let claim = claim.ok_or_else(|| {
        unusable(match owner {
            Some(_) => format!(
                "waiting for ephemeral volume controller to create the persistentvolumeclaim \"{name}\""
            ),
            None => format!("persistentvolumeclaim \"{name}\" not found"),
        })
    })?;
    if claim.lost {
        let volume = claim.volume.as_deref().unwrap_or_default();
        return Err(unusable(format!(
            "persistentvolumeclaim \"{name}\" bound to non-existent persistentvolume \"{volume}\""
        )));
    }
    if claim.deleting {
        return Err(unusable(format!("persistentvolumeclaim \"{name}\" is being deleted")));
    }
    match owner {
        Some(owner) if claim.controller_uid.as_deref() != Some(owner.uid) => {
            Err(unusable(format!(
                "PVC {namespace}/{name} was not created for pod {namespace}/{pod} (pod is not owner)",
                namespace = claim.namespace,
                pod = owner.name,
            )))
        }
        _ => Ok(claim),
    }
}

fn unusable(why: String) -> Rejection {
    Rejection::unresolvable(Plugin::VolumeBinding, Reason::Owned(why.into()))
}
