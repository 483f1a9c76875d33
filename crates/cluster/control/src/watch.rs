//! Watches of the scheduler, one per kind.
//!
//! Lists are streamed where the API server can, else paged. Kinds that it does not serve are tried again from time to
//! time. An object that cannot be read is skipped with a warning. An object that is missing from a new list is gone.
//! Everything becomes a [`Seen`] on one channel.

mod guard;
mod kinds;
mod lean;
mod listing;
mod outline;
mod pod;
mod protobuf;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use berth_api::crd::Pool;
use berth_api::topology::NodeResourceTopology;
use berth_engine::event::Event;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::api::Api;
use kube::runtime::watcher;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::{debug, warn};

use crate::core::{SeenPod, Update};
use crate::metrics::Metrics;

pub use self::kinds::follow_all;
use self::listing::Listing;
pub use self::pod::UnreadPod;

/// Delay before trying a kind again that the API server does not serve.
const ABSENT: Duration = Duration::from_secs(10);

/// Initial delay before restarting a failed watch; doubles each time.
const RETRY: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// Values of `schedulerName` of the pods that Berth schedules.
pub type SchedulerNames = Arc<[Arc<str>]>;

#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is moved once, and a box for each would cost more"
)]
pub enum Seen {
    /// Update that the core takes as it is.
    Update(Update),
    /// Not decoded yet: that may be unnecessary.
    Pod(UnreadPod),
    Node(Box<core::Node>),
    NodeGone(Arc<str>),
    Exported(Box<NodeResourceTopology>),
    ExportedGone(Arc<str>),
    Pool(Box<Pool>),
    PoolGone(Arc<str>),
    /// The kind has been listed completely, or is not served.
    Listed(&'static str),
}

/// Bounded: watches wait while it is full, so that the server buffers and not this process.
pub type Sink = mpsc::Sender<Seen>;

/// How objects of a kind are reported.
struct Telling<K> {
    /// Its kind.
    kind: &'static str,
    /// An object, or what is wrong with it.
    here: Box<dyn Fn(K) -> Result<Option<Seen>, String> + Send + Sync>,
    /// That there is none of this namespace and name, or of this UID.
    gone: Box<dyn Fn(&ObjectMeta) -> Seen + Send + Sync>,
}

/// What comes from a watch.
trait Watched: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static {
    /// What is told of.
    type Object;

    /// The object.
    ///
    /// # Errors
    /// When it cannot be read: which one, and why.
    fn object(self) -> Result<Self::Object, String>;
}

/// Watches one kind until the channel is closed.
async fn follow<W: Watched>(
    api: Api<W>,
    telling: Telling<W::Object>,
    sink: Sink,
    metrics: Metrics,
) {
    let mut listing = Listing::default();
    let mut streaming = true;
    let mut retry = RETRY;
    loop {
        let config = watcher::Config::default();
        let config = if streaming { config.streaming_lists() } else { config };
        let mut events = watcher(api.clone(), config).boxed();
        let mut is_listed = false;
        let failure = loop {
            match events.try_next().await {
                Ok(Some(event)) => {
                    if matches!(event, watcher::Event::InitDone) {
                        (retry, is_listed) = (RETRY, true);
                    }
                    if tell(&telling, &mut listing, event, &sink, &metrics).await.is_err() {
                        return;
                    }
                }
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        let Some(error) = failure else { continue };
        let wait = match api_code(&error) {
            Some(404) => {
                debug!(kind = telling.kind, "the server does not have this kind");
                if sink.send(Seen::Listed(telling.kind)).await.is_err() {
                    return;
                }
                ABSENT
            }
            // Not every server streams lists, and those that do not say so in different ways.
            Some(400 | 422 | 500) if streaming && !is_listed => {
                streaming = false;
                Duration::ZERO
            }
            _ => {
                metrics.watch_failed(telling.kind);
                warn!(kind = telling.kind, %error, "the watch failed and starts again");
                let wait = retry;
                retry = (retry * 2).min(RETRY_MAX);
                wait
            }
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = sink.closed() => return,
        }
    }
}

/// The HTTP status of an error, if there was an answer.
fn api_code(error: &watcher::Error) -> Option<u16> {
    let of_client = |error: &kube::Error| match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    };
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => of_client(error),
        watcher::Error::WatchError(status) => Some(status.code),
        watcher::Error::NoResourceVersion => None,
    }
}

/// The receiver is gone.
struct Closed;

async fn tell<W: Watched>(
    telling: &Telling<W::Object>,
    listing: &mut Listing,
    event: watcher::Event<W>,
    sink: &Sink,
    metrics: &Metrics,
) -> Result<(), Closed> {
    let send = async |seen: Seen| sink.send(seen).await.map_err(|_| Closed);
    match event {
        watcher::Event::Init => {
            metrics.relisted(telling.kind);
            listing.begin();
        }
        watcher::Event::InitDone => {
            for meta in listing.finish() {
                send((telling.gone)(&meta)).await?;
            }
            send(Seen::Listed(telling.kind)).await?;
        }
        watcher::Event::InitApply(object) | watcher::Event::Apply(object) => {
            metrics.watched(telling.kind, "applied");
            let meta = object.meta();
            if let Some(replaced) = listing.note(meta) {
                // Another object of the same name: the one that was there is gone.
                send((telling.gone)(&replaced)).await?;
            }
            let object = object.object().map_err(|bad| format!("{} {bad}", telling.kind));
            match object.and_then(|object| (telling.here)(object)) {
                Ok(Some(seen)) => send(seen).await?,
                Ok(None) => {}
                Err(problem) => {
                    metrics.skipped(telling.kind);
                    warn!(kind = telling.kind, problem, "an object is skipped");
                }
            }
        }
        watcher::Event::Delete(object) => {
            metrics.watched(telling.kind, "deleted");
            listing.forget(object.meta());
            send((telling.gone)(object.meta())).await?;
        }
    }
    Ok(())
}

/// A pod as the core wants it.
///
/// # Errors
/// When it cannot be: the API server would have rejected it.
pub fn seen_pod(pod: &core::Pod, names: &SchedulerNames) -> Result<SeenPod, String> {
    kinds::seen_pod(pod, names)
}

/// What says that an object is as given, or is gone.
fn other(event: Event) -> Seen {
    Seen::Update(Update::Other(event))
}

/// Dropping it ends the watches.
pub type Watches = JoinSet<()>;
