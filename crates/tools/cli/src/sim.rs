//! `berth sim`: plays a scenario under several setups.
//!
//! Owns the arguments. What is simulated is the simulation's, what scenarios say is theirs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use berth_sim::experiment::Experiment;
use berth_sim::report::Report;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use crate::output;

/// Simulate a cluster and compare schedulers, kubelet policies and GPU sharing on the same arrivals
#[derive(Args)]
pub(crate) struct Sim {
    /// The scenario: a YAML file with a cluster, manifests, arrivals and what to compare
    scenario: PathBuf,
    /// Another seed than the scenario's
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    into: Destination,
}

/// Where a report goes.
#[derive(Args)]
pub(crate) struct Destination {
    /// Write the whole report as JSON to this file; - is standard output, instead of the summary
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with charts and a map of every node to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl Sim {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let experiment = match berth_scenario::scenario::load(&self.scenario, self.seed) {
            Ok(experiment) => experiment,
            Err(error) => return Ok(output::refused(&error)),
        };
        play(&experiment, &self.into)
    }
}

/// Runs an experiment and writes what came of it.
pub(crate) fn play(experiment: &Experiment, into: &Destination) -> anyhow::Result<ExitCode> {
    if into.html.as_deref().is_some_and(is_stdout) {
        bail!("--html takes a file, not standard output");
    }
    let bar = ProgressBar::new(100 * experiment.setups.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{msg:24!} {bar:40} {percent:>3} %") {
        bar.set_style(style);
    }
    let mut before = 0;
    let report = berth_sim::run(experiment, &mut |setup, part| {
        bar.set_message(setup.name.clone());
        bar.set_position(before + (part * 100.0) as u64);
        if part >= 1.0 {
            before += 100;
        }
    });
    bar.finish_and_clear();
    write(&report?, into)?;
    Ok(ExitCode::SUCCESS)
}

fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn write(report: &Report, into: &Destination) -> anyhow::Result<()> {
    let json = serde_json::to_string(report).context("the report cannot be written as JSON")?;
    match &into.json {
        Some(path) if is_stdout(path) => output::say(&format!("{json}\n"))?,
        Some(path) => output::write_file(path, &json)?,
        None => {}
    }
    if let Some(path) = &into.html {
        output::write_file(path, &berth_web::sim_page(&report.title, &json))?;
    }
    if into.json.as_deref().is_none_or(|path| !is_stdout(path)) {
        output::say(&berth_sim::text::render(report))?;
        if let Some(path) = &into.html {
            output::say(&format!("\nThe page is {}\n", path.display()))?;
        }
    }
    Ok(())
}
