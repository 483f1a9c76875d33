//! The subcommand `berth agent mps`.

use std::path::PathBuf;
use std::process::ExitCode;

use berth_agent::mps::MpsService;
use berth_agent::offers::Offers;
use berth_devices::DeviceConfig;
use clap::Args;
use tokio::runtime;

use super::From;
use crate::output;
use crate::serve::{LogFormat, start_logging, stop_signal};

/// Run the MPS daemons of GPUs that are offered as shares
///
/// Each GPU has its own daemon, which limits every client to the threads and memory of one container,
/// whatever the container's environment says. A GPU that is offered only as shares accepts no process
/// without the daemon. While a daemon is down, its shares are not served. This is a separate service,
/// because the work on a share ends when its daemon ends. Needs root. Exit codes: 0, or 2 if the arguments
/// are invalid.
#[derive(Args)]
pub(super) struct Mps {
    /// File that lists the offers (kind DeviceOffers), the same as the agent's
    #[arg(long, value_name = "FILE")]
    devices: PathBuf,

    /// Log format
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,

    #[command(flatten)]
    from: From,
}

impl Mps {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let config = DeviceConfig::read(&berth_manifest::read_file(&self.devices)?)?;
        let (root, gpus) = self.from.source()?;
        start_logging(self.log_format, "info");
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let directory = config.plugin.responses.mps_directory;
        let offers = Offers::of_file(self.devices, config.offers);
        runtime.block_on(MpsService { root, gpus, directory, offers }.run(stop_signal()));
        output::print_error("stopped\n");
        Ok(ExitCode::SUCCESS)
    }
}
