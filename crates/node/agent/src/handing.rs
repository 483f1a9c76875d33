//! Handing out the node's GPUs: what is on offer and what was decided, brought to the device plugin.
//!
//! Owns when GPUs are looked at for that: now and then, and at once when the driver tells of an error. Decisions
//! come from the node's pods as the API tells of them. Must not know who holds what.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use berth_api::keys::PLACEMENT;
use berth_devices::{CgroupWitness, Decision, DeviceConfig, Stock, serve};
use berth_host::Root;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use kube::api::Api;
use kube::runtime::{WatchStreamExt as _, watcher};
use tokio::sync::{mpsc, watch};
use tracing::warn;

use crate::gpus::{GpuSource, Xid, Xids};
use crate::offers::{self, Ailments, Offers};

/// How often GPUs are looked at. What breaks tells by itself, mostly; each look costs the driver time.
const LOOK: Duration = Duration::from_secs(60);

/// How long the driver is waited for before somebody looks whether it is over.
const XID_WAIT_MS: u32 = 1_000;

/// The file beside the journal that says which GPUs had errors of late.
const AILMENTS: &str = "ailments.json";

fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// The node whose GPUs are handed out.
#[derive(Clone, Debug)]
pub struct Handing {
    /// Name of the Node.
    pub node: String,
    /// Its files.
    pub root: Root,
    /// Its driver.
    pub gpus: GpuSource,
    /// Where the kubelet is, and how devices are handed over.
    pub config: DeviceConfig,
    /// What its GPUs are offered as.
    pub offers: Offers,
}

impl Handing {
    /// Hands GPUs out until `stopped`.
    pub async fn run(mut self, client: Client, stopped: impl Future<Output = ()>) {
        let over = Arc::new(AtomicBool::new(false));
        let kept = self.config.plugin.journal.with_file_name(AILMENTS);
        let mut ailments = Ailments::recall(&kept);
        ailments.forget(now_ms());
        let (stock, offered) = watch::channel(self.look(&ailments).await);
        let (deciding, decisions) = watch::channel(Vec::new());
        let witness = CgroupWitness::new(self.root.clone());
        let errors = match self.gpus {
            GpuSource::Nvml => errors(&over),
            GpuSource::Recorded(_) => mpsc::unbounded_channel().1,
        };
        let (config, node) = (self.config.clone(), self.node.clone());
        if config.plugin.answers.cdi_kind.is_some() {
            // Apart: GPUs are handed out also while the API does not answer.
            let (client, node) = (client.clone(), node.clone());
            tokio::spawn(async move { look_at_runtime(&client, &node).await });
        }
        tokio::select! {
            () = serve(config, offered, decisions, witness, stopped) => {}
            () = self.follow_gpus(stock, errors, (ailments, &kept)) => {}
            () = follow_decisions(&client, &node, deciding) => {}
        }
        over.store(true, Ordering::Relaxed);
    }

    async fn look(&mut self, ailments: &Ailments) -> Stock {
        offers::look(&self.root, &self.gpus, &mut self.offers, ailments).await
    }

    async fn follow_gpus(
        &mut self,
        stock: watch::Sender<Stock>,
        mut errors: mpsc::UnboundedReceiver<Xid>,
        (mut ailments, kept): (Ailments, &Path),
    ) {
        let mut heard = true;
        loop {
            let before = ailments.clone();
            tokio::select! {
                error = errors.recv(), if heard => match error {
                    Some(error) => ailments.note(&error, now_ms()),
                    None => {
                        heard = false;
                        continue;
                    }
                },
                () = tokio::time::sleep(LOOK) => {}
            }
            ailments.forget(now_ms());
            if ailments != before {
                ailments.keep(kept);
            }
            let now = self.look(&ailments).await;
            stock.send_if_modified(|known| {
                let is_new = *known != now;
                *known = now;
                is_new
            });
        }
    }
}

/// Errors of GPUs as the driver tells of them, from a thread that waits for them.
fn errors(over: &Arc<AtomicBool>) -> mpsc::UnboundedReceiver<Xid> {
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
            offers::say(&diagnosis);
        }
    });
    receiver
}

/// Says when the node's runtime takes no notice of CDI devices: containers would start, and have no GPU.
async fn look_at_runtime(client: &Client, node: &str) {
    let found = Api::<Node>::all(client.clone()).get(node).await;
    let version = found
        .ok()
        .and_then(|node| node.status?.node_info)
        .map(|info| info.container_runtime_version)
        .unwrap_or_default();
    if is_before_cdi(&version) {
        warn!(
            version,
            "this container runtime starts containers without their CDI devices: leave spec.cdi out and use \
             NVIDIA's runtime, or update containerd to 1.7 or later"
        );
    }
}

/// Whether a runtime, as Nodes tell of it (`containerd://1.6.20`), is one of containerd before 1.7.
fn is_before_cdi(version: &str) -> bool {
    let Some(version) = version.strip_prefix("containerd://") else { return false };
    let mut numbers =
        version.trim_start_matches('v').split('.').map_while(|part| part.parse().ok());
    let first: Option<(u32, u32)> = numbers.next().zip(numbers.next());
    first.is_some_and(|version| version < (1, 7))
}

/// What the scheduler decided for the pods of the node, whenever that changes. It has a watch of its own: a decision
/// must be known when the kubelet asks, and cannot wait until the loop that publishes has written something.
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
                warn!(%error, "the watch of pods failed and starts again");
                continue;
            }
        }
        let now: Vec<Decision> = known.values().cloned().collect();
        deciding.send_if_modified(|told| {
            let is_new = *told != now;
            *told = now;
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
            warn!(%error, "a decision is not taken into account");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_before_cdi;

    #[test]
    fn runtimes_that_ignore_cdi_devices_are_known_by_their_version() {
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
