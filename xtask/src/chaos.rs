//! `cargo xtask chaos`: replicas of the scheduler on a real API server, while everything fails that can.
//!
//! Owns the order of things: a control plane, nodes with hardly more room than the pods need, replicas, pods
//! that arrive, faults, and at the end a verdict. What happened is judged by [`checker`], which reads etcd's own history
//! and shares no code with the scheduler.
//!
//! Between the replicas and the API server stand a proxy each, which cuts, holds and delays connections, and one
//! server for all that tells events of watches twice and late. Their clocks jump with `libfaketime`, where that
//! is installed: no replica compares another's clock with its own, and this is to show it.

mod checker;
mod faults;
mod load;
mod metrics;
mod replicas;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use berth_testbed::{AS_JSON, Testbed, Which};
use berth_testkit::cluster::Dice;
use clap::Args;

use self::checker::{ChaosReport, Checker};
use self::faults::{Counts, Fault};
use self::load::Load;
use self::replicas::Replicas;
use crate::program;

/// After the last fault everything has to be bound within this.
const SETTLE: Duration = Duration::from_secs(120);

/// The namespace of the Lease.
const NAMESPACE: &str = "berth-system";

/// What is to be endured.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Pods created during the run
    #[arg(long, default_value_t = 5_000)]
    pub(crate) pods: usize,
    /// Times the leader is killed
    #[arg(long, default_value_t = 50)]
    pub(crate) kills: usize,
    /// Scheduler replicas
    #[arg(long, default_value_t = 3)]
    pub(crate) replicas: usize,
    /// Seed of the pods and the order of faults
    #[arg(long, default_value_t = 42)]
    pub(crate) seed: u64,
    /// Inject no faults except kills
    #[arg(long)]
    pub(crate) kills_only: bool,
    /// Use this berth binary (default: build one with the image's profile)
    #[arg(long, value_name = "FILE")]
    pub(crate) berth: Option<PathBuf>,
}

/// Whether nothing was broken.
pub(crate) fn run(options: &Options) -> anyhow::Result<bool> {
    let program = program::berth(options.berth.as_deref())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(endure(options, &program))
}

async fn endure(options: &Options, program: &Path) -> anyhow::Result<bool> {
    let began = Instant::now();
    let say = |text: &str| println!("[{:6.1} s] {text}", began.elapsed().as_secs_f64());
    let mut testbed = Testbed::start_with(Which::Real, &[AS_JSON.to_owned()]).await?;
    say(&format!("{} is ready", testbed.describe()));
    let checker = Checker::start(testbed.real().context("this is not the real one")?);
    let client = testbed.admin().await?;
    let mut dice = Dice::new(options.seed);
    let load = Load::prepare(&client, NAMESPACE, options.pods, &mut dice).await?;
    say(&format!(
        "{} nodes with {} GPUs for pods that want {}",
        load.nodes, load.gpus, load.wanted
    ));
    let mut replicas = Replicas::start(&testbed, program, options.replicas).await?;
    if !replicas::clocks_can_be_moved() {
        say(
            "libfaketime is not installed: clocks of replicas stay right, only the Lease's times jump",
        );
    }
    let pace =
        Duration::from_secs_f64(options.kills.max(1) as f64 * 6.0 / options.pods.max(1) as f64);
    let arriving = load.arrive(client.clone(), pace.min(Duration::from_millis(100)));
    let mut counts = Counts::default();
    let mut shown = Instant::now();
    while counts.kills < options.kills || !arriving.is_finished() {
        let fault = if counts.kills < options.kills {
            Fault::next(&counts, options.kills_only)
        } else {
            Fault::Nothing
        };
        faults::inflict(fault, &mut testbed, &mut replicas, &mut counts, &mut dice).await?;
        if shown.elapsed() > Duration::from_secs(5) {
            shown = Instant::now();
            say(&format!("{counts}; {}", checker.progress()));
        }
    }
    let made = arriving.await??;
    let repeated = replicas.repeated();
    say(&format!(
        "all pods are there, and nothing fails any more: {counts}; {repeated} events told twice"
    ));
    let settled = settle(&checker, made.left.len(), say).await;
    let mut verdict = checker.judge(&made).await;
    let (figures, wrong) = replicas.figures(verdict.bindings).await;
    verdict.add(wrong);
    tell(&verdict, settled, &figures, &replicas);
    Ok(verdict.is_clean() && settled)
}

/// Waits until as many pods are bound as there are.
async fn settle(checker: &Checker, pods: usize, say: impl Fn(&str)) -> bool {
    let began = Instant::now();
    let mut shown = Instant::now();
    while began.elapsed() < SETTLE {
        if checker.bound() >= pods {
            say(&format!("everything is bound {:.1} s later", began.elapsed().as_secs_f64()));
            return true;
        }
        if shown.elapsed() > Duration::from_secs(5) {
            shown = Instant::now();
            say(&checker.progress());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    false
}

fn tell(verdict: &ChaosReport, settled: bool, figures: &str, replicas: &Replicas) {
    println!("\nwhat the replicas that are left say:\n{figures}");
    println!("{verdict}");
    if !settled {
        println!("not everything was bound within {SETTLE:?}; the ends of the replicas' logs:");
        replicas.tails().iter().for_each(|tail| println!("{tail}\n"));
    }
    let word = if verdict.is_clean() && settled { "nothing was broken" } else { "BROKEN" };
    println!("\nverdict: {word}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small one. Takes a minute, and needs kube-apiserver, etcd and a build as for the image.
    #[test]
    #[ignore = "takes a minute and a build as for the image: cargo test -p xtask -- --ignored chaos"]
    fn a_little_chaos_breaks_nothing() {
        let options =
            Options { pods: 300, kills: 6, replicas: 2, seed: 7, kills_only: false, berth: None };
        assert!(run(&options).unwrap());
    }
}
