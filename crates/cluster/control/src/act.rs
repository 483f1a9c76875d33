//! Carries out effects of the core: calls to the API server, with timeouts. Every outcome goes back to the core, a
//! missing answer as well.

mod answer;
mod attempts;
mod claims;
pub(crate) mod fence;
mod requests;
mod volumes;

pub(crate) use self::claims::FINALIZER;
pub(crate) use self::claims::extended::EXTENDED_RESOURCE_CLAIM;
pub(crate) use self::volumes::{BOUND_BY_CONTROLLER, SELECTED_NODE};

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1 as core;
use kube::Client;
use kube::api::Api;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use self::answer::is_final;

use crate::core::{
    BindOrder, BindOutcome, Completion, Effect, EventNote, EvictOutcome, Eviction, StatusUpdate,
    Update,
};
use crate::lease::{AnnounceError, Leadership, PodRef};
use crate::metrics::Metrics;
use crate::object_statuses::ObjectStatus;
use crate::watch::{SchedulerNames, seen_pod};

/// Timeout of a single call.
const CALL: Duration = Duration::from_secs(10);

/// Delay between attempts to read a pod.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "moved once; a box for each would cost more")]
pub(crate) enum Back {
    Done(Completion),
    /// A pod that was read again.
    Update(Update),
    /// The status of one of Berth's objects could not be written.
    Unwritten(&'static str, Arc<str>),
    /// The term is over.
    Lost,
}

pub(crate) struct Actor {
    client: Client,
    leadership: Arc<Leadership>,
    names: SchedulerNames,
    identity: Arc<str>,
    metrics: Metrics,
    back: mpsc::UnboundedSender<Back>,
}

impl Actor {
    pub(crate) fn new(
        client: Client,
        leadership: Arc<Leadership>,
        (names, identity): (SchedulerNames, Arc<str>),
        metrics: Metrics,
        back: mpsc::UnboundedSender<Back>,
    ) -> Self {
        Self { client, leadership, names, identity, metrics, back }
    }

    /// Starts an effect. `annotation` is the placement of a pod to bind.
    pub(crate) fn carry_out(self: &Arc<Self>, effect: Effect, annotation: Option<Arc<str>>) {
        let actor = self.clone();
        match effect {
            Effect::Settle(pods) => actor.leadership.settle(pods),
            Effect::Announce(pods) => drop(tokio::spawn(async move { actor.announce(pods).await })),
            Effect::Bind(order) => {
                drop(tokio::spawn(async move { actor.bind(&order, annotation.as_deref()).await }))
            }
            Effect::ReadPod(pod) => drop(tokio::spawn(async move { actor.read_pod(&pod).await })),
            Effect::Evict(order) => drop(tokio::spawn(async move { actor.evict(order).await })),
            Effect::Fence(pod) => drop(tokio::spawn(async move { actor.fence(pod).await })),
            Effect::WriteStatus(told) => drop(tokio::spawn(async move { actor.tell(told).await })),
        }
    }

    /// After the end of the term nobody receives.
    fn send(&self, back: Back) {
        drop(self.back.send(back));
    }

    /// Reports an update before the watch does.
    fn report(&self, news: Update) {
        self.send(Back::Update(news));
    }

    /// Writes the Lease once more; whether this replica still leads.
    async fn still_leads(&self) -> bool {
        self.leadership.announce(Vec::new()).await.is_ok()
    }

    async fn announce(&self, pods: Vec<PodRef>) {
        loop {
            match self.leadership.announce(pods.clone()).await {
                Ok(()) => return self.send(Back::Done(Completion::Announced)),
                // Settled pods leave the list with the next renewal.
                Err(AnnounceError::Full { .. }) => tokio::time::sleep(LOOK_AGAIN / 10).await,
                Err(AnnounceError::Lost(why)) => {
                    debug!(%why, "cannot announce bindings: no longer the leader");
                    return self.send(Back::Lost);
                }
            }
        }
    }

    async fn bind(&self, order: &BindOrder, annotation: Option<&str>) {
        let started = Instant::now();
        // Boxed: few pods need this, and its state would make every binding larger.
        let (has_claims, has_volumes) = (claims::concern(order), !order.volumes.is_empty());
        let prepared = if has_claims || has_volumes {
            Box::pin(self.prepare(order)).await
        } else {
            Ok(order.version)
        };
        let outcome = match prepared {
            Ok(version) => self.post_binding(order, version, annotation).await,
            Err(outcome) => outcome,
        };
        let is_over =
            matches!(outcome, BindOutcome::Refused | BindOutcome::Gone | BindOutcome::Stale);
        if is_over && has_claims {
            Box::pin(claims::unreserve(self, order)).await;
        }
        let result = match outcome {
            BindOutcome::Bound => "bound",
            BindOutcome::Conflict => "conflict",
            BindOutcome::Gone => "gone",
            BindOutcome::Busy => "busy",
            BindOutcome::NotReady => "not_ready",
            BindOutcome::Unprepared => "unprepared",
            BindOutcome::Refused => "rejected",
            BindOutcome::Stale => "stale",
            BindOutcome::Unknown => "unknown",
        };
        self.metrics.bound(result, started.elapsed());
        self.send(Back::Done(Completion::Bound(order.pod.uid.clone(), outcome)));
    }

    /// Prepares devices and volumes. Returns the version of the pod to bind.
    async fn prepare(&self, order: &BindOrder) -> Result<u64, BindOutcome> {
        volumes::prepare(self, order).await?;
        claims::prepare(self, order).await
    }

    async fn post_binding(
        &self,
        order: &BindOrder,
        version: u64,
        annotation: Option<&str>,
    ) -> BindOutcome {
        let Some(request) = requests::binding(order, version, annotation) else {
            return BindOutcome::Refused;
        };
        let code = self.call(request, "create", "pods/binding").await;
        match code {
            Ok(()) => BindOutcome::Bound,
            Err(Some((409, _))) => BindOutcome::Conflict,
            Err(Some((404, _))) => BindOutcome::Gone,
            Err(Some((429, _))) => BindOutcome::Busy,
            Err(Some((code, message))) if is_final(code, &message) => {
                warn!(pod = %order.pod.name, code, message, "binding rejected");
                let node = &order.binding.node;
                let note =
                    format!("Binding to {node} rejected by the API server: {message}").into();
                let note = EventNote { warning: true, reason: "FailedBinding", note };
                let event = requests::event(&order.pod, &note, &self.identity);
                drop(self.call(event, "create", "events").await);
                BindOutcome::Refused
            }
            Err(Some((code, message))) => {
                debug!(pod = %order.pod.name, code, message, "binding outcome unknown");
                BindOutcome::Unknown
            }
            Err(None) => BindOutcome::Unknown,
        }
    }

    /// Makes a call and discards the answer. The error is the API's code and message, or `None` if there was no
    /// answer.
    async fn call(
        &self,
        request: http::Request<Vec<u8>>,
        verb: &'static str,
        resource: &'static str,
    ) -> Result<(), Option<(u16, String)>> {
        let answer = tokio::time::timeout(CALL, answer::ask(&self.client, request)).await;
        let (result, code) = match answer {
            Ok(Ok(Ok(()))) => (Ok(()), 200),
            Ok(Ok(Err((code, message)))) => (Err(Some((code, message))), code),
            Ok(Err(error)) => {
                debug!(verb, resource, %error, "no answer from the API server");
                (Err(None), 0)
            }
            Err(_) => (Err(None), 0),
        };
        self.metrics.called(verb, resource, code);
        result
    }

    async fn fence(&self, pod: PodRef) {
        let fenced = fence::fence(&self.client, &pod, &self.identity).await;
        match &fenced {
            Ok(()) => self.metrics.fenced(),
            Err(error) => {
                warn!(namespace = %pod.namespace, pod = %pod.name, %error, "fencing failed again; will retry")
            }
        }
        self.send(Back::Done(Completion::Fenced(pod.uid, fenced.is_ok())));
    }

    /// Reads a pod, and repeats until there is an answer.
    async fn read_pod(&self, pod: &PodRef) {
        let api: Api<core::Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        while !self.back.is_closed() {
            let seen = tokio::time::timeout(CALL, api.get_opt(&pod.name)).await;
            self.metrics.called("get", "pods", if matches!(seen, Ok(Ok(_))) { 200 } else { 0 });
            match seen {
                Ok(Ok(Some(found))) if found.metadata.uid.as_deref() == Some(&*pod.uid) => {
                    match seen_pod(&found, &self.names) {
                        Ok(seen) => self.send(Back::Update(Update::Pod(Box::new(seen)))),
                        Err(problem) => {
                            warn!(problem, "cannot decode pod");
                            self.send(Back::Update(Update::PodGone(pod.uid.clone())));
                        }
                    }
                    return;
                }
                Ok(Ok(_)) => return self.send(Back::Update(Update::PodGone(pod.uid.clone()))),
                Ok(Err(_)) | Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
            }
        }
    }

    /// Evicts a pod with the eviction API, which honours disruption budgets, then writes the condition
    /// `DisruptionTarget`. Not before: a budget may keep the pod, and the API server would overwrite the reason.
    async fn evict(&self, order: Eviction) {
        let answer = self.call(requests::eviction(&order.pod), "create", "pods/eviction").await;
        let (outcome, result) = match answer {
            Ok(()) | Err(Some((404, _))) => (EvictOutcome::Going, "going"),
            // Another pod with this name. Other conflicts do not tell.
            Err(Some((409, message))) if message.contains("precondition") => {
                (EvictOutcome::Going, "going")
            }
            Err(Some((409, _))) => (EvictOutcome::Unknown, "unknown"),
            Err(Some((429, message))) => {
                debug!(pod = %order.pod.name, message, "eviction blocked");
                (EvictOutcome::Blocked, "blocked")
            }
            Err(Some((code, message))) => {
                warn!(pod = %order.pod.name, code, message, "eviction failed");
                (EvictOutcome::Blocked, "failed")
            }
            Err(None) => (EvictOutcome::Unknown, "unknown"),
        };
        self.metrics.evicted("eviction", result);
        if outcome == EvictOutcome::Going {
            // A pod that is gone needs no event.
            drop(self.call(requests::disruption_target(&order), "patch", "pods/status").await);
            let note = requests::evicted_event(&order, &self.identity);
            drop(self.call(note, "create", "events").await);
        }
        self.send(Back::Done(Completion::Evicted(order.pod.uid, outcome)));
    }

    /// Writes the status of one of Berth's objects.
    pub(crate) fn show(self: &Arc<Self>, standing: ObjectStatus) {
        let actor = self.clone();
        tokio::spawn(async move {
            let ObjectStatus { plural, name, .. } = &standing;
            match actor.call(requests::status_patch(&standing), "patch", plural).await {
                Ok(()) | Err(Some((404, _))) => {}
                Err(why) => {
                    debug!(plural, %name, ?why, "cannot write status");
                    actor.send(Back::Unwritten(plural, name.clone()));
                }
            }
        });
    }

    async fn tell(&self, told: StatusUpdate) {
        let written = match requests::status(&told) {
            None => true,
            Some(request) => {
                let answer = self.call(request, "patch", "pods/status").await;
                match answer {
                    // A pod that is gone needs no status.
                    Ok(()) | Err(Some((404, _))) => true,
                    // A status that is rejected for good is not repeated until it changes.
                    Err(Some((code, message))) => is_final(code, &message),
                    Err(None) => false,
                }
            }
        };
        if let Some(note) = told.event.as_ref().filter(|_| written) {
            let event = requests::event(&told.pod, note, &self.identity);
            drop(self.call(event, "create", "events").await);
        }
        self.send(Back::Done(Completion::StatusWritten(told.pod.uid, written)));
    }
}
