//! The metadata of all objects of all kinds. Kinds are discovered, again whenever a CustomResourceDefinition
//! changes.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use kube::api::{ApiResource, DynamicObject};
use kube::core::PartialObjectMeta;
use kube::discovery::{Discovery, Scope, verbs};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use crate::mirror::{Change, Mirror, by_name_only};

/// Discovery runs this often, and when a CustomResourceDefinition changes.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Time for a new definition to be served.
const SETTLE: Duration = Duration::from_millis(500);

pub(crate) type Meta = PartialObjectMeta<DynamicObject>;

#[derive(Clone)]
pub(crate) struct TrackedKind {
    pub(crate) resource: ApiResource,
    pub(crate) namespaced: bool,
    pub(crate) deletes_collections: bool,
    pub(crate) mirror: Arc<Mirror<Meta>>,
}

type Listener = Box<dyn Fn(&ApiResource, &Change<Meta>) + Send + Sync>;

pub(crate) struct Kinds {
    client: Client,
    /// By group and plural.
    tracked: RwLock<BTreeMap<(String, String), (TrackedKind, AbortHandle)>>,
    listeners: Arc<RwLock<Vec<Listener>>>,
    look: Arc<Notify>,
}

impl Kinds {
    pub(crate) fn new(client: Client) -> Arc<Self> {
        Arc::new(Self {
            client,
            tracked: RwLock::default(),
            listeners: Arc::default(),
            look: Arc::default(),
        })
    }

    /// Calls `listener` after every change of any object. It must not block.
    pub(crate) fn on_change(
        &self,
        listener: impl Fn(&ApiResource, &Change<Meta>) + Send + Sync + 'static,
    ) {
        let mut listeners = self.listeners.write().unwrap_or_else(PoisonError::into_inner);
        listeners.push(Box::new(listener));
    }

    pub(crate) fn all(&self) -> Vec<TrackedKind> {
        let tracked = self.tracked.read().unwrap_or_else(PoisonError::into_inner);
        tracked.values().map(|(tracked, _)| tracked.clone()).collect()
    }

    /// Finds a kind by group and name, in any version.
    pub(crate) fn find(&self, api_version: &str, kind: &str) -> Option<TrackedKind> {
        let group = api_version.rsplit_once('/').map_or("", |(group, _)| group);
        let tracked = self.tracked.read().unwrap_or_else(PoisonError::into_inner);
        let mut of_group = tracked.values().map(|(tracked, _)| tracked);
        of_group.find(|one| one.resource.group == group && one.resource.kind == kind).cloned()
    }

    /// Objects of a kind in a namespace; `None` if the kind is not known.
    pub(crate) fn count(&self, group: &str, plural: &str, namespace: &str) -> Option<usize> {
        let tracked = self.tracked.read().unwrap_or_else(PoisonError::into_inner);
        let (tracked, _) = tracked.get(&(group.to_owned(), plural.to_owned()))?;
        Some(tracked.mirror.in_namespace(namespace).len())
    }

    pub(crate) async fn run(self: Arc<Self>) {
        let mut watches = JoinSet::new();
        loop {
            match self.discover().await {
                Ok(found) => self.track(found, &mut watches),
                Err(error) => tracing::debug!(%error, "kinds cannot be listed"),
            }
            // Discovery repeats in both cases.
            if timeout(LOOK_EVERY, self.look.notified()).await.is_ok() {
                tokio::time::sleep(SETTLE).await;
            }
        }
    }

    async fn discover(&self) -> Result<Vec<TrackedKind>, kube::Error> {
        let at_once = Discovery::new(self.client.clone()).run_aggregated().await;
        let discovery = match at_once {
            Ok(discovery) => discovery,
            Err(_) => Discovery::new(self.client.clone()).run().await?,
        };
        let mut found = Vec::new();
        for group in discovery.groups() {
            for (resource, can) in group.recommended_resources() {
                let needed = [verbs::LIST, verbs::WATCH, verbs::DELETE];
                // Events have no owners and no dependents.
                if resource.plural == "events"
                    || !needed.iter().all(|verb| can.supports_operation(verb))
                {
                    continue;
                }
                found.push(TrackedKind {
                    resource,
                    namespaced: can.scope == Scope::Namespaced,
                    deletes_collections: can.supports_operation(verbs::DELETE_COLLECTION),
                    mirror: Mirror::new(by_name_only),
                });
            }
        }
        Ok(found)
    }

    fn track(&self, found: Vec<TrackedKind>, watches: &mut JoinSet<()>) {
        let mut tracked = self.tracked.write().unwrap_or_else(PoisonError::into_inner);
        let key = |resource: &ApiResource| (resource.group.clone(), resource.plural.clone());
        let names: Vec<_> = found.iter().map(|one| key(&one.resource)).collect();
        tracked.retain(|name, (_, watch)| {
            let stays = names.contains(name);
            if !stays {
                watch.abort();
            }
            stays
        });
        for one in found {
            let name = key(&one.resource);
            if tracked.contains_key(&name) {
                continue;
            }
            let (listeners, resource) = (Arc::clone(&self.listeners), one.resource.clone());
            one.mirror.on_change(move |change| {
                let listeners = listeners.read().unwrap_or_else(PoisonError::into_inner);
                listeners.iter().for_each(|listener| listener(&resource, change));
            });
            if one.resource.plural == "customresourcedefinitions" {
                let look = Arc::clone(&self.look);
                one.mirror.on_change(move |_| look.notify_one());
            }
            let api: Api<Meta> = Api::all_with(self.client.clone(), &one.resource);
            let mirror = Arc::clone(&one.mirror);
            let watch = watches.spawn(async move {
                let events = watcher(api, watcher::Config::default()).default_backoff();
                mirror.follow(events).await;
            });
            tracked.insert(name, (one, watch));
        }
    }

    pub(crate) fn api(&self, kind: &TrackedKind, namespace: &str) -> Api<DynamicObject> {
        if kind.namespaced {
            Api::namespaced_with(self.client.clone(), namespace, &kind.resource)
        } else {
            Api::all_with(self.client.clone(), &kind.resource)
        }
    }
}
