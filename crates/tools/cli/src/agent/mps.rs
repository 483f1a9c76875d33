//! The subcommand `berth agent mps`.
//!
//! Owns its arguments and exit codes. Must not know how daemons are kept.

use std::path::PathBuf;
use std::process::ExitCode;

use berth_agent::mps::Sharing;
use berth_agent::offers::Offers;
use berth_devices::DeviceConfig;
use clap::Args;
use tokio::runtime;

use super::From;
use crate::output;
use crate::serve::{LogFormat, log, told_to_stop};

/// Keep the MPS daemons of GPUs that are on offer in shares.
///
/// Each GPU has its own, which lets no client have more threads and memory than a container may, whatever the
/// container's environment says. A GPU that is on offer in shares only lets nobody at itself but its daemon, so that
/// there is no way around it. Shares are not handed out while their daemon does not run. It is a service of its own,
/// because work on shares ends when their daemon does. Needs root. Exit codes: 0, or 2 if the arguments cannot be
/// used.
#[derive(Args)]
pub(super) struct Mps {
    /// What GPUs are offered as (kind DeviceOffers): the file that the agent has.
    #[arg(long, value_name = "FILE")]
    devices: PathBuf,

    /// How logs look.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,

    #[command(flatten)]
    from: From,
}

impl Mps {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let config = DeviceConfig::read(&berth_manifest::read_file(&self.devices)?)?;
        let (root, gpus) = self.from.source()?;
        log(self.log_format, "info");
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let directory = config.plugin.answers.mps_directory;
        let offers = Offers::of_file(self.devices, config.offers);
        runtime.block_on(Sharing { root, gpus, directory, offers }.run(told_to_stop()));
        output::complain("stopped\n");
        Ok(ExitCode::SUCCESS)
    }
}
