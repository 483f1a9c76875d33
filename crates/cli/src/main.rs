//! The program `berth`: arguments and wiring.
//!
//! Owns the subcommands, one file each, and what they share: where output goes and what exit codes
//! mean. Must not know how anything is done; that is in the crates.

mod lint;
mod manifests;
mod output;
mod plan;
mod replay;
mod sim;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// GPU-aware scheduling for Kubernetes.
#[derive(Parser)]
#[command(
    name = "berth",
    version,
    about = "GPU-aware scheduling for Kubernetes",
    max_term_width = 100
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Sim(sim::Sim),
    Replay(replay::Replay),
    Lint(lint::Lint),
    Plan(plan::Plan),
    Manifests(manifests::Manifests),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Sim(sim) => sim.run(),
        Command::Replay(replay) => replay.run(),
        Command::Lint(lint) => lint.run(),
        Command::Plan(plan) => plan.run(),
        Command::Manifests(manifests) => manifests.run(),
    };
    outcome.unwrap_or_else(|error| output::failed(&error))
}
