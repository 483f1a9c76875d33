//! Preemption: where the fewest and least important pods have to go for one that matters more.
//!
//! Owns, for each shape and priority, the nodes in the order of what evictions would cost there, and
//! keeps it true by looking again only at nodes that changed. The cheapest is tried out before it is
//! taken. Must not carry anything out.

use std::collections::BTreeSet;

use smallvec::SmallVec;

use super::plan::{Cost, Evictor, Plan, Trial, estimate};
use super::rank::Ranking;
use crate::changes::{Change, Cursor};
use crate::filter::Inquiry;
use crate::shape::ShapeRef;
use crate::state::State;
use crate::table::{Index, Lookup, NodeIx, ShapeIx};

/// So many orders are kept; the one that was not asked for longest goes first.
const ORDERS_MAX: usize = 128;

/// So many nodes are tried out before giving up.
const TRIALS_MAX: usize = 100;

/// Nodes by what evictions would cost.
#[derive(Clone, Debug)]
struct Order {
    shape: ShapeRef,
    /// By node: where it is in the sets below, and the tie by which it was put there.
    places: Vec<Place>,
    by_cost: BTreeSet<(Cost, u64, NodeIx)>,
    /// Nodes with pods that could be evicted, though counting does not say that it would help.
    others: BTreeSet<(u64, NodeIx)>,
    /// Nodes to look at again because pods there need not be left alone any longer, by when.
    rested: BTreeSet<(i64, NodeIx)>,
    cursor: Cursor,
    epoch: u64,
    used_at: u64,
}

/// What evictions would do on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// There is nobody to evict.
    #[default]
    Nobody,
    /// They would make room at this cost, by counting.
    Cost(Cost, u64),
    /// Counting does not say that they would help.
    Other(u64),
}

/// All such orders.
#[derive(Clone, Debug, Default)]
pub(crate) struct Preemption {
    orders: Lookup<(ShapeIx, i32), Box<Order>>,
    serial: u64,
}

impl Preemption {
    /// The cheapest evictions after which the pod fits.
    pub(crate) fn find(
        &mut self,
        inquiry: &Inquiry<'_>,
        ranking: &mut Ranking,
        evictor: &Evictor,
    ) -> Option<Plan> {
        let order = self.order(inquiry.state, ranking, evictor);
        let mut trial = Trial { inquiry, ranking };
        if inquiry.has_neighbour_rules() {
            return by_trial(&mut trial, order, evictor);
        }
        let mut best: Option<Plan> = None;
        let mut wrong: Vec<(NodeIx, Option<Cost>)> = Vec::new();
        for (cost, _, at) in order.by_cost.iter().take(TRIALS_MAX) {
            if best.as_ref().is_some_and(|plan| plan.cost <= *cost) {
                break;
            }
            let evictable = evictor.evictable(inquiry.state, &inquiry.state.nodes[*at]);
            let ask = trial.ranking.ask_mut();
            let plan = estimate(inquiry.state, ask, inquiry.spec(), *at, &evictable);
            let Some(plan) = plan else { continue };
            if trial.fits_without(*at, &plan.victims) {
                if best.as_ref().is_none_or(|best| plan.cost < best.cost) {
                    best = Some(plan);
                }
                break;
            }
            let exact = trial.exact(*at, evictor);
            wrong.push((*at, exact.as_ref().map(|plan| plan.cost)));
            if let Some(exact) = exact
                && best.as_ref().is_none_or(|best| exact.cost < best.cost)
            {
                best = Some(exact);
            }
        }
        for (at, cost) in wrong {
            let tie = inquiry.state.nodes[at].tie;
            order.set(at, cost.map_or(Place::Other(tie), |cost| Place::Cost(cost, tie)));
        }
        best
    }

    /// The order for pods like this one, up to date.
    fn order(&mut self, state: &State, ranking: &mut Ranking, evictor: &Evictor) -> &mut Order {
        self.serial += 1;
        let key = (ranking.shape().at, evictor.priority);
        if self.orders.len() >= ORDERS_MAX && !self.orders.contains_key(&key) {
            let oldest = self.orders.iter().min_by_key(|(_, order)| order.used_at);
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                self.orders.remove(&oldest);
            }
        }
        let shape = ranking.shape();
        let order = self.orders.entry(key).or_insert_with(|| Box::new(Order::new(shape)));
        if order.shape != shape {
            **order = Order::new(shape);
        }
        order.used_at = self.serial;
        order.refresh(state, ranking, evictor);
        order
    }
}

/// Where the rules about neighbours matter, counting does not tell: nodes with pods to evict are
/// tried, the cheapest to clear first, up to a limit.
fn by_trial(trial: &mut Trial<'_, '_>, order: &Order, evictor: &Evictor) -> Option<Plan> {
    let state = trial.inquiry.state;
    let counted = order.by_cost.iter().map(|(_, _, at)| *at);
    let others = order.others.iter().map(|(_, at)| *at);
    let candidates: Vec<NodeIx> = counted.chain(others).take(TRIALS_MAX).collect();
    let plans = candidates.into_iter().filter_map(|at| trial.exact(at, evictor));
    plans.min_by_key(|plan| (plan.cost, state.nodes[plan.node].tie))
}

impl Order {
    fn new(shape: ShapeRef) -> Self {
        Self {
            shape,
            places: Vec::new(),
            by_cost: BTreeSet::new(),
            others: BTreeSet::new(),
            rested: BTreeSet::new(),
            cursor: Cursor::default(),
            epoch: u64::MAX,
            used_at: 0,
        }
    }

    fn set(&mut self, at: NodeIx, place: Place) {
        if at.at() >= self.places.len() {
            self.places.resize(at.at() + 1, Place::Nobody);
        }
        match std::mem::replace(&mut self.places[at.at()], place) {
            Place::Nobody => {}
            Place::Cost(cost, tie) => {
                self.by_cost.remove(&(cost, tie, at));
            }
            Place::Other(tie) => {
                self.others.remove(&(tie, at));
            }
        }
        match place {
            Place::Nobody => {}
            Place::Cost(cost, tie) => {
                self.by_cost.insert((cost, tie, at));
            }
            Place::Other(tie) => {
                self.others.insert((tie, at));
            }
        }
    }

    fn refresh(&mut self, state: &State, ranking: &mut Ranking, evictor: &Evictor) {
        let epoch = state.changes.epoch();
        let changed = state.changes.since(self.cursor).filter(|_| self.epoch == epoch);
        let few = |changed: &&[(NodeIx, Change)]| changed.len() <= state.nodes.len();
        let mut nodes: Vec<NodeIx> = match changed.filter(few) {
            Some(changed) => changed.iter().map(|(at, _)| *at).collect(),
            None => {
                *self = Self { used_at: self.used_at, ..Self::new(self.shape) };
                state.nodes.indexes().collect()
            }
        };
        self.epoch = epoch;
        self.cursor = state.changes.now();
        while let Some((until, node)) = self.rested.first().copied()
            && until <= evictor.now_ms
        {
            self.rested.pop_first();
            nodes.push(node);
        }
        nodes.sort_unstable();
        nodes.dedup();
        for at in nodes {
            self.look_at(state, ranking, evictor, at);
        }
    }

    fn look_at(&mut self, state: &State, ranking: &mut Ranking, evictor: &Evictor, at: NodeIx) {
        let Some(node) = state.nodes.get(at) else { return self.set(at, Place::Nobody) };
        let open = ranking.object_allows(at) && node.nominated.is_empty();
        let evictable = if open { evictor.evictable(state, node) } else { SmallVec::new() };
        let plan = if evictable.is_empty() {
            None
        } else {
            let spec = ranking.spec();
            estimate(state, ranking.ask_mut(), &spec, at, &evictable)
        };
        self.set(
            at,
            match plan {
                Some(plan) => Place::Cost(plan.cost, node.tie),
                None if evictable.is_empty() => Place::Nobody,
                None => Place::Other(node.tie),
            },
        );
        let rests = node.pods.iter().filter_map(|pod| evictor.rests_until(state, *pod)).min();
        if let Some(until) = rests {
            self.rested.insert((until, at));
        }
    }
}
