//! Watches of the webhook: one for each kind that rules read. Every replica answers reviews, so each watches whether
//! it leads or not.

use std::time::Duration;

use futures::StreamExt as _;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use kube::runtime::watcher;
use kube::{Client, ResourceExt as _};
use serde_json::Value;
use tokio::sync::mpsc;

use super::feed::ContextFeed;

/// Group, version, kind and plural.
const KINDS: [(&str, &str, &str, &str); 9] = [
    ("", "v1", "Namespace", "namespaces"),
    ("", "v1", "Node", "nodes"),
    ("", "v1", "LimitRange", "limitranges"),
    ("", "v1", "ResourceQuota", "resourcequotas"),
    ("", "v1", "Service", "services"),
    ("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    ("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses"),
    ("topology.node.k8s.io", "v1alpha2", "NodeResourceTopology", "noderesourcetopologies"),
    ("karpenter.sh", "v1", "NodePool", "nodepools"),
];

/// Delay after a failed watch, or for a kind that the API server does not serve.
const RETRY: Duration = Duration::from_secs(5);

/// Watches forever. `listed` is called once, when all kinds have been listed.
pub async fn follow(client: Client, feed: ContextFeed, listed: impl FnOnce() + Send) {
    let (unlisted, mut all_listed) = mpsc::channel::<()>(1);
    let watches = KINDS.map(|(group, version, kind, plural)| {
        let kind_of = GroupVersionKind::gvk(group, version, kind);
        let resource = ApiResource::from_gvk_with_plural(&kind_of, plural);
        let api = Api::all_with(client.clone(), &resource);
        let header = [resource.api_version.clone(), kind.to_owned()];
        follow_one(api, header, feed.clone(), unlisted.clone())
    });
    drop(unlisted);
    let filled = async {
        // Nobody sends anything: it is over when each of them has let go.
        all_listed.recv().await;
        feed.refresh();
        listed();
    };
    futures::join!(futures::future::join_all(watches), feed.keep_fresh(), filled);
}

/// `unlisted` is let go of when the kind has been listed, or cannot be.
async fn follow_one(
    api: Api<DynamicObject>,
    [version, kind]: [String; 2],
    feed: ContextFeed,
    unlisted: mpsc::Sender<()>,
) {
    let mut unlisted = Some(unlisted);
    let json = |object: &DynamicObject| {
        let mut json = serde_json::to_value(object).unwrap_or_default();
        // Items of a list do not say what they are.
        json["apiVersion"] = Value::String(version.clone());
        json["kind"] = Value::String(kind.clone());
        json
    };
    let mut listed = Vec::new();
    let mut events = watcher(api, watcher::Config::default()).boxed();
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Init) => listed.clear(),
            Ok(watcher::Event::InitApply(object)) => listed.push(json(&object)),
            Ok(watcher::Event::InitDone) => {
                feed.replace(&kind, std::mem::take(&mut listed));
                drop(unlisted.take());
            }
            Ok(watcher::Event::Apply(object)) => {
                if let Err(error) = feed.put(json(&object)) {
                    tracing::warn!(%error, "cannot read object; the webhook ignores it");
                }
            }
            Ok(watcher::Event::Delete(object)) => {
                let namespace = object.namespace().unwrap_or_default();
                feed.remove(&kind, &namespace, &object.name_any());
            }
            // It goes on from where it was, or lists anew.
            Err(error) => {
                tracing::debug!(%error, kind, "a watch of the webhook failed");
                // Most clusters have not all kinds, and a webhook must not wait for them.
                drop(unlisted.take());
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}
