//! Objects by resource and key, the revision counter behind `resourceVersion`, and a bounded history of changes for
//! watches and older lists. Writes are compare-and-swap.

mod acknowledged;
mod journal;
mod log;
mod object;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use serde_json::Value;
use tokio::sync::watch;

use crate::kinds::Resource;
use crate::status::Status;
pub use journal::JournalError;
pub use object::{Key, Stored, body_of, key_of, set_revision, write_typed};

/// Limits of the history per resource.
#[derive(Clone, Copy, Debug)]
pub struct HistoryLimits {
    pub changes: usize,
    /// Bytes of JSON kept.
    pub bytes: usize,
}

/// Precondition of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// There is no such object.
    Absent,
    Revision(u64),
}

/// Why a precondition failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    Exists,
    /// The object does not exist.
    Missing,
    /// It has another revision.
    Changed,
}

/// The history no longer reaches back that far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooOld {
    /// The oldest revision after which all changes are known.
    pub oldest: u64,
}

#[derive(Debug)]
pub struct Change {
    pub revision: u64,
    /// The object before; none if it was created.
    pub before: Option<Arc<Stored>>,
    /// The object after. Of a deleted one this is its last state with the revision of the deletion.
    pub after: Arc<Stored>,
    pub deleted: bool,
}

impl Change {
    fn bytes(&self) -> usize {
        self.after.body.len()
    }
}

#[derive(Debug)]
pub struct Listed {
    /// In the order of their keys.
    pub items: Vec<Arc<Stored>>,
    pub revision: u64,
}

/// Changes after some revision.
#[derive(Debug)]
pub struct Changes {
    /// In their order.
    pub changes: Vec<Arc<Change>>,
    /// All changes up to here are among them, or were before.
    pub through: u64,
}

struct Collection {
    objects: BTreeMap<Key, Arc<Stored>>,
    history: VecDeque<Arc<Change>>,
    history_bytes: usize,
    /// All changes after this revision are in `history`.
    complete_after: u64,
    changed: Arc<watch::Sender<u64>>,
}

impl Collection {
    fn new(complete_after: u64) -> Self {
        Self {
            objects: BTreeMap::new(),
            history: VecDeque::new(),
            history_bytes: 0,
            complete_after,
            changed: Arc::new(watch::Sender::new(0)),
        }
    }

    fn remember(&mut self, change: Arc<Change>, limits: HistoryLimits) {
        self.history_bytes += change.bytes();
        self.history.push_back(change);
        while self.history.len() > limits.changes || self.history_bytes > limits.bytes {
            let Some(oldest) = self.history.pop_front() else { break };
            self.history_bytes -= oldest.bytes();
            self.complete_after = oldest.revision;
        }
    }

    fn range(&self, namespace: Option<&str>) -> impl Iterator<Item = (&Key, &Arc<Stored>)> {
        let bounds: (Bound<Key>, Bound<Key>) = match namespace {
            None => (Bound::Unbounded, Bound::Unbounded),
            // '0' is the character after '/'.
            Some(namespace) => (
                Bound::Included(Arc::from(format!("{namespace}/"))),
                Bound::Excluded(Arc::from(format!("{namespace}0"))),
            ),
        };
        self.objects.range(bounds)
    }
}

#[derive(Default)]
struct State {
    revision: u64,
    /// The revision at which it began to remember changes.
    began: u64,
    collections: HashMap<Resource, Collection>,
}

impl State {
    fn collection(&mut self, resource: &Resource) -> &mut Collection {
        // Objects without later changes are as they were.
        let began = self.began;
        self.collections.entry(resource.clone()).or_insert_with(|| Collection::new(began))
    }
}

pub struct Store {
    state: Arc<RwLock<State>>,
    limits: HistoryLimits,
    log: Option<log::Log>,
}

/// Revision 0 means "any" in requests, so nothing may ever carry it.
const FIRST_REVISION: u64 = 1;

impl Store {
    /// An empty store without files.
    pub fn in_memory(limits: HistoryLimits) -> Self {
        let state = State { revision: FIRST_REVISION, began: FIRST_REVISION, ..State::default() };
        Self { state: Arc::new(RwLock::new(state)), limits, log: None }
    }

    /// A store that is kept in a directory.
    ///
    /// # Errors
    ///
    /// If the directory cannot be used, is in use, or holds what cannot be read.
    pub fn open(directory: &Path, limits: HistoryLimits) -> Result<Self, JournalError> {
        let (disk, revision, objects) = log::recover(directory, FIRST_REVISION)?.split();
        let mut state = State { revision, began: revision, ..State::default() };
        for (resource, object) in objects {
            let collection = state.collection(&resource);
            collection.objects.insert(object.key.clone(), Arc::new(object));
        }
        let state = Arc::new(RwLock::new(state));
        let log = Some(log::Log::start(disk, state.clone(), revision));
        Ok(Self { state, limits, log })
    }

    /// Waits until everything written so far is on disk.
    ///
    /// # Errors
    ///
    /// If it cannot be made safe, with the reason.
    pub async fn settled(&self) -> Result<(), Status> {
        let Some(log) = &self.log else { return Ok(()) };
        let revision = self.revision();
        let mut durable = log.durable();
        let reached = durable
            .wait_for(|durable| durable.revision >= revision || durable.failed.is_some())
            .await;
        match reached {
            Ok(durable) if durable.revision >= revision => Ok(()),
            Ok(durable) => Err(Status::internal(durable.failed.as_deref().unwrap_or_default())),
            Err(_) => Err(Status::internal("the store is closed")),
        }
    }

    // No write can panic between two steps while the lock is held, so a poisoned lock guards consistent data.
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The revision of the last write.
    pub fn revision(&self) -> u64 {
        self.read().revision
    }

    pub fn get(&self, resource: &Resource, key: &str) -> Option<Arc<Stored>> {
        self.read().collections.get(resource)?.objects.get(key).cloned()
    }

    /// All objects of a resource, of one namespace or of all.
    pub fn list(&self, resource: &Resource, namespace: Option<&str>) -> Listed {
        let state = self.read();
        let items = state
            .collections
            .get(resource)
            .map(|collection| collection.range(namespace).map(|(_, item)| item.clone()).collect())
            .unwrap_or_default();
        Listed { items, revision: state.revision }
    }

    pub fn count(&self, resource: &Resource) -> usize {
        self.read().collections.get(resource).map_or(0, |collection| collection.objects.len())
    }

    /// All objects at an earlier revision, by undoing later changes.
    pub fn list_at(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        revision: u64,
    ) -> Result<Listed, TooOld> {
        let state = self.read();
        let Some(collection) = state.collections.get(resource) else {
            return Ok(Listed { items: Vec::new(), revision });
        };
        if revision < collection.complete_after {
            return Err(TooOld { oldest: collection.complete_after });
        }
        let mut earlier: BTreeMap<Key, Option<Arc<Stored>>> = BTreeMap::new();
        for change in collection.history.iter().rev() {
            if change.revision <= revision {
                break;
            }
            earlier.insert(change.after.key.clone(), change.before.clone());
        }
        let mut items: Vec<Arc<Stored>> = collection
            .range(namespace)
            .filter(|(key, _)| !earlier.contains_key(*key))
            .map(|(_, item)| item.clone())
            .collect();
        let untouched = items.len();
        let in_namespace = |stored: &Stored| namespace.is_none_or(|n| stored.namespace() == n);
        items.extend(earlier.into_values().flatten().filter(|stored| in_namespace(stored)));
        if items.len() > untouched {
            items.sort_by(|a, b| a.key.cmp(&b.key));
        }
        Ok(Listed { items, revision })
    }

    /// Up to `limit` changes after a revision.
    pub fn changes_after(
        &self,
        resource: &Resource,
        revision: u64,
        limit: usize,
    ) -> Result<Changes, TooOld> {
        let state = self.read();
        // Changes that are not on disk yet may be lost, so they are not visible.
        let through = self.log.as_ref().map_or(state.revision, |log| log.durable_revision());
        let Some(collection) = state.collections.get(resource) else {
            return Ok(Changes { changes: Vec::new(), through: through.max(revision) });
        };
        if revision < collection.complete_after {
            return Err(TooOld { oldest: collection.complete_after });
        }
        let first = collection.history.partition_point(|change| change.revision <= revision);
        let end = collection.history.partition_point(|change| change.revision <= through);
        let known = end.saturating_sub(first);
        let changes: Vec<Arc<Change>> =
            collection.history.iter().skip(first).take(known.min(limit)).cloned().collect();
        let all = changes.len() == known;
        let through = match changes.last() {
            Some(last) if !all => last.revision,
            _ => through.max(revision),
        };
        Ok(Changes { changes, through })
    }

    pub fn subscribe(&self, resource: &Resource) -> watch::Receiver<u64> {
        if let Some(collection) = self.read().collections.get(resource) {
            return collection.changed.subscribe();
        }
        self.write().collection(resource).changed.subscribe()
    }

    /// Writes an object, new or changed. The value gets the revision into its metadata.
    pub fn put(
        &self,
        resource: &Resource,
        key: &Key,
        expected: Expected,
        value: Value,
    ) -> Result<Arc<Stored>, Lost> {
        self.one(Operation::put(resource, key, expected, value))
    }

    pub fn remove(
        &self,
        resource: &Resource,
        key: &Key,
        expected: Expected,
    ) -> Result<Arc<Stored>, Lost> {
        self.one(Operation::remove(resource, key, expected, None))
    }

    /// Removes an object whose last state is not stored before it goes.
    pub fn remove_as(
        &self,
        resource: &Resource,
        key: &Key,
        expected: Expected,
        last: Value,
    ) -> Result<Arc<Stored>, Lost> {
        self.one(Operation::remove(resource, key, expected, Some(last)))
    }

    fn one(&self, operation: Operation) -> Result<Arc<Stored>, Lost> {
        let mut done = self.transact(vec![operation]).map_err(|(_, lost)| lost)?;
        done.pop().ok_or(Lost::Missing)
    }

    /// Performs operations on different objects atomically. Returns the new state of each in order; of removed
    /// ones the last.
    ///
    /// # Errors
    ///
    /// With the first operation that could not be done, and why.
    pub fn transact(&self, operations: Vec<Operation>) -> Result<Vec<Arc<Stored>>, (usize, Lost)> {
        let mut state = self.write();
        for (at, operation) in operations.iter().enumerate() {
            let collection = state.collection(&operation.resource);
            let before = collection.objects.get(&operation.key);
            check(before.map(|stored| &**stored), operation.expected).map_err(|lost| (at, lost))?;
            if before.is_none() && matches!(operation.what, What::Remove(_)) {
                return Err((at, Lost::Missing));
            }
        }
        let mut done = Vec::with_capacity(operations.len());
        let mut entries = Vec::with_capacity(operations.len());
        for operation in operations {
            let entry = carry_out(&mut state, operation);
            done.push(entry.change.after.clone());
            entries.push(entry);
        }
        if let Some(log) = &self.log {
            log.append(&entries);
        }
        for entry in entries {
            let revision = entry.change.revision;
            state.collection(&entry.resource).remember(entry.change, self.limits);
            if self.log.is_none() {
                entry.changed.send_replace(revision);
            }
        }
        Ok(done)
    }
}

#[derive(Debug)]
pub struct Operation {
    resource: Resource,
    key: Key,
    expected: Expected,
    what: What,
}

#[derive(Debug)]
enum What {
    Put(Value),
    /// With the last state, if it differs from what is stored.
    Remove(Option<Value>),
}

impl Operation {
    pub fn put(resource: &Resource, key: &Key, expected: Expected, value: Value) -> Self {
        Self { resource: resource.clone(), key: key.clone(), expected, what: What::Put(value) }
    }

    /// Removes an object; `last` is its last state where that is not stored.
    pub fn remove(resource: &Resource, key: &Key, expected: Expected, last: Option<Value>) -> Self {
        Self { resource: resource.clone(), key: key.clone(), expected, what: What::Remove(last) }
    }
}

struct Entry {
    resource: Resource,
    change: Arc<Change>,
    changed: Arc<watch::Sender<u64>>,
}

fn carry_out(state: &mut State, operation: Operation) -> Entry {
    let Operation { resource, key, what, .. } = operation;
    let revision = state.revision + 1;
    let collection = state.collection(&resource);
    let before = collection.objects.get(&key).cloned();
    let (mut value, deleted) = match what {
        What::Put(value) => (value, false),
        What::Remove(last) => {
            let stored = || before.as_ref().map(|stored| Value::clone(&stored.value));
            (last.or_else(stored).unwrap_or_default(), true)
        }
    };
    set_revision(&mut value, revision);
    let after = Arc::new(Stored::new(key.clone(), value, revision));
    if deleted {
        collection.objects.remove(&key);
    } else {
        collection.objects.insert(key, after.clone());
    }
    let changed = collection.changed.clone();
    state.revision = revision;
    Entry { resource, change: Arc::new(Change { revision, before, after, deleted }), changed }
}

fn check(before: Option<&Stored>, expected: Expected) -> Result<(), Lost> {
    match (before, expected) {
        (None, Expected::Absent) => Ok(()),
        (Some(_), Expected::Absent) => Err(Lost::Exists),
        (None, Expected::Revision(_)) => Err(Lost::Missing),
        (Some(stored), Expected::Revision(revision)) if stored.revision == revision => Ok(()),
        (Some(_), Expected::Revision(_)) => Err(Lost::Changed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn store(changes: usize) -> (Store, Resource) {
        let limits = HistoryLimits { changes, bytes: 1 << 20 };
        (Store::in_memory(limits), Resource::new("", "pods"))
    }

    fn names(listed: &Listed) -> Vec<String> {
        listed.items.iter().map(|item| item.key.to_string()).collect()
    }

    #[test]
    fn a_write_must_know_what_it_replaces() {
        let (store, pods) = store(10);
        let key = key_of("a", "x");
        let first = store.put(&pods, &key, Expected::Absent, json!({"metadata": {}})).unwrap();
        assert_eq!(store.put(&pods, &key, Expected::Absent, json!({})).unwrap_err(), Lost::Exists);
        let second = store
            .put(&pods, &key, Expected::Revision(first.revision), json!({"metadata": {}}))
            .unwrap();
        assert!(second.revision > first.revision);
        let stale = Expected::Revision(first.revision);
        assert_eq!(store.put(&pods, &key, stale, json!({})).unwrap_err(), Lost::Changed);
        assert_eq!(store.remove(&pods, &key, stale).unwrap_err(), Lost::Changed);
        let gone = store.remove(&pods, &key, Expected::Revision(second.revision)).unwrap();
        assert_eq!(gone.value["metadata"]["resourceVersion"], json!(gone.revision.to_string()));
        assert!(store.get(&pods, &key).is_none());
    }

    #[test]
    fn an_older_list_is_what_it_was() {
        let (store, pods) = store(10);
        let a = store.put(&pods, &key_of("n", "a"), Expected::Absent, json!({})).unwrap();
        let b = store.put(&pods, &key_of("n", "b"), Expected::Absent, json!({})).unwrap();
        store.put(&pods, &key_of("m", "c"), Expected::Absent, json!({})).unwrap();
        store.remove(&pods, &a.key, Expected::Revision(a.revision)).unwrap();
        let at_b = store.list_at(&pods, None, b.revision).unwrap();
        assert_eq!(names(&at_b), ["n/a", "n/b"]);
        assert_eq!(names(&store.list_at(&pods, Some("n"), b.revision).unwrap()), ["n/a", "n/b"]);
        assert_eq!(names(&store.list_at(&pods, Some("n"), a.revision).unwrap()), ["n/a"]);
        assert_eq!(names(&store.list(&pods, None)), ["m/c", "n/b"]);
        assert_eq!(names(&store.list(&pods, Some("n"))), ["n/b"]);
    }

    #[test]
    fn what_is_too_old_is_said_to_be() {
        let (store, pods) = store(2);
        let first = store.put(&pods, &key_of("n", "a"), Expected::Absent, json!({})).unwrap();
        for name in ["b", "c", "d"] {
            store.put(&pods, &key_of("n", name), Expected::Absent, json!({})).unwrap();
        }
        assert!(store.changes_after(&pods, first.revision, 10).is_err());
        assert!(store.list_at(&pods, None, first.revision).is_err());
        let known = store.changes_after(&pods, first.revision + 1, 10).unwrap();
        assert_eq!(known.changes.len(), 2);
        assert_eq!(known.through, store.revision());
        let part = store.changes_after(&pods, first.revision + 1, 1).unwrap();
        assert_eq!(part.through, first.revision + 2);
    }
}
