//! The choice of a node: soft preferences first, then the best room.
//!
//! Rules about coarse keys are evaluated once per bucket, all others per node, best first, until a
//! node passes.

use smallvec::SmallVec;

use super::headroom;
use super::projection::Projection;
use super::rank::{Bucket, Rank, Ranking};
use super::room::View;
use crate::devices::Order;
use crate::filter::Inquiry;
use crate::gang::beside_members;
use crate::kube::score;
use crate::table::{Bits, KeyIx, NodeIx};

/// Best nodes per bucket that are weighed if preferences differ by host.
const WEIGHED_MAX: usize = 64;

/// Further nodes searched for one without pods to keep apart from.
const WALKED_MAX: usize = 4096;

pub(crate) fn select(
    inquiry: &Inquiry<'_>,
    ranking: &Ranking,
    coarse: &[KeyIx],
    within: Option<&Bits>,
) -> Option<NodeIx> {
    if ranking.feasible == 0 {
        return None;
    }
    let has_rules = inquiry.has_neighbour_rules();
    let near = |node: NodeIx| within.is_none_or(|nodes| nodes.contains(node));
    if let Some(nodes) = inquiry.nodes_of_required_pods(coarse) {
        let nodes = nodes.into_iter().filter(|node| near(*node));
        let ranked = nodes.filter_map(|node| ranking.rank(inquiry.state, node));
        let found: SmallVec<[Rank; 8]> =
            ranked.filter(|rank| allows(inquiry, ranking, rank.2, has_rules)).collect();
        return best(inquiry, ranking, &found);
    }
    let per_bucket = if inquiry.weighs_hosts(coarse) { WEIGHED_MAX } else { 1 };
    let mut found: SmallVec<[Rank; 8]> = SmallVec::new();
    for bucket in ranking.buckets() {
        let Some((_, _, first)) = bucket.order.first() else { continue };
        if has_rules && !inquiry.coarse_neighbours_allow(*first, coarse) {
            continue;
        }
        let allowed = |rank: &&Rank| near(rank.2) && allows(inquiry, ranking, rank.2, has_rules);
        let mut good = bucket.order.iter().filter(allowed);
        let first = found.len();
        found.extend(good.by_ref().take(per_bucket).copied());
        // If all of these hold pods to keep apart from, a node without such pods may be far down.
        let uncrowded = |rank: &Rank| inquiry.crowding(rank.2, coarse) == 0;
        if per_bucket > 1 && !found[first..].iter().any(uncrowded) {
            found.extend(good.take(WALKED_MAX).find(|rank| uncrowded(rank)).copied());
        }
    }
    if per_bucket > 1 {
        let welcome = inquiry.preferring_nodes(WEIGHED_MAX).into_iter().filter(|node| near(*node));
        let welcome = welcome.filter_map(|node| ranking.rank(inquiry.state, node));
        found.extend(welcome.filter(|rank| allows(inquiry, ranking, rank.2, has_rules)));
        found.sort_unstable();
        found.dedup();
    }
    best(inquiry, ranking, &found)
}

pub(crate) fn allows(
    inquiry: &Inquiry<'_>,
    ranking: &Ranking,
    at: NodeIx,
    neighbours: bool,
) -> bool {
    inquiry.others_allow(at, neighbours)
        && (inquiry.devices.is_none() || devices_allow(inquiry, ranking, at))
        && (inquiry.state.nodes[at].nominated.is_empty() || beside_nominated(inquiry, ranking, at))
}

/// Whether the node has devices for the pod's claims, near its CPUs if that is wanted.
fn devices_allow(inquiry: &Inquiry<'_>, ranking: &Ranking, at: NodeIx) -> bool {
    let numa = || {
        let (state, mut ask) = (inquiry.state, ranking.ask.clone());
        let view = View::of(&state.nodes[at]);
        ranking.judge_other(state, inquiry.spec(), &mut ask, view).ok()?.fit.numa
    };
    let numa = inquiry.near_devices.then(numa).flatten();
    inquiry.devices_on(at, numa, Order::Listed).is_ok()
}

/// Whether there is room beside nominated pods that rank above this one. While one of them does not
/// fit yet, the node is closed, except to pods that a gang's reservation allows.
fn beside_nominated(inquiry: &Inquiry<'_>, ranking: &Ranking, at: NodeIx) -> bool {
    let state = inquiry.state;
    let mut ahead = state.waiting_for(at, |pod| inquiry.yields_to(pod));
    // Among equals nominated to the same node, the first to arrive goes first.
    match ahead.iter().position(|pod| state.pods[*pod].uid.as_ref() == inquiry.uid) {
        Some(own) => ahead.truncate(own),
        None if ahead.is_empty() => return true,
        None => {}
    }
    let mut projected = Projection::now(state, at);
    if ahead.iter().any(|pod| projected.add(ranking, *pod).is_none()) {
        match beside_members(inquiry, ranking, at, &ahead) {
            Some(later) => projected = later,
            None => return false,
        }
    }
    let mut ask = ranking.ask.clone();
    projected.neighbours_allow(inquiry)
        && ranking.judge_other(state, inquiry.spec(), &mut ask, projected.view()).is_ok()
        && headroom::blocked_reservation(ranking, &projected).is_none()
}

pub(super) fn best(inquiry: &Inquiry<'_>, ranking: &Ranking, found: &[Rank]) -> Option<NodeIx> {
    let alike = || {
        let mut softs = ranking.buckets().map(|bucket: &Bucket| bucket.soft);
        let first = softs.next();
        softs.all(|soft| Some(soft) == first)
    };
    let least = |ranks: &mut dyn Iterator<Item = Rank>| ranks.min().map(|(_, _, node)| node);
    if found.len() <= 1 || !inquiry.has_soft_rules() && alike() {
        return least(&mut found.iter().copied());
    }
    let nodes: SmallVec<[NodeIx; 8]> = found.iter().map(|(_, _, node)| *node).collect();
    let totals = score::soft_totals(inquiry, &nodes);
    let most = totals.iter().copied().max();
    let top = found.iter().zip(&totals).filter(|(_, total)| Some(**total) == most);
    least(&mut top.map(|(rank, _)| *rank))
}
