//! The journal of a repartition in progress. It is written before anything is changed and removed at the end, so a
//! journal found at the start belongs to an interrupted repartition.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::layout::GpuLayout;

/// Default path, relative to the root.
pub const PLACE: &str = "var/lib/berth/mig.json";

const BYTES_MAX: u64 = 1 << 20;

/// Version of the format.
const VERSION: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Direction {
    Forward,
    /// Rollback.
    Back,
}

/// An interrupted repartition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unfinished {
    version: u32,
    pub direction: Direction,
    /// Why it is rolled back.
    pub reason: Option<String>,
    /// Layouts before.
    pub former: Vec<GpuLayout>,
    pub wanted: Vec<GpuLayout>,
}

impl Unfinished {
    pub fn new(former: Vec<GpuLayout>, wanted: Vec<GpuLayout>) -> Self {
        Self { version: VERSION, direction: Direction::Forward, reason: None, former, wanted }
    }

    /// The same, with rollback.
    pub(super) fn back(&self, reason: &str) -> Self {
        let reason = Some(reason.to_owned());
        Self { direction: Direction::Back, reason, ..self.clone() }
    }
}

pub trait Journal {
    /// `None` if no repartition was interrupted.
    fn read(&mut self) -> io::Result<Option<Unfinished>>;

    /// Replaces the journal. Once this returns, it survives a crash.
    ///
    /// # Errors
    /// If it cannot be written; then the previous one remains.
    fn write(&mut self, unfinished: &Unfinished) -> io::Result<()>;

    fn clear(&mut self) -> io::Result<()>;
}

#[derive(Clone, Debug)]
pub struct FileJournal {
    path: PathBuf,
}

impl FileJournal {
    /// The directory of the path is created when needed.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn directory(&self) -> &Path {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        parent.unwrap_or(Path::new("."))
    }

    /// A rename is durable only once the directory is synced.
    fn sync_directory(&self) -> io::Result<()> {
        File::open(self.directory())?.sync_all()
    }
}

impl Journal for FileJournal {
    fn read(&mut self) -> io::Result<Option<Unfinished>> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut text = String::new();
        file.take(BYTES_MAX + 1).read_to_string(&mut text)?;
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        if text.len() as u64 > BYTES_MAX {
            return Err(invalid(format!("larger than {BYTES_MAX} bytes")));
        }
        let found: Unfinished =
            serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))?;
        if found.version != VERSION {
            return Err(invalid(format!("version {} instead of {VERSION}", found.version)));
        }
        Ok(Some(found))
    }

    fn write(&mut self, unfinished: &Unfinished) -> io::Result<()> {
        berth_devices::file::write_atomically(
            &self.path,
            &serde_json::to_string_pretty(unfinished)?,
        )
    }

    fn clear(&mut self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Ok(()) => self.sync_directory(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}
