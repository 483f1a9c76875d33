//! Holds the kubelet model against recorded verdicts, file by file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use berth_testkit::kubelet::{Case, explain, replay};
use flate2::read::MultiGzDecoder;

/// Differences printed in full; the rest is only counted.
const SHOWN_MISMATCHES: usize = 20;

#[derive(Default)]
struct Count {
    cases: usize,
    operations: usize,
    mismatches: usize,
}

/// Runs every case of every file; whether all was as recorded.
pub(crate) fn kubelet(files: &[PathBuf]) -> Result<bool> {
    let mut strata: BTreeMap<String, Count> = BTreeMap::new();
    let mut total = Count::default();
    let mut failed_cases = Vec::new();
    let mut unreadable = 0;
    for_each_line(files, |place, line| {
        let case = match Case::parse(line) {
            Ok(case) => case,
            Err(error) => {
                println!("{place}: {error}");
                unreadable += 1;
                return Ok(());
            }
        };
        let mismatches = replay(&case, |_, _, _| {});
        for mismatch in mismatches.iter().take(SHOWN_MISMATCHES.saturating_sub(total.mismatches)) {
            let operation = mismatch.operation.map_or("initial".to_owned(), |at| at.to_string());
            let (expected, got) = (&mismatch.expected, &mismatch.got);
            println!("{}[{operation}] {}: recorded {expected}, got {got}", case.id, mismatch.what);
        }
        if !mismatches.is_empty() {
            failed_cases.push(case.id.clone());
        }
        for count in [&mut total, strata.entry(case.stratum).or_default()] {
            count.cases += 1;
            count.operations += case.operations.len();
            count.mismatches += mismatches.len();
        }
        Ok(())
    })?;
    for (stratum, count) in &strata {
        let Count { cases, operations, mismatches } = count;
        println!(
            "{mismatches:>4} mismatches {cases:>5} cases {operations:>6} operations  {stratum}"
        );
    }
    if !failed_cases.is_empty() {
        failed_cases.truncate(SHOWN_MISMATCHES);
        println!("first cases that differ, for --show: {}", failed_cases.join(" "));
    }
    if unreadable > 0 {
        println!("{unreadable} lines could not be read; each counts as a mismatch");
    }
    let Count { cases, operations, mismatches } = total;
    let mismatches = mismatches + unreadable;
    println!("kubelet: {cases} cases, {operations} operations, {mismatches} mismatches");
    Ok(mismatches == 0)
}

/// Explains the case `id`.
pub(crate) fn show(files: &[PathBuf], id: &str) -> Result<bool> {
    let mut found = None;
    for_each_line(files, |place, line| {
        // Parsing is the slow part, so look before.
        if found.is_none() && line.contains(&format!("\"{id}\"")) {
            let case = Case::parse(line).with_context(|| place.to_owned())?;
            if case.id == id {
                found = Some(case);
            }
        }
        Ok(())
    })?;
    let Some(case) = found else { bail!("no case {id:?} in the files given; check the id") };
    print!("{}", explain(&case));
    Ok(replay(&case, |_, _, _| {}).is_empty())
}

/// Gives every line that is not blank, with where it stands.
fn for_each_line(files: &[PathBuf], mut visit: impl FnMut(&str, &str) -> Result<()>) -> Result<()> {
    for path in files {
        let name = path.display();
        let mut reader = BufReader::with_capacity(1 << 20, open(path)?);
        let mut line = String::new();
        let mut number = 0;
        loop {
            line.clear();
            number += 1;
            let place = format!("{name}:{number}");
            if reader.read_line(&mut line).with_context(|| format!("cannot read {place}"))? == 0 {
                break;
            }
            if !line.trim().is_empty() {
                visit(&place, line.trim())?;
            }
        }
    }
    Ok(())
}

fn open(path: &Path) -> Result<Box<dyn Read>> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    Ok(if path.extension().is_some_and(|extension| extension == "gz") {
        Box::new(MultiGzDecoder::new(file))
    } else {
        Box::new(file)
    })
}
