//! Translates disks of in-tree plugins to the CSI drivers that attach them today.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use berth_model::affinity::NodeTerm;
use berth_model::label::{Labels, Operator, Requirement};
use berth_model::storage::{InTreeDisk, InTreePlugin, PersistentVolume};

use super::zone::{REGION, REGION_BETA, ZONE, ZONE_BETA, ZONE_DELIMITER};

/// The driver's handle for a disk; `None` if it cannot be translated. `labels` are those of the
/// PersistentVolume, `None` for a disk in a pod's spec.
pub(super) fn handle<'a>(disk: &'a InTreeDisk, labels: Option<&Labels>) -> Option<Cow<'a, str>> {
    match disk.plugin {
        InTreePlugin::AwsEbs => ebs_handle(&disk.id).map(Cow::Borrowed),
        InTreePlugin::GcePd => gce_handle(&disk.id, labels).map(Cow::Owned),
        InTreePlugin::AzureDisk | InTreePlugin::Cinder | InTreePlugin::Portworx => {
            Some(Cow::Borrowed(&disk.id))
        }
    }
}

/// An id is `ID` or `aws://ZONE/ID`.
pub(super) fn ebs_handle(id: &str) -> Option<&str> {
    let Some(url) = id.strip_prefix("aws://") else { return Some(id) };
    let (_, path) = url.split_once('/')?;
    let path = path.split(['?', '#']).next()?.trim_matches('/');
    (path.starts_with("vol-") && !path.contains('/')).then_some(path)
}

pub(super) fn gce_handle(name: &str, labels: Option<&Labels>) -> Option<String> {
    let label = |key| labels?.get(key).filter(|value| !value.is_empty());
    let Some(zones) = label(ZONE_BETA).or_else(|| label(ZONE)) else {
        return Some(format!("projects/UNSPECIFIED/zones/UNSPECIFIED/disks/{name}"));
    };
    if !zones.contains(ZONE_DELIMITER) {
        return Some(format!("projects/UNSPECIFIED/zones/{zones}/disks/{name}"));
    }
    let mut regions = zones.split(ZONE_DELIMITER).map(gce_region);
    let region = regions.next()??;
    let same = regions.all(|other| other == Some(region));
    same.then(|| format!("projects/UNSPECIFIED/regions/{region}/disks/{name}"))
}

/// `us-central1` of `us-central1-a`.
fn gce_region(zone: &str) -> Option<&str> {
    let (region, _) = zone.rsplit_once('-')?;
    (region.split('-').count() == 2).then_some(region)
}

/// A volume's node affinity in the driver's own zone label; `None` if translation changes nothing.
pub(super) fn affinity(volume: &PersistentVolume, plugin: InTreePlugin) -> Option<Vec<NodeTerm>> {
    let csi_key: Arc<str> = plugin.zone_key()?.into();
    let mut terms = volume.node_affinity.clone().unwrap_or_default();
    let (zone_key, beta) = zone_label(&terms, &volume.labels);
    if mentions_values(&terms, zone_key) {
        rename(&mut terms, zone_key, &csi_key);
    } else if let Some(label) = volume.labels.get(zone_key) {
        require_zones(&mut terms, &csi_key, label);
    }
    if beta && mentions_values(&terms, REGION_BETA) {
        rename(&mut terms, REGION_BETA, &REGION.into());
    }
    (Some(&terms) != volume.node_affinity.as_ref() && !terms.is_empty()).then_some(terms)
}

/// The volume's zone label, and whether it is the beta one.
fn zone_label(terms: &[NodeTerm], labels: &Labels) -> (&'static str, bool) {
    let in_terms = |key: &str| requirements(terms).any(|one| one.key.as_ref() == key);
    let current = if in_terms(ZONE) {
        true
    } else if in_terms(ZONE_BETA) {
        false
    } else {
        labels.get(ZONE).is_some() || labels.get(ZONE_BETA).is_none()
    };
    if current { (ZONE, false) } else { (ZONE_BETA, true) }
}

fn requirements(terms: &[NodeTerm]) -> impl Iterator<Item = &Requirement> {
    terms.iter().flat_map(|term| &term.labels)
}

fn mentions_values(terms: &[NodeTerm], key: &str) -> bool {
    requirements(terms).filter(|one| one.key.as_ref() == key).any(|one| match &one.operator {
        Operator::In(values) | Operator::NotIn(values) => !values.is_empty(),
        Operator::Gt(_) | Operator::Lt(_) => true,
        Operator::Exists | Operator::DoesNotExist | Operator::Never => false,
    })
}

fn rename(terms: &mut [NodeTerm], from: &str, to: &Arc<str>) {
    let requirements = terms.iter_mut().flat_map(|term| &mut term.labels);
    for requirement in requirements.filter(|one| one.key.as_ref() == from) {
        requirement.key = to.clone();
    }
}

fn require_zones(terms: &mut Vec<NodeTerm>, key: &Arc<str>, label: &str) {
    let zones = label.split(ZONE_DELIMITER).map(str::trim).filter(|zone| !zone.is_empty());
    let zones: BTreeSet<&str> = zones.collect();
    if zones.is_empty() {
        return;
    }
    if terms.is_empty() {
        terms.push(NodeTerm::default());
    }
    let values: Vec<Arc<str>> = zones.into_iter().map(Arc::from).collect();
    for term in terms {
        let operator = Operator::In(values.clone());
        term.labels.push(Requirement { key: key.clone(), operator });
    }
}
