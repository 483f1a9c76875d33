//! Workloads of arbitrary worlds: pods with every kind of wish.
//!
//! Owns templates. Must not know which nodes there are.

use std::sync::Arc;

use berth_model::affinity::{
    NodeAffinity, NodeInclusionPolicy, NodeTerm, PodTerm, SpreadConstraint, WhenUnsatisfiable,
};
use berth_model::gang::{Disruption, GangMembership, GangTerms, GangTopology};
use berth_model::label::{Labels, Operator, Requirement, Selector};
use berth_model::spec::{Controller, GpuNeed, HostPort, PodSpec, PreemptionPolicy, Protocol};
use berth_model::taint::{Toleration, TolerationOperator};

use super::hardware::{HOSTNAME, RACK, SLICES};
use crate::cluster::{BuildError, Dice, GPU, ZONE, resources, template};

/// Namespaces of worlds, all but the last with objects of their own from the start.
pub(super) const NAMESPACES: [&str; 3] = ["serving", "batch", "late"];

/// Priorities of pods.
const PRIORITIES: [i32; 6] = [0, 0, 5, 10, 10, 100];

/// How many workloads there are at most; wishes about others name one of them.
const APPS: usize = 6;

/// The template of an arbitrary workload of this number.
pub(super) fn arbitrary(dice: &mut Dice, number: usize) -> Result<PodSpec, BuildError> {
    let app = format!("app-{}", number % APPS);
    let priority = PRIORITIES[dice.below(PRIORITIES.len())];
    let mut spec = template(&app, priority, &[])?;
    spec.namespace = NAMESPACES[dice.below(7) / 3].into();
    needs(dice, &mut spec)?;
    spec.labels.insert("tier", ["front", "back"][dice.below(2)]);
    if dice.below(4) > 0 {
        spec.controller = Some(Controller { kind: "ReplicaSet".into(), name: app.into() });
    }
    if dice.below(8) == 0 {
        spec.preemption = PreemptionPolicy::Never;
    }
    if dice.below(12) == 0 {
        spec.gates.push("wait".into());
    }
    if dice.below(10) == 0 {
        let ip = (dice.below(2) == 0).then(|| "10.0.0.1".into());
        spec.host_ports.push(HostPort { ip, protocol: Protocol::Tcp, port: 8000 });
    }
    if dice.below(3) == 0 {
        let operator = [TolerationOperator::Exists, TolerationOperator::Equal("batch".into())];
        let operator = operator[dice.below(2)].clone();
        spec.tolerations.push(Toleration { key: "dedicated".into(), operator, effect: None });
    }
    nodes(dice, &mut spec);
    if dice.below(4) == 0 {
        for _ in 0..=dice.below(2) {
            let constraint = spread(dice, &spec);
            spec.spread.push(constraint);
        }
    }
    neighbours(dice, &mut spec);
    if dice.below(4) == 0 {
        let terms = (dice.below(5) > 0).then(|| gang_terms(dice));
        spec.gang = Some(GangMembership { name: format!("gang-{}", number % APPS).into(), terms });
        if dice.below(3) > 0 {
            // Many gangs are of pods that only need room.
            (spec.spread, spec.pod_affinity) = Default::default();
            spec.host_ports.clear();
        }
    }
    Ok(spec)
}

/// What an arbitrary gang asks for.
pub(super) fn gang_terms(dice: &mut Dice) -> GangTerms {
    let topology =
        (dice.below(2) == 0).then(|| GangTopology { key: key(dice), required: dice.below(3) > 0 });
    GangTerms {
        min: 1 + dice.below(5) as u32,
        topology,
        timeout_ms: [1_000, 60_000, 600_000][dice.below(3)],
        disruption: [Disruption::Whole, Disruption::Whole, Disruption::Single][dice.below(3)],
    }
}

/// What its container asks for.
fn needs(dice: &mut Dice, spec: &mut PodSpec) -> Result<(), BuildError> {
    let count = [1, 1, 2, 4][dice.below(4)];
    let (cpu, memory) = (count.to_string(), format!("{}Gi", 2 * count));
    let slice = SLICES[dice.below(2)];
    let mut limits: Vec<(&str, &str)> = match dice.below(10) {
        0..=3 => vec![("cpu", cpu.as_str()), ("memory", &memory), (GPU, &cpu)],
        4 | 5 => vec![("cpu", "1"), ("memory", "1Gi"), (slice, "1")],
        6 => vec![("cpu", "500m"), ("memory", "1Gi")],
        7 => vec![("cpu", &cpu), ("memory", &memory)],
        8 => Vec::new(),
        _ => vec![("cpu", "2"), ("memory", "3Gi")],
    };
    if dice.below(6) == 0 {
        limits.retain(|(name, _)| *name != GPU && !name.contains("mig"));
        let gib = [8, 20, 36, 70][dice.below(4)];
        let compute_milli = [0, 0, 140, 400][dice.below(4)];
        spec.gpu = Some(GpuNeed { memory_bytes: gib << 30, compute_milli });
    }
    let mut pod = crate::node::pod("", &limits)?;
    if dice.below(5) == 0 {
        // Not guaranteed: nothing but devices is pinned.
        for container in &mut pod.containers {
            container.resources.limits.remove("memory");
            container.resources.requests.extend(resources(&[("memory", "512Mi")])?);
        }
    }
    spec.pod = pod;
    Ok(())
}

/// Which nodes it wants.
fn nodes(dice: &mut Dice, spec: &mut PodSpec) {
    if dice.below(7) == 0 {
        spec.node_selector.insert("pool", ["red", "blue"][dice.below(2)]);
    }
    let term = |key: &str, operator| NodeTerm {
        labels: vec![Requirement { key: key.into(), operator }],
        name: Vec::new(),
    };
    if dice.below(9) == 0 {
        let zones = vec!["zone-0".into(), "zone-1".into()];
        let terms = vec![term(ZONE, Operator::In(zones)), term("disk", Operator::Exists)];
        spec.node_affinity = NodeAffinity { required: Some(terms), preferred: Vec::new() };
    }
    if dice.below(6) == 0 {
        let weight = 1 + dice.below(100) as i32;
        spec.node_affinity.preferred.push((weight, term("disk", Operator::Exists)));
    }
}

fn key(dice: &mut Dice) -> Arc<str> {
    [ZONE, ZONE, HOSTNAME, RACK][dice.below(4)].into()
}

fn spread(dice: &mut Dice, spec: &PodSpec) -> SpreadConstraint {
    let inclusion =
        |dice: &mut Dice| [NodeInclusionPolicy::Honor, NodeInclusionPolicy::Ignore][dice.below(2)];
    let app = || spec.labels.get("app").map(|app| ("app", app.clone()));
    let labels: Labels = app().into_iter().collect();
    let hard = dice.below(3) > 0;
    let (ignore, insist) = (WhenUnsatisfiable::ScheduleAnyway, WhenUnsatisfiable::DoNotSchedule);
    SpreadConstraint {
        max_skew: 1 + dice.below(2) as i32,
        topology_key: key(dice),
        unsatisfiable: if hard { insist } else { ignore },
        selector: (dice.below(12) > 0).then(|| Selector::of_labels(&labels)),
        min_domains: [1, 1, 3][dice.below(3)],
        node_affinity: inclusion(dice),
        node_taints: inclusion(dice),
        match_label_keys: if dice.below(4) == 0 { vec!["tier".into()] } else { Vec::new() },
    }
}

/// Which pods it wants near, and which not.
fn neighbours(dice: &mut Dice, spec: &mut PodSpec) {
    let own = spec.labels.get("app").cloned();
    let term = |dice: &mut Dice| {
        let other = Arc::from(format!("app-{}", dice.below(APPS)));
        let app = if dice.below(2) == 0 { own.clone().unwrap_or(other) } else { other };
        let labels: Labels = [("app", app)].into_iter().collect();
        let namespace_selector = (dice.below(4) == 0).then(|| {
            let operator = [Operator::Exists, Operator::DoesNotExist][dice.below(2)].clone();
            Selector(vec![Requirement { key: "team".into(), operator }])
        });
        PodTerm {
            selector: Some(Selector::of_labels(&labels)),
            namespaces: if dice.below(4) == 0 {
                vec![NAMESPACES[dice.below(3)].into()]
            } else {
                Vec::new()
            },
            namespace_selector,
            topology_key: key(dice),
        }
    };
    let affinity = &mut spec.pod_affinity;
    if dice.below(9) == 0 {
        affinity.required.push(term(dice));
    }
    if dice.below(7) == 0 {
        affinity.anti_required.push(term(dice));
    }
    if dice.below(8) == 0 {
        affinity.preferred.push((1 + dice.below(100) as i32, term(dice)));
    }
    if dice.below(8) == 0 {
        affinity.anti_preferred.push((1 + dice.below(100) as i32, term(dice)));
    }
}
