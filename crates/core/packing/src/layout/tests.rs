//! Layouts for pending work and for the mix, on cases that can be checked by hand.

use berth_model::mig::{Board, Layout, Profile};
use proptest::prelude::*;

use super::{Partition, Pending, accepted, complete, partition};
use crate::slice::{Mix, SliceRequest};

fn a100() -> &'static Board {
    Board::by_id("a100-80gb").unwrap()
}

fn profile(name: &str) -> &'static Profile {
    a100().profile(name).unwrap()
}

fn want(name: &str) -> SliceRequest {
    SliceRequest::profile(a100(), profile(name)).unwrap()
}

fn pending(of: &[(&str, u32)]) -> Vec<Pending> {
    of.iter().map(|(name, count)| Pending { want: want(name), count: *count }).collect()
}

fn mix(of: &[(&str, u32)]) -> Mix {
    Mix::from_weights(of.iter().map(|(name, weight)| (want(name), *weight)))
}

fn instances(partition: &Partition, name: &str) -> usize {
    partition.layouts.iter().map(|l| usize::from(l.count(profile(name)))).sum()
}

#[test]
fn erlang_s_formula_agrees_with_its_printed_tables() {
    // Blocking of 2 % : 10 servers take 5.08 Erlang, 20 take 13.2, 50 take 40.3.
    for (servers, offered) in [(10, 5.084), (20, 13.182), (50, 40.255)] {
        let taken = accepted(offered, 1.0, servers)[servers];
        let refused = 1.0 - taken / offered;
        assert!((refused - 0.02).abs() < 1e-4, "{servers} servers: {refused}");
    }
}

#[test]
fn pending_work_gets_its_instances_before_the_mix() {
    let pending = pending(&[("3g.40gb", 1), ("2g.20gb", 2)]);
    let found = partition(&[a100()], &[], &pending, &mix(&[("1g.10gb", 100)])).unwrap();
    assert_eq!(found.served, [1, 2]);
    assert_eq!(found.layouts[0].to_string(), "2g.20gb@0 + 2g.20gb@2 + 3g.40gb@4");
}

#[test]
fn the_rest_of_pending_work_is_divided_for_the_mix() {
    let pending = pending(&[("4g.40gb", 1)]);
    let found = partition(&[a100()], &[], &pending, &mix(&[("1g.10gb", 3)])).unwrap();
    assert_eq!(found.served, [1]);
    assert_eq!(instances(&found, "4g.40gb"), 1);
    assert_eq!(instances(&found, "1g.10gb"), 3);
}

#[test]
fn if_not_all_pending_work_fits_the_most_is_served() {
    let pending = pending(&[("7g.80gb", 2), ("3g.40gb", 5)]);
    let found = partition(&[a100(); 3], &[], &pending, &Mix::new()).unwrap();
    // Two whole GPUs and two 3g fill more than one whole GPU and four 3g.
    assert_eq!(found.served, [2, 2]);
}

#[test]
fn a_mix_divides_gpus_in_proportion_with_spares_for_rare_kinds() {
    let found =
        partition(&[a100(); 50], &[], &[], &mix(&[("3g.40gb", 1), ("1g.10gb", 7)])).unwrap();
    let (large, small) = (instances(&found, "3g.40gb"), instances(&found, "1g.10gb"));
    let ratio = small as f64 / large as f64;
    assert!((5.0..=7.5).contains(&ratio), "{small} small, {large} large");
    assert!(found.refused_per_mille < 150, "{}", found.refused_per_mille);
    assert!(found.layouts.iter().all(|l| l.is_full() || l.occupied().count_ones() >= 7));
}

#[test]
fn idle_instances_elsewhere_count() {
    let idle = [Layout::parse(a100(), "3g.40gb@0 + 3g.40gb@4").unwrap(); 10];
    let both = mix(&[("3g.40gb", 1), ("1g.10gb", 7)]);
    let found = partition(&[a100(); 5], &idle, &[], &both).unwrap();
    assert_eq!(instances(&found, "3g.40gb"), 0);
}

#[test]
fn without_requests_nothing_is_divided() {
    let found = partition(&[a100(); 2], &[], &[], &Mix::new()).unwrap();
    assert!(found.layouts.iter().all(Layout::is_empty));
    let base = Layout::parse(a100(), "2g.20gb@2").unwrap();
    assert_eq!(complete(&base, &[], &Mix::new()), base);
    let unknown = Board::by_id("rtx-pro-5000-bw-48gb").unwrap();
    assert!(partition(&[unknown], &[], &[], &Mix::new()).is_err());
}

#[test]
fn completing_keeps_existing_instances() {
    let base = Layout::parse(a100(), "2g.20gb@2 + 1g.10gb@6").unwrap();
    let done = complete(&base, &[], &mix(&[("2g.20gb", 3), ("1g.10gb", 1)]));
    assert!(base.instances().all(|i| done.contains(i.profile, i.start)));
    assert_eq!(done.to_string(), "2g.20gb@0 + 2g.20gb@2 + 2g.20gb@4 + 1g.10gb@6");
}

#[test]
fn layouts_by_erlang_s_formula_refuse_less_than_the_usual_even_ones() {
    // What a cluster has today: every GPU divided alike, whatever arrives.
    let kinds = mix(&[("1g.10gb", 6), ("2g.20gb", 2), ("3g.40gb", 1)]);
    let gpus = [a100(); 20];
    let ours = partition(&gpus, &[], &[], &kinds).unwrap();
    for even in ["1g.10gb@0 + 1g.10gb@1 + 2g.20gb@2 + 3g.40gb@4", "3g.40gb@0 + 3g.40gb@4"] {
        let idle = [Layout::parse(a100(), even).unwrap(); 20];
        let theirs = partition(&[], &idle, &[], &kinds).unwrap();
        assert!(ours.refused_per_mille < theirs.refused_per_mille, "{even}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_partition_is_legal_and_serves_its_requests(
        gpus in 0_usize..6,
        counts in proptest::collection::vec(0_u32..5, 6),
        weights in proptest::collection::vec(0_u32..5, 6),
        which in 0_usize..13,
    ) {
        let board = Board::all().iter().filter(|b| Layout::empty(b).is_ok()).nth(which).unwrap();
        let of = |at: usize| SliceRequest::profile(board, &board.profiles()[at % board.profiles().len()]);
        let pending: Vec<Pending> = counts.iter().enumerate()
            .map(|(at, count)| Pending { want: of(at).unwrap(), count: *count }).collect();
        let weights = weights.iter().enumerate().map(|(at, w)| (of(at).unwrap(), *w));
        let found = partition(&vec![board; gpus], &[], &pending, &Mix::from_weights(weights)).unwrap();
        prop_assert_eq!(found.layouts.len(), gpus);
        let mut supply = std::collections::BTreeMap::new();
        for layout in &found.layouts {
            let again = layout.instances().map(|i| (i.profile, i.start));
            prop_assert_eq!(&Layout::from_instances(board, again).unwrap(), layout);
            for i in layout.instances() {
                *supply.entry(i.profile.name().to_string()).or_insert(0_u32) += 1;
            }
        }
        for (p, served) in pending.iter().zip(&found.served) {
            prop_assert!(*served <= p.count);
            let there = supply.entry(p.want.on(board).unwrap().name().to_string()).or_insert(0);
            prop_assert!(*there >= *served, "{} served of {}", served, there);
            *there -= served;
        }
        prop_assert!(found.refused_per_mille <= 1_000);
    }
}
