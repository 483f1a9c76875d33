//! Proposals to divide GPUs into other slices, judged in arbitrary worlds: what is promised comes true,
//! nobody loses a slice, and asking leaves no trace.
//!
//! Owns the questions and how a proposal is carried out. Must share nothing with the engine but its
//! vocabulary.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use berth_engine::decision::Decision;
use berth_engine::event::Event;
use berth_engine::repartition::{GpuLayoutChange, RepartitionProposal, Terms, Touch};
use berth_engine::{Config, Engine};
use berth_kubelet::NodeTopology;
use berth_model::mig::Layout;
use berth_model::quantity::{Format, Quantity};
use berth_model::spec::PodObject;

use super::happening::{Act, Size, World};
use super::run::{Watched, play};
use crate::cluster::{BuildError, Dice};

/// How a proposal of the engine in the world of a seed is wrong, if one is.
pub fn proposes_wrongly(
    seed: u64,
    size: Size,
    config: Config,
) -> Result<Option<String>, BuildError> {
    let (mut world, mut round) = World::new(seed, size)?;
    let (mut watched, mut plain) = (Watched::new(config), Engine::new(config));
    let mut dice = Dice::new(seed);
    for number in 0..size.rounds {
        round.decisions_max = usize::MAX;
        for act in &round.acts {
            match act {
                Act::Tell(event) => watched.tell((**event).clone()),
                Act::Undo(uid) => watched.undo(uid),
            }
        }
        let decisions = watched.settle(round.now_ms);
        let wrong = |what: String| Ok(Some(format!("seed {seed}, round {number}: {what}")));
        if play(&mut plain, &round) != decisions {
            return wrong("decisions differ after it was asked for a proposal".to_owned());
        }
        let touch = [Touch::IdleGpus, Touch::AroundWork, Touch::MovablePods][dice.below(3)];
        let terms = Terms { touch, moves_max: dice.below(3), ..Terms::default() };
        if let Some(proposal) = watched.engine.repartition(&terms, round.now_ms)
            && let Some(what) = judge(&watched, &terms, &proposal, round.now_ms)
        {
            return wrong(format!("{what}: {proposal:?}"));
        }
        let first = watched.engine.first_slices();
        if let Some(step) = first.iter().find(|step| !step.from.is_empty() || step.to.is_empty()) {
            return wrong(format!("no first slices: {step:?}"));
        }
        decisions.iter().for_each(|decision| world.decided(decision));
        round = world.round()?;
    }
    Ok(None)
}

/// What is wrong with a proposal.
fn judge(
    watched: &Watched,
    terms: &Terms,
    proposal: &RepartitionProposal,
    now_ms: i64,
) -> Option<String> {
    let books = &watched.checker.books;
    let movers: Vec<Arc<str>> = proposal.moves.iter().map(|one| one.pod.clone()).collect();
    if movers.len() > terms.moves_max {
        return Some("it moves more than it may".to_owned());
    }
    let mut seen: BTreeSet<(&Arc<str>, usize)> = BTreeSet::new();
    for step in &proposal.steps {
        let gpus = books.topologies.get(&step.node).and_then(|topology| topology.gpus());
        let gpu = gpus.and_then(|gpus| gpus.gpus.get(step.gpu));
        if gpu.is_none_or(|gpu| gpu.mig != Some(step.from)) || !seen.insert((&step.node, step.gpu))
        {
            return Some(format!("there is no such GPU: {step:?}"));
        }
        let (Some(gpu), Some(twin)) = (gpu, books.twins.get(&step.node)) else { continue };
        if !twin.is_known() {
            continue;
        }
        let held = twin.may_be_held(&movers);
        let stays = |layout: &Layout, id: &String| {
            layout.instances().any(|slice| gpu.slice_id(&slice) == **id)
        };
        let used: Vec<&String> = held.iter().filter(|id| stays(&step.from, id)).collect();
        if used.iter().any(|id| !stays(&step.to, id)) {
            return Some(format!("somebody may hold a slice that goes: {used:?}"));
        }
        if terms.touch == Touch::IdleGpus && !used.is_empty() {
            return Some(format!("the GPU is not idle: {used:?}"));
        }
    }
    let mut after = watched.clone();
    let moved = carry_out(&mut after, proposal);
    let mut decisions = after.settle(now_ms);
    // Whoever moves comes back when those have their places for whom it went.
    moved.into_iter().for_each(|pod| after.tell(Event::Pod(pod)));
    decisions.extend(after.settle(now_ms));
    if let Some(violation) = after.violations().first() {
        return Some(format!("{violation} after it was carried out"));
    }
    let bound = |decision: &Decision| match decision {
        Decision::Bind(binding) => vec![binding.pod.clone()],
        Decision::BindAll(all) => all.bindings.iter().map(|one| one.pod.clone()).collect(),
        _ => Vec::new(),
    };
    let bound: Vec<Arc<str>> = decisions.iter().flat_map(bound).collect();
    let promised: Vec<&Arc<str>> = proposal.admits.iter().map(|one| &one.pod).collect();
    // Others that wait may go first: gangs, and those that wait for what was moved.
    let others = bound.iter().any(|pod| !promised.contains(&pod) && !movers.contains(pod));
    let evicts =
        decisions.iter().any(|one| matches!(one, Decision::Preempt(_) | Decision::Reserve(_)));
    let mut promised = promised.into_iter().chain(&movers);
    let missing = promised.find(|pod| !bound.contains(pod)).filter(|_| !others && !evicts);
    missing.map(|pod| format!("{pod} is not bound after all"))
}

/// Pods go, slices are made and destroyed, and everybody hears of it. The pods that are to come back.
fn carry_out(watched: &mut Watched, proposal: &RepartitionProposal) -> Vec<PodObject> {
    let pods = &watched.checker.books.pods;
    let moved: Vec<PodObject> = proposal
        .moves
        .iter()
        .filter_map(|one| {
            let object = pods.get(&one.pod)?.object.clone();
            let (node, gpu_grant, started_at_ms) = (None, None, None);
            Some(PodObject { node, gpu_grant, started_at_ms, ..object })
        })
        .collect();
    moved.iter().for_each(|pod| watched.tell(Event::PodGone(pod.uid.clone())));
    let mut by_node: BTreeMap<&Arc<str>, Vec<&GpuLayoutChange>> = BTreeMap::new();
    for step in &proposal.steps {
        by_node.entry(&step.node).or_default().push(step);
    }
    for (name, steps) in by_node {
        let books = &watched.checker.books;
        let (Some(before), Some(node)) = (books.topologies.get(name), books.nodes.get(name)) else {
            continue;
        };
        let slices: Vec<(usize, Layout)> = steps.iter().map(|step| (step.gpu, step.to)).collect();
        let Some(after) = before.repartitioned(&slices) else { continue };
        let mut node = node.clone();
        let units = |count: usize| Quantity::from_units(count as i64, Format::DecimalSi);
        for pool in NodeTopology::empty_kubelet(before).pools() {
            node.allocatable.insert(pool.resource.clone(), units(0));
        }
        for pool in after.empty_kubelet().pools() {
            node.allocatable.insert(pool.resource.clone(), units(pool.devices.len()));
        }
        watched.tell(Event::Node(node));
        watched.tell(Event::Topology { node: name.clone(), topology: Some(Arc::new(after)) });
    }
    moved
}
