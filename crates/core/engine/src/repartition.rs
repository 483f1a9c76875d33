//! Repartition: which GPUs should get another MIG layout so that pending pods fit.
//!
//! Layouts come from the packing crate; what they gain is tried under a checkpoint by the code that
//! decides, and rolled back. GPUs in use and running pods are touched only if [`Terms`] allow it.

use std::sync::Arc;

use berth_model::mig::{Layout, Repartition};
use berth_packing::layout::{Pending, partition};
use berth_packing::slice::{Mix, SliceRequest};

pub use berth_packing::repartition::Touch;

use crate::engine::Engine;
use crate::repair::{self, Move};
pub use crate::slices::GpuLayoutChange;
use crate::slices::{self, PlannedRepartition, SlicedGpu};
use crate::table::{ClassIx, NodeIx, PodIx};

/// Limit of pods considered, in queue order.
const PODS_MAX: usize = 64;

/// Limit of nodes tried for a pod that the joint plan left out.
const NODES_MAX: usize = 16;

/// Limits of a proposal, and assumed durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    pub touch: Touch,
    pub moves_max: usize,
    /// Estimated time to create or destroy a slice.
    pub slice_ms: i64,
    /// Estimated time until a node's device plugin lists the new slices.
    pub listing_ms: i64,
}

impl Default for Terms {
    fn default() -> Self {
        Self { touch: Touch::IdleGpus, moves_max: 0, slice_ms: 1_000, listing_ms: 30_000 }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    pub pod: Arc<str>,
    pub node: Arc<str>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disturbance {
    pub gpus: usize,
    pub gpus_with_work: usize,
    /// Destroyed slices, none of them in use by then.
    pub slices_destroyed: usize,
    pub slices_created: usize,
    /// Nodes whose device plugin lists other devices afterwards.
    pub nodes: usize,
    /// Duration without moves; nodes are repartitioned in parallel.
    pub duration_ms: i64,
}

/// GPUs to repartition, after the moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepartitionProposal {
    pub steps: Vec<GpuLayoutChange>,
    pub moves: Vec<Move>,
    /// Pods bound then, in queue order.
    pub admits: Vec<Admitted>,
    pub disturbance: Disturbance,
}

/// Pods that could use the same nodes.
struct PendingGroup {
    nodes: Vec<NodeIx>,
    pods: Vec<PodIx>,
}

#[derive(Default)]
struct Draft {
    steps: Vec<GpuLayoutChange>,
    moves: Vec<Move>,
    admits: Vec<Admitted>,
    with_work: Vec<(Arc<str>, usize)>,
}

impl Engine {
    /// The GPUs to repartition so that parked pods fit that need MIG slices or parts of GPUs.
    /// `None` if no pod gains by it, or headroom would be lost.
    pub fn repartition(&mut self, terms: &Terms, now_ms: i64) -> Option<RepartitionProposal> {
        let lacking = |engine: &Self| engine.headroom().iter().map(|room| room.lacking).sum();
        let checkpoint = self.checkpoint();
        self.place_headroom();
        let lacking_before: usize = lacking(self);
        let mut found = Draft::default();
        for group in self.groups() {
            let PendingGroup { nodes, pods } = group;
            let mut left = self.serve(&nodes, pods, terms, now_ms, &mut found);
            // The best plan for all may not suit each: NUMA nodes and other pods matter, too.
            left.truncate(NODES_MAX);
            for pod in left {
                let mut nodes = nodes.iter().take(NODES_MAX);
                nodes.find(|node| {
                    self.serve(&[**node], vec![pod], terms, now_ms, &mut found).is_empty()
                });
            }
        }
        self.place_headroom();
        let lost = lacking(self) > lacking_before;
        self.rollback(checkpoint);
        (!found.admits.is_empty() && !lost).then(|| found.proposal(terms))
    }

    /// The first layouts for GPUs with MIG enabled but without slices: for pending pods, then for
    /// the classes that exist.
    pub fn first_slices(&self) -> Vec<GpuLayoutChange> {
        let empty = slices::undivided(&self.state);
        let others = self.state.nodes_by_name().into_iter();
        let others: Vec<SlicedGpu> =
            others.flat_map(|node| slices::on_node(&self.state, node, &|_, _| false)).collect();
        let idle = others.iter().map(SlicedGpu::idle).filter(|layout| !layout.is_empty());
        let idle: Vec<Layout> = idle.collect();
        let mut boards: Vec<_> = empty.iter().map(|(.., board)| *board).collect();
        boards.extend(others.iter().map(|sliced| sliced.gpu.layout.board()));
        boards.sort_by_key(|board| board.id());
        boards.dedup();
        let waiting = self.waiting().into_iter();
        let pending: Vec<Pending> = waiting
            .flat_map(|pod| slices::wants(&self.state, self.state.class_of(pod), &boards))
            .map(|want| Pending { want, count: 1 })
            .collect();
        let mix = slices::mix(&self.state, &boards);
        let empty_boards: Vec<_> = empty.iter().map(|(.., board)| *board).collect();
        let Ok(chosen) = partition(&empty_boards, &idle, &pending, &mix) else {
            return Vec::new();
        };
        let steps = empty.iter().zip(chosen.layouts).filter(|(_, to)| !to.is_empty());
        steps
            .filter_map(|((node, place, _), to)| {
                slices::layout_change(&self.state, *node, *place, to)
            })
            .collect()
    }

    /// Parked pods in queue order, without members of pending gangs.
    fn waiting(&self) -> Vec<PodIx> {
        let classes = self.queue.parked_classes().filter(|class| !self.queue.is_held(*class));
        let pods = classes.flat_map(|class| self.queue.parked_of(class));
        let alone = pods.filter(|pod| self.head_for(*pod).is_none());
        // Pods that wait for their victims to leave are not parked for good.
        let mut pods: Vec<PodIx> = alone.filter(|pod| !self.awaits_room(*pod)).collect();
        pods.sort_by_cached_key(|pod| self.state.queue_turn(*pod));
        pods
    }

    /// The pods that wait for slices, grouped by the nodes they could use.
    fn groups(&mut self) -> Vec<PendingGroup> {
        let mut groups: Vec<PendingGroup> = Vec::new();
        let mut known: Vec<(ClassIx, Option<usize>)> = Vec::new();
        for pod in self.waiting().into_iter().take(PODS_MAX) {
            let class = self.state.pods[pod].class;
            let of_class = known.iter().find(|(one, _)| *one == class).map(|(_, group)| *group);
            let group = of_class.unwrap_or_else(|| {
                let group = self.group_of(pod, &mut groups);
                known.push((class, group));
                group
            });
            if let Some(group) = group {
                groups[group].pods.push(pod);
            }
        }
        groups
    }

    /// The group of a pod by its nodes; `None` if no slices would help it.
    fn group_of(&mut self, pod: PodIx, groups: &mut Vec<PendingGroup>) -> Option<usize> {
        let nodes = self.with_inquiry(pod, |inquiry, _| {
            let some = inquiry.class.spec.gpu.is_some()
                || !slices::wants(inquiry.state, inquiry.class, &[]).is_empty();
            if some { slices::nodes_for(inquiry) } else { Vec::new() }
        })?;
        if nodes.is_empty() {
            return None;
        }
        let known = groups.iter().position(|group| group.nodes == nodes);
        known.or_else(|| {
            groups.push(PendingGroup { nodes, pods: Vec::new() });
            Some(groups.len() - 1)
        })
    }

    /// Repartitions GPUs of some nodes for pods and binds them, as far as possible; returns the
    /// rest.
    fn serve(
        &mut self,
        nodes: &[NodeIx],
        mut pods: Vec<PodIx>,
        terms: &Terms,
        now_ms: i64,
        found: &mut Draft,
    ) -> Vec<PodIx> {
        // Some may fit since others were planned for.
        pods.retain(|pod| self.place_near(*pod).is_none());
        let all = pods.clone();
        while !pods.is_empty() {
            let checkpoint = self.checkpoint();
            match self.try_dividing(nodes, &pods, terms, now_ms) {
                Some((bound, served)) if bound.admits.len() == pods.len() => {
                    self.commit(checkpoint);
                    found.extend(bound);
                    return all.into_iter().filter(|pod| !served.contains(pod)).collect();
                }
                // Changes for pods that did not fit must not be proposed.
                Some((_, served)) => {
                    self.rollback(checkpoint);
                    pods.retain(|pod| served.contains(pod));
                }
                None => {
                    self.rollback(checkpoint);
                    break;
                }
            }
        }
        all
    }

    /// Repartitions GPUs for pods and binds them; returns which were bound.
    fn try_dividing(
        &mut self,
        nodes: &[NodeIx],
        pods: &[PodIx],
        terms: &Terms,
        now_ms: i64,
    ) -> Option<(Draft, Vec<PodIx>)> {
        let planned = self.plan_for(nodes, pods, terms)?;
        let mut found = Draft { steps: planned.layout_changes(&self.state), ..Draft::default() };
        let moved_pods = moved_pods(&planned);
        if moved_pods.len() > terms.moves_max {
            return None;
        }
        found.with_work = gpus_in_use(&planned, &moved_pods)
            .map(|(node, place)| (self.state.nodes[node].object.name.clone(), place))
            .collect();
        let leaving_pods: Vec<_> = moved_pods.iter().map(|pod| self.state.object(*pod)).collect();
        for pod in &leaving_pods {
            self.apply(crate::event::Event::PodGone(pod.uid.clone()));
        }
        for event in slices::repartition_events(&self.state, &found.steps) {
            self.apply(event);
        }
        // Missing headroom comes first.
        self.place_headroom();
        let mut bound = Vec::new();
        for pod in pods {
            // Earlier ones may have used up what its team could have.
            let may_start = self.held_by(*pod).is_none();
            let place = Some(()).filter(|()| may_start).and_then(|()| self.place_near(*pod));
            let Some(place) = place else { continue };
            let node = self.state.nodes[place.node].object.name.clone();
            found.admits.push(Admitted { pod: self.state.pods[*pod].uid.clone(), node });
            self.bind(*pod, place);
            bound.push(*pod);
        }
        for pod in leaving_pods {
            found.moves.push(self.settle(pod, None, now_ms)?);
        }
        Some((found, bound))
    }

    fn plan_for(
        &self,
        nodes: &[NodeIx],
        pods: &[PodIx],
        terms: &Terms,
    ) -> Option<PlannedRepartition> {
        let gpus: Vec<SlicedGpu> = nodes
            .iter()
            .flat_map(|node| slices::on_node(&self.state, *node, &repair::may_move))
            .collect();
        let boards = slices::boards(gpus.iter().map(|sliced| &sliced.gpu.layout));
        let wants: Vec<SliceRequest> = pods
            .iter()
            .flat_map(|pod| slices::wants(&self.state, self.state.class_of(*pod), &boards))
            .collect();
        let mix: Mix = slices::mix(&self.state, &boards);
        slices::plan(gpus, &wants, &mix, terms.touch)
    }
}

fn moved_pods(planned: &PlannedRepartition) -> Vec<PodIx> {
    let mut pods = Vec::new();
    for one in &planned.plan.moves {
        let holders = planned.gpus[one.from_gpu].holders.iter();
        let of = holders.filter(|(instance, _)| *instance == one.from).flat_map(|(_, pods)| pods);
        pods.extend(of.copied());
    }
    pods.sort_unstable();
    pods.dedup();
    pods
}

/// The GPUs of a plan with running pods, by node and index.
fn gpus_in_use<'a>(
    planned: &'a PlannedRepartition,
    moved_pods: &'a [PodIx],
) -> impl Iterator<Item = (NodeIx, usize)> + 'a {
    let changed = planned.changes.iter().map(|(at, _)| &planned.gpus[*at]);
    let gpus_in_use = |sliced: &&SlicedGpu| {
        let mut pods = sliced.holders.iter().flat_map(|(_, pods)| pods);
        pods.any(|pod| !moved_pods.contains(pod))
    };
    changed.filter(gpus_in_use).map(|sliced| (sliced.node, sliced.place))
}

impl Draft {
    /// Merges later changes. A GPU that was repartitioned twice goes to the last layout directly.
    fn extend(&mut self, later: Self) {
        // Pods placed since the GPU was repartitioned are not disturbed.
        let known = |(node, place): &(Arc<str>, usize)| {
            self.steps.iter().any(|step| (&step.node, step.gpu) == (node, *place))
        };
        let gpus_in_use: Vec<_> = later.with_work.into_iter().filter(|gpu| !known(gpu)).collect();
        self.with_work.extend(gpus_in_use);
        for step in later.steps {
            let same = |one: &&mut GpuLayoutChange| (&one.node, one.gpu) == (&step.node, step.gpu);
            match self.steps.iter_mut().find(same) {
                Some(earlier) => earlier.to = step.to,
                None => self.steps.push(step),
            }
        }
        self.moves.extend(later.moves);
        self.admits.extend(later.admits);
    }

    fn proposal(mut self, terms: &Terms) -> RepartitionProposal {
        self.steps.retain(|step| step.from != step.to);
        self.steps.sort_by(|one, other| (&one.node, one.gpu).cmp(&(&other.node, other.gpu)));
        let mut disturbance = Disturbance::default();
        let mut node: Option<(&Arc<str>, i64)> = None;
        for step in &self.steps {
            let Ok(change) = Repartition::between(&step.from, &step.to) else { continue };
            let (destroyed, created) = (change.destroyed().count(), change.created().count());
            disturbance.gpus += 1;
            disturbance.slices_destroyed += destroyed;
            disturbance.slices_created += created;
            let here = node.filter(|(name, _)| **name == step.node);
            let before_ms = here.map_or(terms.listing_ms, |(_, ms)| ms);
            disturbance.nodes += usize::from(here.is_none());
            let slices = i64::try_from(destroyed + created).unwrap_or(i64::MAX);
            let until_ms = before_ms.saturating_add(terms.slice_ms.saturating_mul(slices));
            disturbance.duration_ms = disturbance.duration_ms.max(until_ms);
            node = Some((&step.node, until_ms));
        }
        let gpus_in_use = |step: &&GpuLayoutChange| {
            self.with_work.iter().any(|(node, place)| (node, *place) == (&step.node, step.gpu))
        };
        disturbance.gpus_with_work = self.steps.iter().filter(gpus_in_use).count();
        let Self { steps, moves, admits, .. } = self;
        RepartitionProposal { steps, moves, admits, disturbance }
    }
}
