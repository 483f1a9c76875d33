//! Bindings of a previous leader that may still be under way.
//!
//! Owns making sure that they land before we look, or never. A binding insists on the pod's version, so
//! a touch of the pod is enough. Must not know who led.

use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use kube::Client;
use kube::api::{Api, ListParams};
use tracing::warn;

use super::requests;
use crate::lease::PodRef;
use crate::watch::SchedulerNames;

const AGAIN: Duration = Duration::from_millis(500);

/// So many pods are listed at a time.
const PAGE: u32 = 500;

/// Touches a pod unless it has a node or is gone; tries until that is certain.
pub(crate) async fn fence(client: &Client, pod: &PodRef, by: &str) {
    let api: Api<core::Pod> = Api::namespaced(client.clone(), &pod.namespace);
    loop {
        let has_node =
            |found: &core::Pod| found.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        let is_other = |found: &core::Pod| found.metadata.uid.as_deref() != Some(&*pod.uid);
        match api.get_opt(&pod.name).await {
            Ok(None) => return,
            Ok(Some(found)) if is_other(&found) => return,
            Ok(Some(found)) if has_node(&found) => return,
            Ok(Some(_)) => match client.request_text(requests::fence(pod, by)).await {
                Ok(_) => return,
                // It is gone, or another one.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(error) => warn!(pod = %pod.name, %error, "a pod cannot be fenced yet"),
            },
            Err(error) => warn!(pod = %pod.name, %error, "a pod cannot be looked at yet"),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Every pod of ours that has no node.
pub(crate) async fn waiting(client: &Client, names: &SchedulerNames) -> Vec<PodRef> {
    let mut found = Vec::new();
    for name in names.iter() {
        found.append(&mut waiting_for(client, name).await);
    }
    found
}

async fn waiting_for(client: &Client, scheduler_name: &str) -> Vec<PodRef> {
    let api: Api<core::Pod> = Api::all(client.clone());
    let selector = format!("spec.nodeName=,spec.schedulerName={scheduler_name}");
    let mut found = Vec::new();
    let mut page = ListParams::default().fields(&selector).limit(PAGE);
    loop {
        match api.list(&page).await {
            Ok(list) => {
                let reference = |pod: core::Pod| {
                    let meta = pod.metadata;
                    Some(PodRef {
                        namespace: meta.namespace?.into(),
                        name: meta.name?.into(),
                        uid: meta.uid?.into(),
                    })
                };
                found.extend(list.items.into_iter().filter_map(reference));
                match list.metadata.continue_.filter(|token| !token.is_empty()) {
                    Some(token) => page = page.continue_token(&token),
                    None => return found,
                }
            }
            Err(error) => {
                warn!(%error, "the pods that wait cannot be listed yet");
                // From the beginning: what the token stood for may have expired.
                found.clear();
                page = ListParams::default().fields(&selector).limit(PAGE);
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}
