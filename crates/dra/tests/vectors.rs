//! Allocations and selections held against what kube-scheduler 1.36.4 and its CEL recorded.
//! `cargo xtask conformance dra` and `cargo xtask conformance cel` run more.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use berth_testkit::dra::{Case, Selection, compare, decide};
use flate2::read::MultiGzDecoder;

fn lines(name: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(name);
    let reader = BufReader::new(MultiGzDecoder::new(File::open(path).unwrap()));
    reader.lines().map(Result::unwrap).collect()
}

#[test]
fn kube_scheduler_1_36_gives_the_same_devices() {
    let (mut verdicts, mut allocations, mut differences) = (0, 0, Vec::new());
    let lines = lines("allocations.jsonl.gz");
    for line in &lines {
        let case = Case::parse(line).unwrap();
        let comparison = compare(&case, &decide(&case));
        verdicts += comparison.verdicts;
        allocations += comparison.allocations;
        let mismatches = comparison.mismatches.into_iter();
        differences.extend(mismatches.map(|mismatch| (case.id.clone(), mismatch)));
    }
    assert_eq!(lines.len(), 303);
    assert!(verdicts > 500 && allocations > 200, "{verdicts} verdicts, {allocations} allocations");
    let first = differences.first();
    assert!(differences.is_empty(), "{} differ: {first:#?}", differences.len());
}

#[test]
fn the_cel_of_kubernetes_1_36_selects_the_same_devices() {
    let lines = lines("selections.jsonl.gz");
    let mut evaluations = 0;
    for line in &lines {
        let selection = Selection::parse(line).unwrap();
        for result in selection.evaluate() {
            evaluations += 1;
            assert!(result.agree(), "{}: {result:?}", selection.expression);
        }
    }
    assert_eq!(lines.len(), 721);
    assert!(evaluations > 1_500, "{evaluations}");
}
