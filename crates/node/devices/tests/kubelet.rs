//! Plugins with a kubelet over real sockets, in any order of starts and crashes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may fail")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_devices::cdi::{self, Common};
use berth_devices::config::Specification;
use berth_devices::mps::DaemonLock;
use berth_devices::{
    Decision, Device, DeviceConfig, GpuIndex, Inventory, Kind, OfferedGpu, PluginConfig, Plugins,
    PodResourcesClient, ResponseConfig, RunningPods, Share, SharingMode, Supply, ThreadCap, serve,
};
use berth_testkit::device_manager::FakeKubelet;
use tokio::sync::watch;

const GIB: u64 = 1 << 30;
const GPU: &str = "nvidia.com/gpu";
const SHARE: &str = "berth.dev/gpu-share";
const ROUNDS: usize = 10_000;

/// Four GPUs on two NUMA nodes, whole or in two shares each.
fn inventory() -> Inventory {
    let gpu = |index: u16| OfferedGpu {
        index: GpuIndex(index),
        uuid: format!("GPU-{index}"),
        numa: vec![u32::from(index / 2)],
        memory_bytes: 141 * GIB,
        distances: Vec::new(),
        device_files: vec![format!("/dev/nvidia{index}")],
    };
    let device = |index: u16, id: String, resource: &str, sharing| Device {
        id,
        resource: resource.to_owned(),
        gpu: GpuIndex(index),
        kind: Kind::Whole,
        sharing,
    };
    let threads = ThreadCap::of_equal_shares(2);
    let mps = SharingMode::Mps(Share { memory_bytes: 70 * GIB, threads, per_container: 2 });
    let devices = (0..4).flat_map(|index| {
        let share = |nth: u8| device(index, format!("GPU-{index}::{nth}"), SHARE, mps);
        [device(index, format!("GPU-{index}"), GPU, SharingMode::Exclusive), share(0), share(1)]
    });
    Inventory::new((0..4).map(gpu).collect(), devices.collect()).unwrap()
}

/// Running pods.
#[derive(Clone, Default)]
struct Running(Arc<Mutex<BTreeSet<String>>>);

impl RunningPods for Running {
    fn pods(&self) -> Option<BTreeSet<String>> {
        Some(self.0.lock().unwrap().clone())
    }
}

struct Machine {
    _directory: tempfile::TempDir,
    kubelet_directory: PathBuf,
    config: PluginConfig,
    running: Running,
    daemons: Vec<DaemonLock>,
}

fn machine() -> Machine {
    let directory = tempfile::tempdir().unwrap();
    let kubelet_directory = directory.path().join("kubelet");
    let config = PluginConfig {
        kubelet_directory: kubelet_directory.clone(),
        journal: directory.path().join("journal/devices.json"),
        responses: ResponseConfig {
            cdi_kind: Some("berth.dev/gpu".to_owned()),
            mps_directory: directory.path().join("mps"),
        },
        poll_interval: Duration::from_millis(20),
    };
    let daemon =
        |index: u8| DaemonLock::acquire(&config.responses.mps_directory, &format!("GPU-{index}"));
    let daemons = (0..4).map(|index| daemon(index).unwrap()).collect();
    let running = Running::default();
    Machine { _directory: directory, kubelet_directory, config, running, daemons }
}

impl Machine {
    fn kubelet(&self) -> FakeKubelet {
        let active = self.running.0.lock().unwrap().clone();
        FakeKubelet::start(&self.kubelet_directory, active).unwrap()
    }

    async fn plugins(&self) -> Arc<Plugins> {
        Plugins::start(self.config.clone(), inventory(), self.running.clone()).await
    }

    async fn process(&self) -> Process {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().unwrap();
        let (config, running) = (self.config.clone(), self.running.clone());
        let plugins = runtime.spawn(Plugins::start(config, inventory(), running)).await.unwrap();
        Process { runtime: Some(runtime), plugins }
    }

    fn run(&self, pod: &str) {
        self.running.0.lock().unwrap().insert(pod.to_owned());
    }

    fn end(&self, kubelet: &FakeKubelet, pod: &str) {
        self.running.0.lock().unwrap().remove(pod);
        kubelet.end(pod);
    }

    fn checkpoint(&self) -> PathBuf {
        self.kubelet_directory.join("device-plugins/kubelet_internal_checkpoint")
    }

    fn socket(&self) -> PathBuf {
        self.kubelet_directory.join("device-plugins/berth-nvidia.com_gpu.sock")
    }
}

/// Plugins in their own runtime, which can be killed.
struct Process {
    runtime: Option<tokio::runtime::Runtime>,
    plugins: Arc<Plugins>,
}

impl Process {
    /// Kills all tasks; files and sockets remain.
    async fn kill(mut self) {
        let runtime = self.runtime.take().unwrap();
        let killed = move || runtime.shutdown_timeout(Duration::from_secs(5));
        tokio::task::spawn_blocking(killed).await.unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn until(what: &str, mut is: impl FnMut() -> bool) {
    for _ in 0..2_000 {
        if is() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

async fn ready(kubelet: &FakeKubelet) {
    until("all devices are listed", || {
        kubelet.healthy(GPU).len() == 4 && kubelet.healthy(SHARE).len() == 8
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_kubelet_knows_all_devices_in_any_start_order() {
    let machine = machine();
    let kubelet = machine.kubelet();
    let plugins = machine.plugins().await;
    ready(&kubelet).await;
    plugins.stop().await;
    assert!(!machine.socket().exists());
    kubelet.die();
    let plugins = machine.plugins().await;
    let kubelet = machine.kubelet();
    ready(&kubelet).await;
    plugins.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_socket_and_a_restarted_kubelet_are_noticed() {
    let machine = machine();
    let kubelet = machine.kubelet();
    let plugins = machine.plugins().await;
    ready(&kubelet).await;
    let before = kubelet.registrations();
    std::fs::remove_file(machine.socket()).unwrap();
    until("it registers again", || kubelet.registrations() > before).await;
    ready(&kubelet).await;
    let (ids, _) = kubelet.admit("pod-a", GPU, 1).await.unwrap();
    machine.run("pod-a");
    kubelet.die();
    let kubelet = machine.kubelet();
    until("GPUs are listed", || kubelet.healthy(GPU).len() == 4).await;
    let (others, _) = kubelet.admit("pod-b", GPU, 3).await.unwrap();
    assert!(!others.contains(&ids[0]));
    plugins.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crashed_plugin_remembers_its_answers() {
    let machine = machine();
    let kubelet = machine.kubelet();
    let process = machine.process().await;
    ready(&kubelet).await;
    let (ids, _) = kubelet.admit("pod-a", GPU, 1).await.unwrap();
    process.kill().await;
    machine.run("pod-a");
    // Only the journal has it, not the checkpoint.
    kubelet.die();
    std::fs::remove_file(machine.checkpoint()).unwrap();
    let kubelet = machine.kubelet();
    let _process = machine.process().await;
    until("shares are listed", || kubelet.healthy(SHARE).len() == 6).await;
    let shares = kubelet.healthy(SHARE);
    assert!(shares.iter().all(|share| !share.starts_with(&ids[0])));
    let (others, _) = kubelet.admit("pod-b", GPU, 3).await.unwrap();
    assert!(!others.contains(&ids[0]));
    assert!(kubelet.admit("pod-c", GPU, 1).await.is_err());
    machine.end(&kubelet, "pod-a");
    assert_eq!(kubelet.admit("pod-d", GPU, 1).await.unwrap().0, ids);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_hidden_by_an_older_checkpoint_is_not_allocated_again() {
    let machine = machine();
    let kubelet = machine.kubelet();
    let plugins = machine.plugins().await;
    ready(&kubelet).await;
    kubelet.write_late();
    let (ids, _) = kubelet.admit("pod-a", GPU, 1).await.unwrap();
    machine.run("pod-a");
    assert!(!std::fs::read_to_string(machine.checkpoint()).unwrap().contains("pod-a"));
    kubelet.die();
    let kubelet = machine.kubelet();
    until("GPUs are listed", || kubelet.healthy(GPU).len() == 4).await;
    let (others, _) = kubelet.admit("pod-b", GPU, 3).await.unwrap();
    assert!(!others.contains(&ids[0]));
    let refused = kubelet.admit("pod-c", GPU, 1).await.unwrap_err();
    assert!(refused.contains("a starting pod"), "{refused}");
    machine.run("pod-b");
    machine.end(&kubelet, "pod-a");
    assert_eq!(kubelet.admit("pod-d", GPU, 1).await.unwrap().0, ids);
    plugins.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_to_a_kubelet_that_crashed_is_free_at_once() {
    let machine = machine();
    let kubelet = machine.kubelet();
    let plugins = machine.plugins().await;
    ready(&kubelet).await;
    kubelet.admit("pod-a", GPU, 3).await.unwrap();
    machine.run("pod-a");
    let (ids, _) = kubelet.allocate("pod-b", GPU, 1).await.unwrap();
    kubelet.die();
    let kubelet = machine.kubelet();
    until("GPUs are listed", || kubelet.healthy(GPU).len() == 4).await;
    // The pod did not start, so the kubelet asks again, and only this device is left.
    assert_eq!(kubelet.admit("pod-b", GPU, 1).await.unwrap().0, ids);
    plugins.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_podresources_pods_start_and_end_and_nothing_is_allocated_twice() {
    let machine = machine();
    let kubelet = machine.kubelet();
    std::fs::remove_dir_all(machine.kubelet_directory.join("pod-resources")).unwrap();
    let plugins = machine.plugins().await;
    ready(&kubelet).await;
    let (held, _) = kubelet.admit("pod-a", GPU, 3).await.unwrap();
    machine.run("pod-a");
    let (shares, _) = kubelet.admit("pod-b", SHARE, 2).await.unwrap();
    machine.run("pod-b");
    assert!(shares.iter().all(|share| held.iter().all(|gpu| !share.starts_with(gpu))));
    assert!(kubelet.admit("pod-c", GPU, 1).await.is_err());
    machine.end(&kubelet, "pod-a");
    assert_eq!(kubelet.admit("pod-d", GPU, 3).await.unwrap().0, held);
    plugins.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubelet_without_checkpoint_does_not_get_held_devices() {
    let machine = machine();
    let kubelet = machine.kubelet();
    let plugins = machine.plugins().await;
    ready(&kubelet).await;
    let (held, _) = kubelet.admit("pod-a", GPU, 2).await.unwrap();
    machine.run("pod-a");
    tokio::time::sleep(Duration::from_millis(100)).await;
    kubelet.die();
    std::fs::write(machine.checkpoint(), "{ damaged").unwrap();
    let kubelet = machine.kubelet();
    // All stay healthy: a kubelet that finds too few would end the running pod.
    until("GPUs are listed", || kubelet.healthy(GPU).len() == 4).await;
    assert!(kubelet.admit("pod-b", GPU, 3).await.is_err());
    let (others, _) = kubelet.admit("pod-c", GPU, 2).await.unwrap();
    assert!(held.iter().all(|id| !others.contains(id)), "{held:?} {others:?}");
    machine.end(&kubelet, "pod-c");
    machine.end(&kubelet, "pod-a");
    until("its GPUs can be had again", || kubelet.healthy(GPU).len() == 4).await;
    kubelet.admit("pod-d", GPU, 4).await.unwrap();
    plugins.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unhealthy_gpus_are_listed_as_unhealthy() {
    let machine = machine();
    let kubelet = machine.kubelet();
    let plugins = machine.plugins().await;
    ready(&kubelet).await;
    plugins.report_health("GPU-1", Some("XID 79")).await;
    until("one is ill", || kubelet.healthy(GPU).len() == 3).await;
    until("its shares too", || kubelet.healthy(SHARE).len() == 6).await;
    plugins.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shares_without_mps_daemon_are_unhealthy() {
    let mut machine = machine();
    let kubelet = machine.kubelet();
    machine.daemons.remove(2);
    let plugins = machine.plugins().await;
    until("shares of the others are listed", || kubelet.healthy(SHARE).len() == 6).await;
    until("all GPUs are listed", || kubelet.healthy(GPU).len() == 4).await;
    let directory = machine.config.responses.mps_directory.clone();
    machine.daemons.push(DaemonLock::acquire(&directory, "GPU-2").unwrap());
    until("its shares come when it runs", || kubelet.healthy(SHARE).len() == 8).await;
    let (given, _) = kubelet.admit("pod-b", SHARE, 1).await.unwrap();
    kubelet.start_container("pod-b", SHARE).await.unwrap();
    machine.daemons.clear();
    // A restarted container gets no new Allocate.
    let refused = kubelet.start_container("pod-b", SHARE).await.unwrap_err();
    assert!(
        refused.contains(&given[0]) && refused.contains("MPS daemon is not running"),
        "{refused}"
    );
    // The kubelet may not know it yet.
    assert!(kubelet.admit("pod-a", SHARE, 1).await.is_err());
    until("none is left", || kubelet.healthy(SHARE).is_empty()).await;
    plugins.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_share_has_a_memory_limit_and_a_thread_cap() {
    let machine = machine();
    let kubelet = machine.kubelet();
    let plugins = machine.plugins().await;
    ready(&kubelet).await;
    let (_, answer) = kubelet.admit("pod-a", SHARE, 1).await.unwrap();
    let env = |name: &str| answer.envs.get(name).map(String::as_str);
    assert_eq!(env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), Some("50"));
    assert_eq!(env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), Some("0=71680M"));
    assert_eq!(env("CUDA_MPS_PIPE_DIRECTORY"), Some("/run/nvidia-mps"));
    assert_eq!(env("NVIDIA_VISIBLE_DEVICES"), Some("void"));
    assert!(answer.cdi_devices[0].name.starts_with("berth.dev/gpu=GPU-"));
    let pipes = machine.config.responses.mps_directory.join("GPU-0/pipe");
    assert_eq!(answer.mounts.len(), 1);
    assert_eq!(answer.mounts[0].host_path, pipes.display().to_string());
    let client =
        PodResourcesClient::new(machine.kubelet_directory.join("pod-resources/kubelet.sock"));
    let pods = client.list().await.unwrap().unwrap();
    assert_eq!(pods[0].containers[0].devices[0].resource_name, SHARE);
    assert_eq!(client.allocatable().await.unwrap().unwrap().devices.len(), 2);
    plugins.stop().await;
}

#[tokio::test]
async fn a_missing_podresources_socket_is_not_an_error() {
    let client = PodResourcesClient::new("/nowhere/kubelet.sock");
    assert!(client.list().await.unwrap().is_none());
}

#[test]
fn the_cdi_specification_is_replaced_and_has_each_gpu_once() {
    let directory = tempfile::tempdir().unwrap();
    let common = Common { device_files: vec!["/dev/nvidiactl".to_owned()], ..Common::default() };
    let specification = cdi::specification("berth.dev/gpu", &inventory(), &common);
    let path = cdi::write(directory.path(), &specification).unwrap();
    assert_eq!(cdi::write(directory.path(), &specification).unwrap(), path);
    assert_eq!(path, directory.path().join("berth.dev-gpu.json"));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    let text = std::fs::read_to_string(Path::new(&path)).unwrap();
    let read: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(read["cdiVersion"], "0.6.0");
    assert_eq!(read["devices"].as_array().unwrap().len(), 4);
    assert_eq!(read["devices"][1]["containerEdits"]["deviceNodes"][0]["path"], "/dev/nvidia1");
    assert_eq!(read["containerEdits"]["deviceNodes"][0]["path"], "/dev/nvidiactl");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_devices_and_health_reach_the_kubelet() {
    let machine = machine();
    let cdi = tempfile::tempdir().unwrap();
    let config = DeviceConfig {
        plugin: machine.config.clone(),
        specification: Some(Specification {
            directory: cdi.path().to_owned(),
            common: Common::default(),
        }),
        offers: Vec::new(),
    };
    let well = Supply { inventory: inventory(), unhealthy: BTreeMap::new() };
    let (stock, stocks) = watch::channel(well.clone());
    let (decisions, decided) = watch::channel(Vec::new());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let stopped = async move { drop(stopped.await) };
    let serving = tokio::spawn(serve(config, stocks, decided, machine.running.clone(), stopped));
    let kubelet = machine.kubelet();
    ready(&kubelet).await;
    assert!(cdi.path().join("berth.dev-gpu.json").exists());
    let ill = BTreeMap::from([("GPU-1".to_owned(), "XID 79".to_owned())]);
    stock.send_replace(Supply { unhealthy: ill, ..well.clone() });
    until("one is ill", || kubelet.healthy(GPU).len() == 3).await;
    until("its shares too", || kubelet.healthy(SHARE).len() == 6).await;
    // Another one disappears.
    let gpus = inventory().gpus().iter().filter(|gpu| gpu.index.0 != 2).cloned().collect();
    let devices = inventory().devices().to_vec().into_iter();
    let devices = devices.filter(|device| device.gpu.0 != 2).collect();
    let fewer = Inventory::new(gpus, devices).unwrap();
    stock.send_modify(|stock| stock.inventory = fewer);
    until("two are left", || kubelet.healthy(GPU).len() == 2).await;
    let text = r#"{"devices":[{"resource":"nvidia.com/gpu","count":1,"ids":["3"]}]}"#;
    decisions.send_replace(vec![Decision::read("pod-a", 1, text).unwrap()]);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(kubelet.admit("pod-a", GPU, 1).await.unwrap().0, ["GPU-3"]);
    machine.run("pod-a");
    // Both recover, and are allocated again after a while.
    stock.send_replace(well);
    until("all are well", || kubelet.healthy(GPU).len() == 4).await;
    stop.send(()).unwrap();
    serving.await.unwrap();
    assert!(!machine.socket().exists());
}

/// No two running pods have the same hardware, except as shares.
fn check(held: &BTreeMap<String, (&str, Vec<String>)>) {
    let mut seen = BTreeSet::new();
    let mut wholes = BTreeSet::new();
    for (pod, (resource, ids)) in held {
        for id in ids {
            assert!(seen.insert(id.clone()), "{pod} has {id}, and another too");
            if *resource == GPU {
                wholes.insert(id.clone());
            }
        }
    }
    let shared = |id: &&String| id.split_once("::").is_some_and(|(gpu, _)| wholes.contains(gpu));
    assert_eq!(seen.iter().find(shared), None);
}

/// Random events of a kubelet, a plugin and pods.
struct Rounds {
    machine: Machine,
    kubelet: Option<FakeKubelet>,
    process: Option<Process>,
    held: BTreeMap<String, (&'static str, Vec<String>)>,
    dice: u64,
    given: usize,
    refused: usize,
}

impl Rounds {
    fn roll(&mut self, below: usize) -> usize {
        let next = self.dice.wrapping_mul(6_364_136_223_846_793_005);
        self.dice = next.wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.dice >> 33).unwrap() % below
    }

    fn kubelet(&self) -> &FakeKubelet {
        self.kubelet.as_ref().unwrap()
    }

    async fn restart_kubelet(&mut self) {
        self.kubelet.take().unwrap().die();
        if self.roll(4) == 0 {
            std::fs::write(self.machine.checkpoint(), "{ damaged").unwrap();
        }
        self.kubelet = Some(self.machine.kubelet());
        until("plugins register", || self.kubelet().registrations() >= 2).await;
    }

    async fn restart_plugins(&mut self) {
        let process = self.process.take().unwrap();
        if self.roll(2) == 0 {
            process.plugins.stop().await;
        }
        process.kill().await;
        let before = self.kubelet().registrations();
        self.process = Some(self.machine.process().await);
        until("plugins register", || self.kubelet().registrations() >= before + 2).await;
    }

    async fn admit(&mut self, round: usize) {
        let pod = format!("pod-{round}");
        let resource = if self.roll(2) == 0 { GPU } else { SHARE };
        let count = 1 + self.roll(2);
        match self.kubelet().admit(&pod, resource, count).await {
            Ok((ids, _)) => {
                self.given += 1;
                self.machine.run(&pod);
                self.held.insert(pod, (resource, ids));
            }
            Err(_) => self.refused += 1,
        }
    }

    fn end_one(&mut self) {
        let nth = self.roll(self.held.len().max(1));
        if let Some(pod) = self.held.keys().nth(nth).cloned() {
            self.held.remove(&pod);
            self.machine.end(self.kubelet(), &pod);
        }
    }

    async fn round(&mut self, round: usize) {
        match self.roll(1_000) {
            0..=5 => self.restart_kubelet().await,
            6..=9 => self.restart_plugins().await,
            10..=12 => std::fs::remove_file(self.machine.socket()).unwrap_or_default(),
            13..=20 => self.kubelet().write_late(),
            21..=24 => {
                let _ = self.kubelet().allocate("pod-lost", GPU, 1).await;
                self.restart_kubelet().await;
            }
            25..=26 => {
                let socket = self.machine.kubelet_directory.join("pod-resources/kubelet.sock");
                std::fs::remove_file(socket).unwrap_or_default();
            }
            27..=540 => self.admit(round).await,
            _ => self.end_one(),
        }
        check(&self.held);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_rounds_over_sockets_never_allocate_twice() {
    let machine = machine();
    let kubelet = Some(machine.kubelet());
    let process = Some(machine.process().await);
    let (held, dice) = (BTreeMap::new(), 11);
    let mut rounds = Rounds { machine, kubelet, process, held, dice, given: 0, refused: 0 };
    ready(rounds.kubelet()).await;
    for round in 0..ROUNDS {
        rounds.round(round).await;
    }
    let (given, refused) = (rounds.given, rounds.refused);
    assert!(given > ROUNDS / 8 && refused > ROUNDS / 50, "{given} given, {refused} refused");
    // Nothing is lost: without pods, all devices are free again.
    rounds.restart_kubelet().await;
    while !rounds.held.is_empty() {
        rounds.end_one();
    }
    ready(rounds.kubelet()).await;
    rounds.kubelet().admit("pod-last", GPU, 4).await.unwrap();
}
