//! The simulated world under one setup: an engine, virtual kubelets, controllers, load, failures.
//!
//! Owns virtual time and what happens when. Everything that happens at one time is told to the engine
//! before it decides. What pods do is in [`pods`], what nodes do in [`nodes`], what services do in
//! [`serving`], what comes of it all in [`outcome`].

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
use self::pods::{Fate, JobState, Pod};
use self::serving::ServiceState;
use crate::experiment::{BudgetBound, Division, Experiment, Setup, WorkloadKind};
use crate::latency::Curves;
use crate::meter::Meter;
use crate::node::{Ask, NodeError, VirtualNode, as_whole, by_hand};
use crate::report::{Run, Stay};

/// A series has so many steps.
const STEPS: i64 = 360;

/// What is going to happen.
#[derive(Clone, Debug)]
pub(crate) enum Coming {
    /// A job of a workload comes.
    Arrive { workload: usize, job: usize },
    /// A service is to have so many replicas.
    Scale { workload: usize, replicas: u32 },
    /// A controller makes a pod in place of one.
    Replace { workload: usize, job: Option<usize>, past: pods::Past },
    /// A container has started and has loaded what it needs.
    Ready(u64),
    /// A pod is done.
    End(u64),
    /// A container ends for lack of memory.
    OutOfMemory(u64),
    /// A pod that was told to leave has left.
    Gone(u64),
    /// Load is looked at.
    Window,
    /// Pods wait, or nodes can be given back, so that time matters.
    Tick,
    /// A step of the series ends.
    Step,
    /// Something fails.
    Fail(usize),
    /// It works again.
    Mend(usize),
    /// It has been noticed that a node does not answer.
    Unreachable { node: usize, loss: u64 },
    /// Pods on a node that does not answer are given up.
    GiveUp { node: usize, loss: u64 },
    /// A job has had all the time it may have.
    Deadline { workload: usize, job: usize },
    /// A node that was asked for is there.
    Provisioned { pool: usize, order: u64 },
    /// Replicas are moved so that more of the GPUs can be used.
    Consolidate,
}

pub(crate) struct World<'a> {
    experiment: &'a Experiment,
    setup: &'a Setup,
    engine: Engine,
    now_ms: i64,
    comings: BTreeMap<(i64, u64), Coming>,
    serial: u64,
    ticking: bool,
    nodes: Vec<VirtualNode>,
    node_by_name: BTreeMap<Arc<str>, usize>,
    growth: Growth,
    pods: BTreeMap<u64, Pod>,
    pods_made: u64,
    /// By workload, then by its templates as this setup writes them.
    templates: Vec<BTreeMap<usize, Arc<PodSpec>>>,
    demands: BTreeMap<(usize, Option<ResourceName>), Option<Arc<PodDemand>>>,
    jobs: Vec<Vec<JobState>>,
    services: BTreeMap<usize, ServiceState>,
    curves: Curves,
    asks: Vec<(Ask, f64)>,
    allowed: Vec<Option<i32>>,
    budgets_moved: bool,
    meter: Meter,
    stays: Vec<Stay>,
    stays_left_out: usize,
    /// Thousandths of GPUs times milliseconds, and micro-dollars times hours in milliseconds, by
    /// workload; and the same of busy GPUs.
    held: Vec<Held>,
    pods_of: Vec<u64>,
    started: u64,
    admission: quota::Admission,
    lost: u64,
    moves: u64,
    jobs_done: u64,
    /// GPUs times milliseconds of work that was lost.
    wasted_gpu_ms: f64,
    /// By failure: the nodes that it took down.
    lost_by_failure: BTreeMap<usize, Vec<usize>>,
    /// What pods of DaemonSets are made from, by workload and node.
    daemons: BTreeMap<(usize, usize), Arc<PodSpec>>,
    out_of_memory: u64,
    decisions: u64,
    node_cost: f64,
}

/// What a workload had.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    pub(crate) gpu_ms: f64,
    pub(crate) busy_gpu_ms: f64,
    pub(crate) microusd: f64,
}

/// Runs an experiment under one of its setups. `progress` is told how much of it is done.
pub(crate) fn run(
    experiment: &Experiment,
    setup: &Setup,
    progress: &mut dyn FnMut(f64),
) -> Result<(Run, Vec<crate::report::NodeOutline>), NodeError> {
    let mut world = World::new(experiment, setup)?;
    world.begin();
    let end_ms = experiment.duration_ms.max(1);
    let mut told = 0;
    while let Some(((at_ms, _), coming)) = world.comings.pop_first() {
        if at_ms >= end_ms {
            break;
        }
        world.pass(at_ms);
        world.happen(coming)?;
        // What happens at the same time is decided about together.
        let next = world.comings.first_key_value().map(|((at_ms, _), _)| *at_ms);
        if next != Some(at_ms) {
            world.decide();
        }
        let percent = at_ms * 100 / end_ms;
        if percent > told {
            told = percent;
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
            comings: BTreeMap::new(),
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
            asks: Vec::new(),
            allowed: vec![None; experiment.budgets.len()],
            budgets_moved: true,
            meter: Meter::new(step_ms),
            stays: Vec::new(),
            stays_left_out: 0,
            held: vec![Held::default(); count],
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

    /// Every template as somebody would write it for this setup.
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
        let mut asks: BTreeMap<Ask, f64> = BTreeMap::new();
        for (workload, templates) in self.experiment.workloads.iter().zip(&mut self.templates) {
            let mut add = |spec: &Arc<PodSpec>, count: f64| {
                let key = Arc::as_ptr(spec) as usize;
                let written = templates.entry(key).or_insert_with(|| write(spec));
                if let Some(ask) = Ask::of(written) {
                    *asks.entry(ask).or_default() += count;
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
        self.asks = asks.into_iter().map(|(ask, count)| (ask, count / all)).collect();
        // Those that ask alike are few; where they are not, the most frequent stand for all.
        self.asks.sort_by(|one, other| other.1.total_cmp(&one.1));
        self.asks.truncate(32);
    }

    /// A template as this setup writes it.
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
                        self.later(one.at_ms, Coming::Arrive { workload: number, job });
                    }
                }
                WorkloadKind::Service(service) => {
                    self.services.insert(number, ServiceState::default());
                    if let Some(autoscale) = service.autoscale {
                        let replicas = autoscale.min;
                        self.later(0, Coming::Scale { workload: number, replicas });
                    }
                    for (at_ms, replicas) in &service.replicas {
                        let replicas = *replicas;
                        self.later(*at_ms, Coming::Scale { workload: number, replicas });
                    }
                }
                WorkloadKind::Daemon(_) => {}
            }
        }
        for number in 0..self.nodes.len() {
            self.make_daemons(number);
        }
        for (number, failure) in self.experiment.failures.iter().enumerate() {
            self.later(failure.at_ms, Coming::Fail(number));
        }
        let is_loaded = |workload: &crate::experiment::Workload| {
            matches!(&workload.kind, WorkloadKind::Service(service)
                if service.load.is_some() || service.autoscale.is_some())
        };
        if self.experiment.workloads.iter().any(is_loaded) {
            self.later(0, Coming::Window);
        }
        self.later(0, Coming::Tick);
        self.later(self.meter.series.step_ms, Coming::Step);
        if let Some(consolidation) = self.consolidation() {
            self.later(consolidation.every_ms, Coming::Consolidate);
        }
    }

    fn later(&mut self, at_ms: i64, coming: Coming) {
        self.serial += 1;
        self.comings.insert((at_ms.max(self.now_ms), self.serial), coming);
    }

    fn pass(&mut self, now_ms: i64) {
        self.now_ms = now_ms;
        self.meter.pass(now_ms);
    }

    fn happen(&mut self, coming: Coming) -> Result<(), NodeError> {
        match coming {
            Coming::Arrive { workload, job } => self.arrive(workload, job),
            Coming::Scale { workload, replicas } => self.scale(workload, replicas),
            Coming::Replace { workload, job, past } => self.replace(workload, job, past),
            Coming::Ready(pod) => self.ready(pod),
            Coming::End(pod) => self.end(pod),
            Coming::OutOfMemory(pod) => self.run_out_of_memory(pod),
            Coming::Gone(pod) => self.gone(pod),
            Coming::Window => self.window(),
            Coming::Tick => {
                self.ticking = false;
                self.give_back_idle_nodes();
            }
            Coming::Step => self.close_step(),
            Coming::Fail(number) => self.fail(number),
            Coming::Mend(number) => self.recover(number),
            Coming::Unreachable { node, loss } => self.mark_unreachable(node, loss),
            Coming::GiveUp { node, loss } => self.give_up(node, loss),
            Coming::Deadline { workload, job } => self.end_job(workload, job),
            Coming::Provisioned { pool, order } => self.provisioned(pool, order)?,
            Coming::Consolidate => self.consolidate(),
        }
        Ok(())
    }

    /// Lets the engine decide, and carries it out.
    fn decide(&mut self) {
        self.tell_budgets();
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
            self.tell_budgets();
        }
        for pod in waiting {
            self.wish_for_node(&pod);
        }
        let is_timely = self.meter.levels.waiting > 0 || self.growth.has_added();
        if !self.ticking && is_timely {
            self.ticking = true;
            self.later(self.now_ms + self.experiment.assumptions.window_ms, Coming::Tick);
        }
    }

    /// What is left of disruption budgets, as their controller counts it.
    fn tell_budgets(&mut self) {
        if !std::mem::take(&mut self.budgets_moved) {
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

    /// Whether a pod is there and in one of these states.
    fn is(&self, pod: u64, fates: &[Fate]) -> bool {
        self.pods.get(&pod).is_some_and(|pod| fates.contains(&pod.fate))
    }
}
