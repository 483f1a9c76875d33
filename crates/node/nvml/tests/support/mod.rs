//! The fake driver library.

use std::path::PathBuf;

pub(crate) fn fake_driver() -> PathBuf {
    // Cargo builds examples beside the directory of test binaries.
    let tests = std::env::current_exe().unwrap();
    let path = tests.parent().unwrap().parent().unwrap().join("examples/libfake_driver.so");
    assert!(
        path.is_file(),
        "{} is not built: test the whole package, or build its examples first",
        path.display()
    );
    path
}
