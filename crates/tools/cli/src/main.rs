//! The program `berth`: arguments and wiring; everything else is in the crates.
//!
//! Subcommands have one file each; `output` and `source` hold what they share. Exit codes: 0, 1 if
//! something was found, 2 if the input cannot be used; 0 and 1 for commands that look at a cluster,
//! as for kubectl. Called as `kubectl-berth`, it presents itself as kubectl's plugin. Transcripts in
//! `tests/cmd` are tests and documentation.

mod agent;
mod explain;
mod lint;
mod manifests;
mod nodes;
mod output;
mod plan;
mod queue;
mod replay;
mod serve;
mod sim;
mod source;
mod up;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

/// Objects of the API are many small pieces, which come from one thread and go from another.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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
    Serve(serve::Serve),
    Up(up::Up),
    Explain(explain::Explain),
    Queue(queue::Queue),
    Nodes(nodes::Nodes),
    Agent(agent::Agent),
}

/// Examples of subcommands, to be shown under the name by which the program is called.
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    ("plan", plan::EXAMPLES),
    ("explain", explain::EXAMPLES),
    ("queue", queue::EXAMPLES),
    ("nodes", nodes::EXAMPLES),
    ("agent", agent::EXAMPLES),
];

fn command() -> clap::Command {
    let program = output::program();
    let mut command = Cli::command().bin_name(program);
    for (name, examples) in EXAMPLES {
        let lines = examples.iter().map(|(what, how)| format!("  # {what}\n  {program} {how}\n"));
        let text = format!("Examples:\n{}", lines.collect::<Vec<_>>().join("\n"));
        command = command.mut_subcommand(name, |one| one.after_help(text));
    }
    command
}

fn main() -> ExitCode {
    let cli = match Cli::from_arg_matches(&command().get_matches()) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    let outcome = match cli.command {
        Command::Sim(sim) => sim.run(),
        Command::Replay(replay) => replay.run(),
        Command::Lint(lint) => lint.run(),
        Command::Plan(plan) => plan.run(),
        Command::Manifests(manifests) => manifests.run(),
        Command::Serve(serve) => serve.run(),
        Command::Up(up) => up.run(),
        Command::Agent(agent) => agent.run(),
        Command::Explain(explain) => return as_kubectl(explain.run()),
        Command::Queue(queue) => return as_kubectl(queue.run()),
        Command::Nodes(nodes) => return as_kubectl(nodes.run()),
    };
    outcome.unwrap_or_else(|error| output::failed(&error))
}

/// kubectl knows 0 and 1 only.
fn as_kubectl(outcome: anyhow::Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(output::failed_as_kubectl)
}
