//! Requests of controllers to the API server.
//!
//! The answer to every write goes into the mirrors at once, before the watch brings it.

use std::sync::Arc;

use futures::{StreamExt as _, stream};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::Serialize;
use serde_json::json;

use crate::clock::Clock;
use crate::events::{Note, Recorder};
use crate::key::{Key, delete_this, error_message, name, namespace, uid, unless_gone};
use crate::mirror::{Kind, Mirror};
use crate::views::Views;

/// Concurrent requests of one reconcile pass.
const REQUESTS_AT_ONCE: usize = 16;

#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) clock: Clock,
    pub(crate) views: Arc<Views>,
    pub(crate) events: Recorder,
}

impl Context {
    pub(crate) fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub(crate) async fn create<K>(&self, mirror: &Mirror<K>, object: &K) -> Result<K, kube::Error>
    where
        K: Kind + Serialize + kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        let api = self.api::<K>(namespace(object.meta()));
        let created = api.create(&PostParams::default(), object).await?;
        mirror.observe(created.clone());
        Ok(created)
    }

    /// Deletes the object with this UID.
    pub(crate) async fn delete<K>(&self, mirror: &Mirror<K>, object: &K) -> Result<(), kube::Error>
    where
        K: Kind + kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        self.delete_with(mirror, object, &delete_this(object.meta())).await
    }

    pub(crate) async fn delete_with<K>(
        &self,
        mirror: &Mirror<K>,
        object: &K,
        how: &DeleteParams,
    ) -> Result<(), kube::Error>
    where
        K: Kind + kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        let meta = object.meta();
        let api = self.api::<K>(namespace(meta));
        match unless_gone(api.delete(name(meta), how).await)?.and_then(|answer| answer.left()) {
            Some(mut going) => {
                let at = going.meta().deletion_timestamp.clone();
                going.meta_mut().deletion_timestamp = at.or_else(|| Some(self.clock.time()));
                mirror.observe(going);
            }
            None => mirror.observe_gone(&Key::of(meta), uid(meta)),
        }
        Ok(())
    }

    /// Replaces the status; fails if the object has changed since it was read.
    pub(crate) async fn write_status<K>(
        &self,
        mirror: &Mirror<K>,
        object: &K,
    ) -> Result<K, kube::Error>
    where
        K: Kind + Serialize + kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        let api = self.api::<K>(namespace(object.meta()));
        let written =
            api.replace_status(name(object.meta()), &PostParams::default(), object).await?;
        mirror.observe(written.clone());
        Ok(written)
    }

    /// Replaces an object; fails if it has changed since it was read.
    pub(crate) async fn replace<K>(&self, mirror: &Mirror<K>, object: &K) -> Result<K, kube::Error>
    where
        K: Kind + Serialize + kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        let api = self.api::<K>(namespace(object.meta()));
        let written = api.replace(name(object.meta()), &PostParams::default(), object).await?;
        mirror.observe(written.clone());
        Ok(written)
    }

    /// Sets the controller of an object, or removes the former one (`Err(uid)`).
    pub(crate) async fn own<K>(
        &self,
        mirror: &Mirror<K>,
        object: &K,
        owner: Result<OwnerReference, &str>,
    ) -> Result<(), kube::Error>
    where
        K: Kind + Serialize + kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        let meta = object.meta();
        let mut owners = meta.owner_references.clone().unwrap_or_default();
        match owner {
            Ok(owner) => {
                owners.retain(|one| one.uid != owner.uid);
                owners.push(owner);
            }
            Err(former) => owners.retain(|one| one.uid != former),
        }
        let change = json!({ "metadata": {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "ownerReferences": owners,
        }});
        let api = self.api::<K>(namespace(meta));
        let patch = Patch::Merge(&change);
        let patched = api.patch(name(meta), &PatchParams::default(), &patch).await;
        if let Some(patched) = unless_gone(patched)? {
            mirror.observe(patched);
        }
        Ok(())
    }

    /// Creates pods of an owner in batches that double, and stops at the first failure, so that a full
    /// quota is not asked a thousand times.
    pub(crate) async fn create_pods<K>(
        &self,
        component: &'static str,
        owner: &K,
        pods: Vec<Pod>,
    ) -> Result<(), kube::Error>
    where
        K: kube::Resource<DynamicType = ()>,
    {
        let mut left = pods.into_iter();
        let mut batch = 1;
        loop {
            let now: Vec<Pod> = left.by_ref().take(batch).collect();
            if now.is_empty() {
                return Ok(());
            }
            each(&now, |pod| async {
                self.created(component, owner, self.create(&self.views.pods, pod).await)
            })
            .await?;
            batch = batch.saturating_mul(2);
        }
    }

    /// Records an Event about a pod that was to be created for its owner.
    pub(crate) fn created<K>(
        &self,
        component: &'static str,
        owner: &K,
        created: Result<Pod, kube::Error>,
    ) -> Result<(), kube::Error>
    where
        K: kube::Resource<DynamicType = ()>,
    {
        let note = match &created {
            Ok(pod) => {
                let text = format!("Created pod: {}", name(&pod.metadata));
                Note::normal("SuccessfulCreate", text)
            }
            Err(error) => {
                let text = format!("Error creating: {}", error_message(error));
                Note::warning("FailedCreate", text)
            }
        };
        self.events.record(component, owner, note);
        created.map(drop)
    }

    /// Deletes pods of an owner, all of them even if one fails.
    pub(crate) async fn delete_pods<K>(
        &self,
        component: &'static str,
        owner: &K,
        pods: &[Arc<Pod>],
    ) -> Result<(), kube::Error>
    where
        K: kube::Resource<DynamicType = ()>,
    {
        each(pods, |pod| async {
            let deleted = self.delete(&self.views.pods, pod.as_ref()).await;
            let note = match &deleted {
                Ok(()) => {
                    let text = format!("Deleted pod: {}", name(&pod.metadata));
                    Note::normal("SuccessfulDelete", text)
                }
                Err(error) => {
                    let text = format!("Error deleting: {}", error_message(error));
                    Note::warning("FailedDelete", text)
                }
            };
            self.events.record(component, owner, note);
            deleted
        })
        .await
    }

    pub(crate) async fn settle<K>(
        &self,
        mirror: &Mirror<K>,
        adopt: &[Arc<K>],
        release: &[Arc<K>],
        owner: &OwnerReference,
    ) -> Result<(), kube::Error>
    where
        K: Kind + Serialize + kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        each(adopt, |one| self.own(mirror, one.as_ref(), Ok(owner.clone()))).await?;
        each(release, |one| self.own(mirror, one.as_ref(), Err(&owner.uid))).await
    }
}

/// Runs the work for all items, a few at a time, even if some fail. Returns the first error.
pub(crate) async fn each<'a, T, Work, Done>(items: &'a [T], work: Work) -> Result<(), kube::Error>
where
    Work: Fn(&'a T) -> Done,
    Done: Future<Output = Result<(), kube::Error>>,
{
    let all: Vec<Done> = items.iter().map(work).collect();
    let done = stream::iter(all).buffer_unordered(REQUESTS_AT_ONCE);
    done.collect::<Vec<_>>().await.into_iter().collect()
}
