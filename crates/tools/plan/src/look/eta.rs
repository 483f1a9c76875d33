//! When a pod may start, from a single look at the cluster.
//!
//! Owns what can be learned of the past from what is still there: pods that have ended and have not been
//! cleaned away tell how long pods like them live, and when pods came. Says nothing where that is too
//! little. Must not know why a pod waits.

use berth_engine::decision::HeldBy;
use berth_engine::event::Event;
use berth_forecast::forecast::Hold;
use berth_forecast::words::{Question, render};
use berth_forecast::{Effort, Forecaster};
use berth_model::spec::{Phase, PodObject};

use super::Scene;

/// With fewer pods that have ended nothing is said.
const ENDED_MIN: usize = 10;

/// The probability for which a time is given, in thousandths.
const LIKELY_MILLI: u16 = 800;

/// A pod that has ended.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    /// As it was.
    pub(super) pod: PodObject,
    /// When it ended.
    pub(super) at_ms: i64,
}

impl Scene {
    /// When a pod that waits may start, in words, or why nothing is said.
    pub(super) fn eta(&self, uid: &str) -> Option<String> {
        let lived = self.ended.iter().filter(|one| one.pod.started_at_ms.is_some()).count();
        if lived < ENDED_MIN {
            return None;
        }
        let mut forecaster = Forecaster::new(Effort::default());
        for node in &self.cluster.nodes {
            forecaster.observe(&Event::Node(node.node.clone()), 0);
        }
        for (at_ms, event) in self.past() {
            forecaster.observe(&event, at_ms);
        }
        for waiting in self.engine.line() {
            let hold = waiting.held_by.map(|by| match by {
                HeldBy::Quota(refusal) => Hold::Quota(refusal.to_string().into()),
                HeldBy::Share(_) => Hold::Share,
            });
            forecaster.hold(&waiting.pod, hold);
        }
        let forecast = forecaster.forecast(uid, self.now_ms)?;
        let words = render(&forecast, Question::ByWhen(LIKELY_MILLI));
        Some(format!("{words} Learned from {lived} pods that ended and are still listed."))
    }

    /// What pods tell of the past, in order.
    fn past(&self) -> Vec<(i64, Event)> {
        let mut past = Vec::new();
        let mut came = |pod: &PodObject| {
            let waited = PodObject { node: None, phase: Phase::Alive, ..pod.clone() };
            past.push((pod.created_at_ms, 0, Event::Pod(waited)));
            if pod.node.is_some() {
                let at_ms = pod.started_at_ms.unwrap_or(pod.created_at_ms);
                past.push((at_ms, 1, Event::Pod(PodObject { phase: Phase::Alive, ..pod.clone() })));
            }
        };
        self.cluster.pods.iter().for_each(&mut came);
        self.ended.iter().for_each(|one| came(&one.pod));
        for one in &self.ended {
            past.push((one.at_ms, 2, Event::PodGone(one.pod.uid.clone())));
        }
        for pod in self.cluster.pods.iter().filter(|pod| pod.phase != Phase::Alive) {
            past.push((self.now_ms, 2, Event::Pod(pod.clone())));
        }
        past.sort_by_key(|(at_ms, order, _)| (*at_ms, *order));
        past.into_iter().map(|(at_ms, _, event)| (at_ms, event)).collect()
    }
}
