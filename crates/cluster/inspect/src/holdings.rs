//! What the pods of a node hold: as records say it, and by the kubelet's rules where none do.

use std::borrow::Cow;
use std::collections::BTreeMap;

use berth_api::placement::Placement;
use berth_kubelet::{
    Admission, ContainerAssignment, DeviceAssignment, Kubelet, MemoryBlock, PodDemand,
};
use berth_model::idset::DeviceSet;
use berth_model::numa::NumaMask;

use crate::PodFacts;
use crate::record::{Evidence, Record};

/// The pod that takes, for a trial, what a record says another pod did not get.
const OCCUPANT: &str = "";

/// A node's kubelet with its pods, and where it is known from what each holds.
pub(crate) struct Holdings<'a> {
    pub(crate) kubelet: Cow<'a, Kubelet>,
    evidence: BTreeMap<&'a str, Evidence>,
}

impl<'a> Holdings<'a> {
    /// `mirror` is the engine's kubelet. It knows what pods hold only as far as it knows the order in which
    /// they were admitted, so records take precedence.
    pub(crate) fn new(mirror: &'a Kubelet, pods: &[PodFacts<'a>]) -> Self {
        let mut holdings = Self { kubelet: Cow::Borrowed(mirror), evidence: BTreeMap::new() };
        if pods.iter().all(|pod| pod.record.is_none()) {
            return holdings;
        }
        let mut kubelet = mirror.clone();
        let known: Vec<&'a str> = mirror.pods().collect();
        for uid in &known {
            kubelet.remove(uid);
        }
        let mut order: Vec<&PodFacts<'a>> = pods.iter().collect();
        order.sort_by_key(|pod| {
            let object = pod.object;
            (object.started_at_ms, object.created_at_ms, &*object.uid)
        });
        for pod in &order {
            let Some(Record::Kubelet(assignment)) = pod.record else { continue };
            let held = assignment.admission(&kubelet);
            let adopted = held.is_some_and(|held| kubelet.adopt(&pod.object.uid, &held).is_ok());
            holdings.note(adopted, &pod.object.uid, Evidence::Kubelet);
        }
        for pod in &order {
            let Some(Record::Placement(placement)) = pod.record else { continue };
            let adopted = adopt_placed(&mut kubelet, mirror, pod, placement);
            holdings.note(adopted, &pod.object.uid, Evidence::Placement);
        }
        for uid in order.iter().map(|pod| &*pod.object.uid).chain(known) {
            if kubelet.assignment(uid).is_some() {
                continue;
            }
            let inferred = mirror.assignment(uid);
            let adopted = inferred.is_some_and(|held| kubelet.adopt(uid, &held).is_ok());
            if let (false, Some(pod)) = (adopted, pods.iter().find(|pod| *pod.object.uid == *uid)) {
                // What it would have got if it had come last. If nothing, it is not known.
                let demand = demand(&kubelet, pod);
                drop(demand.map(|demand| kubelet.admit(uid, &demand)));
            }
        }
        holdings.kubelet = Cow::Owned(kubelet);
        holdings
    }

    fn note(&mut self, adopted: bool, uid: &'a str, evidence: Evidence) {
        self.evidence.extend(adopted.then_some((uid, evidence)));
    }

    pub(crate) fn evidence(&self, uid: &str) -> Evidence {
        self.evidence.get(uid).copied().unwrap_or_default()
    }
}

fn demand(kubelet: &Kubelet, pod: &PodFacts<'_>) -> Option<PodDemand> {
    PodDemand::new(&pod.object.spec.pod, kubelet.config().version).ok()
}

/// Gives a pod what the scheduler's record says; CPUs as inferred before if that agrees with the record, else as
/// the kubelet would choose them there.
fn adopt_placed(
    kubelet: &mut Kubelet,
    mirror: &Kubelet,
    pod: &PodFacts<'_>,
    placement: &Placement,
) -> bool {
    let uid = &*pod.object.uid;
    let recorded =
        |held: Option<Admission>| held.and_then(|held| agreeing(kubelet, held, placement));
    let inferred = recorded(mirror.assignment(uid));
    let placed = || recorded(admitted_there(kubelet, pod, placement));
    let candidates = [inferred, placed()];
    candidates.into_iter().flatten().any(|held| kubelet.adopt(uid, &held).is_ok())
}

/// What the kubelet would give the pod with everything taken that the record rules out.
fn admitted_there(
    kubelet: &Kubelet,
    pod: &PodFacts<'_>,
    placement: &Placement,
) -> Option<Admission> {
    let demand = demand(kubelet, pod)?;
    let mut trial = kubelet.clone();
    let machine = kubelet.machine();
    let numa = numa_of(kubelet, placement)?;
    for (position, pool) in kubelet.pools().enumerate() {
        let Some(recorded) = recorded_devices(kubelet, placement, position) else { continue };
        for device in (0..pool.devices.len()).filter(|device| !recorded.contains(*device)) {
            trial.set_device_health(position, device, false);
        }
    }
    if !numa.is_empty() {
        let outside = |at: &usize| !numa.contains(*at);
        let elsewhere = machine.numa().iter().enumerate().filter(|(at, _)| outside(at));
        let elsewhere = elsewhere.map(|(_, numa)| numa.cpus).reduce(|all, cpus| all | cpus);
        let free = kubelet.free_memory();
        let memory = free.iter().flat_map(|kind| {
            let by_numa = kind.bytes.iter().enumerate().filter(|(at, _)| outside(at));
            by_numa.filter_map(|(at, bytes)| {
                let bytes = bytes.filter(|bytes| *bytes > 0)?;
                Some(MemoryBlock { kind: kind.kind, numa: NumaMask::single(at), bytes })
            })
        });
        let occupant = ContainerAssignment {
            name: String::new(),
            affinity: None,
            cpus: kubelet
                .shared_cpus()
                .zip(elsewhere)
                .map(|(shared, elsewhere)| shared & elsewhere),
            memory: memory.collect(),
            devices: Vec::new(),
            certain: true,
        };
        trial.adopt(OCCUPANT, &Admission { containers: vec![occupant] }).ok()?;
    }
    trial.admit(&pod.object.uid, &demand).ok()
}

/// The NUMA nodes that the record names; empty if it names none, `None` if the node has no such.
fn numa_of(kubelet: &Kubelet, placement: &Placement) -> Option<NumaMask> {
    placement.numa_nodes.iter().map(|id| kubelet.machine().numa_position(*id)).collect()
}

/// The devices of a pool that the record names, if it names all that the pod got.
fn recorded_devices(kubelet: &Kubelet, placement: &Placement, pool: usize) -> Option<DeviceSet> {
    let pool = kubelet.pools().nth(pool)?;
    let mut found = DeviceSet::EMPTY;
    let of_pool = placement.devices.iter().filter(|one| *one.resource == *pool.resource.as_str());
    let mut is_named = false;
    for one in of_pool {
        if one.ids.len() != one.count {
            return None;
        }
        for id in &one.ids {
            found.insert(pool.devices.iter().position(|device| device.id == *id)?);
        }
        is_named = true;
    }
    is_named.then_some(found)
}

/// The admission with the recorded devices, if it agrees with the record in everything else.
fn agreeing(kubelet: &Kubelet, mut held: Admission, placement: &Placement) -> Option<Admission> {
    let numa = numa_of(kubelet, placement)?;
    let hints = held.containers.iter().filter_map(|one| one.affinity?.numa);
    let chosen = hints.reduce(|one, other| one | other).unwrap_or(NumaMask::EMPTY);
    if !numa.is_empty() && chosen != numa {
        return None;
    }
    for position in 0..kubelet.pools().count() {
        let Some(recorded) = recorded_devices(kubelet, placement, position) else { continue };
        let given = held.containers.iter_mut().flat_map(|one| &mut one.devices);
        let mut given: Vec<&mut DeviceAssignment> =
            given.filter(|given| given.pool == position).collect();
        match given.as_mut_slice() {
            [one] if one.devices.len() == recorded.len() => {
                (one.devices, one.certain) = (recorded, recorded);
                one.candidates = DeviceSet::EMPTY;
            }
            // Which container has which is not recorded.
            several => {
                let all = several.iter().fold(DeviceSet::EMPTY, |all, one| all | one.devices);
                if all != recorded {
                    return None;
                }
            }
        }
    }
    Some(held)
}
