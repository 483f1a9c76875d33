//! VolumeRestrictions: sharing of in-tree disks, and ReadWriteOncePod claims.

use berth_model::spec::{Disk, PodSpec, Volume};
use berth_model::storage::{AccessMode, Claim};
use smallvec::SmallVec;

use super::storage::Storage;
use crate::verdict::{Plugin, Reason, Rejection};

const DISK_CONFLICT: &str = "node(s) had no available disk";
const IN_USE: &str = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod \
                      access mode already in-use by another pod";

#[derive(Clone, Debug, Default)]
pub(super) struct Restrictions<'a> {
    disks: SmallVec<[&'a Disk; 1]>,
    exclusive: SmallVec<[&'a str; 1]>,
    in_use: i64,
}

impl<'a> Restrictions<'a> {
    /// `Err` for the whole cluster if a claim does not exist.
    pub(super) fn new(
        storage: &Storage,
        pod: &'a PodSpec,
        in_use: &dyn Fn(&str, &str) -> bool,
    ) -> Result<Self, Rejection> {
        let mut restrictions = Self::default();
        for volume in &pod.volumes {
            match volume {
                Volume::Disk(Disk::Counted(_)) | Volume::Claim { ephemeral: true, .. } => {}
                Volume::Disk(disk) => restrictions.disks.push(disk),
                Volume::Claim { name, ephemeral: false } => {
                    let claim = storage.claim(&pod.namespace, name);
                    let claim = claim.ok_or_else(|| claim_not_found(name))?;
                    restrictions.add_claim(name, claim, in_use);
                }
            }
        }
        Ok(restrictions)
    }

    fn add_claim(&mut self, name: &'a str, claim: &Claim, in_use: &dyn Fn(&str, &str) -> bool) {
        let exclusive = claim.access.contains(&AccessMode::ReadWriteOncePod);
        if !exclusive || self.exclusive.contains(&name) {
            return;
        }
        self.exclusive.push(name);
        self.in_use += i64::from(in_use(&claim.namespace, name));
    }

    /// How often `pod` refers to one of the exclusive claims. Like kube-scheduler, ignores the
    /// namespace here.
    pub(super) fn references(&self, pod: &PodSpec) -> i64 {
        if self.exclusive.is_empty() {
            return 0;
        }
        let refers = |volume: &&Volume| match volume {
            Volume::Claim { name, ephemeral: false } => self.exclusive.contains(&name.as_ref()),
            Volume::Claim { ephemeral: true, .. } | Volume::Disk(_) => false,
        };
        pod.volumes.iter().filter(refers).count() as i64
    }

    pub(super) fn check<'p>(
        &self,
        mut pods: impl Iterator<Item = &'p PodSpec>,
        references_delta: i64,
    ) -> Result<(), Rejection> {
        let reason = if !self.disks.is_empty() && pods.any(|pod| self.conflicts_with(pod)) {
            DISK_CONFLICT
        } else if self.is_idle() || self.in_use + references_delta <= 0 {
            return Ok(());
        } else {
            IN_USE
        };
        Err(Rejection::resolvable(Plugin::VolumeRestrictions, Reason::Text(reason)))
    }

    /// Whether kube-scheduler skips the plugin for this pod, including for nominated pods that
    /// would use a claim.
    fn is_idle(&self) -> bool {
        self.disks.is_empty() && self.in_use == 0
    }

    fn conflicts_with(&self, pod: &PodSpec) -> bool {
        pod.volumes.iter().any(|volume| match volume {
            Volume::Disk(theirs) => self.disks.iter().any(|ours| conflict(ours, theirs)),
            Volume::Claim { .. } => false,
        })
    }
}

fn conflict(one: &Disk, other: &Disk) -> bool {
    match (one, other) {
        (Disk::Ebs { id }, Disk::Ebs { id: other }) => id == other,
        (Disk::Gce { name, read_only }, Disk::Gce { name: other, read_only: other_reads }) => {
            name == other && !(*read_only && *other_reads)
        }
        (Disk::Iscsi { iqn, read_only }, Disk::Iscsi { iqn: other, read_only: other_reads }) => {
            iqn == other && !(*read_only && *other_reads)
        }
        (
            Disk::Rbd { monitors, pool, image, read_only },
            Disk::Rbd {
                monitors: other_monitors,
                pool: other_pool,
                image: other_image,
                read_only: other_reads,
            },
        ) => {
            pool == other_pool
                && image == other_image
                && !(*read_only && *other_reads)
                && monitors.iter().any(|monitor| other_monitors.contains(monitor))
        }
        _ => false,
    }
}

fn claim_not_found(name: &str) -> Rejection {
    let text = format!("persistentvolumeclaim \"{name}\" not found");
    Rejection::unresolvable(Plugin::VolumeRestrictions, Reason::Owned(text.into()))
}
