//! Replaces files: all of them or none.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::fix::Change;

/// Why nothing was written.
#[derive(Debug, Error)]
#[error("{}: {cause}; nothing was changed", path.display())]
pub struct WriteError {
    /// The file that could not be replaced.
    pub path: PathBuf,
    /// Why.
    pub cause: io::Error,
}

/// Writes every change beside its file, and only when all are written puts them in place. If one
/// cannot be put there, those that were are put back.
pub fn write(changes: &[Change]) -> Result<(), WriteError> {
    let mut ready: Vec<(PathBuf, PathBuf, &Change)> = Vec::new();
    for change in changes {
        match prepare(change) {
            Ok((target, beside)) => ready.push((target, beside, change)),
            Err(cause) => {
                ready.iter().for_each(|(_, beside, _)| drop(fs::remove_file(beside)));
                return Err(WriteError { path: change.path.clone(), cause });
            }
        }
    }
    for (index, (target, beside, change)) in ready.iter().enumerate() {
        if let Err(cause) = fs::rename(beside, target) {
            for (target, _, done) in ready.iter().take(index) {
                drop(fs::write(target, &done.before));
            }
            ready.iter().skip(index).for_each(|(_, beside, _)| drop(fs::remove_file(beside)));
            return Err(WriteError { path: change.path.clone(), cause });
        }
    }
    Ok(())
}

/// Writes the new text beside the file that a link may stand for. A file that has changed since it
/// was read is not overwritten.
fn prepare(change: &Change) -> io::Result<(PathBuf, PathBuf)> {
    let target = fs::canonicalize(&change.path)?;
    if fs::read(&target)? != change.before.as_bytes() {
        return Err(io::Error::other("the file changed since it was read; try again"));
    }
    let beside = beside(&target);
    let written = write_new(&beside, &change.after)
        .and_then(|()| fs::set_permissions(&beside, fs::metadata(&target)?.permissions()));
    if let Err(error) = written {
        drop(fs::remove_file(&beside));
        return Err(error);
    }
    Ok((target, beside))
}

fn beside(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.{}.tmp", std::process::id()))
}

fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("berth-lint-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn change(path: PathBuf) -> Change {
        Change { path, before: "old".to_owned(), after: "new".to_owned(), fixed: 1 }
    }

    #[test]
    fn all_files_are_replaced_or_none() {
        let directory = directory("all");
        let (first, second) = (directory.join("a.yaml"), directory.join("b.yaml"));
        fs::write(&first, "old").unwrap();
        fs::write(&second, "somebody else's").unwrap();
        let changes = [change(first.clone()), change(second.clone())];
        let error = write(&changes).unwrap_err();
        assert!(error.to_string().contains("changed since it was read"), "{error}");
        assert_eq!(fs::read_to_string(&first).unwrap(), "old");
        fs::write(&second, "old").unwrap();
        write(&changes).unwrap();
        assert_eq!(fs::read_to_string(&first).unwrap(), "new");
        assert_eq!(fs::read_to_string(&second).unwrap(), "new");
        let left: Vec<_> = fs::read_dir(&directory).unwrap().collect();
        assert_eq!(left.len(), 2, "{left:?}");
        fs::remove_dir_all(&directory).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn links_stay_links_and_permissions_stay() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let directory = directory("links");
        let (file, link) = (directory.join("real.yaml"), directory.join("link.yaml"));
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        symlink(&file, &link).unwrap();
        write(&[change(link.clone())]).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        fs::remove_dir_all(&directory).unwrap();
    }
}
