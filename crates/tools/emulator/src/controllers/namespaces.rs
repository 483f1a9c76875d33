//! Namespaces: deletion of their contents, and their `default` ServiceAccount.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};

use crate::key::{Key, is_already_exists, is_conflict, is_not_found, unless_gone};
use crate::queue::{Queue, Requeue};

use super::context::{Context, each};
use super::kinds::{Kinds, TrackedKind};

/// The finalizer that stands for a namespace's contents.
const CONTENTS: &str = "kubernetes";
/// How soon a namespace that is not empty yet is looked at again.
const SOON: Duration = Duration::from_millis(300);

pub(super) fn wire(context: &Context, queue: &Queue) {
    let to = queue.clone();
    context.views.namespaces.on_change(move |change| to.add(change.key.clone()));
}

pub(super) async fn reconcile(
    context: &Context,
    kinds: &Arc<Kinds>,
    key: Key,
) -> Result<Requeue, kube::Error> {
    let Some(namespace) = context.views.namespaces.get(&key) else { return Ok(None) };
    if namespace.metadata.deletion_timestamp.is_none() {
        return give_account(context, &key.name).await.map(|()| None);
    }
    let finalizers = namespace.spec.as_ref().and_then(|spec| spec.finalizers.as_ref());
    if finalizers.is_none_or(|list| !list.iter().any(|one| one == CONTENTS)) {
        return Ok(None);
    }
    let inside: Vec<TrackedKind> = kinds.all().into_iter().filter(|kind| kind.namespaced).collect();
    if inside.is_empty() {
        // Kinds are not discovered yet.
        return Ok(Some(SOON));
    }
    let known: Vec<TrackedKind> = inside
        .iter()
        .filter(|kind| !kind.mirror.in_namespace(&key.name).is_empty())
        .cloned()
        .collect();
    each(&known, |kind| empty(kinds, kind, &key.name)).await?;
    // Watches may lag, so ask the API server.
    for kind in &inside {
        let one = ListParams { limit: Some(1), ..ListParams::default() };
        let left = kinds.api(kind, &key.name).list_metadata(&one).await;
        match left {
            Ok(left) if left.items.is_empty() => {}
            Ok(_) => {
                empty(kinds, kind, &key.name).await?;
                return Ok(Some(SOON));
            }
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error),
        }
    }
    finalize(context, &namespace).await.map(|()| None)
}

async fn empty(kinds: &Kinds, kind: &TrackedKind, namespace: &str) -> Result<(), kube::Error> {
    let api = kinds.api(kind, namespace);
    let how = DeleteParams::background();
    if kind.deletes_collections {
        let done = api.delete_collection(&how, &ListParams::default()).await;
        return unless_gone(done).map(|_| ());
    }
    for object in kind.mirror.in_namespace(namespace) {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        unless_gone(api.delete(name, &how).await)?;
    }
    Ok(())
}

async fn finalize(context: &Context, namespace: &Namespace) -> Result<(), kube::Error> {
    let mut last = namespace.clone();
    let spec = last.spec.get_or_insert_default();
    spec.finalizers.get_or_insert_default().retain(|one| one != CONTENTS);
    let api: Api<Namespace> = Api::all(context.client.clone());
    let name = namespace.metadata.name.as_deref().unwrap_or_default();
    let done: Result<Namespace, _> =
        api.replace_subresource("finalize", name, &PostParams::default(), &last).await;
    match done {
        Err(error) if is_conflict(&error) => Err(error),
        answer => unless_gone(answer).map(|_| ()),
    }
}

async fn give_account(context: &Context, namespace: &str) -> Result<(), kube::Error> {
    let mut account = ServiceAccount::default();
    account.metadata.name = Some("default".to_owned());
    let api: Api<ServiceAccount> = context.api(namespace);
    if api.get_metadata_opt("default").await?.is_some() {
        return Ok(());
    }
    match api.create(&PostParams::default(), &account).await {
        // It exists, or the namespace is being deleted.
        Err(error) if is_already_exists(&error) => Ok(()),
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => Ok(()),
        answer => answer.map(|_| ()),
    }
}
