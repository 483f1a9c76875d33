//! The profile `kube-scheduler`: the decisions of kube-scheduler 1.36 with defaults, if it always
//! evaluated every node.

pub(crate) mod preempt;
pub(crate) mod score;
mod wake;

use std::sync::Arc;

use crate::class::SpreadRule;
use crate::filter::{Inquiry, Narrowed};
use crate::overlay::Overlay;
use crate::state::State;
use crate::table::NodeIx;
use crate::verdict::{Diagnosis, NodeVerdict, Plugin, Preemption, Reason, Rejection};

/// By node name.
pub(crate) struct Verdicts {
    pub(crate) nodes: Vec<(NodeIx, NodeVerdict)>,
}

impl Verdicts {
    pub(crate) fn feasible(&self) -> Vec<NodeIx> {
        let feasible = |(_, verdict): &&(NodeIx, NodeVerdict)| *verdict == NodeVerdict::Feasible;
        self.nodes.iter().filter(feasible).map(|(at, _)| *at).collect()
    }

    /// All nodes excluded, because the pod is rejected for the whole cluster.
    pub(crate) fn excluded(state: &State, rejection: &Rejection) -> Self {
        let excluded = || NodeVerdict::Excluded { rejection: rejection.clone(), filter: None };
        let nodes = state.nodes_by_name().into_iter().map(|at| (at, excluded())).collect();
        Self { nodes }
    }

    pub(crate) fn of(inquiry: &Inquiry<'_>, narrowed: &Narrowed) -> Self {
        let state = inquiry.state;
        let verdict = |at: NodeIx| {
            let node = &state.nodes[at];
            let outcome = inquiry.filter_nominated(at, &Overlay::default());
            match narrowed {
                Some(names) if names.binary_search(&node.object.name).is_err() => {
                    let reason = "node(s) didn't satisfy plugin(s) [NodeAffinity]";
                    let reason = Reason::Text(reason);
                    let rejection = Rejection::unresolvable(Plugin::NodeAffinity, reason);
                    NodeVerdict::Excluded { rejection, filter: Some(outcome) }
                }
                _ => match outcome {
                    Ok(()) => NodeVerdict::Feasible,
                    Err(rejection) => NodeVerdict::Rejected(rejection),
                },
            }
        };
        let nodes = state.nodes_by_name().into_iter().map(|at| (at, verdict(at))).collect();
        Self { nodes }
    }
}

pub(crate) fn diagnose(
    inquiry: &Inquiry<'_>,
    narrowed: &Narrowed,
    default_spread: &[SpreadRule],
    nominated: Option<&Arc<str>>,
) -> Diagnosis {
    let state = inquiry.state;
    let verdicts = Verdicts::of(inquiry, narrowed);
    let feasible = verdicts.feasible();
    let name = |at: &NodeIx| state.nodes[*at].object.name.clone();
    let mut diagnosis = Diagnosis::default();
    let own = feasible.iter().find(|at| Some(&state.nodes[**at].object.name) == nominated);
    if let Some(at) = own {
        diagnosis.best = vec![name(at)];
    } else if let [only] = feasible.as_slice() {
        diagnosis.best = vec![name(only)];
    } else if feasible.is_empty() {
        let preemption = preempt::run(inquiry, &verdicts, nominated);
        diagnosis.preemption = Some(preemption);
    } else {
        let scores = score::all(inquiry, &feasible, default_spread);
        let totals = score::totals(&scores, feasible.len());
        let most = totals.iter().copied().max();
        let named = |of: &[i64]| -> Vec<(Arc<str>, i64)> {
            feasible.iter().map(name).zip(of.iter().copied()).collect()
        };
        let best = feasible.iter().zip(&totals).filter(|(_, total)| Some(**total) == most);
        diagnosis.best = best.map(|(at, _)| name(at)).collect();
        diagnosis.totals = named(&totals);
        diagnosis.scores = scores.iter().map(|(plugin, of)| (*plugin, named(of))).collect();
    }
    let nodes = verdicts.nodes.into_iter();
    diagnosis.nodes = nodes.map(|(at, verdict)| (name(&at), verdict)).collect();
    diagnosis
}

pub(crate) fn excluded_diagnosis(state: &State, verdicts: Verdicts) -> Diagnosis {
    let nodes = verdicts.nodes.into_iter();
    let nodes = nodes.map(|(at, verdict)| (state.nodes[at].object.name.clone(), verdict)).collect();
    Diagnosis { nodes, preemption: Some(Preemption::default()), ..Diagnosis::default() }
}

/// The chosen node; ties go to a stable hash of the name.
pub(crate) fn pick(
    inquiry: &Inquiry<'_>,
    feasible: &[NodeIx],
    default_spread: &[SpreadRule],
    packing: bool,
) -> Option<NodeIx> {
    let state = inquiry.state;
    if let [only] = feasible {
        return Some(*only);
    }
    let mut scores = score::all(inquiry, feasible, default_spread);
    if packing {
        score::pack(inquiry, feasible, &mut scores);
    }
    let totals = score::totals(&scores, feasible.len());
    let scored = feasible.iter().zip(totals);
    scored.max_by_key(|(at, total)| (*total, state.nodes[**at].tie)).map(|(at, _)| *at)
}
