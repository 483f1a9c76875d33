//! MPS daemons, which enforce the limits of shares.
//!
//! There is one daemon per GPU or MIG instance that is offered in shares, so a client that crashes affects only
//! its neighbours on that GPU. A daemon limits each client to what one container may have; clients can lower
//! that in their environment but not raise it.

mod supervisor;

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use supervisor::{Access, Gate, GateError, Supervisor};

use crate::cdi;
use crate::device::{Inventory, Kind, SharingMode, ThreadCap};

/// Attempts to lock, and the pause between them: a process that only checks holds the lock for a moment.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// A daemon to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Daemon {
    /// Of its GPU or MIG instance.
    pub uuid: String,
    /// Maximum per client.
    pub threads: ThreadCap,
    /// Maximum per client.
    pub memory_bytes: u64,
    /// Whether its GPU is offered only in shares. Then the GPU admits the daemon only, so a program that removes
    /// the daemon from its environment cannot use it.
    pub exclusive: bool,
}

/// The daemons that this inventory needs.
pub fn needed(inventory: &Inventory) -> Vec<Daemon> {
    let mut needed: BTreeMap<&str, Daemon> = BTreeMap::new();
    for device in inventory.devices() {
        let SharingMode::Mps(share) = device.sharing else { continue };
        let uuid = cdi::name(inventory, device);
        let mut on_gpu = inventory.devices().iter().filter(|other| other.gpu == device.gpu);
        let exclusive = device.kind == Kind::Whole
            && on_gpu.all(|other| matches!(other.sharing, SharingMode::Mps(_)));
        let most = share.of_many(usize::from(share.per_container));
        let daemon = needed.entry(uuid).or_insert_with(|| Daemon {
            uuid: uuid.to_owned(),
            threads: most.threads,
            memory_bytes: most.memory_bytes,
            exclusive,
        });
        daemon.threads = daemon.threads.max(most.threads);
        daemon.memory_bytes = daemon.memory_bytes.max(most.memory_bytes);
    }
    needed.into_values().collect()
}

/// The directory of a daemon's sockets, which is mounted into the containers of its clients.
pub fn pipes(directory: &Path, uuid: &str) -> PathBuf {
    directory.join(uuid).join("pipe")
}

fn lock(directory: &Path, uuid: &str) -> PathBuf {
    directory.join(uuid).join("lock")
}

/// A lock that shows that a daemon runs and limits its clients, while this value lives.
#[derive(Debug)]
pub struct DaemonLock {
    _locked: File,
}

impl DaemonLock {
    /// # Errors
    /// If the file cannot be written, or another process holds the lock.
    pub fn acquire(directory: &Path, uuid: &str) -> io::Result<Self> {
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
        let what = format!("{} is locked: another process runs this daemon", path.display());
        Err(io::Error::new(io::ErrorKind::WouldBlock, what))
    }

    /// Whether a process holds the lock.
    pub fn is_held(directory: &Path, uuid: &str) -> bool {
        let Ok(file) = File::open(lock(directory, uuid)) else { return false };
        matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
    }
}
