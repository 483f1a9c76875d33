//! What a driver is asked and told.
//!
//! Owns the five changes of which every division consists, and why one may fail. Must not know in which
//! order they come, nor what undoes them.

use berth_model::mig::{Board, ProfileName};

use super::layout::{GpuLayout, Place, Slice};

pub use berth_nvml::Activation;

/// Where slices of a kind may start, as the driver tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The kind.
    pub profile: ProfileName,
    /// Where it may start; empty if the driver does not tell.
    pub starts: Vec<u8>,
}

/// A GPU as its driver tells of it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigGpu {
    /// Its number, in the driver's order.
    pub index: u32,
    /// Its UUID.
    pub uuid: String,
    /// What it is called.
    pub product: String,
    /// Device and vendor as mig-parted writes them, such as `0x233510DE`.
    pub pci_id: Option<String>,
    /// Its geometry; `None` if it is not known.
    pub board: Option<&'static Board>,
    /// Whether it is in MIG mode; `None` if it has none.
    pub enabled: Option<bool>,
    /// Whether it will be after a reset.
    pub pending: bool,
    /// Kinds of slices.
    pub offers: Vec<Offer>,
    /// Slices that are there, ascending by place.
    pub slices: Vec<Slice>,
}

impl MigGpu {
    /// What it is divided into.
    pub fn layout(&self) -> GpuLayout {
        let enabled = self.enabled == Some(true);
        GpuLayout { gpu: self.uuid.clone(), enabled, slices: self.slices.clone() }
    }
}

/// Why a driver did not do something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// Something runs on it.
    #[error("it is in use")]
    InUse,
    /// Not for this user.
    #[error(
        "this user may not; run as root, or with the right to the device capability mig/config"
    )]
    NoPermission,
    /// The place is taken.
    #[error("there is no room for it")]
    NoRoom,
    /// There is no such slice or GPU.
    #[error("it is not there")]
    NotThere,
    /// The GPU or its mode does not have it.
    #[error("the GPU does not have it in its present mode")]
    NotSupported,
    /// A change of mode waits for a reset.
    #[error(
        "the mode changes with a reset only; drain the node and run nvidia-smi --gpu-reset, or reboot"
    )]
    ResetNeeded,
    /// Something else.
    #[error("{0}")]
    Other(String),
}

/// GPUs that can be divided. Slices are named by their place, since numbers of the driver are given to
/// others when a slice is gone.
pub trait MigDriver {
    /// All GPUs as they are now.
    ///
    /// # Errors
    /// When they cannot be asked.
    fn gpus(&mut self) -> Result<Vec<MigGpu>, DriverError>;

    /// Turns MIG on or off. GPUs with slices stay on.
    ///
    /// # Errors
    /// When it is not done.
    fn set_mode(&mut self, gpu: &str, enabled: bool) -> Result<Activation, DriverError>;

    /// Creates a slice, without compute.
    ///
    /// # Errors
    /// When it is not done.
    fn create(&mut self, gpu: &str, place: Place) -> Result<(), DriverError>;

    /// Creates a compute instance in a slice.
    ///
    /// # Errors
    /// When it is not done.
    fn add_compute(&mut self, gpu: &str, place: Place, slices: u8) -> Result<(), DriverError>;

    /// Destroys one compute instance of a slice.
    ///
    /// # Errors
    /// When it is not done.
    fn remove_compute(&mut self, gpu: &str, place: Place) -> Result<(), DriverError>;

    /// Destroys a slice, which must have no compute.
    ///
    /// # Errors
    /// When it is not done.
    fn destroy(&mut self, gpu: &str, place: Place) -> Result<(), DriverError>;
}
