//! The cluster as the webhook knows it. Objects are kept as small as rules need them; what follows from them is
//! computed in the background after changes, and shared by all requests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use berth_contract::{Context, Object, ObjectError};
use serde_json::{Value, json};
use tokio::sync::Notify;

/// Minimum interval between two computations.
const PERIOD: Duration = Duration::from_secs(1);

pub struct Known {
    /// For the rules.
    pub(super) context: Context,
    pub(super) namespace_labels: BTreeMap<String, BTreeMap<String, String>>,
    /// The default PriorityClass.
    pub(super) default_priority_class: Option<String>,
}

/// Kind, namespace and name.
type Key = (String, String, String);

/// Clones share their state.
#[derive(Clone, Default)]
pub struct ContextFeed(Arc<Feed>);

struct Feed {
    objects: Mutex<BTreeMap<Key, Object>>,
    known: RwLock<Arc<Known>>,
    changed: Notify,
}

impl Default for Feed {
    fn default() -> Self {
        let known = RwLock::new(Arc::new(known([].into_iter())));
        Self { objects: Mutex::default(), known, changed: Notify::new() }
    }
}

impl ContextFeed {
    pub fn current(&self) -> Arc<Known> {
        self.0.known.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn put(&self, object: Value) -> Result<(), ObjectError> {
        let object = Object::new(essence(object))?;
        let reference = &object.reference;
        let namespace = reference.namespace.clone().unwrap_or_default();
        let key = (reference.kind.clone(), namespace, reference.name.clone());
        let mut objects = self.0.objects.lock().unwrap_or_else(PoisonError::into_inner);
        if objects.get(&key).is_some_and(|old| old.json == object.json) {
            return Ok(());
        }
        objects.insert(key, object);
        drop(objects);
        self.0.changed.notify_one();
        Ok(())
    }

    pub fn remove(&self, kind: &str, namespace: &str, name: &str) {
        let key = (kind.to_owned(), namespace.to_owned(), name.to_owned());
        let mut objects = self.0.objects.lock().unwrap_or_else(PoisonError::into_inner);
        if objects.remove(&key).is_some() {
            drop(objects);
            self.0.changed.notify_one();
        }
    }

    /// Replaces all objects of a kind.
    pub fn replace(&self, kind: &str, all: Vec<Value>) {
        let name = |object: &Value, field: &str| {
            let text = object.pointer(field).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        let kept: std::collections::BTreeSet<Key> = all
            .iter()
            .map(|one| {
                let [namespace, name] =
                    ["/metadata/namespace", "/metadata/name"].map(|field| name(one, field));
                (kind.to_owned(), namespace, name)
            })
            .collect();
        let mut objects = self.0.objects.lock().unwrap_or_else(PoisonError::into_inner);
        let before = objects.len();
        objects.retain(|key, _| key.0 != kind || kept.contains(key));
        let has_less = objects.len() < before;
        drop(objects);
        if has_less {
            self.0.changed.notify_one();
        }
        for object in all {
            if let Err(error) = self.put(object) {
                tracing::warn!(%error, "cannot read object; the webhook ignores it");
            }
        }
    }

    pub fn refresh(&self) {
        let objects = self.0.objects.lock().unwrap_or_else(PoisonError::into_inner);
        let objects: Vec<Object> = objects.values().cloned().collect();
        let made = Arc::new(known(objects.iter()));
        *self.0.known.write().unwrap_or_else(PoisonError::into_inner) = made;
    }

    /// Computes after every change, forever.
    pub async fn keep_fresh(&self) {
        loop {
            self.0.changed.notified().await;
            // More is likely to come with it.
            tokio::time::sleep(PERIOD).await;
            let feed = self.clone();
            if tokio::task::spawn_blocking(move || feed.refresh()).await.is_err() {
                tracing::error!("could not refresh the webhook's cache; using the previous one");
            }
        }
    }
}

fn known<'a>(objects: impl Iterator<Item = &'a Object> + Clone) -> Known {
    let mut namespace_labels = BTreeMap::new();
    let mut default_priority_class = None;
    for object in objects.clone() {
        match object.reference.kind.as_str() {
            "Namespace" => {
                let labels = object.json.pointer("/metadata/labels").cloned().unwrap_or_default();
                let labels = serde_json::from_value(labels).unwrap_or_default();
                namespace_labels.insert(object.reference.name.clone(), labels);
            }
            "PriorityClass" if object.json["globalDefault"] == true => {
                default_priority_class = Some(object.reference.name.clone());
            }
            _ => {}
        }
    }
    let context = Context::new(objects, |text| serde_json::from_str(text).ok());
    Known { context, namespace_labels, default_priority_class }
}

/// The fields that rules read. The others are large or change constantly.
fn essence(mut object: Value) -> Value {
    let is_node = object["kind"] == "Node";
    let allocatable = object.pointer_mut("/status/allocatable").map(Value::take);
    let Some(map) = object.as_object_mut() else { return object };
    map.remove("status");
    if let Some(metadata) = map.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|key, _| matches!(key.as_str(), "name" | "namespace" | "labels"));
    }
    if is_node {
        map.insert("status".to_owned(), json!({ "allocatable": allocatable }));
        if let Some(spec) = map.get_mut("spec").and_then(Value::as_object_mut) {
            spec.retain(|key, _| matches!(key.as_str(), "taints" | "unschedulable"));
        }
    }
    object
}
