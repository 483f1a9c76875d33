//! The record of which container holds which device, and the decision what may be allocated.
//!
//! The kubelet asks for devices by id, but never says for which pod, nor when a pod has ended. It guards each
//! resource by itself, so it cannot know that a GPU is offered under several names; and it forgets what it
//! allocated when it loses its checkpoint. So this ledger combines Berth's own answers, the kubelet's
//! checkpoint, podresources, and the running pods:
//!
//! - An answer is a *promise* until the checkpoint shows its container, and nobody else gets the device. It may
//!   never show it: of two concurrent writes of the checkpoint, the older can remain. So a promise also ends
//!   when the kubelet that asked says that it does not have the device, or, once that kubelet is gone, with the
//!   last pod it may have been made for.
//! - A hold in the checkpoint lasts as long as the entry, unless both podresources and the running pods
//!   contradict it: kubelets keep entries of finished pods until they need the device.
//! - A hold that is no longer in the checkpoint lasts while its pod runs: the kubelet forgot it.
//!
//! Pure: time and evidence are arguments.

use std::collections::{BTreeMap, BTreeSet};

use berth_host::kubelet::{Checksum, DeviceState};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::cdi;
use crate::decision::{Allocation, Decision};
use crate::device::{Device, GpuIndex, Inventory, Kind, SharingMode};
use crate::prefer::{Chooser, Preference};

/// How long to trust a new hold that nothing confirms: a pod that was just admitted has no process yet.
pub const GRACE_MS: i64 = 30_000;

/// How long a kubelet may take from an answer until its checkpoint shows it.
pub const IN_FLIGHT_MS: i64 = 5_000;

/// How long a device must have been healthy before it is allocated again.
pub const RECOVERY_MS: i64 = 10_000;

/// Stands for a GPU that no longer exists.
const NO_GPU: GpuIndex = GpuIndex(u16::MAX);

/// What is known at a moment. `None`: unknown at that moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Evidence<'a> {
    pub now_ms: i64,
    /// The kubelet's checkpoint; ignored if its checksum is wrong.
    pub checkpoint: Option<&'a DeviceState>,
    /// Resource and id of all devices in podresources.
    pub listed: Option<&'a BTreeSet<(String, String)>>,
    /// UIDs of all pods with processes.
    pub pods: Option<&'a BTreeSet<String>>,
    /// Identity of the kubelet that allocates devices; differs after each restart.
    pub kubelet: Option<&'a str>,
    /// Identity of the kubelet that serves podresources. A starting kubelet serves podresources before it
    /// allocates devices, and before it has read its checkpoint.
    pub lister: Option<&'a str>,
}

/// A container that holds a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// UID.
    pub pod: String,
    pub container: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Hold {
    /// `None` for a promise.
    holder: Option<Holder>,
    since_ms: i64,
    /// Whether the kubelet's checkpoint shows it.
    in_checkpoint: bool,
    /// The checkpoint still has the entry, but its pod has ended.
    over: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    promise: Option<Promise>,
}

impl Hold {
    fn of(holder: Holder, now_ms: i64) -> Self {
        let holder = Some(holder);
        Self { holder, since_ms: now_ms, in_checkpoint: true, over: false, promise: None }
    }
}

/// What is known of the pod that a device was promised to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Promise {
    /// The kubelet that asked.
    kubelet: Option<String>,
    /// The kubelet that served podresources at that time.
    lister: Option<String>,
    /// Pods that already had processes: the promise was not made for these.
    before: BTreeSet<String>,
    /// Pods that it may have been made for, once the kubelet that asked is gone.
    suspects: Option<BTreeSet<String>>,
}

/// All holds, to survive a crash of both the kubelet and the plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Journal {
    holds: Vec<JournalHold>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct JournalHold {
    device: Device,
    /// GPU numbers change when a GPU is removed.
    gpu_uuid: String,
    hold: Hold,
}

/// Why a device is not allocated.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    #[error("{resource} has no device {id:?}: the device list has changed; retry")]
    Unknown { resource: String, id: String },
    #[error("device {id:?} of {resource} is requested twice in one call")]
    Twice { resource: String, id: String },
    #[error("device {id:?} of {resource} is unhealthy ({reason})")]
    Unhealthy { resource: String, id: String, reason: String },
    #[error(
        "a container requests {asked} of {resource}, but the limit is {most}: request fewer, or raise \
         sharesPerContainer in DeviceOffers"
    )]
    TooMany { resource: String, asked: usize, most: u8 },
    /// A container can use only one MPS daemon, and each GPU has its own.
    #[error(
        "a container would get shares of {resource} on several GPUs, but can use the MPS daemon of one only: \
         request no more than are free on one GPU"
    )]
    Apart { resource: String },
    #[error(
        "device {id:?} of {resource} is in use: {holder} holds {held:?} of {held_resource}, which is the same \
         hardware"
    )]
    Held { resource: String, id: String, held_resource: String, held: String, holder: String },
}

/// A device as listed to the kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub id: String,
    /// Whether it can be allocated, or continue to be held.
    pub healthy: bool,
    /// NUMA nodes near it.
    pub numa: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Fault {
    reason: String,
    healthy_since_ms: Option<i64>,
}

#[derive(Clone, Debug)]
pub struct Ledger {
    inventory: Inventory,
    holds: Vec<Vec<Hold>>,
    /// Holds of devices that are no longer listed, or that another plugin listed. They still occupy hardware.
    unlisted: Vec<JournalHold>,
    faults: BTreeMap<String, Fault>,
    /// UUIDs with a running MPS daemon; `None` if never reported.
    daemons: Option<BTreeSet<String>>,
    decisions: Vec<Decision>,
    /// Whether the last checkpoint could be read. If not, it is unknown what the kubelet allocated.
    checkpoint_known: bool,
    /// As of the last observation.
    kubelet: Option<String>,
    lister: Option<String>,
    pods: BTreeSet<String>,
}

impl Ledger {
    /// Restores the holds of an earlier process.
    pub fn new(inventory: Inventory, journal: Journal) -> Self {
        let holds = vec![Vec::new(); inventory.devices().len()];
        let mut ledger = Self {
            inventory,
            holds,
            unlisted: Vec::new(),
            faults: BTreeMap::new(),
            daemons: None,
            decisions: Vec::new(),
            checkpoint_known: true,
            kubelet: None,
            lister: None,
            pods: BTreeSet::new(),
        };
        ledger.recall(journal);
        ledger
    }

    fn recall(&mut self, journal: Journal) {
        for mut one in journal.holds {
            let mut gpus = self.inventory.gpus().iter();
            let gpu = gpus.find(|gpu| gpu.uuid == one.gpu_uuid);
            one.device.gpu = gpu.map_or(NO_GPU, |gpu| gpu.index);
            let same = self.inventory.find(&one.device.resource, &one.device.id);
            let same = same.filter(|at| self.inventory.devices()[*at] == one.device);
            match same {
                Some(at) => self.holds[at].push(one.hold),
                None => self.unlisted.push(one),
            }
        }
    }

    /// To be stored before an answer is sent.
    pub fn journal(&self) -> Journal {
        let named = |(device, holds): (&Device, &Vec<Hold>)| {
            let gpu_uuid = self.inventory.gpu(device.gpu).map(|gpu| gpu.uuid.clone());
            let gpu_uuid = gpu_uuid.unwrap_or_default();
            let one = |hold: &Hold| JournalHold {
                device: device.clone(),
                gpu_uuid: gpu_uuid.clone(),
                hold: hold.clone(),
            };
            holds.iter().map(one).collect::<Vec<_>>()
        };
        let mut holds: Vec<JournalHold> =
            self.inventory.devices().iter().zip(&self.holds).flat_map(named).collect();
        holds.extend(self.unlisted.iter().cloned());
        Journal { holds }
    }

    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// Replaces the devices after a repartition; holds remain.
    pub fn replace(&mut self, inventory: Inventory) {
        let journal = self.journal();
        self.holds = vec![Vec::new(); inventory.devices().len()];
        self.unlisted = Vec::new();
        self.inventory = inventory;
        self.recall(journal);
    }

    /// Sets the scheduler's decisions for all pods bound to this machine.
    pub fn decide(&mut self, mut decisions: Vec<Decision>) {
        decisions
            .sort_by(|one, other| (one.created_ms, &one.pod).cmp(&(other.created_ms, &other.pod)));
        self.decisions = decisions;
    }

    /// Reports the health of a GPU or MIG instance; `None` is healthy. A device is allocated again once it has
    /// been healthy for [`RECOVERY_MS`], so call this repeatedly until it returns true.
    pub fn report_health(&mut self, uuid: &str, fault: Option<&str>, now_ms: i64) -> bool {
        match fault {
            Some(reason) => {
                let fault = Fault { reason: reason.to_owned(), healthy_since_ms: None };
                self.faults.insert(uuid.to_owned(), fault);
                false
            }
            None => {
                let Some(fault) = self.faults.get_mut(uuid) else { return true };
                let since_ms = *fault.healthy_since_ms.get_or_insert(now_ms);
                let healthy = now_ms - since_ms >= RECOVERY_MS;
                if healthy {
                    self.faults.remove(uuid);
                }
                healthy
            }
        }
    }

    /// Reports the GPUs and MIG instances with a running MPS daemon; returns whether that changed. Without a
    /// daemon, programs would use the whole GPU, so its shares are unhealthy.
    pub fn report_daemons(&mut self, running: BTreeSet<String>) -> bool {
        let is_new = self.daemons.as_ref() != Some(&running);
        self.daemons = Some(running);
        is_new
    }

    /// A program that finds no daemon runs without limits, so its share is not usable.
    fn missing_daemon(&self, device: &Device) -> Option<&'static str> {
        let running = self.daemons.as_ref()?;
        let is_share = matches!(device.sharing, SharingMode::Mps(_));
        let missing_daemon = is_share && !running.contains(cdi::name(&self.inventory, device));
        missing_daemon.then_some("its MPS daemon is not running: start berth agent mps")
    }

    /// Whether a container can start with its devices.
    pub fn check_start(&self, resource: &str, ids: &[String]) -> Result<(), Refusal> {
        for id in ids {
            let found = self.inventory.find(resource, id);
            let reason = found.and_then(|at| self.missing_daemon(&self.inventory.devices()[at]));
            if let Some(reason) = reason {
                let (resource, id, reason) = (resource.to_owned(), id.clone(), reason.to_owned());
                return Err(Refusal::Unhealthy { resource, id, reason });
            }
        }
        Ok(())
    }

    fn fault(&self, device: &Device) -> Option<&str> {
        if let Some(why) = self.missing_daemon(device) {
            return Some(why);
        }
        let gpu = self.inventory.gpu(device.gpu).and_then(|gpu| self.faults.get(&gpu.uuid));
        let own = match &device.kind {
            Kind::Mig { uuid, .. } => self.faults.get(uuid),
            Kind::Whole => None,
        };
        gpu.or(own).map(|fault| fault.reason.as_str())
    }

    /// Updates all holds.
    pub fn observe(&mut self, evidence: &Evidence<'_>) {
        let wrong = |state: &&DeviceState| state.checksum == Some(Checksum::Wrong);
        let checkpoint = evidence.checkpoint.filter(|state| !wrong(state));
        if let Some(state) = checkpoint {
            self.apply_checkpoint(state, evidence.now_ms);
        }
        self.checkpoint_known = checkpoint.is_some();
        self.kubelet = evidence.kubelet.map(str::to_owned);
        self.lister = evidence.lister.map(str::to_owned);
        if let Some(pods) = evidence.pods {
            self.pods.clone_from(pods);
        }
        let named = self.known_holders();
        let expiry =
            Expiry { evidence, checkpoint_known: self.checkpoint_known, known_holders: &named };
        for (device, holds) in self.inventory.devices().iter().zip(&mut self.holds) {
            expiry.apply(device, holds);
        }
        let mut kept = Vec::new();
        for one in std::mem::take(&mut self.unlisted) {
            let mut holds = vec![one.hold.clone()];
            expiry.apply(&one.device, &mut holds);
            kept.extend(holds.pop().map(|hold| JournalHold { hold, ..one }));
        }
        self.unlisted = kept;
    }

    /// Resources, and the pods that the checkpoint shows as their holders.
    fn known_holders(&self) -> BTreeSet<(String, String)> {
        let listed = self.inventory.devices().iter().zip(&self.holds);
        let listed =
            listed.flat_map(|(device, holds)| holds.iter().map(move |hold| (device, hold)));
        let unlisted = self.unlisted.iter().map(|one| (&one.device, &one.hold));
        let all = listed.chain(unlisted).filter(|(_, hold)| hold.in_checkpoint);
        let named = all.filter_map(|(device, hold)| {
            Some((device.resource.clone(), hold.holder.as_ref()?.pod.clone()))
        });
        named.collect()
    }

    fn all_holds(&self) -> impl Iterator<Item = &Hold> {
        self.holds.iter().flatten().chain(self.unlisted.iter().map(|one| &one.hold))
    }

    /// Whether a recent answer is not in the checkpoint yet. Until it is, no device list is sent: the kubelet
    /// would write its checkpoint twice at once, and the older write could remain.
    pub fn in_flight(&self, now_ms: i64) -> bool {
        let fresh = |hold: &Hold| now_ms - hold.since_ms < IN_FLIGHT_MS;
        self.all_holds().any(|hold| hold.holder.is_none() && fresh(hold))
    }

    /// Whether to ask podresources, because checkpoint and running pods do not apply all holds.
    pub fn is_uncertain(&self, now_ms: i64) -> bool {
        self.all_holds().any(|hold| match &hold.holder {
            None => now_ms - hold.since_ms >= IN_FLIGHT_MS,
            Some(holder) => !self.pods.contains(&holder.pod) && !hold.over,
        })
    }

    /// Whether a hold blocks devices of another resource. Then the end of its pod matters, which the kubelet does
    /// not report.
    pub fn blocks_other_resources(&self) -> bool {
        let devices = self.inventory.devices();
        let mut held = devices.iter().zip(&self.holds).filter(|(_, holds)| !holds.is_empty());
        let elsewhere = |one: &Device| {
            devices.iter().any(|other| other.resource != one.resource && other.excludes(one))
        };
        !self.unlisted.is_empty() || held.any(|(one, _)| elsewhere(one))
    }

    fn apply_checkpoint(&mut self, state: &DeviceState, now_ms: i64) {
        let all = self.holds.iter_mut().flatten();
        for hold in all.chain(self.unlisted.iter_mut().map(|one| &mut one.hold)) {
            hold.in_checkpoint = false;
        }
        for entry in &state.entries {
            for held in &entry.devices {
                let holder = Holder { pod: entry.pod.clone(), container: entry.container.clone() };
                match self.inventory.find(&entry.resource, &held.id) {
                    Some(at) => confirm(&mut self.holds[at], holder, now_ms),
                    None => self.confirm_unlisted(&entry.resource, &held.id, holder, now_ms),
                }
            }
        }
    }

    /// Confirms a device that is not listed: it was once, or it is another plugin's on the same hardware.
    fn confirm_unlisted(&mut self, resource: &str, id: &str, holder: Holder, now_ms: i64) {
        let mut same = self.unlisted.iter_mut();
        let same = same.find(|one| {
            let named = one.device.resource == resource && one.device.id == id;
            named && one.hold.holder.as_ref() == Some(&holder)
        });
        if let Some(one) = same {
            one.hold.in_checkpoint = true;
            return;
        }
        let promised = |one: &&JournalHold| {
            let named = one.device.resource == resource && one.device.id == id;
            named && one.hold.holder.is_none()
        };
        let known = self.unlisted.iter().find(promised).map(|one| one.device.clone());
        let Some(device) = known.or_else(|| self.by_uuid(resource, id)) else { return };
        self.unlisted.retain(|one| !promised(&one));
        let gpu_uuid = self.inventory.gpu(device.gpu).map(|gpu| gpu.uuid.clone());
        let hold = Hold::of(holder, now_ms);
        self.unlisted.push(JournalHold { device, gpu_uuid: gpu_uuid.unwrap_or_default(), hold });
    }

    /// Recognizes an unlisted id that starts with a known UUID, as those of NVIDIA's plugin do: `GPU-…`,
    /// `MIG-…`, and `…::3` for replicas.
    fn by_uuid(&self, resource: &str, id: &str) -> Option<Device> {
        let uuid = id.split_once("::").map_or(id, |(uuid, _)| uuid);
        let gpu = self.inventory.gpus().iter().find(|gpu| gpu.uuid == uuid);
        let whole = gpu.map(|gpu| (gpu.index, Kind::Whole));
        let instance = || {
            let mut devices = self.inventory.devices().iter();
            let is = |device: &&Device| matches!(&device.kind, Kind::Mig { uuid: its, .. } if its == uuid);
            devices.find(is).map(|device| (device.gpu, device.kind.clone()))
        };
        let (gpu, kind) = whole.or_else(instance)?;
        let (id, resource) = (id.to_owned(), resource.to_owned());
        Some(Device { id, resource, gpu, kind, sharing: SharingMode::Exclusive })
    }

    /// Allocates a set of devices for each container, all or nothing. A device that the kubelet knows to be held
    /// under the same name is allowed: it may be for another container of the same pod.
    pub fn allocate(
        &mut self,
        resource: &str,
        containers: &[Vec<String>],
        now_ms: i64,
    ) -> Result<(), Refusal> {
        for ids in containers {
            self.check_shares(resource, ids)?;
        }
        let mut taken: BTreeSet<usize> = BTreeSet::new();
        for id in containers.iter().flatten() {
            let at = self.check_device(resource, id)?;
            let device = &self.inventory.devices()[at];
            let clash =
                taken.iter().any(|other| device.excludes(&self.inventory.devices()[*other]));
            if clash {
                return Err(Refusal::Twice { resource: resource.to_owned(), id: id.clone() });
            }
            taken.insert(at);
        }
        for at in taken {
            let promise = Some(Promise {
                kubelet: self.kubelet.clone(),
                lister: self.lister.clone(),
                before: self.pods.clone(),
                suspects: None,
            });
            let (since_ms, in_checkpoint, over) = (now_ms, false, false);
            self.holds[at].push(Hold { holder: None, since_ms, in_checkpoint, over, promise });
        }
        Ok(())
    }

    /// Shares of a container must be of one GPU, and no more than its limit.
    fn check_shares(&self, resource: &str, ids: &[String]) -> Result<(), Refusal> {
        let found = ids.iter().filter_map(|id| self.inventory.find(resource, id));
        let devices: Vec<&Device> = found.map(|at| &self.inventory.devices()[at]).collect();
        let Some(first) = devices.first() else { return Ok(()) };
        let SharingMode::Mps(share) = first.sharing else { return Ok(()) };
        let resource = resource.to_owned();
        if devices.len() > usize::from(share.per_container) {
            let (asked, most) = (devices.len(), share.per_container);
            return Err(Refusal::TooMany { resource, asked, most });
        }
        if devices.iter().any(|other| !other.meets(first)) {
            return Err(Refusal::Apart { resource });
        }
        Ok(())
    }

    fn check_device(&self, resource: &str, id: &str) -> Result<usize, Refusal> {
        let (resource, id) = (resource.to_owned(), id.to_owned());
        let Some(at) = self.inventory.find(&resource, &id) else {
            return Err(Refusal::Unknown { resource, id });
        };
        if let Some(reason) = self.fault(&self.inventory.devices()[at]) {
            return Err(Refusal::Unhealthy { resource, id, reason: reason.to_owned() });
        }
        match self.conflict(at) {
            None => Ok(at),
            Some((held, hold)) => {
                let holder = match &hold.holder {
                    Some(holder) => format!("container {} of pod {}", holder.container, holder.pod),
                    None => "a starting pod".to_owned(),
                };
                let (held_resource, held) = (held.resource.clone(), held.id.clone());
                Err(Refusal::Held { resource, id, held_resource, held, holder })
            }
        }
    }

    /// The hold that prevents a device from being allocated.
    fn conflict(&self, at: usize) -> Option<(&Device, &Hold)> {
        let device = &self.inventory.devices()[at];
        let others = self.inventory.devices().iter().zip(&self.holds).enumerate();
        for (other, (held, holds)) in others {
            if holds.is_empty() || !device.excludes(held) {
                continue;
            }
            let unsure = |hold: &Hold| !self.checkpoint_known && hold.holder.is_some();
            let counts = |hold: &Hold| other != at || unknown_to_kubelet(hold) || unsure(hold);
            let hold = holds.iter().find(|hold| !hold.over && counts(hold));
            if let Some(hold) = hold {
                return Some((held, hold));
            }
        }
        let stray = self.unlisted.iter().find(|one| !one.hold.over && device.meets(&one.device));
        stray.map(|one| (&one.device, &one.hold))
    }

    /// The devices of a resource, as listed to the kubelet. A device blocked by a hold under another name is
    /// unhealthy for that time. A held device is healthy even if the kubelet forgot it: kubelets do not restart
    /// containers on unhealthy devices, and one that lost its checkpoint re-admits running pods and evicts those
    /// for which it finds too few healthy devices.
    pub fn listing(&self, resource: &str) -> Vec<Listed> {
        let devices = self.inventory.devices().iter().enumerate();
        devices
            .filter(|(_, device)| device.resource == resource)
            .map(|(at, device)| {
                let own = self.holds[at].iter().any(|hold| !hold.over);
                let healthy = self.fault(device).is_none() && (own || self.conflict(at).is_none());
                let numa = self.inventory.gpu(device.gpu).map(|gpu| gpu.numa.clone());
                Listed { id: device.id.clone(), healthy, numa: numa.unwrap_or_default() }
            })
            .collect()
    }

    /// Holders of a device; `None` is a promise.
    pub fn holders(&self, resource: &str, id: &str) -> Vec<Option<&Holder>> {
        let holds = self.inventory.find(resource, id).map_or(&[][..], |at| &self.holds[at]);
        holds.iter().filter(|hold| !hold.over).map(|hold| hold.holder.as_ref()).collect()
    }

    /// The best `size` devices of `available` for a container, including all of `must`.
    pub fn prefer(
        &self,
        resource: &str,
        available: &[String],
        must: &[String],
        size: usize,
    ) -> Vec<String> {
        let find = |id: &String| self.inventory.find(resource, id);
        let must: BTreeSet<usize> = must.iter().filter_map(find).collect();
        let mut offer: BTreeSet<usize> =
            available.iter().filter_map(find).filter(|at| self.conflict(*at).is_none()).collect();
        offer.extend(&must);
        let held = self.holds.iter().zip(self.inventory.devices());
        let held = held.filter(|(holds, _)| holds.iter().any(|hold| !hold.over));
        let in_use: BTreeSet<GpuIndex> = held.map(|(_, device)| device.gpu).collect();
        let preference = self.preference(resource, &offer, &must, size);
        let chooser = Chooser {
            inventory: &self.inventory,
            offer: &offer,
            in_use: &in_use,
            preference: &preference,
        };
        let chosen = chooser.choose(&must, size);
        chosen.into_iter().map(|at| self.inventory.devices()[at].id.clone()).collect()
    }

    /// The scheduler's decision for the container that the call is probably about: of the pods with pending
    /// allocations of this size, the first whose devices are available.
    fn preference(
        &self,
        resource: &str,
        offer: &BTreeSet<usize>,
        must: &BTreeSet<usize>,
        size: usize,
    ) -> Preference {
        let mut preference = Preference::default();
        let mut found = false;
        for decision in &self.decisions {
            for allocation in self.pending(decision, resource) {
                let devices: BTreeSet<usize> =
                    allocation.ids.iter().filter_map(|id| self.resolve(resource, id)).collect();
                let fits = allocation.count.is_none_or(|count| count == size)
                    && devices.len() <= size
                    && devices.is_subset(offer)
                    && (devices.len() < size || must.is_subset(&devices));
                if fits && !found {
                    found = true;
                    preference.devices = devices;
                    preference.numa.clone_from(&decision.numa);
                    preference.gpu = allocation.gpu;
                } else {
                    preference.others.extend(devices);
                }
            }
        }
        preference.others = preference.others.difference(&preference.devices).copied().collect();
        preference
    }

    /// Allocations of a decision that are still pending: containers get theirs in order.
    fn pending<'a>(
        &'a self,
        decision: &'a Decision,
        resource: &'a str,
    ) -> impl Iterator<Item = &'a Allocation> {
        let served: BTreeSet<&str> = self
            .inventory
            .devices()
            .iter()
            .zip(&self.holds)
            .filter(|(device, _)| device.resource == resource)
            .flat_map(|(_, holds)| holds.iter().filter_map(|hold| hold.holder.as_ref()))
            .filter(|holder| holder.pod == decision.pod)
            .map(|holder| holder.container.as_str())
            .collect();
        decision
            .allocations
            .iter()
            .filter(move |allocation| allocation.resource == resource)
            .skip(served.len())
    }

    /// Finds a device by id, or by the number of its GPU if the scheduler knew no ids.
    fn resolve(&self, resource: &str, id: &str) -> Option<usize> {
        self.inventory.find(resource, id).or_else(|| {
            let number = GpuIndex(id.parse().ok()?);
            let mut devices = self.inventory.devices().iter();
            devices.position(|device| {
                device.resource == resource && device.gpu == number && device.kind == Kind::Whole
            })
        })
    }
}

/// A hold that the kubelet forgot, or does not know yet.
fn unknown_to_kubelet(hold: &Hold) -> bool {
    !hold.in_checkpoint
}

/// The checkpoint shows a device as this container's.
fn confirm(holds: &mut Vec<Hold>, holder: Holder, now_ms: i64) {
    let known = holds.iter_mut().find(|hold| hold.holder.as_ref() == Some(&holder));
    if let Some(hold) = known {
        hold.in_checkpoint = true;
        return;
    }
    // It fulfils a promise.
    holds.retain(|hold| hold.holder.is_some());
    holds.push(Hold::of(holder, now_ms));
}

/// Decides which holds have ended.
struct Expiry<'a> {
    evidence: &'a Evidence<'a>,
    checkpoint_known: bool,
    known_holders: &'a BTreeSet<(String, String)>,
}

impl Expiry<'_> {
    /// Marks or removes ended holds of a device.
    fn apply(&self, device: &Device, holds: &mut Vec<Hold>) {
        let name = (device.resource.clone(), device.id.clone());
        let listed = self.evidence.listed.map(|all| all.contains(&name));
        let shown = holds.iter().any(|hold| hold.in_checkpoint);
        for hold in holds.iter_mut() {
            // Podresources has no UIDs. A listed device belongs to the container in the checkpoint, if there is
            // one; but the checkpoint may be older than the promise.
            let known_as = listed.map(|listed| listed && (hold.in_checkpoint || !shown));
            let stands = match &hold.holder {
                Some(holder) => self.hold_stands(hold, holder, known_as),
                None => self.promise_stands(&device.resource, hold, listed),
            };
            hold.over = !stands;
        }
        // An ended hold is kept while the checkpoint has it, or it would look new next time.
        holds.retain(|hold| !hold.over || (self.checkpoint_known && hold.in_checkpoint));
    }

    fn hold_stands(&self, hold: &Hold, holder: &Holder, listed: Option<bool>) -> bool {
        let exists = self.evidence.pods.map(|pods| pods.contains(&holder.pod));
        if exists == Some(true) || listed == Some(true) {
            return true;
        }
        let age_ms = self.evidence.now_ms - hold.since_ms;
        let gone = exists == Some(false) && listed == Some(false);
        if self.checkpoint_known && !hold.in_checkpoint {
            // The kubelet does not know it. A pod that does not run either has ended, unless it just starts.
            age_ms < GRACE_MS && listed.is_none()
        } else {
            age_ms < IN_FLIGHT_MS || !gone
        }
    }

    /// Whether a pod may still have, or get, the promised device.
    fn promise_stands(&self, resource: &str, hold: &mut Hold, listed: Option<bool>) -> bool {
        let age_ms = self.evidence.now_ms - hold.since_ms;
        let promise = hold.promise.get_or_insert_default();
        let both = (promise.kubelet.as_deref(), self.evidence.kubelet);
        let another = matches!(both, (Some(asked_by), Some(now)) if asked_by != now);
        let listers = (promise.lister.as_deref(), self.evidence.lister);
        let same = matches!(listers, (Some(then), Some(now)) if then == now) && !another;
        if listed == Some(true) {
            return true;
        }
        if same && listed == Some(false) {
            return age_ms < IN_FLIGHT_MS;
        }
        // A kubelet that is gone starts no more pods, and pods that it started have processes.
        if !another && age_ms < GRACE_MS {
            return true;
        }
        let Some(pods) = self.evidence.pods else {
            return age_ms < GRACE_MS || listed != Some(false);
        };
        let suspects = promise.suspects.as_ref().unwrap_or(pods).iter();
        let may_be = |pod: &&String| {
            let known = self.known_holders.contains(&(resource.to_owned(), (*pod).clone()));
            pods.contains(*pod) && !promise.before.contains(*pod) && !known
        };
        let suspects: BTreeSet<String> = suspects.filter(may_be).cloned().collect();
        let stands = !suspects.is_empty();
        promise.suspects = Some(suspects);
        stands
    }
}
