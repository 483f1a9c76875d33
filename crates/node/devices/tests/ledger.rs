//! The ledger: what may be allocated after any crash of the kubelet or the plugin.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may fail")]

use std::collections::{BTreeMap, BTreeSet};

use berth_devices::decision::Decision;
use berth_devices::ledger::{
    Evidence, GRACE_MS, IN_FLIGHT_MS, Journal, Ledger, RECOVERY_MS, Refusal,
};
use berth_devices::{
    Device, GpuIndex, Inventory, InventoryError, Kind, OfferedGpu, Share, SharingMode, ThreadCap,
};
use berth_host::kubelet::{DeviceEntry, DeviceState, HeldDevice};

const GIB: u64 = 1 << 30;
const GPU: &str = "nvidia.com/gpu";
const SHARE: &str = "berth.dev/gpu-share";
const SLICE: &str = "nvidia.com/mig-1g.18gb";

/// Two sockets of four GPUs each; GPUs 2n and 2n+1 are bridged.
fn gpus() -> Vec<OfferedGpu> {
    let distance =
        |one: u16, other: u16| match (one == other, one / 2 == other / 2, one / 4 == other / 4) {
            (true, ..) => 0,
            (_, true, _) => 10,
            (.., true) => 200,
            _ => 800,
        };
    let gpu = |index: u16| OfferedGpu {
        index: GpuIndex(index),
        uuid: format!("GPU-{index}"),
        numa: vec![u32::from(index / 4)],
        memory_bytes: 141 * GIB,
        distances: (0..8).map(|other| distance(index, other)).collect(),
        device_files: Vec::new(),
    };
    (0..8).map(gpu).collect()
}

fn whole(index: u16) -> Device {
    let (id, resource) = (format!("GPU-{index}"), GPU.to_owned());
    Device {
        id,
        resource,
        gpu: GpuIndex(index),
        kind: Kind::Whole,
        sharing: SharingMode::Exclusive,
    }
}

fn share(index: u16, nth: u8) -> Device {
    let threads = ThreadCap::of_equal_shares(4);
    let sharing = SharingMode::Mps(Share { memory_bytes: 35 * GIB, threads, per_container: 4 });
    let (id, resource) = (format!("GPU-{index}::{nth}"), SHARE.to_owned());
    Device { id, resource, gpu: GpuIndex(index), kind: Kind::Whole, sharing }
}

fn slice(index: u16, nth: u8) -> Device {
    let kind = Kind::Mig {
        uuid: format!("MIG-{index}-{nth}"),
        profile: "1g.18gb".to_owned(),
        start: nth,
        device_files: Vec::new(),
    };
    let (id, resource) = (format!("MIG-{index}-{nth}"), SLICE.to_owned());
    Device { id, resource, gpu: GpuIndex(index), kind, sharing: SharingMode::Exclusive }
}

/// GPUs 0 to 5 whole or in four shares, GPUs 6 and 7 in seven slices.
fn inventory() -> Inventory {
    let mut devices = Vec::new();
    for index in 0..6 {
        devices.push(whole(index));
        devices.extend((0..4).map(|nth| share(index, nth)));
    }
    devices.extend((6..8).flat_map(|index| (0..7).map(move |nth| slice(index, nth))));
    Inventory::new(gpus(), devices).unwrap()
}

fn ledger() -> Ledger {
    Ledger::new(inventory(), Journal::default())
}

fn ids(list: &[&str]) -> Vec<String> {
    list.iter().map(|id| (*id).to_owned()).collect()
}

fn entry(pod: &str, resource: &str, held: &[String]) -> DeviceEntry {
    let devices = held.iter().map(|id| HeldDevice { id: id.clone(), numa: Vec::new() });
    DeviceEntry {
        pod: pod.to_owned(),
        container: "main".to_owned(),
        resource: resource.to_owned(),
        devices: devices.collect(),
    }
}

fn state(entries: Vec<DeviceEntry>) -> DeviceState {
    DeviceState { version: 2, entries, ..DeviceState::default() }
}

fn prefer(ledger: &Ledger, resource: &str, size: usize) -> Vec<String> {
    let free: Vec<String> = ledger
        .listing(resource)
        .into_iter()
        .filter(|one| one.healthy && ledger.holders(resource, &one.id).is_empty())
        .map(|one| one.id)
        .collect();
    ledger.prefer(resource, &free, &[], size)
}

#[test]
fn shares_of_a_container_are_of_one_gpu_and_within_the_limit() {
    let mut ledger = ledger();
    let all: Vec<String> =
        (0..3).flat_map(|gpu| (0..4).map(move |nth| format!("GPU-{gpu}::{nth}"))).collect();
    let taken = ["GPU-0::0", "GPU-0::1", "GPU-0::2", "GPU-1::0", "GPU-1::1", "GPU-1::2"];
    for one in taken {
        ledger.allocate(SHARE, &[vec![one.to_owned()]], 0).unwrap();
    }
    // Two GPUs have one share left each, only the third has two.
    let free: Vec<String> =
        all.iter().filter(|id| !taken.contains(&id.as_str())).cloned().collect();
    assert_eq!(ledger.prefer(SHARE, &free, &[], 2), ["GPU-2::0", "GPU-2::1"]);
    let apart = [vec!["GPU-0::3".to_owned(), "GPU-1::3".to_owned()]];
    assert!(matches!(ledger.allocate(SHARE, &apart, 0), Err(Refusal::Apart { .. })));
    let five = [(0..5).map(|nth| format!("GPU-3::{}", nth % 4)).collect::<Vec<_>>()];
    let refused = ledger.allocate(SHARE, &five, 0).unwrap_err().to_string();
    assert!(refused.contains("requests 5 of berth.dev/gpu-share, but the limit is 4"), "{refused}");
    ledger.allocate(SHARE, &[vec!["GPU-2::0".to_owned(), "GPU-2::1".to_owned()]], 0).unwrap();
}

#[test]
fn shares_of_a_gpu_held_whole_are_refused() {
    let mut ledger = ledger();
    ledger.allocate(GPU, &[ids(&["GPU-0"])], 0).unwrap();
    let refused = ledger.allocate(SHARE, &[ids(&["GPU-0::2"])], 1).unwrap_err();
    assert!(matches!(refused, Refusal::Held { .. }), "{refused}");
    let listed = ledger.listing(SHARE);
    assert!(listed.iter().all(|one| one.healthy != one.id.starts_with("GPU-0:")));
    ledger.allocate(SHARE, &[ids(&["GPU-1::2"])], 2).unwrap();
    ledger.allocate(SHARE, &[ids(&["GPU-1::3"])], 2).unwrap();
    assert!(ledger.allocate(GPU, &[ids(&["GPU-1"])], 3).is_err());
}

#[test]
fn a_request_is_allocated_completely_or_not_at_all() {
    let mut ledger = ledger();
    ledger.allocate(SHARE, &[ids(&["GPU-1::0"])], 0).unwrap();
    assert!(ledger.allocate(GPU, &[ids(&["GPU-0", "GPU-1"])], 1).is_err());
    assert!(ledger.holders(GPU, "GPU-0").is_empty());
    assert!(ledger.allocate(GPU, &[ids(&["GPU-2"]), ids(&["GPU-2"])], 1).is_err());
}

#[test]
fn an_entry_of_an_ended_pod_is_ignored_if_both_sources_agree() {
    let mut ledger = ledger();
    let stale = state(vec![entry("pod-a", GPU, &ids(&["GPU-0"]))]);
    let (listed, pods) = (BTreeSet::new(), BTreeSet::new());
    let only = Evidence { now_ms: 0, checkpoint: Some(&stale), ..Evidence::default() };
    ledger.observe(&only);
    let later = Evidence { now_ms: GRACE_MS, ..only };
    ledger.observe(&later);
    assert!(ledger.allocate(SHARE, &[ids(&["GPU-0::0"])], GRACE_MS).is_err());
    ledger.observe(&Evidence { listed: Some(&listed), ..later });
    assert!(ledger.allocate(SHARE, &[ids(&["GPU-0::0"])], GRACE_MS).is_err());
    ledger.observe(&Evidence { listed: Some(&listed), pods: Some(&pods), ..later });
    ledger.allocate(SHARE, &[ids(&["GPU-0::0"])], GRACE_MS).unwrap();
    // The entry is still there next time, and not new.
    let next = Evidence { now_ms: GRACE_MS + 1, ..later };
    ledger.observe(&Evidence { listed: Some(&listed), pods: Some(&pods), ..next });
    assert!(ledger.holders(GPU, "GPU-0").is_empty());
}

#[test]
fn a_kubelet_without_checkpoint_does_not_get_devices_of_running_pods() {
    let mut ledger = ledger();
    let pods: BTreeSet<String> = ["pod-a".to_owned()].into();
    let before = state(vec![entry("pod-a", GPU, &ids(&["GPU-3"]))]);
    let evidence = Evidence { pods: Some(&pods), ..Evidence::default() };
    ledger.observe(&Evidence { checkpoint: Some(&before), ..evidence });
    // Both crash; the kubelet starts without a checkpoint.
    let mut ledger = Ledger::new(inventory(), ledger.journal());
    let empty = state(Vec::new());
    ledger.observe(&Evidence { now_ms: GRACE_MS * 2, checkpoint: Some(&empty), ..evidence });
    // It stays healthy, or the kubelet would end the pod, and nobody else gets it.
    assert!(ledger.listing(GPU)[3].healthy);
    let two = ids(&["GPU-3", "GPU-4"]);
    assert_eq!(ledger.prefer(GPU, &two, &[], 1), ["GPU-4"]);
    assert!(ledger.allocate(GPU, &[ids(&["GPU-3"])], GRACE_MS * 2).is_err());
    let none = BTreeSet::new();
    let later = Evidence { now_ms: GRACE_MS * 2, ..evidence };
    ledger.observe(&Evidence { pods: Some(&none), checkpoint: Some(&empty), ..later });
    ledger.allocate(GPU, &[ids(&["GPU-3"])], GRACE_MS * 2).unwrap();
}

#[test]
fn an_app_container_inherits_devices_of_its_init_container() {
    let mut ledger = ledger();
    let init = state(vec![entry("pod-a", GPU, &ids(&["GPU-3"]))]);
    ledger.observe(&Evidence { checkpoint: Some(&init), ..Evidence::default() });
    ledger.allocate(GPU, &[ids(&["GPU-3"])], 5).unwrap();
}

#[test]
fn gpus_held_through_other_plugins_or_former_layouts_are_in_use() {
    let mut ledger = ledger();
    let others = state(vec![entry("pod-a", "nvidia.com/gpu.shared", &ids(&["GPU-4::1"]))]);
    ledger.observe(&Evidence { checkpoint: Some(&others), ..Evidence::default() });
    assert!(ledger.allocate(GPU, &[ids(&["GPU-4"])], 0).is_err());
    assert!(ledger.allocate(SHARE, &[ids(&["GPU-4::0"])], 0).is_err());
    ledger.allocate(GPU, &[ids(&["GPU-5"])], 0).unwrap();
    let shares = (0..4).map(|nth| share(5, nth)).collect();
    ledger.replace(Inventory::new(gpus(), shares).unwrap());
    assert!(ledger.allocate(SHARE, &[ids(&["GPU-5::0"])], 1).is_err());
    // Numbers change, the hardware does not.
    let mut fewer = gpus();
    fewer.remove(0);
    let mut moved =
        Ledger::new(Inventory::new(fewer, vec![share(5, 1)]).unwrap(), ledger.journal());
    assert!(moved.allocate(SHARE, &[ids(&["GPU-5::1"])], 1).is_err());
}

/// A promise of GPU 0, made to the first kubelet while `pod-old` ran.
fn promised() -> Ledger {
    let mut ledger = ledger();
    let (empty, pods) = (state(Vec::new()), BTreeSet::from(["pod-old".to_owned()]));
    let evidence = Evidence { checkpoint: Some(&empty), ..Evidence::default() };
    let first = Evidence { kubelet: Some("first"), lister: Some("first"), ..evidence };
    ledger.observe(&Evidence { pods: Some(&pods), ..first });
    ledger.allocate(GPU, &[ids(&["GPU-0"])], 0).unwrap();
    assert!(ledger.in_flight(0) && !ledger.in_flight(IN_FLIGHT_MS));
    assert!(ledger.allocate(GPU, &[ids(&["GPU-0"])], 0).is_err(), "not even under its own name");
    ledger
}

fn is_free(ledger: &Ledger) -> bool {
    let own = ledger.clone().allocate(GPU, &[ids(&["GPU-0"])], 0).is_ok();
    assert_eq!(own, ledger.clone().allocate(SHARE, &[ids(&["GPU-0::0"])], 0).is_ok());
    own
}

#[test]
fn a_promise_ends_when_its_kubelet_denies_the_device() {
    let mut ledger = promised();
    let (empty, nothing) = (state(Vec::new()), BTreeSet::new());
    let evidence = Evidence {
        checkpoint: Some(&empty),
        kubelet: Some("first"),
        lister: Some("first"),
        ..Evidence::default()
    };
    ledger.observe(&Evidence { now_ms: GRACE_MS * 9, ..evidence });
    assert!(!is_free(&ledger), "nobody says so");
    let listed = BTreeSet::from([(GPU.to_owned(), "GPU-0".to_owned())]);
    ledger.observe(&Evidence { now_ms: GRACE_MS * 9, listed: Some(&listed), ..evidence });
    assert!(!is_free(&ledger), "it has it, whatever its checkpoint shows");
    let saying = Evidence { listed: Some(&nothing), ..evidence };
    ledger.observe(&Evidence { now_ms: IN_FLIGHT_MS - 1, ..saying });
    assert!(!is_free(&ledger), "the answer may be on its way");
    // A starting kubelet serves podresources before it has read its checkpoint.
    let pods = BTreeSet::from(["pod-a".to_owned()]);
    let starting = Evidence { lister: Some("second"), pods: Some(&pods), ..saying };
    let mut other = promised();
    other.observe(&Evidence { now_ms: GRACE_MS * 9, ..starting });
    assert!(!is_free(&other));
    ledger.observe(&Evidence { now_ms: IN_FLIGHT_MS, ..saying });
    assert!(is_free(&ledger));
}

#[test]
fn a_promise_to_a_crashed_kubelet_ends_with_the_last_candidate_pod() {
    let (empty, nothing) = (state(Vec::new()), BTreeSet::new());
    let evidence = Evidence {
        checkpoint: Some(&empty),
        listed: Some(&nothing),
        kubelet: Some("second"),
        ..Evidence::default()
    };
    let pods = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    // No pod has started since.
    let mut ledger = promised();
    ledger.observe(&Evidence { now_ms: 1, pods: Some(&pods(&["pod-old"])), ..evidence });
    assert!(is_free(&ledger));
    // A pod has started, and outlives the plugin too.
    let mut ledger = promised();
    ledger.observe(&Evidence { now_ms: 1, pods: Some(&pods(&["pod-old", "pod-a"])), ..evidence });
    let mut ledger = Ledger::new(inventory(), ledger.journal());
    let later = Evidence { now_ms: GRACE_MS * 9, ..evidence };
    ledger.observe(&Evidence { pods: Some(&pods(&["pod-a", "pod-b"])), ..later });
    assert!(!is_free(&ledger));
    ledger.observe(&Evidence { pods: Some(&pods(&["pod-b"])), ..later });
    assert!(is_free(&ledger));
    // A pod has started, but holds another device according to the checkpoint.
    let mut ledger = promised();
    let other = state(vec![entry("pod-a", GPU, &ids(&["GPU-1"]))]);
    let shown = Evidence { now_ms: 1, checkpoint: Some(&other), ..evidence };
    ledger.observe(&Evidence { pods: Some(&pods(&["pod-a"])), ..shown });
    assert!(is_free(&ledger));
}

#[test]
fn a_hold_hidden_by_an_older_checkpoint_lasts_while_its_pod_may_start() {
    let mut ledger = ledger();
    let (empty, nothing, listed) = (state(Vec::new()), BTreeSet::new(), BTreeSet::new());
    let shown = state(vec![entry("pod-a", GPU, &ids(&["GPU-0"]))]);
    let evidence = Evidence { pods: Some(&nothing), ..Evidence::default() };
    ledger.observe(&Evidence { checkpoint: Some(&shown), ..evidence });
    let hidden = Evidence { checkpoint: Some(&empty), now_ms: 1, ..evidence };
    ledger.observe(&hidden);
    assert!(!is_free(&ledger) && ledger.is_uncertain(1));
    ledger.observe(&Evidence { listed: Some(&listed), ..hidden });
    assert!(is_free(&ledger), "the kubelet says that it has nothing of it");
}

#[test]
fn unhealthy_devices_return_after_a_healthy_period() {
    let mut ledger = ledger();
    ledger.report_health("GPU-0", Some("XID 79"), 0);
    ledger.report_health("MIG-6-2", Some("XID 43"), 0);
    assert!(!ledger.listing(GPU)[0].healthy);
    let slices = ledger.listing(SLICE);
    assert_eq!(slices.iter().filter(|one| !one.healthy).count(), 1);
    let refused = ledger.allocate(GPU, &[ids(&["GPU-0"])], 1).unwrap_err();
    assert!(refused.to_string().contains("XID 79"), "{refused}");
    ledger.report_health("GPU-0", None, 100);
    ledger.report_health("GPU-0", Some("XID 79"), 200);
    ledger.report_health("GPU-0", None, 300);
    ledger.report_health("GPU-0", None, 299 + RECOVERY_MS);
    assert!(!ledger.listing(GPU)[0].healthy);
    ledger.report_health("GPU-0", None, 300 + RECOVERY_MS);
    assert!(ledger.listing(GPU)[0].healthy);
}

#[test]
fn whole_gpus_are_near_each_other_and_leave_near_ones() {
    let mut ledger = ledger();
    assert_eq!(prefer(&ledger, GPU, 1), ["GPU-4"], "the socket with two left is the tighter one");
    ledger.allocate(GPU, &[ids(&["GPU-0"])], 0).unwrap();
    assert_eq!(prefer(&ledger, GPU, 1), ["GPU-1"], "a pair that is broken already");
    assert_eq!(prefer(&ledger, GPU, 2), ["GPU-4", "GPU-5"], "a pair, and three stay together");
    assert_eq!(prefer(&ledger, GPU, 3), ["GPU-1", "GPU-2", "GPU-3"], "one socket");
    let must = ids(&["GPU-4"]);
    let free = ids(&["GPU-1", "GPU-2", "GPU-3", "GPU-4", "GPU-5"]);
    assert_eq!(ledger.prefer(GPU, &free, &must, 2), ["GPU-4", "GPU-5"]);
}

#[test]
fn shares_and_slices_fill_gpus_in_use_first() {
    let mut ledger = ledger();
    ledger.allocate(SHARE, &[ids(&["GPU-3::0"])], 0).unwrap();
    assert_eq!(prefer(&ledger, SHARE, 1), ["GPU-3::1"]);
    assert_eq!(prefer(&ledger, SHARE, 3), ["GPU-3::1", "GPU-3::2", "GPU-3::3"]);
    assert_eq!(prefer(&ledger, SHARE, 4).len(), 4);
    ledger.allocate(SLICE, &[ids(&["MIG-7-0"])], 0).unwrap();
    assert_eq!(prefer(&ledger, SLICE, 2), ["MIG-7-1", "MIG-7-2"]);
}

#[test]
fn decided_devices_are_preferred_and_kept_for_their_pod() {
    let mut ledger = ledger();
    let read = |pod: &str, created, text: &str| Decision::read(pod, created, text).unwrap();
    let first = r#"{"alignment":"aligned","numaNodes":[1],"devices":[{"resource":"nvidia.com/gpu","count":2,"ids":["4","5"]}],"why":"x"}"#;
    let second = r#"{"alignment":"aligned","numaNodes":[0],"devices":[{"resource":"nvidia.com/gpu","count":1,"ids":["GPU-3"]}],"why":"x"}"#;
    let share =
        r#"{"alignment":"floating","grant":{"resource":"berth.dev/gpu-share","gpu":2},"why":"x"}"#;
    ledger.decide(vec![read("b", 2, second), read("a", 1, first), read("c", 3, share)]);
    assert_eq!(prefer(&ledger, GPU, 2), ["GPU-4", "GPU-5"]);
    assert_eq!(prefer(&ledger, GPU, 1), ["GPU-3"]);
    assert_eq!(prefer(&ledger, SHARE, 1), ["GPU-2::0"]);
    let three = prefer(&ledger, GPU, 3);
    assert_eq!(three, ["GPU-0", "GPU-1", "GPU-2"], "what others were promised is left to them");
    let given = state(vec![entry("b", GPU, &ids(&["GPU-3"]))]);
    ledger.observe(&Evidence { checkpoint: Some(&given), ..Evidence::default() });
    assert_ne!(prefer(&ledger, GPU, 1), ["GPU-3"], "it is given");
    assert!(Decision::read("d", 1, "{").is_err());
}

#[test]
fn shares_beyond_the_memory_are_refused() {
    let shares = (0..5).map(|nth| share(0, nth)).collect();
    let refused = Inventory::new(gpus(), shares).unwrap_err();
    assert!(matches!(refused, InventoryError::Overcommitted { .. }), "{refused}");
    assert!(ThreadCap::new(0).is_err() && ThreadCap::new(101).is_err());
    assert_eq!(ThreadCap::of_equal_shares(3).percent(), 34);
}

/// A small deterministic generator.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % below
    }
}

/// The true state, independent of the ledger.
#[derive(Default)]
struct World {
    /// Devices of running pods; a duplicate is a double allocation.
    running: BTreeMap<String, (String, Vec<String>)>,
    /// The kubelet's state in memory, and in its file.
    memory: BTreeMap<String, (String, Vec<String>)>,
    file: Vec<DeviceEntry>,
    file_is_there: bool,
    /// Number of kubelet starts.
    starts: usize,
}

impl World {
    fn entries(&self) -> Vec<DeviceEntry> {
        self.memory.iter().map(|(pod, (resource, ids))| entry(pod, resource, ids)).collect()
    }

    /// The kubelet restarts from its file.
    fn restart(&mut self) {
        self.starts += 1;
        let entries = self.file.iter().filter(|_| self.file_is_there);
        let restored = entries.map(|one| {
            let ids = one.devices.iter().map(|held| held.id.clone()).collect();
            (one.pod.clone(), (one.resource.clone(), ids))
        });
        self.memory = restored.collect();
    }

    fn show(&self, ledger: &mut Ledger, now_ms: i64, dice: &mut Dice) {
        let file = state(self.file.clone());
        let pods: BTreeSet<String> = self.running.keys().cloned().collect();
        let listed: BTreeSet<(String, String)> = self
            .memory
            .iter()
            .filter(|(pod, _)| self.running.contains_key(*pod))
            .flat_map(|(_, (resource, ids))| ids.iter().map(|id| (resource.clone(), id.clone())))
            .collect();
        ledger.observe(&Evidence {
            now_ms,
            checkpoint: self.file_is_there.then_some(&file),
            listed: (dice.roll(4) > 0).then_some(&listed),
            pods: Some(&pods),
            kubelet: Some(&self.starts.to_string()),
            lister: Some(&self.starts.to_string()),
        });
    }

    fn check(&self, inventory: &Inventory) {
        let device =
            |resource: &str, id: &str| &inventory.devices()[inventory.find(resource, id).unwrap()];
        let all: Vec<(&String, &Device)> = self
            .running
            .iter()
            .flat_map(|(pod, (resource, ids))| {
                ids.iter().map(move |id| (pod, device(resource, id)))
            })
            .collect();
        for (at, (pod, one)) in all.iter().enumerate() {
            for (other_pod, other) in &all[at + 1..] {
                assert!(
                    !one.excludes(other),
                    "{pod} has {} and {other_pod} has {}",
                    one.id,
                    other.id
                );
            }
        }
    }
}

/// Allocates as the kubelet does: devices that are listed as healthy and that it believes free.
fn ask(world: &mut World, ledger: &mut Ledger, round: usize, now_ms: i64, dice: &mut Dice) -> bool {
    let resource = [GPU, SHARE, SLICE][dice.roll(3)];
    let size = 1 + dice.roll(3);
    world.memory.retain(|pod, _| world.running.contains_key(pod));
    let used: BTreeSet<&String> =
        world.memory.values().filter(|(of, _)| of == resource).flat_map(|(_, ids)| ids).collect();
    // Sometimes its list is outdated.
    let old = dice.roll(5) == 0;
    let listed = ledger.listing(resource).into_iter().filter(|one| old || one.healthy);
    let free: Vec<String> = listed.map(|one| one.id).filter(|id| !used.contains(id)).collect();
    if free.len() < size {
        return false;
    }
    let given = if dice.roll(3) == 0 {
        let start = dice.roll(free.len() - size + 1);
        free[start..start + size].to_vec()
    } else {
        ledger.prefer(resource, &free, &[], size)
    };
    if given.len() < size {
        return false;
    }
    if ledger.allocate(resource, std::slice::from_ref(&given), now_ms).is_err() {
        return false;
    }
    let pod = format!("pod-{round}");
    world.running.insert(pod.clone(), (resource.to_owned(), given.clone()));
    world.memory.insert(pod, (resource.to_owned(), given));
    true
}

#[test]
fn ten_thousand_rounds_with_crashes_never_allocate_twice() {
    for seed in 0..8 {
        play(seed);
    }
}

fn play(seed: u64) {
    let mut dice = Dice(seed);
    let inventory = inventory();
    let mut ledger = Ledger::new(inventory.clone(), Journal::default());
    let mut world = World { file_is_there: true, ..World::default() };
    let (mut given, mut now_ms) = (0, 0);
    for round in 0..10_000 {
        now_ms += i64::try_from(dice.roll(9_000)).unwrap();
        world.show(&mut ledger, now_ms, &mut dice);
        match dice.roll(20) {
            0..=8 => {
                let got = ask(&mut world, &mut ledger, round, now_ms, &mut dice);
                given += usize::from(got);
                match dice.roll(8) {
                    0 if got => {
                        // The kubelet crashes before it writes: the pod never started.
                        world.running.remove(&format!("pod-{round}"));
                        world.restart();
                    }
                    // An older write replaces the newer one.
                    1 => {}
                    _ => (world.file, world.file_is_there) = (world.entries(), true),
                }
            }
            9..=15 => {
                let gone = dice.roll(world.running.len().max(1));
                let gone = world.running.keys().nth(gone).cloned();
                gone.and_then(|pod| world.running.remove(&pod));
            }
            16 => ledger = Ledger::new(inventory.clone(), ledger.journal()),
            // The kubelet restarts from its file.
            17 => world.restart(),
            18 => world.file_is_there = false,
            _ => {
                let uuid = format!("GPU-{}", dice.roll(8));
                let ill = (dice.roll(2) == 0).then_some("XID 79");
                ledger.report_health(&uuid, ill, now_ms);
            }
        }
        world.check(&inventory);
    }
    assert!(given > 2_000, "{given}");
    // Nothing is lost: without pods, all devices are free again.
    world = World { file_is_there: true, ..World::default() };
    now_ms += GRACE_MS;
    for index in 0..8 {
        ledger.report_health(&format!("GPU-{index}"), None, now_ms);
        ledger.report_health(&format!("GPU-{index}"), None, now_ms + RECOVERY_MS);
    }
    world.show(&mut ledger, now_ms, &mut dice);
    for resource in [GPU, SHARE, SLICE] {
        assert!(ledger.listing(resource).iter().all(|one| one.healthy), "{resource}");
    }
}
