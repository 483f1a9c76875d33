//! What a kubelet leaves in files: its configuration, and what its managers have given to whom.
//!
//! Owns where these files are and how they are put together. Must not know what follows from them for
//! pods; [`Configuration::to_planned`] gives what the model of the kubelet is set up with.

mod checksum;
mod configuration;
mod places;
mod state;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::root::{Diagnosis, Fault, Notes, Root};
pub use checksum::Checksum;
pub(crate) use checksum::{cpu_checksum, data_checksum, device_checksum, memory_checksum};
pub use configuration::{Configuration, ReservedMemory};
pub(crate) use configuration::{FIELDS, configured};
pub use places::KubeletPlaces;
pub use state::{
    Block, ContainerCpus, ContainerMemory, CpuState, DeviceEntry, DeviceState, HeldDevice,
    MemoryState, MemoryTable, NodeState, PodCpus, PodMemory,
};
pub(crate) use state::{case_blind, parsed};

/// Bytes of a state file: devices of thousands of replicas, each with what it was answered.
const STATE_BYTES_MAX: usize = 16 << 20;

/// Names of the state files, below the kubelet's own directory.
pub(crate) const CPU_STATE: &str = "cpu_manager_state";
pub(crate) const MEMORY_STATE: &str = "memory_manager_state";
pub(crate) const DEVICE_STATE: &str = "device-plugins/kubelet_internal_checkpoint";

/// What a kubelet's files say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeletFiles {
    /// How it is set up; `None` where no configuration can be read.
    pub configuration: Option<Configuration>,
    /// CPUs given away.
    pub cpus: Option<CpuState>,
    /// Memory given away.
    pub memory: Option<MemoryState>,
    /// Devices given away.
    pub devices: Option<DeviceState>,
}

impl KubeletFiles {
    /// Reads the files of the kubelet below `root`, where kubelets usually keep them.
    pub fn read(root: &Root) -> (Self, Vec<Diagnosis>) {
        Self::read_at(root, &KubeletPlaces::usual(root))
    }

    /// Reads them in other places.
    pub fn read_at(root: &Root, places: &KubeletPlaces) -> (Self, Vec<Diagnosis>) {
        root.begin();
        let mut notes = Notes::default();
        let configured = configured(root, places, &mut notes);
        let configuration =
            configured.as_ref().map(|(value, path)| Configuration::of(value, path, &mut notes));
        let mut state = |name: &str, needed: bool| {
            let path = places.state(name);
            match root.text(&path, STATE_BYTES_MAX) {
                Ok(text) => parsed(&path, &text, &mut notes).map(|value| (value, path)),
                Err(Fault::Missing) if !needed => None,
                Err(fault) => {
                    notes.fault(&path, &fault, "what it holds is unknown");
                    None
                }
            }
        };
        let known = configuration.as_ref();
        let cpus = state(CPU_STATE, known.is_some_and(Configuration::pins_cpus));
        let memory = state(MEMORY_STATE, known.is_some_and(Configuration::pins_memory));
        let devices = state(DEVICE_STATE, false);
        let read = |found: Option<(Value, String)>, notes: &mut Notes| {
            found.and_then(|(value, path)| CpuState::of(&value, &path, notes))
        };
        let files = Self {
            configuration,
            cpus: read(cpus, &mut notes),
            memory: memory.and_then(|(value, path)| MemoryState::of(&value, &path, &mut notes)),
            devices: devices.and_then(|(value, path)| DeviceState::of(&value, &path, &mut notes)),
        };
        files.compare(places, &mut notes);
        (files, notes.done())
    }

    /// Reads only what the device manager keeps, for whoever looks often. `None` where there is no such
    /// file or it cannot be read; diagnoses say which.
    pub fn read_devices(
        root: &Root,
        places: &KubeletPlaces,
    ) -> (Option<DeviceState>, Vec<Diagnosis>) {
        root.begin();
        let mut notes = Notes::default();
        let path = places.state(DEVICE_STATE);
        let found = match root.text(&path, STATE_BYTES_MAX) {
            Ok(text) => parsed(&path, &text, &mut notes)
                .and_then(|value| DeviceState::of(&value, &path, &mut notes)),
            Err(Fault::Missing) => None,
            Err(fault) => {
                notes.fault(&path, &fault, "what it holds is unknown");
                None
            }
        };
        (found, notes.done())
    }

    /// The checksum that a kubelet writes beside this `Data` of its device manager; `None` where it is
    /// not what kubelets write.
    pub fn checksum_of_devices(data: &Value) -> Option<u32> {
        device_checksum(data.as_object()?)
    }

    /// A kubelet that finds another policy in its state than it is configured with does not start.
    fn compare(&self, places: &KubeletPlaces, notes: &mut Notes) {
        let Some(configuration) = &self.configuration else { return };
        let cpus = self.cpus.as_ref().map(|state| state.policy.as_str());
        let memory = self.memory.as_ref().map(|state| state.policy.as_str());
        for (name, state, configured) in [
            (CPU_STATE, cpus, configuration.cpu_manager_policy.as_str()),
            (MEMORY_STATE, memory, configuration.memory_manager_policy.as_str()),
        ] {
            if let Some(state) = state.filter(|state| *state != configured) {
                let what = format!(
                    "was written under policy {state:?}, but {configured:?} is configured: the kubelet \
                     has not been restarted since, or does not start"
                );
                let remedy = "drain the node, stop the kubelet, remove the file and start it again";
                notes.add(&places.state(name), what, remedy);
            }
        }
    }
}
