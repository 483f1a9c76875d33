//! Versions of ResourceClaims. Watches report claims and, sooner, the calls that write them: an older state that
//! arrives later must not undo an allocation.

use std::collections::HashMap;
use std::sync::Arc;

use berth_model::dra::claim::Claim;

use super::tombstones::Tombstones;

/// Namespace and name.
type FullName = (Arc<str>, Arc<str>);

#[derive(Debug, Default)]
pub(super) struct Claims {
    known: HashMap<FullName, (Arc<str>, u64)>,
    tombstones: Tombstones,
}

impl Claims {
    /// `false` if what was seen is older than what is known. Version 0 is unknown.
    pub(super) fn see(&mut self, claim: &Claim, version: u64) -> bool {
        let key = (claim.namespace.clone(), claim.name.clone());
        let is_old =
            |(uid, known): &(Arc<str>, u64)| *uid == claim.uid && version != 0 && *known > version;
        if self.tombstones.contains(&claim.uid) || self.known.get(&key).is_some_and(is_old) {
            return false;
        }
        self.known.insert(key, (claim.uid.clone(), version));
        true
    }

    pub(super) fn forget(&mut self, namespace: &Arc<str>, name: &Arc<str>) {
        if let Some((uid, _)) = self.known.remove(&(namespace.clone(), name.clone())) {
            self.tombstones.add(&uid);
        }
    }
}
