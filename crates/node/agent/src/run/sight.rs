//! What is seen of the node, and how much of it is looked at again.
//!
//! Owns the last reading. Hardware and drivers are read when they may have changed, the kubelet's files and
//! cgroups whenever something happens; where memory lies, which costs the kernel time for every page, seldom.
//! Must not know when to look, nor what becomes of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use berth_host::cgroup::NodeMemory;
use berth_host::{Cgroups, Diagnosis, KubeletFiles, KubeletPaths, Machine, Pci, Fingerprint, Root};

use crate::audit::PodAudit;
use crate::gpus::{GpuReading, GpuSource};
use crate::report::{self, Reading};

/// How much is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    /// The kubelet's files, and cgroups.
    Pods,
    /// Everything.
    All,
}

/// What is seen of the node.
pub(super) struct Sight {
    root: Root,
    source: GpuSource,
    places: KubeletPaths,
    /// Whether these are a running kubelet's.
    seen_running: bool,
    pub(super) reading: Reading,
    /// What was wrong with the hardware when it was last read.
    of_hardware: Vec<Diagnosis>,
    pulse: Fingerprint,
    /// Where memory was, by container, and when that was looked at.
    memory: BTreeMap<String, (Instant, Vec<NodeMemory>)>,
    memory_every: Duration,
}

impl Sight {
    pub(super) fn new(root: Root, source: GpuSource, memory_every: Duration) -> Self {
        Self {
            places: KubeletPaths::detect(&root),
            seen_running: false,
            root,
            source,
            reading: Reading::default(),
            of_hardware: Vec::new(),
            pulse: Fingerprint::default(),
            memory: BTreeMap::new(),
            memory_every,
        }
    }

    /// How much may have changed since it was last looked at, told by a few small files.
    pub(super) fn pulse(&self) -> Option<Scope> {
        let now = Fingerprint::read(&self.root, &self.places);
        if now.hardware != self.pulse.hardware {
            return Some(Scope::All);
        }
        (now.kubelet != self.pulse.kubelet).then_some(Scope::Pods)
    }

    /// Looks again.
    pub(super) fn look(&mut self, scope: Scope) {
        // What changes meanwhile is seen next time.
        let before = Fingerprint::read(&self.root, &self.places);
        if scope == Scope::All {
            self.look_at_hardware();
        } else if !self.seen_running {
            // It may have been started after us.
            drop(self.look_for_kubelet());
        }
        let devices = self.devices();
        let (kubelet, mut diagnoses) = KubeletFiles::read_at(&self.root, &self.places);
        let (cgroups, more) = Cgroups::read(&self.root);
        diagnoses.extend(more);
        self.reading.kubelet = kubelet;
        self.reading.cgroups = cgroups;
        // Other devices are registered when GPUs are divided anew.
        if scope == Scope::Pods && self.devices() != devices {
            self.look_at_hardware();
        }
        self.reading.diagnoses = self.of_hardware.clone();
        self.reading.diagnoses.extend(diagnoses);
        self.pulse = before;
    }

    fn look_at_hardware(&mut self) {
        let (machine, mut diagnoses) = Machine::read(&self.root);
        let (pci, more) = Pci::read(&self.root, &machine);
        diagnoses.extend(more);
        diagnoses.extend(self.look_for_kubelet());
        let gpus = GpuReading::read(&self.source);
        diagnoses.extend(gpus.diagnoses.iter().cloned());
        self.reading = Reading { machine, pci, gpus, ..std::mem::take(&mut self.reading) };
        self.of_hardware = diagnoses;
    }

    /// One that does not run now has left its files where they were.
    fn look_for_kubelet(&mut self) -> Vec<Diagnosis> {
        let (places, diagnoses) = KubeletPaths::of_running(&self.root);
        if let Some(places) = places {
            (self.places, self.seen_running) = (places, true);
        }
        diagnoses
    }

    fn devices(&self) -> Vec<String> {
        let state = self.reading.kubelet.devices.iter();
        state.flat_map(|state| state.registered.values().flatten().cloned()).collect()
    }

    /// The verdicts on pods with GPUs.
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
                    report::look_at_memory(root, running, diagnoses);
                    memory.insert(running.id.clone(), (now, running.memory.clone()));
                }
            }
        });
        memory.retain(|id, _| seen.contains(id));
        found
    }

    /// Directories in which something happens before anything changes for pods.
    pub(super) fn directories(&self, with_gpus: &BTreeSet<&str>) -> BTreeSet<PathBuf> {
        let base = self.root.base();
        let mut all: BTreeSet<PathBuf> =
            self.places.directories().iter().map(|path| base.join(path)).collect();
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
