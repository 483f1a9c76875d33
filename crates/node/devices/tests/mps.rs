//! MPS daemons and their supervisor, with a fake of NVIDIA's program.
#![allow(clippy::unwrap_used, reason = "tests may fail")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_devices::mps::{Access, Daemon, DaemonLock, Gate, Supervisor, needed};
use berth_devices::{Device, GpuIndex, Inventory, Kind, OfferedGpu, Share, SharingMode, ThreadCap};

const GIB: u64 = 1 << 30;

fn cap(percent: u8) -> ThreadCap {
    ThreadCap::new(percent).unwrap()
}

fn device(gpu: u16, id: &str, resource: &str, sharing: SharingMode) -> Device {
    let (id, resource) = (id.to_owned(), resource.to_owned());
    Device { id, resource, gpu: GpuIndex(gpu), kind: Kind::Whole, sharing }
}

fn share(percent: u8, memory_gib: u64, per_container: u8) -> SharingMode {
    let memory_bytes = memory_gib * GIB;
    SharingMode::Mps(Share { memory_bytes, threads: cap(percent), per_container })
}

#[test]
fn a_daemon_enforces_the_maximum_of_a_container() {
    let gpu = |index: u16| OfferedGpu {
        index: GpuIndex(index),
        uuid: format!("GPU-{index}"),
        memory_bytes: 141 * GIB,
        ..OfferedGpu::default()
    };
    let mut slice = device(2, "MIG-a::0", "c", share(50, 8, 1));
    slice.kind = Kind::Mig {
        uuid: "MIG-a".to_owned(),
        profile: "1g.18gb".to_owned(),
        start: 0,
        device_files: Vec::new(),
    };
    let devices = vec![
        device(0, "GPU-0::0", "a", share(20, 16, 2)),
        device(0, "GPU-0::1", "a", share(20, 16, 2)),
        device(0, "GPU-0::0", "b", share(60, 48, 2)),
        device(1, "GPU-1::0", "a", share(20, 16, 1)),
        device(1, "GPU-1", "whole", SharingMode::Exclusive),
        slice,
        device(3, "GPU-3", "whole", SharingMode::Exclusive),
    ];
    let inventory = Inventory::new((0..4).map(gpu).collect(), devices).unwrap();
    let daemon = |uuid: &str, percent, gib, exclusive| Daemon {
        uuid: uuid.to_owned(),
        threads: cap(percent),
        memory_bytes: gib * GIB,
        exclusive,
    };
    let wanted = [
        daemon("GPU-0", 100, 96, true),
        // It is also offered whole: then it must admit any number of processes.
        daemon("GPU-1", 20, 16, false),
        daemon("MIG-a", 50, 8, false),
    ];
    assert_eq!(needed(&inventory), wanted);
}

/// The fake program, a file of the repository: one written by a test may be busy when it is run.
const STAND_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mps-control.sh");

const LIMITS: &str = "set_default_active_thread_percentage 25\n\
                      set_default_device_pinned_mem_limit 0 32768M\n";

struct Machine {
    directory: tempfile::TempDir,
    gate: Arc<Mutex<Vec<Access>>>,
}

impl Machine {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self { directory, gate: Arc::default() }
    }

    fn mps(&self) -> PathBuf {
        self.directory.path().join("mps")
    }

    fn of(&self, uuid: &str, file: &str) -> PathBuf {
        self.mps().join(uuid).join(file)
    }

    fn supervisor(&self) -> Supervisor {
        let told = Arc::clone(&self.gate);
        let gate: Gate = Arc::new(move |uuid: &str, access| {
            assert_eq!(uuid, "GPU-0");
            told.lock().unwrap().push(access);
            Ok(())
        });
        Supervisor::new(self.mps(), gate).with_program(STAND_IN)
    }

    fn daemon(uuid: &str, exclusive: bool) -> Daemon {
        Daemon { uuid: uuid.to_owned(), threads: cap(25), memory_bytes: 32 * GIB, exclusive }
    }
}

async fn until(what: &str, mut is: impl FnMut() -> bool) {
    for _ in 0..1_000 {
        if is() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(is(), "not in time: {what}");
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[tokio::test]
async fn daemons_start_with_their_limits_and_end_with_their_gpus() {
    let machine = Machine::new();
    let mut supervisor = machine.supervisor();
    supervisor.follow(vec![Machine::daemon("GPU-0", true), Machine::daemon("GPU-1", false)]).await;
    let alive = |uuid: &str| DaemonLock::is_held(&machine.mps(), uuid);
    until("both run", || alive("GPU-0") && alive("GPU-1")).await;
    let environment = text(&machine.of("GPU-0", "log/env"));
    for line in ["CUDA_VISIBLE_DEVICES=GPU-0", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25"] {
        assert!(environment.lines().any(|one| one == line), "{line} in {environment}");
    }
    assert_eq!(*machine.gate.lock().unwrap(), [Access::Nobody, Access::Daemon]);

    supervisor.follow(vec![Machine::daemon("GPU-0", true)]).await;
    assert!(alive("GPU-0") && !alive("GPU-1"));
    assert_eq!(text(&machine.of("GPU-1", "orders")), format!("{LIMITS}quit\n"));
    assert_eq!(text(&machine.of("GPU-0", "orders")), LIMITS);
    supervisor.stop().await;
    assert!(!alive("GPU-0"));
    assert_eq!(machine.gate.lock().unwrap().last(), Some(&Access::Everybody));
}

#[tokio::test]
async fn a_crashed_daemon_is_restarted_and_its_shares_are_unhealthy_meanwhile() {
    let machine = Machine::new();
    let mut supervisor = machine.supervisor();
    supervisor.follow(vec![Machine::daemon("GPU-0", true)]).await;
    let alive = || DaemonLock::is_held(&machine.mps(), "GPU-0");
    until("it runs", alive).await;
    let pid = text(&machine.of("GPU-0", "pipe/pid"));
    let killed = std::process::Command::new("kill").args(["-9", pid.trim()]).status().unwrap();
    assert!(killed.success());
    until("it is seen to be dead", || !alive()).await;
    let last = || machine.gate.lock().unwrap().last().copied();
    until("nobody is let in at once", || last() == Some(Access::Nobody)).await;
    assert!(!alive(), "not only when it is started again");
    until("it runs again", alive).await;
    assert_eq!(text(&machine.of("GPU-0", "log/runs")), "run\nrun\n");
    // In between nobody may use the GPU: clients would run without limits.
    let mut turns = machine.gate.lock().unwrap().clone();
    turns.dedup();
    assert_eq!(turns, [Access::Nobody, Access::Daemon].repeat(2));
    supervisor.stop().await;
}

#[tokio::test]
async fn a_running_daemon_is_adopted_with_its_clients() {
    let machine = Machine::new();
    fs::create_dir_all(machine.of("GPU-0", "log")).unwrap();
    fs::create_dir_all(machine.of("GPU-0", "pipe")).unwrap();
    fs::write(machine.of("GPU-0", "servers"), "471\n").unwrap();
    let mut earlier = std::process::Command::new(STAND_IN)
        .arg("-f")
        .env("CUDA_MPS_PIPE_DIRECTORY", machine.of("GPU-0", "pipe"))
        .spawn()
        .unwrap();
    until("it listens", || machine.of("GPU-0", "pipe/control").exists()).await;
    let mut supervisor = machine.supervisor();
    supervisor.follow(vec![Machine::daemon("GPU-0", false)]).await;
    until("it is kept", || DaemonLock::is_held(&machine.mps(), "GPU-0")).await;
    let orders = format!(
        "{LIMITS}set_active_thread_percentage 471 25\nset_device_pinned_mem_limit 471 0 32768M\n"
    );
    assert_eq!(text(&machine.of("GPU-0", "orders")), orders);
    assert_eq!(text(&machine.of("GPU-0", "log/runs")), "run\n");
    supervisor.stop().await;
    assert_eq!(text(&machine.of("GPU-0", "orders")), format!("{orders}quit\n"));
    assert!(earlier.wait().unwrap().success());
}

#[tokio::test]
async fn without_the_program_no_daemon_lock_is_held() {
    let machine = Machine::new();
    let mut supervisor = machine.supervisor().with_program("/nowhere/nvidia-cuda-mps-control");
    supervisor.follow(vec![Machine::daemon("GPU-0", false)]).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!DaemonLock::is_held(&machine.mps(), "GPU-0"));
    supervisor.stop().await;
}

#[test]
fn only_one_process_supervises_a_daemon() {
    let machine = Machine::new();
    let first = DaemonLock::acquire(&machine.mps(), "GPU-0").unwrap();
    assert!(DaemonLock::acquire(&machine.mps(), "GPU-0").is_err());
    drop(first);
    assert!(DaemonLock::acquire(&machine.mps(), "GPU-0").is_ok());
}
