//! The choice of a node: soft preferences first, then the best room.
//!
//! Owns the walk over a ranking. Rules about coarse keys are asked once per bucket, everything else
//! of one node at a time, best first, so that the walk ends at the first that will do. Must not know
//! how rankings are kept.

use smallvec::SmallVec;

use super::rank::{Bucket, Rank, Ranking};
use crate::filter::Inquiry;
use crate::kube::score;
use crate::table::{KeyIx, NodeIx};

/// Preferences that tell hosts apart are weighed among so many of the best nodes of each bucket.
const WEIGHED_MAX: usize = 64;

/// The best node, if any will do.
pub(crate) fn select(inquiry: &Inquiry<'_>, ranking: &Ranking, coarse: &[KeyIx]) -> Option<NodeIx> {
    if ranking.feasible() == 0 {
        return None;
    }
    let cares = inquiry.has_neighbour_rules();
    let per_bucket = if inquiry.weighs_hosts(coarse) { WEIGHED_MAX } else { 1 };
    let mut found: SmallVec<[Rank; 8]> = SmallVec::new();
    for bucket in ranking.buckets() {
        let Some((_, _, first)) = bucket.order.first() else { continue };
        if cares && !inquiry.coarse_neighbours_allow(*first, coarse) {
            continue;
        }
        let good = bucket.order.iter().filter(|(_, _, node)| inquiry.walk_allows(*node, cares));
        found.extend(good.take(per_bucket).copied());
    }
    if per_bucket > 1 {
        let welcome = inquiry.welcoming_nodes(WEIGHED_MAX).into_iter();
        let welcome = welcome.filter_map(|node| ranking.rank(inquiry.state, node));
        found.extend(welcome.filter(|(_, _, node)| inquiry.walk_allows(*node, cares)));
        found.sort_unstable();
        found.dedup();
    }
    best(inquiry, ranking, &found)
}

fn best(inquiry: &Inquiry<'_>, ranking: &Ranking, found: &[Rank]) -> Option<NodeIx> {
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
