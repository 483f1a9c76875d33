//! What may not be touched, and for whose sake.
//!
//! Owns how processes and devices that pods hold become slices and GPUs in use. In doubt a GPU is in use.
//! Must not ask a driver.

use std::collections::BTreeMap;

use berth_host::{Cgroups, KubeletFiles, KubeletPaths, Root};

use super::layout::Place;
use crate::gpus::{DriverGpu, GpuReading};

/// How the name of the file ends in which the kubelet keeps what it has given away.
const CHECKPOINT: &str = "kubelet_internal_checkpoint";

/// GPUs and slices with work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Busy {
    /// By UUID, whose it is.
    gpus: BTreeMap<String, String>,
    /// By UUID of the GPU and start of the slice.
    slices: BTreeMap<(String, u8), String>,
    /// Work that is on some GPU, nobody knows which.
    somewhere: Option<String>,
}

impl Busy {
    /// A whole GPU is in use.
    pub fn gpu(&mut self, uuid: &str, who: impl Into<String>) -> &mut Self {
        self.gpus.entry(uuid.to_owned()).or_insert_with(|| who.into());
        self
    }

    /// A slice is in use.
    pub fn slice(&mut self, uuid: &str, start: u8, who: impl Into<String>) -> &mut Self {
        self.slices.entry((uuid.to_owned(), start)).or_insert_with(|| who.into());
        self
    }

    /// Whose the whole of a GPU is.
    pub fn of_gpu(&self, uuid: &str) -> Option<&str> {
        self.gpus.get(uuid).or(self.somewhere.as_ref()).map(String::as_str)
    }

    /// Whose a slice is, or the whole GPU.
    pub fn of_slice(&self, uuid: &str, place: Place) -> Option<&str> {
        let own = self.slices.get(&(uuid.to_owned(), place.start)).map(String::as_str);
        own.or_else(|| self.of_gpu(uuid))
    }

    /// From what the driver says of processes, and the ids of devices that pods hold, each with whose it
    /// is.
    pub fn of<'a>(
        reading: &GpuReading,
        held: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let mut busy = Self::default();
        for gpu in &reading.gpus {
            busy.processes(gpu);
        }
        for (id, who) in held {
            busy.held(reading, id, who);
        }
        busy
    }

    /// From what the driver says of processes, and what the kubelet below `root` has given away by its
    /// checkpoint. Entries of pods that have no cgroup any more are left over: the kubelet drops them when
    /// it gives something away the next time.
    pub fn on_machine(root: &Root, reading: &GpuReading) -> Self {
        let (places, _) = KubeletPaths::of_running(root);
        let places = places.unwrap_or_else(|| KubeletPaths::detect(root));
        let (kubelet, diagnoses) = KubeletFiles::read_at(root, &places);
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
        let mut busy = Self::of(reading, held.iter().map(|(id, who)| (id.as_str(), who.as_str())));
        let wrong = diagnoses.iter().find(|one| one.path.ends_with(CHECKPOINT));
        if let Some(wrong) = wrong {
            let who = format!("pods that nobody can name: {}: {}", wrong.path, wrong.what);
            busy.somewhere.get_or_insert(who);
        }
        busy
    }

    fn processes(&mut self, gpu: &DriverGpu) {
        let Some(uuid) = gpu.uuid.as_deref() else {
            if !gpu.processes.is_empty() {
                self.somewhere = Some("processes on a GPU without a UUID".to_owned());
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
                    // Nobody knows where on the GPU it is, or it is all of it.
                    Some(None) | None => self.gpu(uuid, who),
                };
            }
            None if base.starts_with("MIG-") || base.starts_with("GPU-") => {
                let why = format!("{who} with {base}, which no GPU has");
                self.somewhere.get_or_insert(why);
            }
            // Some other kind of device.
            None => {}
        }
    }
}
