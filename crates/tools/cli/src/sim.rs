//! The subcommand `berth sim`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use berth_sim::experiment::Experiment;
use berth_sim::report::Report;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::output;

/// Simulate a cluster and compare schedulers, kubelet policies and GPU sharing on the same arrivals
#[derive(Args)]
pub(crate) struct Sim {
    /// Scenario: a YAML file with the cluster, manifests, arrivals and the setups to compare
    scenario: PathBuf,
    /// Seed of the random arrivals (default: the scenario's)
    #[arg(long)]
    seed: Option<u64>,
    /// Run N seeds in parallel, starting with --seed, and report medians, ranges and significance
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    #[command(flatten)]
    output: Destination,
}

#[derive(Args)]
pub(crate) struct Destination {
    /// Write the report as JSON to a file; - writes it to standard output, without the summary
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report as an HTML page with charts and a map of every node
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl Sim {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let experiment = match berth_scenario::scenario::load(&self.scenario, self.seed) {
            Ok(experiment) => experiment,
            Err(error) => return Ok(output::failed_to_load(&error)),
        };
        if self.seeds == 1 {
            return run(&experiment, &self.output);
        }
        let first = experiment.seed;
        let mut experiments = vec![experiment];
        for further in 1..self.seeds {
            let seed = first.wrapping_add(further);
            match berth_scenario::scenario::load(&self.scenario, Some(seed)) {
                Ok(experiment) => experiments.push(experiment),
                Err(error) => return Ok(output::failed_to_load(&error)),
            }
        }
        run_all(&experiments, &self.output)
    }
}

/// Runs one experiment with several seeds. The page shows the first.
fn run_all(experiments: &[Experiment], into: &Destination) -> anyhow::Result<ExitCode> {
    into.check()?;
    let bar = progress_bar(experiments.len() as u64);
    let reports = berth_sim::run_all(experiments, &|done| bar.set_position(done as u64));
    bar.finish_and_clear();
    let reports = reports?;
    into.write(&reports, reports.first(), &berth_sim::text::render_seeds(&reports))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs an experiment and writes its report.
pub(crate) fn run(experiment: &Experiment, into: &Destination) -> anyhow::Result<ExitCode> {
    into.check()?;
    let bar = progress_bar(100 * experiment.setups.len() as u64);
    let mut before = 0;
    let report = berth_sim::run(experiment, &mut |setup, fraction| {
        bar.set_message(setup.name.clone());
        bar.set_position(before + (fraction * 100.0) as u64);
        if fraction >= 1.0 {
            before += 100;
        }
    });
    bar.finish_and_clear();
    let report = report?;
    into.write(&report, Some(&report), &berth_sim::text::render(&report))?;
    Ok(ExitCode::SUCCESS)
}

fn progress_bar(length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length);
    if let Ok(style) = ProgressStyle::with_template("{msg:24!} {bar:40} {percent:>3} %") {
        bar.set_style(style);
    }
    bar
}

fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

impl Destination {
    fn check(&self) -> anyhow::Result<()> {
        if self.html.as_deref().is_some_and(is_stdout) {
            bail!("--html requires a file; standard output is not supported");
        }
        Ok(())
    }

    /// Writes `data` as JSON, `page` as HTML, and the summary.
    fn write(
        &self,
        data: &impl Serialize,
        page: Option<&Report>,
        summary: &str,
    ) -> anyhow::Result<()> {
        match &self.json {
            Some(path) if is_stdout(path) => output::print(&format!("{}\n", json(data)?))?,
            Some(path) => output::write_file(path, &json(data)?)?,
            None => {}
        }
        if let (Some(path), Some(report)) = (&self.html, page) {
            output::write_file(path, &berth_web::sim_page(&report.title, &json(report)?))?;
        }
        if self.json.as_deref().is_none_or(|path| !is_stdout(path)) {
            output::print(summary)?;
            if let Some(path) = &self.html {
                output::print(&format!("\nWrote {}\n", path.display()))?;
            }
        }
        Ok(())
    }
}

fn json(data: &impl Serialize) -> anyhow::Result<String> {
    serde_json::to_string(data).context("cannot write the report as JSON")
}
