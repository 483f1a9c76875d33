//! Why a pod is pending and what would make it fit, as data and in words.

use berth_engine::explain::{Explanation, Remedy, render, render_remedy};
use serde::Serialize;

use crate::PodRef;

/// What keeps pods from a place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    pub reason: Reason,
    pub why: String,
    /// Each helps by itself. All have been tried out.
    pub remedies: Vec<RemedyReport>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    #[default]
    NoRoom,
    /// Held by a quota or by the team's share.
    Quota,
    /// The gang is incomplete or does not fit.
    Gang,
    /// The pod has scheduling gates.
    Gated,
    /// The API server would refuse the pod.
    Refused,
    /// The node's kubelet would reject the pod.
    RejectedByKubelet,
    /// The pod is being deleted, or would be evicted for another.
    Leaving,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RemedyReport {
    /// `evict`, `grow`, `relax`, `uncordon`, `repartition` or `loosen`.
    pub kind: String,
    /// The node on which the pod would fit then.
    pub node: Option<String>,
    /// The pool that gets one more node.
    pub pool: Option<String>,
    pub victims: Vec<PodRef>,
    pub text: String,
}

impl Diagnosis {
    /// An engine that does not know the pod has no explanation.
    pub fn of(explanation: Option<&Explanation>) -> Self {
        let Some(explanation) = explanation else { return Self::default() };
        let (reason, remedies): (Reason, &[Remedy]) = match explanation {
            Explanation::Gated { .. } => (Reason::Gated, &[]),
            Explanation::Leaving { .. } => (Reason::Leaving, &[]),
            Explanation::Held { .. } => (Reason::Quota, &[]),
            Explanation::InGang { .. } => (Reason::Gang, &[]),
            Explanation::Waiting { remedies, .. } => (Reason::NoRoom, remedies),
            Explanation::AwaitsRoom { .. } | Explanation::Placed { .. } => (Reason::NoRoom, &[]),
        };
        let remedies = remedies.iter().map(RemedyReport::from).collect();
        Self { reason, why: render(explanation), remedies }
    }
}

impl From<&Remedy> for RemedyReport {
    fn from(remedy: &Remedy) -> Self {
        let (kind, node, pool, victims) = match remedy {
            Remedy::Evict { node, victims, .. } => ("evict", Some(node), None, victims.as_slice()),
            Remedy::Grow { pool, .. } => ("grow", None, Some(pool), [].as_slice()),
            Remedy::Relax { node, .. } => ("relax", Some(node), None, [].as_slice()),
            Remedy::Uncordon { node } => ("uncordon", Some(node), None, [].as_slice()),
            Remedy::Repartition { node, .. } => ("repartition", Some(node), None, [].as_slice()),
            Remedy::Loosen { node } => ("loosen", Some(node), None, [].as_slice()),
        };
        let name = |one: &berth_engine::explain::PodName| PodRef {
            namespace: one.namespace.to_string(),
            name: one.name.to_string(),
        };
        Self {
            kind: kind.to_owned(),
            node: node.map(ToString::to_string),
            pool: pool.map(ToString::to_string),
            victims: victims.iter().map(name).collect(),
            text: render_remedy(remedy),
        }
    }
}
