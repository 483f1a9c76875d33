//! The difference between two plans, pod by pod.

use std::collections::BTreeMap;

use berth_inspect::PodRef;

use crate::report::{Change, Difference, Plan};

pub(crate) fn between(before: &Plan, after: &Plan) -> Difference {
    let (from, to) = (places(before), places(after));
    let mut difference = Difference {
        microusd_per_month: after.cost.microusd_per_month - before.cost.microusd_per_month,
        cluster_microusd_per_month: after.cost.cluster_microusd_per_month
            - before.cost.cluster_microusd_per_month,
        ..Difference::default()
    };
    let mut pods: Vec<&PodRef> = from.keys().chain(to.keys()).copied().collect();
    pods.sort();
    pods.dedup();
    for pod in pods {
        let place = |of: &BTreeMap<&PodRef, Option<&str>>| {
            of.get(pod).copied().flatten().map(str::to_owned)
        };
        let change = Change { pod: pod.clone(), from: place(&from), to: place(&to) };
        match (&change.from, &change.to) {
            (None, Some(_)) if from.contains_key(pod) => difference.placed.push(change),
            // It had its place before, and nobody asked.
            (None, Some(_)) => difference.moved.push(change),
            (Some(_), None) | (None, None) if !from.contains_key(pod) => {
                difference.unplaced.push(change);
            }
            (Some(_), None) => difference.unplaced.push(change),
            (Some(one), Some(other)) if one != other => difference.moved.push(change),
            _ => {}
        }
    }
    let evicted = |plan: &Plan| -> Vec<PodRef> {
        plan.evictions.iter().map(|eviction| eviction.pod.clone()).collect()
    };
    let (old, new) = (evicted(before), evicted(after));
    difference.evicted = new.iter().filter(|pod| !old.contains(pod)).cloned().collect();
    difference.spared = old.into_iter().filter(|pod| !new.contains(pod)).collect();
    difference
}

/// Every pod that looked for a place, and the one it got.
fn places(plan: &Plan) -> BTreeMap<&PodRef, Option<&str>> {
    let all = || plan.workloads.iter().chain([&plan.others]);
    let placed = all().flat_map(|one| &one.placed).map(|one| (&one.pod, Some(one.node.as_str())));
    let waiting = all().flat_map(|one| &one.unplaced).flat_map(|one| &one.pods);
    placed.chain(waiting.map(|pod| (pod, None))).collect()
}
