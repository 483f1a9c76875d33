//! The live scheduler in arbitrary worlds full of faults.
//!
//! Owns counting and printing. What a world is and what must hold in it is `berth-faults`'.

use anyhow::Result;
use berth_faults::{Tally, run};

use super::SHOWN;

/// Runs `seeds` worlds from `first` on, each twice if `twice`; whether nothing was wrong.
pub(crate) fn live(first: u64, seeds: u64, twice: bool) -> Result<bool> {
    let started = std::time::Instant::now();
    let mut sum = Tally::default();
    let mut wrong = 0;
    for seed in first..first.saturating_add(seeds) {
        let outcome = run(seed, |_| {}).map_err(anyhow::Error::from_boxed)?;
        let mut findings: Vec<String> = outcome.finding.iter().map(ToString::to_string).collect();
        if twice {
            let again = run(seed, |_| {}).map_err(anyhow::Error::from_boxed)?;
            if again.digest != outcome.digest {
                findings.push(format!("seed {seed}: it went otherwise the second time"));
            }
        }
        for finding in &findings {
            if wrong < SHOWN {
                println!("{finding}");
            }
            wrong += 1;
        }
        sum.add(&outcome.tally);
    }
    let Tally {
        terms,
        bound,
        refused_bindings,
        rejections,
        evictions,
        late,
        calls,
        faults,
        waiting,
    } = sum;
    println!("{terms} terms, {faults} faults, {calls} calls, {late} of them late");
    println!("{bound} bindings, {refused_bindings} refused by the API, {rejections} by kubelets");
    println!("{evictions} evictions, {waiting} pods wait at the end");
    println!("sweep: {seeds} worlds in {:.1?}, {wrong} findings", started.elapsed());
    Ok(wrong == 0)
}
