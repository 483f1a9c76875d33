//! Trees in directories, for the tests.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
#![allow(dead_code, reason = "each test uses some of it")]

use std::path::Path;

use berth_host::Root;
use berth_host::synthetic::Tree;
use tempfile::TempDir;

/// A directory in memory where there is one: a machine is thousands of files.
pub(crate) fn directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let in_memory = memory.is_dir().then(|| tempfile::tempdir_in(memory).ok()).flatten();
    in_memory.unwrap_or_else(|| tempfile::tempdir().unwrap())
}

/// A tree as a root, and the directory it lives in.
pub(crate) fn written(tree: &Tree) -> (Root, TempDir) {
    let directory = directory();
    tree.write(directory.path()).unwrap();
    (Root::new(directory.path()), directory)
}
