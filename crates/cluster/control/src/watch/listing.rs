//! Known objects of a kind. After a watch is restarted with a new list, objects that are not on it are gone.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

type Key = (Option<String>, String);

/// UIDs by name.
#[derive(Debug, Default)]
pub(super) struct Listing {
    known: BTreeMap<Key, Option<String>>,
    /// Seen since the list began.
    told: Option<BTreeSet<Key>>,
}

fn key(meta: &ObjectMeta) -> Key {
    (meta.namespace.clone(), meta.name.clone().unwrap_or_default())
}

fn named((namespace, name): Key, uid: Option<String>) -> ObjectMeta {
    ObjectMeta { namespace, name: Some(name), uid, ..ObjectMeta::default() }
}

impl Listing {
    pub(super) fn begin(&mut self) {
        self.told = Some(BTreeSet::new());
    }

    /// The list is complete. Returns the objects that were not on it.
    pub(super) fn finish(&mut self) -> Vec<ObjectMeta> {
        let Some(told) = self.told.take() else { return Vec::new() };
        let gone: Vec<Key> =
            self.known.keys().filter(|key| !told.contains(*key)).cloned().collect();
        let gone = gone.into_iter().filter_map(|key| {
            let uid = self.known.remove(&key)?;
            Some(named(key, uid))
        });
        gone.collect()
    }

    /// Returns the object of the same name that it replaces, if there is one.
    pub(super) fn note(&mut self, meta: &ObjectMeta) -> Option<ObjectMeta> {
        let key = key(meta);
        if let Some(told) = &mut self.told {
            told.insert(key.clone());
        }
        match self.known.get_mut(&key) {
            Some(uid) if *uid == meta.uid => None,
            Some(uid) => Some(named(key, std::mem::replace(uid, meta.uid.clone()))),
            None => {
                self.known.insert(key, meta.uid.clone());
                None
            }
        }
    }

    pub(super) fn forget(&mut self, meta: &ObjectMeta) {
        self.known.remove(&key(meta));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(name: &str, uid: &str) -> ObjectMeta {
        named((Some("a".to_owned()), name.to_owned()), Some(uid.to_owned()))
    }

    #[test]
    fn what_is_not_listed_again_is_gone() {
        let mut listing = Listing::default();
        listing.begin();
        assert!(listing.note(&meta("x", "1")).is_none());
        assert!(listing.note(&meta("y", "2")).is_none());
        assert!(listing.finish().is_empty());
        listing.begin();
        assert!(listing.note(&meta("y", "2")).is_none());
        assert_eq!(listing.finish(), [meta("x", "1")]);
        assert!(listing.finish().is_empty(), "no list has begun");
    }

    #[test]
    fn an_object_of_the_same_name_is_another_one() {
        let mut listing = Listing::default();
        assert!(listing.note(&meta("x", "1")).is_none());
        assert_eq!(listing.note(&meta("x", "2")), Some(meta("x", "1")));
        listing.forget(&meta("x", "2"));
        assert!(listing.note(&meta("x", "3")).is_none());
    }
}
