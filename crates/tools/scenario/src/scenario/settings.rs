//! What a scenario sets for schedulers and the simulation, lowered to the simulation's types.

use std::collections::BTreeSet;

use berth_engine::Profile;
use berth_engine::config::ReservationBudget;
use berth_kubelet::TopologyPolicy;
use berth_model::workload::{ClassRules, WorkloadClass};
use berth_sim::assumptions::{Assumptions, Slowdown};
use berth_sim::experiment::{self as sim, Subject};

use super::assemble::{Result, invalid, spec_field};
use super::file::{self, Spec};
use super::units::{Fraction, Time};

/// Checks that what failures name exists.
pub(crate) fn failures(spec: &Spec, experiment: &sim::Experiment) -> Result<Vec<sim::Failure>> {
    let zone = |node: &'_ sim::NodeSetup| node.node.labels.get(crate::cluster::ZONE).cloned();
    let nodes: BTreeSet<_> = experiment.nodes.iter().map(|node| node.node.name.clone()).collect();
    let zones: BTreeSet<_> = experiment.nodes.iter().filter_map(zone).collect();
    let pools: BTreeSet<_> = experiment.pools.iter().map(|pool| pool.name.clone()).collect();
    let one = |(at, failure): (usize, &file::Failure)| {
        let (kind, name, known) = match failure.fault.subject() {
            Subject::Node(name) => ("node", name, &nodes),
            Subject::Zone(name) => ("zone", name, &zones),
            Subject::Pool(name) => ("growing pool", name, &pools),
        };
        if !known.contains(name) {
            let some: Vec<&str> = known.iter().take(8).map(AsRef::as_ref).collect();
            let known = if some.is_empty() {
                "there is none".to_owned()
            } else {
                format!("known are {}", some.join(", "))
            };
            let field = spec_field("failures").at(at).key("fault");
            return Err(invalid(field, format!("unknown {kind} {name:?}; {known}")));
        }
        let (at_ms, for_ms) = (failure.at.ms(), failure.r#for.map(Time::ms));
        Ok(sim::Failure { at_ms, for_ms, fault: failure.fault.clone() })
    };
    spec.failures.iter().enumerate().map(one).collect()
}

pub(crate) fn reservations(written: file::Reservations) -> Result<ReservationBudget> {
    let default = ReservationBudget::default();
    let percent = |field: &str, written: Option<Fraction>, least: u8, otherwise: u8| {
        let Some(fraction) = written else { return Ok(otherwise) };
        let percent = (fraction.0 * 100.0).round();
        if (f64::from(least)..=100.0).contains(&percent) {
            return Ok(percent as u8);
        }
        let message = format!("must be between {least}% and 100% (got {percent}%)");
        Err(invalid(spec_field("reservations").key(field), message))
    };
    let max_ms = written.max.map_or(default.max_ms, Time::ms);
    if max_ms == 0 {
        let message = "must be more than 0; write share: 0% to disable reservations";
        return Err(invalid(spec_field("reservations").key("max"), message));
    }
    Ok(ReservationBudget {
        max_ms,
        share_percent: percent("share", written.share, 0, default.share_percent)?,
        time_percent: percent("time", written.time, 1, default.time_percent)?,
    })
}

pub(crate) fn goals(spec: &Spec, setups: &[sim::Setup]) -> Result<Option<sim::Goals>> {
    let Some(goals) = &spec.goals else { return Ok(None) };
    let Some(against) = setups.iter().position(|setup| setup.name == goals.against) else {
        let names: Vec<&str> = setups.iter().map(|setup| setup.name.as_str()).collect();
        let message = format!("unknown setup {:?}; known are {}", goals.against, names.join(", "));
        return Err(invalid(spec_field("goals").key("against"), message));
    };
    Ok(Some(sim::Goals {
        against,
        p99_reduction: goals.p99_reduction.map(|fraction| fraction.0),
        utilisation_gain: goals.utilisation_gain.map(|fraction| fraction.0),
        breaches: goals.breaches,
        fewest_nodes: goals.fewest_nodes,
    }))
}

pub(crate) fn class_rules(spec: &Spec) -> Result<ClassRules> {
    let read = |(name, text): (&String, &String)| match WorkloadClass::parse(text) {
        Some(class) => Ok((name.as_str().into(), class)),
        None => {
            let known = WorkloadClass::ALL.map(WorkloadClass::as_str).join(", ");
            let message = format!("unknown workload class {text:?}; write one of {known}");
            Err(invalid(spec_field("workloadClasses").key(name.as_str()), message))
        }
    };
    let by_priority_class = spec.workload_classes.iter().map(read).collect::<Result<_>>()?;
    Ok(ClassRules { by_priority_class, ..ClassRules::default() })
}

/// The setups to compare; by default kube-scheduler and Berth on the cluster as it is.
pub(crate) fn setups(spec: &Spec) -> Result<Vec<sim::Setup>> {
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
                        invalid(field, format!("{}; or as-described or defaults", error.problem))
                    },
                )?)
            }
        };
        let division = match setup.gpus {
            file::GpuUse::AsDescribed => sim::Division::AsDescribed,
            file::GpuUse::Whole => sim::Division::Whole,
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

pub(crate) fn assumptions(written: &file::Assumptions) -> Result<Assumptions> {
    let mut assumed = Assumptions::default();
    let slowdown = |field: &str, slot: &mut Slowdown, written: Option<file::Slowdown>| {
        let Some(factors) = written else { return Ok(()) };
        if !(0.001..=1e4).contains(&factors.mean) || !(0.001..=1e4).contains(&factors.p99) {
            let message = "factors must be between 0.001 and 10000, such as {mean: 1.3, p99: 1.7}";
            return Err(invalid(spec_field("assumptions").key(field), message));
        }
        let milli = |times: f64| (times * 1000.0).round() as u32;
        *slot = Slowdown { mean_milli: milli(factors.mean), p99_milli: milli(factors.p99) };
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
    for (slot, written) in times {
        *slot = written.map_or(*slot, Time::ms);
    }
    if assumed.window_ms < 1_000 {
        let message = "must be at least 1s";
        return Err(invalid(spec_field("assumptions").key("window"), message));
    }
    Ok(assumed)
}
