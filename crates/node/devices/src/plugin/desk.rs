//! Where all plugins of a machine ask: the ledger, and the evidence it is kept from.
//!
//! Owns the order of things: evidence is gathered, entered and acted on by one at a time, and what was given
//! is written down before the kubelet is told. Must not know sockets of plugins.

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
use crate::file::{recall, write_whole};
use crate::ledger::{Evidence, Journal, Ledger, Listed, Refusal};
use crate::mps::{self, Alive};
use crate::podresources::{PodResourcesClient, devices};
use crate::proto::deviceplugin::ContainerAllocateResponse;
use crate::socket::{Identity, identity};
use crate::witness::Witness;

/// Looks after which pods are looked for though nothing else has changed.
const LOOKS_FOR_PODS: u32 = 5;

pub(super) struct Desk {
    pub(super) config: PluginConfig,
    root: Root,
    places: KubeletPaths,
    checkpoint: PathBuf,
    podresources: PodResourcesClient,
    witness: Box<dyn Witness>,
    books: Mutex<Books>,
    changed: watch::Sender<u64>,
    answered: Notify,
}

struct Books {
    ledger: Ledger,
    /// What is on the disk.
    written: Journal,
    /// The checkpoint and the kubelet when they were looked at last.
    seen: Option<(Option<Identity>, Option<Identity>)>,
    looks: u32,
    /// Why podresources did not answer the last time, lest it be said again and again.
    silence: Option<String>,
}

impl Desk {
    pub(super) async fn open(
        config: PluginConfig,
        inventory: Inventory,
        witness: Box<dyn Witness>,
    ) -> Self {
        let journal: Journal = recall(&config.journal, "who held which device");
        let ledger = Ledger::new(inventory, journal.clone());
        let desk = Self {
            root: Root::new(&config.kubelet_directory),
            places: KubeletPaths {
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
            witness,
            books: Mutex::new(Books {
                ledger,
                written: journal,
                seen: None,
                looks: 0,
                silence: None,
            }),
            changed: watch::channel(0).0,
            answered: Notify::new(),
        };
        desk.look().await;
        desk
    }

    /// Told when a listing may have changed.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(super) async fn resources(&self) -> BTreeSet<String> {
        let books = self.books.lock().await;
        books.ledger.inventory().resources().into_iter().map(str::to_owned).collect()
    }

    /// Whether some of a resource are shares under MPS.
    pub(super) async fn has_shares(&self, resource: &str) -> bool {
        let books = self.books.lock().await;
        let mut devices = books.ledger.inventory().devices().iter();
        devices.any(|one| one.resource == resource && matches!(one.sharing, SharingMode::Mps(_)))
    }

    pub(super) async fn listing(&self, resource: &str) -> Vec<Listed> {
        self.books.lock().await.ledger.listing(resource)
    }

    /// Looks whether anything has changed. At rest that is the state of two files, and a lock for each GPU that is
    /// on offer in shares.
    pub(super) async fn look(&self) {
        let mut books = self.books.lock().await;
        self.see_daemons(&mut books);
        books.looks = books.looks.wrapping_add(1);
        let due = books.looks.is_multiple_of(LOOKS_FOR_PODS) && books.ledger.keeps_others_out();
        let files = (identity(&self.checkpoint), self.kubelet());
        if books.seen == Some(files) && !due && !books.ledger.doubts(now_ms()) {
            return;
        }
        self.observe(&mut books, false).await;
        self.keep(&mut books);
    }

    /// Whether the kubelet has yet to write down what it was answered just now.
    pub(super) async fn in_flight(&self) -> bool {
        self.books.lock().await.ledger.in_flight(now_ms())
    }

    /// When something is handed out.
    pub(super) async fn answered(&self) {
        self.answered.notified().await;
    }

    fn kubelet(&self) -> Option<Identity> {
        identity(&self.config.sockets().join("kubelet.sock"))
    }

    pub(super) async fn replace(&self, inventory: Inventory) {
        let mut books = self.books.lock().await;
        books.ledger.replace(inventory);
        self.see_daemons(&mut books);
        self.observe(&mut books, false).await;
        self.keep(&mut books);
        self.changed.send_modify(|count| *count += 1);
    }

    pub(super) async fn decide(&self, decisions: Vec<Decision>) {
        self.books.lock().await.ledger.decide(decisions);
    }

    pub(super) async fn report_health(&self, uuid: &str, illness: Option<&str>) -> bool {
        let well = self.books.lock().await.ledger.report_health(uuid, illness, now_ms());
        self.changed.send_modify(|count| *count += 1);
        well
    }

    pub(super) async fn prefer(
        &self,
        resource: &str,
        available: &[String],
        must: &[String],
        size: usize,
    ) -> Vec<String> {
        let mut books = self.books.lock().await;
        self.observe(&mut books, false).await;
        books.ledger.prefer(resource, available, must, size)
    }

    /// Hands devices out, a set for each container.
    pub(super) async fn allocate(
        &self,
        resource: &str,
        containers: &[Vec<String>],
    ) -> Result<Vec<ContainerAllocateResponse>, Refusal> {
        let mut books = self.books.lock().await;
        self.see_daemons(&mut books);
        self.observe(&mut books, false).await;
        let mut given = books.ledger.allocate(resource, containers, now_ms());
        if let Err(Refusal::Held { .. }) = given {
            // Kubelets let entries of finished pods stand: look closer before refusing.
            self.observe(&mut books, true).await;
            given = books.ledger.allocate(resource, containers, now_ms());
        }
        self.keep(&mut books);
        given?;
        self.answered.notify_one();
        let inventory = books.ledger.inventory();
        let answers = containers.iter().map(|ids| {
            let found = ids.iter().filter_map(|id| inventory.find(resource, id));
            let devices: Vec<&Device> = found.map(|at| &inventory.devices()[at]).collect();
            self.config.answers.answer(inventory, &devices)
        });
        Ok(answers.collect())
    }

    /// Whether a container can start with what it was given: not while its MPS daemon does not run.
    pub(super) async fn may_start(&self, resource: &str, ids: &[String]) -> Result<(), Refusal> {
        let mut books = self.books.lock().await;
        self.see_daemons(&mut books);
        books.ledger.may_start(resource, ids)
    }

    /// Enters which MPS daemons run.
    fn see_daemons(&self, books: &mut MutexGuard<'_, Books>) {
        let directory = &self.config.answers.mps_directory;
        let needed = mps::needed(books.ledger.inventory()).into_iter().map(|daemon| daemon.uuid);
        let running = needed.filter(|uuid| Alive::is_shown(directory, uuid)).collect();
        if books.ledger.report_daemons(running) {
            self.changed.send_modify(|count| *count += 1);
        }
    }

    /// Enters what is known now. Podresources is asked where doubts are left, or `closely`.
    async fn observe(&self, books: &mut MutexGuard<'_, Books>, closely: bool) {
        let mut listed = None;
        let mut asked = false;
        loop {
            if !asked && (closely || books.ledger.doubts(now_ms())) {
                (listed, asked) = (self.listed(books).await, true);
            }
            // Before it is read: what is written meanwhile is seen the next time.
            let kubelet = self.kubelet();
            books.seen = Some((identity(&self.checkpoint), kubelet));
            let checkpoint = self.checkpoint();
            let pods = self.witness.pods();
            let kubelet = kubelet.map(|identity| identity.to_string());
            let lister = self.podresources.identity();
            books.ledger.observe(&Evidence {
                now_ms: now_ms(),
                checkpoint: checkpoint.as_ref(),
                listed: listed.as_ref(),
                pods: pods.as_ref(),
                kubelet: kubelet.as_deref(),
                lister: lister.as_deref(),
            });
            if asked || !books.ledger.doubts(now_ms()) {
                return;
            }
        }
    }

    /// What podresources lists.
    async fn listed(
        &self,
        books: &mut MutexGuard<'_, Books>,
    ) -> Option<BTreeSet<(String, String)>> {
        match self.podresources.list().await {
            Ok(listed) => {
                books.silence = None;
                listed.map(|pods| devices(&pods))
            }
            Err(error) => {
                let why = error.to_string();
                if books.silence.as_ref() != Some(&why) {
                    warn!(%error, "what pods hold is known from the kubelet's checkpoint alone");
                }
                books.silence = Some(why);
                None
            }
        }
    }

    fn checkpoint(&self) -> Option<DeviceState> {
        let (state, diagnoses) = KubeletFiles::read_devices(&self.root, &self.places);
        for diagnosis in diagnoses {
            warn!(%diagnosis, "the kubelet's checkpoint of devices");
        }
        state
    }

    /// Writes down who holds what, if that has changed, and tells plugins.
    fn keep(&self, books: &mut MutexGuard<'_, Books>) {
        let journal = books.ledger.journal();
        if journal == books.written {
            return;
        }
        let text = serde_json::to_string(&journal).unwrap_or_default();
        match write_whole(&self.config.journal, &text) {
            Ok(()) => books.written = journal,
            // The kubelet's checkpoint has it too, so this is no reason not to start pods.
            Err(error) => warn!(path = %self.config.journal.display(), %error,
                "cannot write down who holds which device: should the kubelet lose its checkpoint too, what \
                 is held may be handed out again"),
        }
        self.changed.send_modify(|count| *count += 1);
    }
}

fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}
