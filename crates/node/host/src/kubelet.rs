//! A kubelet's files: its configuration, and the state of its CPU, memory and device managers.

mod checksum;
mod configuration;
mod paths;
mod state;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::root::{Diagnosis, Fault, Notes, Root};
pub use checksum::Checksum;
pub(crate) use checksum::{cpu_checksum, data_checksum, device_checksum, memory_checksum};
pub use configuration::{Configuration, ReservedMemory};
pub(crate) use configuration::{FIELDS, configured};
pub use paths::KubeletPaths;
pub use state::{
    Block, ContainerCpus, ContainerMemory, CpuState, DeviceEntry, DeviceState, HeldDevice,
    MemoryState, MemoryTable, NodeState, PodCpus, PodMemory,
};
pub(crate) use state::{case_blind, parsed};

/// Bytes of a state file. A device manager's can hold thousands of replicas with the answer for each.
const STATE_BYTES_MAX: usize = 16 << 20;

/// State files, relative to the kubelet's root directory.
pub(crate) const CPU_STATE: &str = "cpu_manager_state";
pub(crate) const MEMORY_STATE: &str = "memory_manager_state";
pub(crate) const DEVICE_STATE: &str = "device-plugins/kubelet_internal_checkpoint";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeletFiles {
    /// `None` if no configuration can be read.
    pub configuration: Option<Configuration>,
    pub cpus: Option<CpuState>,
    pub memory: Option<MemoryState>,
    pub devices: Option<DeviceState>,
}

impl KubeletFiles {
    /// Reads the files of the kubelet below `root` from their usual paths.
    pub fn read(root: &Root) -> (Self, Vec<Diagnosis>) {
        Self::read_at(root, &KubeletPaths::detect(root))
    }

    /// As [`KubeletFiles::read`], from the given paths.
    pub fn read_at(root: &Root, paths: &KubeletPaths) -> (Self, Vec<Diagnosis>) {
        root.begin_reading();
        let mut notes = Notes::default();
        let configured = configured(root, paths, &mut notes);
        let configuration =
            configured.as_ref().map(|(value, path)| Configuration::of(value, path, &mut notes));
        let mut state = |name: &str, needed: bool| {
            let path = paths.state(name);
            match root.text(&path, STATE_BYTES_MAX) {
                Ok(text) => parsed(&path, &text, &mut notes).map(|value| (value, path)),
                Err(Fault::Missing) if !needed => None,
                Err(fault) => {
                    notes.fault(&path, &fault, "its content is unknown");
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
        files.compare(paths, &mut notes);
        (files, notes.done())
    }

    /// Reads only the device manager's state, which is cheap enough for frequent reads. `None` if the file
    /// does not exist, or cannot be read: then there is a diagnosis.
    pub fn read_devices(
        root: &Root,
        paths: &KubeletPaths,
    ) -> (Option<DeviceState>, Vec<Diagnosis>) {
        root.begin_reading();
        let mut notes = Notes::default();
        let path = paths.state(DEVICE_STATE);
        let found = match root.text(&path, STATE_BYTES_MAX) {
            Ok(text) => parsed(&path, &text, &mut notes)
                .and_then(|value| DeviceState::of(&value, &path, &mut notes)),
            Err(Fault::Missing) => None,
            Err(fault) => {
                notes.fault(&path, &fault, "its content is unknown");
                None
            }
        };
        (found, notes.done())
    }

    /// The checksum that a kubelet would write for this `Data` of its device manager; `None` if the format
    /// is not a kubelet's.
    pub fn checksum_of_devices(data: &Value) -> Option<u32> {
        device_checksum(data.as_object()?)
    }

    /// A kubelet whose state has another policy than its configuration does not start.
    fn compare(&self, paths: &KubeletPaths, notes: &mut Notes) {
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
                     was not restarted since, or fails to start"
                );
                let remedy = "drain the node, stop the kubelet, remove the file and start it again";
                notes.add(&paths.state(name), what, remedy);
            }
        }
    }
}
