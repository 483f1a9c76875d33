//! Repartitioning: which GPUs' MIG layouts to change so that pending work fits, and what that
//! disrupts.
//!
//! A plan touches a GPU with work on it only if [`Touch`] allows it, moves pods only if allowed,
//! and is minimal: fewest pods moved, then fewest GPUs touched, then fewest instances destroyed, as
//! far as leaving out one GPU at a time can tell.
//!
//! - Requests that an idle instance meets get that instance without a change.
//! - Largest first; if not all fit, in input order.
//! - Each is placed where it disrupts least: on a GPU that the plan touches anyway, else on another
//!   one. Idle instances in the way are destroyed, others are kept.
//! - Then GPUs are left out of the plan one by one while the others serve as many requests.
//! - The free rest of a touched GPU is divided for the mix: see [`crate::layout`].

mod search;

#[cfg(test)]
mod tests;

use berth_model::mig::{Instance, Layout, Profile, Repartition};

use crate::layout::complete;
use crate::slice::{Mix, SliceRequest};
use search::{Books, MovedPods, Promise};

/// An instance in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstanceInUse {
    pub profile: &'static Profile,
    pub start: u8,
    pub pods: u32,
    /// Whether the pods may be moved to another instance of the same profile.
    pub movable: bool,
}

/// A GPU before the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuState {
    /// All instances.
    pub layout: Layout,
    /// Instances in use; the others are idle.
    pub held: Vec<InstanceInUse>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Touch {
    /// GPUs without work only.
    #[default]
    IdleGpus,
    /// Also idle instances and the free rest of GPUs with work.
    AroundWork,
    /// Also movable pods, each to an instance of the same profile elsewhere.
    MovablePods,
}

/// The change of one GPU: first all destructions, then all creations.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Position in the input.
    pub gpu: usize,
    pub from: Layout,
    pub to: Layout,
    pub change: Repartition,
}

/// A request and the instance that meets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServedRequest {
    /// Position in the input.
    pub request: usize,
    pub gpu: usize,
    /// An idle instance, or one that the plan creates.
    pub instance: Instance,
}

/// Pods that must move before a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    pub from_gpu: usize,
    pub from: Instance,
    pub to_gpu: usize,
    /// An idle instance, or one that the plan creates.
    pub to: Instance,
    pub pods: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Disruption {
    pub pods_moved: u32,
    /// GPUs on which instances are created or destroyed.
    pub gpus_touched: u32,
    /// Touched GPUs on which work keeps running.
    pub gpus_with_work: u32,
    /// All of them idle by then.
    pub instances_destroyed: u32,
    pub instances_created: u32,
}

#[derive(Debug, Clone, Default)]
pub struct RepartitionPlan {
    /// Ascending by GPU.
    pub steps: Vec<Step>,
    /// Ascending by request.
    pub serves: Vec<ServedRequest>,
    pub moves: Vec<Move>,
    /// Requests that are not met, ascending.
    pub unserved: Vec<usize>,
    pub disruption: Disruption,
}

/// An inconsistent [`GpuState`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// An instance in use that is not in the layout.
    #[error("GPU {gpu}: work holds {profile}@{start}, which its layout lacks; list it there")]
    HeldIsMissing { gpu: usize, profile: berth_model::mig::ProfileName, start: u8 },
    /// An instance that is listed as in use twice.
    #[error("GPU {gpu}: {profile}@{start} is held twice; add up its pods in one entry")]
    HeldTwice { gpu: usize, profile: berth_model::mig::ProfileName, start: u8 },
}

/// Proposes layout changes after which the requests fit; earlier requests matter more. Fails if a
/// GPU's instances in use are not in its layout or listed twice.
pub fn propose(
    gpus: &[GpuState],
    requests: &[SliceRequest],
    mix: &Mix,
    touch: Touch,
) -> Result<RepartitionPlan, GpuError> {
    check(gpus)?;
    let allowed = |gpu: &GpuState| touch > Touch::IdleGpus || gpu.held.is_empty();
    let allowed: Vec<bool> = gpus.iter().map(allowed).collect();
    let largest_first = {
        let mut order: Vec<usize> = (0..requests.len()).collect();
        order.sort_by_key(|at| std::cmp::Reverse(search::size(&requests[*at])));
        order
    };
    let books = search::serve(gpus, requests, &largest_first, &allowed, touch);
    let as_given: Vec<usize> = (0..requests.len()).collect();
    let (order, mut books) = if books.served() == requests.len() {
        (largest_first, books)
    } else {
        let given = search::serve(gpus, requests, &as_given, &allowed, touch);
        (as_given, given)
    };
    let mut allowed: Vec<bool> = books.touched().collect();
    for at in (0..gpus.len()).rev().filter(|at| books.touched_at(*at)).collect::<Vec<_>>() {
        allowed[at] = false;
        let without = search::serve(gpus, requests, &order, &allowed, touch);
        if without.serves_as_much(&books) {
            books = without;
        } else {
            allowed[at] = true;
        }
    }
    Ok(plan(gpus, requests.len(), &books, mix))
}

fn check(gpus: &[GpuState]) -> Result<(), GpuError> {
    for (at, gpu) in gpus.iter().enumerate() {
        for (position, held) in gpu.held.iter().enumerate() {
            let InstanceInUse { profile, start, .. } = *held;
            let profile_name = profile.name();
            if !gpu.layout.contains(profile, start) {
                return Err(GpuError::HeldIsMissing { gpu: at, profile: profile_name, start });
            }
            if gpu.held[..position].iter().any(|h| (h.profile, h.start) == (profile, start)) {
                return Err(GpuError::HeldTwice { gpu: at, profile: profile_name, start });
            }
        }
    }
    Ok(())
}

fn plan(gpus: &[GpuState], requests: usize, books: &Books, mix: &Mix) -> RepartitionPlan {
    let mut plan = RepartitionPlan::default();
    let mut place: Vec<Option<(usize, Instance)>> = vec![None; requests + books.moved.len()];
    for (at, gpu) in gpus.iter().enumerate() {
        let planned = books.planned(at);
        for (promise, instance) in &planned.promised {
            let slot = match promise {
                Promise::Request(request) => *request,
                Promise::Moved(moved) => requests + moved,
            };
            if let Some(there) = place.get_mut(slot) {
                *there = Some((at, *instance));
            }
        }
        if !books.touched_at(at) {
            continue;
        }
        let to = complete(&planned.layout, &books.idle_elsewhere(gpus, at), mix);
        let Ok(change) = Repartition::between(&gpu.layout, &to) else { continue };
        plan.disruption.gpus_touched += 1;
        plan.disruption.gpus_with_work += u32::from(books.works_at(at));
        plan.disruption.instances_destroyed += change.destroyed().count() as u32;
        plan.disruption.instances_created += change.created().count() as u32;
        plan.steps.push(Step { gpu: at, from: gpu.layout, to, change });
    }
    for (request, there) in place.iter().take(requests).enumerate() {
        match there {
            Some((gpu, instance)) => {
                plan.serves.push(ServedRequest { request, gpu: *gpu, instance: *instance });
            }
            None => plan.unserved.push(request),
        }
    }
    for (moved, there) in books.moved.iter().zip(place.iter().skip(requests)) {
        let MovedPods { gpu: from_gpu, instance: from, pods } = *moved;
        if let Some((to_gpu, to)) = *there {
            plan.moves.push(Move { from_gpu, from, to_gpu, to, pods });
            plan.disruption.pods_moved = plan.disruption.pods_moved.saturating_add(pods);
        }
    }
    plan
}
