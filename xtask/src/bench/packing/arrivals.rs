//! Who arrives when.
//!
//! As in the FGD paper: pods sorted by name, shuffled by the seed, then clones of pods drawn at
//! random until demand is 1.3 times the GPUs, or pods removed at random until it is. The numbers
//! are drawn by another generator than there, so single seeds do not compare; means do.

use berth_packing::request::Request;
use berth_testkit::cluster::Dice;

use super::trace::{Cluster, PodList};

/// Demand at the end, in thousandths of the GPUs there are.
pub(crate) const DEMAND_MILLI: u64 = 1_300;

/// All pods of a run, in order.
pub(crate) fn arrivals(list: &PodList, cluster: &Cluster, seed: u64) -> Vec<Request> {
    let mut dice = Dice::new(seed);
    let mut pods = list.pods.clone();
    dice.shuffle(&mut pods);
    let demand = cluster.gpu_milli() * DEMAND_MILLI / 1_000;
    let mut asked: u64 = pods.iter().map(|pod| pod.gpus.total_milli()).sum();
    while asked > demand {
        let gone = pods.remove(dice.below(pods.len()));
        asked -= gone.gpus.total_milli();
    }
    while let Some(clone) = list.pods.get(dice.below(list.pods.len())) {
        asked += clone.gpus.total_milli();
        if asked > demand {
            break;
        }
        pods.push(*clone);
    }
    pods
}

#[cfg(test)]
mod tests {
    use berth_packing::fleet::Capacity;
    use berth_packing::request::GpuRequest;

    use super::*;

    #[test]
    fn demand_ends_just_below_the_aim_from_both_sides() {
        let machine = Capacity { gpus: 8, ..Capacity::default() };
        let cluster = Cluster::for_test(vec![machine; 10]);
        let whole = Request { gpus: GpuRequest::Whole(1), ..Request::default() };
        for pods in [5, 104, 500] {
            let list = PodList { name: "test".into(), pods: vec![whole; pods] };
            assert_eq!(arrivals(&list, &cluster, 42).len(), 104, "from {pods}");
        }
    }

    #[test]
    fn a_seed_gives_one_order() {
        let cluster = Cluster::for_test(vec![Capacity { gpus: 8, ..Capacity::default() }; 10]);
        let pod =
            |cpu_milli| Request { cpu_milli, gpus: GpuRequest::Whole(1), ..Request::default() };
        let list = PodList { name: "test".into(), pods: (0..50).map(pod).collect() };
        assert_eq!(arrivals(&list, &cluster, 1), arrivals(&list, &cluster, 1));
        assert_ne!(arrivals(&list, &cluster, 1), arrivals(&list, &cluster, 2));
    }
}
