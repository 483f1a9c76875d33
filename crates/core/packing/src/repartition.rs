//! Repartitioning: which GPUs to divide anew so that pending work fits, and what that disturbs.
//!
//! Owns the proposal. It must not carry anything out, nor know why work is pending. A plan touches a
//! GPU with work on it only if [`Touch`] says so, moves nothing unless asked, and is minimal: fewest
//! pods moved, then fewest GPUs touched, then fewest instances destroyed, as far as one GPU can be
//! left out of it at a time.
//!
//! - Requests that an idle instance already meets need no change and get that instance.
//! - Largest first; where not all fit, in the order given.
//! - Each is placed where it disturbs least: on a GPU that the plan touches anyway, or else on one
//!   more. Idle instances that are in the way are destroyed, others are kept where they are.
//! - Then GPUs are left out of the plan one by one as long as the others serve as many.
//! - What stays free on a touched GPU is divided for the mix: see [`crate::layout`].

mod search;

#[cfg(test)]
mod tests;

use berth_model::mig::{Instance, Layout, Profile, Repartition};

use crate::layout::complete;
use crate::slice::{Mix, Want};
use search::{Books, Moved, Promise};

/// An instance that work runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Its profile.
    pub profile: &'static Profile,
    /// Where it starts.
    pub start: u8,
    /// How many pods use it.
    pub pods: u32,
    /// Whether they may be moved to another instance of the same profile.
    pub movable: bool,
}

/// A GPU as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuState {
    /// All instances there are.
    pub layout: Layout,
    /// Those that are in use; the others are idle.
    pub held: Vec<Held>,
}

/// What a plan may touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Touch {
    /// GPUs without work only.
    #[default]
    IdleGpus,
    /// Also the idle instances and the free rest of GPUs with work, around the work.
    AroundWork,
    /// Also movable pods, each to an instance of the same profile elsewhere.
    MovablePods,
}

/// One GPU to be divided anew: first all destructions, then all creations.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Which GPU, as a position in what was given.
    pub gpu: usize,
    /// Its instances now.
    pub from: Layout,
    /// Its instances afterwards.
    pub to: Layout,
    /// The difference.
    pub change: Repartition,
}

/// A request and the instance that meets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Serve {
    /// Which request, as a position in what was given.
    pub request: usize,
    /// On which GPU.
    pub gpu: usize,
    /// The instance: an idle one that is there, or one that the plan creates.
    pub instance: Instance,
}

/// Pods that must move before a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// From which GPU.
    pub from_gpu: usize,
    /// From which instance.
    pub from: Instance,
    /// To which GPU.
    pub to_gpu: usize,
    /// To which instance: an idle one that is there, or one that the plan creates.
    pub to: Instance,
    /// How many pods.
    pub pods: u32,
}

/// What a plan disturbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Disruption {
    /// Pods that must move.
    pub pods_moved: u32,
    /// GPUs on which instances are created or destroyed.
    pub gpus_touched: u32,
    /// Of those, GPUs on which work keeps running.
    pub gpus_with_work: u32,
    /// Instances destroyed; all of them idle by then.
    pub instances_destroyed: u32,
    /// Instances created.
    pub instances_created: u32,
}

/// A proposal.
#[derive(Debug, Clone, Default)]
pub struct RepartitionPlan {
    /// The GPUs to divide anew, ascending.
    pub steps: Vec<Step>,
    /// The requests that are met, ascending.
    pub serves: Vec<Serve>,
    /// The pods that must move.
    pub moves: Vec<Move>,
    /// The requests that are not met, ascending.
    pub unserved: Vec<usize>,
    /// What it disturbs.
    pub disruption: Disruption,
}

/// A GPU that is not as it can be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// Work on an instance that is not there.
    #[error("GPU {gpu}: work holds {profile}@{start}, which its layout lacks; list it there")]
    HeldIsMissing {
        /// Position of the GPU.
        gpu: usize,
        /// The profile.
        profile: berth_model::mig::ProfileName,
        /// The start.
        start: u8,
    },
    /// An instance that is listed as held twice.
    #[error("GPU {gpu}: {profile}@{start} is held twice; add up its pods in one entry")]
    HeldTwice {
        /// Position of the GPU.
        gpu: usize,
        /// The profile.
        profile: berth_model::mig::ProfileName,
        /// The start.
        start: u8,
    },
}

/// Proposes what to divide anew so that the requests fit; the first requests matter most.
///
/// # Errors
/// When work is said to hold an instance that is not there, or one is said to be held twice.
pub fn propose(
    gpus: &[GpuState],
    requests: &[Want],
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
            let Held { profile, start, .. } = *held;
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

/// Turns the books into a plan: what was promised gets its final place, and what is free is divided
/// for the mix.
fn plan(gpus: &[GpuState], requests: usize, books: &Books, mix: &Mix) -> RepartitionPlan {
    let mut plan = RepartitionPlan::default();
    let mut place: Vec<Option<(usize, Instance)>> = vec![None; requests + books.moved.len()];
    for (at, gpu) in gpus.iter().enumerate() {
        let arranged = books.arranged(at);
        for (promise, instance) in &arranged.promised {
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
        let to = complete(&arranged.layout, &books.idle_elsewhere(gpus, at), mix);
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
                plan.serves.push(Serve { request, gpu: *gpu, instance: *instance });
            }
            None => plan.unserved.push(request),
        }
    }
    for (moved, there) in books.moved.iter().zip(place.iter().skip(requests)) {
        let Moved { gpu: from_gpu, instance: from, pods } = *moved;
        if let Some((to_gpu, to)) = *there {
            plan.moves.push(Move { from_gpu, from, to_gpu, to, pods });
            plan.disruption.pods_moved = plan.disruption.pods_moved.saturating_add(pods);
        }
    }
    plan
}
