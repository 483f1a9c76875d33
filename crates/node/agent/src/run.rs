//! The agent that runs: it looks when something changed, and writes what is new.
//!
//! Owns the loop and its times. Files tell by inotify that the kubelet wrote something, the API by watches; a
//! few small files are looked at every some seconds, since sysfs tells nobody. What follows is compared with
//! what stands in the API, so that nothing is written which is there, also after a new start. Everything is
//! given: client, root, node and signs of life, so that many can run in one process. Must not know what is
//! published, nor how pods are judged.

mod desk;
mod files;
mod holdings;
mod http;
mod metrics;
mod owners;
mod podresources;
mod pods;
mod sight;
mod telling;
mod times;
mod topology;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use berth_api::topology::NodeResourceTopology;
use berth_host::{Diagnosis, Root};
use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::Api;
use kube::runtime::{WatchStreamExt as _, watcher};
use tracing::{info, warn};

use self::desk::{Desk, Marks, Refusal};
use self::files::Files;
use self::pods::Pods;
use self::sight::{Scope, Sight};
use self::telling::{Patience, Word};
use self::times::Times;
use self::topology::Standing;
use crate::audit::PodAudit;
use crate::gpus::GpuSource;
use crate::publish::{self, Offered, Resident, Subject};

pub use holdings::{Checkpoints, Holdings, Told};
pub use http::{Health, router, serve};
pub use metrics::Metrics;
pub use podresources::PodResources;
pub use telling::AlignmentAnnotation;
pub use times::Settings;

/// Which node, and how often it is looked at.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the Node.
    pub node: String,
    /// Its files.
    pub root: Root,
    /// Its driver.
    pub gpus: GpuSource,
    /// How often what is looked at.
    pub settings: Settings,
}

/// Runs until it is told to stop.
pub async fn run(
    client: Client,
    options: Options,
    holdings: Box<dyn Holdings>,
    shown: (Metrics, Health),
    stop: impl Future<Output = ()>,
) {
    let Options { node, root, gpus, settings } = options;
    let mut pods = followed::<Pod>(&client, &format!("spec.nodeName={node}"));
    let mut topologies =
        followed::<NodeResourceTopology>(&client, &format!("metadata.name={node}"));
    let mut files = Files::new()
        .inspect_err(|error| warn!(%error, "files are not watched, so they are looked at often"))
        .ok();
    let mut agent =
        Agent::new(client, node, Sight::new(root, gpus, settings.memory), holdings, shown);
    agent.times = Times::new(settings, files.is_some());
    let mut stop = std::pin::pin!(stop.fuse());
    loop {
        let wake = tokio::time::Instant::from_std(agent.times.next());
        tokio::select! {
            () = &mut stop => return,
            Some(event) = pods.next() => agent.saw_pod(event),
            Some(event) = topologies.next() => agent.saw_topology(event),
            () = changed(&mut files) => agent.times.ask(Scope::Pods),
            () = tokio::time::sleep_until(wake) => agent.turn(files.as_mut()).await,
        }
    }
}

async fn changed(files: &mut Option<Files>) {
    let ended = match files {
        Some(files) => files.changed().await,
        None => std::future::pending().await,
    };
    if ended.is_err() {
        *files = None;
    }
}

type Events<K> = BoxStream<'static, Result<watcher::Event<K>, watcher::Error>>;

fn followed<K>(client: &Client, fields: &str) -> Events<K>
where
    K: kube::Resource<DynamicType = ()>
        + Clone
        + serde::de::DeserializeOwned
        + std::fmt::Debug
        + Send
        + Sync
        + 'static,
{
    let config = watcher::Config::default().any_semantic().fields(fields);
    watcher(Api::<K>::all(client.clone()), config).default_backoff().boxed()
}

/// The status code with which the API refused a watch, if it did.
fn code(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status)) => Some(status.code),
        watcher::Error::WatchError(status) => Some(status.code),
        _ => None,
    }
}

struct Agent {
    node: String,
    desk: Desk,
    metrics: Metrics,
    health: Health,
    holdings: Box<dyn Holdings>,
    /// Away while it is looked at.
    sight: Option<Sight>,
    times: Times,
    pods: Pods,
    topology: Standing,
    residents: Vec<Resident>,
    offered: Vec<Offered>,
    audits: Vec<PodAudit>,
    patience: Patience,
    /// The Node's UID, once it is known.
    uid: Option<String>,
    /// What stands on the Node, once it was written or found there.
    marks: Option<Marks>,
    /// What was said of whoever else publishes, so that it is said once.
    said: Option<String>,
    /// Why not all could be written, so that it is said once.
    refused: Option<String>,
    diagnoses: BTreeSet<Diagnosis>,
}

impl Agent {
    fn new(
        client: Client,
        node: String,
        sight: Sight,
        holdings: Box<dyn Holdings>,
        (metrics, health): (Metrics, Health),
    ) -> Self {
        Self {
            desk: Desk::new(client, node.clone()),
            node,
            metrics,
            health,
            holdings,
            sight: Some(sight),
            times: Times::new(Settings::default(), true),
            pods: Pods::default(),
            topology: Standing::default(),
            residents: Vec::new(),
            offered: Vec::new(),
            audits: Vec::new(),
            patience: Patience::default(),
            uid: None,
            marks: None,
            said: None,
            refused: None,
            diagnoses: BTreeSet::new(),
        }
    }

    fn saw_pod(&mut self, event: Result<watcher::Event<Pod>, watcher::Error>) {
        match event {
            Ok(event) => {
                if self.pods.see(event) {
                    self.times.ask(Scope::Pods);
                }
            }
            Err(error) => {
                self.metrics.watch_failed("Pod");
                warn!(%error, "the watch of pods failed and starts again");
            }
        }
    }

    fn saw_topology(
        &mut self,
        event: Result<watcher::Event<NodeResourceTopology>, watcher::Error>,
    ) {
        match event {
            Ok(event) => {
                if matches!(event, watcher::Event::Delete(_)) {
                    // It goes with its Node, of which there may be another by now.
                    self.uid = None;
                }
                self.topology.see(event);
            }
            Err(error) if code(&error) == Some(404) => {
                let was_known = self.topology.no_kind;
                self.topology.has_no_kind();
                if was_known {
                    return;
                }
            }
            Err(error) => {
                self.metrics.watch_failed("NodeResourceTopology");
                warn!(%error, "the watch of the NodeResourceTopology failed and starts again");
                return;
            }
        }
        self.times.write_soon();
    }

    /// Does what is due.
    async fn turn(&mut self, files: Option<&mut Files>) {
        if self.times.pulse_is_due()
            && let Some(scope) = self.sight.as_ref().and_then(Sight::pulse)
        {
            self.times.ask(scope);
        }
        if let Some(scope) = self.times.look_is_due() {
            self.look(scope).await;
            if let Some(files) = files {
                let with_gpus = self.audits.iter().map(|audit| audit.uid.as_str()).collect();
                let wanted = self.sight.as_ref().map(|sight| sight.directories(&with_gpus));
                let failed = files.keep(&wanted.unwrap_or_default());
                self.times.blind(!failed.is_empty());
            }
        }
        if self.times.write_is_due() {
            let verify = self.times.verify_is_due();
            if let Some(why) = self.waits_for() {
                // Whoever brings it has it written.
                self.times.wrote(true);
                self.health.sign(Err(why.to_owned()));
                return;
            }
            let ready = self.write(verify).await;
            let refused = ready.as_ref().err();
            if let Some(why) = refused
                && self.refused.as_ref() != refused
            {
                warn!(why, "not all is written, and will be tried again");
            }
            self.refused = refused.cloned();
            self.times.wrote(ready.is_ok());
            self.health.sign(ready);
        } else {
            self.health.sign(self.health.ready());
        }
    }

    async fn look(&mut self, scope: Scope) {
        let Some(mut sight) = self.sight.take() else { return };
        let began = Instant::now();
        let looked = tokio::task::spawn_blocking(move || {
            sight.look(scope);
            sight
        });
        // A reader that panicked is a defect; without it there is nothing to do.
        let Ok(mut sight) = looked.await else { return };
        self.residents = self.pods.residents();
        let told = self.holdings.tell(&mut sight.reading, &self.residents).await;
        let audited = tokio::task::spawn_blocking(move || {
            let found = sight.audits();
            (sight, found)
        });
        let Ok((sight, (audits, mut diagnoses))) = audited.await else { return };
        let name = if scope == Scope::All { "all" } else { "pods" };
        self.metrics.looked(name, began.elapsed());
        diagnoses.extend(sight.reading.diagnoses.iter().cloned());
        diagnoses.extend(told.diagnoses);
        self.diagnosed(diagnoses);
        (self.offered, self.audits, self.sight) = (told.offered, audits, Some(sight));
        self.show();
    }

    /// What is new is logged, once.
    fn diagnosed(&mut self, diagnoses: Vec<Diagnosis>) {
        let now: BTreeSet<Diagnosis> = diagnoses.into_iter().collect();
        for one in now.difference(&self.diagnoses) {
            warn!(path = one.path, remedy = one.remedy, "{}", one.what);
        }
        self.metrics.diagnosed(now.len());
        self.diagnoses = now;
    }

    fn show(&self) {
        let mut shown = BTreeMap::new();
        for audit in &self.audits {
            if let Some(pod) = self.pods.of_kubelet(&audit.uid).filter(|pod| pod.runs) {
                shown.insert(
                    (pod.namespace.clone(), pod.name.clone()),
                    AlignmentAnnotation::of(audit),
                );
            }
        }
        self.metrics.aligned(shown);
    }

    /// What the API has to tell before anything can be written.
    fn waits_for(&self) -> Option<&'static str> {
        match (self.pods.listed, self.topology.known) {
            (false, _) => Some("the node's pods are not known yet"),
            (_, false) => Some("what is published of the node is not known yet"),
            _ => None,
        }
    }

    /// Writes what is not there yet.
    async fn write(&mut self, verify: bool) -> Result<(), String> {
        let Some(sight) = self.sight.take() else {
            return Err("the node could not be looked at".to_owned());
        };
        let written = self.write_node(&sight, verify).await;
        self.sight = Some(sight);
        self.write_pods().await.and(written)
    }

    async fn write_node(&mut self, sight: &Sight, verify: bool) -> Result<(), String> {
        let known = self.uid.is_some() && !verify;
        let meta = if known {
            None
        } else {
            Some(self.desk.node().await.map_err(|why| self.failed("node", why))?)
        };
        if let Some(meta) = &meta {
            self.uid.clone_from(&meta.uid);
        }
        let subject =
            Subject { reading: &sight.reading, offered: &self.offered, residents: &self.residents };
        let wanted = publish::topology(subject, &self.node, self.uid.as_deref());
        let labels = publish::labels(subject.reading, subject.offered);
        let annotations = publish::annotations(subject.reading);
        let published = self.write_topology(&wanted).await;
        let theirs = self.said.is_some();
        let annotations = if theirs { annotations.into_iter().collect() } else { BTreeMap::new() };
        let marked = self.write_marks(Marks { labels, annotations }, meta).await;
        published.and(marked)
    }

    /// Whoever else publishes is left alone, and said once.
    async fn write_topology(&mut self, wanted: &NodeResourceTopology) -> Result<(), String> {
        let other = if self.topology.no_kind {
            Some(
                "there is no such kind: install NFD's definition, or `berth manifests \
                  --topology-definition`"
                    .to_owned(),
            )
        } else {
            self.topology.theirs().map(|who| format!("it is written by {who}, and left alone"))
        };
        self.tell_who_publishes(other);
        if self.said.is_some() || self.topology.says(wanted) {
            return Ok(());
        }
        match self.desk.topology(wanted).await {
            Ok(written) => {
                self.metrics.wrote("topology", true);
                self.topology.wrote(written);
                Ok(())
            }
            // The watch has not told of it yet.
            Err(Refusal::Theirs(who)) => {
                self.tell_who_publishes(Some(who));
                Ok(())
            }
            Err(why) => Err(self.failed("topology", why)),
        }
    }

    fn tell_who_publishes(&mut self, other: Option<String>) {
        if self.said != other {
            match &other {
                Some(why) => info!(why, "the NodeResourceTopology is not published"),
                None => info!("the NodeResourceTopology is published"),
            }
        }
        self.metrics.foreign(other.is_some() && !self.topology.no_kind);
        self.said = other;
    }

    async fn write_marks(
        &mut self,
        marks: Marks,
        meta: Option<kube::api::ObjectMeta>,
    ) -> Result<(), String> {
        if meta.is_none() && self.marks.as_ref() == Some(&marks) {
            return Ok(());
        }
        let meta = match meta {
            Some(meta) => meta,
            None => self.desk.node().await.map_err(|why| self.failed("node", why))?,
        };
        let wrote = self.desk.marks(&meta, &marks).await;
        if wrote.map_err(|why| self.failed("node", why))? {
            self.metrics.wrote("node", true);
        }
        self.marks = Some(marks);
        Ok(())
    }

    async fn write_pods(&mut self) -> Result<(), String> {
        let (mut result, now, wait) = (Ok(()), Instant::now(), self.times.settings().unknown);
        let audits = std::mem::take(&mut self.audits);
        for audit in &audits {
            let pod = self.pods.of_kubelet(&audit.uid).filter(|pod| pod.runs);
            let Some(pod) = pod.cloned() else { continue };
            let Some(word) = self.patience.word(&pod, audit, wait, now) else { continue };
            if let Err(why) = self.write_word(&pod, word).await {
                result = Err(why);
            }
        }
        self.patience.keep(&audits);
        if self.patience.waits(wait, now) {
            self.times.look_again();
        }
        self.audits = audits;
        result
    }

    async fn write_word(&mut self, pod: &pods::KnownPod, word: Word) -> Result<(), String> {
        match self.desk.alignment(pod, &word.annotation).await {
            Ok(()) => self.metrics.wrote("alignment", true),
            // It is gone, or another one has its name.
            Err(Refusal::Absent | Refusal::Theirs(_)) => return Ok(()),
            Err(why) => return Err(self.failed("alignment", why)),
        }
        self.pods.said(&pod.uid, word.annotation);
        let Some(note) = word.note else { return Ok(()) };
        match self.desk.event(pod, &note).await {
            Ok(()) => self.metrics.wrote("event", true),
            // An event that is lost is not worth another attempt: the annotation says the same.
            Err(why) => drop(self.failed("event", why)),
        }
        Ok(())
    }

    fn failed(&self, what: &'static str, why: Refusal) -> String {
        self.metrics.wrote(what, false);
        match why {
            Refusal::Theirs(why) | Refusal::Failed(why) => format!("{what}: {why}"),
            Refusal::Absent => format!("{what}: there is none in the cluster"),
        }
    }
}
