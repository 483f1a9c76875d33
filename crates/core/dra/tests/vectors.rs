//! Comparison with allocations and selections recorded from kube-scheduler 1.36.4 and its CEL.
//! `cargo xtask conformance dra` and `cargo xtask conformance cel` run more.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use berth_api::{Lower as _, raise};
use berth_dra::Options;
use berth_model::dra::claim::{Allocation, Share};
use berth_testkit::dra::{Case, Selection, compare, decide};
use flate2::read::MultiGzDecoder;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimStatus};

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

/// The allocation as the API returns it.
fn shown(given: &Allocation) -> Allocation {
    let mut number = 0;
    let raised = raise::allocation(given, || {
        number += 1;
        format!("share-{number}")
    });
    let mut claim = ResourceClaim::default();
    claim.metadata.name = Some("c".to_owned());
    claim.status =
        Some(ResourceClaimStatus { allocation: Some(raised.unwrap()), ..Default::default() });
    claim.lower().unwrap().allocation.unwrap()
}

#[test]
fn allocations_round_trip_through_the_api() {
    let (mut allocations, mut parts, mut terms, mut configs) = (0, 0, 0, 0);
    for line in &lines("allocations.jsonl.gz") {
        let case = Case::parse(line).unwrap();
        let Ok(Some(demand)) = case.inventory.prepare(&case.needs) else { continue };
        for node in &case.nodes {
            let Ok(placed) = case.inventory.place(&demand, node, &Options::default()) else {
                continue;
            };
            for (_, mut given) in placed.allocations {
                given.allocated_at_ms = Some(1_790_000_000_000);
                let mut shown = shown(&given);
                for (one, two) in given.devices.iter_mut().zip(&shown.devices) {
                    if let (Share::Part { share_id, .. }, Share::Part { share_id: id, .. }) =
                        (&mut one.share, &two.share)
                    {
                        assert!(id.is_some(), "{}: a share has no name", case.id);
                        share_id.clone_from(id);
                        parts += 1;
                    }
                }
                allocations += 1;
                terms += given.nodes.iter().flatten().count();
                configs += given.configs.len();
                assert_eq!(shown, given, "{}", case.id);
                shown = self::shown(&shown);
                assert_eq!(shown, given, "{}: written again", case.id);
            }
            if let Some(made) = placed.extended {
                let spec = raise::claim_spec(&made.spec).unwrap();
                let mut claim = ResourceClaim { spec, ..ResourceClaim::default() };
                claim.metadata.name = Some("c".to_owned());
                assert_eq!(claim.lower().unwrap().spec, made.spec, "{}", case.id);
            }
        }
    }
    assert!(
        allocations > 200 && parts > 10 && terms > 50 && configs > 10,
        "{allocations} allocations, {parts} parts, {terms} terms, {configs} configs"
    );
}
