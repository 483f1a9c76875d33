//! Files that are written atomically: after a crash they have the old or the new content.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use serde::de::DeserializeOwned;
use tracing::warn;

/// Reads a JSON file of an earlier process. Returns the default, and logs why, if it cannot be read.
pub fn read_or_default<T: DeserializeOwned + Default>(path: &Path, what: &str) -> T {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return T::default(),
        Err(error) => {
            warn!(path = %path.display(), %error, "{what} cannot be read");
            return T::default();
        }
    };
    serde_json::from_str(&text).unwrap_or_else(|error| {
        warn!(path = %path.display(), %error, "{what} is not valid; starting without it");
        T::default()
    })
}

/// Replaces a file atomically, and creates its directory.
pub fn write_atomically(path: &Path, text: &str) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or_else(|| Path::new("."));
    fs::create_dir_all(directory)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Runtimes read files that end in .json.
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
    // The rename is durable only once the directory is synced.
    fs::File::open(directory).and_then(|directory| directory.sync_all())
}
