//! What a gang reservation costs others, and whether the operator's budget allows it.
//!
//! A member counts with the largest share that it requests of any resource of a node, in GPUs of
//! that node's model, or in nodes if there are none: a pod with all CPUs of a node blocks its
//! GPUs as well.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_tenancy::share::TeamIx;

use super::queueing::GangStatus;
use crate::amounts;
use crate::engine::Engine;
use crate::explain::{Tenant, Unreserved};
use crate::state::{NodeState, State};
use crate::table::{NodeIx, PodIx};

/// One GPU, or one node without GPUs, in thousandths.
const WHOLE_MILLI: i64 = 1_000;

impl Engine {
    pub(super) fn tenant(&self, status: &GangStatus) -> Option<Tenant> {
        let class = self.state.class_of(*status.waiting.first()?);
        let team = class.team_charge.team;
        Some(if self.state.tenancy.has_teams() && team != TeamIx::NONE {
            Tenant::Team(self.state.tenancy.ledger.name(team).clone())
        } else {
            Tenant::Namespace(class.spec.namespace.clone())
        })
    }

    /// Why the places of a gang exceed the share that may be reserved; `None` if they do not.
    pub(super) fn beyond_share(&self, places: &[(PodIx, NodeIx)]) -> Option<Unreserved> {
        let percent = self.config.reservations.share_percent.min(100);
        let mut kept_milli: BTreeMap<Option<&Arc<str>>, i64> = BTreeMap::new();
        let mut members: BTreeMap<NodeIx, Vec<PodIx>> = BTreeMap::new();
        places.iter().for_each(|(pod, node)| members.entry(*node).or_default().push(*pod));
        for (node, pods) in &members {
            let node = &self.state.nodes[*node];
            *kept_milli.entry(model(node)).or_default() += kept(&self.state, node, pods);
        }
        kept_milli.into_iter().find_map(|(of, kept_milli)| {
            let nodes = self.state.nodes.iter().map(|(_, node)| node);
            let nodes = nodes.filter(|node| model(node) == of && !node.object.unschedulable);
            let all_milli: i64 = nodes.map(weight_milli).sum();
            let allowed_milli = all_milli.saturating_mul(i64::from(percent)) / 100;
            (kept_milli > allowed_milli).then(|| Unreserved::BeyondShare {
                model: of.cloned(),
                needs: kept_milli.div_euclid(WHOLE_MILLI) + i64::from(kept_milli % WHOLE_MILLI > 0),
                allowed: allowed_milli / WHOLE_MILLI,
                percent,
            })
        })
    }
}

fn model(node: &NodeState) -> Option<&Arc<str>> {
    node.gpus.as_ref().map(|gpus| &gpus.model)
}

fn weight_milli(node: &NodeState) -> i64 {
    WHOLE_MILLI * node.gpus.as_ref().map_or(1, |gpus| i64::from(gpus.count))
}

/// What members take of a node, in thousandths of its GPUs.
fn kept(state: &State, node: &NodeState, members: &[PodIx]) -> i64 {
    let mut wanted = Vec::new();
    for pod in members {
        let class = state.class_of(*pod);
        amounts::add(&mut wanted, &class.requests, 1);
        // Which part of a GPU it gets is unknown, so a whole one counts.
        if let (Some(gpus), Some(_)) = (&node.gpus, &class.spec.gpu) {
            *amounts::at_mut(&mut wanted, gpus.resource) += 1;
        }
    }
    let share = |wanted: i64, has: i64| {
        let part = i128::from(wanted) * i128::from(weight_milli(node)) / i128::from(has.max(1));
        i64::try_from(part).unwrap_or(i64::MAX).min(weight_milli(node))
    };
    let of_resources = wanted.iter().zip(&node.capacity).map(|(wanted, has)| share(*wanted, *has));
    let of_pods = share(members.len() as i64, node.pods_max);
    of_resources.max().unwrap_or(0).max(of_pods)
}
