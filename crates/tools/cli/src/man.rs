//! The hidden subcommand `berth man`, for packages.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;

/// Write a man page for each command into a directory
#[derive(Args)]
pub(crate) struct Man {
    /// Directory to write to; it is created if it does not exist
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl Man {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let failed = || format!("cannot write man pages to {}", self.directory.display());
        std::fs::create_dir_all(&self.directory).with_context(failed)?;
        clap_mangen::generate_to(crate::command("berth"), &self.directory).with_context(failed)?;
        Ok(ExitCode::SUCCESS)
    }
}
