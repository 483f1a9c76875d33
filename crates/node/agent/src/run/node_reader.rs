//! Reads the node, and repeats only what may have changed: hardware and driver after a change of the fingerprint, the
//! kubelet's files and cgroups on every event, and location of memory, which is expensive for the kernel, rarely.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use berth_host::cgroup::NodeMemory;
use berth_host::{Cgroups, Diagnosis, Fingerprint, KubeletFiles, KubeletPaths, Machine, Pci, Root};

use crate::audit::PodAudit;
use crate::gpus::{GpuReading, GpuSource};
use crate::report::{self, Reading};

/// What to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    /// The kubelet's files and cgroups.
    Pods,
    All,
}

pub(super) struct NodeReader {
    root: Root,
    source: GpuSource,
    paths: KubeletPaths,
    /// Whether the paths are those of a running kubelet.
    kubelet_found: bool,
    pub(super) reading: Reading,
    hardware_diagnoses: Vec<Diagnosis>,
    fingerprint: Fingerprint,
    /// Memory by container id, and when it was read.
    memory: BTreeMap<String, (Instant, Vec<NodeMemory>)>,
    memory_every: Duration,
}

impl NodeReader {
    pub(super) fn new(root: Root, source: GpuSource, memory_every: Duration) -> Self {
        Self {
            paths: KubeletPaths::detect(&root),
            kubelet_found: false,
            root,
            source,
            reading: Reading::default(),
            hardware_diagnoses: Vec::new(),
            fingerprint: Fingerprint::default(),
            memory: BTreeMap::new(),
            memory_every,
        }
    }

    /// What may have changed since the last reading, judged by a few small files.
    pub(super) fn changed(&self) -> Option<Scope> {
        let now = Fingerprint::read(&self.root, &self.paths);
        if now.hardware != self.fingerprint.hardware {
            return Some(Scope::All);
        }
        (now.kubelet != self.fingerprint.kubelet).then_some(Scope::Pods)
    }

    pub(super) fn read(&mut self, scope: Scope) {
        // Taken before reading, so that a change in between is noticed next time.
        let before = Fingerprint::read(&self.root, &self.paths);
        if scope == Scope::All {
            self.read_hardware();
        } else if !self.kubelet_found {
            // The kubelet may have started after the agent.
            drop(self.find_kubelet());
        }
        let devices = self.devices();
        let (kubelet, mut diagnoses) = KubeletFiles::read_at(&self.root, &self.paths);
        let (cgroups, more) = Cgroups::read(&self.root);
        diagnoses.extend(more);
        self.reading.kubelet = kubelet;
        self.reading.cgroups = cgroups;
        // A repartition registers other devices.
        if scope == Scope::Pods && self.devices() != devices {
            self.read_hardware();
        }
        self.reading.diagnoses = self.hardware_diagnoses.clone();
        self.reading.diagnoses.extend(diagnoses);
        self.fingerprint = before;
    }

    fn read_hardware(&mut self) {
        let (machine, mut diagnoses) = Machine::read(&self.root);
        let (pci, more) = Pci::read(&self.root, &machine);
        diagnoses.extend(more);
        diagnoses.extend(self.find_kubelet());
        let gpus = GpuReading::read(&self.source);
        diagnoses.extend(gpus.diagnoses.iter().cloned());
        self.reading = Reading { machine, pci, gpus, ..std::mem::take(&mut self.reading) };
        self.hardware_diagnoses = diagnoses;
    }

    /// Keeps the known paths if no kubelet runs.
    fn find_kubelet(&mut self) -> Vec<Diagnosis> {
        let (paths, diagnoses) = KubeletPaths::of_running(&self.root);
        if let Some(paths) = paths {
            (self.paths, self.kubelet_found) = (paths, true);
        }
        diagnoses
    }

    fn devices(&self) -> Vec<String> {
        let state = self.reading.kubelet.devices.iter();
        state.flat_map(|state| state.registered.values().flatten().cloned()).collect()
    }

    /// Audits of pods with GPUs.
    pub(super) fn audits(&mut self) -> (Vec<PodAudit>, Vec<Diagnosis>) {
        let Self { root, reading, memory, memory_every, .. } = self;
        let now = Instant::now();
        let mut seen = BTreeSet::new();
        let found = report::audits(reading, &mut |running, diagnoses| {
            seen.insert(running.id.clone());
            match memory.get(&running.id) {
                Some((at, known)) if now.duration_since(*at) < *memory_every => {
                    running.memory.clone_from(known);
                }
                _ => {
                    report::read_memory(root, running, diagnoses);
                    memory.insert(running.id.clone(), (now, running.memory.clone()));
                }
            }
        });
        memory.retain(|id, _| seen.contains(id));
        found
    }

    /// Directories to watch for changes.
    pub(super) fn directories(&self, with_gpus: &BTreeSet<&str>) -> BTreeSet<PathBuf> {
        let base = self.root.base();
        let mut all: BTreeSet<PathBuf> =
            self.paths.directories().iter().map(|path| base.join(path)).collect();
        for pod in &self.reading.cgroups.pods {
            let Some(container) = pod.containers.first() else { continue };
            let mut above = container.path.trim_start_matches('/').rsplitn(3, '/').skip(1);
            let (name, level) =
                (above.next().unwrap_or_default(), above.next().unwrap_or_default());
            all.insert(base.join(level));
            if with_gpus.contains(pod.uid.as_str()) {
                all.insert(base.join(level).join(name));
            }
        }
        all
    }
}
