//! MPS daemons: without one, the shares of a GPU are shares in name only.
//!
//! Owns which daemons a machine needs, where each has its files, and how the plugin sees that one runs. There is one
//! for each GPU or MIG instance that is on offer in shares, so that a client that crashes takes down its
//! neighbours on that GPU and nobody else. A daemon limits whoever connects to what one container may have: clients
//! can lower that in their environment, and cannot raise it. Must not know drivers, nor the kubelet.

mod keeper;

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use keeper::{Access, Gate, Keeper};

use crate::cdi;
use crate::device::{Inventory, Kind, SharingMode, ThreadCap};

/// How often and at what intervals a lock is tried: whoever only looks has it for a moment.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// A daemon that is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Daemon {
    /// UUID of its GPU or MIG instance.
    pub uuid: String,
    /// Threads that a client may use.
    pub threads: ThreadCap,
    /// Memory that a client may take.
    pub memory_bytes: u64,
    /// Whether its GPU is on offer in no other way. Then nobody gets at it but through the daemon, also who takes
    /// the daemon out of the environment.
    pub alone: bool,
}

/// The daemons that are needed to hand these devices out.
pub fn needed(inventory: &Inventory) -> Vec<Daemon> {
    let mut needed: BTreeMap<&str, Daemon> = BTreeMap::new();
    for device in inventory.devices() {
        let SharingMode::Mps(share) = device.sharing else { continue };
        let uuid = cdi::name(inventory, device);
        let mut on_gpu = inventory.devices().iter().filter(|other| other.gpu == device.gpu);
        let alone = device.kind == Kind::Whole
            && on_gpu.all(|other| matches!(other.sharing, SharingMode::Mps(_)));
        let most = share.of_many(usize::from(share.per_container));
        let daemon = needed.entry(uuid).or_insert_with(|| Daemon {
            uuid: uuid.to_owned(),
            threads: most.threads,
            memory_bytes: most.memory_bytes,
            alone,
        });
        daemon.threads = daemon.threads.max(most.threads);
        daemon.memory_bytes = daemon.memory_bytes.max(most.memory_bytes);
    }
    needed.into_values().collect()
}

/// Where clients of a GPU's daemon find it: a directory that is mounted into their containers.
pub fn pipes(directory: &Path, uuid: &str) -> PathBuf {
    directory.join(uuid).join("pipe")
}

fn lock(directory: &Path, uuid: &str) -> PathBuf {
    directory.join(uuid).join("lock")
}

/// The sign that a GPU's daemon runs and limits its clients, for as long as this and its process live.
#[derive(Debug)]
pub struct Alive {
    _locked: File,
}

impl Alive {
    /// Gives the sign.
    ///
    /// # Errors
    /// Its file cannot be written, or somebody else gives the sign already.
    pub fn show(directory: &Path, uuid: &str) -> io::Result<Self> {
        let path = lock(directory, uuid);
        fs::create_dir_all(path.parent().unwrap_or(directory))?;
        let file = File::create(&path)?;
        for _ in 0..LOCK_TRIES {
            match file.try_lock() {
                Ok(()) => return Ok(Self { _locked: file }),
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        let what = format!("{} is locked: another process keeps this daemon", path.display());
        Err(io::Error::new(io::ErrorKind::WouldBlock, what))
    }

    /// Whether a GPU's daemon runs.
    pub fn is_shown(directory: &Path, uuid: &str) -> bool {
        let Ok(file) = File::open(lock(directory, uuid)) else { return false };
        matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
    }
}
