//! The live scheduler in worlds full of faults: calls that are lost or land late, replicas that die, pause
//! and come back, clocks that run as they like, kubelets that refuse what nobody could foresee.
//! `cargo xtask sweep live` runs many more. `BERTH_SEEDS` says how many here.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use berth_faults::{Tally, run};

#[test]
#[expect(clippy::print_stderr, reason = "figures for whoever asks for them with --nocapture")]
fn nothing_is_given_twice_and_nobody_is_forgotten() {
    let seeds = std::env::var("BERTH_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(150);
    let first = std::env::var("BERTH_FIRST").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut sum = Tally::default();
    let mut findings = Vec::new();
    for seed in first..first + seeds {
        let outcome = run(seed, |_| {}).unwrap();
        findings.extend(outcome.finding.map(|finding| finding.to_string()));
        sum.add(&outcome.tally);
    }
    eprintln!("{sum:?}");
    assert!(findings.is_empty(), "{} findings:\n{}", findings.len(), findings.join("\n"));
    if seeds >= 100 {
        assert!(sum.terms > 2 * seeds && sum.late > 0 && sum.rejections > 0, "{sum:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 0..10 {
        let digests = [0, 1].map(|_| run(seed, |_| {}).unwrap().digest);
        assert_eq!(digests[0], digests[1], "seed {seed}");
    }
}

/// The checker sees what it is there for: without fences, somebody deposed binds after another has begun.
#[test]
fn without_fences_the_laws_break() {
    let broken = (0..400).filter_map(|seed| {
        let outcome = run(seed, |plan| plan.fences = false).unwrap();
        outcome.finding
    });
    assert!(broken.take(1).count() == 1, "nothing was found");
}
