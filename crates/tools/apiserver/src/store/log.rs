//! The store on disk: a log of changes, and snapshots that shorten it.
//!
//! One thread writes. It takes all queued changes, writes them as one frame, and syncs. Only then are requests
//! answered and watches notified, so nothing that a client has seen is lost if the process is killed.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;

use super::acknowledged::{Acknowledged, Found, LogOnDisk, Mark};
use super::journal::{self, JournalError, Record, Writer};
use super::object::write_typed;
use super::{Entry, State, Stored};
use crate::kinds::Resource;

/// The log is replaced by a snapshot when it has this many bytes and twice those of the snapshot.
const LOG_BYTES_MIN: u64 = 32 << 20;
/// Frames of a snapshot have about this many bytes.
const SNAPSHOT_FRAME_BYTES: usize = 1 << 20;

#[derive(Clone, Debug, Default)]
pub(super) struct Durable {
    pub(super) revision: u64,
    /// Why nothing can be written any more.
    pub(super) failed: Option<String>,
}

/// Changes that are not on disk yet.
#[derive(Default)]
struct Pending {
    records: Vec<u8>,
    revision: u64,
    /// Watchers to notify, with the revision.
    touched: BTreeMap<Resource, (Arc<watch::Sender<u64>>, u64)>,
    closing: bool,
}

struct Shared {
    pending: Mutex<Pending>,
    wake: Condvar,
    durable: watch::Sender<Durable>,
}

pub(super) struct Log {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

pub(super) struct Recovered {
    pub(super) revision: u64,
    pub(super) objects: Vec<(Resource, Stored)>,
    log: Writer,
    mark: Mark,
    snapshot_bytes: u64,
    directory: PathBuf,
    lock: File,
}

impl Log {
    pub(super) fn start(recovered: Disk, state: Arc<RwLock<State>>, revision: u64) -> Self {
        let (durable, _) = watch::channel(Durable { revision, failed: None });
        let shared = Arc::new(Shared { pending: Mutex::default(), wake: Condvar::new(), durable });
        let writer = LogThread { disk: recovered, state, shared: shared.clone() };
        let thread = std::thread::spawn(move || writer.run());
        Self { shared, thread: Some(thread) }
    }

    /// Queues the changes of a transaction. The caller holds the store's lock, so changes are in order.
    pub(super) fn append(&self, entries: &[Entry]) {
        let mut pending = self.shared.pending.lock().unwrap_or_else(PoisonError::into_inner);
        for Entry { resource, change, changed } in entries {
            let names = [&*resource.group, &*resource.plural, &*change.after.key];
            if change.deleted {
                journal::write_remove(&mut pending.records, change.revision, names);
            } else {
                let json = typed(&change.after);
                journal::write_put(&mut pending.records, change.revision, names, &json);
            }
            pending.revision = change.revision;
            pending.touched.insert(resource.clone(), (changed.clone(), change.revision));
        }
        drop(pending);
        self.shared.wake.notify_one();
    }

    pub(super) fn durable(&self) -> watch::Receiver<Durable> {
        self.shared.durable.subscribe()
    }

    /// The last revision that is on disk.
    pub(super) fn durable_revision(&self) -> u64 {
        self.shared.durable.borrow().revision
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.shared.pending.lock().unwrap_or_else(PoisonError::into_inner).closing = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn typed(stored: &Stored) -> Vec<u8> {
    let text = |field: &str| stored.value[field].as_str().unwrap_or_default();
    let mut json = Vec::with_capacity(stored.body.len() + 64);
    write_typed(&mut json, text("apiVersion"), text("kind"), &stored.body);
    json
}

pub(super) struct Disk {
    log: Writer,
    mark: Mark,
    snapshot_bytes: u64,
    directory: PathBuf,
    /// Held as long as the files are.
    _lock: File,
}

impl Recovered {
    pub(super) fn split(self) -> (Disk, u64, Vec<(Resource, Stored)>) {
        let disk = Disk {
            log: self.log,
            mark: self.mark,
            snapshot_bytes: self.snapshot_bytes,
            directory: self.directory,
            _lock: self.lock,
        };
        (disk, self.revision, self.objects)
    }
}

struct LogThread {
    disk: Disk,
    state: Arc<RwLock<State>>,
    shared: Arc<Shared>,
}

impl LogThread {
    fn run(mut self) {
        loop {
            let written = match self.wait() {
                Ok(Some(pending)) => self.write(pending),
                Ok(None) => return,
                Err(error) => Err(error),
            };
            if let Err(error) = written {
                tracing::error!(%error, "nothing more is stored");
                self.shared.durable.send_modify(|durable| durable.failed = Some(error.to_string()));
                return;
            }
        }
    }

    /// Waits for changes; none when the store is closed and all is written.
    fn wait(&mut self) -> Result<Option<Pending>, JournalError> {
        let mut pending = self.shared.pending.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if !pending.records.is_empty() {
                return Ok(Some(take(&mut pending)));
            }
            if pending.closing {
                return Ok(None);
            }
            pending = match self.disk.mark.due() {
                None => self.shared.wake.wait(pending).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => {
                    drop(pending);
                    self.disk.mark.sync()?;
                    self.shared.pending.lock().unwrap_or_else(PoisonError::into_inner)
                }
                Some(due) => {
                    let waited = self.shared.wake.wait_timeout(pending, due);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn write(&mut self, pending: Pending) -> Result<(), JournalError> {
        self.append(pending)?;
        if self.disk.log.bytes > LOG_BYTES_MIN.max(2 * self.disk.snapshot_bytes) {
            self.snapshot()?;
        }
        Ok(())
    }

    fn append(&mut self, pending: Pending) -> Result<(), JournalError> {
        self.disk.log.frame(&pending.records)?;
        self.disk.log.sync()?;
        self.disk.mark.reached(pending.revision, self.disk.log.bytes)?;
        self.tell(pending);
        Ok(())
    }

    fn tell(&self, pending: Pending) {
        self.shared.durable.send_modify(|durable| durable.revision = pending.revision);
        for (changed, revision) in pending.touched.into_values() {
            changed.send_replace(revision);
        }
    }

    /// Writes all objects, then begins a new log behind them.
    fn snapshot(&mut self) -> Result<(), JournalError> {
        let (revision, objects, pending) = {
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            let objects: Vec<(Resource, Arc<Stored>)> = state
                .collections
                .iter()
                .flat_map(|(resource, collection)| {
                    collection.objects.values().map(|object| (resource.clone(), object.clone()))
                })
                .collect();
            // Changes are appended under the store's lock, so these are all up to the revision.
            let mut pending = self.shared.pending.lock().unwrap_or_else(PoisonError::into_inner);
            (state.revision, objects, take(&mut pending))
        };
        if !pending.records.is_empty() {
            self.append(pending)?;
        }
        let snapshot = write_snapshot(&self.disk.directory, revision, &objects)?;
        let path = log_path(&self.disk.directory, revision);
        self.disk.log = Writer::create(&path, salt())?;
        self.disk.snapshot_bytes = snapshot.bytes;
        sync_directory(&self.disk.directory)?;
        // From here on older files are obsolete.
        let acknowledged = Acknowledged {
            snapshot: Some((revision, snapshot.salt)),
            log: (revision, self.disk.log.salt),
            log_bytes: self.disk.log.bytes,
            revision,
        };
        self.disk.mark = Mark::create(&self.disk.directory, acknowledged)?;
        remove_older(&self.disk.directory, revision)
    }
}

fn take(pending: &mut Pending) -> Pending {
    let closing = pending.closing;
    std::mem::replace(pending, Pending { closing, ..Pending::default() })
}

fn salt() -> u64 {
    // Without randomness a constant is good enough to detect most accidents.
    crate::random::number().unwrap_or(0x5be7_7bad)
}

fn write_snapshot(
    directory: &Path,
    revision: u64,
    objects: &[(Resource, Arc<Stored>)],
) -> Result<Writer, JournalError> {
    let unfinished = directory.join("snapshot.new");
    let mut writer = Writer::create(&unfinished, salt())?;
    let mut frame = Vec::new();
    for (resource, object) in objects {
        let names = [&*resource.group, &*resource.plural, &*object.key];
        journal::write_put(&mut frame, object.revision, names, &typed(object));
        if frame.len() >= SNAPSHOT_FRAME_BYTES {
            writer.frame(&frame)?;
            frame.clear();
        }
    }
    journal::write_end(&mut frame, revision, objects.len() as u64);
    writer.frame(&frame)?;
    writer.sync()?;
    let path = snapshot_path(directory, revision);
    fs::rename(&unfinished, &path).map_err(|error| JournalError::io(&path, error))?;
    sync_directory(directory)?;
    Ok(writer)
}

pub(super) fn snapshot_path(directory: &Path, revision: u64) -> PathBuf {
    directory.join(format!("snapshot-{revision:020}"))
}

pub(super) fn log_path(directory: &Path, revision: u64) -> PathBuf {
    directory.join(format!("log-{revision:020}"))
}

pub(super) fn sync_directory(directory: &Path) -> Result<(), JournalError> {
    let synced = File::open(directory).and_then(|file| file.sync_all());
    synced.map_err(|error| JournalError::io(directory, error))
}

/// Files of one sort by the revision in their names.
fn files(directory: &Path, prefix: &str) -> Result<BTreeMap<u64, PathBuf>, JournalError> {
    let fail = |error| JournalError::io(directory, error);
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(revision) = name.strip_prefix(prefix).and_then(|rest| rest.parse().ok()) {
            found.insert(revision, path);
        }
    }
    Ok(found)
}

fn remove_older(directory: &Path, revision: u64) -> Result<(), JournalError> {
    for prefix in ["log-", "snapshot-"] {
        for (_, path) in files(directory, prefix)?.range(..revision) {
            fs::remove_file(path).map_err(|error| JournalError::io(path, error))?;
        }
    }
    Ok(())
}

/// Opens a directory, making it where there is none, and reads what is in it.
pub(super) fn recover(directory: &Path, first_revision: u64) -> Result<Recovered, JournalError> {
    fs::create_dir_all(directory).map_err(|error| JournalError::io(directory, error))?;
    let lock = lock(directory)?;
    let mut replay = Replay { revision: first_revision, objects: BTreeMap::new() };
    let snapshot = files(directory, "snapshot-")?.pop_last();
    let mut snapshot_bytes = 0;
    let mut found = Found { snapshot: None, logs: BTreeMap::new(), revision: 0 };
    if let Some((revision, path)) = &snapshot {
        let read = replay.load_snapshot(path)?;
        snapshot_bytes = read.good_bytes();
        found.snapshot = Some((*revision, read.salt));
    }
    let logs = files(directory, "log-")?;
    let mut last = None;
    for (revision, path) in &logs {
        let read = journal::read(path)?;
        if read.torn && logs.keys().next_back() != Some(revision) {
            return Err(JournalError::Damaged {
                path: path.clone(),
                offset: read.good_bytes(),
                what: "it ends in the middle of a frame, and there is a newer log".to_owned(),
            });
        }
        let (salt, good_bytes) = (read.salt, read.good_bytes());
        let ended = replay.load_log(path, &read)?;
        found.logs.insert(*revision, LogOnDisk { salt, good_bytes, revision: ended });
        last = Some((*revision, path, read));
    }
    found.revision = replay.revision;
    if let Some(acknowledged) = Acknowledged::read(directory)? {
        acknowledged.check(directory, &found)?;
    }
    let start = snapshot.as_ref().map_or(0, |(revision, _)| *revision);
    let usable = last.filter(|(revision, _, read)| *revision >= start && read.good_bytes() > 0);
    let (revision_of_log, log) = match usable {
        Some((revision, path, read)) => (revision, Writer::reopen(path, &read)?),
        // A new directory, or a stop between a snapshot and its log.
        None => {
            let path = log_path(directory, replay.revision);
            (replay.revision, Writer::create(&path, salt())?)
        }
    };
    sync_directory(directory)?;
    let revision = replay.revision;
    let objects = replay.finish(directory)?;
    let acknowledged = Acknowledged {
        snapshot: found.snapshot,
        log: (revision_of_log, log.salt),
        log_bytes: log.bytes,
        revision,
    };
    let mark = Mark::create(directory, acknowledged)?;
    let directory = directory.to_owned();
    Ok(Recovered { revision, objects, log, mark, snapshot_bytes, directory, lock })
}

fn lock(directory: &Path) -> Result<File, JournalError> {
    let path = directory.join("lock");
    let open = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
    let file = open.map_err(|error| JournalError::io(&path, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(JournalError::InUse { path }),
        Err(TryLockError::Error(error)) => Err(JournalError::io(&path, error)),
    }
}

/// Objects by resource and key, with their revision and JSON.
struct Replay {
    revision: u64,
    objects: BTreeMap<(String, String, String), (u64, Vec<u8>)>,
}

impl Replay {
    fn load_snapshot(&mut self, path: &Path) -> Result<journal::ReadFile, JournalError> {
        let read = journal::read(path)?;
        let damaged = |what: &str| JournalError::Damaged {
            path: path.to_owned(),
            offset: read.good_bytes(),
            what: what.to_owned(),
        };
        for record in &read.records {
            match record {
                Record::Put { revision, group, plural, key, json } => {
                    let place = (group.clone(), plural.clone(), key.clone());
                    self.objects.insert(place, (*revision, json.clone()));
                }
                Record::Remove { .. } => return Err(damaged("a snapshot removes an object")),
                Record::End { revision, objects } => {
                    if *objects != self.objects.len() as u64 {
                        return Err(damaged("objects are missing"));
                    }
                    self.revision = *revision;
                }
            }
        }
        if read.torn || !matches!(read.records.last(), Some(Record::End { .. })) {
            return Err(damaged("the snapshot has no end"));
        }
        Ok(read)
    }

    /// Applies newer changes. Returns the last revision of the log.
    fn load_log(
        &mut self,
        path: &Path,
        read: &journal::ReadFile,
    ) -> Result<Option<u64>, JournalError> {
        let mut last = None;
        for record in &read.records {
            let (revision, place, json) = match record {
                Record::Put { revision, group, plural, key, json } => {
                    (*revision, (group.clone(), plural.clone(), key.clone()), Some(json.clone()))
                }
                Record::Remove { revision, group, plural, key } => {
                    (*revision, (group.clone(), plural.clone(), key.clone()), None)
                }
                Record::End { .. } => continue,
            };
            last = Some(revision);
            if revision <= self.revision {
                continue;
            }
            if revision != self.revision + 1 {
                return Err(JournalError::Damaged {
                    path: path.to_owned(),
                    offset: 0,
                    what: format!(
                        "revision {} is followed by revision {revision}; what is between is missing",
                        self.revision
                    ),
                });
            }
            self.revision = revision;
            match json {
                Some(json) => self.objects.insert(place, (revision, json)),
                None => self.objects.remove(&place),
            };
        }
        Ok(last)
    }

    fn finish(self, directory: &Path) -> Result<Vec<(Resource, Stored)>, JournalError> {
        let mut out = Vec::with_capacity(self.objects.len());
        for ((group, plural, key), (revision, json)) in self.objects {
            let value: Value =
                serde_json::from_slice(&json).map_err(|error| JournalError::Damaged {
                    path: directory.to_owned(),
                    offset: 0,
                    what: format!("{plural} {key} is not JSON: {error}"),
                })?;
            let stored = Stored::new(Arc::from(key), value, revision);
            out.push((Resource::new(&group, &plural), stored));
        }
        Ok(out)
    }
}
