//! What a node's kubelet has handed out, as far as we know.
//!
//! Owns one kubelet model per node with known topology, fed with the pods bound there. Decisions that
//! no event has confirmed can be taken back as if they had never been made: what happened since is
//! then done again without them. The mirror is not believed while something shows that it is wrong: a
//! pod is bound although the model would have rejected it, or a decision was taken back too late to
//! know what would have come of the others. When those pods have left it is believed again. Must not
//! know why pods are bound.

use std::sync::Arc;

use berth_kubelet::{DeviceAssignment, Kubelet, PodDemand, Verdict};
use berth_model::idset::DeviceSet;

use crate::event::NodeTopology;
use crate::table::PodIx;

/// So much may happen on a node before a decision there is too old to be taken back exactly.
const UNCONFIRMED_STEPS_MAX: usize = 64;

/// A node's kubelet as we see it.
#[derive(Clone, Debug)]
pub(crate) struct Mirror {
    kubelet: Kubelet,
    /// Pods in the order in which they were taken in.
    admitted: Vec<PodIx>,
    /// Bound pods that it would have rejected.
    refused: Vec<PodIx>,
    /// Pods that may hold something else than we think.
    doubtful: Vec<PodIx>,
    /// Only pods that events told of have come, and none has left: the order in which they are taken
    /// in can still be mended.
    untouched: bool,
    /// Devices of which shares are given away.
    divided: Vec<u16>,
    /// What happened since the oldest decision that is not confirmed.
    unconfirmed: Option<Box<Unconfirmed>>,
}

#[derive(Clone, Debug)]
struct Unconfirmed {
    before: Kubelet,
    steps: Vec<Step>,
    pods: Vec<PodIx>,
}

#[derive(Clone, Debug)]
enum Step {
    Came(PodIx, Arc<str>, Option<Arc<PodDemand>>),
    Left(PodIx, Arc<str>),
    /// A device is divided, so that it is not handed out whole, or is not any more.
    Divided {
        pool: usize,
        device: u16,
        divided: bool,
    },
}

impl Step {
    /// The pod that came or left.
    fn pod(&self) -> Option<(PodIx, &Arc<str>)> {
        match self {
            Self::Came(pod, uid, _) | Self::Left(pod, uid) => Some((*pod, uid)),
            Self::Divided { .. } => None,
        }
    }
}

impl Mirror {
    /// Of a node with no pods yet. Of those that come, what they hold may be known.
    pub(crate) fn new(topology: &NodeTopology, comes: impl Fn(&str) -> bool) -> Self {
        let mut kubelet = topology.empty_kubelet().clone();
        let gone: Vec<String> =
            kubelet.pods().filter(|pod| !comes(pod)).map(str::to_owned).collect();
        for pod in gone {
            kubelet.remove(&pod);
        }
        Self {
            kubelet,
            admitted: Vec::new(),
            refused: Vec::new(),
            doubtful: Vec::new(),
            untouched: true,
            divided: Vec::new(),
            unconfirmed: None,
        }
    }

    /// Of the same node with its GPUs divided into other slices. Pods keep the devices they hold, as
    /// the kubelet's checkpoint has it. `None` if one of them has lost some, or holds who knows what.
    pub(crate) fn redivided(&self, topology: &NodeTopology) -> Option<Self> {
        let mut mirror = Self { untouched: false, ..Self::new(topology, |_| false) };
        if !self.is_believed() {
            return None;
        }
        let names: Vec<&str> = self.kubelet.pods().collect();
        for name in names {
            let mut held = self.kubelet.assignment(name)?;
            for given in held.containers.iter_mut().flat_map(|one| &mut one.devices) {
                *given = moved(given, &self.kubelet, &mirror.kubelet)?;
            }
            mirror.kubelet.adopt(name, &held).ok()?;
        }
        mirror.admitted.clone_from(&self.admitted);
        Some(mirror)
    }

    pub(crate) fn kubelet(&self) -> &Kubelet {
        &self.kubelet
    }

    /// Whether nothing shows that it is wrong.
    pub(crate) fn is_believed(&self) -> bool {
        self.refused.is_empty() && self.doubtful.is_empty()
    }

    /// Whether it would be the same if it were made anew from the pods on the node.
    pub(crate) fn is_untouched(&self) -> bool {
        self.untouched
    }

    pub(crate) fn would_admit(&self, demand: &PodDemand) -> Verdict {
        self.kubelet.would_admit(demand)
    }

    /// An event tells of a pod on the node. `None`: it cannot be counted at all.
    pub(crate) fn admit_told(
        &mut self,
        pod: PodIx,
        uid: &Arc<str>,
        demand: Option<Arc<PodDemand>>,
    ) {
        self.step(Step::Came(pod, uid.clone(), demand));
    }

    /// We decided that a pod is on the node.
    pub(crate) fn admit(&mut self, pod: PodIx, uid: &Arc<str>, demand: Option<Arc<PodDemand>>) {
        self.untouched = false;
        let unconfirmed = self.unconfirmed.get_or_insert_with(|| {
            let before = self.kubelet.clone();
            Box::new(Unconfirmed { before, steps: Vec::new(), pods: Vec::new() })
        });
        unconfirmed.pods.push(pod);
        self.step(Step::Came(pod, uid.clone(), demand));
    }

    /// A pod has left.
    pub(crate) fn remove(&mut self, pod: PodIx, uid: &Arc<str>) {
        self.untouched = false;
        self.step(Step::Left(pod, uid.clone()));
        self.confirm(pod);
    }

    /// Which devices of a resource are divided: whoever hands them out does not give them away whole
    /// then, and tells the kubelet that they are not to be had.
    pub(crate) fn divide(&mut self, resource: &str, is_divided: impl Fn(u16) -> bool) {
        let Some(pool) = self.kubelet.pool_of(resource) else { return };
        let devices = self.kubelet.pools().nth(pool).map_or(0, |pool| pool.devices.len());
        for device in 0..u16::try_from(devices).unwrap_or(u16::MAX) {
            let divided = is_divided(device);
            if divided != self.divided.contains(&device) {
                self.divided.retain(|one| *one != device);
                self.divided.extend(divided.then_some(device));
                self.step(Step::Divided { pool, device, divided });
            }
        }
    }

    /// A decision has been seen carried out.
    pub(crate) fn confirm(&mut self, pod: PodIx) {
        if let Some(unconfirmed) = &mut self.unconfirmed {
            unconfirmed.pods.retain(|one| *one != pod);
            if unconfirmed.pods.is_empty() {
                self.unconfirmed = None;
            }
        }
    }

    /// A decision was not carried out: its pod has never come.
    pub(crate) fn undo(&mut self, pod: PodIx, uid: &Arc<str>) {
        let known = self.unconfirmed.as_ref().is_some_and(|known| known.pods.contains(&pod));
        let Some(unconfirmed) = self.unconfirmed.take().filter(|_| known) else {
            return self.undo_late(pod, uid);
        };
        let Unconfirmed { before, steps, mut pods } = *unconfirmed;
        pods.retain(|one| *one != pod);
        // By UID: a pod that has left may have had the same number.
        let others = |step: &Step| step.pod().is_none_or(|(_, one)| one != uid);
        let again = steps.into_iter().filter(others).collect::<Vec<_>>();
        self.admitted.retain(|one| *one != pod);
        self.refused.retain(|one| *one != pod);
        for (other, _) in again.iter().filter_map(Step::pod) {
            self.admitted.retain(|one| *one != other);
            self.refused.retain(|one| *one != other);
        }
        self.kubelet = before.clone();
        if !pods.is_empty() {
            let steps = Vec::with_capacity(again.len());
            self.unconfirmed = Some(Box::new(Unconfirmed { before, steps, pods }));
        }
        again.into_iter().for_each(|step| self.step(step));
    }

    /// Who came after it may have been given something else.
    fn undo_late(&mut self, pod: PodIx, uid: &Arc<str>) {
        if let Some(at) = self.admitted.iter().position(|one| *one == pod) {
            let after = self.admitted.iter().skip(at + 1);
            let new = after.filter(|one| !self.doubtful.contains(one)).copied();
            let new: Vec<PodIx> = new.collect();
            self.doubtful.extend(new);
        }
        self.remove(pod, uid);
    }

    fn step(&mut self, step: Step) {
        match &step {
            Step::Came(pod, uid, demand) => {
                let demand = demand.as_ref();
                if demand.is_none_or(|demand| self.kubelet.admit(uid, demand).is_err()) {
                    self.refused.push(*pod);
                } else {
                    self.admitted.push(*pod);
                    if !self.doubtful.is_empty() {
                        self.doubtful.push(*pod);
                    }
                }
            }
            Step::Left(pod, uid) => {
                self.kubelet.remove(uid);
                for pods in [&mut self.admitted, &mut self.refused, &mut self.doubtful] {
                    pods.retain(|one| one != pod);
                }
            }
            Step::Divided { pool, device, divided } => {
                let device = usize::from(*device);
                let listed = self.kubelet.pools().nth(*pool);
                let healthy = listed.and_then(|pool| pool.devices.get(device));
                let healthy = healthy.is_some_and(|device| device.healthy) && !divided;
                self.kubelet.set_device_health(*pool, device, healthy);
            }
        }
        if let Some(unconfirmed) = &mut self.unconfirmed {
            unconfirmed.steps.push(step);
            if unconfirmed.steps.len() > UNCONFIRMED_STEPS_MAX {
                self.unconfirmed = None;
            }
        }
    }
}

/// The same devices by id, where they are listed now.
fn moved(given: &DeviceAssignment, from: &Kubelet, to: &Kubelet) -> Option<DeviceAssignment> {
    let pool = to.pool_of(given.resource.as_str())?;
    let (old, new) = (from.pools().nth(given.pool)?, to.pools().nth(pool)?);
    let place = |device: usize| {
        let id = &old.devices.get(device)?.id;
        new.devices.iter().position(|device| device.id == *id)
    };
    let all = |set: DeviceSet| set.iter().map(place).collect::<Option<DeviceSet>>();
    Some(DeviceAssignment {
        resource: given.resource.clone(),
        pool,
        devices: all(given.devices)?,
        certain: all(given.certain)?,
        candidates: all(given.candidates)?,
        certainty: given.certainty,
    })
}
