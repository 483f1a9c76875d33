//! What is being done, kept where a crash does not reach.
//!
//! Owns the file and its form. It is written before anything is changed and removed when all is as it
//! should be; so what is found in it at the start was not finished. Must not know how to finish it.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::layout::GpuLayout;

/// Where the agent keeps it.
pub const PLACE: &str = "var/lib/berth/mig.json";

/// Bytes of a journal.
const BYTES_MAX: u64 = 1 << 20;

/// The form of this journal.
const VERSION: u32 = 1;

/// Where to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Direction {
    /// To what is wanted.
    Forward,
    /// Back to what was.
    Back,
}

/// What was not finished.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Unfinished {
    /// The form.
    version: u32,
    /// Where to.
    pub direction: Direction,
    /// Why back, if so.
    pub reason: Option<String>,
    /// What was there.
    pub former: Vec<GpuLayout>,
    /// What is wanted.
    pub wanted: Vec<GpuLayout>,
}

impl Unfinished {
    /// Forward, from what was to what is wanted.
    pub fn new(former: Vec<GpuLayout>, wanted: Vec<GpuLayout>) -> Self {
        Self { version: VERSION, direction: Direction::Forward, reason: None, former, wanted }
    }

    /// The same, back.
    pub(super) fn back(&self, reason: &str) -> Self {
        let reason = Some(reason.to_owned());
        Self { direction: Direction::Back, reason, ..self.clone() }
    }
}

/// Keeps what is being done.
pub trait Journal {
    /// What was not finished; `None` if there is nothing.
    ///
    /// # Errors
    /// When there is something that cannot be read.
    fn read(&mut self) -> io::Result<Option<Unfinished>>;

    /// Keeps it in place of what was kept. When this returns it outlives a crash.
    ///
    /// # Errors
    /// When it cannot be kept; then what was kept before still is.
    fn write(&mut self, unfinished: &Unfinished) -> io::Result<()>;

    /// Forgets it.
    ///
    /// # Errors
    /// When it may still be kept.
    fn clear(&mut self) -> io::Result<()>;
}

/// A journal in a file.
#[derive(Clone, Debug)]
pub struct FileJournal {
    path: PathBuf,
}

impl FileJournal {
    /// In this file, whose directory is made when something is written.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn directory(&self) -> &Path {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        parent.unwrap_or(Path::new("."))
    }

    /// A name is only safe when its directory is.
    fn settle(&self) -> io::Result<()> {
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
        let odd = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        if text.len() as u64 > BYTES_MAX {
            return Err(odd(format!("it has more than {BYTES_MAX} bytes")));
        }
        let found: Unfinished =
            serde_json::from_str(&text).map_err(|error| odd(error.to_string()))?;
        if found.version != VERSION {
            return Err(odd(format!("it is of version {}, not {VERSION}", found.version)));
        }
        Ok(Some(found))
    }

    fn write(&mut self, unfinished: &Unfinished) -> io::Result<()> {
        fs::create_dir_all(self.directory())?;
        let text = serde_json::to_string_pretty(unfinished)?;
        let beside = self.path.with_extension("new");
        let mut file = File::create(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, &self.path)?;
        self.settle()
    }

    fn clear(&mut self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Ok(()) => self.settle(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}
