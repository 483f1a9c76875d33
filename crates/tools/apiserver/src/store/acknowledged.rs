//! A small file beside the log that names the files in use and the last acknowledged revision, because a log cannot
//! tell that its end is missing.
//!
//! It is written whenever the log is on disk, before changes are acknowledged, so it is exact if the process is
//! killed. It is synced once a second, so after a power failure it is at most a second old. It never names more
//! than the log holds.
//!
//! If the file is missing, nothing is compared. So a directory of an earlier version opens, and so does one whose
//! owner removed the file to accept a loss.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::journal::{JournalError, crc};
use super::log::{log_path, snapshot_path, sync_directory};

const NAME: &str = "acknowledged";
const MAGIC: &[u8; 8] = b"BERTHAK1";
const SYNC_PERIOD: Duration = Duration::from_secs(1);
const NUMBERS: usize = 6;
const BYTES: usize = 8 + NUMBERS * 8 + 4;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Acknowledged {
    /// Revision and salt of the snapshot.
    pub(super) snapshot: Option<(u64, u64)>,
    /// Revision and salt of the log behind it.
    pub(super) log: (u64, u64),
    /// Bytes of that log that are on disk.
    pub(super) log_bytes: u64,
    /// The last revision.
    pub(super) revision: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LogOnDisk {
    pub(super) salt: u64,
    pub(super) good_bytes: u64,
    /// The last revision that it brings to the objects; none if it is empty.
    pub(super) revision: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Found {
    /// Revision and salt of the newest snapshot.
    pub(super) snapshot: Option<(u64, u64)>,
    pub(super) logs: BTreeMap<u64, LogOnDisk>,
    /// The last revision.
    pub(super) revision: u64,
}

impl Acknowledged {
    /// Reads the file; `None` if it is missing.
    pub(super) fn read(directory: &Path) -> Result<Option<Self>, JournalError> {
        let path = directory.join(NAME);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(JournalError::io(&path, error)),
        };
        let decoded = Self::decode(&bytes);
        let what =
            "it does not match its checksum, so acknowledged writes may be missing".to_owned();
        decoded.map(Some).ok_or(JournalError::Missing { path: path.clone(), what, mark: path })
    }

    fn encode(&self) -> Vec<u8> {
        // No object has revision 0.
        let (snapshot, snapshot_salt) = self.snapshot.unwrap_or((0, 0));
        let numbers: [u64; NUMBERS] =
            [snapshot, snapshot_salt, self.log.0, self.log.1, self.log_bytes, self.revision];
        let mut bytes = MAGIC.to_vec();
        numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
        let sum = crc(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let (body, sum) = bytes.split_last_chunk::<4>()?;
        let numbers = body.strip_prefix(MAGIC)?;
        if u32::from_le_bytes(*sum) != crc(body) {
            return None;
        }
        let mut numbers =
            numbers.chunks_exact(8).filter_map(|one| one.try_into().ok().map(u64::from_le_bytes));
        let mut next = || numbers.next();
        let (snapshot, log) = ((next()?, next()?), (next()?, next()?));
        let snapshot = (snapshot.0 > 0).then_some(snapshot);
        Some(Self { snapshot, log, log_bytes: next()?, revision: next()? })
    }

    /// Checks that everything acknowledged was found.
    pub(super) fn check(&self, directory: &Path, found: &Found) -> Result<(), JournalError> {
        let refuse = |path: PathBuf, what: String| {
            Err(JournalError::Missing { path, what, mark: directory.join(NAME) })
        };
        let foreign =
            |what: &str| format!("unexpected {what}: it does not match the one recorded in {NAME}");
        let log = found.logs.get(&self.log.0);
        let path = log_path(directory, self.log.0);
        if log.is_some_and(|log| log.salt != self.log.1 && log.good_bytes > 0) {
            return refuse(path, foreign("log"));
        }
        let ended = log.and_then(|log| log.revision);
        match (self.snapshot, found.snapshot) {
            (Some((revision, salt)), Some(newest)) if newest.0 == revision => {
                if newest.1 != salt {
                    return refuse(snapshot_path(directory, revision), foreign("snapshot"));
                }
            }
            // The process ended after it wrote this snapshot of all that is in the log.
            (_, Some(newest)) if ended.unwrap_or(self.log.0) == newest.0 => {}
            (Some((revision, _)), _) => {
                let what = "the snapshot is missing, and every object in it is lost".to_owned();
                return refuse(snapshot_path(directory, revision), what);
            }
            (None, Some(newest)) => {
                return refuse(snapshot_path(directory, newest.0), foreign("snapshot"));
            }
            (None, None) => {}
        }
        let is_short = log.is_some_and(|log| log.good_bytes < self.log_bytes);
        if found.revision < self.revision || is_short {
            let first = found.revision + 1;
            let what = if log.is_none() { "the log is missing" } else { "the log is truncated" };
            let range = match self.revision {
                last if last <= first => format!("acknowledged revision {first} is lost"),
                last => format!("acknowledged revisions {first} to {last} are lost"),
            };
            return refuse(path, format!("{what}; {range}"));
        }
        Ok(())
    }
}

pub(super) struct Mark {
    file: File,
    path: PathBuf,
    acknowledged: Acknowledged,
    synced: Instant,
    dirty: bool,
}

impl Mark {
    pub(super) fn create(
        directory: &Path,
        acknowledged: Acknowledged,
    ) -> Result<Self, JournalError> {
        let (path, unfinished) = (directory.join(NAME), directory.join("acknowledged.new"));
        let fail = |error| JournalError::io(&path, error);
        let file = File::create(&unfinished).map_err(fail)?;
        file.write_all_at(&acknowledged.encode(), 0).map_err(fail)?;
        file.sync_all().map_err(fail)?;
        fs::rename(&unfinished, &path).map_err(fail)?;
        sync_directory(directory)?;
        Ok(Self { file, path, acknowledged, synced: Instant::now(), dirty: false })
    }

    /// The log is on disk up to here.
    pub(super) fn reached(&mut self, revision: u64, log_bytes: u64) -> Result<(), JournalError> {
        (self.acknowledged.revision, self.acknowledged.log_bytes) = (revision, log_bytes);
        let written = self.file.write_all_at(&self.acknowledged.encode(), 0);
        written.map_err(|error| JournalError::io(&self.path, error))?;
        self.dirty = true;
        if self.due() == Some(Duration::ZERO) { self.sync() } else { Ok(()) }
    }

    /// Time until the next sync; `None` if it is synced.
    pub(super) fn due(&self) -> Option<Duration> {
        self.dirty.then(|| SYNC_PERIOD.saturating_sub(self.synced.elapsed()))
    }

    /// Waits until it is on disk.
    pub(super) fn sync(&mut self) -> Result<(), JournalError> {
        self.file.sync_data().map_err(|error| JournalError::io(&self.path, error))?;
        (self.synced, self.dirty) = (Instant::now(), false);
        Ok(())
    }
}
