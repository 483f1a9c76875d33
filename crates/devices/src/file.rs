//! Files that are either as they were or as they should be, whenever the machine stops.
//!
//! Owns how they are written. Must not know what is in them.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

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
