//! The claims there are, as far as it matters which news of them is newer.
//!
//! Owns the versions. Claims are told of by watches and, sooner, by whoever wrote them: what was given must
//! not be forgotten because an older state is told later. Must not know what claims are for.

use std::collections::HashMap;
use std::sync::Arc;

use berth_model::dra::claim::Claim;

use super::tombstones::Tombstones;

/// A namespace and a name in it.
type FullName = (Arc<str>, Arc<str>);

/// The claims, by namespace and name.
#[derive(Debug, Default)]
pub(super) struct Claims {
    known: HashMap<FullName, (Arc<str>, u64)>,
    tombstones: Tombstones,
}

impl Claims {
    /// Takes news in; `false`: it is old. A version of 0 is none.
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

    /// There is no such claim any more.
    pub(super) fn forget(&mut self, namespace: &Arc<str>, name: &Arc<str>) {
        if let Some((uid, _)) = self.known.remove(&(namespace.clone(), name.clone())) {
            self.tombstones.add(&uid);
        }
    }
}
