//! Who was bound, and when, as a watch of pods tells.
//!
//! Owns that watch. It reads protobuf, as the controllers and kubelets of a cluster do: the API server writes
//! an event once for all who read it so, and whoever measures should cost little. Must not know who binds.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use berth_api::keys::PLACEMENT;
use berth_protobuf::{Failure, MEDIA_TYPE, WatchEvent, from_message};
use bytes::{Buf as _, BytesMut};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1 as core;
use kube::Client;
use kube::api::{Api, ListParams};
use kube::client::Body;
use serde::Deserialize;

use super::process::Usage;
use super::{Bound, work};

/// Without a new binding for so long it is over.
pub(super) const SILENCE: Duration = Duration::from_secs(8);

/// What was seen of bindings.
pub(super) struct Watched {
    /// In the order in which they were bound.
    pub(super) bound: Vec<Bound>,
    pub(super) first: Instant,
    pub(super) last: Instant,
    /// CPU of the API from the first binding on.
    pub(super) server_ms: Option<f64>,
}

/// A watch of the pods from now on.
pub(super) struct Watch {
    client: Client,
    /// What was seen last.
    version: String,
    body: Body,
    held: BytesMut,
}

impl Watch {
    pub(super) async fn start(client: &Client) -> Result<Self> {
        let pods: Api<core::Pod> = Api::namespaced(client.clone(), work::NAMESPACE);
        let now = pods.list(&ListParams::default().limit(1)).await?.metadata.resource_version;
        let version = now.context("the list of pods has no version")?;
        let body = events_after(client, &version).await?;
        Ok(Self { client: client.clone(), version, body, held: BytesMut::new() })
    }

    /// Looks on until so many are bound, or no more are.
    pub(super) async fn bindings(mut self, pods: usize, servers: &[u32]) -> Result<Watched> {
        let mut seen = HashSet::new();
        let mut bound: Vec<Bound> = Vec::new();
        let (mut first, mut last) = (Instant::now(), Instant::now());
        let mut before = None;
        while bound.len() < pods
            && let Ok(came) = tokio::time::timeout(SILENCE, self.bound()).await
        {
            for pod in came? {
                if !seen.insert(pod.pod.clone()) {
                    continue;
                }
                last = Instant::now();
                if bound.is_empty() {
                    first = last;
                    before = Usage::of_all(servers);
                }
                bound.push(pod);
            }
        }
        let server_ms =
            Usage::of_all(servers).zip(before).map(|(now, then)| now.since(&then).cpu_ms);
        Ok(Watched { bound, first, last, server_ms })
    }

    /// The next pods that are seen with a node, some of them again.
    pub(super) async fn bound(&mut self) -> Result<Vec<Bound>> {
        Ok(self.pods().await?.into_iter().filter_map(Pod::bound).collect())
    }

    /// The next pods of which something is told. The server ends a watch whose reader falls behind: it goes
    /// on where it ended.
    async fn pods(&mut self) -> Result<Vec<Pod>> {
        let mut pods = Vec::new();
        while pods.is_empty() {
            let Some(frame) = self.body.frame().await else {
                self.body = events_after(&self.client, &self.version).await?;
                self.held.clear();
                continue;
            };
            let Ok(data) = frame?.into_data() else { continue };
            self.held.extend_from_slice(&data);
            while let Some((event, end)) = WatchEvent::first(&self.held)? {
                let WatchEvent { what, object } = WatchEvent::read(event)?;
                if what == "ERROR" {
                    bail!("the watch of pods has failed: {}", Failure::read(object.raw)?.message);
                }
                let pod: Pod = from_message(object.raw)?;
                self.version.clone_from(&pod.metadata.resource_version);
                pods.push(pod);
                self.held.advance(end);
            }
        }
        Ok(pods)
    }
}

/// What happens to pods after a version.
async fn events_after(client: &Client, version: &str) -> Result<Body> {
    let path =
        format!("/api/v1/namespaces/{}/pods?watch=true&resourceVersion={version}", work::NAMESPACE);
    let request = http::Request::get(path)
        .header(http::header::ACCEPT, format!("{MEDIA_TYPE};stream=watch"))
        .body(Body::empty())?;
    let response = client.send(request).await?;
    if !response.status().is_success() {
        bail!("pods cannot be watched: {}", response.status());
    }
    Ok(response.into_body())
}

/// Of a pod, what is looked at. Types are known by their names, as Kubernetes has them.
#[derive(Deserialize)]
struct Pod {
    metadata: ObjectMeta,
    spec: PodSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ObjectMeta {
    name: String,
    resource_version: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    #[serde(default)]
    node_name: String,
}

impl Pod {
    fn bound(mut self) -> Option<Bound> {
        let placement = self.metadata.annotations.remove(PLACEMENT);
        let PodSpec { node_name: node } = self.spec;
        (!node.is_empty()).then_some(Bound { pod: self.metadata.name, node, placement })
    }
}
