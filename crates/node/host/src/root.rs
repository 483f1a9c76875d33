//! Bounded reads of files below a root directory, and diagnoses for what cannot be read.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::read_log::ReadLog;

/// Links followed before a path counts as a loop; the kernel's limit.
const LINKS_MAX: usize = 40;

/// Directories whose resolved path is cached.
const RESOLVED_MAX: usize = 1 << 16;

/// Entries read of one directory.
const ENTRIES_MAX: usize = 1 << 16;

/// Diagnoses kept per reading; the rest is only counted.
const DIAGNOSES_MAX: usize = 500;

/// Bytes of a file with one value or one line. The kernel's own limit is a page, except for CPU lists.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 10;

/// A file that could not be read or was not valid. Everything else was still read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Diagnosis {
    /// Absolute, below the root.
    pub path: String,
    /// The problem and its consequence.
    pub what: String,
    pub remedy: String,
}

impl std::fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}; {}", self.path, self.what, self.remedy)
    }
}

/// Collects diagnoses, up to [`DIAGNOSES_MAX`].
#[derive(Debug, Default)]
pub(crate) struct Notes {
    all: Vec<Diagnosis>,
    beyond: usize,
}

impl Notes {
    pub(crate) fn add(&mut self, path: &str, what: impl Into<String>, remedy: impl Into<String>) {
        if self.all.len() >= DIAGNOSES_MAX {
            self.beyond += 1;
            return;
        }
        let (path, what, remedy) = (format!("/{path}"), what.into(), remedy.into());
        self.all.push(Diagnosis { path, what, remedy });
    }

    /// Reports a file that could not be read; `what` is the consequence.
    pub(crate) fn fault(&mut self, path: &str, fault: &Fault, what: &str) {
        self.add(path, format!("{fault}, so {what}"), fault.remedy());
    }

    /// Whether a file in `directory` whose path ends in `end` has a diagnosis.
    pub(crate) fn mention(&self, directory: &str, end: &str) -> bool {
        let in_it = |path: &str| path.get(1..).is_some_and(|path| path.starts_with(directory));
        self.all.iter().any(|one| in_it(&one.path) && one.path.ends_with(end))
    }

    pub(crate) fn done(mut self) -> Vec<Diagnosis> {
        if self.beyond > 0 {
            let what = format!("{} more files could not be read or are invalid", self.beyond);
            self.beyond = 0;
            self.all.push(Diagnosis {
                path: "/".to_owned(),
                what,
                remedy: "fix the files above first".to_owned(),
            });
        }
        self.all
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Missing,
    /// It disappeared while it was being read.
    Gone,
    Denied,
    /// Not a regular file where one is expected, or the like.
    Odd(&'static str),
    Circular,
    TooLarge(usize),
    NotText,
    Failed(String),
}

impl Fault {
    fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Missing,
            io::ErrorKind::PermissionDenied => Self::Denied,
            io::ErrorKind::NotADirectory => Self::Odd("a file where a directory should be"),
            io::ErrorKind::IsADirectory => Self::Odd("a directory"),
            // These have no stable kinds: ENODEV, ESRCH and ELOOP.
            _ => match error.raw_os_error() {
                Some(3 | 19) => Self::Gone,
                Some(40) => Self::Circular,
                _ => Self::Failed(error.to_string()),
            },
        }
    }

    fn remedy(&self) -> &'static str {
        match self {
            Self::Missing => "mount its directory, if the machine has one",
            Self::Gone => "read again",
            Self::Denied => "grant read permission",
            Self::Odd(_) | Self::Circular => "mount the real directory there",
            Self::TooLarge(_) | Self::NotText => "check that the real file system is mounted",
            Self::Failed(_) => "try to read it by hand, and check the kernel log",
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing => write!(f, "not found"),
            Self::Gone => write!(f, "disappeared while it was being read"),
            Self::Denied => write!(f, "permission denied"),
            Self::Odd(what) => write!(f, "is {what}"),
            Self::Circular => write!(f, "its symbolic links form a loop"),
            Self::TooLarge(bytes) => write!(f, "is larger than {bytes} bytes"),
            Self::NotText => write!(f, "is not UTF-8 text"),
            Self::Failed(error) => write!(f, "cannot be read ({error})"),
        }
    }
}

/// A directory that stands for `/`. Links are followed as if it were the root of the file system, so
/// none leads out of it.
#[derive(Clone, Debug)]
pub struct Root {
    base: PathBuf,
    /// Whether it is `/` itself, where the kernel resolves links.
    whole: bool,
    /// Resolved paths of directories.
    resolved: Arc<Mutex<HashMap<PathBuf, PathBuf>>>,
    log: Option<Arc<Mutex<ReadLog>>>,
}

impl Default for Root {
    fn default() -> Self {
        Self::new("/")
    }
}

impl Root {
    /// Reads nothing yet.
    pub fn new(base: impl Into<PathBuf>) -> Self {
        let base = base.into();
        let whole = base == Path::new("/");
        Self { base, whole, resolved: Arc::default(), log: None }
    }

    pub fn base(&self) -> &Path {
        &self.base
    }

    /// The same root, logging all reads.
    pub(crate) fn logging(&self, log: Arc<Mutex<ReadLog>>) -> Self {
        Self { log: Some(log), resolved: Arc::default(), ..self.clone() }
    }

    /// Starts a reading: drops resolved paths, as links may have changed since the last one.
    pub(crate) fn begin_reading(&self) {
        locked(&self.resolved).clear();
    }

    /// A text of at most `bytes_max` bytes.
    pub(crate) fn text(&self, path: &str, bytes_max: usize) -> Result<String, Fault> {
        let (text, cut) = self.start_of(path, bytes_max)?;
        if cut { Err(Fault::TooLarge(bytes_max)) } else { Ok(text) }
    }

    /// One line without the spaces around it.
    pub(crate) fn line(&self, path: &str) -> Result<String, Fault> {
        let text = self.text(path, LINE_BYTES_MAX)?;
        Ok(text.trim_matches([' ', '\n', '\t', '\r']).to_owned())
    }

    /// At most `bytes_max` bytes, cut at the last line break; the flag says whether the text was cut.
    pub(crate) fn start_of(&self, path: &str, bytes_max: usize) -> Result<(String, bool), Fault> {
        let found = self.read(path, bytes_max);
        if let Some(log) = &self.log {
            locked(log).file(path, &found);
        }
        found
    }

    fn read(&self, path: &str, bytes_max: usize) -> Result<(String, bool), Fault> {
        let (mut bytes, cut) = self.bytes(path, bytes_max)?;
        if cut {
            let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            bytes.truncate(whole);
        }
        let text = String::from_utf8(bytes).map_err(|_| Fault::NotText)?;
        if text.contains('\0') { Err(Fault::NotText) } else { Ok((text, cut)) }
    }

    /// At most `bytes_max` bytes, and whether there are more.
    fn bytes(&self, path: &str, bytes_max: usize) -> Result<(Vec<u8>, bool), Fault> {
        let at = self.find(path)?;
        // Opening a pipe would block, and opening a device can have side effects.
        let kind = fs::metadata(&at).map_err(|error| Fault::of(&error))?;
        if !kind.is_file() {
            return Err(Fault::Odd(if kind.is_dir() {
                "a directory"
            } else {
                "not a regular file"
            }));
        }
        let file = fs::File::open(&at).map_err(|error| Fault::of(&error))?;
        let mut bytes = Vec::with_capacity(bytes_max.min(512));
        let mut bounded = file.take(bytes_max as u64 + 1);
        bounded.read_to_end(&mut bytes).map_err(|error| Fault::of(&error))?;
        let cut = bytes.len() > bytes_max;
        bytes.truncate(bytes_max);
        Ok((bytes, cut))
    }

    /// NUL-terminated words, such as a command line. Never logged.
    pub(crate) fn words(&self, path: &str, bytes_max: usize) -> Result<Vec<String>, Fault> {
        let (bytes, cut) = self.bytes(path, bytes_max)?;
        if cut {
            return Err(Fault::TooLarge(bytes_max));
        }
        let text = String::from_utf8(bytes).map_err(|_| Fault::NotText)?;
        Ok(text.split_terminator('\0').map(str::to_owned).collect())
    }

    /// Names in a directory, sorted; those that are not UTF-8 are left out.
    pub(crate) fn names(&self, path: &str) -> Result<Vec<String>, Fault> {
        let found = self.list(path);
        if let Some(log) = &self.log {
            locked(log).directory(path, found.as_ref().err());
        }
        found
    }

    fn list(&self, path: &str) -> Result<Vec<String>, Fault> {
        let at = self.find(path)?;
        let entries = fs::read_dir(&at).map_err(|error| Fault::of(&error))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| Fault::of(&error))?;
            if names.len() >= ENTRIES_MAX {
                return Err(Fault::TooLarge(ENTRIES_MAX));
            }
            names.extend(entry.file_name().into_string());
        }
        names.sort_unstable();
        Ok(names)
    }

    pub(crate) fn has_directory(&self, path: &str) -> bool {
        let found = self.find(path).and_then(|at| {
            let kind = fs::metadata(at).map_err(|error| Fault::of(&error))?;
            if kind.is_dir() { Ok(()) } else { Err(Fault::Odd("not a directory")) }
        });
        if let (Some(log), Ok(())) = (&self.log, &found) {
            locked(log).directory(path, None);
        }
        found.is_ok()
    }

    /// Inode, size and modification time; `None` if there is no such file.
    pub(crate) fn stamp(&self, path: &str) -> Option<(u64, u64, i64, i64)> {
        let found = fs::metadata(self.find(path).ok()?).ok()?;
        Some((found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
    }

    /// The target of a link, as written in it.
    pub(crate) fn link(&self, path: &str) -> Result<String, Fault> {
        let found = self.target(path);
        if let (Some(log), Ok(target)) = (&self.log, &found) {
            locked(log).link(path, target);
        }
        found
    }

    fn target(&self, path: &str) -> Result<String, Fault> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let at = self.find(parent)?.join(name);
        let target = fs::read_link(at).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => Fault::Odd("not a link"),
            _ => Fault::of(&error),
        })?;
        target.into_os_string().into_string().map_err(|_| Fault::NotText)
    }

    fn find(&self, path: &str) -> Result<PathBuf, Fault> {
        if self.whole {
            return Ok(self.base.join(path));
        }
        let found = self.resolve(&below(Path::new(""), Path::new(path)), &mut 0)?;
        Ok(self.base.join(found))
    }

    /// Resolves links; the result is relative to the root.
    fn resolve(&self, path: &Path, links: &mut usize) -> Result<PathBuf, Fault> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(PathBuf::new());
        };
        if let Some(known) = locked(&self.resolved).get(path) {
            return Ok(known.clone());
        }
        let parent = self.resolve(parent, links)?;
        let here = parent.join(name);
        let kind =
            fs::symlink_metadata(self.base.join(&here)).map_err(|error| Fault::of(&error))?;
        let found = if kind.is_symlink() {
            *links += 1;
            if *links > LINKS_MAX {
                return Err(Fault::Circular);
            }
            let target = fs::read_link(self.base.join(&here)).map_err(|error| Fault::of(&error))?;
            self.resolve(&below(&parent, &target), links)?
        } else {
            here
        };
        if kind.is_dir() || kind.is_symlink() {
            let mut resolved = locked(&self.resolved);
            if resolved.len() >= RESOLVED_MAX {
                resolved.clear();
            }
            resolved.insert(path.to_owned(), found.clone());
        }
        Ok(found)
    }
}

/// `path` as seen from `directory`, relative to the root and without `..`.
pub(crate) fn below(directory: &Path, path: &Path) -> PathBuf {
    let mut found = if path.is_absolute() { PathBuf::new() } else { directory.to_owned() };
    for component in path.components() {
        match component {
            Component::Normal(name) => found.push(name),
            Component::ParentDir => {
                found.pop();
            }
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    found
}

/// The data behind each mutex is valid at every moment, so poisoning is ignored.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
