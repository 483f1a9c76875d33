//! NodeVolumeLimits: how many volumes a CSI driver can attach to a node.

use std::borrow::Cow;

use berth_model::spec::{Disk, PodSpec, Volume};
use berth_model::storage::{Claim, CsiNode, InTreePlugin, VolumeSource};
use smallvec::SmallVec;

use super::migration::{self, ebs_handle, gce_handle};
use super::storage::Storage;
use crate::verdict::{Plugin, Reason, Rejection};

const EXCEEDED: &str = "node(s) exceed max volume count";

/// The volumes that drivers have to attach for a pod, each once.
#[derive(Clone, Debug, Default)]
pub(super) struct Limits<'a>(SmallVec<[Attachable<'a>; 2]>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Attachable<'a> {
    driver: &'a str,
    handle: Handle<'a>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Handle<'a> {
    Known(Cow<'a, str>),
    /// Yet to be provisioned for the claim of this namespace and name.
    Provisioning(&'a str, &'a str),
}

impl<'a> Attachable<'a> {
    fn of_volume(storage: &'a Storage, namespace: &str, volume: &'a Volume) -> Option<Self> {
        match volume {
            Volume::Claim { name, .. } => Self::of_claim(storage, storage.claim(namespace, name)?),
            Volume::Disk(disk) => Self::of_disk(disk),
        }
    }

    fn of_claim(storage: &'a Storage, claim: &'a Claim) -> Option<Self> {
        let volume = claim.volume.as_deref().and_then(|name| storage.volume(name));
        let Some(volume) = volume else {
            let driver = driver_of_provisioner(&storage.class_of(claim)?.provisioner);
            let handle = Handle::Provisioning(&claim.namespace, &claim.name);
            return Some(Self { driver, handle });
        };
        match &volume.source {
            VolumeSource::Csi(csi) => Self::known(&csi.driver, Cow::Borrowed(&csi.handle)),
            VolumeSource::InTree(disk) => {
                let handle = migration::handle(disk, Some(&volume.labels))?;
                Self::known(disk.plugin.driver(), handle)
            }
            VolumeSource::Other => None,
        }
    }

    fn of_disk(disk: &'a Disk) -> Option<Self> {
        match disk {
            Disk::Gce { name, .. } => {
                Self::known(InTreePlugin::GcePd.driver(), Cow::Owned(gce_handle(name, None)?))
            }
            Disk::Ebs { id } => {
                Self::known(InTreePlugin::AwsEbs.driver(), Cow::Borrowed(ebs_handle(id)?))
            }
            Disk::Counted(disk) => {
                Self::known(disk.plugin.driver(), migration::handle(disk, None)?)
            }
            Disk::Iscsi { .. } | Disk::Rbd { .. } => None,
        }
    }

    fn known(driver: &'a str, handle: Cow<'a, str>) -> Option<Self> {
        let complete = !driver.is_empty() && !handle.is_empty();
        complete.then_some(Self { driver, handle: Handle::Known(handle) })
    }
}

impl<'a> Limits<'a> {
    pub(super) fn new(storage: &'a Storage, pod: &'a PodSpec) -> Self {
        let of_volume = |volume| Attachable::of_volume(storage, &pod.namespace, volume);
        let mut own: SmallVec<_> = pod.volumes.iter().filter_map(of_volume).collect();
        own.sort_unstable();
        own.dedup();
        Self(own)
    }

    pub(super) fn check<'p>(
        &self,
        storage: &'p Storage,
        node: &str,
        pods: impl Iterator<Item = &'p PodSpec>,
    ) -> Result<(), Rejection> {
        if self.0.is_empty() {
            return Ok(());
        }
        let Some(csi_node) = storage.csi_node(node) else { return Ok(()) };
        let limits = self.limits_on(csi_node);
        if limits.is_empty() {
            return Ok(());
        }
        let there: SmallVec<[(&str, &Volume); 32]> = pods
            .flat_map(|pod| pod.volumes.iter().map(|volume| (pod.namespace.as_ref(), volume)))
            .collect();
        // Resolving volumes is expensive, and unnecessary if there are few.
        let most = there.len() + storage.attachments_to(node).count();
        let suffices =
            |(driver, limit): &(&str, i64)| self.count(driver, &[]) + most as i64 <= *limit;
        if limits.iter().all(suffices) {
            return Ok(());
        }
        let (attached, lingering) = attached(storage, node, &there);
        let fits = |(driver, limit): &(&str, i64)| {
            let of_driver = |one: &&Attachable<'_>| one.driver == *driver;
            let held = attached.iter().chain(&lingering).filter(of_driver).count() as i64;
            let new = self.count(driver, &attached);
            new == 0 || new + held <= *limit
        };
        if limits.iter().all(fits) {
            return Ok(());
        }
        Err(Rejection::resolvable(Plugin::NodeVolumeLimits, Reason::Text(EXCEEDED)))
    }

    fn limits_on<'n>(&self, csi_node: &'n CsiNode) -> SmallVec<[(&'n str, i64); 2]> {
        let drivers = csi_node.drivers.iter();
        let limited = drivers.filter_map(|(driver, limit)| Some((driver.as_ref(), (*limit)?)));
        let concerns = |driver: &str| self.0.iter().any(|own| own.driver == driver);
        let limits = limited.filter(|(driver, _)| concerns(driver));
        limits.map(|(driver, limit)| (driver, i64::from(limit))).collect()
    }

    /// Number of the pod's volumes of a driver that are not in `attached`, which is sorted.
    fn count(&self, driver: &str, attached: &[Attachable<'_>]) -> i64 {
        let own = self.0.iter().filter(|own| own.driver == driver);
        own.filter(|own| attached.binary_search(own).is_err()).count() as i64
    }
}

/// The volumes used by pods on the node, sorted; and other volumes attached to it.
fn attached<'p>(
    storage: &'p Storage,
    node: &str,
    there: &[(&str, &'p Volume)],
) -> (Vec<Attachable<'p>>, Vec<Attachable<'p>>) {
    let used = there.iter();
    let mut used: Vec<Attachable<'p>> = used
        .filter_map(|(namespace, volume)| Attachable::of_volume(storage, namespace, volume))
        .collect();
    used.sort_unstable();
    used.dedup();
    let volumes = storage.attachments_to(node).filter_map(|attachment| {
        let volume = storage.volume(attachment.volume.as_deref()?)?;
        let VolumeSource::Csi(csi) = &volume.source else { return None };
        let handle = Handle::Known(Cow::Borrowed(&csi.handle));
        let driver = Some(attachment.driver.as_ref()).filter(|driver| !driver.is_empty())?;
        Some(Attachable { driver, handle })
    });
    // A volume already attached for the new pod counts twice, as in kube-scheduler.
    let mut lingering: Vec<Attachable<'p>> =
        volumes.filter(|volume| used.binary_search(volume).is_err()).collect();
    lingering.sort_unstable();
    lingering.dedup();
    (used, lingering)
}

/// The driver behind a provisioner. Names that are not drivers have no limits anywhere.
fn driver_of_provisioner(provisioner: &str) -> &str {
    InTreePlugin::by_name(provisioner).map_or(provisioner, |plugin| plugin.driver())
}
