//! The agent as a service: reads the node when something changed, and writes what is new.
//!
//! Changes come from inotify and watches; a few small sysfs files are polled, since sysfs sends no notifications.
//! What to publish is compared with what is in the API, so nothing is written twice, also after a restart.

mod alignment;
mod device_source;
mod files;
mod http;
mod metrics;
mod node_reader;
mod owners;
mod podresources;
mod pods;
mod schedule;
mod topology;
mod writer;

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

use self::alignment::{Debounce, PodUpdate};
use self::files::Files;
use self::node_reader::{NodeReader, Scope};
use self::pods::Pods;
use self::schedule::Schedule;
use self::topology::PublishedTopology;
use self::writer::{ApiWriter, NodeMetadata, WriteError};
use crate::audit::PodAudit;
use crate::gpus::GpuSource;
use crate::publish::{self, Offered, Resident, Subject};

pub use alignment::AlignmentAnnotation;
pub use device_source::{Checkpoint, DeviceListing, DeviceSource};
pub use http::{Health, NotReady, router, serve};
pub use metrics::Metrics;
pub use podresources::PodResources;
pub use schedule::Settings;

#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the Node.
    pub node: String,
    pub root: Root,
    pub gpus: GpuSource,
    pub settings: Settings,
}

/// Metrics and health of a running agent, as [`router`] serves them.
#[derive(Clone)]
pub struct Status {
    pub metrics: Metrics,
    pub health: Health,
}

/// Why not everything is published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum PublishError {
    #[error("the node could not be read")]
    NotRead,
    #[error("{object}: {why}")]
    Write { object: &'static str, why: String },
}

/// Runs until `stop`.
pub async fn run(
    client: Client,
    options: Options,
    source: Box<dyn DeviceSource>,
    status: Status,
    stop: impl Future<Output = ()>,
) {
    let Options { node, root, gpus, settings } = options;
    let mut pods = followed::<Pod>(&client, &format!("spec.nodeName={node}"));
    let mut topologies =
        followed::<NodeResourceTopology>(&client, &format!("metadata.name={node}"));
    let mut files =
        Files::new().inspect_err(|error| warn!(%error, "cannot watch files; polling them")).ok();
    let reader = NodeReader::new(root, gpus, settings.memory);
    let mut agent = Agent::new(client, node, reader, source, status);
    agent.schedule = Schedule::new(settings, files.is_some());
    let mut stop = std::pin::pin!(stop.fuse());
    loop {
        let wake = tokio::time::Instant::from_std(agent.schedule.next());
        tokio::select! {
            () = &mut stop => return,
            Some(event) = pods.next() => agent.apply_pod(event),
            Some(event) = topologies.next() => agent.apply_topology(event),
            () = changed(&mut files) => agent.schedule.request_read(Scope::Pods),
            () = tokio::time::sleep_until(wake) => agent.step(files.as_mut()).await,
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

/// The status code of a watch that the API refused.
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
    writer: ApiWriter,
    metrics: Metrics,
    health: Health,
    source: Box<dyn DeviceSource>,
    /// `None` while it is in use on another thread.
    reader: Option<NodeReader>,
    schedule: Schedule,
    pods: Pods,
    topology: PublishedTopology,
    residents: Vec<Resident>,
    offered: Vec<Offered>,
    audits: Vec<PodAudit>,
    debounce: Debounce,
    /// Of the Node, once known.
    uid: Option<String>,
    /// Metadata of the Node, once it was written or found there.
    node_metadata: Option<NodeMetadata>,
    /// Why the topology is not published, so that it is logged once.
    topology_skipped: Option<String>,
    /// Why not everything was written, so that it is logged once.
    error: Option<PublishError>,
    diagnoses: BTreeSet<Diagnosis>,
}

impl Agent {
    fn new(
        client: Client,
        node: String,
        reader: NodeReader,
        source: Box<dyn DeviceSource>,
        Status { metrics, health }: Status,
    ) -> Self {
        Self {
            writer: ApiWriter::new(client, node.clone()),
            node,
            metrics,
            health,
            source,
            reader: Some(reader),
            schedule: Schedule::new(Settings::default(), true),
            pods: Pods::default(),
            topology: PublishedTopology::default(),
            residents: Vec::new(),
            offered: Vec::new(),
            audits: Vec::new(),
            debounce: Debounce::default(),
            uid: None,
            node_metadata: None,
            topology_skipped: None,
            error: None,
            diagnoses: BTreeSet::new(),
        }
    }

    fn apply_pod(&mut self, event: Result<watcher::Event<Pod>, watcher::Error>) {
        match event {
            Ok(event) => {
                if self.pods.apply(event) {
                    self.schedule.request_read(Scope::Pods);
                }
            }
            Err(error) => {
                self.metrics.watch_failed("Pod");
                warn!(%error, "watch of pods failed; restarting it");
            }
        }
    }

    fn apply_topology(
        &mut self,
        event: Result<watcher::Event<NodeResourceTopology>, watcher::Error>,
    ) {
        match event {
            Ok(event) => {
                if matches!(event, watcher::Event::Delete(_)) {
                    // It is deleted with its Node, which may have been replaced.
                    self.uid = None;
                }
                self.topology.apply(event);
            }
            Err(error) if code(&error) == Some(404) => {
                let was_missing = self.topology.kind_missing;
                self.topology.set_kind_missing();
                if was_missing {
                    return;
                }
            }
            Err(error) => {
                self.metrics.watch_failed("NodeResourceTopology");
                warn!(%error, "watch of the NodeResourceTopology failed; restarting it");
                return;
            }
        }
        self.schedule.request_write();
    }

    /// Does what is due.
    async fn step(&mut self, files: Option<&mut Files>) {
        if self.schedule.poll_is_due()
            && let Some(scope) = self.reader.as_ref().and_then(NodeReader::changed)
        {
            self.schedule.request_read(scope);
        }
        if let Some(scope) = self.schedule.read_is_due() {
            self.read(scope).await;
            if let Some(files) = files {
                let with_gpus = self.audits.iter().map(|audit| audit.uid.as_str()).collect();
                let wanted = self.reader.as_ref().map(|reader| reader.directories(&with_gpus));
                let failed = files.keep(&wanted.unwrap_or_default());
                self.schedule.set_polling(!failed.is_empty());
            }
        }
        if !self.schedule.write_is_due() {
            self.health.report(self.health.ready());
            return;
        }
        let verify = self.schedule.verify_is_due();
        if let Some(why) = self.missing_list() {
            // The list requests a write when it is complete.
            self.schedule.wrote(true);
            self.health.report(Err(NotReady(why.to_owned())));
            return;
        }
        let error = self.write(verify).await.err();
        if let Some(error) = &error
            && self.error.as_ref() != Some(error)
        {
            warn!(%error, "cannot publish everything; retrying");
        }
        self.schedule.wrote(error.is_none());
        let ready = error.as_ref().map_or(Ok(()), |error| Err(NotReady(error.to_string())));
        self.health.report(ready);
        self.error = error;
    }

    async fn read(&mut self, scope: Scope) {
        let Some(mut reader) = self.reader.take() else { return };
        let began = Instant::now();
        let read = tokio::task::spawn_blocking(move || {
            reader.read(scope);
            reader
        });
        // Only a panic in the reader, a defect, loses it; then there is nothing to do.
        let Ok(mut reader) = read.await else { return };
        self.residents = self.pods.residents();
        let listing = self.source.update(&mut reader.reading, &self.residents).await;
        let audited = tokio::task::spawn_blocking(move || {
            let found = reader.audits();
            (reader, found)
        });
        let Ok((reader, (audits, mut diagnoses))) = audited.await else { return };
        let name = if scope == Scope::All { "all" } else { "pods" };
        self.metrics.inspected(name, began.elapsed());
        diagnoses.extend(reader.reading.diagnoses.iter().cloned());
        diagnoses.extend(listing.diagnoses);
        self.set_diagnoses(diagnoses);
        (self.offered, self.audits, self.reader) = (listing.offered, audits, Some(reader));
        self.show_alignment();
    }

    /// Logs new diagnoses.
    fn set_diagnoses(&mut self, diagnoses: Vec<Diagnosis>) {
        let now: BTreeSet<Diagnosis> = diagnoses.into_iter().collect();
        for one in now.difference(&self.diagnoses) {
            warn!(path = one.path, remedy = one.remedy, "{}", one.what);
        }
        self.metrics.diagnosed(now.len());
        self.diagnoses = now;
    }

    fn show_alignment(&self) {
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

    /// The first list that is still incomplete. Nothing can be written before.
    fn missing_list(&self) -> Option<&'static str> {
        match (self.pods.listed, self.topology.known) {
            (false, _) => Some("the node's pods are not listed yet"),
            (_, false) => Some("the NodeResourceTopology is not read yet"),
            _ => None,
        }
    }

    async fn write(&mut self, verify: bool) -> Result<(), PublishError> {
        let reader = self.reader.take().ok_or(PublishError::NotRead)?;
        let written = self.write_node(&reader, verify).await;
        self.reader = Some(reader);
        self.write_pods().await.and(written)
    }

    async fn write_node(&mut self, reader: &NodeReader, verify: bool) -> Result<(), PublishError> {
        let known = self.uid.is_some() && !verify;
        let meta = if known {
            None
        } else {
            Some(self.writer.node().await.map_err(|why| self.failed("node", why))?)
        };
        if let Some(meta) = &meta {
            self.uid.clone_from(&meta.uid);
        }
        let subject = Subject {
            reading: &reader.reading,
            offered: &self.offered,
            residents: &self.residents,
        };
        let wanted = publish::topology(subject, &self.node, self.uid.as_deref());
        let labels = publish::labels(subject.reading, subject.offered);
        let annotations = publish::annotations(subject.reading);
        let published = self.write_topology(&wanted).await;
        let skipped = self.topology_skipped.is_some();
        let annotations = if skipped { annotations.into_iter().collect() } else { BTreeMap::new() };
        let metadata = NodeMetadata { labels, annotations };
        let marked = self.write_node_metadata(metadata, meta).await;
        published.and(marked)
    }

    /// Leaves a topology of another exporter alone.
    async fn write_topology(&mut self, wanted: &NodeResourceTopology) -> Result<(), PublishError> {
        let skipped = if self.topology.kind_missing {
            let why = "the CRD is not installed: install NFD's, or run `berth manifests \
                       --topology-definition`";
            Some(why.to_owned())
        } else {
            self.topology.foreign_owners().map(|who| format!("{who} publishes it"))
        };
        self.set_topology_skipped(skipped);
        if self.topology_skipped.is_some() || self.topology.matches(wanted) {
            return Ok(());
        }
        match self.writer.topology(wanted).await {
            Ok(written) => {
                self.metrics.wrote("topology", true);
                self.topology.update(written);
                Ok(())
            }
            // The watch has not reported it yet.
            Err(WriteError::Conflict(why)) => {
                self.set_topology_skipped(Some(why));
                Ok(())
            }
            Err(why) => Err(self.failed("topology", why)),
        }
    }

    fn set_topology_skipped(&mut self, skipped: Option<String>) {
        if self.topology_skipped != skipped {
            match &skipped {
                Some(why) => info!(why, "not publishing the NodeResourceTopology"),
                None => info!("publishing the NodeResourceTopology"),
            }
        }
        self.metrics.foreign(skipped.is_some() && !self.topology.kind_missing);
        self.topology_skipped = skipped;
    }

    async fn write_node_metadata(
        &mut self,
        wanted: NodeMetadata,
        meta: Option<kube::api::ObjectMeta>,
    ) -> Result<(), PublishError> {
        if meta.is_none() && self.node_metadata.as_ref() == Some(&wanted) {
            return Ok(());
        }
        let meta = match meta {
            Some(meta) => meta,
            None => self.writer.node().await.map_err(|why| self.failed("node", why))?,
        };
        let wrote = self.writer.node_metadata(&meta, &wanted).await;
        if wrote.map_err(|why| self.failed("node", why))? {
            self.metrics.wrote("node", true);
        }
        self.node_metadata = Some(wanted);
        Ok(())
    }

    async fn write_pods(&mut self) -> Result<(), PublishError> {
        let (mut result, now, wait) = (Ok(()), Instant::now(), self.schedule.settings().unknown);
        let audits = std::mem::take(&mut self.audits);
        for audit in &audits {
            let pod = self.pods.of_kubelet(&audit.uid).filter(|pod| pod.runs);
            let Some(pod) = pod.cloned() else { continue };
            let Some(update) = self.debounce.update(&pod, audit, wait, now) else { continue };
            if let Err(error) = self.write_pod(&pod, update).await {
                result = Err(error);
            }
        }
        self.debounce.retain(&audits);
        if self.debounce.is_waiting(wait, now) {
            self.schedule.read_again();
        }
        self.audits = audits;
        result
    }

    async fn write_pod(
        &mut self,
        pod: &pods::KnownPod,
        update: PodUpdate,
    ) -> Result<(), PublishError> {
        match self.writer.alignment(pod, &update.annotation).await {
            Ok(()) => self.metrics.wrote("alignment", true),
            // The pod was deleted, or replaced by one with the same name.
            Err(WriteError::NotFound | WriteError::Conflict(_)) => return Ok(()),
            Err(why) => return Err(self.failed("alignment", why)),
        }
        self.pods.set_alignment(&pod.uid, update.annotation);
        let Some(event) = update.event else { return Ok(()) };
        match self.writer.event(pod, &event).await {
            Ok(()) => self.metrics.wrote("event", true),
            // Not retried: the annotation has the same information.
            Err(why) => drop(self.failed("event", why)),
        }
        Ok(())
    }

    fn failed(&self, object: &'static str, why: WriteError) -> PublishError {
        self.metrics.wrote(object, false);
        PublishError::Write { object, why: why.to_string() }
    }
}
