//! Which few pods to move so that a pod of several GPUs fits that found no place.
//!
//! Owns the search for a plan. Carrying it out is the run's.

use std::collections::BTreeMap;

use berth_packing::node::{FreeNode, GpuPositions};
use berth_packing::request::{GpuRequest, Part, Request};

use super::scheduler::{Ledger, PodIx};

/// A plan moves no more pods than this.
const PODS_MAX: usize = 4;

/// So many plans, the shortest first, are tried for places where the moved pods could go.
const TRIES: usize = 32;

/// Pods to move away, fewest first choice, each with a place elsewhere at this moment.
pub(crate) fn plan(ledger: &Ledger, request: &Request, allowed: usize) -> Option<Vec<PodIx>> {
    let GpuRequest::Whole(count @ 2..) = request.gpus else {
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
    let missing = count.saturating_sub(left.unused_gpus());
    // GPUs that the fewest pods are on come first. Pods of several GPUs stay.
    let mut gpus: Vec<(usize, u16)> = (0_u16..)
        .zip(&node.gpus)
        .filter(|(_, free)| **free != Part::WHOLE)
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
        left.release(request, &placement.gpus);
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
    let mut changed: BTreeMap<usize, FreeNode> = BTreeMap::new();
    pods.iter().all(|pod| {
        let Some((request, _)) = ledger.held.get(pod) else {
            return false;
        };
        let mut nodes = ledger.nodes.iter().enumerate().filter(|(at, _)| *at != from);
        let place = nodes.find_map(|(at, node)| {
            let node = changed.get(&at).unwrap_or(node);
            node.can_take(request).then(|| (at, node.clone()))
        });
        place.is_some_and(|(at, mut node)| {
            let gpus = match request.gpus {
                GpuRequest::Share(part) => node.gpus.iter().position(|free| free.holds(part)),
                GpuRequest::None | GpuRequest::Whole(_) => None,
            };
            let gpus = match gpus.and_then(|at| u16::try_from(at).ok()) {
                Some(at) => GpuPositions::from_slice(&[at]),
                None => node.first_unused(request.gpus.count()),
            };
            node.take(request, &gpus);
            changed.insert(at, node);
            true
        })
    })
}

#[cfg(test)]
mod tests {
    use berth_packing::fleet::Capacity;

    use super::*;
    use crate::bench::packing::scheduler::Placement;
    use crate::bench::packing::trace::Cluster;

    fn whole(count: u16) -> Request {
        Request { cpu_milli: 1_000, gpus: GpuRequest::Whole(count), ..Request::default() }
    }

    /// Machines of four GPUs with so many pods of one GPU on each.
    fn ledger(pods: &[u16], cpu_milli: u64) -> Ledger {
        let machine = Capacity { cpu_milli, gpus: 4, ..Capacity::default() };
        let mut ledger = Ledger::new(&Cluster::for_test(vec![machine; pods.len()]));
        let mut names = (0..).map(PodIx);
        for (node, pods) in pods.iter().enumerate() {
            for gpu in 0..*pods {
                let placement = Placement { node, gpus: GpuPositions::from_slice(&[gpu]) };
                ledger.record(names.next().unwrap(), &whole(1), Some(&placement)).unwrap();
            }
        }
        ledger
    }

    #[test]
    fn the_fewest_pods_that_have_another_place_are_moved() {
        assert_eq!(plan(&ledger(&[3, 1, 2], 9_000), &whole(4), 9), Some(vec![PodIx(3)]));
        assert_eq!(plan(&ledger(&[3, 2, 2], 9_000), &whole(3), 9), Some(vec![PodIx(3)]));
    }

    #[test]
    fn nobody_is_moved_without_another_place_or_allowance() {
        assert_eq!(plan(&ledger(&[4, 1, 4], 9_000), &whole(4), 9), None);
        assert_eq!(plan(&ledger(&[3, 2, 2], 9_000), &whole(4), 1), None);
        assert_eq!(plan(&ledger(&[3, 2, 2], 9_000), &whole(1), 9), None);
    }

    #[test]
    fn cpu_is_freed_too() {
        // Two GPUs are free, but only two CPUs.
        let hungry = |cpu_milli| Request { cpu_milli, ..whole(2) };
        let moved = plan(&ledger(&[2, 3], 4_000), &hungry(3_000), 9);
        assert_eq!(moved, Some(vec![PodIx(1)]));
        assert_eq!(plan(&ledger(&[2, 4], 4_000), &hungry(3_000), 9), None, "no other place");
        assert_eq!(plan(&ledger(&[2, 3], 4_000), &hungry(5_000), 9), None, "too large");
    }
}
