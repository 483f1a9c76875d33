//! Headroom: room that is kept free for a class of work, and which pods may use it.
//!
//! Headroom is not a placeholder pod, because a kubelet would allocate devices and CPUs to one. A
//! pod with a weaker claim may use a node if everything reserved there would still be admitted
//! afterwards. The answer is part of a ranking, so it is computed once per shape and node state.
//!
//! SavedPod each decision the changed nodes are checked: headroom that no longer fits moves to
//! another node, the strongest claim first, displacing weaker claims if necessary. Affinity between
//! pods, host ports and volumes of the template are ignored.

use std::collections::BTreeSet;

use smallvec::SmallVec;

use super::projection::Projection;
use super::rank::{Rank, Ranking, Rankings};
use super::select;
use crate::config::UnknownTopology;
use crate::filter::{IncomingPod, Inquiry, object};
use crate::state::State;
use crate::state::headroom::{HeadroomState, Turn};
use crate::table::NodeIx;

/// Limit of reservations per node, because each is evaluated for every pod.
const ON_NODE_MAX: usize = 64;

/// Whether all headroom reserved on a node would still fit after a pod of this ranking.
pub(super) fn leaves_room(state: &State, ranking: &Ranking, at: NodeIx) -> bool {
    state.headrooms.is_empty()
        || blocked_reservation(ranking, &Projection::now(state, at)).is_none()
}

/// The same for a projected node, with the arriving pods and without them.
pub(super) fn spares(ranking: &Ranking, projected: &Projection<'_>) -> bool {
    let nothing = |projected: &Projection<'_>| blocked_reservation(ranking, projected).is_none();
    projected.state.headrooms.is_empty()
        || nothing(projected) && projected.without_arrivals().is_none_or(|plain| nothing(&plain))
}

/// The first reservation that fits on a node now, but not after a pod of this ranking.
pub(crate) fn blocked_reservation<'s>(
    ranking: &Ranking,
    projected: &Projection<'s>,
) -> Option<&'s HeadroomState> {
    let headrooms = &projected.state.headrooms;
    let kept = headrooms.stronger_than(ranking.claim, projected.at);
    let kept: SmallVec<[&HeadroomState; 4]> = kept.collect();
    if kept.is_empty() {
        return None;
    }
    let unknown = ranking.unknown;
    let mut with = projected.clone();
    with.add_placeholder(unknown, &ranking.spec, &mut ranking.ask.clone())?;
    let mut beside = with.clone();
    if kept.iter().all(|kept| add(&mut beside, unknown, kept)) {
        return None;
    }
    // A reservation that does not fit anyway does not block the pod.
    let mut without = projected.clone();
    let usable = kept.into_iter().filter(|kept| add(&mut without, unknown, kept));
    let usable: SmallVec<[&HeadroomState; 4]> = usable.collect();
    usable.into_iter().find(|kept| !add(&mut with, unknown, kept))
}

/// Adds a reservation to a projected node; false if it does not fit.
fn add(projected: &mut Projection<'_>, unknown: UnknownTopology, kept: &HeadroomState) -> bool {
    projected.add_placeholder(unknown, &kept.spec, &mut kept.ask.clone()).is_some()
}

/// Releases reservations that no longer fit and places missing ones. Evaluates changed nodes only,
/// unless the log of changes was truncated.
pub(crate) fn keep(state: &mut State, rankings: &mut Rankings) {
    let turns = state.headrooms.turns();
    turns.iter().for_each(|turn| state.release_surplus(turn));
    let changed = state.changes.since(state.headrooms.cursor);
    let mut changed: BTreeSet<NodeIx> = match changed {
        Some(changed) => changed.iter().map(|(at, _)| *at).collect(),
        None => {
            state.headrooms.rows_mut().for_each(|kept| kept.searched = false);
            state.nodes.indexes().collect()
        }
    };
    for kept in state.headrooms.rows_mut() {
        changed.iter().for_each(|at| kept.blocked.set(*at, false));
    }
    let reserved: Vec<NodeIx> = state.headrooms.nodes().filter(|at| changed.contains(at)).collect();
    for at in reserved {
        give_up(state, rankings.unknown, at);
    }
    for turn in turns {
        while let Some(at) = find(state, rankings, &turn, &changed) {
            place(state, rankings.unknown, &turn, at);
            changed.insert(at);
        }
    }
    state.headrooms.cursor = state.changes.now();
}

fn place(state: &mut State, unknown: UnknownTopology, turn: &Turn, at: NodeIx) {
    let before = count_on(state, turn, at);
    state.reserve(turn, at);
    give_up(state, unknown, at);
    state.headrooms.rows_mut().for_each(|kept| kept.blocked.set(at, false));
    // If it does not stay, the node is not tried again before it changes.
    let lasts = count_on(state, turn, at) > before;
    if let Some(kept) = state.headrooms.get_mut(turn).filter(|_| !lasts) {
        kept.blocked.set(at, true);
    }
}

fn count_on(state: &State, turn: &Turn, at: NodeIx) -> usize {
    state.headrooms.turns_on(at).iter().filter(|one| *one == turn).count()
}

fn give_up(state: &mut State, unknown: UnknownTopology, at: NodeIx) {
    let lost = unfit(state, unknown, at);
    lost.iter().for_each(|turn| state.release(turn, at));
}

/// Reservations that no longer fit, the weakest claim first. What stays is admitted beside all
/// stronger claims, also if it arrives before them.
fn unfit(state: &State, unknown: UnknownTopology, at: NodeIx) -> SmallVec<[Turn; 2]> {
    let plain = Projection::now(state, at);
    let mut projected = plain.clone();
    let mut staying: SmallVec<[&HeadroomState; 4]> = SmallVec::new();
    let mut lost: SmallVec<[Turn; 2]> = SmallVec::new();
    for kept in state.headrooms.on(at) {
        let class = kept.headroom.class;
        let mut stronger = staying.iter().filter(|other| other.headroom.class > class).peekable();
        let spares_them = stronger.peek().is_none() || {
            let mut first = plain.clone();
            add(&mut first, unknown, kept) && stronger.all(|other| add(&mut first, unknown, other))
        };
        if spares_them && is_allowed(state, kept, at) && add(&mut projected, unknown, kept) {
            staying.push(kept);
        } else {
            lost.push(kept.turn());
        }
    }
    lost
}

fn is_allowed(state: &State, kept: &HeadroomState, at: NodeIx) -> bool {
    let node = &state.nodes[at].object;
    let class = Some(kept.headroom.class);
    object(&kept.spec, node).is_ok() && state.pool_fit(class, node).is_some()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    None,
    Displaces,
    /// It fits beside everything reserved there.
    Fits,
}

/// The node for the next missing reservation of a headroom.
fn find(
    state: &mut State,
    rankings: &mut Rankings,
    turn: &Turn,
    changed: &BTreeSet<NodeIx>,
) -> Option<NodeIx> {
    let kept = state.headrooms.get_mut(turn)?;
    if kept.lacking() == 0 {
        kept.searched = false;
        return None;
    }
    let class = kept.class;
    state.rules(class);
    let mut blocked: Vec<NodeIx> = Vec::new();
    let found = rankings.with(state, class, |state, ranking, _| {
        let kept = state.headrooms.get(turn)?;
        let incoming = IncomingPod { class, uid: "", name: "", claims: &[] };
        let inquiry = Inquiry::new(state, incoming).ok()?.0;
        let (mut fit, mut displace) = (Vec::new(), Vec::new());
        let mut outcome = |rank: &Rank| {
            let outcome = if kept.blocked.contains(rank.2) {
                Outcome::None
            } else {
                try_out(state, ranking, kept, rank.2)
            };
            match outcome {
                Outcome::None => blocked.push(rank.2),
                Outcome::Displaces => displace.push(*rank),
                Outcome::Fits => fit.push(*rank),
            }
            outcome
        };
        if kept.searched {
            let ranks = changed.iter().filter_map(|at| ranking.rank(state, *at));
            for rank in ranks {
                outcome(&rank);
            }
        } else {
            for bucket in ranking.buckets() {
                for rank in &bucket.order {
                    if outcome(rank) == Outcome::Fits {
                        break;
                    }
                }
            }
        }
        let ranks = if fit.is_empty() { &displace } else { &fit };
        select::best(&inquiry, ranking, ranks)
    });
    let kept = state.headrooms.get_mut(turn)?;
    blocked.into_iter().for_each(|at| kept.blocked.set(at, true));
    kept.searched |= found.is_none();
    found
}

/// Evaluates one more reservation on a node beside nominated pods and existing reservations.
fn try_out(state: &State, ranking: &Ranking, kept: &HeadroomState, at: NodeIx) -> Outcome {
    if state.headrooms.turns_on(at).len() >= ON_NODE_MAX {
        return Outcome::None;
    }
    let unknown = ranking.unknown;
    let mut projected = Projection::now(state, at);
    for pod in state.waiting_for(at, |_| true) {
        // While a nominated pod does not fit yet, the node takes no reservations.
        if projected.add(ranking, pod).is_none() {
            return Outcome::None;
        }
    }
    let others: SmallVec<[&HeadroomState; 4]> = state.headrooms.on(at).collect();
    let mut without = projected.clone();
    let usable: SmallVec<[&HeadroomState; 4]> =
        others.into_iter().filter(|other| add(&mut without, unknown, other)).collect();
    // In the order in which `unfit` evaluates them.
    let own = kept.turn();
    let place = usable.partition_point(|other| other.turn() <= own);
    let (before, after) = usable.split_at(place);
    let mut displaces = false;
    for other in before.iter().copied().chain(std::iter::once(kept)).chain(after.iter().copied()) {
        if !add(&mut projected, unknown, other) {
            if other.headroom.class >= kept.headroom.class {
                return Outcome::None;
            }
            displaces = true;
        }
    }
    if displaces { Outcome::Displaces } else { Outcome::Fits }
}
