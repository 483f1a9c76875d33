//! A month of four teams, one of them greedy: does everybody get what it was guaranteed, and what does
//! that cost?
//!
//! 64 nodes of 8 GPUs; the engine decides in virtual time, with the teams' shares and without them.

use std::time::Instant;

use anyhow::{Result, anyhow};
use berth_engine::Config;
use berth_testkit::month::{GRACE_MS, Month, Report};

/// Utilisation may be so much lower than without shares, in thousandths.
const LOSS_MAX_MILLI: i64 = 20;

/// Whether every team had its guarantee in time, and utilisation is as good as without shares.
pub(crate) fn run(nodes: usize, days: i64, seed: u64) -> Result<bool> {
    // Who was evicted is left alone for a while, and whoever is evicted has time to end.
    let reclaim_ms = Config::default().eviction_cooldown_ms + GRACE_MS;
    let mut all_well = true;
    let mut reports = Vec::new();
    for shares in [false, true] {
        let start = Instant::now();
        let month = Month { nodes, days, seed, shares };
        let report = month.run().map_err(|error| anyhow!("{error}"))?;
        println!(
            "{}: {days} days on {nodes} nodes of 8 GPUs, {} decisions in {:.1} s, {} % of GPUs used, \
             {} % for what was evicted later; {} % idle on nodes where somebody who waits would fit",
            if shares { "with shares" } else { "without shares" },
            report.decisions,
            start.elapsed().as_secs_f64(),
            tenths(report.utilisation_milli),
            tenths(report.lost_milli),
            tenths(report.idle_milli)
        );
        print(&report);
        reports.push(report);
    }
    let [without, with] = &reports[..] else { return Ok(false) };
    for team in &with.teams {
        if team.longest_below_ms > reclaim_ms {
            all_well = false;
            println!(
                "{} was below its guarantee for longer than {} s",
                team.name,
                reclaim_ms / 1000
            );
        }
    }
    if with.utilisation_milli < without.utilisation_milli - LOSS_MAX_MILLI {
        all_well = false;
        println!("shares cost more than {} % of all GPUs", tenths(LOSS_MAX_MILLI));
    }
    println!(
        "reclaim time {} s: {}",
        reclaim_ms / 1000,
        if all_well { "kept" } else { "not kept" }
    );
    Ok(all_well)
}

fn print(report: &Report) {
    println!(
        "  {:<8} {:>10} {:>10} {:>10} {:>18} {:>9} {:>9}",
        "team", "guaranteed", "used", "borrowed", "longest below (s)", "evicted", "started"
    );
    for team in &report.teams {
        println!(
            "  {:<8} {:>10} {:>10} {:>10} {:>18} {:>9} {:>9}",
            team.name,
            team.guaranteed,
            tenths(team.used_milli / 100),
            tenths(team.borrowed_milli / 100),
            team.longest_below_ms / 1000,
            team.evicted,
            team.started
        );
    }
}

/// So many tenths, with a point.
fn tenths(tenths: i64) -> String {
    format!("{}.{}", tenths / 10, tenths % 10)
}
