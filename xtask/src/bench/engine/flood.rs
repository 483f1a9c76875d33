//! A flood of pods of distinct shapes that fit nowhere, and what it costs a normal pod and a change.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};
use berth_engine::decision::Decision;
use berth_engine::event::Event;
use berth_model::affinity::PodTerm;
use berth_model::label::Selector;
use berth_model::spec::PodSpec;
use berth_testkit::cluster::{BuildError, ZONE, gpu_template, pending, template};

use super::{World, percentiles};

/// How many shapes there are.
const SHAPES: usize = 20_000;

/// How many normal pods come and go beside them.
const NORMAL: usize = 500;

/// How many of the shapes are explained.
const EXPLAINED: usize = 50;

/// The kinds of shapes, each measured by itself.
const KINDS: [&str; 5] = ["amounts", "selectors", "affinity", "own affinity", "anti-affinity"];

pub(super) fn run(nodes: usize) -> Result<()> {
    println!("{SHAPES} parked pods of distinct shapes at {nodes} nodes; us:");
    println!(
        "{:<14} {:>12} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>10} {:>11} {:>8}",
        "",
        "per arrival",
        "bind p50",
        "p99",
        "max",
        "free p50",
        "p99",
        "max",
        "looks/pod",
        "explain p50",
        "max"
    );
    KINDS.into_iter().try_for_each(|kind| one(nodes, kind))
}

fn one(nodes: usize, kind: &str) -> Result<()> {
    let mut world = World::new(nodes, 13).map_err(|error| anyhow!("{error}"))?;
    world.only_batch();
    world.fill(0.9);
    let specs: Vec<Arc<PodSpec>> = (0..SHAPES)
        .map(|number| shape(kind, number).map(Arc::new))
        .collect::<Result<_, BuildError>>()
        .map_err(|error| anyhow!("{error}"))?;
    let start = Instant::now();
    for (number, spec) in specs.iter().enumerate() {
        world.engine.apply(Event::Pod(pending(spec, 1_000_000 + number as u64)));
    }
    while world.engine.decide(world.now_ms).is_some() {}
    let arrival_us = start.elapsed().as_secs_f64() * 1e6 / SHAPES as f64;
    ensure!(world.engine.queued() == (SHAPES, SHAPES), "{kind}: not all of the flood are parked");
    let normal = Arc::new(gpu_template("normal", 0, 1).map_err(|error| anyhow!("{error}"))?);
    let looks = world.engine.effort().looks;
    let (mut binds, mut frees) = (Vec::new(), Vec::new());
    for number in 0..NORMAL {
        let pod = pending(&normal, 2_000_000 + number as u64);
        let uid = pod.uid.clone();
        let start = Instant::now();
        world.engine.apply(Event::Pod(pod));
        let decision = world.engine.decide(world.now_ms);
        binds.push(start.elapsed());
        ensure!(matches!(decision, Some(Decision::Bind(_))), "{kind}: {decision:?}");
        let start = Instant::now();
        world.engine.apply(Event::PodGone(uid));
        while world.engine.decide(world.now_ms).is_some() {}
        frees.push(start.elapsed());
    }
    let looks = (world.engine.effort().looks - looks) / NORMAL as u64;
    let mut explained = Vec::new();
    for number in (0..SHAPES).step_by(SHAPES / EXPLAINED) {
        let uid = pending(&specs[number], 1_000_000 + number as u64).uid;
        let start = Instant::now();
        let explanation = world.engine.explain(&uid, world.now_ms);
        explained.push(start.elapsed());
        ensure!(explanation.is_some(), "{kind}: {uid} is not explained");
    }
    let [explain_p50, _, explain_max] = percentiles(explained);
    let ([bind_p50, bind_p99, bind_max], [free_p50, free_p99, free_max]) =
        (percentiles(binds), percentiles(frees));
    println!(
        "{kind:<14} {arrival_us:>12.1} {bind_p50:>8.1} {bind_p99:>8.1} {bind_max:>8.1} {free_p50:>8.1} {free_p99:>8.1} {free_max:>8.1} {looks:>10} {explain_p50:>11.1} {explain_max:>8.1}"
    );
    Ok(())
}

/// A pod that fits on no node.
fn shape(kind: &str, number: usize) -> Result<PodSpec, BuildError> {
    let memory = format!("{}Mi", number + 1);
    let cpu = if kind == "amounts" { "400" } else { "1" };
    let mut spec = template("flood", 0, &[("cpu", cpu), ("memory", &memory)])?;
    spec.namespace = "flood".into();
    let term = |app: &str| PodTerm {
        selector: Some(Selector::of_labels(&[("app", app)].into_iter().collect())),
        namespaces: vec!["serving".into()],
        namespace_selector: None,
        topology_key: ZONE.into(),
    };
    match kind {
        "selectors" => {
            spec.node_selector.insert("number", number.to_string().as_str());
        }
        "affinity" => spec.pod_affinity.required.push(term("nothing")),
        "own affinity" => spec.pod_affinity.required.push(term(&format!("nothing-{number}"))),
        // Pods of a batch are in every zone.
        "anti-affinity" => spec.pod_affinity.anti_required.push(term("batch-0")),
        _ => {}
    }
    Ok(spec)
}
