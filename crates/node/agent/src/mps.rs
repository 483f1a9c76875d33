//! Supervises the MPS daemons of the node's shared GPUs.
//!
//! A service of its own, apart from the agent that serves the shares: a daemon's clients end with it, so it must
//! survive updates of the agent.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use berth_devices::mps::{Access, Gate, GateError, Supervisor, needed};
use berth_host::Root;
use nvml_wrapper::enum_wrappers::device::ComputeMode;
use tracing::warn;

use crate::gpus::GpuSource;
use crate::gpus::nvml::{LIBRARY, opened};
use crate::offers::{self, GpuErrors, Offers};

/// How often GPUs are read: they may be repartitioned or reset.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// Sets a GPU's compute mode.
fn set_access(uuid: &str, access: Access) -> Result<(), GateError> {
    let nvml = opened(OsStr::new(LIBRARY))?;
    let mode = match access {
        Access::Everybody => ComputeMode::Default,
        Access::Daemon => ComputeMode::ExclusiveProcess,
        Access::Nobody => ComputeMode::Prohibited,
    };
    nvml.device_by_uuid(uuid)?.set_compute_mode(mode)?;
    Ok(())
}

#[derive(Clone, Debug)]
pub struct MpsService {
    pub root: Root,
    pub gpus: GpuSource,
    /// Directory of the daemons' files.
    pub directory: PathBuf,
    pub offers: Offers,
}

impl MpsService {
    /// Runs the daemons until `stopped`, then ends them.
    pub async fn run(mut self, stopped: impl Future<Output = ()>) {
        let gate: Gate = match self.gpus {
            GpuSource::Nvml => Arc::new(set_access),
            GpuSource::Recorded(_) => Arc::new(|_, _| Ok(())),
        };
        let mut supervisor = Supervisor::new(&self.directory, gate);
        let mut idle = false;
        tokio::pin!(stopped);
        loop {
            let Self { root, gpus, offers, .. } = &mut self;
            let supply = offers::read_supply(root, gpus, offers, &GpuErrors::default()).await;
            let needed = needed(&supply.inventory);
            if needed.is_empty() && !idle {
                warn!("no GPU is offered in shares (spec.offers); nothing to do");
            }
            idle = needed.is_empty();
            supervisor.follow(needed).await;
            tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = &mut stopped => break,
            }
        }
        supervisor.stop().await;
    }
}
