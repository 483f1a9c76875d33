//! The kubelet of one virtual node: admission, and the life of its pods. Pure: what must be written is returned as
//! [`Effects`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::Lower as _;
use berth_api::topology::NodeResourceTopology;
use berth_kubelet::{Kubelet, KubeletConfig, Reason};
use berth_model::machine::{CoreSpec, Machine, MachineSpec, NumaSpec};
use berth_model::node::Node;
use berth_model::spec::PodSpec;
use berth_topology::Inside;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{self as core, Pod, PodStatus};

use crate::clock::{later, seconds};
use crate::controllers::pods::{condition, is_finished, is_terminating, restarts_max};
use crate::events::Note;
use crate::key::{Key, annotation, uid};

use super::Options;
use super::fit::{self, Refusal};
use super::script::Script;
use super::status::{self, Activity, Exit, PodRuntime};
use berth_api::keys::VIRTUAL_DEVICES;
use berth_topology::assignment::Assignment;

/// Exit codes of containers that are stopped, and of those that never started.
const TERMINATED: i32 = 143;
const KILLED: i32 = 137;

/// The minimum restart delay, whatever the options say.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// Restarts whose delay doubles: 10 s, 20 s, 40 s and so on.
const DOUBLINGS_MAX: i32 = 16;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Write {
    pub(super) uid: String,
    pub(super) status: Option<PodStatus>,
    pub(super) assignment: Option<String>,
    /// Deletes the pod with grace period 0 after the other writes.
    pub(super) remove: bool,
}

/// What follows from an event on a node.
#[derive(Debug, Default)]
pub(super) struct Effects {
    pub(super) writes: Vec<(Key, Write)>,
    /// Times at which pods need another look, with UIDs.
    pub(super) alarms: Vec<(Timestamp, String)>,
    pub(super) notes: Vec<(Arc<Pod>, Note)>,
    pub(super) usage_changed: bool,
}

/// What a host needs from outside.
pub(super) struct Environment<'a> {
    pub(super) now: Timestamp,
    pub(super) options: &'a Options,
    /// Whether a pod has all devices it claims.
    pub(super) has_claims: &'a dyn Fn(&Pod) -> bool,
    pub(super) next_ip: &'a mut dyn FnMut() -> String,
}

/// A node that no kubelet could run on.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) struct InvalidNode(Box<dyn std::error::Error + Send + Sync>);

impl InvalidNode {
    fn new(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(cause.into())
    }
}

struct HostedPod {
    key: Key,
    pod: Arc<Pod>,
    spec: Arc<PodSpec>,
    script: Script,
    runtime: PodRuntime,
    stage: Stage,
    /// Its deletion has been requested.
    removed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    Creating { until: Timestamp },
    Running { since: Timestamp, ready: bool },
    BackingOff { last: Exit, until: Timestamp, delay: Duration },
    Stopping { until: Timestamp, since: Option<Timestamp> },
    Ended,
}

pub(super) struct Host {
    node: Arc<core::Node>,
    lowered: Node,
    inside: Inside,
    kubelet: Kubelet,
    hosted_pods: BTreeMap<String, HostedPod>,
    reject_next: usize,
    host_ip: String,
}

impl Host {
    /// Starts a kubelet on a node.
    pub(super) fn new(
        node: Arc<core::Node>,
        topology: Option<&NodeResourceTopology>,
        host_ip: String,
    ) -> Result<Self, InvalidNode> {
        let lowered = node.lower().map_err(InvalidNode::new)?;
        let inside = berth_topology::read(&node, &lowered, topology, None);
        let inside = inside.map_err(InvalidNode::new)?;
        let kubelet = kubelet(&node, &inside)?;
        let hosted_pods = BTreeMap::new();
        Ok(Self { node, lowered, inside, kubelet, hosted_pods, reject_next: 0, host_ip })
    }

    /// Starts a kubelet on a node as if only its capacity were known, not its topology.
    pub(super) fn unknown(node: Arc<core::Node>, host_ip: String) -> Result<Self, InvalidNode> {
        let mut bare = (*node).clone();
        for map in [&mut bare.metadata.labels, &mut bare.metadata.annotations] {
            map.get_or_insert_default().retain(|key, _| !key.contains("berth.dev/"));
        }
        let host = Self::new(Arc::new(bare), None, host_ip)?;
        Ok(Self { node, ..host })
    }

    pub(super) fn node(&self) -> &Arc<core::Node> {
        &self.node
    }

    pub(super) fn kubelet(&self) -> &Kubelet {
        &self.kubelet
    }

    pub(super) fn is_inside_known(&self) -> bool {
        self.inside.machine.is_some()
    }

    /// Pods that hold resources.
    pub(super) fn holders(&self) -> impl Iterator<Item = &Key> {
        let holding = self.hosted_pods.values().filter(|hosted| hosted.stage != Stage::Ended);
        holding.map(|hosted| &hosted.key)
    }

    pub(super) fn uids(&self) -> Vec<String> {
        self.hosted_pods.keys().cloned().collect()
    }

    pub(super) fn reject_next(&mut self) {
        self.reject_next += 1;
    }

    /// Takes a changed Node object. The topology stays until the kubelet restarts.
    pub(super) fn update(&mut self, node: Arc<core::Node>) {
        if let Ok(lowered) = node.lower() {
            self.lowered = lowered;
        }
        self.node = node;
    }

    /// Restarts the kubelet: its memory is lost.
    pub(super) fn restart(&mut self) -> Result<(), InvalidNode> {
        self.kubelet = kubelet(&self.node, &self.inside)?;
        self.hosted_pods.clear();
        Ok(())
    }

    /// A pod was deleted.
    pub(super) fn gone(&mut self, uid: &str) -> Effects {
        self.hosted_pods.remove(uid);
        Effects { usage_changed: self.kubelet.remove(uid), ..Effects::default() }
    }

    /// A pod of this node was created or changed.
    pub(super) fn see(&mut self, pod: Arc<Pod>, environment: &mut Environment<'_>) -> Effects {
        let id = uid(&pod.metadata).to_owned();
        let mut effects = Effects::default();
        if let Some(hosted) = self.hosted_pods.get_mut(&id) {
            hosted.pod = pod;
            if hosted.is_marked_unready() {
                effects.writes.push((hosted.key.clone(), hosted.report(environment.now, None)));
            }
        } else {
            match self.arrive(&id, pod, environment, &mut effects) {
                Some(hosted) => self.hosted_pods.insert(id.clone(), hosted),
                None => return effects,
            };
        }
        self.advance(&id, environment, &mut effects);
        effects
    }

    pub(super) fn tick(&mut self, uid: &str, environment: &mut Environment<'_>) -> Effects {
        let mut effects = Effects::default();
        self.advance(uid, environment, &mut effects);
        effects
    }

    fn arrive(
        &mut self,
        id: &str,
        pod: Arc<Pod>,
        environment: &mut Environment<'_>,
        effects: &mut Effects,
    ) -> Option<HostedPod> {
        let script = Script::of(&pod, environment.options);
        let lowered = pod.lower();
        let known = pod.status.clone().unwrap_or_default();
        let started = known.start_time.as_ref().map(|time| time.0);
        let spec = lowered.as_ref().map(|lowered| Arc::clone(&lowered.spec)).unwrap_or_default();
        let mut hosted = HostedPod {
            key: Key::of(&pod.metadata),
            spec,
            script,
            runtime: PodRuntime {
                host_ip: self.host_ip.clone(),
                pod_ip: known.pod_ip.clone(),
                start_time: started.unwrap_or(environment.now),
                restarts: restarts_max(&pod),
                before: None,
            },
            stage: Stage::Ended,
            removed: false,
            pod,
        };
        if is_finished(&hosted.pod) {
            return Some(hosted);
        }
        hosted.stage = Stage::Creating { until: later(environment.now, hosted.script.start_after) };
        // The assignment from before a restart of the kubelet.
        let held = annotation(&hosted.pod.metadata, VIRTUAL_DEVICES)
            .filter(|_| started.is_some())
            .and_then(Assignment::read)
            .and_then(|assignment| assignment.admission(&self.kubelet));
        if held.is_some_and(|held| self.kubelet.adopt(id, &held).is_ok()) {
            effects.usage_changed = true;
            hosted.resume();
            return Some(hosted);
        }
        if is_terminating(&hosted.pod) {
            return Some(hosted);
        }
        let admitted = match lowered {
            Ok(_) => self.admit(id, &hosted.spec),
            Err(error) => Err(Some(unexpected(error.to_string()))),
        };
        match admitted {
            Ok(assignment) => {
                effects.usage_changed = true;
                hosted.resume();
                hosted.runtime.pod_ip.get_or_insert_with(|| (environment.next_ip)());
                effects
                    .writes
                    .push((hosted.key.clone(), hosted.report(environment.now, assignment)));
                Some(hosted)
            }
            // A kubelet that crashes does not report the pod.
            Err(None) => None,
            Err(Some(Refusal { reason, message })) => {
                let status = status::refused(&hosted.pod, &reason, &message, environment.now);
                effects.notes.push((Arc::clone(&hosted.pod), Note::warning(reason, message)));
                let write = Write { uid: id.to_owned(), status: Some(status), ..Write::default() };
                effects.writes.push((hosted.key.clone(), write));
                hosted.stage = Stage::Ended;
                Some(hosted)
            }
        }
    }

    /// Admits a pod and returns its assignment as text. `Err(None)`: the pod crashes the kubelet.
    fn admit(&mut self, id: &str, spec: &PodSpec) -> Result<Option<String>, Option<Refusal>> {
        if self.reject_next > 0 {
            self.reject_next -= 1;
            let cause = "Allocate failed due to a fault on demand, which is unexpected";
            return Err(Some(unexpected(cause.to_owned())));
        }
        let demand = self.kubelet.demand(&spec.pod);
        let demand = demand.map_err(|error| Some(unexpected(error.to_string())))?;
        let admission = self.kubelet.admit(id, &demand).map_err(|rejection| {
            if rejection.reason == Reason::KubeletFault {
                let node = &*self.lowered.name;
                tracing::error!(
                    node,
                    pod = id,
                    why = rejection.message,
                    "kubelet crashes on this pod"
                );
                return None;
            }
            let reason = rejection.reason.as_str().to_owned();
            Some(Refusal { reason, message: rejection.message })
        })?;
        let others = self.hosted_pods.values().filter(|hosted| hosted.stage != Stage::Ended);
        let fits = fit::check(&self.lowered, spec, others.map(|hosted| &*hosted.spec));
        if let Err(refusal) = fits {
            self.kubelet.remove(id);
            return Err(Some(refusal));
        }
        Ok(Some(Assignment::of(&admission, &self.kubelet).text()))
    }

    /// Performs all transitions of a pod that are due.
    fn advance(&mut self, id: &str, environment: &mut Environment<'_>, effects: &mut Effects) {
        let Some(hosted) = self.hosted_pods.get_mut(id) else { return };
        let before = hosted.stage.clone();
        let end = hosted.advance_stages(environment, &mut effects.notes);
        if hosted.stage == Stage::Ended && before != Stage::Ended {
            effects.usage_changed |= self.kubelet.remove(id);
        }
        let deleted =
            hosted.stage == Stage::Ended && is_terminating(&hosted.pod) && !hosted.removed;
        hosted.removed |= deleted;
        if end.is_some() || deleted {
            let status = end;
            let write = Write { uid: id.to_owned(), status, remove: deleted, ..Write::default() };
            effects.writes.push((hosted.key.clone(), write));
        }
        if let Some(due) = hosted.due(environment.now) {
            effects.alarms.push((due, id.to_owned()));
        }
    }
}

impl HostedPod {
    /// Resumes a pod that ran before its kubelet was restarted.
    fn resume(&mut self) {
        let status = self.pod.status.as_ref();
        let containers = status.and_then(|status| status.container_statuses.as_ref());
        let running = containers.into_iter().flatten().find_map(|one| {
            let since = one.state.as_ref()?.running.as_ref()?.started_at.as_ref()?.0;
            Some((since, one.ready))
        });
        if let Some((since, ready)) = running {
            self.stage = Stage::Running { since, ready };
        }
    }

    /// Whether the node controller marked the pod unready although it is ready.
    fn is_marked_unready(&self) -> bool {
        let said = condition(&self.pod, "Ready");
        let given_up = said.is_some_and(|said| said.reason.as_deref() == Some("NodeNotReady"));
        given_up && matches!(self.stage, Stage::Running { ready: true, .. })
    }

    fn activity(&self, now: Timestamp) -> Activity {
        match &self.stage {
            Stage::Creating { .. } => Activity::Creating,
            Stage::Running { since, ready } => Activity::Running { since: *since, ready: *ready },
            Stage::BackingOff { last, delay, .. } => {
                Activity::BackingOff { last: last.clone(), delay_s: delay.as_secs() }
            }
            Stage::Stopping { since, .. } => {
                Activity::Running { since: since.unwrap_or(now), ready: false }
            }
            Stage::Ended => {
                let last = Exit { started: None, finished: now, code: KILLED };
                Activity::Ended { last }
            }
        }
    }

    fn report(&self, now: Timestamp, assignment: Option<String>) -> Write {
        let status = status::status(&self.pod, &self.runtime, &self.activity(now), None, now);
        let uid = uid(&self.pod.metadata).to_owned();
        Write { uid, status: Some(status), assignment, remove: false }
    }

    /// Performs all transitions that are due. Returns the last status, if anything changed.
    fn advance_stages(
        &mut self,
        environment: &mut Environment<'_>,
        notes: &mut Vec<(Arc<Pod>, Note)>,
    ) -> Option<PodStatus> {
        let mut last = None;
        let mut before = self.stage.clone();
        // This ends: each step leads to another stage, and restarts have a minimum delay.
        while let Some(status) = self.step(environment) {
            last = Some(status);
            let made = transition(&before, &self.stage, &self.pod);
            notes.extend(made.into_iter().map(|note| (Arc::clone(&self.pod), note)));
            before = self.stage.clone();
        }
        last
    }

    fn step(&mut self, environment: &mut Environment<'_>) -> Option<PodStatus> {
        let now = environment.now;
        if let Some(status) = self.stop(environment) {
            return Some(status);
        }
        if self.deadline().is_some_and(|deadline| deadline <= now)
            && !matches!(self.stage, Stage::Ended | Stage::Stopping { .. })
        {
            let message = "Pod was active on the node longer than the specified deadline";
            return Some(self.end(KILLED, Some(("DeadlineExceeded", message)), now));
        }
        match self.stage.clone() {
            Stage::Creating { until } if until <= now && (environment.has_claims)(&self.pod) => {
                self.runtime.pod_ip.get_or_insert_with(|| (environment.next_ip)());
                let ready = self.script.ready_after.is_zero();
                self.stage = Stage::Running { since: now, ready };
            }
            Stage::Running { since, .. } if self.ends_at(since).is_some_and(|at| at <= now) => {
                return Some(self.exit(since, environment));
            }
            Stage::Running { since, ready: false }
                if later(since, self.script.ready_after) <= now =>
            {
                self.stage = Stage::Running { since, ready: true };
            }
            Stage::BackingOff { last, until, .. } if until <= now => {
                self.runtime.restarts = self.runtime.restarts.saturating_add(1);
                self.runtime.before = Some(last);
                let ready = self.script.ready_after.is_zero();
                self.stage = Stage::Running { since: now, ready };
            }
            _ => return None,
        }
        Some(status::status(&self.pod, &self.runtime, &self.activity(now), None, now))
    }

    /// Stops a pod that is being deleted.
    fn stop(&mut self, environment: &Environment<'_>) -> Option<PodStatus> {
        let now = environment.now;
        if !is_terminating(&self.pod) {
            return None;
        }
        match self.stage.clone() {
            Stage::Ended => None,
            Stage::Stopping { until, .. } if until > now => None,
            Stage::Stopping { .. } => Some(self.end(TERMINATED, None, now)),
            Stage::Running { since, .. } => {
                let grace = self.pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
                let wait = self.script.stop_after.min(seconds(grace));
                self.stage = Stage::Stopping { until: later(now, wait), since: Some(since) };
                Some(status::status(&self.pod, &self.runtime, &self.activity(now), None, now))
            }
            Stage::Creating { .. } | Stage::BackingOff { .. } => Some(self.end(KILLED, None, now)),
        }
    }

    fn started(&self) -> Option<Timestamp> {
        match &self.stage {
            Stage::Running { since, .. } => Some(*since),
            Stage::Stopping { since, .. } => *since,
            Stage::BackingOff { last, .. } => last.started,
            Stage::Creating { .. } | Stage::Ended => None,
        }
    }

    fn end(&mut self, code: i32, why: Option<(&str, &str)>, now: Timestamp) -> PodStatus {
        let last = Exit { started: self.started(), finished: now, code };
        self.stage = Stage::Ended;
        status::status(&self.pod, &self.runtime, &Activity::Ended { last }, why, now)
    }

    fn exit(&mut self, since: Timestamp, environment: &Environment<'_>) -> PodStatus {
        let now = environment.now;
        let code = self.script.exit_code;
        if !self.script.restarts() {
            return self.end(code, None, now);
        }
        // The first restart is immediate, later ones back off.
        let doublings = self.runtime.restarts.min(DOUBLINGS_MAX);
        let factor = if doublings == 0 { 0 } else { 1_u32 << (doublings - 1).max(0) };
        let delay = environment.options.restart_backoff.saturating_mul(factor);
        let delay = delay.min(environment.options.restart_backoff_max);
        let last = Exit { started: Some(since), finished: now, code };
        // Without a pause, containers that exit at once would restart in a loop.
        let pause = delay.max(environment.options.restart_pause).max(SHORTEST_PAUSE);
        self.stage = Stage::BackingOff { last, until: later(now, pause), delay };
        status::status(&self.pod, &self.runtime, &self.activity(now), None, now)
    }

    fn ends_at(&self, since: Timestamp) -> Option<Timestamp> {
        self.script.run_for.map(|time| later(since, time))
    }

    fn deadline(&self) -> Option<Timestamp> {
        let limit = self.pod.spec.as_ref()?.active_deadline_seconds?;
        Some(later(self.runtime.start_time, seconds(limit)))
    }

    /// The next transition by time. A pod that waits for its claims has none: a change of a claim wakes it.
    fn due(&self, now: Timestamp) -> Option<Timestamp> {
        let deadline = self.deadline();
        let next = match &self.stage {
            Stage::Ended => return None,
            Stage::Stopping { until, .. } => return Some(*until),
            Stage::Creating { until } => Some(*until).filter(|until| *until > now),
            Stage::BackingOff { until, .. } => Some(*until),
            Stage::Running { since, ready } => {
                let ready_at = (!ready).then(|| later(*since, self.script.ready_after));
                ready_at.into_iter().chain(self.ends_at(*since)).min()
            }
        };
        next.into_iter().chain(deadline).min()
    }
}

/// The Events of a kubelet when a pod goes from one stage to another.
fn transition(before: &Stage, after: &Stage, pod: &Pod) -> Vec<Note> {
    let spec = pod.spec.as_ref();
    let containers = spec.into_iter().flat_map(|spec| &spec.containers);
    match (before, after) {
        (Stage::Creating { .. } | Stage::BackingOff { .. }, Stage::Running { .. }) => {
            let first = matches!(before, Stage::Creating { .. });
            let inits = spec.and_then(|spec| spec.init_containers.as_ref());
            let inits = inits.into_iter().flatten().filter(|_| first);
            let started = |one: &core::Container| {
                let image = one.image.as_deref().unwrap_or_default();
                [
                    Note::normal(
                        "Pulled",
                        format!("Container image \"{image}\" already present on machine"),
                    ),
                    Note::normal("Created", format!("Created container: {}", one.name)),
                    Note::normal("Started", format!("Started container {}", one.name)),
                ]
            };
            inits.chain(containers).flat_map(started).collect()
        }
        (Stage::Running { .. }, Stage::Stopping { .. }) => {
            let stopping = |one: &core::Container| {
                Note::normal("Killing", format!("Stopping container {}", one.name))
            };
            containers.map(stopping).collect()
        }
        (Stage::Running { .. }, Stage::BackingOff { .. }) => {
            let waiting = |one: &core::Container| {
                let (name, namespace) =
                    (crate::key::name(&pod.metadata), crate::key::namespace(&pod.metadata));
                let text = format!(
                    "Back-off restarting failed container {} in pod {name}_{namespace}({})",
                    one.name,
                    uid(&pod.metadata)
                );
                Note::warning("BackOff", text)
            };
            containers.map(waiting).collect()
        }
        _ => Vec::new(),
    }
}

fn unexpected(message: String) -> Refusal {
    Refusal { reason: "UnexpectedAdmissionError".to_owned(), message }
}

/// A kubelet without pods. A node of unknown topology is one NUMA node without SMT.
fn kubelet(node: &core::Node, inside: &Inside) -> Result<Kubelet, InvalidNode> {
    let devices = inside.devices().map_err(InvalidNode::new)?;
    let (machine, config) = match &inside.machine {
        Some((machine, config)) => (Arc::clone(machine), config.clone()),
        None => (Arc::new(plain(node)?), KubeletConfig::default()),
    };
    Kubelet::new(machine, config, devices).map_err(InvalidNode::new)
}

fn plain(node: &core::Node) -> Result<Machine, InvalidNode> {
    let status = node.status.as_ref();
    let capacity =
        status.and_then(|status| status.capacity.as_ref().or(status.allocatable.as_ref()));
    let amount = |name: &str| {
        let text = capacity.and_then(|list| list.get(name))?;
        let value = berth_model::quantity::Quantity::parse(&text.0).ok()?.value();
        u64::try_from(value).ok()
    };
    let cpus = amount("cpu").unwrap_or(1).clamp(1, berth_model::idset::IdSet::CAPACITY as u64);
    let core =
        |cpu: u64| CoreSpec { numa: 0, socket: 0, uncore: None, threads: vec![cpu as usize] };
    let numa =
        NumaSpec { memory_bytes: amount("memory").unwrap_or(1 << 30), ..NumaSpec::default() };
    let spec =
        MachineSpec { sockets: None, numa: vec![numa], cores: (0..cpus).map(core).collect() };
    Machine::new(spec).map_err(InvalidNode::new)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
