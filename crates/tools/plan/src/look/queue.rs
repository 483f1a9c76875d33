//! Who waits, in the order of turns.
//!
//! Owns what is said of each in a few words: pods that differ in nothing that matters to nodes are
//! asked about once. Must not know how it is shown.

use std::collections::HashMap;
use std::sync::Arc;

use berth_engine::decision::HeldBy;
use berth_engine::explain::{Explanation, render, render_group};
use berth_model::label::Selector;
use berth_model::spec::{Phase, PodObject, PodSpec};
use berth_tenancy::quota::Refusal;
use serde::Serialize;

use super::{SCHEDULER, Scene, class_of, named, wants};
use crate::report::PodRef;

/// So many kinds of pods are asked about; why the others wait is not said.
const KINDS_MAX: usize = 200;

/// Which of those who wait are meant.
#[derive(Clone, Debug, Default)]
pub struct QueueFilter {
    /// Of this namespace; `None`: of all.
    pub namespace: Option<String>,
    /// With such labels.
    pub selector: Option<Selector>,
    /// Of this team.
    pub team: Option<String>,
}

/// Who waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Queue {
    /// Of this shape of the data; 1.
    pub version: u32,
    /// Those who are meant, whose turn it is first; those who are not to be scheduled yet come last.
    pub pods: Vec<QueuedPod>,
    /// How many wait in all.
    pub waiting: usize,
    /// What is to be known besides.
    pub notes: Vec<String>,
}

/// A pod that waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueuedPod {
    /// Its place among all who wait, from 1; `None`: it has none yet.
    pub position: Option<usize>,
    /// The pod.
    pub pod: PodRef,
    /// Whose it is; empty if it does not say.
    pub team: String,
    /// What kind of work it does.
    pub class: String,
    /// Its priority.
    pub priority: i32,
    /// What it wants of GPUs, in a few words.
    pub gpus: String,
    /// Who decides about it.
    pub scheduler: String,
    /// How long it has waited.
    pub age_seconds: i64,
    /// What keeps it.
    pub state: Standing,
    /// The node that is being freed for it.
    pub nominated_node: Option<String>,
    /// The quota, the team or the gates that keep it.
    pub held_by: Option<String>,
    /// Why, in a few words.
    pub reason: String,
}

/// What keeps a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// There is no room.
    #[default]
    Waiting,
    /// There is room; it only waits for its turn.
    Fits,
    /// Others leave a node for it.
    Nominated,
    /// A quota or its team's share.
    Held,
    /// Its gang is not whole, or has no room for all.
    Gang,
    /// It is not to be scheduled yet.
    Gated,
}

impl Scene {
    /// Who waits, as far as the filter means them.
    pub fn queue(&mut self, filter: &QueueFilter) -> Queue {
        let line = self.engine.line();
        let waiting = line.len();
        let mut reasons = Reasons::default();
        let mut pods = Vec::new();
        for (at, one) in line.into_iter().enumerate() {
            let Some(pod) = self.pod(&one.pod).cloned().filter(|pod| filter.means(self, pod))
            else {
                continue;
            };
            let mut row = self.queued(&pod);
            row.position = Some(at + 1);
            match one.held_by {
                Some(by) => {
                    row.state = Standing::Held;
                    (row.held_by, row.reason) = holder(&by);
                }
                None => {
                    (row.state, row.reason) = reasons.of(self, &pod);
                }
            }
            if row.nominated_node.is_some() && row.state != Standing::Held {
                row.state = Standing::Nominated;
            }
            pods.push(row);
        }
        let gated = |pod: &&PodObject| {
            pod.node.is_none() && pod.phase == Phase::Alive && !pod.spec.gates.is_empty()
        };
        let mut gated: Vec<&PodObject> =
            self.cluster.pods.iter().filter(gated).filter(|pod| filter.means(self, pod)).collect();
        gated.sort_by_key(|pod| (pod.created_at_ms, pod.uid.clone()));
        pods.extend(gated.into_iter().map(|pod| {
            let gates: Vec<&str> = pod.spec.gates.iter().map(AsRef::as_ref).collect();
            QueuedPod {
                state: Standing::Gated,
                held_by: Some(gates.join(", ")),
                reason: "not to be scheduled before its gates are taken away".to_owned(),
                ..self.queued(pod)
            }
        }));
        let notes = self.notes_on(&pods, reasons.is_full());
        Queue { version: 1, pods, waiting, notes }
    }

    fn notes_on(&self, pods: &[QueuedPod], left_out: bool) -> Vec<String> {
        let mut notes = self.notes.clone();
        let others = pods.iter().filter(|pod| pod.scheduler != SCHEDULER).count();
        if others > 0 {
            notes.push(format!(
                "{others} of them are not Berth's to place (another schedulerName): position and \
                 reason are what Berth would say"
            ));
        }
        if left_out {
            notes.push(format!(
                "more than {KINDS_MAX} kinds of pods wait; why is said of the first"
            ));
        }
        notes
    }

    fn queued(&self, pod: &PodObject) -> QueuedPod {
        QueuedPod {
            position: None,
            pod: named(pod),
            team: self.team_of(&pod.spec),
            class: class_of(&pod.spec),
            priority: pod.spec.priority,
            gpus: wants::gpus(pod),
            scheduler: self.particulars(pod).scheduler,
            age_seconds: self.since_s(pod.created_at_ms),
            nominated_node: pod.nominated.as_ref().map(ToString::to_string),
            ..QueuedPod::default()
        }
    }

    /// The place of a pod among all who wait, and how many do.
    pub(crate) fn position(&self, uid: &str) -> Option<(usize, usize)> {
        let line = self.engine.line();
        let at = line.iter().position(|one| *one.pod == *uid)?;
        Some((at + 1, line.len()))
    }
}

impl QueueFilter {
    fn means(&self, scene: &Scene, pod: &PodObject) -> bool {
        self.namespace.as_deref().is_none_or(|one| one == &*pod.spec.namespace)
            && self.selector.as_ref().is_none_or(|one| one.matches(&pod.spec.labels))
            && self.team.as_ref().is_none_or(|one| *one == scene.team_of(&pod.spec))
    }
}

/// What holds a pod: its name, and how so.
pub(crate) fn holder(by: &HeldBy) -> (Option<String>, String) {
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
            (Some("its team's share".to_owned()), "its team has what it may have".to_owned())
        }
    }
}

/// Why kinds of pods wait.
#[derive(Default)]
struct Reasons {
    known: HashMap<Arc<PodSpec>, (Standing, String)>,
}

impl Reasons {
    fn is_full(&self) -> bool {
        self.known.len() >= KINDS_MAX
    }

    fn of(&mut self, scene: &mut Scene, pod: &PodObject) -> (Standing, String) {
        // Those that claim devices are alike only in their spec, and those who wait for a node only
        // there.
        let is_one_of_many = pod.claims.is_empty() && pod.nominated.is_none();
        if let Some(known) = self.known.get(&pod.spec).filter(|_| is_one_of_many) {
            return known.clone();
        }
        if self.is_full() {
            return (Standing::Waiting, String::new());
        }
        let told = scene.engine.explain(&pod.uid, scene.now_ms);
        let told = told.as_ref().map_or_else(Default::default, in_brief);
        self.known.insert(pod.spec.clone(), told.clone());
        told
    }
}

fn in_brief(explanation: &Explanation) -> (Standing, String) {
    match explanation {
        Explanation::Waiting { nodes: 0, .. } => {
            (Standing::Waiting, "there are no nodes".to_owned())
        }
        Explanation::Waiting { nodes, fitting: 0, groups, .. } => {
            let most = groups.first().map(render_group).unwrap_or_default();
            let more = if groups.len() > 1 { " …" } else { "" };
            (Standing::Waiting, format!("0 of {nodes} nodes fit. {most}{more}"))
        }
        Explanation::Waiting { fitting, .. } => {
            let verb = if *fitting == 1 { "node fits" } else { "nodes fit" };
            (Standing::Fits, format!("{fitting} {verb} now"))
        }
        Explanation::InGang { .. } => (Standing::Gang, render(explanation)),
        Explanation::Held { by, .. } => (Standing::Held, holder(by).1),
        Explanation::Gated { .. } => (Standing::Gated, render(explanation)),
        Explanation::AwaitsRoom { .. } => (Standing::Nominated, render(explanation)),
        Explanation::Leaving { .. } | Explanation::Placed { .. } => {
            (Standing::Waiting, render(explanation))
        }
    }
}
