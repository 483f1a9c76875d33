//! Reads files and directories: the named files, and in directories, at any depth, those that end in `.yaml`, `.yml` or
//! `.json`, sorted by path, without hidden ones. The only module of this crate that does I/O.

use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::document::{Document, Strictness};
use crate::limits::{DIRECTORY_DEPTH_MAX, FILES_MAX, SOURCE_BYTES_MAX};
use crate::problem::Problem;
use crate::source::Source;

/// Endings of names that count in directories.
const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];

/// Why something could not be loaded.
#[derive(Debug)]
pub enum LoadError {
    /// A file that cannot be had, and why.
    File {
        /// Its path, as it was given or found.
        path: PathBuf,
        /// What is wrong, and what to do.
        message: String,
    },
    /// A text that cannot be read.
    Text(Problem),
}

impl fmt::Display for LoadError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, message } => write!(formatter, "{}: {message}", path.display()),
            Self::Text(problem) => problem.fmt(formatter),
        }
    }
}

impl std::error::Error for LoadError {}

impl From<Problem> for LoadError {
    fn from(problem: Problem) -> Self {
        Self::Text(problem)
    }
}

/// All objects of files, directories and, for `-`, of `stdin`, in this order.
pub fn load(
    paths: &[PathBuf],
    stdin: &mut dyn Read,
    strictness: Strictness,
) -> Result<Vec<Document>, LoadError> {
    let mut documents = Vec::new();
    for source in sources(paths, stdin)? {
        documents.append(&mut crate::read_as(&source, strictness)?);
    }
    Ok(documents)
}

/// The texts alone: whoever wants the problems of every file, not only of the first that has some,
/// reads them one by one.
pub fn sources(paths: &[PathBuf], stdin: &mut dyn Read) -> Result<Vec<Source>, LoadError> {
    let mut sources = Vec::new();
    for path in paths {
        if path.as_os_str() == "-" {
            sources.push(read_text(Path::new("<stdin>"), stdin)?);
            continue;
        }
        let mut files = Vec::new();
        if path.is_dir() {
            walk(path, 0, &mut files)?;
            if files.is_empty() {
                let message = "no .yaml, .yml or .json files in the directory";
                return Err(failed(path, message));
            }
        } else {
            files.push(path.clone());
        }
        for file in files {
            sources.push(read_file(&file)?);
        }
    }
    Ok(sources)
}

/// One file.
pub fn read_file(path: &Path) -> Result<Source, LoadError> {
    let mut file = fs::File::open(path).map_err(|error| io_failed(path, &error))?;
    read_text(path, &mut file)
}

fn read_text(path: &Path, from: &mut dyn Read) -> Result<Source, LoadError> {
    let mut bytes = Vec::new();
    // One more than allowed tells too large from just fitting.
    let limit = u64::try_from(SOURCE_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    from.take(limit).read_to_end(&mut bytes).map_err(|error| io_failed(path, &error))?;
    if bytes.len() > SOURCE_BYTES_MAX {
        let message = format!("larger than {SOURCE_BYTES_MAX} bytes; split the file");
        return Err(failed(path, message));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let before = error.as_bytes().get(..valid).unwrap_or_default();
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        failed(path, format!("line {line} is not UTF-8 (byte {valid}); save it as UTF-8"))
    })?;
    Ok(Source::new(path.display().to_string(), text))
}

fn walk(directory: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), LoadError> {
    if depth > DIRECTORY_DEPTH_MAX {
        let message =
            format!("more than {DIRECTORY_DEPTH_MAX} directories deep; check for a symlink loop");
        return Err(failed(directory, message));
    }
    let list = || -> io::Result<Vec<PathBuf>> {
        fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect()
    };
    let mut paths = list().map_err(|error| io_failed(directory, &error))?;
    paths.sort();
    for path in paths {
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        if name.starts_with('.') {
            continue;
        }
        if path.is_dir() {
            walk(&path, depth + 1, files)?;
        } else if ENDINGS.iter().any(|ending| path.extension().is_some_and(|own| own == *ending)) {
            if files.len() >= FILES_MAX {
                let message = format!("more than {FILES_MAX} files; give fewer paths");
                return Err(failed(directory, message));
            }
            files.push(path);
        }
    }
    Ok(())
}

fn failed(path: &Path, message: impl Into<String>) -> LoadError {
    LoadError::File { path: path.to_owned(), message: message.into() }
}

fn io_failed(path: &Path, error: &io::Error) -> LoadError {
    let message = match error.kind() {
        io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => format!("cannot read: {error}"),
    };
    failed(path, message)
}
