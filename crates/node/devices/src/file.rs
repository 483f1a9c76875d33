//! Files that are either as they were or as they should be, whenever the machine stops.
//!
//! Owns how they are written, and read again. Must not know what is in them.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use serde::de::DeserializeOwned;
use tracing::warn;

/// What an earlier process wrote down as JSON, or nothing where it cannot be read; `what` it is, is logged then.
pub fn recall<T: DeserializeOwned + Default>(path: &Path, what: &str) -> T {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return T::default(),
        Err(error) => {
            warn!(path = %path.display(), %error, "{what} cannot be read");
            return T::default();
        }
    };
    serde_json::from_str(&text).unwrap_or_else(|error| {
        warn!(path = %path.display(), %error, "{what} is no JSON of ours");
        T::default()
    })
}

/// Writes a file so that whoever reads it finds the old text or the new one, and makes its directory.
pub fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or_else(|| Path::new("."));
    fs::create_dir_all(directory)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Runtimes read what ends in .json: this does not.
    let beside = directory.join(format!(".{name}.{}.tmp", std::process::id()));
    let written = fs::File::create(&beside).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    let renamed = written.and_then(|()| fs::rename(&beside, path));
    if renamed.is_err() {
        let _ = fs::remove_file(&beside);
        return renamed;
    }
    // The name is in the directory only when that is on the disk.
    fs::File::open(directory).and_then(|directory| directory.sync_all())
}
