//! Holds models against recorded verdicts of the real thing, file by file.
//!
//! Owns reading, counting and printing. What a case is and how it is compared is testkit's.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use berth_testkit::{CaseError, dra, kubelet, scheduler};
use flate2::read::MultiGzDecoder;

/// Differences printed in full; the rest is only counted.
const SHOWN_MISMATCHES: usize = 20;

/// What came of one case.
struct Replayed {
    id: String,
    stratum: String,
    /// How much was compared.
    compared: usize,
    /// What differs.
    mismatches: Vec<String>,
}

/// A kind of recording.
struct Recording {
    /// Of what.
    of: &'static str,
    /// What is counted in a case.
    unit: &'static str,
    replay: fn(&str) -> Result<Replayed, CaseError>,
    /// The id of a case, and the case told in text.
    explain: fn(&str) -> Result<(String, String), CaseError>,
}

const KUBELET: Recording = Recording {
    of: "kubelet",
    unit: "operations",
    replay: |line| {
        let case = kubelet::Case::parse(line)?;
        let differences = kubelet::replay(&case, |_, _, _| {}).into_iter().map(|mismatch| {
            let operation = mismatch.operation.map_or("initial".to_owned(), |at| at.to_string());
            let (what, expected, got) = (mismatch.what, mismatch.expected, mismatch.got);
            format!("[{operation}] {what}: recorded {expected}, got {got}")
        });
        Ok(Replayed {
            mismatches: differences.collect(),
            compared: case.operations.len(),
            id: case.id,
            stratum: case.stratum,
        })
    },
    explain: |line| {
        let case = kubelet::Case::parse(line)?;
        let text = kubelet::explain(&case);
        Ok((case.id, text))
    },
};

const SCHEDULER: Recording = Recording {
    of: "scheduler",
    unit: "verdicts",
    replay: |line| {
        let case = scheduler::Case::parse(line)?;
        let comparison = scheduler::compare(&case, &scheduler::decide(&case));
        let differences = comparison.mismatches.into_iter().map(|mismatch| {
            let (what, expected, got) = (mismatch.what, mismatch.expected, mismatch.got);
            format!(" {what}: recorded {expected}, got {got}")
        });
        Ok(Replayed {
            mismatches: differences.collect(),
            compared: comparison.verdicts,
            id: case.id,
            stratum: case.stratum,
        })
    },
    explain: |line| {
        let case = scheduler::Case::parse(line)?;
        let text = scheduler::explain(&case);
        Ok((case.id, text))
    },
};

const DRA: Recording = Recording {
    of: "dra",
    unit: "allocations",
    replay: |line| {
        let case = dra::Case::parse(line)?;
        let comparison = dra::compare(&case, &dra::decide(&case));
        let differences = comparison.mismatches.into_iter().map(|mismatch| {
            let (what, expected, got) = (mismatch.what, mismatch.expected, mismatch.got);
            format!(" {what}: recorded {expected}, got {got}")
        });
        Ok(Replayed {
            mismatches: differences.collect(),
            compared: comparison.allocations,
            id: case.id,
            stratum: case.stratum,
        })
    },
    explain: |line| {
        let case = dra::Case::parse(line)?;
        let text = dra::explain(&case);
        Ok((case.id, text))
    },
};

const CEL: Recording = Recording {
    of: "cel",
    unit: "evaluations",
    replay: |line| {
        let selection = dra::Selection::parse(line)?;
        // What the API server refuses never gets here.
        let results = if selection.refused.is_some() { Vec::new() } else { selection.evaluate() };
        let different = results.iter().filter(|result| !result.agree());
        let told = different
            .map(|result| format!(": recorded {:?}, got {:?}", result.recorded, result.got));
        Ok(Replayed {
            mismatches: told.collect(),
            compared: results.len(),
            id: selection.expression,
            stratum: if selection.refused.is_some() { "refused" } else { "evaluated" }.to_owned(),
        })
    },
    explain: |line| {
        let selection = dra::Selection::parse(line)?;
        let text = format!("{:#?}\n", selection.evaluate());
        Ok((selection.expression, text))
    },
};

/// Runs the kubelet's cases, or explains one; whether all was as recorded.
pub(crate) fn kubelet(files: &[PathBuf], show: Option<&str>) -> Result<bool> {
    run_or_show(&KUBELET, files, show)
}

/// Runs the scheduler's cases, or explains one; whether all was as recorded.
pub(crate) fn scheduler(files: &[PathBuf], show: Option<&str>) -> Result<bool> {
    run_or_show(&SCHEDULER, files, show)
}

/// Runs the cases of device allocation, or explains one; whether all was as recorded.
pub(crate) fn dra(files: &[PathBuf], show: Option<&str>) -> Result<bool> {
    run_or_show(&DRA, files, show)
}

/// Runs recorded selectors, or explains one; whether all was as recorded.
pub(crate) fn cel(files: &[PathBuf], show: Option<&str>) -> Result<bool> {
    run_or_show(&CEL, files, show)
}

fn run_or_show(recording: &Recording, files: &[PathBuf], show: Option<&str>) -> Result<bool> {
    match show {
        Some(id) => self::show(recording, files, id),
        None => run(recording, files),
    }
}

#[derive(Default)]
struct Count {
    cases: usize,
    compared: usize,
    mismatches: usize,
}

/// Runs every case of every file.
fn run(recording: &Recording, files: &[PathBuf]) -> Result<bool> {
    let mut strata: BTreeMap<String, Count> = BTreeMap::new();
    let mut total = Count::default();
    let mut failed_cases = Vec::new();
    let mut unreadable = 0;
    for_each_line(files, |place, line| {
        let case = match (recording.replay)(line) {
            Ok(case) => case,
            Err(error) => {
                println!("{place}: {error}");
                unreadable += 1;
                return Ok(());
            }
        };
        let shown = SHOWN_MISMATCHES.saturating_sub(total.mismatches);
        for mismatch in case.mismatches.iter().take(shown) {
            println!("{}{mismatch}", case.id);
        }
        if !case.mismatches.is_empty() {
            failed_cases.push(case.id);
        }
        for count in [&mut total, strata.entry(case.stratum).or_default()] {
            count.cases += 1;
            count.compared += case.compared;
            count.mismatches += case.mismatches.len();
        }
        Ok(())
    })?;
    let unit = recording.unit;
    for (stratum, Count { cases, compared, mismatches }) in &strata {
        println!("{mismatches:>4} mismatches {cases:>5} cases {compared:>6} {unit}  {stratum}");
    }
    if !failed_cases.is_empty() {
        failed_cases.truncate(SHOWN_MISMATCHES);
        println!("first cases that differ, for --show: {}", failed_cases.join(" "));
    }
    if unreadable > 0 {
        println!("{unreadable} lines could not be read; each counts as a mismatch");
    }
    let Count { cases, compared, mismatches } = total;
    let mismatches = mismatches + unreadable;
    println!("{}: {cases} cases, {compared} {unit}, {mismatches} mismatches", recording.of);
    Ok(mismatches == 0)
}

/// Explains the case `id`.
fn show(recording: &Recording, files: &[PathBuf], id: &str) -> Result<bool> {
    let mut as_recorded = None;
    for_each_line(files, |place, line| {
        // Parsing is the slow part, so look before.
        if as_recorded.is_none() && line.contains(&format!("\"{id}\"")) {
            let (found, text) = (recording.explain)(line).with_context(|| place.to_owned())?;
            if found == id {
                print!("{text}");
                as_recorded = Some((recording.replay)(line)?.mismatches.is_empty());
            }
        }
        Ok(())
    })?;
    match as_recorded {
        Some(as_recorded) => Ok(as_recorded),
        None => bail!("no case {id:?} in the files given; check the id"),
    }
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
