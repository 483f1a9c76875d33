//! The engine held against decisions recorded from the real kube-scheduler: filters, reasons,
//! codes, scores, and preemption. `cargo xtask conformance scheduler` runs more.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use berth_testkit::scheduler::{Case, compare, decide};
use flate2::read::MultiGzDecoder;

const FILE: &str = "tests/vectors/decisions.jsonl.gz";

#[test]
fn kube_scheduler_1_36_is_matched() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
    let lines = BufReader::new(MultiGzDecoder::new(File::open(path).unwrap())).lines();
    let (mut cases, mut verdicts) = (0, 0);
    let mut differences = Vec::new();
    for line in lines {
        let case = Case::parse(&line.unwrap()).unwrap();
        let comparison = compare(&case, &decide(&case));
        (cases, verdicts) = (cases + 1, verdicts + comparison.verdicts);
        let mismatches = comparison.mismatches.into_iter();
        differences.extend(mismatches.map(|mismatch| (case.id.clone(), mismatch)));
    }
    assert_eq!(cases, 555, "{FILE}");
    assert!(verdicts > 10 * cases, "{FILE}: {verdicts} verdicts");
    assert!(
        differences.is_empty(),
        "{FILE}: {} differ: {:#?}",
        differences.len(),
        differences.first()
    );
}
