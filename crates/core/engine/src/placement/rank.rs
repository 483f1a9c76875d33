//! Rankings: for each pod shape, the nodes with room, best first.
//!
//! Updated from the log of changes. Nodes that soft preferences cannot distinguish share a bucket.
//! Everything that depends on other pods is evaluated elsewhere.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_model::spec::PodSpec;
use berth_model::workload::WorkloadClass;
use berth_packing::request::{GpuRequest, Request};
use smallvec::SmallVec;

use super::gpu_values;
use super::headroom;
use super::locality::{Localities, LocalityIx};
use super::room::{Ask, Judge, Obstacle, Room, View, gpu_ask};
use crate::changes::{Change, Cursor};
use crate::class::Class;
use crate::config::UnknownTopology;
use crate::filter::{self, object, untolerated_soft_taints};
use crate::kube::score::{holds_model, image_bytes_score, preferred_weight};
use crate::shape::{Shape, ShapeRef};
use crate::state::{NodeState, State};
use crate::table::{ClassIx, Index, Interner, KeyIx, Lookup, NodeIx, ResourceIx, ShapeIx};

/// Least recently used rankings are dropped beyond this number.
const RANKINGS_MAX: usize = 512;

/// Pods that name at most this many nodes get a ranking of those only.
const NAMED_MAX: usize = 8;

const NONE: u32 = u32::MAX;

/// Position of a node; less is better.
pub(crate) type Rank = (u64, u64, NodeIx);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Soft {
    taints: i64,
    affinity: i64,
    images: i64,
    /// How well its pool suits the class of work.
    pool: i64,
    holds_model: bool,
}

/// Nodes with room and equal soft preferences.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    pub(crate) soft: Soft,
    pub(crate) order: BTreeSet<Rank>,
}

#[derive(Clone, Debug)]
pub(crate) struct Ranking {
    pub(crate) shape: ShapeRef,
    /// A pod of this shape; labels and priority are arbitrary.
    pub(crate) spec: Arc<PodSpec>,
    pub(crate) ask: Ask,
    pub(crate) unknown: UnknownTopology,
    /// Class of work, if headroom or pools depend on it.
    pub(crate) claim: Option<WorkloadClass>,
    /// By node: its bucket, or `NONE` if its object rules it out; and its key, or `FULL`.
    places: Vec<(u32, u64)>,
    buckets: Vec<Bucket>,
    bucket_numbers: Lookup<(LocalityIx, Soft), u32>,
    pub(crate) feasible: usize,
    cursor: Cursor,
    generation: u64,
    /// Generation of the GPU values used.
    gpu_value_generation: u64,
    typical: Option<Request>,
    used_at: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Rankings {
    shapes: Interner<ShapeIx, Shape>,
    rows: Lookup<ShapeIx, Box<Ranking>>,
    localities: Localities,
    serial: u64,
    pub(crate) unknown: UnknownTopology,
    pub(crate) looks: u64,
}

const FULL: u64 = u64::MAX;

impl Ranking {
    /// A ranking that is not kept up to date and has not evaluated any node.
    pub(crate) fn detached(state: &State, class: ClassIx, unknown: UnknownTopology) -> Self {
        let Class { spec, requests, .. } = state.class(class);
        Self {
            shape: ShapeRef { at: ShapeIx(u32::MAX), serial: 0 },
            spec: spec.clone(),
            ask: Ask::new(requests, &state.resources),
            unknown,
            claim: state.claim_of(spec),
            places: Vec::new(),
            buckets: Vec::new(),
            bucket_numbers: Lookup::default(),
            feasible: 0,
            cursor: Cursor::default(),
            generation: u64::MAX,
            gpu_value_generation: u64::MAX,
            typical: None,
            used_at: 0,
        }
    }

    /// The request as the mix of arrivals records it. A share is taken relative to one fixed
    /// allowed node, so that the order of events does not matter.
    pub(crate) fn typical_request(&mut self, state: &State) -> Request {
        if let Some(request) = self.typical {
            return request;
        }
        let rows = || state.nodes.iter().filter(|(_, row)| row.gpus.is_some());
        let allowed = || rows().filter(|(at, _)| self.object_allows(*at)).map(|(_, row)| row);
        let all_allowed = allowed().count() == rows().count();
        let models =
            state.gpu_values.models(allowed().filter_map(|row| row.gpus.as_ref()), all_allowed);
        let one = allowed().min_by_key(|row| (row.tie, row.object.name.clone()));
        let gpus = one.map_or(GpuRequest::None, |row| self.gpu_ask(row));
        let request = Request { gpus, models, ..gpu_values::host(&self.ask) };
        self.typical = Some(request);
        request
    }

    fn gpu_ask(&self, node: &NodeState) -> GpuRequest {
        gpu_ask(&self.spec, &self.ask, View::of(node))
    }

    pub(crate) fn evaluate_all(&mut self, state: &State) {
        Refresh { state, localities: &mut Localities::default(), looks: 0 }.all(self);
    }

    /// Evaluates only which GPU nodes allow the pods, not their room.
    fn allow(&mut self, state: &State) {
        self.forget(state.nodes.bound());
        for (at, node) in state.nodes.iter().filter(|(_, node)| node.gpus.is_some()) {
            let allows = object(&self.spec, &node.object).is_ok()
                && state.pool_fit(self.claim, &node.object).is_some();
            self.places[at.at()] = (if allows { 0 } else { NONE }, FULL);
        }
    }

    pub(crate) fn buckets(&self) -> impl Iterator<Item = &Bucket> {
        self.buckets.iter().filter(|bucket| !bucket.order.is_empty())
    }

    pub(crate) fn rank(&self, state: &State, node: NodeIx) -> Option<Rank> {
        let (bucket, key) = *self.places.get(node.at())?;
        (bucket != NONE && key != FULL).then(|| (key, state.nodes[node].tie, node))
    }

    /// Upper limit of such pods on a node with room, by requests.
    pub(crate) fn copies(&self, state: &State, node: NodeIx) -> u32 {
        let row = &state.nodes[node];
        let fit = |(resource, amount): &(ResourceIx, i64)| match *amount {
            ..=0 => i64::MAX,
            amount => row.free(*resource) / amount,
        };
        let pods = row.pods_max.saturating_sub(row.pods.len() as i64);
        let most = if self.spec.host_ports.is_empty() { i64::MAX } else { 1 };
        let copies = self.ask.requests.iter().map(fit).fold(pods.min(most), i64::min);
        u32::try_from(copies.max(0)).unwrap_or(u32::MAX)
    }

    /// Whether it belongs to one query and is not kept.
    pub(crate) fn is_detached(&self) -> bool {
        self.shape.at == ShapeIx(u32::MAX)
    }

    /// The evaluated nodes whose object allows such pods.
    pub(crate) fn allowed_nodes(&self) -> impl Iterator<Item = NodeIx> {
        let places = self.places.iter().enumerate();
        places.filter(|(_, (bucket, _))| *bucket != NONE).map(|(at, _)| NodeIx::new(at))
    }

    /// Whether the node's object allows such pods, whatever runs there.
    pub(crate) fn object_allows(&self, node: NodeIx) -> bool {
        self.places.get(node.at()).is_some_and(|(bucket, _)| *bucket != NONE)
    }

    pub(crate) fn judge(&mut self, state: &State, view: View<'_>) -> Result<Room, Obstacle> {
        Judge::of(&self.spec, self.unknown, state).judge(&mut self.ask, view)
    }

    pub(crate) fn judge_other(
        &self,
        state: &State,
        spec: &PodSpec,
        ask: &mut Ask,
        view: View<'_>,
    ) -> Result<Room, Obstacle> {
        Judge::of(spec, self.unknown, state).judge(ask, view)
    }

    fn forget(&mut self, nodes: usize) {
        self.places = vec![(NONE, FULL); nodes];
        self.buckets.clear();
        self.bucket_numbers.clear();
        self.feasible = 0;
    }

    fn set(&mut self, tie: u64, node: NodeIx, place: (u32, u64)) {
        if node.at() >= self.places.len() {
            self.places.resize(node.at() + 1, (NONE, FULL));
        }
        let before = std::mem::replace(&mut self.places[node.at()], place);
        if before == place {
            return;
        }
        if before.0 != NONE && before.1 != FULL {
            self.buckets[before.0 as usize].order.remove(&(before.1, tie, node));
            self.feasible -= 1;
        }
        if place.0 != NONE && place.1 != FULL {
            self.buckets[place.0 as usize].order.insert((place.1, tie, node));
            self.feasible += 1;
        }
    }

    fn bucket(&mut self, locality: LocalityIx, soft: Soft) -> u32 {
        let next = self.buckets.len() as u32;
        let number = *self.bucket_numbers.entry((locality, soft)).or_insert(next);
        if number == next {
            self.buckets.push(Bucket { soft, order: BTreeSet::new() });
        }
        number
    }
}

impl Rankings {
    pub(crate) fn new(unknown: UnknownTopology) -> Self {
        Self { unknown, ..Self::default() }
    }

    pub(crate) fn with<T>(
        &mut self,
        state: &mut State,
        class: ClassIx,
        ask: impl FnOnce(&State, &mut Ranking, &[KeyIx]) -> T,
    ) -> T {
        if let Some(nodes) = named_nodes(state, class) {
            // DaemonSet pods: each has its own shape and one possible node.
            return self.with_nodes(state, class, &nodes, ask);
        }
        self.localities.refresh(state);
        let coarse = self.localities.keys();
        let ranking = self.of(state, class);
        ask(state, ranking, &coarse)
    }

    /// Calls `ask` with a temporary ranking of some nodes.
    pub(crate) fn with_nodes<T>(
        &mut self,
        state: &mut State,
        class: ClassIx,
        nodes: &[NodeIx],
        ask: impl FnOnce(&State, &mut Ranking, &[KeyIx]) -> T,
    ) -> T {
        self.localities.refresh(state);
        let coarse = self.localities.keys();
        let mut ranking = Ranking::detached(state, class, self.unknown);
        let mut refresh = Refresh { state, localities: &mut self.localities, looks: 0 };
        for node in nodes {
            refresh.evaluate(&mut ranking, &coarse, *node, Change::Node);
        }
        self.looks += refresh.looks;
        ask(state, &mut ranking, &coarse)
    }

    /// Whether the ranking of a class is kept, or is not worth keeping.
    pub(crate) fn keeps(&self, state: &State, class: ClassIx) -> bool {
        let kept = |shape: ShapeRef| self.rows.get(&shape.at).map(|ranking| ranking.shape);
        let row = state.class(class);
        row.shape.is_some_and(|shape| kept(shape) == Some(shape))
            || named_nodes(state, class).is_some()
    }

    pub(crate) fn typical_request(&mut self, state: &mut State, class: ClassIx) -> Request {
        if self.keeps(state, class) {
            return self.with(state, class, |state, ranking, _| ranking.typical_request(state));
        }
        let mut ranking = Ranking::detached(state, class, self.unknown);
        ranking.allow(state);
        self.looks += state.nodes.len() as u64;
        ranking.typical_request(state)
    }

    fn of(&mut self, state: &mut State, class: ClassIx) -> &mut Ranking {
        let shape = self.shape_of(state, class);
        self.serial += 1;
        let serial = self.serial;
        let generation = self.localities.generation;
        let ranking = self.rows.entry(shape.at).or_insert_with(|| {
            Box::new(Ranking { shape, ..Ranking::detached(state, class, self.unknown) })
        });
        ranking.used_at = serial;
        let changed = state.changes.since(ranking.cursor);
        let mut refresh = Refresh { state, localities: &mut self.localities, looks: 0 };
        match changed.filter(|_| ranking.generation == generation) {
            Some(changed) => refresh.changed(ranking, changed),
            None => refresh.all(ranking),
        }
        let gpu_value_generation = state.gpu_values.generation;
        if ranking.gpu_value_generation != gpu_value_generation && ranking.generation == generation
        {
            refresh.rejudge(ranking);
        }
        self.looks += refresh.looks;
        ranking.gpu_value_generation = gpu_value_generation;
        ranking.generation = generation;
        ranking.cursor = state.changes.now();
        ranking
    }

    fn shape_of(&mut self, state: &mut State, class: ClassIx) -> ShapeRef {
        let row = state.class(class);
        if let Some(shape) = row.shape {
            let kept = self.rows.get(&shape.at);
            if kept.is_some_and(|ranking| ranking.shape == shape) {
                return shape;
            }
        }
        let (at, new) = self.shapes.acquire(Shape::of(&row.spec, state.claim_of(&row.spec)));
        let shape = match self.rows.get(&at) {
            Some(ranking) => ranking.shape,
            None => {
                self.serial += 1;
                ShapeRef { at, serial: self.serial }
            }
        };
        if !new {
            // The ranking holds the only reference to the shape.
            self.shapes.release(at);
        }
        state.set_shape(class, shape);
        self.make_room(at);
        shape
    }

    fn make_room(&mut self, except: ShapeIx) {
        if self.rows.len() < RANKINGS_MAX {
            return;
        }
        let others = self.rows.iter().filter(|(at, _)| **at != except);
        if let Some((at, _)) = others.min_by_key(|(_, ranking)| ranking.used_at) {
            let at = *at;
            self.rows.remove(&at);
            self.shapes.release(at);
        }
    }
}

/// The nodes that a class names, if they are few and it accepts no others.
fn named_nodes(state: &State, class: ClassIx) -> Option<SmallVec<[NodeIx; 8]>> {
    let names = filter::named_nodes(&state.class(class).spec.node_affinity).ok()??;
    (names.len() <= NAMED_MAX)
        .then(|| names.iter().filter_map(|name| state.node_by_name(name)).collect())
}

struct Refresh<'a> {
    state: &'a State,
    localities: &'a mut Localities,
    looks: u64,
}

impl Refresh<'_> {
    fn all(&mut self, ranking: &mut Ranking) {
        ranking.forget(self.state.nodes.bound());
        let keys = self.localities.keys();
        for node in self.state.nodes.indexes() {
            self.evaluate(ranking, &keys, node, Change::Node);
        }
    }

    fn changed(&mut self, ranking: &mut Ranking, changed: &[(NodeIx, Change)]) {
        match changed {
            [] => {}
            [(node, change)] => {
                let keys = self.localities.keys();
                self.evaluate(ranking, &keys, *node, *change);
            }
            many => {
                let keys = self.localities.keys();
                let mut nodes: SmallVec<[(NodeIx, bool); 64]> =
                    many.iter().map(|(node, change)| (*node, *change != Change::Node)).collect();
                // Object changes sort first and stand for all others.
                nodes.sort_unstable();
                nodes.dedup_by_key(|(node, _)| *node);
                for (node, use_only) in nodes {
                    let change = if use_only { Change::Freed } else { Change::Node };
                    self.evaluate(ranking, &keys, node, change);
                }
            }
        }
    }

    fn rejudge(&mut self, ranking: &mut Ranking) {
        let keys = self.localities.keys();
        for node in self.state.nodes.indexes() {
            self.evaluate(ranking, &keys, node, Change::Freed);
        }
    }

    fn evaluate(&mut self, ranking: &mut Ranking, keys: &[KeyIx], at: NodeIx, change: Change) {
        self.looks += 1;
        let Some(node) = self.state.nodes.get(at) else {
            // Its tie is unknown now, so it is found by its number.
            return ranking.drop_node(at);
        };
        if change == Change::Node {
            ranking.typical = None;
            ranking.drop_node(at);
            let allowed = object(&ranking.spec, &node.object).is_ok();
            let fit = self.state.pool_fit(ranking.claim, &node.object).filter(|_| allowed);
            let bucket = match fit {
                None => NONE,
                Some(pool) => {
                    let soft = self.soft(ranking, at, pool);
                    ranking.bucket(self.localities.of(self.state, keys, at), soft)
                }
            };
            ranking.set(node.tie, at, (bucket, FULL));
        }
        let bucket = ranking.places.get(at.at()).map_or(NONE, |(bucket, _)| *bucket);
        if bucket == NONE {
            return;
        }
        let room = ranking.judge(self.state, View::of(node));
        let room = room.ok().filter(|_| headroom::leaves_room(self.state, ranking, at));
        ranking.set(node.tie, at, (bucket, room.map_or(FULL, |room| room.key)));
    }

    fn soft(&self, ranking: &Ranking, at: NodeIx, pool: i64) -> Soft {
        let node = &self.state.nodes[at].object;
        Soft {
            taints: untolerated_soft_taints(&ranking.spec, node),
            affinity: preferred_weight(&ranking.spec, node),
            images: image_bytes_score(&ranking.spec, node),
            pool,
            holds_model: holds_model(&ranking.spec, node),
        }
    }
}

impl Ranking {
    /// Removes a node by number, because its tie may have changed.
    fn drop_node(&mut self, at: NodeIx) {
        let Some(place) = self.places.get_mut(at.at()) else { return };
        let (bucket, key) = std::mem::replace(place, (NONE, FULL));
        if bucket == NONE || key == FULL {
            return;
        }
        let order = &mut self.buckets[bucket as usize].order;
        let same_key = order.range((key, 0, NodeIx(0))..=(key, u64::MAX, NodeIx(u32::MAX)));
        let found = same_key.copied().find(|(_, _, node)| *node == at);
        if let Some(rank) = found {
            order.remove(&rank);
            self.feasible -= 1;
        }
    }
}
