//! From a scenario and the objects of its manifests to an experiment. Errors name the field of the
//! scenario.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_api::FieldPath;
use berth_engine::event::Event;
use berth_model::dice::Dice;
use berth_model::policy;
use berth_model::spec::PodSpec;
use berth_sim::arrivals::{Lifetime, Rhythm, dice_for, poisson, rhythmic};
use berth_sim::assumptions::Assumptions;
use berth_sim::experiment as sim;
use berth_sim::latency::Speed;
use berth_sim::report::WorkloadOutline;

use super::file::{self, Behaviour, Spec};
use super::units::Time;
use super::{pools, settings};
use crate::traces::requests::Trace;
use crate::workloads::{COPIES_MAX, JobBounds};

/// An invalid field of the scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldError {
    pub(crate) field: FieldPath,
    /// The problem and its remedy.
    pub(crate) message: String,
}

pub(crate) type Result<T, E = FieldError> = std::result::Result<T, E>;

pub(crate) fn spec_field(name: &str) -> FieldPath {
    FieldPath::root().key("spec").key(name)
}

pub(crate) fn invalid(field: FieldPath, message: impl Into<String>) -> FieldError {
    FieldError { field, message: message.into() }
}

/// A workload of the manifests.
#[derive(Clone, Debug)]
pub(crate) struct ManifestWorkload {
    pub(crate) outline: WorkloadOutline,
    pub(crate) template: Arc<PodSpec>,
    pub(crate) lifecycle: Lifecycle,
}

/// How the pods of a workload come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lifecycle {
    Replicas(u32),
    Job(JobBounds),
    /// One pod without a controller.
    Pod,
    /// One pod on every matching node.
    Daemon,
}

impl ManifestWorkload {
    fn name(&self) -> String {
        format!("{}/{}", self.outline.namespace, self.outline.name)
    }
}

/// Reads the request trace of a load.
pub(crate) type ReadTrace<'a> =
    &'a mut dyn FnMut(&file::Load, Option<&file::Latency>) -> Result<Trace, String>;

/// Run time of a Job's pods by default.
const DURATION: Lifetime = Lifetime::LogNormal { p50_ms: 3_600_000, p90_ms: 4 * 3_600_000 };

const JOBS_MAX: usize = 2_000_000;

/// What the manifests and the traces contribute.
#[derive(Default)]
pub(crate) struct Inputs {
    pub(crate) nodes: Vec<sim::NodeSetup>,
    /// From Pool and NodePool objects.
    pub(crate) pools: Vec<policy::Pool>,
    /// Pools of the manifests that can grow.
    pub(crate) growth: Vec<sim::PoolSetup>,
    pub(crate) traced: Vec<sim::Workload>,
    pub(crate) objects: Vec<Event>,
    pub(crate) budgets: Vec<sim::Budget>,
    pub(crate) workloads: Vec<ManifestWorkload>,
}

pub(crate) fn assemble(
    name: &str,
    spec: &Spec,
    mut inputs: Inputs,
    read_trace: ReadTrace<'_>,
) -> Result<sim::Experiment> {
    let duration_ms = spec.duration.ms();
    if duration_ms == 0 {
        return Err(invalid(spec_field("duration"), "is required; write a time such as 90d"));
    }
    let classes = settings::class_rules(spec)?;
    for workload in &mut inputs.workloads {
        workload.outline.class = classes.class_of(&workload.template).to_string();
    }
    inputs.objects.push(Event::Classes(classes));
    let setups = settings::setups(spec)?;
    let mut experiment = sim::Experiment {
        title: if spec.title.is_empty() { name.to_owned() } else { spec.title.clone() },
        description: spec.description.trim().to_owned(),
        seed: spec.seed,
        duration_ms,
        nodes: inputs.nodes,
        pools: inputs.growth,
        objects: inputs.objects,
        budgets: inputs.budgets,
        reservations: settings::reservations(spec.reservations)?,
        goals: settings::goals(spec, &setups)?,
        assumptions: settings::assumptions(&spec.assumptions)?,
        setups,
        ..sim::Experiment::default()
    };
    for (at, pool) in spec.cluster.pools.iter().enumerate() {
        let built = pools::build(pool, &inputs.pools).map_err(|problem| {
            let field = spec_field("cluster").key("pools").at(at);
            invalid(field.join(&FieldPath::parse(problem.field)), problem.message)
        })?;
        experiment.nodes.extend(built.nodes);
        experiment.pools.extend(built.growth);
        inputs.pools.retain(|policy| policy.name != built.pool.name);
        experiment.objects.push(Event::Pool(built.pool));
    }
    experiment.objects.extend(inputs.pools.into_iter().map(Event::Pool));
    if experiment.nodes.is_empty() && experiment.pools.is_empty() {
        let message = "has no nodes; write pools, or manifests with Node objects";
        return Err(invalid(spec_field("cluster"), message));
    }
    let mut names = BTreeSet::new();
    if let Some(twice) = experiment.nodes.iter().find(|one| !names.insert(one.node.name.clone())) {
        let message = format!("duplicate node name {:?}; rename a pool", twice.node.name);
        return Err(invalid(spec_field("cluster"), message));
    }
    let behaviours = behaviours(spec, &inputs.workloads)?;
    let arrivals = Arrivals::new(spec, &inputs.workloads)?;
    let workloads = inputs.workloads.iter().zip(behaviours).enumerate();
    for (number, (workload, (field, behaviour))) in workloads {
        let context = Context { spec, assumptions: &experiment.assumptions, field, behaviour };
        let times = arrivals.times_of(number);
        experiment.workloads.push(context.workload(workload, &times, read_trace)?);
    }
    experiment.workloads.extend(inputs.traced);
    experiment.failures = settings::failures(spec, &experiment)?;
    Ok(experiment)
}

/// The workloads that match NAMESPACE/NAME, where a trailing `*` matches any rest.
fn matching<'a>(
    pattern: &str,
    workloads: &'a [ManifestWorkload],
) -> impl Iterator<Item = (usize, &'a ManifestWorkload)> {
    let (prefix, any) = match pattern.strip_suffix('*') {
        Some(prefix) => (prefix.to_owned(), true),
        None => (pattern.to_owned(), false),
    };
    workloads.iter().enumerate().filter(move |(_, workload)| {
        let name = workload.name();
        if any { name.starts_with(&prefix) } else { name == prefix }
    })
}

fn unknown(field: FieldPath, pattern: &str, workloads: &[ManifestWorkload]) -> FieldError {
    let mut names: Vec<String> = workloads.iter().map(ManifestWorkload::name).collect();
    names.sort();
    names.truncate(8);
    let known = if names.is_empty() {
        "the manifests contain none".to_owned()
    } else {
        format!("known are {}", names.join(", "))
    };
    invalid(field.key("workload"), format!("unknown workload {pattern:?}; {known}"))
}

/// By workload: its behaviour and where that is written. The last entry that matches counts.
fn behaviours(spec: &Spec, workloads: &[ManifestWorkload]) -> Result<Vec<(FieldPath, Behaviour)>> {
    let mut all = vec![(spec_field("behaviour"), Behaviour::default()); workloads.len()];
    for (at, behaviour) in spec.behaviour.iter().enumerate() {
        let field = spec_field("behaviour").at(at);
        let mut found = false;
        for (number, _) in matching(&behaviour.workload, workloads) {
            found = true;
            all[number] = (field.clone(), behaviour.clone());
        }
        if !found {
            return Err(unknown(field, &behaviour.workload, workloads));
        }
    }
    Ok(all)
}

/// Arrival times.
struct Arrivals {
    /// By workload; `None`: once, at the start.
    times: Vec<Option<Vec<i64>>>,
}

impl Arrivals {
    fn new(spec: &Spec, workloads: &[ManifestWorkload]) -> Result<Self> {
        let mut times: Vec<Option<Vec<i64>>> = vec![None; workloads.len()];
        let mut all = 0;
        for (at, arrivals) in spec.arrivals.iter().enumerate() {
            // Traces bring their own pods.
            if arrivals.trace.is_some() {
                continue;
            }
            let field = spec_field("arrivals").at(at);
            let mut found = false;
            for (number, one) in matching(&arrivals.workload, workloads) {
                found = true;
                if !matches!(one.lifecycle, Lifecycle::Job(_) | Lifecycle::Pod) {
                    let message =
                        format!("{} is not a Job or Pod; only these have arrivals", one.name());
                    return Err(invalid(field.key("workload"), message));
                }
                let dice = dice_for(spec.seed, &format!("{}@{at}", one.name()));
                let drawn = drawn(arrivals, dice, spec.duration.ms(), &field)?;
                all += drawn.len();
                times[number].get_or_insert_default().extend(drawn);
            }
            if !found {
                return Err(unknown(field, &arrivals.workload, workloads));
            }
            if all > JOBS_MAX {
                return Err(invalid(field, format!("creates more than {JOBS_MAX} jobs")));
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
            return Err(invalid(field.clone().key("every"), "must be more than 0"));
        }
        let count = ((until_ms - from_ms).max(0) as u64).div_ceil(every_ms as u64);
        if count > JOBS_MAX as u64 {
            return Err(invalid(
                field.clone().key("every"),
                format!("creates {count} jobs; at most {JOBS_MAX} are possible"),
            ));
        }
        times.extend((0..count as i64).map(|number| from_ms + number * every_ms));
    }
    if let Some(per_hour) = arrivals.per_hour {
        let hours = (until_ms - from_ms).max(0) as f64 / 3_600_000.0;
        if !(0.0..=JOBS_MAX as f64).contains(&(per_hour * hours)) {
            let message = format!("{per_hour} per hour for {hours:.0} hours is out of range");
            return Err(invalid(field.clone().key("perHour"), message));
        }
        let rhythm = rhythm(arrivals.rhythm);
        times.extend(poisson(dice, per_hour, rhythm, from_ms..until_ms));
    }
    if times.is_empty()
        && arrivals.at.is_empty()
        && arrivals.every.is_none()
        && arrivals.per_hour.is_none()
    {
        return Err(invalid(field.clone(), "has no times; write at, every or perHour"));
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

/// What is written about one workload.
struct Context<'a> {
    spec: &'a Spec,
    assumptions: &'a Assumptions,
    field: FieldPath,
    behaviour: Behaviour,
}

impl Context<'_> {
    fn workload(
        &self,
        workload: &ManifestWorkload,
        times: &[i64],
        read_trace: ReadTrace<'_>,
    ) -> Result<sim::Workload> {
        let behaviour = &self.behaviour;
        let kind = match workload.lifecycle {
            Lifecycle::Daemon => sim::WorkloadKind::Daemon(workload.template.clone()),
            Lifecycle::Replicas(replicas) => {
                sim::WorkloadKind::Service(self.service(workload, replicas, read_trace)?)
            }
            Lifecycle::Job(bounds) => self.jobs(workload, times, bounds)?,
            Lifecycle::Pod => self.jobs(workload, times, JobBounds::ONE_POD)?,
        };
        let is_service = matches!(workload.lifecycle, Lifecycle::Replicas(_));
        Ok(sim::Workload {
            outline: workload.outline.clone(),
            gpu_memory_bytes: behaviour.gpu_memory.map_or(0, |bytes| bytes.0),
            // By default a batch pod uses whole GPUs, and a replica what it requests.
            busy_milli: behaviour.busy.map_or_else(
                || {
                    let part = workload.template.gpu.map(|need| u32::from(need.compute_milli));
                    part.filter(|milli| is_service && *milli > 0).unwrap_or(1000)
                },
                super::units::Fraction::milli,
            ),
            load_ms: behaviour.model_load.map_or(0, Time::ms),
            kind,
        })
    }

    fn service(
        &self,
        workload: &ManifestWorkload,
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
                    .map_err(|problem| invalid(field, problem))?;
                speed = trace.speed.unwrap_or(speed);
                Some(trace.load)
            }
            Some(load) => {
                let field = self.field.clone().key("load").key("perSecond");
                let Some(per_second) = load.per_second.filter(|rate| (0.0..1e9).contains(rate))
                else {
                    return Err(invalid(
                        field,
                        "is required, unless there is a trace; write requests per second",
                    ));
                };
                let dice = dice_for(self.spec.seed, &workload.name());
                let noise = load.noise.map_or(0.0, |noise| noise.0);
                let mut steps = vec![(0, per_second)];
                steps.extend(load.steps.iter().map(|step| (step.at.ms(), step.per_second)));
                if steps.iter().any(|(_, rate)| !(0.0..1e9).contains(rate)) {
                    let field = self.field.clone().key("load").key("steps");
                    return Err(invalid(field, "perSecond must be 0 or more"));
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
            let message = format!("at most {COPIES_MAX} replicas are possible (got {most})");
            return Err(invalid(self.field.clone(), message));
        }
        let mut steps: Vec<(i64, u32)> =
            behaviour.replicas.iter().map(|step| (step.at.ms(), step.count)).collect();
        steps.sort_unstable();
        if autoscale.is_none() && steps.first().is_none_or(|(at_ms, _)| *at_ms > 0) {
            steps.insert(0, (0, replicas));
        }
        Ok(sim::Service {
            template: workload.template.clone(),
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
        workload: &ManifestWorkload,
        times: &[i64],
        bounds: JobBounds,
    ) -> Result<sim::WorkloadKind> {
        let behaviour = &self.behaviour;
        let lifetime = self.lifetime()?;
        let dice = dice_for(self.spec.seed, &format!("{} lasts", workload.name()));
        let deadline_ms = bounds.deadline_ms.into_iter().chain(workload.template.deadline_ms).min();
        let job = |(number, at_ms): (usize, &i64)| sim::Job {
            at_ms: *at_ms,
            template: workload.template.clone(),
            completions: bounds.completions,
            parallelism: bounds.parallelism,
            duration_ms: Some(lifetime.draw(dice, number as u64)),
            retries: bounds.backoff_limit,
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
                Err(invalid(self.field.clone().key("duration"), message))
            }
        }
    }
}
