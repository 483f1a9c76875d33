//! The simulated world under one setup: virtual time, and an engine with virtual kubelets, controllers,
//! load and failures.
//!
//! All events of a moment go to the engine before it decides.

mod failures;
mod nodes;
mod outcome;
mod pods;
mod quota;
mod serving;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_engine::decision::Decision;
use berth_engine::event::Event;
use berth_engine::{Config, Engine, Profile};
use berth_kubelet::PodDemand;
use berth_model::policy::DisruptionBudget;
use berth_model::resource::ResourceName;
use berth_model::spec::PodSpec;

use self::nodes::Growth;
use self::pods::{JobState, Pod, PodState};
use self::serving::ServiceState;
use crate::experiment::{BudgetBound, Division, Experiment, Setup, WorkloadKind};
use crate::latency::Curves;
use crate::meter::Meter;
use crate::node::{GpuRequest, NodeError, VirtualNode, as_whole, by_hand};
use crate::report::{Run, Stay};

/// Steps of a series.
const STEPS: i64 = 360;

/// Something that happens at a time.
#[derive(Clone, Debug)]
pub(crate) enum SimEvent {
    /// A job arrives.
    Arrive {
        workload: usize,
        job: usize,
    },
    /// The wanted number of replicas changes.
    Scale {
        workload: usize,
        replicas: u32,
    },
    /// A controller creates a pod in place of a failed one.
    Replace {
        workload: usize,
        job: Option<usize>,
        history: pods::History,
    },
    /// A container has started and loaded its model.
    Ready(u64),
    End(u64),
    /// A container is killed for lack of GPU memory.
    OutOfMemory(u64),
    Terminated(u64),
    /// The load of the next window is evaluated.
    LoadWindow,
    /// The engine gets another turn because pods are pending or nodes could be removed.
    Tick,
    /// End of a step of the series.
    Step,
    Fail(usize),
    Recover(usize),
    /// The control plane notices a lost node. Ignored if the node was lost again since.
    Unreachable {
        node: usize,
        loss: u64,
    },
    /// Controllers replace the pods of a lost node.
    ReplacePods {
        node: usize,
        loss: u64,
    },
    Deadline {
        workload: usize,
        job: usize,
    },
    /// A requested node is ready.
    Provisioned {
        pool: usize,
        order: u64,
    },
    Consolidate,
}

pub(crate) struct World<'a> {
    experiment: &'a Experiment,
    setup: &'a Setup,
    engine: Engine,
    now_ms: i64,
    agenda: BTreeMap<(i64, u64), SimEvent>,
    serial: u64,
    ticking: bool,
    nodes: Vec<VirtualNode>,
    node_by_name: BTreeMap<Arc<str>, usize>,
    growth: Growth,
    pods: BTreeMap<u64, Pod>,
    pods_made: u64,
    /// By workload and template: the template as this setup writes it.
    templates: Vec<BTreeMap<usize, Arc<PodSpec>>>,
    demands: BTreeMap<(usize, Option<ResourceName>), Option<Arc<PodDemand>>>,
    jobs: Vec<Vec<JobState>>,
    services: BTreeMap<usize, ServiceState>,
    curves: Curves,
    typical: Vec<(GpuRequest, f64)>,
    allowed: Vec<Option<i32>>,
    budgets_changed: bool,
    meter: Meter,
    stays: Vec<Stay>,
    stays_left_out: usize,
    /// By workload.
    usage: Vec<Usage>,
    pods_of: Vec<u64>,
    started: u64,
    admission: quota::Admission,
    lost: u64,
    moves: u64,
    jobs_done: u64,
    /// Lost work.
    wasted_gpu_ms: f64,
    /// By failure: the nodes that it took down.
    lost_by_failure: BTreeMap<usize, Vec<usize>>,
    /// Templates of DaemonSets by workload and node.
    daemons: BTreeMap<(usize, usize), Arc<PodSpec>>,
    out_of_memory: u64,
    decisions: u64,
    node_cost: f64,
}

/// What a workload used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) gpu_ms: f64,
    pub(crate) busy_gpu_ms: f64,
    pub(crate) microusd: f64,
}

/// Runs an experiment under one of its setups. `progress` gets the finished part, from 0 to 1.
pub(crate) fn run(
    experiment: &Experiment,
    setup: &Setup,
    progress: &mut dyn FnMut(f64),
) -> Result<(Run, Vec<crate::report::NodeOutline>), NodeError> {
    let mut world = World::new(experiment, setup)?;
    world.begin();
    let end_ms = experiment.duration_ms.max(1);
    let mut reported = 0;
    while let Some(((at_ms, _), event)) = world.agenda.pop_first() {
        if at_ms >= end_ms {
            break;
        }
        world.pass(at_ms);
        world.handle(event)?;
        // All events of a moment come before the engine's decisions.
        let next = world.agenda.first_key_value().map(|((at_ms, _), _)| *at_ms);
        if next != Some(at_ms) {
            world.decide();
        }
        let percent = at_ms * 100 / end_ms;
        if percent > reported {
            reported = percent;
            progress(percent as f64 / 100.0);
        }
    }
    world.pass(end_ms);
    progress(1.0);
    Ok(world.finish())
}

impl<'a> World<'a> {
    fn new(experiment: &'a Experiment, setup: &'a Setup) -> Result<Self, NodeError> {
        let mut engine = Engine::new(Config {
            profile: setup.profile,
            reservations: experiment.reservations,
            ..Config::default()
        });
        experiment.objects.iter().cloned().for_each(|event| engine.apply(event));
        let nodes: Vec<VirtualNode> = experiment
            .nodes
            .iter()
            .map(|node| VirtualNode::new(node, setup))
            .collect::<Result<_, _>>()?;
        let count = experiment.workloads.len();
        let step_ms = (experiment.duration_ms / STEPS).max(1_000);
        let mut world = Self {
            experiment,
            setup,
            engine,
            now_ms: 0,
            agenda: BTreeMap::new(),
            serial: 0,
            ticking: false,
            node_by_name: BTreeMap::new(),
            growth: Growth::new(experiment),
            pods: BTreeMap::new(),
            pods_made: 0,
            templates: vec![BTreeMap::new(); count],
            demands: BTreeMap::new(),
            jobs: vec![Vec::new(); count],
            services: BTreeMap::new(),
            curves: Curves::default(),
            typical: Vec::new(),
            allowed: vec![None; experiment.budgets.len()],
            budgets_changed: true,
            meter: Meter::new(step_ms),
            stays: Vec::new(),
            stays_left_out: 0,
            usage: vec![Usage::default(); count],
            pods_of: vec![0; count],
            started: 0,
            admission: quota::Admission::new(experiment, setup),
            lost: 0,
            moves: 0,
            jobs_done: 0,
            wasted_gpu_ms: 0.0,
            lost_by_failure: BTreeMap::new(),
            daemons: BTreeMap::new(),
            out_of_memory: 0,
            decisions: 0,
            node_cost: 0.0,
            nodes: Vec::new(),
        };
        for node in nodes {
            world.join(node);
        }
        world.write_templates();
        Ok(world)
    }

    /// Writes every template as a user of this setup would have to.
    fn write_templates(&mut self) {
        let mut offers = BTreeMap::new();
        for node in &self.nodes {
            offers.extend(node.offers());
        }
        let write = |spec: &Arc<PodSpec>| match (self.setup.division, self.setup.profile) {
            (Division::Whole, _) => Arc::new(as_whole(spec)),
            (Division::AsDescribed, Profile::Berth) => spec.clone(),
            (Division::AsDescribed, _) => Arc::new(by_hand(spec, &offers)),
        };
        let mut asks: BTreeMap<GpuRequest, f64> = BTreeMap::new();
        for (workload, templates) in self.experiment.workloads.iter().zip(&mut self.templates) {
            let mut add = |spec: &Arc<PodSpec>, count: f64| {
                let key = Arc::as_ptr(spec) as usize;
                let written = templates.entry(key).or_insert_with(|| write(spec));
                if let Some(request) = GpuRequest::of(written) {
                    *asks.entry(request).or_default() += count;
                }
            };
            match &workload.kind {
                WorkloadKind::Service(service) => {
                    let most = service.replicas.iter().map(|(_, count)| *count).max();
                    add(&service.template, f64::from(most.unwrap_or(1)));
                }
                WorkloadKind::Jobs(jobs) => {
                    for job in jobs {
                        add(&job.template, f64::from(job.completions.max(1)));
                    }
                }
                WorkloadKind::Daemon(template) => add(template, 0.0),
            }
        }
        let all: f64 = asks.values().sum::<f64>().max(1e-9);
        self.typical = asks.into_iter().map(|(request, count)| (request, count / all)).collect();
        // The most frequent requests stand for all.
        self.typical.sort_by(|one, other| other.1.total_cmp(&one.1));
        self.typical.truncate(32);
    }

    fn written(&self, workload: usize, template: &Arc<PodSpec>) -> Arc<PodSpec> {
        let known = self.templates.get(workload);
        let written = known.and_then(|known| known.get(&(Arc::as_ptr(template) as usize)));
        written.unwrap_or(template).clone()
    }

    fn begin(&mut self) {
        for (number, workload) in self.experiment.workloads.iter().enumerate() {
            match &workload.kind {
                WorkloadKind::Jobs(jobs) => {
                    self.jobs[number] = vec![JobState::default(); jobs.len()];
                    for (job, one) in jobs.iter().enumerate() {
                        self.schedule(one.at_ms, SimEvent::Arrive { workload: number, job });
                    }
                }
                WorkloadKind::Service(service) => {
                    self.services.insert(number, ServiceState::default());
                    if let Some(autoscale) = service.autoscale {
                        let replicas = autoscale.min;
                        self.schedule(0, SimEvent::Scale { workload: number, replicas });
                    }
                    for (at_ms, replicas) in &service.replicas {
                        let replicas = *replicas;
                        self.schedule(*at_ms, SimEvent::Scale { workload: number, replicas });
                    }
                }
                WorkloadKind::Daemon(_) => {}
            }
        }
        for number in 0..self.nodes.len() {
            self.make_daemons(number);
        }
        for (number, failure) in self.experiment.failures.iter().enumerate() {
            self.schedule(failure.at_ms, SimEvent::Fail(number));
        }
        let is_loaded = |workload: &crate::experiment::Workload| {
            matches!(&workload.kind, WorkloadKind::Service(service)
                if service.load.is_some() || service.autoscale.is_some())
        };
        if self.experiment.workloads.iter().any(is_loaded) {
            self.schedule(0, SimEvent::LoadWindow);
        }
        self.schedule(0, SimEvent::Tick);
        self.schedule(self.meter.series.step_ms, SimEvent::Step);
        if let Some(consolidation) = self.consolidation() {
            self.schedule(consolidation.every_ms, SimEvent::Consolidate);
        }
    }

    fn schedule(&mut self, at_ms: i64, event: SimEvent) {
        self.serial += 1;
        self.agenda.insert((at_ms.max(self.now_ms), self.serial), event);
    }

    fn pass(&mut self, now_ms: i64) {
        self.now_ms = now_ms;
        self.meter.pass(now_ms);
    }

    fn handle(&mut self, event: SimEvent) -> Result<(), NodeError> {
        match event {
            SimEvent::Arrive { workload, job } => self.arrive(workload, job),
            SimEvent::Scale { workload, replicas } => self.scale(workload, replicas),
            SimEvent::Replace { workload, job, history } => self.replace(workload, job, history),
            SimEvent::Ready(pod) => self.ready(pod),
            SimEvent::End(pod) => self.end(pod),
            SimEvent::OutOfMemory(pod) => self.run_out_of_memory(pod),
            SimEvent::Terminated(pod) => self.gone(pod),
            SimEvent::LoadWindow => self.window(),
            SimEvent::Tick => {
                self.ticking = false;
                self.remove_idle_nodes();
            }
            SimEvent::Step => self.close_step(),
            SimEvent::Fail(number) => self.fail(number),
            SimEvent::Recover(number) => self.recover(number),
            SimEvent::Unreachable { node, loss } => self.mark_unreachable(node, loss),
            SimEvent::ReplacePods { node, loss } => self.give_up(node, loss),
            SimEvent::Deadline { workload, job } => self.end_job(workload, job),
            SimEvent::Provisioned { pool, order } => self.provisioned(pool, order)?,
            SimEvent::Consolidate => self.consolidate(),
        }
        Ok(())
    }

    /// Carries out the engine's decisions.
    fn decide(&mut self) {
        self.update_budgets();
        let mut waiting = Vec::new();
        while let Some(decision) = self.engine.decide(self.now_ms) {
            self.decisions += 1;
            match decision {
                Decision::Bind(binding) => self.bind(&binding),
                Decision::BindAll(gang) => gang.bindings.iter().for_each(|one| self.bind(one)),
                Decision::Preempt(preempting) => self.evict_all(&preempting.victims),
                Decision::Reserve(reserving) => self.evict_all(&reserving.victims),
                Decision::Disband(disbanding) => self.evict_all(&disbanding.pods),
                Decision::Hold { .. } => {}
                Decision::Wait { pod } => waiting.push(pod),
            }
            self.update_budgets();
        }
        for pod in waiting {
            self.request_node(&pod);
        }
        let is_timely = self.meter.levels.waiting > 0 || self.growth.has_added();
        if !self.ticking && is_timely {
            self.ticking = true;
            self.schedule(self.now_ms + self.experiment.assumptions.window_ms, SimEvent::Tick);
        }
    }

    /// Counts remaining disruptions, as the disruption controller does.
    fn update_budgets(&mut self) {
        if !std::mem::take(&mut self.budgets_changed) {
            return;
        }
        for (number, budget) in self.experiment.budgets.iter().enumerate() {
            let (mut wanted, mut healthy) = (0_u32, 0_u32);
            for (workload, state) in &self.services {
                let of = self.experiment.workloads.get(*workload);
                let Some(WorkloadKind::Service(service)) = of.map(|one| &one.kind) else {
                    continue;
                };
                let spec = &service.template;
                if spec.namespace == budget.namespace && budget.selector.matches(&spec.labels) {
                    wanted += state.desired;
                    healthy += state.ready_count();
                }
            }
            let needed = match budget.bound {
                BudgetBound::MinAvailable(amount) => amount.of(wanted),
                BudgetBound::MaxUnavailable(amount) => wanted.saturating_sub(amount.of(wanted)),
            };
            let allowed = i32::try_from(healthy.saturating_sub(needed)).unwrap_or(i32::MAX);
            if self.allowed.get(number).copied().flatten() == Some(allowed) {
                continue;
            }
            if let Some(known) = self.allowed.get_mut(number) {
                *known = Some(allowed);
            }
            self.engine.apply(Event::Budget(DisruptionBudget {
                namespace: budget.namespace.clone(),
                name: budget.name.clone(),
                selector: Some(budget.selector.clone()),
                disruptions_allowed: allowed,
                disrupted_pods: BTreeSet::new(),
            }));
        }
    }

    /// Whether a pod exists and is in one of these states.
    fn is(&self, pod: u64, states: &[PodState]) -> bool {
        self.pods.get(&pod).is_some_and(|pod| states.contains(&pod.state))
    }
}
