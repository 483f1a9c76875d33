//! When a pod may start, estimated from a single look at the cluster.
//!
//! Lifetimes are learned from finished pods that are still listed. With too few of them there is no
//! estimate.

use berth_engine::decision::HeldBy;
use berth_engine::event::Event;
use berth_forecast::forecast::Hold;
use berth_forecast::words::render;
use berth_forecast::{Effort, Forecaster};
use berth_model::spec::{Phase, PodObject};

use crate::{Inspection, PodFacts, Source};

/// With fewer finished pods there is no estimate.
const ENDED_MIN: usize = 10;

/// The probability for which a time is given, in thousandths.
const LIKELY_MILLI: u16 = 800;

/// A finished pod that is still listed.
#[derive(Clone, Debug)]
pub struct Ended {
    pub pod: PodObject,
    pub at_ms: i64,
}

/// The pods from which lifetimes are learned.
#[derive(Clone, Debug)]
pub struct History<'a> {
    /// All that have not finished.
    pub pods: Vec<PodFacts<'a>>,
    pub ended: &'a [Ended],
}

impl<S: Source> Inspection<'_, S> {
    /// When a pending pod may start, in words.
    pub(crate) fn eta(&self, uid: &str) -> Option<String> {
        let history = self.source.history()?;
        let lived = history.ended.iter().filter(|one| one.pod.started_at_ms.is_some()).count();
        if lived < ENDED_MIN {
            return None;
        }
        let mut forecaster = Forecaster::new(Effort::default());
        for facts in self.source.nodes() {
            let node = self.engine.node(facts.name);
            node.into_iter().for_each(|node| forecaster.observe(&Event::Node((**node).clone()), 0));
        }
        for (at_ms, event) in self.past(&history) {
            forecaster.observe(&event, at_ms);
        }
        for waiting in self.engine.pending_pods() {
            let hold = waiting.held_by.map(|by| match by {
                HeldBy::Quota(refusal) => Hold::Quota(refusal.to_string().into()),
                HeldBy::Share(_) => Hold::Share,
            });
            forecaster.hold(&waiting.pod, hold);
        }
        let forecast = forecaster.forecast(uid, self.now_ms)?;
        let words = render(&forecast, LIKELY_MILLI);
        Some(format!("{words} Based on {lived} finished pods that are still listed."))
    }

    /// What happened to pods, as far as their objects show it, in order of time.
    fn past(&self, history: &History<'_>) -> Vec<(i64, Event)> {
        let mut past = Vec::new();
        let mut created = |pod: &PodObject| {
            let pending = PodObject { node: None, phase: Phase::Alive, ..pod.clone() };
            past.push((pod.created_at_ms, 0, Event::Pod(pending)));
            if pod.node.is_some() {
                let at_ms = pod.started_at_ms.unwrap_or(pod.created_at_ms);
                past.push((at_ms, 1, Event::Pod(PodObject { phase: Phase::Alive, ..pod.clone() })));
            }
        };
        history.pods.iter().for_each(|pod| created(pod.object));
        history.ended.iter().for_each(|one| created(&one.pod));
        for one in history.ended {
            past.push((one.at_ms, 2, Event::PodGone(one.pod.uid.clone())));
        }
        for pod in history.pods.iter().filter(|pod| pod.object.phase != Phase::Alive) {
            past.push((self.now_ms, 2, Event::Pod(pod.object.clone())));
        }
        past.sort_by_key(|(at_ms, order, _)| (*at_ms, *order));
        past.into_iter().map(|(at_ms, _, event)| (at_ms, event)).collect()
    }
}
