//! Which few pods to move so that a pod of several GPUs fits that found no place.
//!
//! Owns the search for a plan. Carrying it out is the run's.

use berth_packing::node::FreeNode;
use berth_packing::request::{GpuAsk, Request};

use super::scheduler::{Ledger, PodIx};

/// A plan moves no more pods than this.
const PODS_MAX: usize = 4;

/// So many plans, the shortest first, are tried for places where the moved pods could go.
const TRIES: usize = 32;

/// Pods to move away, fewest first choice, each with a place elsewhere at this moment.
pub(crate) fn plan(ledger: &Ledger, request: &Request, allowed: usize) -> Option<Vec<PodIx>> {
    let GpuAsk::Whole(count @ 2..) = request.gpus else {
        return None;
    };
    let pods_max = allowed.min(PODS_MAX);
    let mut plans: Vec<(usize, usize, Vec<PodIx>)> = (0..ledger.nodes.len())
        .filter_map(|at| {
            let pods = clear(ledger, at, request, usize::from(count), pods_max)?;
            Some((pods.len(), at, pods))
        })
        .collect();
    plans.sort();
    let mut tried = plans.into_iter().take(TRIES);
    tried.find(|(_, at, pods)| fit_elsewhere(ledger, *at, pods)).map(|(_, _, pods)| pods)
}

/// Pods to move off a node so that the request fits there.
fn clear(
    ledger: &Ledger,
    at: usize,
    request: &Request,
    count: usize,
    pods_max: usize,
) -> Option<Vec<PodIx>> {
    let node = ledger.nodes.get(at)?;
    if node.gpus.len() < count || !request.models.contains(node.model) {
        return None;
    }
    let here = ledger.pods.get(at)?;
    let mut left = node.clone();
    let mut moved = Vec::new();
    let missing = count.saturating_sub(left.wholes());
    // GPUs that the fewest pods are on come first. Pods of several GPUs stay.
    let mut gpus: Vec<(usize, u16)> = (0_u16..)
        .zip(&node.gpus)
        .filter(|(_, free)| **free != berth_packing::request::Part::WHOLE)
        .filter_map(|(gpu, _)| {
            let on = || here.iter().filter(|pod| holds(ledger, **pod, gpu));
            on().all(|pod| is_small(ledger, *pod)).then(|| (on().count(), gpu))
        })
        .collect();
    gpus.sort_unstable();
    for (_, gpu) in gpus.get(..missing)? {
        for pod in here.iter().filter(|pod| holds(ledger, **pod, *gpu)) {
            leave(ledger, &mut left, &mut moved, *pod);
        }
    }
    // Then those with the most CPU, while CPU or memory is short.
    let mut others: Vec<PodIx> = here.iter().copied().filter(|pod| !moved.contains(pod)).collect();
    others.sort_by_key(|pod| ledger.held.get(pod).map_or(0, |(held, _)| held.cpu_milli));
    while !left.can_take(request) && moved.len() < pods_max {
        let pod = others.pop()?;
        if is_small(ledger, pod) {
            leave(ledger, &mut left, &mut moved, pod);
        }
    }
    (left.can_take(request) && moved.len() <= pods_max).then_some(moved)
}

fn leave(ledger: &Ledger, left: &mut FreeNode, moved: &mut Vec<PodIx>, pod: PodIx) {
    if let Some((request, placement)) = ledger.held.get(&pod) {
        left.give_back(request, &placement.gpus);
        moved.push(pod);
    }
}

fn holds(ledger: &Ledger, pod: PodIx, gpu: u16) -> bool {
    ledger.held.get(&pod).is_some_and(|(_, placement)| placement.gpus.contains(&gpu))
}

fn is_small(ledger: &Ledger, pod: PodIx) -> bool {
    ledger.held.get(&pod).is_some_and(|(request, _)| request.gpus.count() <= 1)
}

/// Whether all find a place on other nodes, one after the other.
fn fit_elsewhere(ledger: &Ledger, from: usize, pods: &[PodIx]) -> bool {
    let mut touched: Vec<(usize, FreeNode)> = Vec::new();
    pods.iter().all(|pod| {
        let Some((request, _)) = ledger.held.get(pod) else {
            return false;
        };
        let now = |at: usize, node: &FreeNode| {
            touched
                .iter()
                .rfind(|(other, _)| *other == at)
                .map_or(node.clone(), |(_, node)| node.clone())
        };
        let place = ledger.nodes.iter().enumerate().find_map(|(at, node)| {
            (at != from && node.can_take(request))
                .then(|| (at, now(at, node)))
                .filter(|(_, node)| node.can_take(request))
        });
        let Some((at, mut node)) = place else {
            return false;
        };
        let gpus = match request.gpus {
            GpuAsk::Share(part) => (0_u16..)
                .zip(&node.gpus)
                .find(|(_, free)| free.holds(part))
                .map(|(at, _)| at)
                .into_iter()
                .collect(),
            ask => node.first_wholes(ask.count()),
        };
        node.take(request, &gpus);
        touched.push((at, node));
        true
    })
}
