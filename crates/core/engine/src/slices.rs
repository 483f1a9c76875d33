//! MIG slices of nodes: which exist, which pods may hold them, and nodes after a repartition.
//!
//! Translates between nodes and the packing crate: GPUs with held slices, requests as wants, pods
//! as a mix. The mix for new layouts is the number of existing pods: arrival rate times lifetime,
//! the load in Erlang's formula.
//!
//! A slice that a pod may hold counts as held, including all candidates if the kubelet picks at
//! random. Pods keep their slices when a node is repartitioned. Only GPUs that a plugin lists slice
//! by slice take part (strategy `mixed`, not shared), and only while the node's mirror is trusted.

use std::collections::BTreeMap;
use std::sync::Arc;

use berth_model::device::DevicePool;
use berth_model::gpu::{GpuInventory, MigStrategy};
use berth_model::mig::{Board, Instance, Layout, RESOURCE_PREFIX};
use berth_model::node::Node;
use berth_model::quantity::{Format, Quantity};
use berth_model::resource::ResourceName;
use berth_packing::layout::complete;
use berth_packing::repartition::{GpuState, InstanceInUse, RepartitionPlan, Touch, propose};
use berth_packing::slice::{Mix, SliceRequest};

use crate::class::Class;
use crate::event::Event;
use crate::filter::Inquiry;
use crate::offer::smallest_slice;
use crate::overlay::Overlay;
use crate::state::State;
use crate::table::{NodeIx, PodIx};
use crate::verdict::Plugin;
use berth_kubelet::NodeTopology;

/// Pods that request more slices are not planned for.
const SLICES_MAX: i64 = 64;

#[derive(Clone, Debug)]
pub(crate) struct SlicedGpu {
    pub(crate) node: NodeIx,
    /// Index in the node's list.
    pub(crate) place: usize,
    pub(crate) gpu: GpuState,
    /// Pods that may hold each instance.
    pub(crate) holders: Vec<(Instance, Vec<PodIx>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuLayoutChange {
    pub node: Arc<str>,
    /// Index in the node's list.
    pub gpu: usize,
    pub id: Arc<str>,
    pub from: Layout,
    pub to: Layout,
}

pub(crate) type MayMove<'a> = &'a dyn Fn(&State, PodIx) -> bool;

pub(crate) fn on_node(state: &State, node: NodeIx, may_move: MayMove<'_>) -> Vec<SlicedGpu> {
    let row = &state.nodes[node];
    let topology = state.topology(&row.object.name);
    let Some(inventory) = topology.and_then(|topology| topology.gpus()) else { return Vec::new() };
    let Some(mirror) = row.mirror.as_ref().filter(|mirror| mirror.is_trusted()) else {
        return Vec::new();
    };
    let mut gpus: Vec<SlicedGpu> = changeable(inventory)
        .map(|(place, layout)| {
            let gpu = GpuState { layout, held: Vec::new() };
            SlicedGpu { node, place, gpu, holders: Vec::new() }
        })
        .collect();
    let mut slices: BTreeMap<String, (usize, Instance)> = BTreeMap::new();
    for (at, sliced) in gpus.iter().enumerate() {
        for instance in sliced.gpu.layout.instances() {
            slices.insert(inventory.gpus[sliced.place].slice_id(&instance), (at, instance));
        }
    }
    let kubelet = mirror.kubelet();
    for uid in kubelet.pods() {
        let (Some(pod), Some(held)) = (state.pod_by_uid(uid), kubelet.assignment(uid)) else {
            continue;
        };
        let movable = may_move(state, pod);
        for given in held.containers.iter().flat_map(|one| &one.devices) {
            let Some(pool) = kubelet.pools().nth(given.pool) else { continue };
            for device in (given.certain | given.candidates | given.devices).iter() {
                let id = pool.devices.get(device).map(|device| device.id.as_str());
                let Some((at, instance)) = id.and_then(|id| slices.get(id)) else { continue };
                gpus[*at].hold(*instance, pod, movable && given.certain.contains(device));
            }
        }
    }
    gpus
}

/// The GPUs whose layout can be changed, by index, with their layout.
fn changeable(inventory: &GpuInventory) -> impl Iterator<Item = (usize, Layout)> {
    let mixed = inventory.naming.mig == MigStrategy::Mixed;
    let gpus = inventory.gpus.iter().enumerate().filter(move |_| mixed);
    gpus.filter(|(_, gpu)| gpu.is_healthy() && gpu.replicas.is_none())
        .filter_map(|(place, gpu)| Some((place, gpu.mig?)))
}

pub(crate) fn undivided(state: &State) -> Vec<(NodeIx, usize, &'static Board)> {
    let mut found = Vec::new();
    for node in state.nodes_by_name() {
        let topology = state.topology(&state.nodes[node].object.name);
        let Some(inventory) = topology.and_then(|topology| topology.gpus()) else { continue };
        let empty = changeable(inventory).filter(|(_, layout)| layout.is_empty());
        found.extend(empty.map(|(place, layout)| (node, place, layout.board())));
    }
    found
}

impl SlicedGpu {
    fn hold(&mut self, instance: Instance, pod: PodIx, movable: bool) {
        let same = |held: &&mut InstanceInUse| {
            (held.profile, held.start) == (instance.profile, instance.start)
        };
        match self.gpu.held.iter_mut().find(same) {
            Some(held) => {
                held.pods = held.pods.saturating_add(1);
                held.movable &= movable;
            }
            None => {
                let Instance { profile, start } = instance;
                self.gpu.held.push(InstanceInUse { profile, start, pods: 1, movable });
            }
        }
        match self.holders.iter_mut().find(|(one, _)| *one == instance) {
            Some((_, pods)) => pods.push(pod),
            None => self.holders.push((instance, vec![pod])),
        }
    }

    /// The slices that no pod can hold.
    pub(crate) fn idle(&self) -> Layout {
        let held = |i: &Instance| self.holders.iter().any(|(one, _)| one == i);
        let mut layout = self.gpu.layout;
        for instance in self.gpu.layout.instances().filter(held) {
            // It exists, so it can be removed.
            let _ = layout.remove(instance.profile, instance.start);
        }
        layout
    }
}

/// The wants of a class on these boards; empty if it wants no slices, or impossible ones.
pub(crate) fn wants(state: &State, class: &Class, boards: &[&'static Board]) -> Vec<SliceRequest> {
    let mut wants = Vec::new();
    for (resource, amount) in class.requests.iter().filter(|(_, amount)| *amount > 0) {
        let name = state.resources.name(*resource).as_str();
        if !name.starts_with(RESOURCE_PREFIX) {
            continue;
        }
        match SliceRequest::resource(name) {
            Ok(want) if *amount <= SLICES_MAX => {
                wants.extend((0..*amount).map(|_| want.clone()));
            }
            _ => return Vec::new(),
        }
    }
    if let Some(need) = &class.spec.gpu {
        let slices = boards.iter().filter_map(|board| {
            let slice = smallest_slice(board, need)?;
            board.share(slice).map(|_| (*board, slice))
        });
        match SliceRequest::any(slices) {
            Ok(want) => wants.push(want),
            Err(_) => return Vec::new(),
        }
    }
    wants
}

/// Sorted, without duplicates.
pub(crate) fn boards<'a>(gpus: impl IntoIterator<Item = &'a Layout>) -> Vec<&'static Board> {
    let mut boards: Vec<&'static Board> = gpus.into_iter().map(Layout::board).collect();
    boards.sort_by_key(|board| board.id());
    boards.dedup();
    boards
}

/// The wants of all pods. Their number at a time is arrival rate times lifetime, which is what the
/// number of slices has to suffice for.
pub(crate) fn mix(state: &State, boards: &[&'static Board]) -> Mix {
    let mut classes: BTreeMap<_, u32> = BTreeMap::new();
    for (_, pod) in state.pods.iter() {
        *classes.entry(pod.class).or_default() += 1;
    }
    // By name, because numbers depend on the order of events.
    let mut kinds: BTreeMap<Vec<(&'static str, String)>, (SliceRequest, u32)> = BTreeMap::new();
    for (class, count) in classes {
        for want in wants(state, state.class(class), boards) {
            let options = want.options().iter();
            let name = options.map(|(board, slice)| (board.id(), slice.to_string())).collect();
            kinds.entry(name).or_insert((want, 0)).1 += count;
        }
    }
    Mix::from_weights(kinds.into_values())
}

/// The nodes a pod could use if they had the slices it wants, as far as filters show.
pub(crate) fn nodes_for(inquiry: &Inquiry<'_>) -> Vec<NodeIx> {
    let state = inquiry.state;
    let sliced = |node: &NodeIx| {
        let topology = state.topology(&state.nodes[*node].object.name);
        topology
            .and_then(|topology| topology.gpus())
            .is_some_and(|gpus| changeable(gpus).next().is_some())
    };
    let has_rest = |node: &NodeIx| {
        let mut rest = inquiry.class.requests.iter().filter(|(resource, _)| {
            !state.resources.name(*resource).as_str().starts_with(RESOURCE_PREFIX)
        });
        rest.all(|(resource, amount)| state.nodes[*node].free(*resource) >= *amount)
    };
    let plain = Overlay::default();
    let only_short = |node: &NodeIx| match inquiry.filter(*node, &plain) {
        Ok(()) => true,
        Err(rejection) => rejection.plugin == Plugin::NodeResourcesFit,
    };
    // Leaving pods on nominated nodes make room for the nominated pods.
    let unclaimed = |node: &NodeIx| state.nodes[*node].nominated.is_empty();
    let nodes = state.nodes_by_name().into_iter();
    nodes.filter(sliced).filter(unclaimed).filter(has_rest).filter(only_short).collect()
}

pub(crate) fn plan(
    gpus: Vec<SlicedGpu>,
    requests: &[SliceRequest],
    mix: &Mix,
    touch: Touch,
) -> Option<PlannedRepartition> {
    let bare: Vec<GpuState> = gpus.iter().map(|sliced| sliced.gpu.clone()).collect();
    let mix = mix.with_pending(requests.iter().map(|want| (want, 1)));
    let plan = propose(&bare, requests, &mix, touch).ok()?;
    if plan.steps.is_empty() || plan.serves.is_empty() {
        return None;
    }
    let mut changes: Vec<(usize, Layout)> =
        plan.steps.iter().map(|step| (step.gpu, step.to)).collect();
    // A plugin that finds a GPU without slices lists none of the node's, so that GPU gets some,
    // too.
    let idle: Vec<Layout> = gpus.iter().map(SlicedGpu::idle).collect();
    for (at, sliced) in gpus.iter().enumerate() {
        let beside = changes.iter().any(|(other, _)| gpus[*other].node == sliced.node);
        let changed = changes.iter().any(|(other, _)| *other == at);
        if beside && !changed && sliced.gpu.layout.is_empty() {
            changes.push((at, complete(&sliced.gpu.layout, &idle, &mix)));
        }
    }
    Some(PlannedRepartition { gpus, plan, changes })
}

pub(crate) struct PlannedRepartition {
    pub(crate) gpus: Vec<SlicedGpu>,
    pub(crate) plan: RepartitionPlan,
    /// New layouts, by index in `gpus`.
    pub(crate) changes: Vec<(usize, Layout)>,
}

impl PlannedRepartition {
    /// By node and index.
    pub(crate) fn layout_changes(&self, state: &State) -> Vec<GpuLayoutChange> {
        let mut found: Vec<GpuLayoutChange> = self
            .changes
            .iter()
            .filter_map(|(at, to)| {
                let sliced = &self.gpus[*at];
                layout_change(state, sliced.node, sliced.place, *to)
            })
            .collect();
        found.sort_by(|one, other| (&one.node, one.gpu).cmp(&(&other.node, other.gpu)));
        found
    }
}

pub(crate) fn layout_change(
    state: &State,
    node: NodeIx,
    place: usize,
    to: Layout,
) -> Option<GpuLayoutChange> {
    let node = state.nodes[node].object.name.clone();
    let gpu = state.topology(&node)?.gpus()?.gpus.get(place)?;
    Some(GpuLayoutChange { node, gpu: place, id: gpu.id.as_str().into(), from: gpu.mig?, to })
}

/// The events that follow a repartition: topologies and allocatable devices.
pub(crate) fn repartition_events(state: &State, layout_changes: &[GpuLayoutChange]) -> Vec<Event> {
    let mut by_node: BTreeMap<&Arc<str>, Vec<(usize, Layout)>> = BTreeMap::new();
    for one in layout_changes {
        by_node.entry(&one.node).or_default().push((one.gpu, one.to));
    }
    let mut events = Vec::new();
    for (name, slices) in by_node {
        let (Some(before), Some(at)) = (state.topology(name), state.node_by_name(name)) else {
            continue;
        };
        let Some(after) = before.repartitioned(&slices) else { continue };
        events.push(Event::Node(offering(&state.nodes[at].object, before, &after)));
        events.push(Event::Topology { node: name.clone(), topology: Some(Arc::new(after)) });
    }
    events
}

/// A node with its allocatable devices changed as its plugins' lists change.
fn offering(node: &Node, before: &NodeTopology, after: &NodeTopology) -> Node {
    let mut more: BTreeMap<&ResourceName, i64> = BTreeMap::new();
    for (kubelet, sign) in [(before.empty_kubelet(), -1), (after.empty_kubelet(), 1)] {
        for DevicePool { resource, devices, .. } in kubelet.pools() {
            let healthy = devices.iter().filter(|device| device.healthy).count() as i64;
            *more.entry(resource).or_default() += sign * healthy;
        }
    }
    let mut node = node.clone();
    for (resource, more) in more.into_iter().filter(|(_, more)| *more != 0) {
        let now = node.allocatable.get(resource).map_or(0, |amount| amount.value());
        let now = Quantity::from_units(now.saturating_add(more).max(0), Format::DecimalSi);
        node.allocatable.insert(resource.clone(), now);
    }
    node
}
