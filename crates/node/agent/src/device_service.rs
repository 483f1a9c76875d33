//! Serves the node's GPUs through the device plugin: feeds it the offered devices, their health and the scheduler's
//! decisions.
//!
//! GPUs are read at intervals, and at once when the driver reports an error. Decisions come from a watch of the
//! node's pods.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use berth_api::keys::PLACEMENT;
use berth_devices::{CgroupPods, Decision, DeviceConfig, Supply, serve};
use berth_host::Root;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use kube::api::Api;
use kube::runtime::{WatchStreamExt as _, watcher};
use tokio::sync::{mpsc, watch};
use tracing::warn;

use crate::gpus::{GpuSource, Xid, Xids};
use crate::offers::{self, GpuErrors, Offers};

/// How often GPUs are read. The driver reports most faults by itself, and each reading costs it time.
const POLL_INTERVAL: Duration = Duration::from_secs(60);

/// How long to wait for an XID before checking whether to stop.
const XID_WAIT_MS: u32 = 1_000;

/// File of recent GPU errors, beside the journal.
const ERRORS_FILE: &str = "gpu-errors.json";

fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

#[derive(Clone, Debug)]
pub struct DeviceService {
    /// Name of the Node.
    pub node: String,
    pub root: Root,
    pub gpus: GpuSource,
    /// Paths of the kubelet, and the form of the plugin's answers.
    pub config: DeviceConfig,
    pub offers: Offers,
}

impl DeviceService {
    /// Runs until `stopped`.
    pub async fn run(mut self, client: Client, stopped: impl Future<Output = ()>) {
        let over = Arc::new(AtomicBool::new(false));
        let errors_file = self.config.plugin.journal.with_file_name(ERRORS_FILE);
        let mut errors = GpuErrors::load(&errors_file);
        errors.expire(now_ms());
        let (sender, supply) = watch::channel(self.read_supply(&errors).await);
        let (deciding, decisions) = watch::channel(Vec::new());
        let running_pods = CgroupPods::new(self.root.clone());
        let xids = match self.gpus {
            GpuSource::Nvml => watch_xids(&over),
            GpuSource::Recorded(_) => mpsc::unbounded_channel().1,
        };
        let (config, node) = (self.config.clone(), self.node.clone());
        if config.plugin.responses.cdi_kind.is_some() {
            // In a task, so that devices are served even while the API does not answer.
            let (client, node) = (client.clone(), node.clone());
            tokio::spawn(async move { check_runtime(&client, &node).await });
        }
        tokio::select! {
            () = serve(config, supply, decisions, running_pods, stopped) => {}
            () = self.follow_gpus(sender, xids, errors, &errors_file) => {}
            () = follow_decisions(&client, &node, deciding) => {}
        }
        over.store(true, Ordering::Relaxed);
    }

    async fn read_supply(&mut self, errors: &GpuErrors) -> Supply {
        offers::read_supply(&self.root, &self.gpus, &mut self.offers, errors).await
    }

    async fn follow_gpus(
        &mut self,
        supply: watch::Sender<Supply>,
        mut xids: mpsc::UnboundedReceiver<Xid>,
        mut errors: GpuErrors,
        errors_file: &Path,
    ) {
        let mut xids_watched = true;
        loop {
            let before = errors.clone();
            tokio::select! {
                xid = xids.recv(), if xids_watched => match xid {
                    Some(xid) => errors.record(&xid, now_ms()),
                    None => {
                        xids_watched = false;
                        continue;
                    }
                },
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
            errors.expire(now_ms());
            if errors != before {
                errors.save(errors_file);
            }
            let now = self.read_supply(&errors).await;
            supply.send_if_modified(|known| {
                let is_new = *known != now;
                *known = now;
                is_new
            });
        }
    }
}

/// XIDs, from a thread that waits for them.
fn watch_xids(over: &Arc<AtomicBool>) -> mpsc::UnboundedReceiver<Xid> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let over = over.clone();
    std::thread::spawn(move || {
        let watched = Xids::new().and_then(|xids| {
            xids.watch(XID_WAIT_MS, &mut |xid| {
                let taken = xid.is_none_or(|xid| sender.send(xid).is_ok());
                taken && !over.load(Ordering::Relaxed)
            })
        });
        if let Err(diagnosis) = watched {
            offers::log(&diagnosis);
        }
    });
    receiver
}

/// Warns if the node's runtime ignores CDI devices: containers would start without a GPU.
async fn check_runtime(client: &Client, node: &str) {
    let found = Api::<Node>::all(client.clone()).get(node).await;
    let version = found
        .ok()
        .and_then(|node| node.status?.node_info)
        .map(|info| info.container_runtime_version)
        .unwrap_or_default();
    if is_before_cdi(&version) {
        warn!(
            version,
            "this container runtime ignores CDI devices: remove spec.cdi from DeviceOffers and use NVIDIA's \
             runtime, or update containerd to 1.7 or later"
        );
    }
}

/// Whether a runtime version, as in the Node's status (`containerd://1.6.20`), is containerd before 1.7.
fn is_before_cdi(version: &str) -> bool {
    let Some(version) = version.strip_prefix("containerd://") else { return false };
    let mut numbers =
        version.trim_start_matches('v').split('.').map_while(|part| part.parse().ok());
    let first: Option<(u32, u32)> = numbers.next().zip(numbers.next());
    first.is_some_and(|version| version < (1, 7))
}

/// Follows the scheduler's decisions for the node's pods. Uses a watch of its own: a decision must be known when the
/// kubelet asks, and cannot wait for the loop that publishes.
async fn follow_decisions(client: &Client, node: &str, deciding: watch::Sender<Vec<Decision>>) {
    let config = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
    let mut events = watcher(Api::<Pod>::all(client.clone()), config).default_backoff().boxed();
    let mut known: BTreeMap<String, Decision> = BTreeMap::new();
    let mut listing = BTreeMap::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Init) => listing = BTreeMap::new(),
            Ok(watcher::Event::InitApply(pod)) => listing.extend(decided(pod)),
            Ok(watcher::Event::InitDone) => known = std::mem::take(&mut listing),
            Ok(watcher::Event::Apply(pod)) => known.extend(decided(pod)),
            Ok(watcher::Event::Delete(pod)) => {
                known.remove(&pod.metadata.uid.unwrap_or_default());
            }
            Err(error) => {
                warn!(%error, "watch of pods failed; restarting it");
                continue;
            }
        }
        let now: Vec<Decision> = known.values().cloned().collect();
        deciding.send_if_modified(|known| {
            let is_new = *known != now;
            *known = now;
            is_new
        });
    }
}

fn decided(pod: Pod) -> Option<(String, Decision)> {
    let uid = pod.metadata.uid?;
    let created = pod.metadata.creation_timestamp.map_or(0, |time| time.0.as_millisecond());
    let text = pod.metadata.annotations?.remove(PLACEMENT)?;
    match Decision::read(&uid, created, &text) {
        Ok(decision) => Some((uid, decision)),
        Err(error) => {
            warn!(%error, "ignoring an invalid placement annotation");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_before_cdi;

    #[test]
    fn runtimes_that_ignore_cdi_devices_are_recognized() {
        for old in ["containerd://1.6.20~ds1", "containerd://v1.5.2", "containerd://1.6.8-gke.0"] {
            assert!(is_before_cdi(old), "{old}");
        }
        for new in
            ["containerd://1.7.0", "containerd://2.3.4", "cri-o://1.22.0", "", "containerd://"]
        {
            assert!(!is_before_cdi(new), "{new}");
        }
    }
}
