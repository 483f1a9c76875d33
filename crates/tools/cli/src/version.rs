//! The subcommand `berth version`.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::output;

/// Print the version, the commit it was built from and the platform
#[derive(Args)]
pub(crate) struct Version {
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    #[default]
    Text,
    Json,
    Yaml,
}

#[derive(Serialize)]
struct Build {
    version: &'static str,
    /// `unknown` if neither git nor `BERTH_COMMIT` was there at build time.
    commit: &'static str,
    platform: &'static str,
}

const BUILD: Build = Build {
    version: env!("CARGO_PKG_VERSION"),
    commit: env!("BERTH_COMMIT"),
    platform: env!("BERTH_TARGET"),
};

impl Version {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let text = match self.output {
            Format::Text => {
                format!("berth {} (commit {}, {})\n", BUILD.version, BUILD.commit, BUILD.platform)
            }
            Format::Json => output::data(&BUILD, output::Format::Json)?,
            Format::Yaml => output::data(&BUILD, output::Format::Yaml)?,
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}
