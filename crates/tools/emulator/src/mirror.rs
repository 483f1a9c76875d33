//! A local copy of all objects of one kind, kept up to date by a watch.
//!
//! Writes of this process are visible at once, before the watch brings them, so nothing is created twice while a
//! watch lags.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Debug;
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock};

use futures::{Stream, StreamExt as _, pin_mut};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::key::{Key, is_not_found, version};

pub(crate) trait Kind:
    Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
}

impl<K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static> Kind for K {}

/// A change of an object; `old` is `None` if it is new, `new` if it was deleted.
pub(crate) struct Change<K> {
    pub(crate) key: Key,
    pub(crate) old: Option<Arc<K>>,
    pub(crate) new: Option<Arc<K>>,
}

impl<K> Change<K> {
    pub(crate) fn both(&self) -> impl Iterator<Item = &Arc<K>> {
        self.old.iter().chain(&self.new)
    }
}

type Listener<K> = Box<dyn Fn(&Change<K>) + Send + Sync>;
type Index<K> = fn(&K) -> Vec<String>;

pub(crate) struct Mirror<K> {
    state: RwLock<State<K>>,
    index: Index<K>,
    listeners: RwLock<Vec<Listener<K>>>,
    filled: watch::Sender<bool>,
}

struct State<K> {
    objects: BTreeMap<Key, Arc<K>>,
    by_index: HashMap<String, BTreeSet<Key>>,
    watched: u64,
    /// Keys of a relist in progress.
    relisted: Option<BTreeSet<Key>>,
}

impl<K> Default for State<K> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), by_index: HashMap::new(), watched: 0, relisted: None }
    }
}

impl<K: Kind> Mirror<K> {
    /// An empty mirror with an index besides the key.
    pub(crate) fn new(index: Index<K>) -> Arc<Self> {
        Arc::new(Self {
            state: RwLock::default(),
            index,
            listeners: RwLock::default(),
            filled: watch::Sender::new(false),
        })
    }

    /// Calls `listener` after every change. It must not block: the watch waits for it.
    pub(crate) fn on_change(&self, listener: impl Fn(&Change<K>) + Send + Sync + 'static) {
        self.listeners.write().unwrap_or_else(PoisonError::into_inner).push(Box::new(listener));
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.read(|state| state.objects.get(key).cloned())
    }

    pub(crate) fn all(&self) -> Vec<Arc<K>> {
        self.read(|state| state.objects.values().cloned().collect())
    }

    pub(crate) fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        let first = Key::new(namespace, "");
        self.read(|state| {
            let from = state.objects.range((Bound::Included(first), Bound::Unbounded));
            let inside = from.take_while(|(key, _)| key.namespace == namespace);
            inside.map(|(_, object)| Arc::clone(object)).collect()
        })
    }

    pub(crate) fn by(&self, index: &str) -> Vec<Arc<K>> {
        self.read(|state| {
            let keys = state.by_index.get(index).into_iter().flatten();
            keys.filter_map(|key| state.objects.get(key).cloned()).collect()
        })
    }

    /// Takes the answer to a write. Ignored if the watch is already past it.
    pub(crate) fn observe(&self, object: K) {
        let at = version(object.meta());
        let change = self.write(|state| {
            let key = Key::of(object.meta());
            let newer = |known: &Arc<K>| version(known.meta()) < at;
            let is_newer = at > state.watched && state.objects.get(&key).is_none_or(newer);
            is_newer.then(|| state.put(key, object, self.index))
        });
        self.notify(change);
    }

    /// Takes the answer that the object with this UID is gone.
    pub(crate) fn observe_gone(&self, key: &Key, uid: &str) {
        let change = self.write(|state| {
            let known = state.objects.get(key)?;
            let same = known.meta().uid.as_deref() == Some(uid);
            same.then(|| state.remove(key.clone(), self.index))
        });
        self.notify(change);
    }

    /// Waits for the first list.
    pub(crate) async fn filled(&self) {
        // The sender is in self, so this cannot fail.
        let _ = self.filled.subscribe().wait_for(|filled| *filled).await;
    }

    pub(crate) async fn watch(self: Arc<Self>, client: Client, config: watcher::Config)
    where
        K: Resource<DynamicType = ()>,
    {
        self.follow(watcher(Api::all(client), config).default_backoff()).await;
    }

    pub(crate) async fn follow(
        &self,
        events: impl Stream<Item = watcher::Result<watcher::Event<K>>>,
    ) {
        pin_mut!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => self.apply(event),
                Err(error) => {
                    let kind = std::any::type_name::<K>();
                    tracing::debug!(kind, %error, "a watch was interrupted");
                    if let watcher::Error::InitialListFailed(error) = &error
                        && is_not_found(error)
                    {
                        // The server does not have this kind, so there are no objects.
                        self.filled.send_replace(true);
                    }
                }
            }
        }
    }

    fn apply(&self, event: watcher::Event<K>) {
        match event {
            watcher::Event::Init => self.write(|state| state.relisted = Some(BTreeSet::new())),
            watcher::Event::InitApply(object) => self.apply_object(object),
            watcher::Event::Apply(object) => self.apply_object(object),
            watcher::Event::Delete(object) => {
                let change = self.write(|state| {
                    state.watched = state.watched.max(version(object.meta()));
                    let key = Key::of(object.meta());
                    let known = state.objects.contains_key(&key);
                    known.then(|| state.remove(key, self.index))
                });
                self.notify(change);
            }
            watcher::Event::InitDone => {
                let gone: Vec<Change<K>> = self.write(|state| {
                    let Some(listed) = state.relisted.take() else { return Vec::new() };
                    let unlisted: Vec<Key> =
                        state.objects.keys().filter(|key| !listed.contains(key)).cloned().collect();
                    unlisted.into_iter().map(|key| state.remove(key, self.index)).collect()
                });
                gone.into_iter().for_each(|change| self.notify(Some(change)));
                self.filled.send_replace(true);
            }
        }
    }

    fn apply_object(&self, object: K) {
        let at = version(object.meta());
        let change = self.write(|state| {
            state.watched = state.watched.max(at);
            let key = Key::of(object.meta());
            if let Some(listed) = &mut state.relisted {
                listed.insert(key.clone());
            }
            // The answer to a write may have been here first.
            let newer = |known: &Arc<K>| version(known.meta()) < at;
            let is_newer = state.objects.get(&key).is_none_or(newer);
            is_newer.then(|| state.put(key, object, self.index))
        });
        self.notify(change);
    }

    fn notify(&self, change: Option<Change<K>>) {
        let Some(change) = change else { return };
        let listeners = self.listeners.read().unwrap_or_else(PoisonError::into_inner);
        listeners.iter().for_each(|listener| listener(&change));
    }

    fn read<T>(&self, look: impl FnOnce(&State<K>) -> T) -> T {
        look(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, change: impl FnOnce(&mut State<K>) -> T) -> T {
        change(&mut self.state.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<K: Kind> State<K> {
    fn put(&mut self, key: Key, object: K, index: Index<K>) -> Change<K> {
        let new = Arc::new(object);
        let old = self.objects.insert(key.clone(), Arc::clone(&new));
        self.reindex(&key, old.as_deref(), Some(&new), index);
        // An object written during a list may be missing from it.
        if let Some(listed) = &mut self.relisted {
            listed.insert(key.clone());
        }
        Change { key, old, new: Some(new) }
    }

    fn remove(&mut self, key: Key, index: Index<K>) -> Change<K> {
        let old = self.objects.remove(&key);
        self.reindex(&key, old.as_deref(), None, index);
        Change { key, old, new: None }
    }

    fn reindex(&mut self, key: &Key, old: Option<&K>, new: Option<&K>, index: Index<K>) {
        let before = old.map(index).unwrap_or_default();
        let after = new.map(index).unwrap_or_default();
        if before == after {
            return;
        }
        for entry in before {
            if let Some(keys) = self.by_index.get_mut(&entry) {
                keys.remove(key);
                if keys.is_empty() {
                    self.by_index.remove(&entry);
                }
            }
        }
        for entry in after {
            self.by_index.entry(entry).or_default().insert(key.clone());
        }
    }
}

/// For kinds without an index.
pub(crate) fn by_name_only<K>(_: &K) -> Vec<String> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use std::sync::Mutex;

    fn object(name: &str, version: u64) -> ConfigMap {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.to_owned());
        map.metadata.namespace = Some("n".to_owned());
        map.metadata.uid = Some(format!("{name}-uid"));
        map.metadata.resource_version = Some(version.to_string());
        map.metadata.labels = Some([("app".to_owned(), name.to_owned())].into());
        map
    }

    fn names(mirror: &Mirror<ConfigMap>) -> Vec<String> {
        let of = |map: &Arc<ConfigMap>| {
            let version = map.metadata.resource_version.as_deref().unwrap();
            format!("{}@{version}", map.metadata.name.as_deref().unwrap())
        };
        mirror.all().iter().map(of).collect()
    }

    #[test]
    fn an_answer_is_known_before_the_watch_brings_it_and_never_after() {
        let mirror = Mirror::<ConfigMap>::new(by_name_only);
        mirror.apply(watcher::Event::Apply(object("a", 5)));
        mirror.observe(object("b", 6));
        assert_eq!(names(&mirror), ["a@5", "b@6"]);
        mirror.apply(watcher::Event::Apply(object("b", 6)));
        mirror.apply(watcher::Event::Delete(object("b", 7)));
        // An answer that is older than what the watch has brought.
        mirror.observe(object("b", 6));
        assert_eq!(names(&mirror), ["a@5"]);
        mirror.observe_gone(&Key::new("n", "a"), "another");
        assert_eq!(names(&mirror), ["a@5"]);
        mirror.observe_gone(&Key::new("n", "a"), "a-uid");
        assert!(names(&mirror).is_empty());
    }

    #[test]
    fn what_a_new_list_does_not_have_is_gone_but_not_what_was_made_meanwhile() {
        let mirror = Mirror::<ConfigMap>::new(by_name_only);
        mirror.apply(watcher::Event::Apply(object("a", 5)));
        mirror.apply(watcher::Event::Apply(object("b", 6)));
        mirror.apply(watcher::Event::Init);
        mirror.apply(watcher::Event::InitApply(object("b", 8)));
        mirror.observe(object("c", 9));
        mirror.apply(watcher::Event::InitDone);
        assert_eq!(names(&mirror), ["b@8", "c@9"]);
    }

    #[test]
    fn an_older_event_does_not_undo_an_answer() {
        let mirror = Mirror::<ConfigMap>::new(by_name_only);
        mirror.observe(object("a", 9));
        mirror.apply(watcher::Event::Apply(object("a", 7)));
        assert_eq!(names(&mirror), ["a@9"]);
    }

    #[test]
    fn objects_are_found_by_index_and_namespace_and_changes_are_told() {
        let mirror = Mirror::<ConfigMap>::new(|map| {
            vec![map.metadata.labels.as_ref().unwrap()["app"].clone()]
        });
        let told = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&told);
        mirror.on_change(move |change| {
            heard.lock().unwrap().push((change.old.is_some(), change.new.is_some()));
        });
        mirror.apply(watcher::Event::Apply(object("a", 1)));
        let mut moved = object("a", 2);
        moved.metadata.labels = Some([("app".to_owned(), "z".to_owned())].into());
        mirror.apply(watcher::Event::Apply(moved));
        assert!(mirror.by("a").is_empty());
        assert_eq!((mirror.by("z").len(), mirror.in_namespace("n").len()), (1, 1));
        assert!(mirror.in_namespace("m").is_empty());
        mirror.apply(watcher::Event::Delete(object("a", 3)));
        assert!(mirror.by("z").is_empty());
        assert_eq!(*told.lock().unwrap(), [(false, true), (true, true), (true, false)]);
    }
}
