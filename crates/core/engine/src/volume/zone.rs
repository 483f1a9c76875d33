//! VolumeZone: zones and regions in the labels of bound volumes.

use berth_model::label::Labels;
use berth_model::spec::{PodSpec, Volume};
use berth_model::storage::PersistentVolume;
use smallvec::SmallVec;

use super::storage::Storage;
use crate::verdict::{Plugin, Reason, Rejection};

const CONFLICT: &str = "node(s) had no available volume zone";

pub(super) const ZONE: &str = "topology.kubernetes.io/zone";
pub(super) const ZONE_BETA: &str = "failure-domain.beta.kubernetes.io/zone";
pub(super) const REGION: &str = "topology.kubernetes.io/region";
pub(super) const REGION_BETA: &str = "failure-domain.beta.kubernetes.io/region";

/// Labels that count, each with its substitute on nodes without it.
const KEYS: [(&str, &str); 4] =
    [(ZONE_BETA, ZONE), (REGION_BETA, REGION), (ZONE, ZONE), (REGION, REGION)];

/// Separates the zones of a volume that is in several.
pub(super) const ZONE_DELIMITER: &str = "__";

#[derive(Clone, Debug, Default)]
pub(super) struct Zones<'a>(SmallVec<[Place<'a>; 1]>);

#[derive(Clone, Debug)]
struct Place<'a> {
    key: &'static str,
    substitute: &'static str,
    values: SmallVec<[&'a str; 2]>,
}

impl<'a> Zones<'a> {
    /// `Err` for the whole cluster if a claim is bound to a volume that does not exist. Claims
    /// exist, and unbound ones wait for a consumer: other plugins have checked that.
    pub(super) fn new(storage: &'a Storage, pod: &PodSpec) -> Result<Self, Rejection> {
        let mut zones = Self::default();
        for volume in &pod.volumes {
            // kube-scheduler ignores claims of ephemeral volumes here, which is likely an
            // oversight.
            let Volume::Claim { name, ephemeral: false } = volume else { continue };
            let claim = storage.claim(&pod.namespace, name);
            let Some(name) = claim.and_then(|claim| claim.volume.as_deref()) else { continue };
            let Some(volume) = storage.volume(name) else {
                let text = format!("persistentvolume \"{name}\" not found");
                let reason = Reason::Owned(text.into());
                return Err(Rejection::unresolvable(Plugin::VolumeZone, reason));
            };
            zones.add(volume);
        }
        Ok(zones)
    }

    fn add(&mut self, volume: &'a PersistentVolume) {
        for (key, substitute) in KEYS {
            let Some(value) = volume.labels.get(key) else { continue };
            let values: SmallVec<[&str; 2]> = value.split(ZONE_DELIMITER).map(str::trim).collect();
            // A label with an empty part is ignored.
            if !values.contains(&"") {
                self.0.push(Place { key, substitute, values });
            }
        }
    }

    pub(super) fn check(&self, labels: &Labels) -> Result<(), Rejection> {
        if self.0.is_empty() || !KEYS.iter().any(|(key, _)| labels.get(key).is_some()) {
            // A node without such labels is assumed to be in a cluster with a single zone.
            return Ok(());
        }
        let fits = |place: &Place<'_>| {
            let value = labels.get(place.key).or_else(|| labels.get(place.substitute));
            value.is_some_and(|value| place.values.contains(&value.as_ref()))
        };
        if self.0.iter().all(fits) {
            return Ok(());
        }
        Err(Rejection::unresolvable(Plugin::VolumeZone, Reason::Text(CONFLICT)))
    }
}
