//! Repartitions the node's GPUs as its Node requests: by the annotation `berth.dev/mig-layout`, or else the label
//! `berth.dev/mig.config`. Failures are retried. Where NVIDIA's mig-manager runs, it is asked to do the work by its
//! label. The outcome is written to the Node.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use berth_host::{Diagnosis, Root};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::Value;
use tracing::{info, warn};

use crate::gpus::{GpuReading, GpuSource};
use crate::mig::manager::{self, MigOwner};
use crate::mig::{FileJournal, LayoutRequest, MigDriver, MigReport, MigState, Reach, Workloads};
use berth_api::keys::{MIG_CONFIG, MIG_LAYOUT, MIG_STATE};

/// Pause before a failed request is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// Opens a driver, on the thread that uses it.
pub type OpenDriver = Arc<dyn Fn() -> Result<Box<dyn MigDriver>, Diagnosis> + Send + Sync>;

#[derive(Clone)]
pub struct MigReconciler {
    /// Name of the Node.
    pub node: String,
    /// Where to find which GPUs pods hold.
    pub root: Root,
    /// Where to find processes on GPUs.
    pub gpus: GpuSource,
    pub driver: OpenDriver,
    /// File of the [`FileJournal`].
    pub journal: PathBuf,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NodeMetadata {
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

impl NodeMetadata {
    fn request(&self) -> Option<&str> {
        let written = self.annotations.get(MIG_LAYOUT).or_else(|| self.labels.get(MIG_CONFIG));
        written.map(|text| text.trim()).filter(|text| !text.is_empty())
    }
}

impl MigReconciler {
    /// Runs until `stopped`. A repartition in progress is finished first.
    pub async fn run(self, client: Client, stopped: impl Future<Output = ()>) {
        let nodes: Api<Node> = Api::all(client);
        let config = watcher::Config::default().fields(&format!("metadata.name={}", self.node));
        let mut events = watcher(nodes.clone(), config).default_backoff().boxed();
        let mut stopped = std::pin::pin!(stopped);
        let mut node = NodeMetadata::default();
        let mut applied: Option<String> = None;
        loop {
            tokio::select! {
                () = &mut stopped => return,
                event = events.next() => match event {
                    Some(Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object))) => {
                        node = NodeMetadata {
                            labels: object.metadata.labels.unwrap_or_default(),
                            annotations: object.metadata.annotations.unwrap_or_default(),
                        };
                    }
                    Some(Err(error)) => {
                        warn!(%error, "watch of the Node failed; restarting it");
                        continue;
                    }
                    Some(Ok(_)) => continue,
                    None => return,
                },
                () = tokio::time::sleep(RETRY_INTERVAL) => {}
            }
            let Some(request) = node.request().filter(|text| applied.as_deref() != Some(*text))
            else {
                continue;
            };
            match self.reconcile(&nodes, &node, request).await {
                Ok(true) => applied = Some(request.to_owned()),
                Ok(false) => {}
                Err(error) => warn!(%error, "cannot write the MIG state to the Node"),
            }
        }
    }

    /// Returns whether the GPUs have the requested layout.
    async fn reconcile(
        &self,
        nodes: &Api<Node>,
        node: &NodeMetadata,
        request: &str,
    ) -> kube::Result<bool> {
        let failed = |reason: String| MigState::Failed { reason, present: None };
        let request = match LayoutRequest::parse(request) {
            Ok(request) => request,
            Err(error) => return self.report(nodes, node, &failed(error.to_string())).await,
        };
        if manager::owner(&node.labels) == MigOwner::Manager {
            return match manager::patch(&request, &node.labels) {
                Ok(Some(patch)) => self.patch(nodes, &patch).await.map(|()| false),
                Ok(None) => Ok(false),
                Err(error) => self.report(nodes, node, &failed(error.to_string())).await,
            };
        }
        let this = self.clone();
        let state = tokio::task::spawn_blocking(move || this.repartition(&request)).await;
        let state = state.unwrap_or_else(|error| failed(error.to_string()));
        self.report(nodes, node, &state).await
    }

    fn repartition(&self, request: &LayoutRequest) -> MigState {
        let mut driver = match (self.driver)() {
            Ok(driver) => driver,
            Err(diagnosis) => {
                return MigState::Failed { reason: diagnosis.to_string(), present: None };
            }
        };
        let workloads = Workloads::on_machine(&self.root, &GpuReading::read(&self.gpus));
        let mut journal = FileJournal::new(&self.journal);
        match MigReport::apply(&mut *driver, &mut journal, request, &workloads, Reach::IdleGpus) {
            Ok(report) => report.state,
            Err(error) => match driver.gpus() {
                Ok(gpus) => MigState::RolledBack {
                    reason: error.to_string(),
                    present: gpus.iter().map(|gpu| gpu.layout()).collect(),
                },
                Err(_) => MigState::Failed { reason: error.to_string(), present: None },
            },
        }
    }

    /// Writes the state to the Node, unless it is there. Returns whether the layout was applied.
    async fn report(
        &self,
        nodes: &Api<Node>,
        node: &NodeMetadata,
        state: &MigState,
    ) -> kube::Result<bool> {
        let patch = state.patch();
        let new = patch.pointer("/metadata/annotations").and_then(|all| all.get(MIG_STATE));
        let known = node.annotations.get(MIG_STATE);
        if new.and_then(Value::as_str) != known.map(String::as_str) {
            info!(%state, "MIG layout reconciled");
            self.patch(nodes, &patch).await?;
        }
        Ok(matches!(state, MigState::Applied { .. }))
    }

    async fn patch(&self, nodes: &Api<Node>, patch: &Value) -> kube::Result<()> {
        nodes.patch_metadata(&self.node, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }
}
