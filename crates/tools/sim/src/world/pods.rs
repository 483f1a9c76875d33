//! Pods from creation to their end, and what their controllers do: admission by the virtual kubelet,
//! start, eviction, failure and replacement.

use std::sync::Arc;

use berth_engine::decision::Binding;
use berth_engine::event::Event;
use berth_kubelet::{PodDemand, Reason};
use berth_model::alignment::Alignment;
use berth_model::resource::ResourceName;
use berth_model::spec::{GpuGrant, Phase, PodObject, PodSpec};

use super::{SimEvent, World};
use crate::experiment::{Job, Workload, WorkloadKind};
use crate::node::Placed;
use crate::report::Stay;

/// Stays that are kept; the shortest are omitted.
const STAYS_MAX: usize = 60_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodState {
    Pending,
    /// Containers start and load their models.
    Starting,
    Running,
    /// The container is killed and restarted.
    Crashing,
    Terminating,
    OnLostNode,
}

/// What a pod inherits from the one that it replaces.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct History {
    /// Start of the wait.
    pub(crate) since_ms: i64,
    /// Work up to the last checkpoint.
    pub(crate) done_ms: i64,
    /// Consecutive failures.
    pub(crate) failures: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Pod {
    pub(crate) object: PodObject,
    pub(crate) workload: usize,
    job: Option<usize>,
    number: u64,
    history: History,
    pub(crate) state: PodState,
    pub(crate) node: Option<usize>,
    pub(crate) placed: Placed,
    grant: Option<GpuGrant>,
    from_ms: i64,
    running_ms: Option<i64>,
    /// It was bound to a node that had been lost.
    never_started: bool,
}

impl Pod {
    pub(crate) fn since_ms(&self) -> i64 {
        self.history.since_ms
    }

    fn is_share(&self) -> bool {
        self.grant.as_ref().is_some_and(|grant| grant.gpu.is_some())
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct JobState {
    active: u32,
    /// Failed pods whose replacement is scheduled.
    pending: u32,
    succeeded: u32,
    failed: u32,
    has_failed: bool,
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
            self.schedule(at_ms, SimEvent::Deadline { workload, job });
        }
        for _ in 0..count {
            self.make_job_pod(
                workload,
                job,
                History { since_ms: self.now_ms, ..History::default() },
            );
        }
    }

    fn make_job_pod(&mut self, workload: usize, job: usize, history: History) {
        let Some(template) = self.job(workload, job).map(|job| job.template.clone()) else {
            return;
        };
        if let Some(state) = self.jobs.get_mut(workload).and_then(|jobs| jobs.get_mut(job)) {
            state.active += 1;
        }
        self.create(workload, Some(job), &template, history);
    }

    pub(super) fn create(
        &mut self,
        workload: usize,
        job: Option<usize>,
        template: &Arc<PodSpec>,
        history: History,
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
        if history.failures == 0 {
            self.meter.class(&outline.class).pods += 1;
        }
        self.pods.insert(
            id,
            Pod {
                object,
                workload,
                job,
                number,
                history,
                state: PodState::Pending,
                node: None,
                placed: Placed::default(),
                grant: None,
                from_ms: 0,
                running_ms: None,
                never_started: false,
            },
        );
        id
    }

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

    /// Binds a pod. The kubelet of the node may reject it.
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
            self.bind_to_lost_node(id, at);
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
                self.start(id, at, placed, grant);
            }
            Err(reason) => self.reject(id, at, reason),
        }
    }

    /// Nothing starts the pod until the node is back or the pod is replaced.
    fn bind_to_lost_node(&mut self, id: u64, at: usize) {
        let Some(node) = self.nodes.get_mut(at) else { return };
        node.pods.insert(id);
        let Some(pod) = self.pods.get_mut(&id) else { return };
        pod.object.node = Some(node.object.name.clone());
        (pod.node, pod.from_ms, pod.state, pod.never_started) =
            (Some(at), self.now_ms, PodState::OnLostNode, true);
        self.engine.apply(Event::Pod(pod.object.clone()));
    }

    /// The kubelet has admitted a pod.
    fn start(&mut self, id: u64, at: usize, placed: Placed, grant: Option<GpuGrant>) {
        let now_ms = self.now_ms;
        let Some(pod) = self.pods.get_mut(&id) else { return };
        pod.object.node = self.nodes.get(at).map(|node| node.object.name.clone());
        pod.object.started_at_ms = Some(now_ms);
        pod.object.gpu_grant.clone_from(&grant);
        (pod.grant, pod.node, pod.from_ms, pod.state) =
            (grant, Some(at), now_ms, PodState::Starting);
        pod.placed = placed;
        let object = pod.object.clone();
        self.engine.apply(Event::Pod(object.clone()));
        let levels = &mut self.meter.levels;
        levels.allocated_milli += pod.placed.milli();
        if pod.placed.alignment.is_some() {
            levels.gpu_pods.0 += 1;
            levels.gpu_pods.1 += i64::from(pod.placed.alignment == Some(Alignment::Aligned));
        }
        let (workload, wait_ms) = (pod.workload, now_ms - pod.history.since_ms);
        let least_bytes = pod.placed.parts.iter().map(|part| part.memory_bytes).min();
        let Some(of) = self.experiment.workloads.get(workload) else { return };
        self.meter.class(&of.outline.class).waits_ms.push(wait_ms);
        self.started += 1;
        self.count_placed(&object);
        let starts_ms = now_ms + self.experiment.assumptions.start_ms;
        if least_bytes.is_some_and(|bytes| bytes < of.gpu_memory_bytes) {
            self.schedule(starts_ms + of.load_ms, SimEvent::OutOfMemory(id));
        } else {
            self.schedule(starts_ms + of.load_ms, SimEvent::Ready(id));
        }
    }

    /// The kubelet rejects a pod, and its controller replaces it.
    fn reject(&mut self, id: u64, at: usize, reason: Reason) {
        self.meter.reject(reason.as_str());
        let Some(pod) = self.pods.remove(&id) else { return };
        let node = self.nodes.get(at).map(|node| node.object.name.clone()).unwrap_or_default();
        let namespace = pod.object.spec.namespace.clone();
        self.meter.log("rejection", || {
            format!("{node} rejected {namespace}/{}: {}", pod.object.name, reason.as_str())
        });
        self.engine.apply(Event::PodGone(pod.object.uid.clone()));
        self.remove_from_controller(&pod, id);
        self.replace_failed(&pod);
    }

    /// Replaces a failed pod after a back-off, within its job's limit.
    fn replace_failed(&mut self, pod: &Pod) {
        let failures = pod.history.failures + 1;
        let (workload, job) = (pod.workload, pod.job);
        if let Some(job) = job {
            let retries = self.job(workload, job).map_or(0, |job| job.retries);
            let state = self.jobs.get_mut(workload).and_then(|jobs| jobs.get_mut(job));
            let Some(state) = state else { return };
            state.failed += 1;
            if state.failed > retries || state.has_failed {
                self.lost += u64::from(!std::mem::replace(&mut state.has_failed, true));
                return;
            }
            state.pending += 1;
        }
        let assumed = &self.experiment.assumptions;
        let doubled = assumed.replace_ms.saturating_mul(1 << (failures - 1).min(30));
        let at_ms = self.now_ms + doubled.min(assumed.replace_max_ms);
        let history = History { failures, ..pod.history };
        self.schedule(at_ms, SimEvent::Replace { workload, job, history });
    }

    pub(super) fn replace(&mut self, workload: usize, job: Option<usize>, history: History) {
        match job {
            Some(job) => {
                if let Some(state) = self.jobs.get_mut(workload).and_then(|jobs| jobs.get_mut(job))
                {
                    state.pending = state.pending.saturating_sub(1);
                }
                self.continue_job(workload, job, history);
            }
            None => self.fill(workload, history),
        }
    }

    fn continue_job(&mut self, workload: usize, job: usize, history: History) {
        let completions = self.job(workload, job).map_or(0, |job| job.completions.max(1));
        let state = self.jobs.get(workload).and_then(|jobs| jobs.get(job));
        let needs_one = state.is_some_and(|state| {
            !state.has_failed && state.succeeded + state.active + state.pending < completions
        });
        if needs_one {
            self.make_job_pod(workload, job, history);
        }
    }

    /// A job has exceeded its deadline: its pods are deleted.
    pub(super) fn end_job(&mut self, workload: usize, job: usize) {
        let completions = self.job(workload, job).map_or(0, |job| job.completions.max(1));
        let state = self.jobs.get_mut(workload).and_then(|jobs| jobs.get_mut(job));
        let Some(state) = state.filter(|state| state.succeeded < completions) else { return };
        self.lost += u64::from(!std::mem::replace(&mut state.has_failed, true));
        let of_job = |pod: &Pod| pod.workload == workload && pod.job == Some(job);
        let pods: Vec<u64> =
            self.pods.iter().filter(|(_, pod)| of_job(pod)).map(|(id, _)| *id).collect();
        for id in pods {
            if self.is(id, &[PodState::Pending]) {
                self.withdraw(id);
            } else if !self.is(id, &[PodState::Terminating, PodState::OnLostNode]) {
                self.evict(id, false);
            }
        }
    }

    pub(super) fn ready(&mut self, id: u64) {
        if !self.is(id, &[PodState::Starting]) {
            return;
        }
        let now_ms = self.now_ms;
        let Some(pod) = self.pods.get_mut(&id) else { return };
        (pod.state, pod.running_ms) = (PodState::Running, Some(now_ms));
        pod.history.failures = 0;
        let (workload, job, done_ms) = (pod.workload, pod.job, pod.history.done_ms);
        match job.and_then(|job| self.job(workload, job)) {
            Some(job) => {
                if let Some(duration_ms) = job.duration_ms {
                    self.schedule(now_ms + (duration_ms - done_ms).max(0), SimEvent::End(id));
                }
                self.meter.levels.batch_milli += self.busy_milli(id);
            }
            None => self.join_service(id),
        }
        self.budgets_changed = true;
    }

    /// Thousandths of GPUs that a batch pod keeps busy.
    fn busy_milli(&self, id: u64) -> i64 {
        let Some(pod) = self.pods.get(&id) else { return 0 };
        let busy = self.workload(pod.workload).map_or(0, |workload| workload.busy_milli);
        // A pod that needs a part of a GPU uses no more if it gets all of it.
        let of_job = pod.job.and_then(|job| self.job(pod.workload, job));
        let needs =
            of_job.and_then(|job| job.template.gpu).map(|need| u32::from(need.compute_milli));
        let busy = needs.filter(|milli| *milli > 0).map_or(busy, |milli| busy.min(milli));
        pod.placed.parts.iter().map(|part| i64::from(part.gpu.milli).min(i64::from(busy))).sum()
    }

    /// Stops a pod before it is done. Returns the work up to its last checkpoint.
    fn stop(&mut self, id: u64) -> i64 {
        self.leave_service(id);
        self.stop_work(id, false)
    }

    /// The same, but its service still sends requests to it.
    fn stop_work(&mut self, id: u64, is_done: bool) -> i64 {
        self.budgets_changed = true;
        let busy = self.busy_milli(id);
        let now_ms = self.now_ms;
        let Some(pod) = self.pods.get_mut(&id) else { return 0 };
        let Some(since_ms) = pod.running_ms.take() else { return pod.history.done_ms };
        let (workload, job, before_ms) = (pod.workload, pod.job, pod.history.done_ms);
        let Some(job) = job.and_then(|job| self.job(workload, job)) else { return 0 };
        let checkpoint_ms = job.checkpoint_ms;
        let worked_ms = now_ms - since_ms;
        self.meter.levels.batch_milli -= busy;
        if let Some(usage) = self.usage.get_mut(workload) {
            usage.busy_gpu_ms += busy as f64 / 1000.0 * worked_ms as f64;
        }
        let done_ms = before_ms + worked_ms;
        if is_done {
            return done_ms;
        }
        let kept_ms = if checkpoint_ms == 0 { 0 } else { done_ms / checkpoint_ms * checkpoint_ms };
        self.wasted_gpu_ms += busy as f64 / 1000.0 * (done_ms - kept_ms) as f64;
        kept_ms
    }

    pub(super) fn end(&mut self, id: u64) {
        if !self.is(id, &[PodState::Running]) {
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
        let history = History { since_ms: self.now_ms, ..History::default() };
        self.continue_job(pod.workload, job, history);
    }

    pub(super) fn run_out_of_memory(&mut self, id: u64) {
        if !self.is(id, &[PodState::Starting, PodState::Crashing]) {
            return;
        }
        self.out_of_memory += 1;
        let Some(pod) = self.pods.get_mut(&id) else { return };
        pod.state = PodState::Crashing;
        pod.history.failures += 1;
        let node = pod.object.node.clone().unwrap_or_default();
        let (workload, name, failures) =
            (pod.workload, pod.object.name.clone(), pod.history.failures);
        self.meter.log("out-of-memory", || format!("{name} on {node} exceeded its GPU memory"));
        if pod.job.is_some() {
            if let Some(pod) = self.remove(id) {
                self.replace_failed(&pod);
            }
            return;
        }
        // The kubelet's back-off: from 10 s to 5 min.
        let backoff_ms = 10_000_i64.saturating_mul(1 << (failures - 1).min(10)).min(300_000);
        let load_ms = self.workload(workload).map_or(0, |workload| workload.load_ms);
        self.schedule(self.now_ms + backoff_ms + load_ms, SimEvent::OutOfMemory(id));
    }

    pub(super) fn evict_all(&mut self, victims: &[Arc<str>]) {
        for victim in victims {
            let Ok(id) = victim.parse::<u64>() else { continue };
            let Some(pod) = self.pods.get(&id).filter(|pod| pod.state != PodState::Terminating)
            else {
                continue;
            };
            let class = self.workload(pod.workload).map(|one| one.outline.class.clone());
            let (name, node) =
                (pod.object.name.clone(), pod.object.node.clone().unwrap_or_default());
            self.meter.preempt(&class.unwrap_or_default());
            self.meter.log("preemption", || format!("{name} on {node} was preempted"));
            self.evict(id, true);
        }
    }

    /// Deletes a running pod, with its grace period.
    pub(super) fn evict(&mut self, id: u64, by_preemption: bool) {
        let done_ms = self.stop(id);
        let Some(pod) = self.pods.get_mut(&id) else { return };
        (pod.state, pod.history.done_ms) = (PodState::Terminating, done_ms);
        pod.object.phase = Phase::Terminating { by_preemption };
        let workload = pod.workload;
        self.engine.apply(Event::Pod(pod.object.clone()));
        self.schedule(self.now_ms + self.experiment.assumptions.grace_ms, SimEvent::Terminated(id));
        // A ReplicaSet replaces terminating pods at once; a Job waits until they are gone.
        if let Some(service) = self.services.get_mut(&workload) {
            service.pods.remove(&id);
            self.fill(workload, History { since_ms: self.now_ms, ..History::default() });
        }
    }

    /// The pod's node is lost. Requests to the pod are lost until the control plane notices.
    pub(super) fn halt(&mut self, id: u64) {
        if !self.is(id, &[PodState::Terminating]) {
            let done_ms = self.stop_work(id, false);
            if let Some(pod) = self.pods.get_mut(&id) {
                (pod.state, pod.history.done_ms) = (PodState::OnLostNode, done_ms);
            }
        }
    }

    /// Counts the work of a batch pod at the end of the experiment.
    pub(super) fn settle_work(&mut self, id: u64) {
        self.stop_work(id, true);
    }

    pub(super) fn gone(&mut self, id: u64) {
        if !self.is(id, &[PodState::Terminating]) {
            return;
        }
        self.lose(id);
    }

    /// Removes a pod before it is done; its controller may replace it.
    pub(super) fn lose(&mut self, id: u64) {
        let done_ms = if self.is(id, &[PodState::Terminating, PodState::OnLostNode]) {
            self.leave_service(id);
            self.pods.get(&id).map_or(0, |pod| pod.history.done_ms)
        } else {
            self.stop(id)
        };
        let Some(pod) = self.remove(id) else { return };
        let history = History { since_ms: self.now_ms, done_ms, failures: 0 };
        match pod.job {
            Some(job) => {
                self.lost += 1;
                self.continue_job(pod.workload, job, history);
            }
            None => self.fill(pod.workload, history),
        }
    }

    /// Deletes a pending pod.
    pub(super) fn withdraw(&mut self, id: u64) {
        if let Some(pod) = self.pods.remove(&id) {
            self.meter.levels.waiting -= 1;
            self.engine.apply(Event::PodGone(pod.object.uid.clone()));
            self.remove_from_controller(&pod, id);
        }
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Pod> {
        let pod = self.pods.remove(&id)?;
        let Some(at) = pod.node else {
            self.meter.levels.waiting -= 1;
            self.engine.apply(Event::PodGone(pod.object.uid.clone()));
            self.remove_from_controller(&pod, id);
            return Some(pod);
        };
        if let Some(node) = self.nodes.get_mut(at) {
            if !pod.never_started {
                node.remove(&pod.object.uid, &pod.object.spec, &pod.placed, pod.is_share());
            }
            node.pods.remove(&id);
        }
        let levels = &mut self.meter.levels;
        levels.allocated_milli -= pod.placed.milli();
        if pod.placed.alignment.is_some() {
            levels.gpu_pods.0 -= 1;
            levels.gpu_pods.1 -= i64::from(pod.placed.alignment == Some(Alignment::Aligned));
        }
        self.engine.apply(Event::PodGone(pod.object.uid.clone()));
        self.remove_from_controller(&pod, id);
        self.record(&pod);
        Some(pod)
    }

    fn remove_from_controller(&mut self, pod: &Pod, id: u64) {
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

    /// Records a pod's stay on its node up to now.
    pub(super) fn record(&mut self, pod: &Pod) {
        let Some(at) = pod.node else { return };
        let lasted_ms = (self.now_ms - pod.from_ms) as f64;
        if let (Some(node), Some(usage)) = (self.nodes.get(at), self.usage.get_mut(pod.workload)) {
            let gpus = pod.placed.milli() as f64 / 1000.0;
            let price = node.microusd_per_hour as f64 / node.gpus.len().max(1) as f64;
            usage.gpu_ms += gpus * lasted_ms;
            usage.microusd += gpus * price * lasted_ms / 3_600_000.0;
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

    pub(super) fn thin_stays(&mut self) {
        if self.stays.len() <= STAYS_MAX {
            return;
        }
        self.stays.sort_by_key(|stay| std::cmp::Reverse(stay.to_ms - stay.from_ms));
        self.stays_left_out += self.stays.len() - STAYS_MAX;
        self.stays.truncate(STAYS_MAX);
    }
}
