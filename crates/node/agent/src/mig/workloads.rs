//! GPUs and slices in use, by processes and by pods that hold devices. In doubt a GPU is in use.

use std::collections::BTreeMap;

use berth_host::{Cgroups, KubeletFiles, KubeletPaths, Root};

use super::layout::Placement;
use crate::gpus::{DriverGpu, GpuReading};

/// Name of the kubelet's checkpoint.
const CHECKPOINT: &str = "kubelet_internal_checkpoint";

/// GPUs and slices in use, and by whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workloads {
    /// By UUID.
    gpus: BTreeMap<String, String>,
    /// By UUID of the GPU and first unit of the slice.
    slices: BTreeMap<(String, u8), String>,
    /// Work on an unknown GPU.
    unlocated: Option<String>,
}

impl Workloads {
    /// Marks a whole GPU as in use.
    pub fn gpu(&mut self, uuid: &str, who: impl Into<String>) -> &mut Self {
        self.gpus.entry(uuid.to_owned()).or_insert_with(|| who.into());
        self
    }

    /// Marks a slice as in use.
    pub fn slice(&mut self, uuid: &str, start: u8, who: impl Into<String>) -> &mut Self {
        self.slices.entry((uuid.to_owned(), start)).or_insert_with(|| who.into());
        self
    }

    /// Who uses the whole GPU.
    pub fn gpu_user(&self, uuid: &str) -> Option<&str> {
        self.gpus.get(uuid).or(self.unlocated.as_ref()).map(String::as_str)
    }

    /// Who uses a slice, or the whole GPU.
    pub fn slice_user(&self, uuid: &str, place: Placement) -> Option<&str> {
        let own = self.slices.get(&(uuid.to_owned(), place.start)).map(String::as_str);
        own.or_else(|| self.gpu_user(uuid))
    }

    /// From the driver's processes, and pairs of a device id and its holder.
    pub fn of<'a>(
        reading: &GpuReading,
        held: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let mut workloads = Self::default();
        for gpu in &reading.gpus {
            workloads.processes(gpu);
        }
        for (id, who) in held {
            workloads.held(reading, id, who);
        }
        workloads
    }

    /// From the driver's processes, and the kubelet's checkpoint below `root`. Entries of pods without a cgroup are
    /// ignored: the kubelet removes them at the next allocation.
    pub fn on_machine(root: &Root, reading: &GpuReading) -> Self {
        let (paths, _) = KubeletPaths::of_running(root);
        let paths = paths.unwrap_or_else(|| KubeletPaths::detect(root));
        let (kubelet, diagnoses) = KubeletFiles::read_at(root, &paths);
        let (cgroups, _) = Cgroups::read(root);
        let is_gone =
            |uid: &str| !cgroups.pods.is_empty() && cgroups.pods.iter().all(|pod| pod.uid != uid);
        let mut held: Vec<(String, String)> = Vec::new();
        for entry in kubelet.devices.iter().flat_map(|state| &state.entries) {
            if !is_gone(&entry.pod) {
                let who = format!("pod {}", entry.pod);
                held.extend(entry.devices.iter().map(|device| (device.id.clone(), who.clone())));
            }
        }
        let mut workloads =
            Self::of(reading, held.iter().map(|(id, who)| (id.as_str(), who.as_str())));
        let unreadable = diagnoses.iter().find(|one| one.path.ends_with(CHECKPOINT));
        if let Some(diagnosis) = unreadable {
            let who = format!("unknown pods ({}: {})", diagnosis.path, diagnosis.what);
            workloads.unlocated.get_or_insert(who);
        }
        workloads
    }

    fn processes(&mut self, gpu: &DriverGpu) {
        let Some(uuid) = gpu.uuid.as_deref() else {
            if !gpu.processes.is_empty() {
                self.unlocated = Some("processes on a GPU without a UUID".to_owned());
            }
            return;
        };
        for process in &gpu.processes {
            let who = format!("process {}", process.pid);
            let own = process.gpu_instance.and_then(|id| {
                let slice = gpu.instances.iter().find(|one| one.gpu_instance == Some(id))?;
                u8::try_from(slice.start?).ok()
            });
            match own {
                Some(start) => self.slice(uuid, start, who),
                None => self.gpu(uuid, who),
            };
        }
    }

    fn held(&mut self, reading: &GpuReading, id: &str, who: &str) {
        let base = id.split_once("::").map_or(id, |(base, _)| base);
        match reading.with_uuid(base) {
            Some((gpu, slice)) => {
                let uuid = gpu.uuid.as_deref().unwrap_or(base);
                let start = slice.map(|slice| slice.start.and_then(|start| start.try_into().ok()));
                match start {
                    Some(Some(start)) => self.slice(uuid, start, who),
                    // The whole GPU, or a slice with unknown position.
                    Some(None) | None => self.gpu(uuid, who),
                };
            }
            None if base.starts_with("MIG-") || base.starts_with("GPU-") => {
                let who = format!("{who} with {base}, which no GPU has");
                self.unlocated.get_or_insert(who);
            }
            // Another kind of device.
            None => {}
        }
    }
}
