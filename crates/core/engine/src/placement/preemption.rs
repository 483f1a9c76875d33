//! PreemptionSearch: the node where the fewest and least important pods must be evicted.
//!
//! For each shape and priority, nodes are kept in order of estimated cost, updated from the log of
//! changes. The cheapest estimate is tried before it is used.

use std::collections::BTreeSet;

use super::projection::Projection;
use super::rank::Ranking;
use super::victims::{Cost, EvictionPlan, Preemptor, TeamKey, Trial, estimate, has_members};
use crate::changes::{Change, Cursor};
use crate::filter::Inquiry;
use crate::shape::ShapeRef;
use crate::state::{NodeState, State};
use crate::table::{Bits, Index, Lookup, NodeIx, ShapeIx};

/// Least recently used orders are dropped beyond this number.
const ORDERS_MAX: usize = 128;

const TRIALS_MAX: usize = 100;

#[derive(Clone, Debug)]
struct Order {
    shape: ShapeRef,
    places: Vec<Place>,
    by_cost: BTreeSet<(Cost, u64, NodeIx)>,
    /// Nodes with evictable pods where the estimate finds no victims.
    others: BTreeSet<(u64, NodeIx)>,
    tried: usize,
    /// Nodes to evaluate again when a cooldown ends.
    cooled_down: BTreeSet<(i64, NodeIx)>,
    cursor: Cursor,
    /// Version of the ledger when all nodes were evaluated.
    epoch: Option<u64>,
    used_at: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// No evictable pods, or evictions would not help.
    #[default]
    Nobody,
    Cost(Cost, u64),
    Other(u64),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct PreemptionSearch {
    orders: Lookup<(ShapeIx, i32, TeamKey), Box<Order>>,
    serial: u64,
    pub(crate) cut_short: bool,
}

impl PreemptionSearch {
    pub(crate) fn begin(&mut self) {
        self.cut_short = false;
    }

    pub(crate) fn find(
        &mut self,
        inquiry: &Inquiry<'_>,
        ranking: &mut Ranking,
        preemptor: &Preemptor,
        within: Option<&Bits>,
    ) -> Option<EvictionPlan> {
        let state = inquiry.state;
        let near = |at: NodeIx| within.is_none_or(|nodes| nodes.contains(at));
        if ranking.is_detached() {
            let nodes: Vec<NodeIx> = ranking.allowed_nodes().filter(|at| near(*at)).collect();
            let mut trial = Trial { inquiry, ranking };
            let plan =
                |at| trial.exact(at, preemptor).map(|plan| trial.with_gangs(plan, preemptor).0);
            let plans = nodes.into_iter().filter_map(plan);
            return plans.min_by_key(|plan| (plan.cost, state.nodes[plan.node].tie));
        }
        let order = self.order(inquiry.state, ranking, preemptor);
        let cut_short = order.by_cost.len() > TRIALS_MAX || order.others.len() > TRIALS_MAX;
        let mut trial = Trial { inquiry, ranking };
        if inquiry.depends_on_others() {
            return by_trial(&mut trial, order, preemptor, near);
        }
        let mut best: Option<EvictionPlan> = None;
        let mut corrections: Vec<(NodeIx, Option<Cost>)> = Vec::new();
        let candidates = order.by_cost.iter().filter(|(_, _, at)| near(*at));
        for (cost, _, at) in candidates.take(TRIALS_MAX) {
            if best.as_ref().is_some_and(|plan| plan.cost <= *cost) {
                break;
            }
            let evictable = preemptor.evictable_now(state, &state.nodes[*at]);
            let Some(projected) = trial.project(*at, preemptor) else { continue };
            let ask = &mut trial.ranking.ask;
            let plan = estimate(state, ask, inquiry.spec(), &projected, &evictable);
            if let Some(plan) = plan.filter(|plan| trial.fits_without(&projected, &plan.victims)) {
                // Budgets may have been used since the node was ordered, and the order ignores
                // whole gangs: another node may be cheaper.
                let higher_cost = (plan.cost > *cost).then_some(plan.cost);
                let (plan, takes_gangs) = trial.with_gangs(plan, preemptor);
                if best.as_ref().is_none_or(|best| plan.cost < best.cost) {
                    best = Some(plan);
                }
                if higher_cost.is_none() && !takes_gangs {
                    break;
                }
                if higher_cost.is_some() && !depends_on_gangs(state, *at) {
                    corrections.push((*at, higher_cost));
                }
                continue;
            }
            // The estimate was wrong.
            let exact = trial.exact(*at, preemptor);
            if !depends_on_gangs(state, *at) {
                corrections.push((*at, exact.as_ref().map(|plan| plan.cost)));
            }
            if let Some((exact, _)) = exact.map(|plan| trial.with_gangs(plan, preemptor))
                && best.as_ref().is_none_or(|best| exact.cost < best.cost)
            {
                best = Some(exact);
            }
        }
        for (at, cost) in corrections {
            order.settle(&state.nodes[at], at, cost);
        }
        let best = best.or_else(|| uncounted(&mut trial, order, preemptor, near));
        self.cut_short = cut_short;
        best
    }

    /// Evictions after which the pod fits, on at most `nodes_max` nodes, cheapest estimate first.
    pub(crate) fn plans(
        &mut self,
        inquiry: &Inquiry<'_>,
        ranking: &mut Ranking,
        preemptor: &Preemptor,
        nodes_max: usize,
    ) -> Vec<EvictionPlan> {
        let nodes: Vec<NodeIx> = if ranking.is_detached() {
            ranking.allowed_nodes().collect()
        } else {
            let order = self.order(inquiry.state, ranking, preemptor);
            let counted = order.by_cost.iter().map(|(_, _, at)| *at);
            counted.chain(order.others.iter().map(|(_, at)| *at)).collect()
        };
        let mut trial = Trial { inquiry, ranking };
        let plans = nodes.into_iter().take(nodes_max).filter_map(|at| trial.exact(at, preemptor));
        plans.collect()
    }

    fn order(&mut self, state: &State, ranking: &mut Ranking, preemptor: &Preemptor) -> &mut Order {
        self.serial += 1;
        let key = (ranking.shape.at, preemptor.priority, preemptor.team_key());
        if self.orders.len() >= ORDERS_MAX && !self.orders.contains_key(&key) {
            let oldest = self.orders.iter().min_by_key(|(_, order)| order.used_at);
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                self.orders.remove(&oldest);
            }
        }
        let shape = ranking.shape;
        let order = self.orders.entry(key).or_insert_with(|| Box::new(Order::new(shape)));
        if order.shape != shape {
            **order = Order::new(shape);
        }
        order.used_at = self.serial;
        order.refresh(state, ranking, preemptor);
        order
    }
}

/// Where other pods or volumes matter, estimates are useless: nodes are tried, the cheapest to
/// clear first, up to a limit; the next search continues after the last one tried.
fn by_trial(
    trial: &mut Trial<'_, '_>,
    order: &mut Order,
    preemptor: &Preemptor,
    near: impl Fn(NodeIx) -> bool,
) -> Option<EvictionPlan> {
    let state = trial.inquiry.state;
    let counted = order.by_cost.iter().map(|(_, _, at)| *at);
    let others = order.others.iter().map(|(_, at)| *at);
    let all = order.by_cost.len() + order.others.len();
    let skipped = if all > TRIALS_MAX { order.tried % all } else { 0 };
    let candidates: Vec<NodeIx> =
        counted.chain(others).cycle().skip(skipped).take(all.min(TRIALS_MAX)).collect();
    order.tried = skipped + candidates.len();
    let candidates = candidates.into_iter().filter(|at| near(*at));
    let plan = |at| trial.exact(at, preemptor).map(|plan| trial.with_gangs(plan, preemptor).0);
    let plans = candidates.filter_map(plan);
    plans.min_by_key(|plan| (plan.cost, state.nodes[plan.node].tie))
}

/// Nodes without an estimate are tried once per node state.
fn uncounted(
    trial: &mut Trial<'_, '_>,
    order: &mut Order,
    preemptor: &Preemptor,
    near: impl Fn(NodeIx) -> bool,
) -> Option<EvictionPlan> {
    let state = trial.inquiry.state;
    let mut best: Option<EvictionPlan> = None;
    let others = order.others.iter().map(|(_, at)| *at).filter(|at| near(*at));
    let others: Vec<NodeIx> = others.take(TRIALS_MAX).collect();
    for at in others {
        let plan = trial.exact(at, preemptor);
        if !depends_on_gangs(state, at) {
            order.settle(&state.nodes[at], at, plan.as_ref().map(|plan| plan.cost));
        }
        let plan = plan.map(|plan| trial.with_gangs(plan, preemptor).0);
        let better = |plan: &EvictionPlan| best.as_ref().is_none_or(|best| plan.cost < best.cost);
        if plan.as_ref().is_some_and(better) {
            best = plan;
        }
    }
    best
}

/// Whether the victims on a node depend on pods elsewhere, because members of gangs run there.
fn depends_on_gangs(state: &State, at: NodeIx) -> bool {
    has_members(state, &state.nodes[at])
}

impl Order {
    fn new(shape: ShapeRef) -> Self {
        Self {
            shape,
            places: Vec::new(),
            by_cost: BTreeSet::new(),
            others: BTreeSet::new(),
            tried: 0,
            cooled_down: BTreeSet::new(),
            cursor: Cursor::default(),
            epoch: None,
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

    /// Records the exact cost of a node, or that evictions do not help there.
    fn settle(&mut self, node: &NodeState, at: NodeIx, cost: Option<Cost>) {
        self.set(at, cost.map_or(Place::Nobody, |cost| Place::Cost(cost, node.tie)));
    }

    fn refresh(&mut self, state: &State, ranking: &mut Ranking, preemptor: &Preemptor) {
        let epoch = Some(state.tenancy.ledger.version());
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
        while let Some((until, node)) = self.cooled_down.first().copied()
            && until <= preemptor.now_ms
        {
            self.cooled_down.pop_first();
            nodes.push(node);
        }
        nodes.sort_unstable();
        nodes.dedup();
        for at in nodes {
            self.evaluate(state, ranking, preemptor, at);
        }
    }

    fn evaluate(
        &mut self,
        state: &State,
        ranking: &mut Ranking,
        preemptor: &Preemptor,
        at: NodeIx,
    ) {
        let Some(node) = state.nodes.get(at) else { return self.set(at, Place::Nobody) };
        let projected = if ranking.object_allows(at) {
            Projection::for_preemptor(state, ranking, at, preemptor)
        } else {
            None
        };
        let place = match projected {
            None => Place::Nobody,
            Some(projected) => {
                let evictable = preemptor.evictable(state, node);
                let spec = ranking.spec.clone();
                match estimate(state, &mut ranking.ask, &spec, &projected, &evictable) {
                    Some(plan) => Place::Cost(plan.cost, node.tie),
                    // Whether whole gangs may go changes without this node changing.
                    None if evictable.is_empty() && !depends_on_gangs(state, at) => Place::Nobody,
                    None => Place::Other(node.tie),
                }
            }
        };
        self.set(at, place);
        let rests = node.pods.iter().filter_map(|pod| preemptor.protected_until(state, *pod)).min();
        if let Some(until) = rests {
            self.cooled_down.insert((until, at));
        }
    }
}
