//! The books: who holds which device, and what may be handed out.
//!
//! The kubelet is told of devices and asks for them by id, but never says for which pod, nor when a pod has
//! gone. It guards each resource by itself; that a GPU is offered whole under one name and in shares under
//! another it cannot know, and what it held is forgotten with its checkpoint. So the books are kept here, from
//! what was answered, the kubelet's checkpoint, its podresources, and the pods that exist.
//!
//! - What was answered is a *promise* until the checkpoint shows whose it is, and nobody else is given it. That
//!   can take for ever: a kubelet writes what it knew when it began to write, so of two writes the older can be
//!   the one that stays. So a promise ends when the kubelet to whom it was made says that it has no such thing,
//!   or, when that cannot say so any more, with the last pod that may be the one it was made for.
//! - A hold that the checkpoint shows lasts while it does, unless podresources and the pods that exist both say
//!   otherwise: kubelets let entries of finished pods stand until they need the room.
//! - A hold that the checkpoint no longer shows lasts while its pod exists: the kubelet forgot it.
//!
//! Owns these rules. Pure: time and evidence come in. Must not know sockets or files.

use std::collections::{BTreeMap, BTreeSet};

use berth_host::kubelet::{Checksum, DeviceState};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::cdi;
use crate::decision::{Decision, Want};
use crate::device::{Device, GpuIndex, Inventory, Kind, SharingMode};
use crate::prefer::{Chooser, Wish};

/// How long a new hold is believed where nobody can tell otherwise: a pod that was just admitted has no process
/// yet.
pub const GRACE_MS: i64 = 30_000;

/// How long a kubelet may take from an answer until it knows what it was given.
pub const IN_FLIGHT_MS: i64 = 5_000;

/// How long a device must have been well before it is handed out again.
pub const RECOVERY_MS: i64 = 10_000;

/// The number of a GPU that is gone.
const NO_GPU: GpuIndex = GpuIndex(u16::MAX);

/// What is known at a moment. `None`: cannot be known now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Evidence<'a> {
    /// When.
    pub now_ms: i64,
    /// The kubelet's checkpoint. One with a wrong checksum counts as none.
    pub checkpoint: Option<&'a DeviceState>,
    /// Resource and id of all devices that podresources lists.
    pub listed: Option<&'a BTreeSet<(String, String)>>,
    /// UIDs of all pods that have processes on this machine.
    pub pods: Option<&'a BTreeSet<String>>,
    /// Which kubelet hands out devices: another text for each time that it was started.
    pub kubelet: Option<&'a str>,
    /// Which one answers for podresources. A kubelet that starts answers here before it hands out devices, and
    /// before it has read its checkpoint.
    pub lister: Option<&'a str>,
}

/// A container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// UID of its pod.
    pub pod: String,
    /// Its name.
    pub container: String,
}

/// That a device is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Hold {
    /// By whom; `None` for a promise.
    holder: Option<Holder>,
    since_ms: i64,
    /// Whether the kubelet knows it too.
    in_checkpoint: bool,
    /// The kubelet's entry stands, but its pod has gone.
    over: bool,
    /// Of a promise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    promise: Option<Promise>,
}

impl Hold {
    fn of(holder: Holder, now_ms: i64) -> Self {
        let holder = Some(holder);
        Self { holder, since_ms: now_ms, in_checkpoint: true, over: false, promise: None }
    }
}

/// What is known of a pod that was promised a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Promise {
    /// Which kubelet asked.
    kubelet: Option<String>,
    /// Which one answered for podresources then.
    lister: Option<String>,
    /// Pods that had processes already: it is none of these.
    before: BTreeSet<String>,
    /// Pods of which it may be one, once nobody can say it any more.
    suspects: Option<BTreeSet<String>>,
}

/// What must survive a crash of both kubelet and plugin: all holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Journal {
    holds: Vec<JournalHold>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct JournalHold {
    device: Device,
    /// UUID of its GPU: numbers change when a GPU is taken out.
    gpu_uuid: String,
    hold: Hold,
}

/// Why a device is not handed out.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// There is none.
    #[error("{resource} has no device {id:?}: the list has changed since, so ask again")]
    Unknown {
        /// Resource.
        resource: String,
        /// Id.
        id: String,
    },
    /// Asked for twice at once.
    #[error("device {id:?} of {resource} is asked for twice at once")]
    Twice {
        /// Resource.
        resource: String,
        /// Id.
        id: String,
    },
    /// It is broken.
    #[error("device {id:?} of {resource} is unhealthy ({reason})")]
    Unhealthy {
        /// Resource.
        resource: String,
        /// Id.
        id: String,
        /// Why.
        reason: String,
    },
    /// More shares than a container may have.
    #[error(
        "a container asks for {asked} of {resource}, and may have {most}: ask for fewer, or write \
         sharesPerContainer into the offer"
    )]
    TooMany {
        /// Resource.
        resource: String,
        /// How many it asks for.
        asked: usize,
        /// How many it may have.
        most: u8,
    },
    /// Shares of several GPUs.
    #[error(
        "a container would get devices of {resource} on several GPUs, each with an MPS daemon of its own, and can \
         speak to one: ask for no more than are free on one GPU"
    )]
    Apart {
        /// Resource.
        resource: String,
    },
    /// Somebody has it.
    #[error(
        "device {id:?} of {resource} cannot be given: {holder} holds {held:?} of {held_resource}, which is \
         the same hardware; it is free when that has gone"
    )]
    Held {
        /// Resource.
        resource: String,
        /// Id.
        id: String,
        /// The resource under which it is held.
        held_resource: String,
        /// The id under which it is held.
        held: String,
        /// By whom.
        holder: String,
    },
}

/// A device as the kubelet is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its id.
    pub id: String,
    /// Whether it can be handed out, or goes on being held.
    pub healthy: bool,
    /// NUMA nodes near to it.
    pub numa: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Illness {
    reason: String,
    well_since_ms: Option<i64>,
}

/// The books of a machine.
#[derive(Clone, Debug)]
pub struct Ledger {
    inventory: Inventory,
    holds: Vec<Vec<Hold>>,
    /// Holds of devices that are listed no more, or were listed by another plugin. Their hardware is taken
    /// all the same.
    strays: Vec<JournalHold>,
    ill: BTreeMap<String, Illness>,
    /// UUIDs of what has a running MPS daemon; `None` where nobody told.
    daemons: Option<BTreeSet<String>>,
    decisions: Vec<Decision>,
    /// Whether the kubelet's checkpoint could be read the last time. If not, nobody can tell whether the kubelet
    /// still knows what it gave away.
    checkpoint_known: bool,
    /// Which kubelet ran the last time, and which pods.
    kubelet: Option<String>,
    lister: Option<String>,
    pods: BTreeSet<String>,
}

impl Ledger {
    /// Books of these devices, with what an earlier process wrote down.
    pub fn new(inventory: Inventory, journal: Journal) -> Self {
        let holds = vec![Vec::new(); inventory.devices().len()];
        let mut ledger = Self {
            inventory,
            holds,
            strays: Vec::new(),
            ill: BTreeMap::new(),
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
                None => self.strays.push(one),
            }
        }
    }

    /// What to write down before an answer is given.
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
        holds.extend(self.strays.iter().cloned());
        Journal { holds }
    }

    /// The devices.
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// Other devices, after a GPU was divided anew. What is held stays held.
    pub fn replace(&mut self, inventory: Inventory) {
        let journal = self.journal();
        self.holds = vec![Vec::new(); inventory.devices().len()];
        self.strays = Vec::new();
        self.inventory = inventory;
        self.recall(journal);
    }

    /// What the scheduler decided for the pods that are bound to this machine.
    pub fn decide(&mut self, mut decisions: Vec<Decision>) {
        decisions
            .sort_by(|one, other| (one.created_ms, &one.pod).cmp(&(other.created_ms, &other.pod)));
        self.decisions = decisions;
    }

    /// Says how a GPU or a MIG instance is, by its UUID: `None` is well. A device that was ill is handed out
    /// again when it has been well for [`RECOVERY_MS`], so this is to be told again and again, until the answer is
    /// that it counts as well.
    pub fn report_health(&mut self, uuid: &str, illness: Option<&str>, now_ms: i64) -> bool {
        match illness {
            Some(reason) => {
                let illness = Illness { reason: reason.to_owned(), well_since_ms: None };
                self.ill.insert(uuid.to_owned(), illness);
                false
            }
            None => {
                let Some(illness) = self.ill.get_mut(uuid) else { return true };
                let since_ms = *illness.well_since_ms.get_or_insert(now_ms);
                let well = now_ms - since_ms >= RECOVERY_MS;
                if well {
                    self.ill.remove(uuid);
                }
                well
            }
        }
    }

    /// Says for which GPUs and MIG instances an MPS daemon runs, and whether that is new. Without one, programs would
    /// have the whole GPU, so that shares of it are not handed out.
    pub fn report_daemons(&mut self, running: BTreeSet<String>) -> bool {
        let is_new = self.daemons.as_ref() != Some(&running);
        self.daemons = Some(running);
        is_new
    }

    /// Why a share cannot be used: programs that find no daemon go on without, and without limits.
    fn unserved(&self, device: &Device) -> Option<&'static str> {
        let running = self.daemons.as_ref()?;
        let is_share = matches!(device.sharing, SharingMode::Mps(_));
        let unserved = is_share && !running.contains(cdi::name(&self.inventory, device));
        unserved.then_some("no MPS daemon runs for it: start berth agent mps")
    }

    /// Whether a container can start with devices that it holds.
    pub fn may_start(&self, resource: &str, ids: &[String]) -> Result<(), Refusal> {
        for id in ids {
            let found = self.inventory.find(resource, id);
            let reason = found.and_then(|at| self.unserved(&self.inventory.devices()[at]));
            if let Some(reason) = reason {
                let (resource, id, reason) = (resource.to_owned(), id.clone(), reason.to_owned());
                return Err(Refusal::Unhealthy { resource, id, reason });
            }
        }
        Ok(())
    }

    fn illness(&self, device: &Device) -> Option<&str> {
        if let Some(why) = self.unserved(device) {
            return Some(why);
        }
        let gpu = self.inventory.gpu(device.gpu).and_then(|gpu| self.ill.get(&gpu.uuid));
        let own = match &device.kind {
            Kind::Mig { uuid, .. } => self.ill.get(uuid),
            Kind::Whole => None,
        };
        gpu.or(own).map(|illness| illness.reason.as_str())
    }

    /// Brings the books up to what is known.
    pub fn observe(&mut self, evidence: &Evidence<'_>) {
        let wrong = |state: &&DeviceState| state.checksum == Some(Checksum::Wrong);
        let checkpoint = evidence.checkpoint.filter(|state| !wrong(state));
        if let Some(state) = checkpoint {
            self.enter(state, evidence.now_ms);
        }
        self.checkpoint_known = checkpoint.is_some();
        self.kubelet = evidence.kubelet.map(str::to_owned);
        self.lister = evidence.lister.map(str::to_owned);
        if let Some(pods) = evidence.pods {
            self.pods.clone_from(pods);
        }
        let named = self.named();
        let court = Court { evidence, checkpoint_known: self.checkpoint_known, named: &named };
        for (device, holds) in self.inventory.devices().iter().zip(&mut self.holds) {
            court.settle(device, holds);
        }
        let mut kept = Vec::new();
        for one in std::mem::take(&mut self.strays) {
            let mut holds = vec![one.hold.clone()];
            court.settle(&one.device, &mut holds);
            kept.extend(holds.pop().map(|hold| JournalHold { hold, ..one }));
        }
        self.strays = kept;
    }

    /// Resources, and pods that hold some of them and are known to.
    fn named(&self) -> BTreeSet<(String, String)> {
        let listed = self.inventory.devices().iter().zip(&self.holds);
        let listed =
            listed.flat_map(|(device, holds)| holds.iter().map(move |hold| (device, hold)));
        let strays = self.strays.iter().map(|one| (&one.device, &one.hold));
        let all = listed.chain(strays).filter(|(_, hold)| hold.in_checkpoint);
        let named = all.filter_map(|(device, hold)| {
            Some((device.resource.clone(), hold.holder.as_ref()?.pod.clone()))
        });
        named.collect()
    }

    fn all_holds(&self) -> impl Iterator<Item = &Hold> {
        self.holds.iter().flatten().chain(self.strays.iter().map(|one| &one.hold))
    }

    /// Whether something was answered just now that the kubelet has not written down yet. Until then it is
    /// told nothing new: it would write its checkpoint twice at once, and the older may be the one that stays.
    pub fn in_flight(&self, now_ms: i64) -> bool {
        let fresh = |hold: &Hold| now_ms - hold.since_ms < IN_FLIGHT_MS;
        self.all_holds().any(|hold| hold.holder.is_none() && fresh(hold))
    }

    /// Whether podresources should be asked, since the checkpoint and the pods that exist leave doubts.
    pub fn doubts(&self, now_ms: i64) -> bool {
        self.all_holds().any(|hold| match &hold.holder {
            None => now_ms - hold.since_ms >= IN_FLIGHT_MS,
            Some(holder) => !self.pods.contains(&holder.pod) && !hold.over,
        })
    }

    /// Whether something is held that keeps a device of another name from being given: then it matters when a
    /// pod ends, of which the kubelet says nothing.
    pub fn keeps_others_out(&self) -> bool {
        let devices = self.inventory.devices();
        let mut held = devices.iter().zip(&self.holds).filter(|(_, holds)| !holds.is_empty());
        let elsewhere = |one: &Device| {
            devices.iter().any(|other| other.resource != one.resource && other.excludes(one))
        };
        !self.strays.is_empty() || held.any(|(one, _)| elsewhere(one))
    }

    /// Enters what a checkpoint shows.
    fn enter(&mut self, state: &DeviceState, now_ms: i64) {
        let all = self.holds.iter_mut().flatten();
        for hold in all.chain(self.strays.iter_mut().map(|one| &mut one.hold)) {
            hold.in_checkpoint = false;
        }
        for entry in &state.entries {
            for held in &entry.devices {
                let holder = Holder { pod: entry.pod.clone(), container: entry.container.clone() };
                match self.inventory.find(&entry.resource, &held.id) {
                    Some(at) => confirm(&mut self.holds[at], holder, now_ms),
                    None => self.confirm_stray(&entry.resource, &held.id, holder, now_ms),
                }
            }
        }
    }

    /// Enters a device that is not listed: one that was, or another plugin's on hardware of ours.
    fn confirm_stray(&mut self, resource: &str, id: &str, holder: Holder, now_ms: i64) {
        let mut same = self.strays.iter_mut();
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
        let known = self.strays.iter().find(promised).map(|one| one.device.clone());
        let Some(device) = known.or_else(|| self.by_uuid(resource, id)) else { return };
        self.strays.retain(|one| !promised(&one));
        let gpu_uuid = self.inventory.gpu(device.gpu).map(|gpu| gpu.uuid.clone());
        let hold = Hold::of(holder, now_ms);
        self.strays.push(JournalHold { device, gpu_uuid: gpu_uuid.unwrap_or_default(), hold });
    }

    /// What an id that is not listed is, if it starts with a UUID of ours, as those of NVIDIA's plugin do:
    /// `GPU-…`, `MIG-…`, and `…::3` for replicas.
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

    /// Hands devices out, a set for each container, all or nothing. The kubelet's word goes about a device that
    /// it knows to be held under the same name, since it may be for another container of the pod that has it.
    pub fn allocate(
        &mut self,
        resource: &str,
        containers: &[Vec<String>],
        now_ms: i64,
    ) -> Result<(), Refusal> {
        for ids in containers {
            self.go_together(resource, ids)?;
        }
        let mut taken: BTreeSet<usize> = BTreeSet::new();
        for id in containers.iter().flatten() {
            let at = self.may_have(resource, id)?;
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

    /// Shares of a container are of one GPU, and not more than it may have.
    fn go_together(&self, resource: &str, ids: &[String]) -> Result<(), Refusal> {
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

    fn may_have(&self, resource: &str, id: &str) -> Result<usize, Refusal> {
        let (resource, id) = (resource.to_owned(), id.to_owned());
        let Some(at) = self.inventory.find(&resource, &id) else {
            return Err(Refusal::Unknown { resource, id });
        };
        if let Some(reason) = self.illness(&self.inventory.devices()[at]) {
            return Err(Refusal::Unhealthy { resource, id, reason: reason.to_owned() });
        }
        match self.in_the_way(at) {
            None => Ok(at),
            Some((held, hold)) => {
                let holder = match &hold.holder {
                    Some(holder) => format!("container {} of pod {}", holder.container, holder.pod),
                    None => "a pod that is being started".to_owned(),
                };
                let (held_resource, held) = (held.resource.clone(), held.id.clone());
                Err(Refusal::Held { resource, id, held_resource, held, holder })
            }
        }
    }

    /// The hold because of which a device cannot be given.
    fn in_the_way(&self, at: usize) -> Option<(&Device, &Hold)> {
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
        let stray = self.strays.iter().find(|one| !one.hold.over && device.meets(&one.device));
        stray.map(|one| (&one.device, &one.hold))
    }

    /// The devices of a resource, as the kubelet is to be told. What cannot be given because of a hold under
    /// another name is called unhealthy while that lasts; what is held is not, since kubelets do not start
    /// containers again on unhealthy devices. That goes for what the kubelet forgot, too: one that starts without its
    /// checkpoint admits running pods again, and ends those for which it finds too few healthy devices.
    pub fn listing(&self, resource: &str) -> Vec<Listed> {
        let devices = self.inventory.devices().iter().enumerate();
        devices
            .filter(|(_, device)| device.resource == resource)
            .map(|(at, device)| {
                let own = self.holds[at].iter().any(|hold| !hold.over);
                let healthy =
                    self.illness(device).is_none() && (own || self.in_the_way(at).is_none());
                let numa = self.inventory.gpu(device.gpu).map(|gpu| gpu.numa.clone());
                Listed { id: device.id.clone(), healthy, numa: numa.unwrap_or_default() }
            })
            .collect()
    }

    /// Who holds a device; an unnamed holder is a promise.
    pub fn holders(&self, resource: &str, id: &str) -> Vec<Option<&Holder>> {
        let holds = self.inventory.find(resource, id).map_or(&[][..], |at| &self.holds[at]);
        holds.iter().filter(|hold| !hold.over).map(|hold| hold.holder.as_ref()).collect()
    }

    /// Which of `available` to give to a container that needs `size`, with all of `must` among them.
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
            available.iter().filter_map(find).filter(|at| self.in_the_way(*at).is_none()).collect();
        offer.extend(&must);
        let held = self.holds.iter().zip(self.inventory.devices());
        let held = held.filter(|(holds, _)| holds.iter().any(|hold| !hold.over));
        let in_use: BTreeSet<GpuIndex> = held.map(|(_, device)| device.gpu).collect();
        let wish = self.wish(resource, &offer, &must, size);
        let chooser =
            Chooser { inventory: &self.inventory, offer: &offer, in_use: &in_use, wish: &wish };
        let chosen = chooser.choose(&must, size);
        chosen.into_iter().map(|at| self.inventory.devices()[at].id.clone()).collect()
    }

    /// What the scheduler decided for the container that this is likely about: of the pods that still wait for
    /// such a number, the first whose devices are on offer.
    fn wish(
        &self,
        resource: &str,
        offer: &BTreeSet<usize>,
        must: &BTreeSet<usize>,
        size: usize,
    ) -> Wish {
        let mut wish = Wish::default();
        let mut found = false;
        for decision in &self.decisions {
            for want in self.waiting(decision, resource) {
                let devices: BTreeSet<usize> =
                    want.ids.iter().filter_map(|id| self.meant(resource, id)).collect();
                let fits = want.count.is_none_or(|count| count == size)
                    && devices.len() <= size
                    && devices.is_subset(offer)
                    && (devices.len() < size || must.is_subset(&devices));
                if fits && !found {
                    found = true;
                    wish.devices = devices;
                    wish.numa.clone_from(&decision.numa);
                    wish.gpu = want.gpu;
                } else {
                    wish.others.extend(devices);
                }
            }
        }
        wish.others = wish.others.difference(&wish.devices).copied().collect();
        wish
    }

    /// What of a decision is not given yet: containers are given theirs in order.
    fn waiting<'a>(
        &'a self,
        decision: &'a Decision,
        resource: &'a str,
    ) -> impl Iterator<Item = &'a Want> {
        let given: BTreeSet<&str> = self
            .inventory
            .devices()
            .iter()
            .zip(&self.holds)
            .filter(|(device, _)| device.resource == resource)
            .flat_map(|(_, holds)| holds.iter().filter_map(|hold| hold.holder.as_ref()))
            .filter(|holder| holder.pod == decision.pod)
            .map(|holder| holder.container.as_str())
            .collect();
        decision.wants.iter().filter(move |want| want.resource == resource).skip(given.len())
    }

    /// A device by id, or by the number of its GPU where that is what the scheduler knew.
    fn meant(&self, resource: &str, id: &str) -> Option<usize> {
        self.inventory.find(resource, id).or_else(|| {
            let number = GpuIndex(id.parse().ok()?);
            let mut devices = self.inventory.devices().iter();
            devices.position(|device| {
                device.resource == resource && device.gpu == number && device.kind == Kind::Whole
            })
        })
    }
}

/// A hold that the kubelet knows no longer, or not yet.
fn unknown_to_kubelet(hold: &Hold) -> bool {
    !hold.in_checkpoint
}

/// That the checkpoint shows a device as this container's.
fn confirm(holds: &mut Vec<Hold>, holder: Holder, now_ms: i64) {
    let known = holds.iter_mut().find(|hold| hold.holder.as_ref() == Some(&holder));
    if let Some(hold) = known {
        hold.in_checkpoint = true;
        return;
    }
    // The promise has become somebody's.
    holds.retain(|hold| hold.holder.is_some());
    holds.push(Hold::of(holder, now_ms));
}

/// Where it is judged which holds are over.
struct Court<'a> {
    evidence: &'a Evidence<'a>,
    checkpoint_known: bool,
    named: &'a BTreeSet<(String, String)>,
}

impl Court<'_> {
    /// Ends the holds of a device that are over.
    fn settle(&self, device: &Device, holds: &mut Vec<Hold>) {
        let name = (device.resource.clone(), device.id.clone());
        let listed = self.evidence.listed.map(|all| all.contains(&name));
        let shown = holds.iter().any(|hold| hold.in_checkpoint);
        for hold in holds.iter_mut() {
            // Podresources has no UIDs: what it lists is the one's whom the checkpoint shows, if it shows any; but
            // what it shows can be older than the promise.
            let known_as = listed.map(|listed| listed && (hold.in_checkpoint || !shown));
            let stands = match &hold.holder {
                Some(holder) => self.hold_stands(hold, holder, known_as),
                None => self.promise_stands(&device.resource, hold, listed),
            };
            hold.over = !stands;
        }
        // An entry that stands in the checkpoint is kept in mind, lest it seem new the next time.
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
            // The kubelet has nothing of it. Nobody was started who is not there, unless that is only now.
            age_ms < GRACE_MS && listed.is_none()
        } else {
            age_ms < IN_FLIGHT_MS || !gone
        }
    }

    /// Whether somebody may have, or get, what was promised.
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
        // A kubelet that died starts nothing any more; whoever it started has processes.
        if !another && age_ms < GRACE_MS {
            return true;
        }
        let Some(pods) = self.evidence.pods else {
            return age_ms < GRACE_MS || listed != Some(false);
        };
        let suspects = promise.suspects.as_ref().unwrap_or(pods).iter();
        let may_be = |pod: &&String| {
            let known = self.named.contains(&(resource.to_owned(), (*pod).clone()));
            pods.contains(*pod) && !promise.before.contains(*pod) && !known
        };
        let suspects: BTreeSet<String> = suspects.filter(may_be).cloned().collect();
        let stands = !suspects.is_empty();
        promise.suspects = Some(suspects);
        stands
    }
}
