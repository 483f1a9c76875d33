//! The same events give the same decisions, in any valid order.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::Range;
use std::sync::Arc;

use berth_engine::config::Profile;
use berth_engine::decision::Decision;
use berth_engine::event::Event;
use berth_engine::{Config, Engine};
use berth_kubelet::TopologyPolicy;
use berth_model::spec::PodObject;
use berth_testkit::cluster::{NodeKind, gpu_template, pending};
use berth_testkit::world::{Size, depends_on_order};

const SMALL: Size = Size { nodes: 6, rounds: 12 };

fn assert_same(seeds: Range<u64>, config: Config) {
    let differ = seeds.filter_map(|seed| depends_on_order(seed, SMALL, config).unwrap());
    let differ: Vec<String> = differ.collect();
    assert!(differ.is_empty(), "{} differ:\n{}", differ.len(), differ.join("\n"));
}

#[test]
fn event_order_does_not_matter() {
    assert_same(0..500, Config::default());
}

#[test]
fn event_order_does_not_matter_in_other_worlds() {
    assert_same(500..1_000, Config::default());
}

#[test]
fn event_order_does_not_matter_to_kube_schedulers_profile() {
    assert_same(1_000..1_100, Profile::KubeScheduler.into());
    assert_same(1_100..1_150, Profile::KubeSchedulerPacking.into());
}

#[test]
fn displaced_pods_are_listed_in_a_stable_order() {
    let kind = NodeKind::whole("h100", "NVIDIA-H100-80GB-HBM3", TopologyPolicy::None);
    let node = Some(Arc::from("h100-000000"));
    let pod = |number: u64, priority: i32| {
        pending(&Arc::new(gpu_template("app", priority, 8).unwrap()), number)
    };
    let decisions = [[2, 3], [3, 2]].map(|order| {
        let mut engine = Engine::new(Config::default());
        kind.nodes(0, 1).unwrap().into_iter().for_each(|event| engine.apply(event));
        engine.apply(Event::Pod(PodObject { node: node.clone(), ..pod(1, 0) }));
        for number in order {
            engine.apply(Event::Pod(PodObject { nominated: node.clone(), ..pod(number, 5) }));
        }
        engine.apply(Event::Pod(pod(4, 10)));
        engine.decide(0)
    });
    assert!(matches!(decisions[0], Some(Decision::Preempt(_))), "{decisions:?}");
    assert_eq!(decisions[0], decisions[1]);
}
