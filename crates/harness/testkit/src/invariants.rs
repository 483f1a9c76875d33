//! What must hold on every node, whatever happens on it. Broken laws panic: this is for tests.
#![allow(clippy::panic, clippy::expect_used, reason = "a broken law fails the test that found it")]

use std::collections::BTreeMap;

use berth_kubelet::{
    Admission, AnyDevice, Certainty, ContainerAssignment, Kubelet, PodDemand, Rejection, Verdict,
};
use berth_model::idset::IdSet;
use berth_model::pod::{ContainerKind, Pod};

use crate::scenario::{Scenario, Step};

/// Runs the scenario and checks after every step:
///
/// - `would_admit` says what `admit` does;
/// - no CPU and no device is given to two containers that run at the same time, nor is a CPU both
///   given away and shared or reserved (but on uneven machines, where the kubelet does that);
/// - free and held memory add up, unless the kubelet has lost track of it;
/// - removing a pod restores CPUs and devices exactly, and memory in sum; removing all restores all;
/// - an empty node that adopts all pods has the same free;
/// - what is called certain does not depend on which device "any" is.
pub fn check(scenario: &Scenario) {
    let mut node = Checked {
        even: scenario.even,
        empty: scenario.kubelet.clone(),
        kubelet: scenario.kubelet.clone(),
        twin: Some(scenario.kubelet.clone()),
        pods: BTreeMap::new(),
    };
    if let Some(twin) = &mut node.twin {
        twin.set_any_device(AnyDevice::Highest);
    }
    for step in &scenario.steps {
        match step {
            Step::Admit(pod) => node.admit(pod),
            Step::Remove(index) => {
                let names: Vec<String> = node.kubelet.pods().map(str::to_owned).collect();
                if let Some(name) = names.get(index % names.len().max(1)) {
                    node.remove(name);
                }
            }
        }
        node.check_state();
    }
    let names: Vec<String> = node.kubelet.pods().map(str::to_owned).collect();
    names.iter().for_each(|name| node.remove(name));
    node.check_empty();
}

struct Checked {
    even: bool,
    empty: Kubelet,
    kubelet: Kubelet,
    /// The same node with another idea of "any device", as long as the two must agree.
    twin: Option<Kubelet>,
    pods: BTreeMap<String, Pod>,
}

impl Checked {
    fn admit(&mut self, pod: &Pod) {
        let demand = PodDemand::new(pod, self.kubelet.config().version).expect("a pod that counts");
        let verdict = self.kubelet.would_admit(&demand);
        let before = self.kubelet.clone();
        let outcome = self.kubelet.admit(&pod.name, &demand);
        match (&outcome, verdict) {
            (Ok(admission), Verdict::Admit { numa, preferred, certain }) => {
                assert_eq!(certain, admission.containers.iter().all(|given| given.certain));
                let hints = || admission.containers.iter().filter_map(|given| given.affinity);
                assert_eq!(numa, hints().filter_map(|hint| hint.numa).reduce(|a, b| a | b));
                assert_eq!(preferred, hints().next().is_some() && hints().all(|h| h.preferred));
            }
            (Err(rejection), verdict) => {
                let (reason, certain) = (rejection.reason, rejection.certain);
                assert_eq!(verdict, Verdict::Reject { reason, certain }, "{rejection:?}");
            }
            (outcome, verdict) => panic!("would_admit said {verdict:?}, admit {outcome:?}"),
        }
        self.check_twin(&pod.name, &demand, &outcome);
        if outcome.is_err() {
            self.check_restored(&before);
            return;
        }
        self.pods.insert(pod.name.clone(), pod.clone());
        let mut removed = self.kubelet.clone();
        assert!(removed.remove(&pod.name), "it was admitted");
        let after = std::mem::replace(&mut self.kubelet, removed);
        self.check_restored(&before);
        self.kubelet = after;
    }

    fn remove(&mut self, name: &str) {
        assert!(self.kubelet.remove(name), "it is there");
        if let Some(twin) = &mut self.twin {
            assert!(twin.remove(name), "it is there too");
        }
        self.pods.remove(name);
    }

    fn check_twin(
        &mut self,
        name: &str,
        demand: &PodDemand,
        outcome: &Result<Admission, Rejection>,
    ) {
        let Some(twin) = &mut self.twin else { return };
        let other = twin.admit(name, demand);
        match (outcome, &other) {
            (Ok(mine), Ok(theirs)) => {
                for (mine, theirs) in mine.containers.iter().zip(&theirs.containers) {
                    assert_eq!(mine.certain, theirs.certain);
                    if mine.certain {
                        assert_agree(&self.kubelet, mine, theirs);
                    }
                }
            }
            (Err(mine), theirs) if mine.certain => assert_eq!(Err(mine), theirs.as_ref()),
            (mine, Err(theirs)) if theirs.certain => assert_eq!(mine.as_ref(), Err(theirs)),
            _ => {}
        }
        let together = [outcome, &other].iter().all(|outcome| match outcome {
            Ok(admission) => admission.containers.iter().all(|container| container.certain),
            Err(rejection) => rejection.certain,
        });
        if !together {
            self.twin = None;
        }
    }

    /// CPUs and devices as before; memory may have moved within a group.
    fn check_restored(&self, before: &Kubelet) {
        if self.even {
            assert_eq!(self.kubelet.shared_cpus(), before.shared_cpus(), "CPUs restored");
        }
        for at in 0..self.kubelet.pools().count() {
            assert_eq!(self.kubelet.free_devices(at), before.free_devices(at), "devices restored");
            let certainty = self.kubelet.device_certainty(at);
            assert_eq!(certainty, before.device_certainty(at), "certainty restored");
        }
        if !self.kubelet.may_lose_memory() {
            assert_eq!(free_bytes(&self.kubelet), free_bytes(before), "memory restored in sum");
        }
    }

    fn check_empty(&self) {
        self.check_restored(&self.empty);
        if !self.kubelet.may_lose_memory() {
            assert_eq!(self.kubelet.free_memory(), self.empty.free_memory(), "memory restored");
        }
    }

    fn check_state(&self) {
        let mut cpus_taken = IdSet::EMPTY;
        let mut devices_taken = vec![IdSet::EMPTY; self.kubelet.pools().count()];
        let mut held_bytes = BTreeMap::new();
        for (name, pod) in &self.pods {
            let admission = self.kubelet.assignment(name).expect("it was admitted");
            let mut of_pod = IdSet::EMPTY;
            let mut devices_of_pod = vec![IdSet::EMPTY; devices_taken.len()];
            let mut running = IdSet::EMPTY;
            for (container, given) in pod.containers.iter().zip(&admission.containers) {
                let cpus = given.cpus.unwrap_or_default();
                if self.even {
                    assert!(!cpus.intersects(&cpus_taken), "CPUs of another pod");
                    assert!(!cpus.intersects(&running), "CPUs of a running container");
                }
                of_pod |= cpus;
                if container.kind != ContainerKind::Init {
                    running |= cpus;
                }
                for devices in &given.devices {
                    let taken = devices_taken[devices.pool];
                    assert!(!devices.devices.intersects(&taken), "devices of another pod");
                    devices_of_pod[devices.pool] |= devices.devices;
                }
                for block in &given.memory {
                    *held_bytes.entry(block.kind).or_insert(0u64) += block.bytes;
                }
            }
            cpus_taken |= of_pod;
            for (taken, of_pod) in devices_taken.iter_mut().zip(devices_of_pod) {
                *taken |= of_pod;
            }
        }
        if let (Some(shared), true) = (self.kubelet.shared_cpus(), self.even) {
            assert!(!shared.intersects(&cpus_taken), "given away and shared");
            let reserved = self.kubelet.reserved_cpus().unwrap_or_default();
            assert!(!reserved.intersects(&cpus_taken), "given away and reserved");
            let all = self.empty.shared_cpus().unwrap_or_default();
            assert_eq!(shared | cpus_taken, all, "no CPU is lost");
        }
        for (at, taken) in devices_taken.iter().enumerate() {
            assert!(!self.kubelet.free_devices(at).intersects(taken), "held and free");
        }
        self.check_adopted();
        if !self.kubelet.may_lose_memory() {
            for (kind, bytes) in free_bytes(&self.empty) {
                let held = held_bytes.get(&kind).copied().unwrap_or(0);
                assert_eq!(free_bytes(&self.kubelet)[&kind] + held, bytes, "{kind} adds up");
            }
        }
    }
}

impl Checked {
    fn check_adopted(&self) {
        let mut adopted = self.empty.clone();
        for name in self.pods.keys() {
            let held = self.kubelet.assignment(name).expect("it was admitted");
            adopted.adopt(name, &held).expect("it is possible there");
        }
        if self.even {
            assert_eq!(adopted.shared_cpus(), self.kubelet.shared_cpus(), "CPUs adopted");
        }
        for at in 0..adopted.pools().count() {
            assert_eq!(adopted.free_devices(at), self.kubelet.free_devices(at), "devices adopted");
            assert_eq!(adopted.device_certainty(at), self.kubelet.device_certainty(at));
        }
        if !self.kubelet.may_lose_memory() {
            assert_eq!(free_bytes(&adopted), free_bytes(&self.kubelet), "memory adopted in sum");
        }
    }
}

fn free_bytes(kubelet: &Kubelet) -> BTreeMap<berth_model::resource::MemoryKind, u64> {
    let free = kubelet.free_memory().into_iter();
    free.map(|free| (free.kind, free.bytes.iter().flatten().sum())).collect()
}

/// Two outcomes for the same container agree in what is called certain.
fn assert_agree(kubelet: &Kubelet, mine: &ContainerAssignment, theirs: &ContainerAssignment) {
    assert_eq!((mine.affinity, mine.cpus), (theirs.affinity, theirs.cpus));
    assert_eq!(mine.memory, theirs.memory);
    assert_eq!(mine.devices.len(), theirs.devices.len());
    for (mine, theirs) in mine.devices.iter().zip(&theirs.devices) {
        assert_eq!(mine.certainty, theirs.certainty);
        let by_numa = |set| kubelet.devices_by_numa(mine.pool, set);
        match mine.certainty {
            Certainty::Exact => assert_eq!(mine.devices, theirs.devices),
            Certainty::PerNuma => assert_eq!(by_numa(mine.devices), by_numa(theirs.devices)),
            Certainty::CountOnly => assert_eq!(mine.devices.len(), theirs.devices.len()),
        }
        for (given, other) in [(mine, theirs), (theirs, mine)] {
            assert!(given.certain.is_subset(&other.devices), "certain, but not in every outcome");
            let possible = given.certain | given.candidates;
            assert!(other.devices.is_subset(&possible), "an outcome outside the set given");
        }
    }
}
