//! From a scenario's file and the objects it names to an experiment.
//!
//! Owns how behaviour, arrivals and failures are tied to workloads. Problems are told by field of the
//! scenario. Must not know YAML.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_api::FieldPath;
use berth_engine::Profile;
use berth_engine::event::Event;
use berth_kubelet::TopologyPolicy;
use berth_model::dice::Dice;
use berth_model::spec::PodSpec;
use berth_model::workload::{self, ClassRules, WorkloadClass};
use berth_sim::arrivals::{Lifetime, Rhythm, dice_for, poisson, rhythmic};
use berth_sim::assumptions::{Assumptions, Slowdown};
use berth_sim::experiment as sim;
use berth_sim::latency::Speed;
use berth_sim::report::WorkloadOutline;
use berth_tenancy::share::{Dimension, Entitlement, GPU_PARTS, Team};

use super::file::{self, Behaviour, Spec};
use super::pools;
use super::units::Time;
use crate::traces::requests::Trace;
use crate::workloads::COPIES_MAX;

/// What is wrong with a field of the scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(crate) field: FieldPath,
    pub(crate) message: String,
}

type Result<T, E = Wrong> = std::result::Result<T, E>;

fn spec_field(name: &str) -> FieldPath {
    FieldPath::root().key("spec").key(name)
}

fn wrong(field: FieldPath, message: impl Into<String>) -> Wrong {
    Wrong { field, message: message.into() }
}

/// A workload of the manifests.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) outline: WorkloadOutline,
    pub(crate) template: Arc<PodSpec>,
    pub(crate) form: Form,
}

/// How its pods are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// So many, kept alive.
    Replicas(u32),
    /// So many to the end.
    Job { completions: u32, parallelism: u32, retries: u32, deadline_ms: Option<i64> },
    /// One, by nobody.
    Pod,
    /// One on every node.
    PerNode,
}

impl Made {
    fn name(&self) -> String {
        format!("{}/{}", self.outline.namespace, self.outline.name)
    }
}

/// Reads traces that a scenario names.
pub(crate) type ReadTrace<'a> =
    &'a mut dyn FnMut(&file::Load, Option<&file::Latency>) -> Result<Trace, String>;

/// How long a pod of a job runs if nothing is said.
const DURATION: Lifetime = Lifetime::LogNormal { p50_ms: 3_600_000, p90_ms: 4 * 3_600_000 };

/// The most jobs that can come.
const JOBS_MAX: usize = 2_000_000;

/// What objects of the manifests and of the cluster add.
#[derive(Default)]
pub(crate) struct Given {
    pub(crate) nodes: Vec<sim::NodeSetup>,
    /// Pools that can grow.
    pub(crate) pools: Vec<sim::PoolSetup>,
    /// Pods of traces.
    pub(crate) traced: Vec<sim::Workload>,
    pub(crate) objects: Vec<Event>,
    pub(crate) budgets: Vec<sim::Budget>,
    pub(crate) made: Vec<Made>,
}

pub(crate) fn assemble(
    name: &str,
    spec: &Spec,
    mut given: Given,
    read_trace: ReadTrace<'_>,
) -> Result<sim::Experiment> {
    let duration_ms = spec.duration.ms();
    if duration_ms == 0 {
        return Err(wrong(spec_field("duration"), "is missing; write for how long, such as 90d"));
    }
    let assumptions = assumptions(&spec.assumptions)?;
    let classes = class_rules(spec)?;
    for made in &mut given.made {
        made.outline.class = classes.class_of(&made.template).to_string();
    }
    given.objects.push(Event::Classes(classes));
    let mut experiment = sim::Experiment {
        title: if spec.title.is_empty() { name.to_owned() } else { spec.title.clone() },
        description: spec.description.trim().to_owned(),
        seed: spec.seed,
        duration_ms,
        nodes: given.nodes,
        pools: given.pools,
        objects: given.objects,
        budgets: given.budgets,
        assumptions,
        ..sim::Experiment::default()
    };
    for (at, pool) in spec.cluster.pools.iter().enumerate() {
        let built = pools::build(pool).map_err(|problem| {
            let field = spec_field("cluster").key("pools").at(at);
            wrong(field.join(&FieldPath::parse(problem.field)), problem.message)
        })?;
        experiment.nodes.extend(built.nodes);
        experiment.pools.extend(built.growth);
        experiment.objects.push(Event::Pool(built.pool));
    }
    if experiment.nodes.is_empty() && experiment.pools.is_empty() {
        let message = "has no nodes; write pools, or manifests with Node objects";
        return Err(wrong(spec_field("cluster"), message));
    }
    let mut names = BTreeSet::new();
    if let Some(twice) = experiment.nodes.iter().find(|one| !names.insert(one.node.name.clone())) {
        let message = format!("two nodes are called {:?}; give pools other names", twice.node.name);
        return Err(wrong(spec_field("cluster"), message));
    }
    let behaviours = behaviours(spec, &given.made)?;
    let arrivals = Arrivals::new(spec, &given.made)?;
    for (number, made) in given.made.iter().enumerate() {
        let (field, behaviour) = behaviours[number].clone();
        let context = Context { spec, assumptions: &experiment.assumptions, field, behaviour };
        let times = arrivals.times_of(number);
        experiment.workloads.push(context.workload(made, times, read_trace)?);
    }
    experiment.workloads.extend(given.traced);
    experiment.failures = failures(spec, &experiment)?;
    for (at, headroom) in spec.headroom.iter().enumerate() {
        let field = spec_field("headroom").at(at);
        experiment.objects.push(Event::Headroom(kept_warm(headroom, field, &given.made)?));
    }
    experiment.objects.extend(teams(spec)?);
    experiment.setups = setups(spec)?;
    Ok(experiment)
}

/// The workloads a pattern names: `namespace/name`, where a `*` at the end stands for anything.
fn named<'a>(pattern: &str, made: &'a [Made]) -> impl Iterator<Item = (usize, &'a Made)> {
    let (prefix, any) = match pattern.strip_suffix('*') {
        Some(prefix) => (prefix.to_owned(), true),
        None => (pattern.to_owned(), false),
    };
    made.iter().enumerate().filter(move |(_, made)| {
        let name = made.name();
        if any { name.starts_with(&prefix) } else { name == prefix }
    })
}

fn unknown(field: FieldPath, pattern: &str, made: &[Made]) -> Wrong {
    let mut names: Vec<String> = made.iter().map(Made::name).collect();
    names.sort();
    names.truncate(8);
    let known = if names.is_empty() {
        "the manifests have none".to_owned()
    } else {
        format!("there is {}", names.join(", "))
    };
    wrong(field.key("workload"), format!("no workload is called {pattern:?}; {known}"))
}

/// What is said of each workload; the last that names it counts.
fn behaviours(spec: &Spec, made: &[Made]) -> Result<Vec<(FieldPath, Behaviour)>> {
    let mut all = vec![(spec_field("behaviour"), Behaviour::default()); made.len()];
    for (at, behaviour) in spec.behaviour.iter().enumerate() {
        let field = spec_field("behaviour").at(at);
        let mut found = false;
        for (number, _) in named(&behaviour.workload, made) {
            found = true;
            all[number] = (field.clone(), behaviour.clone());
        }
        if !found {
            return Err(unknown(field, &behaviour.workload, made));
        }
    }
    Ok(all)
}

/// When jobs come.
struct Arrivals {
    /// By workload; `None`: once, at the beginning.
    times: Vec<Option<Vec<i64>>>,
}

impl Arrivals {
    fn new(spec: &Spec, made: &[Made]) -> Result<Self> {
        let mut times: Vec<Option<Vec<i64>>> = vec![None; made.len()];
        let mut all = 0;
        for (at, arrivals) in spec.arrivals.iter().enumerate() {
            // Those of traces bring their own pods.
            if arrivals.trace.is_some() {
                continue;
            }
            let field = spec_field("arrivals").at(at);
            let mut found = false;
            for (number, one) in named(&arrivals.workload, made) {
                found = true;
                if !matches!(one.form, Form::Job { .. } | Form::Pod) {
                    let message =
                        format!("{} does not end; only Jobs and Pods come again", one.name());
                    return Err(wrong(field.key("workload"), message));
                }
                let dice = dice_for(spec.seed, &format!("{}@{at}", one.name()));
                let drawn = drawn(arrivals, dice, spec.duration.ms(), &field)?;
                all += drawn.len();
                times[number].get_or_insert_default().extend(drawn);
            }
            if !found {
                return Err(unknown(field, &arrivals.workload, made));
            }
            if all > JOBS_MAX {
                return Err(wrong(field, format!("makes more than {JOBS_MAX} jobs come")));
            }
        }
        times.iter_mut().flatten().for_each(|times| times.sort_unstable());
        Ok(Self { times })
    }

    fn times_of(&self, workload: usize) -> Vec<i64> {
        self.times.get(workload).cloned().flatten().unwrap_or_else(|| vec![0])
    }
}

fn drawn(
    arrivals: &file::Arrivals,
    dice: Dice,
    duration_ms: i64,
    field: &FieldPath,
) -> Result<Vec<i64>> {
    let from_ms = arrivals.from.ms();
    let until_ms = arrivals.until.map_or(duration_ms, Time::ms).min(duration_ms);
    let mut times: Vec<i64> = arrivals.at.iter().map(|at| at.ms()).collect();
    if let Some(every) = arrivals.every {
        let every_ms = every.ms();
        if every_ms == 0 {
            return Err(wrong(field.clone().key("every"), "is 0; write how far apart they come"));
        }
        let count = ((until_ms - from_ms).max(0) as u64).div_ceil(every_ms as u64);
        if count > JOBS_MAX as u64 {
            return Err(wrong(field.clone().key("every"), format!("makes {count} jobs come")));
        }
        times.extend((0..count as i64).map(|number| from_ms + number * every_ms));
    }
    if let Some(per_hour) = arrivals.per_hour {
        let hours = (until_ms - from_ms).max(0) as f64 / 3_600_000.0;
        if !(0.0..=JOBS_MAX as f64).contains(&(per_hour * hours)) {
            let message = format!("{per_hour} an hour for {hours:.0} hours is out of range");
            return Err(wrong(field.clone().key("perHour"), message));
        }
        let rhythm = rhythm(arrivals.rhythm);
        times.extend(poisson(dice, per_hour, rhythm, from_ms..until_ms));
    }
    if times.is_empty()
        && arrivals.at.is_empty()
        && arrivals.every.is_none()
        && arrivals.per_hour.is_none()
    {
        return Err(wrong(field.clone(), "says no times; write at, every or perHour"));
    }
    Ok(times)
}

fn rhythm(written: Option<file::Rhythm>) -> Rhythm {
    written.map_or(Rhythm::STEADY, |rhythm| Rhythm {
        trough: rhythm.trough.0,
        peak_hour: rhythm.peak_hour,
        weekend: rhythm.weekend.0,
    })
}

/// What is said of one workload.
struct Context<'a> {
    spec: &'a Spec,
    assumptions: &'a Assumptions,
    field: FieldPath,
    behaviour: Behaviour,
}

impl Context<'_> {
    fn workload(
        &self,
        made: &Made,
        times: Vec<i64>,
        read_trace: ReadTrace<'_>,
    ) -> Result<sim::Workload> {
        let behaviour = &self.behaviour;
        let kind = match made.form {
            Form::PerNode => sim::WorkloadKind::Daemon(made.template.clone()),
            Form::Replicas(replicas) => {
                sim::WorkloadKind::Service(self.service(made, replicas, read_trace)?)
            }
            Form::Job { completions, parallelism, retries, deadline_ms } => {
                self.jobs(made, &times, (completions, parallelism, retries), deadline_ms)?
            }
            Form::Pod => self.jobs(made, &times, (1, 1, 0), None)?,
        };
        let is_serving = matches!(made.form, Form::Replicas(_));
        Ok(sim::Workload {
            outline: made.outline.clone(),
            gpu_memory_bytes: behaviour.gpu_memory.map_or(0, |bytes| bytes.0),
            // Batch keeps what it has busy; a replica uses what it asks for.
            busy_milli: behaviour.busy.map_or_else(
                || {
                    let part = made.template.gpu.map(|need| u32::from(need.compute_milli));
                    part.filter(|milli| is_serving && *milli > 0).unwrap_or(1000)
                },
                super::units::Part::milli,
            ),
            load_ms: behaviour.model_load.map_or(0, Time::ms),
            kind,
        })
    }

    fn service(
        &self,
        made: &Made,
        replicas: u32,
        read_trace: ReadTrace<'_>,
    ) -> Result<sim::Service> {
        let behaviour = &self.behaviour;
        let mut speed = self.speed();
        let load = match &behaviour.load {
            None => None,
            Some(load) if load.trace.is_some() => {
                let field = self.field.clone().key("load").key("trace");
                let trace = read_trace(load, behaviour.latency.as_ref())
                    .map_err(|problem| wrong(field, problem))?;
                speed = trace.speed.unwrap_or(speed);
                Some(trace.load)
            }
            Some(load) => {
                let field = self.field.clone().key("load").key("perSecond");
                let Some(per_second) = load.per_second.filter(|rate| (0.0..1e9).contains(rate))
                else {
                    return Err(wrong(field, "is missing; write requests per second, or a trace"));
                };
                let dice = dice_for(self.spec.seed, &made.name());
                let noise = load.noise.map_or(0.0, |noise| noise.0);
                let mut steps = vec![(0, per_second)];
                steps.extend(load.steps.iter().map(|step| (step.at.ms(), step.per_second)));
                if steps.iter().any(|(_, rate)| !(0.0..1e9).contains(rate)) {
                    let field = self.field.clone().key("load").key("steps");
                    return Err(wrong(field, "perSecond is out of range; write 0 or more"));
                }
                let rhythm = rhythm(load.rhythm);
                Some(rhythmic(dice, &steps, rhythm, noise, self.spec.duration.ms()))
            }
        };
        let autoscale = behaviour.autoscale.map(|autoscale| sim::Autoscale {
            min: autoscale.min,
            max: autoscale.max,
            target_milli: autoscale.target.milli(),
        });
        let most = behaviour.replicas.iter().map(|step| step.count);
        let most = most.chain(autoscale.map(|one| one.max.max(one.min))).max().unwrap_or(0);
        if most > COPIES_MAX {
            let message = format!("{most} replicas are more than {COPIES_MAX}");
            return Err(wrong(self.field.clone(), message));
        }
        let mut steps: Vec<(i64, u32)> =
            behaviour.replicas.iter().map(|step| (step.at.ms(), step.count)).collect();
        steps.sort_unstable();
        if autoscale.is_none() && steps.first().is_none_or(|(at_ms, _)| *at_ms > 0) {
            steps.insert(0, (0, replicas));
        }
        Ok(sim::Service {
            template: made.template.clone(),
            replicas: steps,
            autoscale,
            load,
            speed,
            objective_us: behaviour.objective.map_or(0, Time::us),
        })
    }

    fn speed(&self) -> Speed {
        let assumed = self.assumptions.speed;
        let Some(latency) = self.behaviour.latency else { return assumed };
        let mean_us = latency.mean.map_or(assumed.mean_us, Time::us).max(1);
        Speed {
            mean_us,
            p99_us: latency.p99.map_or(mean_us * 2, Time::us).max(mean_us),
            slots: latency.slots.unwrap_or(assumed.slots).max(1),
        }
    }

    fn jobs(
        &self,
        made: &Made,
        times: &[i64],
        (completions, parallelism, retries): (u32, u32, u32),
        deadline_ms: Option<i64>,
    ) -> Result<sim::WorkloadKind> {
        let behaviour = &self.behaviour;
        let lifetime = self.lifetime()?;
        let dice = dice_for(self.spec.seed, &format!("{} lasts", made.name()));
        let deadline_ms = deadline_ms.into_iter().chain(made.template.deadline_ms).min();
        let job = |(number, at_ms): (usize, &i64)| sim::Job {
            at_ms: *at_ms,
            template: made.template.clone(),
            completions,
            parallelism,
            duration_ms: Some(lifetime.draw(dice, number as u64)),
            retries,
            deadline_ms,
            checkpoint_ms: behaviour.checkpoint.map_or(0, Time::ms),
        };
        Ok(sim::WorkloadKind::Jobs(times.iter().enumerate().map(job).collect()))
    }

    fn lifetime(&self) -> Result<Lifetime> {
        let Some(duration) = self.behaviour.duration else { return Ok(DURATION) };
        match (duration.fixed, duration.mean, duration.p50, duration.p90) {
            (Some(fixed), None, None, None) => Ok(Lifetime::Fixed(fixed.ms())),
            (None, Some(mean), None, None) => Ok(Lifetime::Exponential(mean.ms())),
            (None, None, Some(p50), Some(p90)) if p90 >= p50 => {
                Ok(Lifetime::LogNormal { p50_ms: p50.ms(), p90_ms: p90.ms() })
            }
            _ => {
                let message = "write fixed, or mean, or p50 with a greater p90";
                Err(wrong(self.field.clone().key("duration"), message))
            }
        }
    }
}

fn failures(spec: &Spec, experiment: &sim::Experiment) -> Result<Vec<sim::Failure>> {
    let nodes: BTreeSet<&str> =
        experiment.nodes.iter().map(|node| node.node.name.as_ref()).collect();
    let zones: BTreeSet<&str> = experiment
        .nodes
        .iter()
        .filter_map(|node| node.node.labels.get("topology.kubernetes.io/zone"))
        .map(AsRef::as_ref)
        .collect();
    let pools: BTreeSet<&str> = experiment.pools.iter().map(|pool| pool.name.as_ref()).collect();
    let one = |(at, failure): (usize, &file::Failure)| {
        let field = spec_field("failures").at(at);
        let known = |what: &str, name: &str, names: &BTreeSet<&str>| {
            if names.contains(name) {
                return Ok(Arc::from(name));
            }
            let some: Vec<&str> = names.iter().take(8).copied().collect();
            let message = format!("{name:?} is unknown; there is {}", some.join(", "));
            Err(wrong(field.clone().key(what), message))
        };
        let what = match failure {
            file::Failure {
                node: Some(node),
                zone: None,
                kubelet: None,
                provisioning: None,
                ..
            } => sim::Fault::Node(known("node", node, &nodes)?),
            file::Failure {
                zone: Some(zone),
                node: None,
                kubelet: None,
                provisioning: None,
                ..
            } => sim::Fault::Zone(known("zone", zone, &zones)?),
            file::Failure {
                kubelet: Some(node),
                node: None,
                zone: None,
                provisioning: None,
                ..
            } => sim::Fault::Kubelet(known("kubelet", node, &nodes)?),
            file::Failure {
                provisioning: Some(pool),
                node: None,
                zone: None,
                kubelet: None,
                ..
            } => {
                let factor = failure.factor.filter(|factor| (0.0..1e6).contains(factor));
                let Some(factor) = factor else {
                    let message = "is missing; write how many times as long new nodes take";
                    return Err(wrong(field.key("factor"), message));
                };
                sim::Fault::Provisioning {
                    pool: known("provisioning", pool, &pools)?,
                    factor_milli: (factor * 1000.0) as u32,
                }
            }
            _ => {
                let message = "write exactly one of node, zone, kubelet and provisioning";
                return Err(wrong(field, message));
            }
        };
        Ok(sim::Failure { at_ms: failure.at.ms(), for_ms: failure.r#for.map(Time::ms), what })
    };
    spec.failures.iter().enumerate().map(one).collect()
}

fn kept_warm(
    written: &file::Headroom,
    field: FieldPath,
    made: &[Made],
) -> Result<workload::Headroom> {
    let Some((_, of)) = named(&written.workload, made).next() else {
        return Err(unknown(field, &written.workload, made));
    };
    let text = written.class.as_deref().unwrap_or(&of.outline.class);
    let Some(class) = WorkloadClass::parse(text) else {
        let names = WorkloadClass::ALL.map(WorkloadClass::as_str).join(", ");
        return Err(wrong(
            field.key("class"),
            format!("{text:?} is no class; write one of {names}"),
        ));
    };
    let name = if written.name.is_empty() { &written.workload } else { &written.name };
    let (template, count) = (of.template.clone(), written.count.max(1));
    Ok(workload::Headroom { name: name.as_str().into(), template, count, class })
}

fn teams(spec: &Spec) -> Result<Vec<Event>> {
    let one = |(at, team): (usize, &file::Team)| {
        let field = spec_field("teams").at(at);
        if team.name.is_empty() {
            return Err(wrong(field.key("name"), "is missing; every team has a name"));
        }
        let parts = |gpus: i64| gpus.saturating_mul(GPU_PARTS);
        let entitlement = Entitlement {
            guaranteed: parts(team.gpus),
            borrow_max: team.borrow.map(parts),
            lend_max: team.lend.map(parts),
        };
        Ok(Event::Team(Team {
            name: team.name.as_str().into(),
            namespaces: team.namespaces.iter().map(|one| one.as_str().into()).collect(),
            entitlements: [(Dimension::Gpus, entitlement)].into(),
            ..Team::default()
        }))
    };
    spec.teams.iter().enumerate().map(one).collect()
}

fn class_rules(spec: &Spec) -> Result<ClassRules> {
    let read = |(name, text): (&String, &String)| match WorkloadClass::parse(text) {
        Some(class) => Ok((name.as_str().into(), class)),
        None => {
            let known = WorkloadClass::ALL.map(WorkloadClass::as_str).join(", ");
            let message = format!("unknown workload class {text:?}; write one of {known}");
            Err(wrong(spec_field("workloadClasses").key(name.as_str()), message))
        }
    };
    let by_priority_class = spec.workload_classes.iter().map(read).collect::<Result<_>>()?;
    Ok(ClassRules { by_priority_class, ..ClassRules::default() })
}

/// The setups to compare; by default kube-scheduler and Berth on the cluster as it is.
fn setups(spec: &Spec) -> Result<Vec<sim::Setup>> {
    if spec.compare.is_empty() {
        let plain = |name: &str, profile| sim::Setup {
            name: name.to_owned(),
            profile,
            kubelet: sim::KubeletPolicy::AsDescribed,
            division: sim::Division::AsDescribed,
            consolidation: None,
        };
        return Ok(vec![
            plain("kube-scheduler", Profile::KubeScheduler),
            plain("berth", Profile::Berth),
        ]);
    }
    let one = |(at, setup): (usize, &file::Setup)| {
        let profile = match setup.scheduler {
            file::Scheduler::Berth => Profile::Berth,
            file::Scheduler::Kube => Profile::KubeScheduler,
            file::Scheduler::KubePacking => Profile::KubeSchedulerPacking,
        };
        let kubelet = match setup.kubelet.as_deref() {
            None | Some("as-described") => sim::KubeletPolicy::AsDescribed,
            Some("defaults") => sim::KubeletPolicy::Defaults,
            Some(policy) => {
                let policy: Result<TopologyPolicy, _> = policy.parse();
                let field = spec_field("compare").at(at).key("kubelet");
                sim::KubeletPolicy::Topology(policy.map_err(
                    |error: berth_kubelet::ConfigError| {
                        wrong(field, format!("{}; or as-described or defaults", error.problem))
                    },
                )?)
            }
        };
        let division = match setup.gpus {
            file::Gpu::AsDescribed => sim::Division::AsDescribed,
            file::Gpu::Whole => sim::Division::Whole,
        };
        let name = match setup.name.as_str() {
            "" => format!("setup {}", at + 1),
            name => name.to_owned(),
        };
        let consolidation = setup.consolidate.map(|one| sim::Consolidation {
            every_ms: one.every.ms().max(60_000),
            moves_max: one.moves,
            gain_min_micro: (one.gain.0 * 1e6) as i64,
        });
        Ok(sim::Setup { name, profile, kubelet, division, consolidation })
    };
    spec.compare.iter().enumerate().map(one).collect()
}

fn assumptions(written: &file::Assumptions) -> Result<Assumptions> {
    let mut assumed = Assumptions::default();
    let slowdown = |field: &str, slot: &mut Slowdown, given: Option<file::Slowdown>| {
        let Some(given) = given else { return Ok(()) };
        if !(0.001..=1e4).contains(&given.mean) || !(0.001..=1e4).contains(&given.p99) {
            let message = "write how many times as long, such as {mean: 1.3, p99: 1.7}";
            return Err(wrong(spec_field("assumptions").key(field), message));
        }
        let milli = |times: f64| (times * 1000.0).round() as u32;
        *slot = Slowdown { mean_milli: milli(given.mean), p99_milli: milli(given.p99) };
        Ok(())
    };
    let [one, more] = &mut assumed.time_sliced;
    slowdown("timeSliced", one, written.time_sliced)?;
    slowdown("timeSlicedMore", more, written.time_sliced_more)?;
    slowdown("misaligned", &mut assumed.misaligned, written.misaligned)?;
    slowdown("mpsAlone", &mut assumed.mps_alone, written.mps_alone)?;
    slowdown("mpsCapped", &mut assumed.mps_capped, written.mps_capped)?;
    slowdown("mpsUncapped", &mut assumed.mps_uncapped, written.mps_uncapped)?;
    let times = [
        (&mut assumed.start_ms, written.start),
        (&mut assumed.grace_ms, written.grace),
        (&mut assumed.replace_ms, written.replace),
        (&mut assumed.replace_max_ms, written.replace_max),
        (&mut assumed.unreachable_ms, written.unreachable),
        (&mut assumed.evict_ms, written.evict),
        (&mut assumed.plugin_gap_ms, written.plugin_gap),
        (&mut assumed.timeout_ms, written.timeout),
        (&mut assumed.window_ms, written.window),
        (&mut assumed.breach_ms, written.breach),
        (&mut assumed.scale_down_ms, written.scale_down),
    ];
    for (slot, given) in times {
        *slot = given.map_or(*slot, Time::ms);
    }
    if assumed.window_ms < 1_000 {
        let message = "is shorter than a second; write how often load is looked at, such as 1m";
        return Err(wrong(spec_field("assumptions").key("window"), message));
    }
    Ok(assumed)
}
