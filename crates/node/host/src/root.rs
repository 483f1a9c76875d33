//! Files below a root, read with bounds, and what is wrong with them.
//!
//! Owns how a path is found below the root (links included, which never lead out of it), how much of a
//! file is read, and the words for what cannot be read. Must not know what any file means.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::tape::Tape;

/// Links followed before a path counts as going round in circles, as the kernel has it.
const LINKS_MAX: usize = 40;

/// Directories whose place is remembered.
const PLACES_MAX: usize = 1 << 16;

/// Entries of one directory.
const ENTRIES_MAX: usize = 1 << 16;

/// Diagnoses of one reading; what is beyond is counted.
const DIAGNOSES_MAX: usize = 500;

/// Bytes of a file with one value or one line. The kernel's own bound is a page, except for lists of
/// CPUs.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 10;

/// Something that could not be read or believed. The rest was read all the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Diagnosis {
    /// The file or directory, from the root on.
    pub path: String,
    /// What is wrong with it, and what follows.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

impl std::fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}; {}", self.path, self.what, self.remedy)
    }
}

/// Diagnoses as they come up.
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

    /// What a fault means for what was to be read: `what` says what is unknown now.
    pub(crate) fn fault(&mut self, path: &str, fault: &Fault, what: &str) {
        self.add(path, format!("{fault}, so {what}"), fault.remedy());
    }

    /// Whether something is wrong already with a file in a directory, by the end of its name.
    pub(crate) fn mention(&self, directory: &str, end: &str) -> bool {
        let in_it = |path: &str| path.get(1..).is_some_and(|path| path.starts_with(directory));
        self.all.iter().any(|one| in_it(&one.path) && one.path.ends_with(end))
    }

    pub(crate) fn done(mut self) -> Vec<Diagnosis> {
        if self.beyond > 0 {
            let what = format!("{} more files could not be read or believed", self.beyond);
            self.beyond = 0;
            self.all.push(Diagnosis {
                path: "/".to_owned(),
                what,
                remedy: "repair the files above first".to_owned(),
            });
        }
        self.all
    }
}

/// Why a file was not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Missing,
    /// It went while it was read.
    Gone,
    Denied,
    /// Something else is in its place: a directory, a socket.
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
            Self::Missing => "mount the directory it should be in, if the machine has it",
            Self::Gone => "read again",
            Self::Denied => "run with the right to read it",
            Self::Odd(_) | Self::Circular => "mount the real directory there",
            Self::TooLarge(_) | Self::NotText => "look whether the real file system is mounted",
            Self::Failed(_) => "read it by hand, and look at the kernel's log",
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing => write!(f, "is missing"),
            Self::Gone => write!(f, "went while it was read"),
            Self::Denied => write!(f, "may not be read"),
            Self::Odd(what) => write!(f, "is {what}"),
            Self::Circular => write!(f, "is behind links that go round in circles"),
            Self::TooLarge(bytes) => write!(f, "has more than {bytes} bytes"),
            Self::NotText => write!(f, "is no text"),
            Self::Failed(error) => write!(f, "could not be read ({error})"),
        }
    }
}

/// A directory that stands for `/`.
///
/// All that is read is below it. Links are followed as if it were the root of the file system, so an
/// absolute one stays inside, and none leads out.
#[derive(Clone, Debug)]
pub struct Root {
    base: PathBuf,
    /// Whether it is `/` itself, where the kernel follows links better than we do.
    whole: bool,
    /// Where directories are, links followed.
    places: Arc<Mutex<HashMap<PathBuf, PathBuf>>>,
    tape: Option<Arc<Mutex<Tape>>>,
}

impl Default for Root {
    fn default() -> Self {
        Self::new("/")
    }
}

impl Root {
    /// The root in `base`. Nothing is read yet.
    pub fn new(base: impl Into<PathBuf>) -> Self {
        let base = base.into();
        let whole = base == Path::new("/");
        Self { base, whole, places: Arc::default(), tape: None }
    }

    /// Where it is.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// The same root, writing down all that is read.
    pub(crate) fn taped(&self, tape: Arc<Mutex<Tape>>) -> Self {
        Self { tape: Some(tape), places: Arc::default(), ..self.clone() }
    }

    /// Forgets where directories are: links may have changed since the last reading.
    pub(crate) fn begin(&self) {
        locked(&self.places).clear();
    }

    /// A whole text of at most `bytes_max` bytes.
    pub(crate) fn text(&self, path: &str, bytes_max: usize) -> Result<String, Fault> {
        let (text, cut) = self.start_of(path, bytes_max)?;
        if cut { Err(Fault::TooLarge(bytes_max)) } else { Ok(text) }
    }

    /// One line without the spaces around it.
    pub(crate) fn line(&self, path: &str) -> Result<String, Fault> {
        let text = self.text(path, LINE_BYTES_MAX)?;
        Ok(text.trim_matches([' ', '\n', '\t', '\r']).to_owned())
    }

    /// The first bytes of a text, up to the last whole line if there are more, and whether there are.
    pub(crate) fn start_of(&self, path: &str, bytes_max: usize) -> Result<(String, bool), Fault> {
        let found = self.read(path, bytes_max);
        if let Some(tape) = &self.tape {
            locked(tape).file(path, &found);
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
        // A pipe would make us wait, a device might do anything.
        let kind = fs::metadata(&at).map_err(|error| Fault::of(&error))?;
        if !kind.is_file() {
            return Err(Fault::Odd(if kind.is_dir() { "a directory" } else { "no regular file" }));
        }
        let file = fs::File::open(&at).map_err(|error| Fault::of(&error))?;
        let mut bytes = Vec::with_capacity(bytes_max.min(512));
        let mut bounded = file.take(bytes_max as u64 + 1);
        bounded.read_to_end(&mut bytes).map_err(|error| Fault::of(&error))?;
        let cut = bytes.len() > bytes_max;
        bytes.truncate(bytes_max);
        Ok((bytes, cut))
    }

    /// Words with a zero byte after each, as command lines are. They are never taped.
    pub(crate) fn words(&self, path: &str, bytes_max: usize) -> Result<Vec<String>, Fault> {
        let (bytes, cut) = self.bytes(path, bytes_max)?;
        if cut {
            return Err(Fault::TooLarge(bytes_max));
        }
        let text = String::from_utf8(bytes).map_err(|_| Fault::NotText)?;
        Ok(text.split_terminator('\0').map(str::to_owned).collect())
    }

    /// Names in a directory, in order; those that are no text are left out.
    pub(crate) fn names(&self, path: &str) -> Result<Vec<String>, Fault> {
        let found = self.list(path);
        if let Some(tape) = &self.tape {
            locked(tape).directory(path, found.as_ref().err());
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

    /// Whether there is a directory, without looking into it.
    pub(crate) fn has_directory(&self, path: &str) -> bool {
        let found = self.find(path).and_then(|at| {
            let kind = fs::metadata(at).map_err(|error| Fault::of(&error))?;
            if kind.is_dir() { Ok(()) } else { Err(Fault::Odd("no directory")) }
        });
        if let (Some(tape), Ok(())) = (&self.tape, &found) {
            locked(tape).directory(path, None);
        }
        found.is_ok()
    }

    /// Something that changes whenever a file is written or replaced; `None` where there is none.
    pub(crate) fn stamp(&self, path: &str) -> Option<(u64, u64, i64, i64)> {
        let found = fs::metadata(self.find(path).ok()?).ok()?;
        Some((found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
    }

    /// What a link says, as it stands there.
    pub(crate) fn link(&self, path: &str) -> Result<String, Fault> {
        let found = self.target(path);
        if let (Some(tape), Ok(target)) = (&self.tape, &found) {
            locked(tape).link(path, target);
        }
        found
    }

    fn target(&self, path: &str) -> Result<String, Fault> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let at = self.find(parent)?.join(name);
        let target = fs::read_link(at).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => Fault::Odd("no link"),
            _ => Fault::of(&error),
        })?;
        target.into_os_string().into_string().map_err(|_| Fault::NotText)
    }

    /// Where a path really is.
    fn find(&self, path: &str) -> Result<PathBuf, Fault> {
        if self.whole {
            return Ok(self.base.join(path));
        }
        let found = self.place(&below(Path::new(""), Path::new(path)), &mut 0)?;
        Ok(self.base.join(found))
    }

    /// Where a path is, links followed, from the root on.
    fn place(&self, path: &Path, links: &mut usize) -> Result<PathBuf, Fault> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(PathBuf::new());
        };
        if let Some(known) = locked(&self.places).get(path) {
            return Ok(known.clone());
        }
        let parent = self.place(parent, links)?;
        let here = parent.join(name);
        let kind =
            fs::symlink_metadata(self.base.join(&here)).map_err(|error| Fault::of(&error))?;
        let found = if kind.is_symlink() {
            *links += 1;
            if *links > LINKS_MAX {
                return Err(Fault::Circular);
            }
            let target = fs::read_link(self.base.join(&here)).map_err(|error| Fault::of(&error))?;
            self.place(&below(&parent, &target), links)?
        } else {
            here
        };
        if kind.is_dir() || kind.is_symlink() {
            let mut places = locked(&self.places);
            if places.len() >= PLACES_MAX {
                places.clear();
            }
            places.insert(path.to_owned(), found.clone());
        }
        Ok(found)
    }
}

/// A path as it is meant in a directory, from the root on, without `..`.
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

/// What is behind a lock is plain data, whole at any moment.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
