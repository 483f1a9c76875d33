//! The kubelet of one virtual node: admission, and the life of its pods. Pure: what must be written is returned as
//! [`Orders`].

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
use super::status::{self, Doing, Exit, Home};
use berth_api::keys::VIRTUAL_DEVICES;
use berth_topology::assignment::Assignment;

/// What containers exit with that are told to end, and those that never began.
const TERMINATED: i32 = 143;
const KILLED: i32 = 137;

/// Whatever options say, a container is not started again in the same moment.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// Restarts that wait longer than all before: 10 s, 20 s, 40 s and so on.
const DOUBLINGS_MAX: i32 = 16;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Write {
    pub(super) uid: String,
    pub(super) status: Option<PodStatus>,
    pub(super) assignment: Option<String>,
    /// The pod is to be deleted for good, after that.
    pub(super) remove: bool,
}

/// What follows from something that happened on a node.
#[derive(Debug, Default)]
pub(super) struct Orders {
    pub(super) writes: Vec<(Key, Write)>,
    /// When to look at which pod again.
    pub(super) alarms: Vec<(Timestamp, String)>,
    pub(super) notes: Vec<(Arc<Pod>, Note)>,
    pub(super) books_changed: bool,
}

/// What a host sees of the rest of the world.
pub(super) struct Around<'a> {
    pub(super) now: Timestamp,
    pub(super) options: &'a Options,
    /// Whether a pod has all devices it claims.
    pub(super) has_claims: &'a dyn Fn(&Pod) -> bool,
    pub(super) next_ip: &'a mut dyn FnMut() -> String,
}

struct Guest {
    key: Key,
    pod: Arc<Pod>,
    spec: Arc<PodSpec>,
    script: Script,
    home: Home,
    stage: Stage,
    /// The order to delete it has been given.
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
    books: Kubelet,
    guests: BTreeMap<String, Guest>,
    reject_next: usize,
    host_ip: String,
}

impl Host {
    /// A kubelet that starts on a node.
    ///
    /// # Errors
    /// When the node is one that no kubelet could run on.
    pub(super) fn new(
        node: Arc<core::Node>,
        topology: Option<&NodeResourceTopology>,
        host_ip: String,
    ) -> Result<Self, String> {
        let lowered = node.lower().map_err(|error| error.to_string())?;
        let inside = berth_topology::read(&node, &lowered, topology, None);
        let inside = inside.map_err(|error| error.to_string())?;
        let books = books(&node, &inside)?;
        let guests = BTreeMap::new();
        Ok(Self { node, lowered, inside, books, guests, reject_next: 0, host_ip })
    }

    /// A kubelet on a node of whose inside nothing is known but how much of everything there is.
    ///
    /// # Errors
    /// As for [`Host::new`].
    pub(super) fn unknown(node: Arc<core::Node>, host_ip: String) -> Result<Self, String> {
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

    pub(super) fn books(&self) -> &Kubelet {
        &self.books
    }

    /// Whether it is known what the node looks like inside.
    pub(super) fn is_inside_known(&self) -> bool {
        self.inside.machine.is_some()
    }

    /// Namespaces and names of the pods that hold something.
    pub(super) fn holders(&self) -> impl Iterator<Item = &Key> {
        let holding = self.guests.values().filter(|guest| guest.stage != Stage::Ended);
        holding.map(|guest| &guest.key)
    }

    pub(super) fn uids(&self) -> Vec<String> {
        self.guests.keys().cloned().collect()
    }

    pub(super) fn reject_next(&mut self) {
        self.reject_next += 1;
    }

    /// The node object has changed. What it looks like inside stays until the kubelet restarts.
    pub(super) fn update(&mut self, node: Arc<core::Node>) {
        if let Ok(lowered) = node.lower() {
            self.lowered = lowered;
        }
        self.node = node;
    }

    /// The kubelet has lost everything it had in memory.
    ///
    /// # Errors
    /// As for [`Host::new`].
    pub(super) fn restart(&mut self) -> Result<(), String> {
        self.books = books(&self.node, &self.inside)?;
        self.guests.clear();
        Ok(())
    }

    /// A pod is not there any more.
    pub(super) fn gone(&mut self, uid: &str) -> Orders {
        self.guests.remove(uid);
        Orders { books_changed: self.books.remove(uid), ..Orders::default() }
    }

    /// A pod of this node is there and looks like this.
    pub(super) fn see(&mut self, pod: Arc<Pod>, around: &mut Around<'_>) -> Orders {
        let id = uid(&pod.metadata).to_owned();
        let mut orders = Orders::default();
        if let Some(guest) = self.guests.get_mut(&id) {
            guest.pod = pod;
            if guest.is_contradicted() {
                orders.writes.push((guest.key.clone(), guest.report(around.now, None)));
            }
        } else {
            match self.arrive(&id, pod, around, &mut orders) {
                Some(guest) => self.guests.insert(id.clone(), guest),
                None => return orders,
            };
        }
        self.advance(&id, around, &mut orders);
        orders
    }

    pub(super) fn tick(&mut self, uid: &str, around: &mut Around<'_>) -> Orders {
        let mut orders = Orders::default();
        self.advance(uid, around, &mut orders);
        orders
    }

    fn arrive(
        &mut self,
        id: &str,
        pod: Arc<Pod>,
        around: &mut Around<'_>,
        orders: &mut Orders,
    ) -> Option<Guest> {
        let script = Script::of(&pod, around.options);
        let lowered = pod.lower();
        let known = pod.status.clone().unwrap_or_default();
        let started = known.start_time.as_ref().map(|time| time.0);
        let spec = lowered.as_ref().map(|lowered| Arc::clone(&lowered.spec)).unwrap_or_default();
        let mut guest = Guest {
            key: Key::of(&pod.metadata),
            spec,
            script,
            home: Home {
                host_ip: self.host_ip.clone(),
                pod_ip: known.pod_ip.clone(),
                start_time: started.unwrap_or(around.now),
                restarts: restarts_max(&pod),
                before: None,
            },
            stage: Stage::Ended,
            removed: false,
            pod,
        };
        if is_finished(&guest.pod) {
            return Some(guest);
        }
        guest.stage = Stage::Creating { until: later(around.now, guest.script.start_after) };
        // What it was given before the kubelet was started again.
        let held = annotation(&guest.pod.metadata, VIRTUAL_DEVICES)
            .filter(|_| started.is_some())
            .and_then(|text| Assignment::read(text))
            .and_then(|assignment| assignment.admission(&self.books));
        if held.is_some_and(|held| self.books.adopt(id, &held).is_ok()) {
            orders.books_changed = true;
            guest.resume();
            return Some(guest);
        }
        if is_terminating(&guest.pod) {
            return Some(guest);
        }
        let admitted = match lowered {
            Ok(_) => self.admit(id, &guest.spec),
            Err(error) => Err(Some(unexpected(error.to_string()))),
        };
        match admitted {
            Ok(assignment) => {
                orders.books_changed = true;
                guest.resume();
                guest.home.pod_ip.get_or_insert_with(|| (around.next_ip)());
                orders.writes.push((guest.key.clone(), guest.report(around.now, assignment)));
                Some(guest)
            }
            // A kubelet that crashes says nothing about the pod.
            Err(None) => None,
            Err(Some(Refusal { reason, message })) => {
                let status = status::refused(&guest.pod, &reason, &message, around.now);
                orders.notes.push((Arc::clone(&guest.pod), Note::warning(reason, message)));
                let write = Write { uid: id.to_owned(), status: Some(status), ..Write::default() };
                orders.writes.push((guest.key.clone(), write));
                guest.stage = Stage::Ended;
                Some(guest)
            }
        }
    }

    /// What the pod is given, as text; or why it is refused; or neither, if that kills the kubelet.
    fn admit(&mut self, id: &str, spec: &PodSpec) -> Result<Option<String>, Option<Refusal>> {
        if self.reject_next > 0 {
            self.reject_next -= 1;
            let cause = "Allocate failed due to a fault on demand, which is unexpected";
            return Err(Some(unexpected(cause.to_owned())));
        }
        let demand = self.books.demand(&spec.pod);
        let demand = demand.map_err(|error| Some(unexpected(error.to_string())))?;
        let admission = self.books.admit(id, &demand).map_err(|rejection| {
            if rejection.reason == Reason::KubeletFault {
                let node = &*self.lowered.name;
                tracing::error!(node, pod = id, why = rejection.message, "the kubelet is stuck");
                return None;
            }
            let reason = rejection.reason.as_str().to_owned();
            Some(Refusal { reason, message: rejection.message })
        })?;
        let others = self.guests.values().filter(|guest| guest.stage != Stage::Ended);
        let fits = fit::check(&self.lowered, spec, others.map(|guest| &*guest.spec));
        if let Err(refusal) = fits {
            self.books.remove(id);
            return Err(Some(refusal));
        }
        Ok(Some(Assignment::of(&admission, &self.books).text()))
    }

    /// Lets everything happen to a pod that is due.
    fn advance(&mut self, id: &str, around: &mut Around<'_>, orders: &mut Orders) {
        let Some(guest) = self.guests.get_mut(id) else { return };
        let before = guest.stage.clone();
        let end = guest.step_all(around, &mut orders.notes);
        if guest.stage == Stage::Ended && before != Stage::Ended {
            orders.books_changed |= self.books.remove(id);
        }
        let deleted = guest.stage == Stage::Ended && is_terminating(&guest.pod) && !guest.removed;
        guest.removed |= deleted;
        if end.is_some() || deleted {
            let status = end;
            let write = Write { uid: id.to_owned(), status, remove: deleted, ..Write::default() };
            orders.writes.push((guest.key.clone(), write));
        }
        if let Some(due) = guest.due(around.now) {
            orders.alarms.push((due, id.to_owned()));
        }
    }
}

impl Guest {
    /// Takes up what a pod was doing before its kubelet was started again.
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

    /// Somebody took the node for dead and said that the pod is not ready.
    fn is_contradicted(&self) -> bool {
        let said = condition(&self.pod, "Ready");
        let given_up = said.is_some_and(|said| said.reason.as_deref() == Some("NodeNotReady"));
        given_up && matches!(self.stage, Stage::Running { ready: true, .. })
    }

    fn doing(&self, now: Timestamp) -> Doing {
        match &self.stage {
            Stage::Creating { .. } => Doing::Creating,
            Stage::Running { since, ready } => Doing::Running { since: *since, ready: *ready },
            Stage::BackingOff { last, delay, .. } => {
                Doing::BackingOff { last: last.clone(), delay_s: delay.as_secs() }
            }
            Stage::Stopping { since, .. } => {
                Doing::Running { since: since.unwrap_or(now), ready: false }
            }
            Stage::Ended => {
                let last = Exit { started: None, finished: now, code: KILLED };
                Doing::Ended { last }
            }
        }
    }

    fn report(&self, now: Timestamp, assignment: Option<String>) -> Write {
        let status = status::status(&self.pod, &self.home, &self.doing(now), None, now);
        let uid = uid(&self.pod.metadata).to_owned();
        Write { uid, status: Some(status), assignment, remove: false }
    }

    /// Does every step that is due. What is to be said of the pod then, if anything changed.
    fn step_all(
        &mut self,
        around: &mut Around<'_>,
        notes: &mut Vec<(Arc<Pod>, Note)>,
    ) -> Option<PodStatus> {
        let mut last = None;
        let mut before = self.stage.clone();
        // Each step leads to another stage; a container that runs for no time is restarted later.
        while let Some(status) = self.step(around) {
            last = Some(status);
            let made = transition(&before, &self.stage, &self.pod);
            notes.extend(made.into_iter().map(|note| (Arc::clone(&self.pod), note)));
            before = self.stage.clone();
        }
        last
    }

    fn step(&mut self, around: &mut Around<'_>) -> Option<PodStatus> {
        let now = around.now;
        if let Some(status) = self.stop(around) {
            return Some(status);
        }
        if self.deadline().is_some_and(|deadline| deadline <= now)
            && !matches!(self.stage, Stage::Ended | Stage::Stopping { .. })
        {
            let message = "Pod was active on the node longer than the specified deadline";
            return Some(self.end(KILLED, Some(("DeadlineExceeded", message)), now));
        }
        match self.stage.clone() {
            Stage::Creating { until } if until <= now && (around.has_claims)(&self.pod) => {
                self.home.pod_ip.get_or_insert_with(|| (around.next_ip)());
                let ready = self.script.ready_after.is_zero();
                self.stage = Stage::Running { since: now, ready };
            }
            Stage::Running { since, .. } if self.ends_at(since).is_some_and(|at| at <= now) => {
                return Some(self.exit(since, around));
            }
            Stage::Running { since, ready: false }
                if later(since, self.script.ready_after) <= now =>
            {
                self.stage = Stage::Running { since, ready: true };
            }
            Stage::BackingOff { last, until, .. } if until <= now => {
                self.home.restarts = self.home.restarts.saturating_add(1);
                self.home.before = Some(last);
                let ready = self.script.ready_after.is_zero();
                self.stage = Stage::Running { since: now, ready };
            }
            _ => return None,
        }
        Some(status::status(&self.pod, &self.home, &self.doing(now), None, now))
    }

    /// A pod that is being deleted is told to end, and ends.
    fn stop(&mut self, around: &Around<'_>) -> Option<PodStatus> {
        let now = around.now;
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
                Some(status::status(&self.pod, &self.home, &self.doing(now), None, now))
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
        status::status(&self.pod, &self.home, &Doing::Ended { last }, why, now)
    }

    fn exit(&mut self, since: Timestamp, around: &Around<'_>) -> PodStatus {
        let now = around.now;
        let code = self.script.exit_code;
        if !self.script.restarts() {
            return self.end(code, None, now);
        }
        // The first time containers start again at once, then later and later.
        let doublings = self.home.restarts.min(DOUBLINGS_MAX);
        let factor = if doublings == 0 { 0 } else { 1_u32 << (doublings - 1).max(0) };
        let delay = around.options.restart_backoff.saturating_mul(factor);
        let delay = delay.min(around.options.restart_backoff_max);
        let last = Exit { started: Some(since), finished: now, code };
        // A container that runs for no time must not be restarted without any.
        let pause = delay.max(around.options.restart_pause).max(SHORTEST_PAUSE);
        self.stage = Stage::BackingOff { last, until: later(now, pause), delay };
        status::status(&self.pod, &self.home, &self.doing(now), None, now)
    }

    fn ends_at(&self, since: Timestamp) -> Option<Timestamp> {
        self.script.run_for.map(|time| later(since, time))
    }

    fn deadline(&self) -> Option<Timestamp> {
        let limit = self.pod.spec.as_ref()?.active_deadline_seconds?;
        Some(later(self.home.start_time, seconds(limit)))
    }

    /// When something happens next, if nothing comes from outside. A pod that only waits for its
    /// claims waits for news of them.
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

/// Empty books of a node; of one that says nothing of its inside, as of a machine of one piece.
fn books(node: &core::Node, inside: &Inside) -> Result<Kubelet, String> {
    let devices = inside.devices().map_err(|error| error.to_string())?;
    let (machine, config) = match &inside.machine {
        Some((machine, config)) => (Arc::clone(machine), config.clone()),
        None => (Arc::new(plain(node)?), KubeletConfig::default()),
    };
    Kubelet::new(machine, config, devices).map_err(|error| error.to_string())
}

fn plain(node: &core::Node) -> Result<Machine, String> {
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
    Machine::new(spec).map_err(|error| error.to_string())
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
