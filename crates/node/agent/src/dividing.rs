//! Dividing the node's GPUs as its Node says.
//!
//! Owns when: what is wanted stands on the Node (annotation `berth.dev/mig-layout`, or label
//! `berth.dev/mig.config`); it is done when it changes, and tried again now and then while it could not be had. Where
//! NVIDIA's mig-manager runs, it is asked by its label instead. How it went stands on the Node. Must not know how
//! GPUs are divided.

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
use crate::mig::manager::{self, Who};
use crate::mig::{Busy, FileJournal, MigDriver, MigReport, MigState, Reach, Wish};
use berth_api::keys::{MIG_CONFIG, MIG_LAYOUT, MIG_STATE};

/// What could not be had is tried again after so long.
const AGAIN: Duration = Duration::from_secs(60);

/// Opens a driver, on the thread that uses it.
pub type OpenDriver = Arc<dyn Fn() -> Result<Box<dyn MigDriver>, Diagnosis> + Send + Sync>;

/// The node whose GPUs are divided.
#[derive(Clone)]
pub struct Dividing {
    /// Name of the Node.
    pub node: String,
    /// Its files, which tell which GPUs pods hold.
    pub root: Root,
    /// Its driver, which tells where processes run.
    pub gpus: GpuSource,
    /// Who divides.
    pub driver: OpenDriver,
    /// Where it is kept what is being done.
    pub journal: PathBuf,
}

/// What the Node says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Said {
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

impl Said {
    fn wish(&self) -> Option<&str> {
        let written = self.annotations.get(MIG_LAYOUT).or_else(|| self.labels.get(MIG_CONFIG));
        written.map(|text| text.trim()).filter(|text| !text.is_empty())
    }
}

impl Dividing {
    /// Divides GPUs as wanted until `stopped`. What is under way is finished first.
    pub async fn run(self, client: Client, stopped: impl Future<Output = ()>) {
        let nodes: Api<Node> = Api::all(client);
        let config = watcher::Config::default().fields(&format!("metadata.name={}", self.node));
        let mut events = watcher(nodes.clone(), config).default_backoff().boxed();
        let mut stopped = std::pin::pin!(stopped);
        let mut said = Said::default();
        // What GPUs are divided into, as it was wished for.
        let mut done: Option<String> = None;
        loop {
            tokio::select! {
                () = &mut stopped => return,
                event = events.next() => match event {
                    Some(Ok(watcher::Event::Apply(node) | watcher::Event::InitApply(node))) => {
                        said = Said {
                            labels: node.metadata.labels.unwrap_or_default(),
                            annotations: node.metadata.annotations.unwrap_or_default(),
                        };
                    }
                    Some(Err(error)) => {
                        warn!(%error, "the watch of the Node failed and starts again");
                        continue;
                    }
                    Some(Ok(_)) => continue,
                    None => return,
                },
                () = tokio::time::sleep(AGAIN) => {}
            }
            let Some(wish) = said.wish().filter(|wish| done.as_deref() != Some(*wish)) else {
                continue;
            };
            match self.see_to(&nodes, &said, wish).await {
                Ok(true) => done = Some(wish.to_owned()),
                Ok(false) => {}
                Err(error) => warn!(%error, "what became of the division is not written"),
            }
        }
    }

    /// Has done what is wished for; whether that is all.
    async fn see_to(&self, nodes: &Api<Node>, said: &Said, wish: &str) -> kube::Result<bool> {
        let failed = |reason: String| MigState::Failed { reason, present: None };
        let wish = match Wish::parse(wish) {
            Ok(wish) => wish,
            Err(error) => return self.tell(nodes, said, &failed(error.to_string())).await,
        };
        if manager::who(&said.labels) == Who::Manager {
            return match manager::patch(&wish, &said.labels) {
                Ok(Some(patch)) => self.patch(nodes, &patch).await.map(|()| false),
                Ok(None) => Ok(false),
                Err(error) => self.tell(nodes, said, &failed(error.to_string())).await,
            };
        }
        let this = self.clone();
        let divided = tokio::task::spawn_blocking(move || this.divide(&wish)).await;
        let state = divided.unwrap_or_else(|error| failed(error.to_string()));
        self.tell(nodes, said, &state).await
    }

    fn divide(&self, wish: &Wish) -> MigState {
        let mut driver = match (self.driver)() {
            Ok(driver) => driver,
            Err(diagnosis) => {
                return MigState::Failed { reason: diagnosis.to_string(), present: None };
            }
        };
        let busy = Busy::on_machine(&self.root, &GpuReading::read(&self.gpus));
        let mut journal = FileJournal::new(&self.journal);
        match MigReport::make(&mut *driver, &mut journal, wish, &busy, Reach::IdleGpus) {
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

    /// Writes how it went, unless that stands there; whether GPUs are as wanted.
    async fn tell(&self, nodes: &Api<Node>, said: &Said, state: &MigState) -> kube::Result<bool> {
        let patch = state.patch();
        let new = patch.pointer("/metadata/annotations").and_then(|all| all.get(MIG_STATE));
        let known = said.annotations.get(MIG_STATE);
        if new.and_then(Value::as_str) != known.map(String::as_str) {
            info!(%state, "GPUs are divided anew, or are not");
            self.patch(nodes, &patch).await?;
        }
        Ok(matches!(state, MigState::Applied { .. }))
    }

    async fn patch(&self, nodes: &Api<Node>, patch: &Value) -> kube::Result<()> {
        nodes.patch_metadata(&self.node, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }
}
