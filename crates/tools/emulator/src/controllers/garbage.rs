//! Garbage collection over all kinds: background, foreground and orphaning deletion.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ApiResource, Patch, PatchParams, PropagationPolicy};
use kube::{Resource as _, ResourceExt as _};
use serde_json::json;

use crate::key::{Key, delete_this, has_finalizer, is_conflict, uid, unless_gone};
use crate::mirror::Change;
use crate::queue::{Queue, Requeue};

use super::kinds::{Kinds, Meta};

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

#[derive(Clone, Debug)]
struct Item {
    api_version: String,
    kind: String,
    meta: Arc<Meta>,
}

impl Item {
    fn owners(&self) -> &[OwnerReference] {
        self.meta.metadata.owner_references.as_deref().unwrap_or_default()
    }

    fn is_deleting(&self) -> bool {
        self.meta.metadata.deletion_timestamp.is_some()
    }

    fn waits_for_dependents(&self) -> bool {
        self.is_deleting() && has_finalizer(&self.meta.metadata, FOREGROUND)
    }
}

#[derive(Debug, Default)]
pub(super) struct Graph {
    items: HashMap<String, Item>,
    dependents: HashMap<String, HashSet<String>>,
    /// Owners that do not exist. UIDs are never reused.
    absent: HashSet<String>,
}

#[derive(Debug, PartialEq)]
enum GarbageAction {
    Nothing,
    LookFor(Vec<OwnerReference>),
    Disown(Vec<String>),
    Delete(PropagationPolicy),
    /// All dependents are gone: remove this finalizer.
    Finish(&'static str),
    Orphan(Vec<String>),
    /// Wait for these dependents.
    Await(Vec<String>),
}

impl Graph {
    fn put(&mut self, item: Item) {
        let id = uid(&item.meta.metadata).to_owned();
        self.unlink(&id);
        for owner in item.owners() {
            self.dependents.entry(owner.uid.clone()).or_default().insert(id.clone());
        }
        self.items.insert(id, item);
    }

    fn unlink(&mut self, id: &str) {
        let owners = self.items.get(id).map(|item| item.owners().to_vec()).unwrap_or_default();
        for owner in owners {
            if let Some(dependents) = self.dependents.get_mut(&owner.uid) {
                dependents.remove(id);
                if dependents.is_empty() {
                    self.dependents.remove(&owner.uid);
                    // No object refers to it any more.
                    self.absent.remove(&owner.uid);
                }
            }
        }
    }

    fn remove(&mut self, id: &str) {
        self.unlink(id);
        self.items.remove(id);
    }

    fn dependents(&self, id: &str) -> impl Iterator<Item = (&String, &Item)> {
        let ids = self.dependents.get(id).into_iter().flatten();
        ids.filter_map(|id| self.items.get_key_value(id))
    }

    fn blocking(&self, id: &str) -> Vec<String> {
        let blocks = |item: &Item| {
            let mut own = item.owners().iter().filter(|owner| owner.uid == id);
            own.any(|owner| owner.block_owner_deletion == Some(true))
        };
        self.dependents(id).filter(|(_, item)| blocks(item)).map(|(id, _)| id.clone()).collect()
    }

    fn judge(&self, id: &str) -> GarbageAction {
        let Some(item) = self.items.get(id) else { return GarbageAction::Nothing };
        let meta = &item.meta.metadata;
        if item.is_deleting() && has_finalizer(meta, ORPHAN) {
            return GarbageAction::Orphan(self.dependents(id).map(|(id, _)| id.clone()).collect());
        }
        if item.waits_for_dependents() {
            let blocking = self.blocking(id);
            return if blocking.is_empty() {
                GarbageAction::Finish(FOREGROUND)
            } else {
                GarbageAction::Await(blocking)
            };
        }
        if item.owners().is_empty() || item.is_deleting() {
            return GarbageAction::Nothing;
        }
        let (mut solid, mut waiting, mut dangling, mut unknown) = (false, vec![], vec![], vec![]);
        for owner in item.owners() {
            match self.items.get(&owner.uid) {
                Some(found) if found.waits_for_dependents() => waiting.push(owner.uid.clone()),
                Some(_) => solid = true,
                None if self.absent.contains(&owner.uid) => dangling.push(owner.uid.clone()),
                None => unknown.push(owner.clone()),
            }
        }
        if !unknown.is_empty() {
            return GarbageAction::LookFor(unknown);
        }
        match (solid, waiting.is_empty(), dangling.is_empty()) {
            (true, true, true) => GarbageAction::Nothing,
            (true, ..) => GarbageAction::Disown(waiting.into_iter().chain(dangling).collect()),
            (false, false, _) if self.dependents(id).next().is_some() => {
                GarbageAction::Delete(PropagationPolicy::Foreground)
            }
            (false, ..) if has_finalizer(meta, FOREGROUND) => {
                GarbageAction::Delete(PropagationPolicy::Foreground)
            }
            (false, ..) if has_finalizer(meta, ORPHAN) => {
                GarbageAction::Delete(PropagationPolicy::Orphan)
            }
            (false, ..) => GarbageAction::Delete(PropagationPolicy::Background),
        }
    }
}

#[derive(Clone)]
pub(super) struct Garbage {
    kinds: Arc<Kinds>,
    graph: Arc<Mutex<Graph>>,
    queue: Queue,
}

impl Garbage {
    pub(super) fn wire(kinds: &Arc<Kinds>, queue: &Queue) -> Self {
        let graph: Arc<Mutex<Graph>> = Arc::default();
        let garbage = Self { kinds: Arc::clone(kinds), graph, queue: queue.clone() };
        let heard = garbage.clone();
        kinds.on_change(move |resource, change| heard.hear(resource, change));
        garbage
    }

    fn graph(&self) -> MutexGuard<'_, Graph> {
        self.graph.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, resource: &ApiResource, change: &Change<Meta>) {
        let mut graph = self.graph();
        let old = change.old.as_ref().map(|old| uid(&old.metadata).to_owned());
        let new = change.new.as_ref().map(|new| uid(&new.metadata).to_owned());
        let mut look = Vec::new();
        if let Some(old) = old.as_ref().filter(|_| old != new) {
            look.extend(graph.dependents(old).map(|(id, _)| id.clone()));
            graph.remove(old);
            if !look.is_empty() {
                graph.absent.insert(old.clone());
            }
        }
        let owners = change.both().flat_map(|one| one.metadata.owner_references.iter().flatten());
        let waiting = |owner: &&OwnerReference| {
            graph.items.get(&owner.uid).is_some_and(Item::waits_for_dependents)
        };
        look.extend(owners.filter(waiting).map(|owner| owner.uid.clone()));
        if let (Some(meta), Some(id)) = (&change.new, new) {
            let matters = |meta: &Meta| {
                let meta = &meta.metadata;
                let deleting = meta.deletion_timestamp.is_some();
                (meta.owner_references.clone(), deleting, meta.finalizers.clone())
            };
            let changed = change.old.as_ref().is_none_or(|old| matters(old) != matters(meta));
            let item = Item {
                api_version: resource.api_version.clone(),
                kind: resource.kind.clone(),
                meta: Arc::clone(meta),
            };
            let interesting = !item.owners().is_empty() || item.is_deleting();
            graph.put(item);
            if changed && interesting {
                look.push(id);
            }
        }
        look.into_iter().for_each(|id| self.queue.add(Key::new("", id)));
    }

    pub(super) async fn reconcile(&self, key: Key) -> Result<Requeue, kube::Error> {
        let id = key.name;
        let verdict = self.graph().judge(&id);
        let item = self.graph().items.get(&id).cloned();
        let Some(item) = item else { return Ok(None) };
        match verdict {
            GarbageAction::Nothing => {}
            GarbageAction::LookFor(owners) => {
                for owner in owners {
                    self.look_for(&item, &owner).await?;
                }
                self.queue.add(Key::new("", id));
            }
            GarbageAction::Disown(owners) => self.disown(&item, &owners).await?,
            GarbageAction::Delete(policy) => self.delete(&item, policy).await?,
            GarbageAction::Finish(finalizer) => self.finish(&item, finalizer).await?,
            GarbageAction::Orphan(dependents) => {
                for dependent in dependents {
                    let dependent = self.graph().items.get(&dependent).cloned();
                    if let Some(dependent) = dependent {
                        self.disown(&dependent, std::slice::from_ref(&id)).await?;
                    }
                }
                self.finish(&item, ORPHAN).await?;
            }
            GarbageAction::Await(blocking) => {
                blocking.into_iter().for_each(|id| self.queue.add(Key::new("", id)));
            }
        }
        Ok(None)
    }

    /// Asks the API server whether an owner exists that no watch has brought.
    async fn look_for(&self, item: &Item, owner: &OwnerReference) -> Result<(), kube::Error> {
        let Some(kind) = self.kinds.find(&owner.api_version, &owner.kind) else {
            // The kind is unknown, perhaps not discovered yet: delete nothing.
            let object = item.meta.name_any();
            tracing::debug!(object, kind = owner.kind, "an owner is of an unknown kind");
            return Err(kube::Error::Service("an owner is of an unknown kind".into()));
        };
        let namespace = item.meta.metadata.namespace.as_deref().unwrap_or_default();
        let found = self.kinds.api(&kind, namespace).get_metadata_opt(&owner.name).await?;
        match found.filter(|found| found.metadata.uid.as_ref() == Some(&owner.uid)) {
            Some(found) => {
                let resource = &kind.resource;
                let (api_version, kind) = (resource.api_version.clone(), resource.kind.clone());
                self.graph().put(Item { api_version, kind, meta: Arc::new(found) });
            }
            None => {
                self.graph().absent.insert(owner.uid.clone());
            }
        }
        Ok(())
    }

    async fn disown(&self, item: &Item, owners: &[String]) -> Result<(), kube::Error> {
        let left: Vec<&OwnerReference> =
            item.owners().iter().filter(|owner| !owners.contains(&owner.uid)).collect();
        self.patch(item, json!({ "ownerReferences": left })).await
    }

    async fn finish(&self, item: &Item, finalizer: &str) -> Result<(), kube::Error> {
        let all = item.meta.metadata.finalizers.iter().flatten();
        let left: Vec<&String> = all.filter(|one| *one != finalizer).collect();
        self.patch(item, json!({ "finalizers": left })).await
    }

    async fn patch(&self, item: &Item, mut change: serde_json::Value) -> Result<(), kube::Error> {
        let Some(kind) = self.kinds.find(&item.api_version, &item.kind) else { return Ok(()) };
        let meta = item.meta.meta();
        change["uid"] = json!(meta.uid);
        change["resourceVersion"] = json!(meta.resource_version);
        let change = json!({ "metadata": change });
        let api = self.kinds.api(&kind, meta.namespace.as_deref().unwrap_or_default());
        let patch = Patch::Merge(&change);
        let done = api.patch_metadata(&item.meta.name_any(), &PatchParams::default(), &patch).await;
        match done {
            Err(error) if is_conflict(&error) => Err(error),
            answer => unless_gone(answer).map(|_| ()),
        }
    }

    async fn delete(&self, item: &Item, policy: PropagationPolicy) -> Result<(), kube::Error> {
        let Some(kind) = self.kinds.find(&item.api_version, &item.kind) else { return Ok(()) };
        let meta = item.meta.meta();
        let mut how = delete_this(meta);
        how.propagation_policy = Some(policy);
        let api = self.kinds.api(&kind, meta.namespace.as_deref().unwrap_or_default());
        unless_gone(api.delete(&item.meta.name_any(), &how).await).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::from_value;

    fn item(name: &str, owners: &[(&str, bool)], finalizers: &[&str], deleting: bool) -> Item {
        let owners: Vec<_> = owners
            .iter()
            .map(|(owner, blocks)| {
                json!({ "apiVersion": "v1", "kind": "Thing", "name": owner, "uid": owner,
                        "blockOwnerDeletion": blocks })
            })
            .collect();
        let stamp = deleting.then_some("2026-01-01T00:00:00Z");
        let meta = from_value(json!({ "metadata": {
            "name": name, "uid": name, "ownerReferences": owners, "finalizers": finalizers,
            "deletionTimestamp": stamp,
        } }));
        let (api_version, kind) = ("v1".to_owned(), "Thing".to_owned());
        Item { api_version, kind, meta: Arc::new(meta.unwrap()) }
    }

    fn graph(items: &[Item]) -> Graph {
        let mut graph = Graph::default();
        items.iter().for_each(|item| graph.put(item.clone()));
        graph
    }

    #[test]
    fn who_has_no_owner_left_goes_and_who_has_one_stays() {
        let mut graph = graph(&[
            item("owner", &[], &[], false),
            item("child", &[("owner", true)], &[], false),
            item("shared", &[("owner", true), ("gone", true)], &[], false),
        ]);
        assert_eq!(graph.judge("child"), GarbageAction::Nothing);
        assert!(
            matches!(graph.judge("shared"), GarbageAction::LookFor(owners) if owners[0].uid == "gone")
        );
        graph.absent.insert("gone".to_owned());
        assert_eq!(graph.judge("shared"), GarbageAction::Disown(vec!["gone".to_owned()]));
        graph.remove("owner");
        graph.absent.insert("owner".to_owned());
        assert_eq!(graph.judge("child"), GarbageAction::Delete(PropagationPolicy::Background));
        assert_eq!(graph.judge("shared"), GarbageAction::Delete(PropagationPolicy::Background));
    }

    #[test]
    fn in_the_foreground_an_owner_waits_for_those_who_block_it() {
        let mut graph = graph(&[
            item("owner", &[], &[FOREGROUND], true),
            item("child", &[("owner", true)], &[], false),
            item("free", &[("owner", false)], &[], false),
            item("grandchild", &[("child", true)], &[], false),
        ]);
        assert_eq!(graph.judge("owner"), GarbageAction::Await(vec!["child".to_owned()]));
        assert_eq!(graph.judge("child"), GarbageAction::Delete(PropagationPolicy::Foreground));
        assert_eq!(graph.judge("free"), GarbageAction::Delete(PropagationPolicy::Background));
        graph.remove("child");
        assert_eq!(graph.judge("owner"), GarbageAction::Finish(FOREGROUND));
    }

    #[test]
    fn orphans_are_let_go_first() {
        let graph = graph(&[
            item("owner", &[], &[ORPHAN], true),
            item("child", &[("owner", true)], &[], false),
        ]);
        assert_eq!(graph.judge("owner"), GarbageAction::Orphan(vec!["child".to_owned()]));
        assert_eq!(graph.judge("child"), GarbageAction::Nothing);
    }
}
