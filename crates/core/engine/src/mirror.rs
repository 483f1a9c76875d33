//! A mirror of a node's kubelet: its model, fed with the pods bound there.
//!
//! A decision that no event has confirmed can be taken back as if it had never been made: later
//! steps are replayed without it. The mirror is not trusted while it is contradicted: a bound pod
//! that the model would have rejected, or a decision taken back too late to replay. It is trusted
//! again when those pods have left.

use std::sync::Arc;

use berth_kubelet::{DeviceAssignment, Kubelet, PodDemand, Verdict};
use berth_model::idset::DeviceSet;

use crate::table::PodIx;
use berth_kubelet::NodeTopology;

/// Steps kept for replay; older decisions cannot be taken back exactly.
const UNCONFIRMED_STEPS_MAX: usize = 64;

#[derive(Clone, Debug)]
pub(crate) struct Mirror {
    kubelet: Kubelet,
    /// Admitted pods in order.
    admitted: Vec<PodIx>,
    /// Bound pods that the model would have rejected.
    refused: Vec<PodIx>,
    /// Pods that may hold other devices than the model says.
    doubtful: Vec<PodIx>,
    /// Only pods from events were admitted, and none has left: the admission order can still be
    /// corrected.
    pub(crate) untouched: bool,
    /// Devices with shares in use.
    divided: Vec<u16>,
    /// Steps since the oldest unconfirmed decision.
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
    /// A device is split into shares, so that it is not allocated whole, or no longer.
    Divided {
        pool: usize,
        device: u16,
        divided: bool,
    },
}

impl Step {
    fn pod(&self) -> Option<(PodIx, &Arc<str>)> {
        match self {
            Self::Came(pod, uid, _) | Self::Left(pod, uid) => Some((*pod, uid)),
            Self::Divided { .. } => None,
        }
    }
}

impl Mirror {
    /// A mirror without pods, keeping the known assignments of those that `is_here` accepts.
    pub(crate) fn new(topology: &NodeTopology, is_here: impl Fn(&str) -> bool) -> Self {
        let mut kubelet = topology.empty_kubelet().clone();
        let gone: Vec<String> =
            kubelet.pods().filter(|pod| !is_here(pod)).map(str::to_owned).collect();
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

    /// The mirror after a change of MIG layouts. Pods keep their devices, as in the kubelet's
    /// checkpoint. `None` if a pod's devices are gone or uncertain.
    pub(crate) fn repartitioned(&self, topology: &NodeTopology) -> Option<Self> {
        let mut mirror = Self { untouched: false, ..Self::new(topology, |_| false) };
        if !self.is_trusted() {
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

    pub(crate) fn is_trusted(&self) -> bool {
        self.refused.is_empty() && self.doubtful.is_empty()
    }

    pub(crate) fn would_admit(&self, demand: &PodDemand) -> Verdict {
        self.kubelet.would_admit(demand)
    }

    /// A pod on the node according to an event. `None`: its requests cannot be summed.
    pub(crate) fn admit_from_event(
        &mut self,
        pod: PodIx,
        uid: &Arc<str>,
        demand: Option<Arc<PodDemand>>,
    ) {
        self.step(Step::Came(pod, uid.clone(), demand));
    }

    pub(crate) fn admit(&mut self, pod: PodIx, uid: &Arc<str>, demand: Option<Arc<PodDemand>>) {
        self.untouched = false;
        let unconfirmed = self.unconfirmed.get_or_insert_with(|| {
            let before = self.kubelet.clone();
            Box::new(Unconfirmed { before, steps: Vec::new(), pods: Vec::new() })
        });
        unconfirmed.pods.push(pod);
        self.step(Step::Came(pod, uid.clone(), demand));
    }

    pub(crate) fn remove(&mut self, pod: PodIx, uid: &Arc<str>) {
        self.untouched = false;
        self.step(Step::Left(pod, uid.clone()));
        self.confirm(pod);
    }

    /// Sets which devices of a resource are split into shares: the device plugin reports them as
    /// unhealthy to the kubelet.
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

    pub(crate) fn confirm(&mut self, pod: PodIx) {
        if let Some(unconfirmed) = &mut self.unconfirmed {
            unconfirmed.pods.retain(|one| *one != pod);
            if unconfirmed.pods.is_empty() {
                self.unconfirmed = None;
            }
        }
    }

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

    /// Later pods may have got other devices.
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

/// The same devices by id in another kubelet model.
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
