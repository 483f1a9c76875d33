//! Keeping the MPS daemons of the node's shared GPUs.
//!
//! Owns when GPUs are looked at for that, and how the driver keeps others from a GPU. It is a service of its own, beside the
//! agent that hands shares out: whoever ends a daemon ends its clients, so it stays when the agent is replaced. Must not
//! know the kubelet, nor Kubernetes.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use berth_devices::mps::{Access, Gate, Keeper, needed};
use berth_host::Root;
use nvml_wrapper::enum_wrappers::device::ComputeMode;
use tracing::warn;

use crate::gpus::GpuSource;
use crate::gpus::nvml::{LIBRARY, opened};
use crate::offers::{self, Ailments, Offers};

/// How often GPUs are looked at: they are divided anew at times, and come back after a reset.
const LOOK: Duration = Duration::from_secs(30);

/// Sets a GPU's compute mode.
fn set_access(uuid: &str, access: Access) -> Result<(), String> {
    let nvml = opened(OsStr::new(LIBRARY)).map_err(|(why, remedy)| format!("{why}: {remedy}"))?;
    let mode = match access {
        Access::Everybody => ComputeMode::Default,
        Access::Daemon => ComputeMode::ExclusiveProcess,
        Access::Nobody => ComputeMode::Prohibited,
    };
    let set = nvml.device_by_uuid(uuid).and_then(|mut device| device.set_compute_mode(mode));
    set.map_err(|error| error.to_string())
}

/// The node whose GPUs are shared.
#[derive(Clone, Debug)]
pub struct MpsService {
    /// Its files.
    pub root: Root,
    /// Its driver.
    pub gpus: GpuSource,
    /// Where the daemons' files are.
    pub directory: PathBuf,
    /// What its GPUs are offered as.
    pub offers: Offers,
}

impl MpsService {
    /// Keeps the daemons until `stopped`; then they end.
    pub async fn run(mut self, stopped: impl Future<Output = ()>) {
        let gate: Gate = match self.gpus {
            GpuSource::Nvml => Arc::new(set_access),
            GpuSource::Recorded(_) => Arc::new(|_, _| Ok(())),
        };
        let mut keeper = Keeper::new(&self.directory, gate);
        let mut idle = false;
        tokio::pin!(stopped);
        loop {
            let Self { root, gpus, offers, .. } = &mut self;
            let stock = offers::look(root, gpus, offers, &Ailments::default()).await;
            let needed = needed(&stock.inventory);
            if needed.is_empty() && !idle {
                warn!("no GPU here is on offer in shares, so there is nothing to do (spec.offers)");
            }
            idle = needed.is_empty();
            keeper.follow(needed).await;
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = &mut stopped => break,
            }
        }
        keeper.stop().await;
    }
}
