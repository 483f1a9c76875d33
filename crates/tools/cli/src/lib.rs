//! The program `berth`: arguments and wiring; everything else is in the other crates.
//!
//! Each subcommand has a file; `output` and `source` hold what they share. Exit codes: 0, 1 if something
//! was found, 2 if the input cannot be used; 0 and 1 for commands that read a cluster, as for kubectl.
//! Called as `kubectl-berth`, the program presents itself as kubectl's plugin. The transcripts in
//! `tests/cmd` are tests and documentation.

mod agent;
mod completion;
mod explain;
mod lint;
mod man;
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
mod version;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

/// GPU-aware scheduling for Kubernetes
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
    Explain(explain::Explain),
    Queue(queue::Queue),
    Nodes(nodes::Nodes),
    Up(up::Up),
    Manifests(manifests::Manifests),
    Serve(serve::Serve),
    Agent(agent::Agent),
    Version(version::Version),
    Completion(completion::Completion),
    #[command(hide = true)]
    Man(man::Man),
}

/// Examples of subcommands, to be shown under the name by which the program is called.
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    ("plan", plan::EXAMPLES),
    ("explain", explain::EXAMPLES),
    ("queue", queue::EXAMPLES),
    ("nodes", nodes::EXAMPLES),
    ("agent", agent::EXAMPLES),
];

/// The command line of `program`: `berth`, or `kubectl berth` as a plugin.
pub fn command(program: &'static str) -> clap::Command {
    Cli::command().bin_name(program).mut_subcommands(|command| {
        let Some((_, examples)) = EXAMPLES.iter().find(|(name, _)| *name == command.get_name())
        else {
            return command;
        };
        let lines = examples.iter().map(|(what, how)| format!("  # {what}\n  {program} {how}\n"));
        command.after_help(format!("Examples:\n{}", lines.collect::<Vec<_>>().join("\n")))
    })
}

/// Runs the program with the arguments of the process.
pub fn run() -> ExitCode {
    let cli = match Cli::from_arg_matches(&command(output::program()).get_matches()) {
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
        Command::Version(version) => version.run(),
        Command::Completion(completion) => completion.run(),
        Command::Man(man) => man.run(),
        Command::Explain(explain) => return as_kubectl(explain.run()),
        Command::Queue(queue) => return as_kubectl(queue.run()),
        Command::Nodes(nodes) => return as_kubectl(nodes.run()),
    };
    outcome.unwrap_or_else(|error| output::failed(&error))
}

/// kubectl has the exit codes 0 and 1 only.
fn as_kubectl(outcome: anyhow::Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(output::failed_as_kubectl)
}
