//! The interface to a driver that can repartition GPUs.

use berth_model::mig::{Board, ProfileName};

use super::layout::{GpuLayout, Placement, Slice};

pub use berth_nvml::Activation;

/// A profile that a GPU supports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SupportedProfile {
    pub profile: ProfileName,
    /// Possible first units; empty if the driver does not report them.
    pub starts: Vec<u8>,
}

/// The current state of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigGpu {
    /// In the driver's order.
    pub index: u32,
    pub uuid: String,
    pub product: String,
    /// Device and vendor id as mig-parted writes them, such as `0x233510DE`.
    pub pci_id: Option<String>,
    /// `None` for an unknown board.
    pub board: Option<&'static Board>,
    /// `None` if the GPU does not support MIG.
    pub enabled: Option<bool>,
    /// The MIG mode after a reset.
    pub pending: bool,
    pub profiles: Vec<SupportedProfile>,
    /// Sorted by placement.
    pub slices: Vec<Slice>,
}

impl MigGpu {
    pub fn layout(&self) -> GpuLayout {
        let enabled = self.enabled == Some(true);
        GpuLayout { gpu: self.uuid.clone(), enabled, slices: self.slices.clone() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    #[error("in use")]
    InUse,
    #[error("permission denied; run as root, or with access to the device capability mig/config")]
    NoPermission,
    #[error("insufficient room")]
    NoRoom,
    #[error("not found")]
    NotThere,
    #[error("not supported by the GPU in its current MIG mode")]
    NotSupported,
    #[error(
        "the MIG mode changes only with a reset; drain the node and run nvidia-smi --gpu-reset, or reboot"
    )]
    ResetNeeded,
    #[error("{0}")]
    Other(String),
}

/// Repartitions GPUs. Slices are named by their placement, since the driver reuses numbers.
pub trait MigDriver {
    /// All GPUs in their current state.
    fn gpus(&mut self) -> Result<Vec<MigGpu>, DriverError>;

    /// Turns MIG on or off.
    fn set_mode(&mut self, gpu: &str, enabled: bool) -> Result<Activation, DriverError>;

    /// Creates a slice without compute instances.
    fn create(&mut self, gpu: &str, place: Placement) -> Result<(), DriverError>;

    /// Creates a compute instance in a slice.
    fn add_compute(&mut self, gpu: &str, place: Placement, slices: u8) -> Result<(), DriverError>;

    /// Destroys one compute instance of a slice.
    fn remove_compute(&mut self, gpu: &str, place: Placement) -> Result<(), DriverError>;

    /// Destroys a slice without compute instances.
    fn destroy(&mut self, gpu: &str, place: Placement) -> Result<(), DriverError>;
}
