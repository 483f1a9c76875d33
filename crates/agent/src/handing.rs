//! Handing out the node's GPUs: what is on offer and what was decided, brought to the device plugin.
//!
//! Owns when GPUs are looked at for that: now and then, and at once when the driver tells of an error. Decisions
//! come from the node's pods as the API tells of them. Must not know who holds what.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use berth_api::placement::PLACEMENT;
use berth_devices::{CgroupWitness, Decision, DeviceConfig, Stock, serve};
use berth_hardware::{Diagnosis, Root};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::Api;
use kube::runtime::{WatchStreamExt as _, watcher};
use tokio::sync::{mpsc, watch};
use tracing::warn;

use crate::gpus::{GpuReading, GpuSource, Xid, Xids};
use crate::offers::{self, Ailments};
use crate::report::NodeReport;

/// How often GPUs are looked at. What breaks tells by itself, mostly; each look costs the driver time.
const LOOK: Duration = Duration::from_secs(60);

/// How long the driver is waited for before somebody looks whether it is over.
const XID_WAIT_MS: u32 = 1_000;

/// The node whose GPUs are handed out.
#[derive(Clone, Debug)]
pub struct Handing {
    /// Name of the Node.
    pub node: String,
    /// Its files.
    pub root: Root,
    /// Its driver.
    pub gpus: GpuSource,
    /// What its GPUs are offered as, and where the kubelet is.
    pub config: DeviceConfig,
}

impl Handing {
    /// Hands GPUs out until `stopped`.
    pub async fn run(self, client: Client, stopped: impl Future<Output = ()>) {
        let over = Arc::new(AtomicBool::new(false));
        let (stock, offered) = watch::channel(self.look(&Ailments::default()).await);
        let (deciding, decisions) = watch::channel(Vec::new());
        let witness = CgroupWitness::new(self.root.clone());
        let errors = match self.gpus {
            GpuSource::Nvml => errors(&over),
            GpuSource::Recorded(_) => mpsc::unbounded_channel().1,
        };
        let config = self.config.clone();
        tokio::select! {
            () = serve(config, offered, decisions, witness, stopped) => {}
            () = self.follow_gpus(stock, errors) => {}
            () = follow_decisions(&client, &self.node, deciding) => {}
        }
        over.store(true, Ordering::Relaxed);
    }

    /// Looks at the GPUs, and says what is on offer.
    async fn look(&self, ailments: &Ailments) -> Stock {
        let (this, ailments) = (self.clone(), ailments.clone());
        let looked = tokio::task::spawn_blocking(move || {
            let report = NodeReport::read(&this.root, GpuReading::read(&this.gpus));
            offers::stock(&report, this.root.base(), &this.config.offers, &ailments)
        });
        // A reader that panicked is a defect; without it nothing is on offer.
        let (stock, diagnoses) = looked.await.unwrap_or_default();
        diagnoses.iter().for_each(say);
        stock
    }

    async fn follow_gpus(
        &self,
        stock: watch::Sender<Stock>,
        mut errors: mpsc::UnboundedReceiver<Xid>,
    ) {
        let mut ailments = Ailments::default();
        let now_ms = || jiff::Timestamp::now().as_millisecond();
        let mut heard = true;
        loop {
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
            let now = self.look(&ailments).await;
            stock.send_if_modified(|known| {
                let is_new = *known != now;
                *known = now;
                is_new
            });
        }
    }
}

fn say(diagnosis: &Diagnosis) {
    warn!(path = diagnosis.path, remedy = diagnosis.remedy, "{}", diagnosis.what);
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
            say(&diagnosis);
        }
    });
    receiver
}

/// What the scheduler decided for the pods of the node, whenever that changes.
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
