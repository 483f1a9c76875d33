//! The forecaster: learns from the engine's events and decisions, and forecasts when pods start.

use std::sync::Arc;

use berth_engine::decision::{Binding, Decision, HeldBy};
use berth_engine::event::Event;

use crate::calibration::{Calibration, Reliability};
use crate::cluster::{ClusterState, NodeIx, Outcome, PodRow, RunState};
use crate::forecast::{
    Blocker, Confidence, Doubt, End, Eta, Forecast, Grade, HORIZON_MS, Hold, LEVELS_MILLI, Lack,
    Outlook, PlannedNode,
};
use crate::future::{Ending, Future, Target};
use crate::initial::InitialState;
use crate::lifetime::Lifetimes;
use berth_model::dice::Dice;
use berth_model::table::Index as _;

#[derive(Clone, Copy, Debug)]
pub struct Effort {
    pub futures: usize,
    /// Limit of comparisons in all futures together; beyond it futures are skipped or cut short.
    pub steps_max: u64,
    /// The same seed and history give the same forecast.
    pub seed: u64,
}

impl Default for Effort {
    fn default() -> Self {
        Self { futures: 48, steps_max: 100_000, seed: 1 }
    }
}

/// Minimum number of futures, each with its part of the work.
const FUTURES_MIN: usize = 20;

/// Fewer lifetimes or settled forecasts lower the grade.
const LIFETIMES_FEW: f64 = 100.0;
const FORECASTS_FEW: usize = 100;

const BLOCKERS_MAX: usize = 3;

#[derive(Default)]
pub struct Forecaster {
    effort: Effort,
    cluster: ClusterState,
    lifetimes: Lifetimes,
    calibration: Calibration,
    /// Reused for every future.
    future: Future,
}

impl Forecaster {
    pub fn new(effort: Effort) -> Self {
        Self { effort, ..Self::default() }
    }

    /// Applies an event. Events are those of the engine, in its order.
    pub fn observe(&mut self, event: &Event, now_ms: i64) {
        let outcome = match event {
            Event::Node(node) => {
                self.cluster.set_node(node.clone());
                None
            }
            Event::NodeGone(name) => {
                self.cluster.remove_node(name);
                None
            }
            Event::Pod(pod) => self.cluster.set_pod(pod, now_ms),
            Event::PodGone(uid) => self.cluster.remove_pod(uid, now_ms),
            _ => None,
        };
        self.learn(outcome, now_ms);
    }

    pub fn observe_decision(&mut self, decision: &Decision, now_ms: i64) {
        match decision {
            Decision::Bind(binding) => self.bound(binding, now_ms),
            Decision::BindAll(gang) => {
                gang.bindings.iter().for_each(|binding| self.bound(binding, now_ms));
            }
            Decision::Preempt(preempting) => {
                self.cluster.hold(&preempting.pod, None);
                self.cluster.evict(&preempting.victims, now_ms);
            }
            Decision::Reserve(reserving) => self.cluster.evict(&reserving.victims, now_ms),
            Decision::Disband(disbanding) => self.cluster.evict(&disbanding.pods, now_ms),
            Decision::Hold { pod, by } => {
                let hold = match by {
                    HeldBy::Quota(refusal) => {
                        Hold::Quota(refusal.quota().cloned().unwrap_or_default())
                    }
                    HeldBy::Share(_) => Hold::Share,
                };
                self.cluster.hold(pod, Some(hold));
            }
            Decision::Wait { pod } => self.cluster.hold(pod, None),
        }
    }

    fn bound(&mut self, binding: &Binding, now_ms: i64) {
        let outcome = self.cluster.bind(binding, now_ms);
        self.learn(outcome, now_ms);
    }

    /// Takes back a binding that could not be carried out.
    pub fn undo_binding(&mut self, uid: &str) {
        self.cluster.unbind(uid);
    }

    /// Expects a node until it joins or the plan is cancelled.
    pub fn expect_node(&mut self, planned: PlannedNode) {
        self.cluster.plan(planned);
    }

    pub fn cancel_plan(&mut self, node: &str) {
        self.cluster.planned.remove(node);
    }

    pub fn hold(&mut self, uid: &str, hold: Option<Hold>) {
        self.cluster.hold(uid, hold);
    }

    pub fn expect_end(&mut self, uid: &str, end: Option<End>) {
        self.cluster.expect_end(uid, end);
    }

    pub fn reliability(&self) -> Reliability {
        self.calibration.reliability()
    }

    fn learn(&mut self, outcome: Option<Outcome>, now_ms: i64) {
        match outcome {
            Some(Outcome::Started { uid }) => self.calibration.settle(&uid, now_ms, true),
            Some(Outcome::Abandoned { uid }) => self.calibration.settle(&uid, now_ms, false),
            Some(Outcome::Ended { life, age_ms, natural }) => {
                self.lifetimes.record(life, age_ms, natural);
            }
            None => {}
        }
    }

    /// Forecasts when a pod starts, and records the forecast for calibration. Call it after the
    /// engine decided that the pod waits; `None` if it does not.
    pub fn issue(&mut self, uid: &str, now_ms: i64) -> Option<Forecast> {
        let forecast = self.forecast(uid, now_ms)?;
        if let Outlook::Starts(eta) = &forecast.outlook {
            let (simulated_ms, within_ms) = (&eta.simulated_ms, eta.within_ms);
            self.calibration.record(&forecast.pod, now_ms, simulated_ms, within_ms);
        }
        Some(forecast)
    }

    /// Forecasts when a pod starts, without recording it.
    pub fn forecast(&mut self, uid: &str, now_ms: i64) -> Option<Forecast> {
        let (_, pod) = self.cluster.pod(uid)?;
        let forecast_of = |outlook| Forecast { pod: pod.uid.clone(), at_ms: now_ms, outlook };
        if !matches!(pod.run_state, RunState::Waiting) || pod.leaves_by_ms.is_some() {
            return None;
        }
        if let Some(hold) = &pod.hold {
            return Some(forecast_of(Outlook::Held(hold.clone())));
        }
        let mut initial = InitialState::new(&self.cluster, &self.lifetimes, now_ms);
        if let Some(impossible) = impossible(&mut initial, pod) {
            return Some(forecast_of(impossible));
        }
        let queue = initial.queue(pod.kind)?;
        let place = (0..).zip(self.cluster.waiting.keys()).find(|(_, turn)| **turn == pod.turn)?.0;
        let waits =
            run(&mut self.future, &mut initial, Target { queue, place }, &self.effort, now_ms);
        let simulated_ms = LEVELS_MILLI.map(|level| quantile(&waits.sorted_ms, level));
        let (within_ms, similar) = self.calibration.correct(&simulated_ms, now_ms);
        let confidence = confidence(&self.lifetimes, &initial, &waits, similar, pod);
        let eta = Eta {
            within_ms,
            simulated_ms,
            futures: waits.sorted_ms.len(),
            confidence,
            waits_for: blockers(&initial, &waits),
        };
        Some(forecast_of(Outlook::Starts(Box::new(eta))))
    }
}

struct Waits {
    /// `None` last: it does not start.
    sorted_ms: Vec<Option<u64>>,
    /// By resident: in how many futures its end made room.
    made_room: Vec<u32>,
}

fn run(
    future: &mut Future,
    initial: &mut InitialState<'_>,
    target: Target,
    effort: &Effort,
    now_ms: i64,
) -> Waits {
    let dice = Dice::new(effort.seed).of(now_ms as u64).of(target.place);
    let mut waits = Waits { sorted_ms: Vec::new(), made_room: vec![0; initial.residents.len()] };
    let steps_each_max = effort.steps_max / FUTURES_MIN as u64;
    let mut steps = 0;
    for number in 0..effort.futures.max(1) {
        let ending = future.run(initial, target, dice.of(number as u64), steps_each_max);
        steps += future.steps;
        waits.sorted_ms.push(match ending {
            Ending::Starts(wait_ms, node) => {
                for resident in &future.gone {
                    if initial.residents[*resident as usize].node == node {
                        waits.made_room[*resident as usize] += 1;
                    }
                }
                Some(wait_ms)
            }
            Ending::NotYet(wait_ms) => Some(wait_ms),
            Ending::NotAtAll => None,
        });
        if steps >= effort.steps_max && number + 1 >= FUTURES_MIN {
            break;
        }
    }
    waits.sorted_ms.sort_unstable_by_key(|wait_ms| wait_ms.unwrap_or(u64::MAX));
    waits
}

/// The time by which a share of all futures had the pod started.
fn quantile(sorted_ms: &[Option<u64>], level_milli: u16) -> Option<u64> {
    let last = sorted_ms.len().saturating_sub(1);
    let rank = f64::from(level_milli) / 1000.0 * last as f64;
    let (below, share) = (rank as usize, rank - f64::from(rank as u32));
    let low_ms = (*sorted_ms.get(below)?)?;
    let high_ms = (*sorted_ms.get((below + 1).min(last))?).unwrap_or(HORIZON_MS);
    Some(low_ms + (high_ms.saturating_sub(low_ms) as f64 * share) as u64)
}

/// Why a pod starts on no node, whichever pods leave.
fn impossible(initial: &mut InitialState<'_>, pod: &PodRow) -> Option<Outlook> {
    let kind = initial.cluster.kinds.get(pod.kind)?;
    let mut matches = false;
    for number in 0..initial.nodes_end() {
        let node = NodeIx::new(number);
        let empty = match initial.planned_at(node) {
            Some((_, room)) => Some(room),
            None => initial.cluster.nodes.get(node).map(|row| &row.empty),
        };
        let Some(empty) = empty.filter(|_| initial.accepts(pod.kind, node)) else { continue };
        if empty.fits(&kind.ask).is_some() {
            return None;
        }
        matches = true;
    }
    Some(match &kind.spec.node_name {
        Some(node) if matches => Outlook::Never { node: node.clone() },
        _ => Outlook::NeedsCapacity(if matches { Lack::Size } else { Lack::Match }),
    })
}

fn confidence(
    lifetimes: &Lifetimes,
    initial: &InitialState<'_>,
    waits: &Waits,
    similar: usize,
    pod: &PodRow,
) -> Confidence {
    let mut doubts = Vec::new();
    let mut grade = Grade::High;
    let mut doubt = |doubt: Doubt, at_most: Grade| {
        doubts.push((at_most, doubt));
        grade = grade.min(at_most);
    };
    let life = initial.cluster.kinds.get(pod.kind).map(|kind| kind.life);
    let [_, _, known] = life.map_or([0.0; 3], |life| lifetimes.evidence(life));
    if known < LIFETIMES_FEW {
        let at_most = if known < LIFETIMES_FEW / 5.0 { Grade::Low } else { Grade::Medium };
        doubt(Doubt::FewLifetimes(known as usize), at_most);
    }
    if similar < FORECASTS_FEW {
        let at_most = if similar < FORECASTS_FEW / 5 { Grade::Low } else { Grade::Medium };
        doubt(Doubt::FewForecasts(similar), at_most);
    }
    let futures = waits.sorted_ms.len().max(1);
    let never = waits.sorted_ms.iter().filter(|wait| wait.is_none()).count() * 1000 / futures;
    if never > 100 {
        let at_most = if never > 500 { Grade::Low } else { Grade::Medium };
        doubt(Doubt::OftenNotStarting(never as u16), at_most);
    }
    let has_rules = initial.cluster.kinds.get(pod.kind).is_some_and(|kind| {
        let spec = &kind.spec;
        !spec.pod_affinity.is_empty() || !spec.spread.is_empty() || !spec.volumes.is_empty()
    });
    if has_rules {
        doubt(Doubt::RulesLeftOut, Grade::Medium);
    }
    doubts.sort_by_key(|(at_most, _)| *at_most);
    Confidence { grade, doubts: doubts.into_iter().map(|(_, doubt)| doubt).collect() }
}

fn blockers(initial: &InitialState<'_>, waits: &Waits) -> Vec<Blocker> {
    let mut counts: Vec<(u32, &Arc<str>, &Arc<str>)> = initial
        .residents
        .iter()
        .zip(&waits.made_room)
        .filter(|(_, count)| **count > 0)
        .filter_map(|(resident, count)| {
            let pod = initial.cluster.pods.get(resident.pod)?;
            Some((*count, &pod.uid, &pod.name))
        })
        .collect();
    counts.sort_by(|one, two| two.0.cmp(&one.0).then(one.1.cmp(two.1)));
    let futures = waits.sorted_ms.len().max(1) as u32;
    let blocker = |(count, uid, name): &(u32, &Arc<str>, &Arc<str>)| Blocker {
        pod: (*uid).clone(),
        name: (*name).clone(),
        share_milli: (count * 1000 / futures) as u16,
    };
    counts.iter().take(BLOCKERS_MAX).map(blocker).collect()
}
