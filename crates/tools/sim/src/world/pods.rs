//! What pods go through, and what their controllers do about it.
//!
//! Owns creation, binding, admission by the virtual kubelet, start, end, eviction and replacement.
//! Must not know services' load.

use std::sync::Arc;

use berth_engine::decision::Binding;
use berth_engine::event::Event;
use berth_kubelet::{PodDemand, Reason};
use berth_model::alignment::Alignment;
use berth_model::resource::ResourceName;
use berth_model::spec::{GpuGrant, Phase, PodObject, PodSpec};

use super::{Coming, World};
use crate::experiment::{Job, Workload, WorkloadKind};
use crate::node::Placed;
use crate::report::Stay;

/// No more stays than this are kept; the shortest are left out.
const STAYS_MAX: usize = 60_000;

/// Where a pod is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It looks for its place.
    Waiting,
    /// Its containers start and load.
    Starting,
    /// It does what it is for.
    Running,
    /// Its container ends and is started again, for ever.
    Crashing,
    /// It has been told to leave.
    Leaving,
    /// Its node is lost.
    Halted,
}

/// What a pod takes over from the one it replaces.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Past {
    /// Since when it has been wanted.
    pub(crate) since_ms: i64,
    /// Work that is done already.
    pub(crate) done_ms: i64,
    /// How often in a row it failed.
    pub(crate) failures: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Pod {
    pub(crate) object: PodObject,
    pub(crate) workload: usize,
    job: Option<usize>,
    number: u64,
    past: Past,
    pub(crate) fate: Fate,
    pub(crate) node: Option<usize>,
    pub(crate) placed: Placed,
    grant: Option<GpuGrant>,
    from_ms: i64,
    /// Since when it has been doing what it is for.
    running_ms: Option<i64>,
    /// Its node's kubelet never saw it.
    hangs: bool,
}

impl Pod {
    pub(crate) fn since_ms(&self) -> i64 {
        self.past.since_ms
    }

    fn is_share(&self) -> bool {
        self.grant.as_ref().is_some_and(|grant| grant.gpu.is_some())
    }
}

/// How far a job is.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobState {
    active: u32,
    /// Pods that failed and are to be replaced.
    pending: u32,
    succeeded: u32,
    failed: u32,
    given_up: bool,
}

fn uid_of(number: u64) -> Arc<str> {
    format!("{number:010}").into()
}

impl World<'_> {
    fn workload(&self, number: usize) -> Option<&Workload> {
        self.experiment.workloads.get(number)
    }

    fn job(&self, workload: usize, job: usize) -> Option<&Job> {
        match &self.workload(workload)?.kind {
            WorkloadKind::Jobs(jobs) => jobs.get(job),
            _ => None,
        }
    }

    pub(super) fn arrive(&mut self, workload: usize, job: usize) {
        let Some(spec) = self.job(workload, job) else { return };
        let count = spec.parallelism.max(1).min(spec.completions.max(1));
        let deadline_ms = spec.deadline_ms;
        if let Some(deadline_ms) = deadline_ms {
            let at_ms = self.now_ms.saturating_add(deadline_ms);
            self.later(at_ms, Coming::Deadline { workload, job });
        }
        for _ in 0..count {
            self.make_job_pod(workload, job, Past { since_ms: self.now_ms, ..Past::default() });
        }
    }

    fn make_job_pod(&mut self, workload: usize, job: usize, past: Past) {
        let Some(template) = self.job(workload, job).map(|job| job.template.clone()) else {
            return;
        };
        if let Some(state) = self.jobs.get_mut(workload).and_then(|jobs| jobs.get_mut(job)) {
            state.active += 1;
        }
        self.create(workload, Some(job), &template, past);
    }

    /// A pod is made.
    pub(super) fn create(
        &mut self,
        workload: usize,
        job: Option<usize>,
        template: &Arc<PodSpec>,
        past: Past,
    ) -> u64 {
        let spec = self.written(workload, template);
        self.pods_made += 1;
        let id = self.pods_made;
        let number = self.pods_of.get(workload).copied().unwrap_or(0);
        if let Some(count) = self.pods_of.get_mut(workload) {
            *count += 1;
        }
        let outline = self.workload(workload).map(|one| one.outline.clone()).unwrap_or_default();
        let object = PodObject {
            uid: uid_of(id),
            name: format!("{}-{number}", outline.name).into(),
            spec,
            created_at_ms: self.now_ms,
            started_at_ms: None,
            node: None,
            nominated: None,
            phase: Phase::Alive,
            deletion: None,
            gpu_grant: None,
            claims: Arc::default(),
        };
        self.submit(id, &object);
        self.meter.levels.waiting += 1;
        if past.failures == 0 {
            self.meter.class(&outline.class).pods += 1;
        }
        self.pods.insert(
            id,
            Pod {
                object,
                workload,
                job,
                number,
                past,
                fate: Fate::Waiting,
                node: None,
                placed: Placed::default(),
                grant: None,
                from_ms: 0,
                running_ms: None,
                hangs: false,
            },
        );
        id
    }

    /// The pod as its node's kubelet sees it.
    fn demand(
        &mut self,
        spec: &Arc<PodSpec>,
        device: Option<&ResourceName>,
        node: usize,
    ) -> Option<Arc<PodDemand>> {
        let key = (Arc::as_ptr(spec) as usize, device.cloned());
        if let Some(known) = self.demands.get(&key) {
            return known.clone();
        }
        let version = self.nodes.get(node)?.version();
        let demand = match device {
            Some(device) => PodDemand::new(&spec.pod.with_device(device), version),
            None => PodDemand::new(&spec.pod, version),
        };
        let demand = demand.ok().map(Arc::new);
        self.demands.insert(key, demand.clone());
        demand
    }

    /// A pod comes to its node, whose kubelet may turn it down.
    pub(super) fn bind(&mut self, binding: &Binding) {
        let Ok(id) = binding.pod.parse::<u64>() else { return };
        let Some(&at) = self.node_by_name.get(&binding.node) else { return };
        let Some(spec) = self.pods.get(&id).map(|pod| pod.object.spec.clone()) else { return };
        let grant = binding.gpu_grant.clone();
        let device = grant.as_ref().filter(|grant| grant.gpu.is_none()).map(|one| &one.resource);
        let demand = self.demand(&spec, device, at);
        let now_ms = self.now_ms;
        let (Some(node), Some(demand)) = (self.nodes.get_mut(at), demand) else { return };
        self.meter.levels.waiting -= 1;
        if !node.is_up() {
            self.hang(id, at);
            return;
        }
        let asks = demand.total().asks_devices() || grant.is_some();
        let is_away = node.plugin_back_ms > now_ms && asks;
        let admitted = if is_away {
            Err(Reason::UnexpectedAdmissionError)
        } else {
            let admitted = node.admit(&binding.pod, &spec, grant.as_ref(), &demand);
            admitted.map_err(|rejection| rejection.reason)
        };
        match admitted {
            Ok(placed) => {
                node.pods.insert(id);
                self.settle(id, at, placed, grant);
            }
            Err(reason) => self.reject(id, at, reason),
        }
    }

    /// A pod is bound to a node that does not answer: nobody starts it.
    fn hang(&mut self, id: u64, at: usize) {
        let Some(node) = self.nodes.get_mut(at) else { return };
        node.pods.insert(id);
        let Some(pod) = self.pods.get_mut(&id) else { return };
        pod.object.node = Some(node.object.name.clone());
        (pod.node, pod.from_ms, pod.fate, pod.hangs) = (Some(at), self.now_ms, Fate::Halted, true);
        self.engine.apply(Event::Pod(pod.object.clone()));
    }

    /// A pod is on its node.
    fn settle(&mut self, id: u64, at: usize, placed: Placed, grant: Option<GpuGrant>) {
        let now_ms = self.now_ms;
        let Some(pod) = self.pods.get_mut(&id) else { return };
        pod.object.node = self.nodes.get(at).map(|node| node.object.name.clone());
        pod.object.started_at_ms = Some(now_ms);
        pod.object.gpu_grant.clone_from(&grant);
        (pod.grant, pod.node, pod.from_ms, pod.fate) = (grant, Some(at), now_ms, Fate::Starting);
        pod.placed = placed;
        let object = pod.object.clone();
        self.engine.apply(Event::Pod(object.clone()));
        let levels = &mut self.meter.levels;
        levels.allocated_milli += pod.placed.milli();
        if pod.placed.alignment.is_some() {
            levels.lying.0 += 1;
            levels.lying.1 += i64::from(pod.placed.alignment == Some(Alignment::Aligned));
        }
        let (workload, wait_ms) = (pod.workload, now_ms - pod.past.since_ms);
        let least_bytes = pod.placed.parts.iter().map(|part| part.memory_bytes).min();
        let Some(of) = self.experiment.workloads.get(workload) else { return };
        self.meter.class(&of.outline.class).waits_ms.push(wait_ms);
        self.started += 1;
        self.count_placed(&object);
        let starts_ms = now_ms + self.experiment.assumptions.start_ms;
        if least_bytes.is_some_and(|bytes| bytes < of.gpu_memory_bytes) {
            self.later(starts_ms + of.load_ms, Coming::OutOfMemory(id));
        } else {
            self.later(starts_ms + of.load_ms, Coming::Ready(id));
        }
    }

    /// A kubelet turns a pod down: it has failed, and its controller makes another.
    fn reject(&mut self, id: u64, at: usize, reason: Reason) {
        self.meter.reject(reason.as_str());
        let Some(pod) = self.pods.remove(&id) else { return };
        let node = self.nodes.get(at).map(|node| node.object.name.clone()).unwrap_or_default();
        let namespace = pod.object.spec.namespace.clone();
        self.meter.tell("rejection", || {
            format!("{node} turned {namespace}/{} down: {}", pod.object.name, reason.as_str())
        });
        self.engine.apply(Event::PodGone(pod.object.uid.clone()));
        self.leave_books(&pod, id);
        self.replace_failed(&pod);
    }

    /// A pod that failed is replaced after a while, unless its job has had enough.
    fn replace_failed(&mut self, pod: &Pod) {
        let failures = pod.past.failures + 1;
        let (workload, job) = (pod.workload, pod.job);
        if let Some(job) = job {
            let retries = self.job(workload, job).map_or(0, |job| job.retries);
            let state = self.jobs.get_mut(workload).and_then(|jobs| jobs.get_mut(job));
            let Some(state) = state else { return };
            state.failed += 1;
            if state.failed > retries || state.given_up {
                self.lost += u64::from(!std::mem::replace(&mut state.given_up, true));
                return;
            }
            state.pending += 1;
        }
        let assumed = &self.experiment.assumptions;
        let doubled = assumed.replace_ms.saturating_mul(1 << (failures - 1).min(30));
        let at_ms = self.now_ms + doubled.min(assumed.replace_max_ms);
        let past = Past { failures, ..pod.past };
        self.later(at_ms, Coming::Replace { workload, job, past });
    }

    pub(super) fn replace(&mut self, workload: usize, job: Option<usize>, past: Past) {
        match job {
            Some(job) => {
                if let Some(state) = self.jobs.get_mut(workload).and_then(|jobs| jobs.get_mut(job))
                {
                    state.pending = state.pending.saturating_sub(1);
                }
                self.continue_job(workload, job, past);
            }
            None => self.fill(workload, past),
        }
    }

    /// Another pod of a job, if it still needs one.
    fn continue_job(&mut self, workload: usize, job: usize, past: Past) {
        let completions = self.job(workload, job).map_or(0, |job| job.completions.max(1));
        let state = self.jobs.get(workload).and_then(|jobs| jobs.get(job));
        let needs_one = state.is_some_and(|state| {
            !state.given_up && state.succeeded + state.active + state.pending < completions
        });
        if needs_one {
            self.make_job_pod(workload, job, past);
        }
    }

    /// A job has had all the time it may have: it has failed, and its pods go.
    pub(super) fn end_job(&mut self, workload: usize, job: usize) {
        let completions = self.job(workload, job).map_or(0, |job| job.completions.max(1));
        let state = self.jobs.get_mut(workload).and_then(|jobs| jobs.get_mut(job));
        let Some(state) = state.filter(|state| state.succeeded < completions) else { return };
        self.lost += u64::from(!std::mem::replace(&mut state.given_up, true));
        let of_job = |pod: &Pod| pod.workload == workload && pod.job == Some(job);
        let pods: Vec<u64> =
            self.pods.iter().filter(|(_, pod)| of_job(pod)).map(|(id, _)| *id).collect();
        for id in pods {
            if self.is(id, &[Fate::Waiting]) {
                self.withdraw(id);
            } else if !self.is(id, &[Fate::Leaving, Fate::Halted]) {
                self.evict(id, false);
            }
        }
    }

    /// A pod's containers are up.
    pub(super) fn ready(&mut self, id: u64) {
        if !self.is(id, &[Fate::Starting]) {
            return;
        }
        let now_ms = self.now_ms;
        let Some(pod) = self.pods.get_mut(&id) else { return };
        (pod.fate, pod.running_ms) = (Fate::Running, Some(now_ms));
        pod.past.failures = 0;
        let (workload, job, done_ms) = (pod.workload, pod.job, pod.past.done_ms);
        match job.and_then(|job| self.job(workload, job)) {
            Some(job) => {
                if let Some(duration_ms) = job.duration_ms {
                    self.later(now_ms + (duration_ms - done_ms).max(0), Coming::End(id));
                }
                self.meter.levels.batch_milli += self.busy_milli(id);
            }
            None => self.join_service(id),
        }
        self.budgets_moved = true;
    }

    /// Thousandths of GPUs that a pod with an end keeps busy.
    fn busy_milli(&self, id: u64) -> i64 {
        let Some(pod) = self.pods.get(&id) else { return 0 };
        let busy = self.workload(pod.workload).map_or(0, |workload| workload.busy_milli);
        // Who needs a part of a GPU does not keep more of it busy, even if it got all of it.
        let of_job = pod.job.and_then(|job| self.job(pod.workload, job));
        let needs =
            of_job.and_then(|job| job.template.gpu).map(|need| u32::from(need.compute_milli));
        let busy = needs.filter(|milli| *milli > 0).map_or(busy, |milli| busy.min(milli));
        pod.placed.parts.iter().map(|part| i64::from(part.gpu.milli).min(i64::from(busy))).sum()
    }

    /// A pod stops doing what it is for before it is done. How much of its work is kept.
    fn stop(&mut self, id: u64) -> i64 {
        self.leave_service(id);
        self.stop_work(id, false)
    }

    /// The same for its work only.
    fn stop_work(&mut self, id: u64, is_done: bool) -> i64 {
        self.budgets_moved = true;
        let busy = self.busy_milli(id);
        let now_ms = self.now_ms;
        let Some(pod) = self.pods.get_mut(&id) else { return 0 };
        let Some(since_ms) = pod.running_ms.take() else { return pod.past.done_ms };
        let (workload, job, before_ms) = (pod.workload, pod.job, pod.past.done_ms);
        let Some(job) = job.and_then(|job| self.job(workload, job)) else { return 0 };
        let checkpoint_ms = job.checkpoint_ms;
        let worked_ms = now_ms - since_ms;
        self.meter.levels.batch_milli -= busy;
        if let Some(held) = self.held.get_mut(workload) {
            held.busy_gpu_ms += busy as f64 / 1000.0 * worked_ms as f64;
        }
        let done_ms = before_ms + worked_ms;
        if is_done {
            return done_ms;
        }
        let kept_ms = if checkpoint_ms == 0 { 0 } else { done_ms / checkpoint_ms * checkpoint_ms };
        self.wasted_gpu_ms += busy as f64 / 1000.0 * (done_ms - kept_ms) as f64;
        kept_ms
    }

    /// A pod is done.
    pub(super) fn end(&mut self, id: u64) {
        if !self.is(id, &[Fate::Running]) {
            return;
        }
        self.stop_work(id, true);
        let Some(pod) = self.remove(id) else { return };
        let Some(job) = pod.job else { return };
        let Some(spec) = self.job(pod.workload, job) else { return };
        let completions = spec.completions.max(1);
        let state = self.jobs.get_mut(pod.workload).and_then(|jobs| jobs.get_mut(job));
        let Some(state) = state else { return };
        state.succeeded += 1;
        self.jobs_done += u64::from(state.succeeded == completions);
        let past = Past { since_ms: self.now_ms, ..Past::default() };
        self.continue_job(pod.workload, job, past);
    }

    /// A container ends for lack of GPU memory, and will again.
    pub(super) fn run_out_of_memory(&mut self, id: u64) {
        if !self.is(id, &[Fate::Starting, Fate::Crashing]) {
            return;
        }
        self.out_of_memory += 1;
        let Some(pod) = self.pods.get_mut(&id) else { return };
        pod.fate = Fate::Crashing;
        pod.past.failures += 1;
        let node = pod.object.node.clone().unwrap_or_default();
        let (workload, name, failures) = (pod.workload, pod.object.name.clone(), pod.past.failures);
        self.meter.tell("out-of-memory", || {
            format!("{name} does not fit into the GPU memory it got on {node}")
        });
        if pod.job.is_some() {
            // A pod of a job has failed; its controller makes another, as often as it may.
            if let Some(pod) = self.remove(id) {
                self.replace_failed(&pod);
            }
            return;
        }
        // The kubelet starts it again, after 10 s at first and 5 min at last.
        let backoff_ms = 10_000_i64.saturating_mul(1 << (failures - 1).min(10)).min(300_000);
        let load_ms = self.workload(workload).map_or(0, |workload| workload.load_ms);
        self.later(self.now_ms + backoff_ms + load_ms, Coming::OutOfMemory(id));
    }

    pub(super) fn evict_all(&mut self, victims: &[Arc<str>]) {
        for victim in victims {
            let Ok(id) = victim.parse::<u64>() else { continue };
            let Some(pod) = self.pods.get(&id).filter(|pod| pod.fate != Fate::Leaving) else {
                continue;
            };
            let class = self.workload(pod.workload).map(|one| one.outline.class.clone());
            let (name, node) =
                (pod.object.name.clone(), pod.object.node.clone().unwrap_or_default());
            self.meter.preempt(&class.unwrap_or_default());
            self.meter.tell("preemption", || format!("{name} leaves {node} to make room"));
            self.evict(id, true);
        }
    }

    /// A pod is told to leave.
    pub(super) fn evict(&mut self, id: u64, by_preemption: bool) {
        let done_ms = self.stop(id);
        let Some(pod) = self.pods.get_mut(&id) else { return };
        (pod.fate, pod.past.done_ms) = (Fate::Leaving, done_ms);
        pod.object.phase = Phase::Terminating { by_preemption };
        let workload = pod.workload;
        self.engine.apply(Event::Pod(pod.object.clone()));
        self.later(self.now_ms + self.experiment.assumptions.grace_ms, Coming::Gone(id));
        // A ReplicaSet does not count pods that are leaving; a Job waits until they have left.
        if let Some(service) = self.services.get_mut(&workload) {
            service.pods.remove(&id);
            self.fill(workload, Past { since_ms: self.now_ms, ..Past::default() });
        }
    }

    /// The node of a pod is lost: it does nothing any more, and stays until it is given up. Requests
    /// go there, and are lost, until somebody notices.
    pub(super) fn halt(&mut self, id: u64) {
        if !self.is(id, &[Fate::Leaving]) {
            let done_ms = self.stop_work(id, false);
            if let Some(pod) = self.pods.get_mut(&id) {
                (pod.fate, pod.past.done_ms) = (Fate::Halted, done_ms);
            }
        }
    }

    /// What a pod with an end has done when the experiment ends.
    pub(super) fn settle_work(&mut self, id: u64) {
        self.stop_work(id, true);
    }

    /// A pod that was told to leave has left; its controller makes another if it is still wanted.
    pub(super) fn gone(&mut self, id: u64) {
        if !self.is(id, &[Fate::Leaving]) {
            return;
        }
        self.lose(id);
    }

    /// A pod is gone before it was done.
    pub(super) fn lose(&mut self, id: u64) {
        let done_ms = if self.is(id, &[Fate::Leaving, Fate::Halted]) {
            self.leave_service(id);
            self.pods.get(&id).map_or(0, |pod| pod.past.done_ms)
        } else {
            self.stop(id)
        };
        let Some(pod) = self.remove(id) else { return };
        let past = Past { since_ms: self.now_ms, done_ms, failures: 0 };
        match pod.job {
            Some(job) => {
                self.lost += 1;
                self.continue_job(pod.workload, job, past);
            }
            None => self.fill(pod.workload, past),
        }
    }

    /// A pod that waits is not wanted any more.
    pub(super) fn withdraw(&mut self, id: u64) {
        if let Some(pod) = self.pods.remove(&id) {
            self.meter.levels.waiting -= 1;
            self.engine.apply(Event::PodGone(pod.object.uid.clone()));
            self.leave_books(&pod, id);
        }
    }

    /// Takes a pod off its node.
    pub(super) fn remove(&mut self, id: u64) -> Option<Pod> {
        let pod = self.pods.remove(&id)?;
        let Some(at) = pod.node else {
            self.meter.levels.waiting -= 1;
            self.engine.apply(Event::PodGone(pod.object.uid.clone()));
            self.leave_books(&pod, id);
            return Some(pod);
        };
        if let Some(node) = self.nodes.get_mut(at) {
            if !pod.hangs {
                node.remove(&pod.object.uid, &pod.object.spec, &pod.placed, pod.is_share());
            }
            node.pods.remove(&id);
        }
        let levels = &mut self.meter.levels;
        levels.allocated_milli -= pod.placed.milli();
        if pod.placed.alignment.is_some() {
            levels.lying.0 -= 1;
            levels.lying.1 -= i64::from(pod.placed.alignment == Some(Alignment::Aligned));
        }
        self.engine.apply(Event::PodGone(pod.object.uid.clone()));
        self.leave_books(&pod, id);
        self.record(&pod);
        Some(pod)
    }

    /// A controller does not count it any more.
    fn leave_books(&mut self, pod: &Pod, id: u64) {
        self.uncount(id, &pod.object);
        if let Some(job) = pod.job {
            if let Some(state) = self.jobs.get_mut(pod.workload).and_then(|jobs| jobs.get_mut(job))
            {
                state.active = state.active.saturating_sub(1);
            }
        } else if let Some(service) = self.services.get_mut(&pod.workload) {
            service.pods.remove(&id);
        }
    }

    /// A stay on a node is over, or the experiment is.
    pub(super) fn record(&mut self, pod: &Pod) {
        let Some(at) = pod.node else { return };
        let lasted_ms = (self.now_ms - pod.from_ms) as f64;
        if let (Some(node), Some(held)) = (self.nodes.get(at), self.held.get_mut(pod.workload)) {
            let gpus = pod.placed.milli() as f64 / 1000.0;
            let price = node.microusd_per_hour as f64 / node.gpus.len().max(1) as f64;
            held.gpu_ms += gpus * lasted_ms;
            held.microusd += gpus * price * lasted_ms / 3_600_000.0;
        }
        self.stays.push(Stay {
            workload: pod.workload,
            pod: pod.number,
            node: at,
            from_ms: pod.from_ms,
            to_ms: self.now_ms,
            gpus: pod.placed.parts.iter().map(|part| part.gpu).collect(),
            cpus: pod.placed.cpus.clone(),
            alignment: pod.placed.alignment,
        });
        if self.stays.len() > 2 * STAYS_MAX {
            self.thin_stays();
        }
    }

    /// Leaves out the shortest stays where there are too many.
    pub(super) fn thin_stays(&mut self) {
        if self.stays.len() <= STAYS_MAX {
            return;
        }
        self.stays.sort_by_key(|stay| std::cmp::Reverse(stay.to_ms - stay.from_ms));
        self.stays_left_out += self.stays.len() - STAYS_MAX;
        self.stays.truncate(STAYS_MAX);
    }
}
