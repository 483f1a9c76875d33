//! The allocator that all plugins share: the ledger, and the evidence that updates it.
//!
//! Works on one request at a time. ResponseConfig are recorded before they are sent to the kubelet.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use berth_host::kubelet::DeviceState;
use berth_host::{KubeletFiles, KubeletPaths, Root};
use tokio::sync::{Mutex, MutexGuard, Notify, watch};
use tracing::warn;

use super::PluginConfig;
use crate::decision::Decision;
use crate::device::{Device, Inventory, SharingMode};
use crate::file::{read_or_default, write_atomically};
use crate::ledger::{Evidence, Journal, Ledger, Listed, Refusal};
use crate::mps::{self, DaemonLock};
use crate::podresources::{PodResourcesClient, devices};
use crate::proto::deviceplugin::ContainerAllocateResponse;
use crate::running_pods::RunningPods;
use crate::socket::{Identity, identity};

/// Every nth poll reads the running pods even though no file changed.
const POLLS_PER_POD_CHECK: u32 = 5;

pub(super) struct Allocator {
    pub(super) config: PluginConfig,
    root: Root,
    paths: KubeletPaths,
    checkpoint: PathBuf,
    podresources: PodResourcesClient,
    running_pods: Box<dyn RunningPods>,
    state: Mutex<State>,
    changed: watch::Sender<u64>,
    answered: Notify,
}

struct State {
    ledger: Ledger,
    /// Content of the journal file.
    saved: Journal,
    /// Identity of the checkpoint and of the kubelet at the last observation.
    seen: Option<(Option<Identity>, Option<Identity>)>,
    polls: u32,
    /// The last error of podresources, so that it is logged once.
    podresources_error: Option<String>,
}

impl Allocator {
    pub(super) async fn open(
        config: PluginConfig,
        inventory: Inventory,
        running_pods: Box<dyn RunningPods>,
    ) -> Self {
        let journal: Journal = read_or_default(&config.journal, "the device journal");
        let ledger = Ledger::new(inventory, journal.clone());
        let allocator = Self {
            root: Root::new(&config.kubelet_directory),
            paths: KubeletPaths {
                configuration: None,
                config_dir: None,
                root_dir: ".".to_owned(),
                flags: serde_json::Value::Null,
            },
            checkpoint: config.sockets().join("kubelet_internal_checkpoint"),
            podresources: PodResourcesClient::new(
                config.kubelet_directory.join("pod-resources/kubelet.sock"),
            ),
            config,
            running_pods,
            state: Mutex::new(State {
                ledger,
                saved: journal,
                seen: None,
                polls: 0,
                podresources_error: None,
            }),
            changed: watch::channel(0).0,
            answered: Notify::new(),
        };
        allocator.poll().await;
        allocator
    }

    /// Notifies when a listing may have changed.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(super) async fn resources(&self) -> BTreeSet<String> {
        let state = self.state.lock().await;
        state.ledger.inventory().resources().into_iter().map(str::to_owned).collect()
    }

    /// Whether a resource has MPS shares.
    pub(super) async fn has_shares(&self, resource: &str) -> bool {
        let state = self.state.lock().await;
        let mut devices = state.ledger.inventory().devices().iter();
        devices.any(|one| one.resource == resource && matches!(one.sharing, SharingMode::Mps(_)))
    }

    pub(super) async fn listing(&self, resource: &str) -> Vec<Listed> {
        self.state.lock().await.ledger.listing(resource)
    }

    /// Checks for changes. When idle, that is the state of two files, and a lock per GPU with shares.
    pub(super) async fn poll(&self) {
        let mut state = self.state.lock().await;
        self.check_daemons(&mut state);
        state.polls = state.polls.wrapping_add(1);
        let due = state.polls.is_multiple_of(POLLS_PER_POD_CHECK)
            && state.ledger.blocks_other_resources();
        let files = (identity(&self.checkpoint), self.kubelet());
        if state.seen == Some(files) && !due && !state.ledger.is_uncertain(now_ms()) {
            return;
        }
        self.observe(&mut state, false).await;
        self.save(&mut state);
    }

    /// Whether the kubelet's checkpoint does not show a recent answer yet.
    pub(super) async fn in_flight(&self) -> bool {
        self.state.lock().await.ledger.in_flight(now_ms())
    }

    /// Resolves at the next allocation.
    pub(super) async fn answered(&self) {
        self.answered.notified().await;
    }

    fn kubelet(&self) -> Option<Identity> {
        identity(&self.config.sockets().join("kubelet.sock"))
    }

    pub(super) async fn replace(&self, inventory: Inventory) {
        let mut state = self.state.lock().await;
        state.ledger.replace(inventory);
        self.check_daemons(&mut state);
        self.observe(&mut state, false).await;
        self.save(&mut state);
        self.changed.send_modify(|count| *count += 1);
    }

    pub(super) async fn decide(&self, decisions: Vec<Decision>) {
        self.state.lock().await.ledger.decide(decisions);
    }

    pub(super) async fn report_health(&self, uuid: &str, fault: Option<&str>) -> bool {
        let healthy = self.state.lock().await.ledger.report_health(uuid, fault, now_ms());
        self.changed.send_modify(|count| *count += 1);
        healthy
    }

    pub(super) async fn prefer(
        &self,
        resource: &str,
        available: &[String],
        must: &[String],
        size: usize,
    ) -> Vec<String> {
        let mut state = self.state.lock().await;
        self.observe(&mut state, false).await;
        state.ledger.prefer(resource, available, must, size)
    }

    /// Allocates a set of devices for each container.
    pub(super) async fn allocate(
        &self,
        resource: &str,
        containers: &[Vec<String>],
    ) -> Result<Vec<ContainerAllocateResponse>, Refusal> {
        let mut state = self.state.lock().await;
        self.check_daemons(&mut state);
        self.observe(&mut state, false).await;
        let mut result = state.ledger.allocate(resource, containers, now_ms());
        if let Err(Refusal::Held { .. }) = result {
            // Kubelets keep entries of finished pods: ask podresources before refusing.
            self.observe(&mut state, true).await;
            result = state.ledger.allocate(resource, containers, now_ms());
        }
        self.save(&mut state);
        result?;
        self.answered.notify_one();
        let inventory = state.ledger.inventory();
        let answers = containers.iter().map(|ids| {
            let found = ids.iter().filter_map(|id| inventory.find(resource, id));
            let devices: Vec<&Device> = found.map(|at| &inventory.devices()[at]).collect();
            self.config.responses.response(inventory, &devices)
        });
        Ok(answers.collect())
    }

    /// Whether a container can start with its devices: not while its MPS daemon is down.
    pub(super) async fn check_start(&self, resource: &str, ids: &[String]) -> Result<(), Refusal> {
        let mut state = self.state.lock().await;
        self.check_daemons(&mut state);
        state.ledger.check_start(resource, ids)
    }

    fn check_daemons(&self, state: &mut MutexGuard<'_, State>) {
        let directory = &self.config.responses.mps_directory;
        let needed = mps::needed(state.ledger.inventory()).into_iter().map(|daemon| daemon.uuid);
        let running = needed.filter(|uuid| DaemonLock::is_held(directory, uuid)).collect();
        if state.ledger.report_daemons(running) {
            self.changed.send_modify(|count| *count += 1);
        }
    }

    /// Updates the ledger. Asks podresources if holds are uncertain, or if `closely`.
    async fn observe(&self, state: &mut MutexGuard<'_, State>, closely: bool) {
        let mut listed = None;
        let mut asked = false;
        loop {
            if !asked && (closely || state.ledger.is_uncertain(now_ms())) {
                (listed, asked) = (self.listed(state).await, true);
            }
            // Taken before reading, so that a write in between is noticed next time.
            let kubelet = self.kubelet();
            state.seen = Some((identity(&self.checkpoint), kubelet));
            let checkpoint = self.checkpoint();
            let pods = self.running_pods.pods();
            let kubelet = kubelet.map(|identity| identity.to_string());
            let lister = self.podresources.identity();
            state.ledger.observe(&Evidence {
                now_ms: now_ms(),
                checkpoint: checkpoint.as_ref(),
                listed: listed.as_ref(),
                pods: pods.as_ref(),
                kubelet: kubelet.as_deref(),
                lister: lister.as_deref(),
            });
            if asked || !state.ledger.is_uncertain(now_ms()) {
                return;
            }
        }
    }

    async fn listed(
        &self,
        state: &mut MutexGuard<'_, State>,
    ) -> Option<BTreeSet<(String, String)>> {
        match self.podresources.list().await {
            Ok(listed) => {
                state.podresources_error = None;
                listed.map(|pods| devices(&pods))
            }
            Err(error) => {
                let why = error.to_string();
                if state.podresources_error.as_ref() != Some(&why) {
                    warn!(%error, "podresources is unavailable; using the kubelet's checkpoint alone");
                }
                state.podresources_error = Some(why);
                None
            }
        }
    }

    fn checkpoint(&self) -> Option<DeviceState> {
        let (state, diagnoses) = KubeletFiles::read_devices(&self.root, &self.paths);
        for diagnosis in diagnoses {
            warn!(%diagnosis, "kubelet device checkpoint");
        }
        state
    }

    /// Writes the journal and notifies plugins, if a hold changed.
    fn save(&self, state: &mut MutexGuard<'_, State>) {
        let journal = state.ledger.journal();
        if journal == state.saved {
            return;
        }
        let text = serde_json::to_string(&journal).unwrap_or_default();
        match write_atomically(&self.config.journal, &text) {
            Ok(()) => state.saved = journal,
            // The kubelet's checkpoint has the allocation too, so pods may start.
            Err(error) => warn!(path = %self.config.journal.display(), %error,
                "cannot write the device journal: if the kubelet loses its checkpoint too, held devices may be \
                 allocated again"),
        }
        self.changed.send_modify(|count| *count += 1);
    }
}

fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}
