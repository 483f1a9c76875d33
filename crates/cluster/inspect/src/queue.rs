//! The queue: pending pods in scheduling order, each with what keeps it pending.
//!
//! Pods that differ in nothing that matters to nodes are explained once.

use std::collections::HashMap;
use std::sync::Arc;

use berth_engine::decision::HeldBy;
use berth_engine::explain::{Explanation, render, render_group};
use berth_model::label::Selector;
use berth_model::spec::{PodObject, PodSpec};
use berth_tenancy::quota::Refusal;
use serde::Serialize;

use crate::{Inspection, PodFacts, PodRef, Source, VERSION, request};

/// How many different kinds of pods are explained.
const KINDS_MAX: usize = 200;

/// All pending pods unless something is given.
#[derive(Clone, Debug, Default)]
pub struct QueueFilter {
    pub namespace: Option<String>,
    pub selector: Option<Selector>,
    pub team: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Queue {
    /// Of this JSON form; 1.
    pub version: u32,
    /// In scheduling order; gated pods come last.
    pub pods: Vec<QueuedPod>,
    /// The queue's length, whatever is filtered out. Gated pods are not in the queue.
    pub waiting: usize,
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueuedPod {
    /// Its position in the queue, from 1; `None` if it is gated.
    pub position: Option<usize>,
    pub pod: PodRef,
    /// Empty if it is of no team.
    pub team: String,
    pub class: String,
    pub priority: i32,
    /// What it requests of GPUs, such as `2×1g.10gb`.
    pub gpus: String,
    pub scheduler: String,
    /// Whether Berth serves that schedulerName.
    pub scheduled_by_berth: bool,
    pub age_seconds: i64,
    pub state: QueueState,
    pub nominated_node: Option<String>,
    /// The quota, share or gates that hold it.
    pub held_by: Option<String>,
    pub reason: String,
}

/// What keeps a pod pending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueState {
    /// No node has room.
    #[default]
    Waiting,
    /// A node has room; its turn has not come.
    Fits,
    /// Evicted pods are leaving a node for it.
    Nominated,
    /// Held by a quota or by its team's share.
    Held,
    /// Its gang is incomplete, or does not fit as a whole.
    Gang,
    /// It has scheduling gates.
    Gated,
}

impl<S: Source> Inspection<'_, S> {
    pub fn queue(&mut self, filter: &QueueFilter) -> Queue {
        let line = self.engine.pending_pods();
        let waiting = line.len();
        let mut reasons = Reasons::default();
        let mut pods = Vec::new();
        for (at, one) in line.into_iter().enumerate() {
            let Some(facts) = self.source.pod(&one.pod).filter(|pod| self.matches(filter, pod))
            else {
                continue;
            };
            let mut row = self.queued(&facts);
            let pod = facts.object.clone();
            row.position = Some(at + 1);
            match one.held_by {
                Some(by) => {
                    row.state = QueueState::Held;
                    (row.held_by, row.reason) = holder(&by);
                }
                None => {
                    (row.state, row.reason) = reasons.of(self, &pod);
                }
            }
            if row.nominated_node.is_some() && row.state != QueueState::Held {
                row.state = QueueState::Nominated;
            }
            pods.push(row);
        }
        let mut gated = self.source.gated();
        gated.retain(|pod| self.matches(filter, pod));
        gated.sort_by_key(|pod| (pod.object.created_at_ms, &pod.object.uid));
        pods.extend(gated.into_iter().map(|pod| {
            let gates: Vec<&str> = pod.object.spec.gates.iter().map(AsRef::as_ref).collect();
            QueuedPod {
                state: QueueState::Gated,
                held_by: Some(gates.join(", ")),
                reason: "has scheduling gates".to_owned(),
                ..self.queued(&pod)
            }
        }));
        let mut notes = self.doubts();
        let others = pods.iter().filter(|pod| !pod.scheduled_by_berth).count();
        if others > 0 {
            let (pods, use_, their) =
                if others == 1 { ("pod", "uses", "its") } else { ("pods", "use", "their") };
            notes.push(format!(
                "{others} {pods} {use_} another scheduler: {their} position and reason show what Berth would do"
            ));
        }
        if reasons.is_full() {
            notes.push(format!("only the first {KINDS_MAX} kinds of pods have a reason"));
        }
        Queue { version: VERSION, pods, waiting, notes }
    }

    fn queued(&self, PodFacts { object, scheduler, .. }: &PodFacts<'_>) -> QueuedPod {
        QueuedPod {
            pod: (*object).into(),
            team: self.team_of(&object.spec),
            class: self.class_of(&object.spec),
            priority: object.spec.priority,
            gpus: request::gpus(object),
            scheduler: (*scheduler).to_owned(),
            scheduled_by_berth: self.source.serves(scheduler),
            age_seconds: self.seconds_since(object.created_at_ms),
            nominated_node: object.nominated.as_ref().map(ToString::to_string),
            ..QueuedPod::default()
        }
    }

    /// The pod's position in the queue, from 1, and the queue's length.
    pub(crate) fn position(&self, uid: &str) -> Option<(usize, usize)> {
        let line = self.engine.pending_pods();
        let at = line.iter().position(|one| *one.pod == *uid)?;
        Some((at + 1, line.len()))
    }

    fn matches(&self, filter: &QueueFilter, pod: &PodFacts<'_>) -> bool {
        let spec = &pod.object.spec;
        filter.namespace.as_deref().is_none_or(|one| one == &*spec.namespace)
            && filter.selector.as_ref().is_none_or(|one| one.matches(&spec.labels))
            && filter.team.as_ref().is_none_or(|one| *one == self.team_of(spec))
    }
}

/// What holds a pod, and why.
fn holder(by: &HeldBy) -> (Option<String>, String) {
    match by {
        HeldBy::Quota(refusal) => {
            let quota = match refusal {
                Refusal::Exceeded { quota, .. } | Refusal::Unspecified { quota, .. } => {
                    Some(format!("quota {quota}"))
                }
                Refusal::Negative { .. } => None,
            };
            (quota, refusal.to_string())
        }
        HeldBy::Share(_) => {
            (Some("its team's share".to_owned()), "its team has used its share".to_owned())
        }
    }
}

/// Explanations by kind of pod.
#[derive(Default)]
struct Reasons {
    known: HashMap<Arc<PodSpec>, (QueueState, String)>,
}

impl Reasons {
    fn is_full(&self) -> bool {
        self.known.len() >= KINDS_MAX
    }

    fn of<S: Source>(
        &mut self,
        inspection: &mut Inspection<'_, S>,
        pod: &PodObject,
    ) -> (QueueState, String) {
        // Claims and nominations are not in the spec.
        let is_alike = pod.claims.is_empty() && pod.nominated.is_none();
        if let Some(known) = self.known.get(&pod.spec).filter(|_| is_alike) {
            return known.clone();
        }
        if self.is_full() {
            return (QueueState::Waiting, String::new());
        }
        let explanation = inspection.engine.explain(&pod.uid, inspection.now_ms);
        let reason = explanation.as_ref().map_or_else(Default::default, in_brief);
        self.known.insert(pod.spec.clone(), reason.clone());
        reason
    }
}

fn in_brief(explanation: &Explanation) -> (QueueState, String) {
    match explanation {
        Explanation::Waiting { nodes: 0, .. } => {
            (QueueState::Waiting, "there are no nodes".to_owned())
        }
        Explanation::Waiting { nodes, fitting: 0, groups, .. } => {
            let most = groups.first().map(render_group).unwrap_or_default();
            let more = if groups.len() > 1 { " …" } else { "" };
            (QueueState::Waiting, format!("0 of {nodes} nodes fit. {most}{more}"))
        }
        Explanation::Waiting { fitting, .. } => {
            let verb = if *fitting == 1 { "node fits" } else { "nodes fit" };
            (QueueState::Fits, format!("{fitting} {verb} now"))
        }
        Explanation::InGang { .. } => (QueueState::Gang, render(explanation)),
        Explanation::Held { by, .. } => (QueueState::Held, holder(by).1),
        Explanation::Gated { .. } => (QueueState::Gated, render(explanation)),
        Explanation::AwaitsRoom { .. } => (QueueState::Nominated, render(explanation)),
        Explanation::Leaving { .. } | Explanation::Placed { .. } => {
            (QueueState::Waiting, render(explanation))
        }
    }
}
