//! Instructions per decision, counted by callgrind: the same on a noisy machine as on a quiet one.
//!
//! What was counted last is recorded in `instructions.txt`; a tenth more fails.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use berth_testkit::cluster::gpu_template;

use super::engine::World;

/// How much more than recorded is too much.
const TOLERANCE: f64 = 0.10;

/// The functions that are counted, by the name of what they do, and how often they do it.
const COUNTED: [(&str, &str, u64); 2] =
    [("decision", "*counted_decisions*", 2_000), ("preemption", "*counted_preemptions*", 500)];

const NODES: usize = 1_000;

fn record() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bench/instructions.txt")
}

/// Counts, and compares with the record or makes it. Whether nothing became much slower.
pub(crate) fn run(write: bool) -> Result<bool> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut counts = BTreeMap::new();
    for (name, function, times) in COUNTED {
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"])
            .arg(format!("--toggle-collect={function}"))
            .arg(&program)
            .args(["bench", "counted", name])
            .output()
            .context("starting valgrind; install it (apt install valgrind)")?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "valgrind failed: {text}");
        let collected = text.lines().find_map(|line| line.split_once("Collected : "));
        let (_, count) = collected.context("valgrind does not say what it collected")?;
        let count: u64 = count.trim().parse().context("what valgrind collected is no number")?;
        ensure!(count > 0, "valgrind did not find the function {function}");
        counts.insert(name, count / times);
    }
    if write {
        let lines: Vec<String> =
            counts.iter().map(|(name, count)| format!("{name} {count}\n")).collect();
        std::fs::write(record(), lines.concat()).context("writing the record")?;
    }
    compare(&counts)
}

fn compare(counts: &BTreeMap<&str, u64>) -> Result<bool> {
    let path = record();
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("reading {}; make it with --write", path.display()))?;
    let mut good = true;
    for line in text.lines() {
        let Some((name, recorded)) = line.split_once(' ') else { bail!("{line:?} is no record") };
        let recorded: u64 = recorded.parse().with_context(|| format!("{line:?} is no record"))?;
        let count = *counts.get(name).with_context(|| format!("{name} is not counted"))?;
        let change = count as f64 / recorded as f64 - 1.0;
        let verdict = match change {
            _ if change > TOLERANCE => "too many",
            _ if change < -TOLERANCE => "fewer; record it with --write",
            _ => "as recorded",
        };
        println!(
            "{name}: {count} instructions, {recorded} recorded, {:+.1} %: {verdict}",
            change * 100.0
        );
        good &= change <= TOLERANCE;
    }
    Ok(good)
}

/// What runs under valgrind.
pub(crate) fn counted(name: &str) -> Result<()> {
    let mut world = World::new(NODES, 3).map_err(|error| anyhow!("{error}"))?;
    let times = COUNTED.iter().find(|(one, _, _)| *one == name).map(|(_, _, times)| *times);
    let times = times.with_context(|| format!("{name} is not counted"))?;
    match name {
        "decision" => {
            world.fill(0.95);
            // Rankings are made by the first of each kind.
            (0..300).for_each(|_| {
                world.step();
            });
            counted_decisions(&mut world, times);
        }
        _ => {
            world.only_batch();
            world.fill(1.0);
            let urgent = gpu_template("urgent", 1_000, 2).map_err(|error| anyhow!("{error}"))?;
            let urgent = Arc::new(urgent);
            world.preempt(&urgent);
            counted_preemptions(&mut world, &urgent, times);
        }
    }
    Ok(())
}

#[inline(never)]
fn counted_decisions(world: &mut World, times: u64) {
    for _ in 0..times {
        black_box(world.step());
    }
}

#[inline(never)]
fn counted_preemptions(world: &mut World, urgent: &Arc<berth_model::spec::PodSpec>, times: u64) {
    for _ in 0..times {
        black_box(world.preempt(urgent));
    }
}
