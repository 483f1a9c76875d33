//! The same events give the same decisions: again, and in any other order that is just as true.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::Range;

use berth_engine::Config;
use berth_engine::config::Profile;
use berth_testkit::world::{Size, depends_on_order};

const SMALL: Size = Size { nodes: 6, rounds: 12 };

fn assert_same(seeds: Range<u64>, config: Config) {
    let differ = seeds.filter_map(|seed| depends_on_order(seed, SMALL, config).unwrap());
    let differ: Vec<String> = differ.collect();
    assert!(differ.is_empty(), "{} differ:\n{}", differ.len(), differ.join("\n"));
}

#[test]
fn the_order_of_news_does_not_matter() {
    assert_same(0..500, Config::default());
}

#[test]
fn the_order_of_news_does_not_matter_in_other_worlds() {
    assert_same(500..1_000, Config::default());
}

#[test]
fn the_order_of_news_does_not_matter_to_the_rules_of_kube_scheduler() {
    assert_same(1_000..1_100, Profile::KubeScheduler.into());
    assert_same(1_100..1_150, Profile::KubeSchedulerPacking.into());
}
