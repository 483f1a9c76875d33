//! Comparison with verdicts recorded from the real kubelet: a few hundred cases over all policies,
//! options, machine shapes and versions. `cargo xtask conformance kubelet` runs more.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use berth_testkit::kubelet::{Case, replay};
use flate2::read::MultiGzDecoder;

fn assert_as_recorded(file: &str, expected_cases: usize) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(file);
    let lines = BufReader::new(MultiGzDecoder::new(File::open(path).unwrap())).lines();
    let mut cases = 0;
    let mut differences = Vec::new();
    for line in lines {
        let case = Case::parse(&line.unwrap()).unwrap();
        let mismatches = replay(&case, |_, _, _| {});
        differences.extend(mismatches.into_iter().map(|mismatch| (case.id.clone(), mismatch)));
        cases += 1;
    }
    assert_eq!(cases, expected_cases, "{file}");
    assert!(
        differences.is_empty(),
        "{file}: {} differ: {:#?}",
        differences.len(),
        differences.first()
    );
}

#[test]
fn kubelet_1_36_is_matched_on_common_machines() {
    assert_as_recorded("recorded-1.36.jsonl.gz", 400);
}

#[test]
fn kubelet_1_36_is_matched_on_odd_machines() {
    assert_as_recorded("odd-machines-1.36.jsonl.gz", 150);
}

#[test]
fn other_versions_are_matched() {
    for version in ["1.33", "1.34", "1.35", "1.37"] {
        assert_as_recorded(&format!("recorded-{version}.jsonl.gz"), 60);
    }
}
