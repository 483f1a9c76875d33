//! The subcommand `berth completion`.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use clap_complete::Shell;

use crate::output;

/// Print a completion script for a shell
///
/// For example: `source <(berth completion bash)`, or
/// `berth completion fish > ~/.config/fish/completions/berth.fish`.
#[derive(Args)]
pub(crate) struct Completion {
    /// Shell to complete for
    shell: Shell,
}

impl Completion {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut crate::command("berth"), "berth", &mut script);
        output::print(&String::from_utf8(script).context("the completion script is not UTF-8")?)?;
        Ok(ExitCode::SUCCESS)
    }
}
