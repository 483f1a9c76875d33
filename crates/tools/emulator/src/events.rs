//! Events that controllers and virtual kubelets record about objects.
//!
//! Recording never waits and never fails. One task posts the Events. A repeated Event raises the count of the
//! first one, and an object gets only a burst of Events from one source before it is throttled, as with
//! client-go. Events older than an hour are deleted, as kube-apiserver does.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval};

use crate::clock::{Clock, later, whole_seconds};
use crate::key::unless_gone;

/// Events that wait to be posted; more are dropped.
const QUEUE_MAX: usize = 10_000;

/// Events of one source about one object that are posted at once; after that one per `REFILL`.
const BURST: f64 = 25.0;
const REFILL: Duration = Duration::from_secs(300);

/// Events and objects that are remembered to count and to throttle.
const REMEMBERED_MAX: usize = 4096;

const KEPT_FOR: Duration = Duration::from_secs(3600);
const EXPIRY_INTERVAL: Duration = Duration::from_secs(600);
const REQUESTS_AT_ONCE: usize = 8;

/// An Event without its object and source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Note {
    pub(crate) warning: bool,
    pub(crate) reason: Cow<'static, str>,
    pub(crate) message: String,
}

impl Note {
    pub(crate) fn normal(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { warning: false, reason: reason.into(), message: message.into() }
    }

    pub(crate) fn warning(
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) -> Self {
        Self { warning: true, reason: reason.into(), message: message.into() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Source {
    component: &'static str,
    /// The node, if a kubelet records it.
    host: Option<String>,
}

#[derive(Clone, Debug)]
struct Record {
    about: ObjectReference,
    source: Source,
    note: Note,
}

/// Takes Events. Clones record into the same queue.
#[derive(Clone, Debug)]
pub(crate) struct Recorder(mpsc::Sender<Record>);

/// Starts the task that posts what the returned recorder takes.
pub(crate) fn spawn(tasks: &mut JoinSet<()>, client: Client, clock: Clock) -> Recorder {
    let (sender, receiver) = mpsc::channel(QUEUE_MAX);
    tasks.spawn(post(client, clock, receiver));
    Recorder(sender)
}

fn reference<K: Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        ..object.object_ref(&())
    }
}

impl Recorder {
    pub(crate) fn record<K>(&self, component: &'static str, object: &K, note: Note)
    where
        K: Resource<DynamicType = ()>,
    {
        let source = Source { component, host: None };
        self.send(Record { about: reference(object), source, note });
    }

    /// Records what the kubelet of `node` did with a pod.
    pub(crate) fn kubelet(&self, node: &str, pod: &Pod, note: Note) {
        let source = Source { component: "kubelet", host: Some(node.to_owned()) };
        self.send(Record { about: reference(pod), source, note });
    }

    fn send(&self, record: Record) {
        // A full queue drops Events: they are best effort.
        let _ = self.0.try_send(record);
    }
}

/// A posted Event that a repetition counts up.
struct Posted {
    name: String,
    count: i32,
}

/// Events that an object may still get from a source.
struct Bucket {
    tokens: f64,
    at: Instant,
}

#[derive(Default)]
struct Memory {
    posted: HashMap<(String, Source, Note), Posted>,
    buckets: HashMap<(String, Source), Bucket>,
    /// Makes the names of Events unique.
    sequence: u64,
}

enum Request {
    Create(Box<Event>),
    Count { namespace: String, name: String, count: i32, at: Time },
}

impl Memory {
    /// The request for a record; `None` if its object has had too many Events.
    fn request(&mut self, record: Record, now: Timestamp, at: Instant) -> Option<Request> {
        let Record { about, source, note } = record;
        let object = format!(
            "{}/{}/{}/{}",
            about.kind.as_deref().unwrap_or_default(),
            about.namespace.as_deref().unwrap_or_default(),
            about.name.as_deref().unwrap_or_default(),
            about.uid.as_deref().unwrap_or_default(),
        );
        if !self.take_token((object.clone(), source.clone()), at) {
            return None;
        }
        let namespace = about.namespace.clone().filter(|namespace| !namespace.is_empty());
        let namespace = namespace.unwrap_or_else(|| "default".to_owned());
        let seen = Time(whole_seconds(now));
        let key = (object, source, note);
        if let Some(posted) = self.posted.get_mut(&key) {
            posted.count = posted.count.saturating_add(1);
            let Posted { name, count } = posted;
            return Some(Request::Count { namespace, name: name.clone(), count: *count, at: seen });
        }
        if self.posted.len() >= REMEMBERED_MAX {
            self.posted.clear();
        }
        self.sequence = self.sequence.wrapping_add(1);
        let moment = now.as_nanosecond().unsigned_abs();
        let name = format!(
            "{}.{:x}",
            about.name.as_deref().unwrap_or_default(),
            moment.wrapping_add(u128::from(self.sequence))
        );
        self.posted.insert(key.clone(), Posted { name: name.clone(), count: 1 });
        let (_, source, note) = key;
        Some(Request::Create(Box::new(Event {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: Some(namespace),
                ..ObjectMeta::default()
            },
            involved_object: about,
            type_: Some(if note.warning { "Warning" } else { "Normal" }.to_owned()),
            reason: Some(note.reason.into_owned()),
            message: Some(note.message),
            source: Some(EventSource {
                component: Some(source.component.to_owned()),
                host: source.host.clone(),
            }),
            reporting_component: Some(source.component.to_owned()),
            reporting_instance: source.host,
            first_timestamp: Some(seen.clone()),
            last_timestamp: Some(seen),
            count: Some(1),
            ..Event::default()
        })))
    }

    fn take_token(&mut self, of: (String, Source), at: Instant) -> bool {
        if self.buckets.len() >= REMEMBERED_MAX {
            self.buckets.clear();
        }
        let bucket = self.buckets.entry(of).or_insert(Bucket { tokens: BURST, at });
        let refilled = at.duration_since(bucket.at).as_secs_f64() / REFILL.as_secs_f64();
        bucket.tokens = (bucket.tokens + refilled).min(BURST);
        bucket.at = at;
        let allowed = bucket.tokens >= 1.0;
        if allowed {
            bucket.tokens -= 1.0;
        }
        allowed
    }
}

/// Posts recorded Events until all recorders are gone, and deletes old ones.
async fn post(client: Client, clock: Clock, recorded: mpsc::Receiver<Record>) {
    let mut memory = Memory::default();
    let sending = stream::unfold(recorded, |mut receiver| async {
        receiver.recv().await.map(|record| (record, receiver))
    })
    .filter_map(|record| {
        let request = memory.request(record, clock.now(), Instant::now());
        std::future::ready(request)
    })
    .for_each_concurrent(REQUESTS_AT_ONCE, |request| async {
        if let Err(error) = send(&client, request).await {
            tracing::debug!(%error, "an Event could not be posted");
        }
    });
    let expiring = async {
        let mut interval = interval(EXPIRY_INTERVAL);
        loop {
            interval.tick().await;
            if let Err(error) = expire(&client, clock.now()).await {
                tracing::debug!(%error, "old Events could not be deleted");
            }
        }
    };
    tokio::select! {
        () = sending => {}
        () = expiring => {}
    }
}

async fn send(client: &Client, request: Request) -> Result<(), kube::Error> {
    match request {
        Request::Create(event) => {
            let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
            let api: Api<Event> = Api::namespaced(client.clone(), namespace);
            api.create(&PostParams::default(), &event).await.map(drop)
        }
        Request::Count { namespace, name, count, at } => {
            let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
            let change = Patch::Merge(json!({ "count": count, "lastTimestamp": at }));
            unless_gone(api.patch(&name, &PatchParams::default(), &change).await).map(drop)
        }
    }
}

async fn expire(client: &Client, now: Timestamp) -> Result<(), kube::Error> {
    let all: Api<Event> = Api::all(client.clone());
    for event in all.list(&ListParams::default()).await?.items {
        let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref());
        let last = event.last_timestamp.as_ref().map(|time| time.0);
        let last = last.or(series.map(|time| time.0)).or(event.event_time.map(|time| time.0));
        let created = event.metadata.creation_timestamp.as_ref().map(|time| time.0);
        if last.or(created).is_some_and(|last| later(last, KEPT_FOR) <= now)
            && let (Some(namespace), Some(name)) = (&event.metadata.namespace, &event.metadata.name)
        {
            let api: Api<Event> = Api::namespaced(client.clone(), namespace);
            unless_gone(api.delete(name, &DeleteParams::default()).await)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::fixtures::pod;

    fn record(message: &str) -> Record {
        let source = Source { component: "test", host: None };
        let about = reference(&pod("web-1").plain());
        Record { about, source, note: Note::normal("Scaled", message) }
    }

    #[tokio::test(start_paused = true)]
    async fn repeated_events_are_counted_and_floods_are_throttled() {
        let mut memory = Memory::default();
        let now = Timestamp::from_second(100).unwrap();
        let begin = Instant::now();
        let Some(Request::Create(event)) = memory.request(record("a"), now, begin) else {
            panic!("the first one is created");
        };
        assert_eq!(event.involved_object.kind.as_deref(), Some("Pod"));
        let name = event.metadata.name.unwrap();
        match memory.request(record("a"), now, begin) {
            Some(Request::Count { name: again, count, .. }) => {
                assert_eq!((again, count), (name, 2))
            }
            _ => panic!("the second one is counted"),
        }
        let mut flood =
            (0..100).filter_map(|at| memory.request(record(&at.to_string()), now, begin));
        assert_eq!(flood.by_ref().count(), 23);
        assert!(memory.request(record("later"), now, begin + REFILL).is_some());
    }
}
