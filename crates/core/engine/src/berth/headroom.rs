//! Headroom: usable room that is kept free for a class, and which pods may use it.
//!
//! Headroom is a claim on what is left of a node, not a placeholder pod: a kubelet would give a
//! placeholder devices and CPUs. A pod with a weaker claim may use a node if everything kept there
//! would still be admitted after the kubelet has placed the pod. The answer is part of a ranking, so
//! it is computed once per shape and node state.
//!
//! Before each decision the changed nodes are checked: headroom that no longer fits moves to another
//! node, the strongest claim first, at the expense of weaker claims if necessary. Affinity between
//! pods, host ports and volumes of the template are not considered. Must not know the queue.

use std::collections::BTreeSet;

use smallvec::SmallVec;

use super::foresee::Foresight;
use super::rank::{Rank, Ranking, Rankings};
use super::select;
use crate::config::UnknownTopology;
use crate::filter::{Inquiry, Newcomer, object};
use crate::state::State;
use crate::state::headroom::{Kept, Turn};
use crate::table::NodeIx;

/// So many reservations are kept on one node at most: each is tried out whenever somebody comes.
const ON_NODE_MAX: usize = 64;

/// Whether a node that has room for such a pod would still have it for all that is kept there.
pub(super) fn leaves_room(state: &State, ranking: &Ranking, at: NodeIx) -> bool {
    state.headrooms.is_empty() || in_the_way(ranking, &Foresight::now(state, at)).is_none()
}

/// The same for a node as it is going to be, with those who are to come and without them.
pub(super) fn spares(ranking: &Ranking, foreseen: &Foresight<'_>) -> bool {
    let nothing = |foreseen: &Foresight<'_>| in_the_way(ranking, foreseen).is_none();
    foreseen.state().headrooms.is_empty()
        || nothing(foreseen) && foreseen.without_comers().is_none_or(|plain| nothing(&plain))
}

/// The first reservation that could be used on a node but not if such a pod came there.
pub(crate) fn in_the_way<'s>(ranking: &Ranking, foreseen: &Foresight<'s>) -> Option<&'s Kept> {
    let headrooms = &foreseen.state().headrooms;
    let kept = headrooms.kept_from(ranking.claim(), foreseen.at);
    let kept: SmallVec<[&Kept; 4]> = kept.collect();
    if kept.is_empty() {
        return None;
    }
    let unknown = ranking.unknown();
    let mut with = foreseen.clone();
    with.add_like(unknown, &ranking.spec(), &mut ranking.ask().clone())?;
    let mut beside = with.clone();
    if kept.iter().all(|kept| add(&mut beside, unknown, kept)) {
        return None;
    }
    // What could not be used anyway is nobody's fault.
    let mut without = foreseen.clone();
    let usable = kept.into_iter().filter(|kept| add(&mut without, unknown, kept));
    let usable: SmallVec<[&Kept; 4]> = usable.collect();
    usable.into_iter().find(|kept| !add(&mut with, unknown, kept))
}

/// Puts what is kept onto a node as it would be; whether there is room.
fn add(foreseen: &mut Foresight<'_>, unknown: UnknownTopology, kept: &Kept) -> bool {
    foreseen.add_like(unknown, &kept.spec, &mut kept.ask.clone()).is_some()
}

/// Gives up what cannot be kept any more, and finds other places for it. Looks at changed nodes only,
/// unless there is something new to keep.
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
        give_up(state, rankings.unknown(), at);
    }
    for turn in turns {
        while let Some(at) = find(state, rankings, &turn, &changed) {
            place(state, rankings.unknown(), &turn, at);
            changed.insert(at);
        }
    }
    state.headrooms.cursor = state.changes.now();
}

/// Keeps one more on a node, at the expense of weaker claims if it must.
fn place(state: &mut State, unknown: UnknownTopology, turn: &Turn, at: NodeIx) {
    let before = count_on(state, turn, at);
    state.reserve(turn, at);
    give_up(state, unknown, at);
    state.headrooms.rows_mut().for_each(|kept| kept.blocked.set(at, false));
    // Where it would not last it is not tried again until the node changes.
    let lasts = count_on(state, turn, at) > before;
    if let Some(kept) = state.headrooms.get_mut(turn).filter(|_| !lasts) {
        kept.blocked.set(at, true);
    }
}

/// How many of a headroom are kept on a node.
fn count_on(state: &State, turn: &Turn, at: NodeIx) -> usize {
    state.headrooms.turns_on(at).iter().filter(|one| *one == turn).count()
}

/// Releases what cannot be used on a node any more.
fn give_up(state: &mut State, unknown: UnknownTopology, at: NodeIx) {
    let lost = useless(state, unknown, at);
    lost.iter().for_each(|turn| state.release(turn, at));
}

/// What cannot be used on a node, the weakest claim first to go. What stays would be admitted beside
/// all with a stronger claim, and does not spoil that if it comes first.
fn useless(state: &State, unknown: UnknownTopology, at: NodeIx) -> SmallVec<[Turn; 2]> {
    let plain = Foresight::now(state, at);
    let mut foreseen = plain.clone();
    let mut staying: SmallVec<[&Kept; 4]> = SmallVec::new();
    let mut lost: SmallVec<[Turn; 2]> = SmallVec::new();
    for kept in state.headrooms.on(at) {
        let class = kept.headroom.class;
        let mut stronger = staying.iter().filter(|other| other.headroom.class > class).peekable();
        let spares_them = stronger.peek().is_none() || {
            let mut first = plain.clone();
            add(&mut first, unknown, kept) && stronger.all(|other| add(&mut first, unknown, other))
        };
        if spares_them && is_allowed(state, kept, at) && add(&mut foreseen, unknown, kept) {
            staying.push(kept);
        } else {
            lost.push(kept.turn());
        }
    }
    lost
}

/// Whether a node's object and its pool allow what is to be kept.
fn is_allowed(state: &State, kept: &Kept, at: NodeIx) -> bool {
    let node = &state.nodes[at].object;
    let class = Some(kept.headroom.class);
    object(&kept.spec, node).is_ok() && state.pool_fit(class, node).is_some()
}

/// What keeping one more on a node would do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It does not fit there.
    None,
    /// Something with a weaker claim would have to be given up.
    Displaces,
    /// It fits beside all else that is kept there.
    Fits,
}

/// The node for the next of a headroom that is lacking.
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
        let newcomer = Newcomer { class, uid: "", name: "", claims: &[] };
        let inquiry = Inquiry::new(state, newcomer).ok()?.0;
        let mut nodes = Candidates::default();
        let mut outcome = |rank: &Rank| {
            let outcome = if kept.blocked.contains(rank.2) {
                Outcome::None
            } else {
                try_out(state, ranking, kept, rank.2)
            };
            if outcome == Outcome::None {
                blocked.push(rank.2);
            }
            outcome
        };
        if kept.searched {
            let ranks = changed.iter().filter_map(|at| ranking.rank(state, *at));
            ranks.for_each(|rank| nodes.add(rank, outcome(&rank)));
        } else {
            for bucket in ranking.buckets() {
                for rank in &bucket.order {
                    let outcome = outcome(rank);
                    nodes.add(*rank, outcome);
                    if outcome == Outcome::Fits {
                        break;
                    }
                }
            }
        }
        let ranks = if nodes.fit.is_empty() { &nodes.displace } else { &nodes.fit };
        select::best(&inquiry, ranking, ranks)
    });
    let kept = state.headrooms.get_mut(turn)?;
    blocked.into_iter().for_each(|at| kept.blocked.set(at, true));
    kept.searched |= found.is_none();
    found
}

/// Nodes that could take one more.
#[derive(Default)]
struct Candidates {
    fit: Vec<Rank>,
    displace: Vec<Rank>,
}

impl Candidates {
    fn add(&mut self, rank: Rank, outcome: Outcome) {
        match outcome {
            Outcome::None => {}
            Outcome::Displaces => self.displace.push(rank),
            Outcome::Fits => self.fit.push(rank),
        }
    }
}

/// Tries one more out on a node, beside the pods that wait for it and what is kept there already.
fn try_out(state: &State, ranking: &Ranking, kept: &Kept, at: NodeIx) -> Outcome {
    if state.headrooms.turns_on(at).len() >= ON_NODE_MAX {
        return Outcome::None;
    }
    let unknown = ranking.unknown();
    let mut foreseen = Foresight::now(state, at);
    for pod in state.waiting_for(at, |_| true) {
        // While one of them cannot come, because others have not left yet, the node is closed.
        if foreseen.add(ranking, pod).is_none() {
            return Outcome::None;
        }
    }
    let others: SmallVec<[&Kept; 4]> = state.headrooms.on(at).collect();
    let mut without = foreseen.clone();
    let usable: SmallVec<[&Kept; 4]> =
        others.into_iter().filter(|other| add(&mut without, unknown, other)).collect();
    // In the order in which they are looked at when the node changes.
    let own = kept.turn();
    let place = usable.partition_point(|other| other.turn() <= own);
    let (before, after) = usable.split_at(place);
    let mut displaces = false;
    for other in before.iter().copied().chain(std::iter::once(kept)).chain(after.iter().copied()) {
        if !add(&mut foreseen, unknown, other) {
            if other.headroom.class >= kept.headroom.class {
                return Outcome::None;
            }
            displaces = true;
        }
    }
    if displaces { Outcome::Displaces } else { Outcome::Fits }
}
