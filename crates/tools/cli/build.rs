//! Passes the commit and the target to `berth version`.
//!
//! The commit is `BERTH_COMMIT` if it is set, else what git's files say, else `unknown`. The script runs
//! again only when one of these changes.

use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=BERTH_COMMIT");
    let named = std::env::var("BERTH_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = named.or_else(head).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env=BERTH_COMMIT={commit}");
    let target = std::env::var("TARGET").unwrap_or_else(|_| "unknown".to_owned());
    println!("cargo:rustc-env=BERTH_TARGET={target}");
}

/// The commit that is checked out in the repository this package is in.
fn head() -> Option<String> {
    let package = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR")?);
    // Only the workspace's own repository: a source archive may lie inside of another one.
    let dot_git = package.ancestors().nth(3)?.join(".git");
    let git = match fs::read_to_string(&dot_git) {
        // A worktree: the file names its directory.
        Ok(link) => package.ancestors().nth(3)?.join(link.trim().strip_prefix("gitdir: ")?),
        Err(_) => dot_git,
    };
    let head = read(&git.join("HEAD"))?;
    let Some(reference) = head.strip_prefix("ref: ") else {
        return Some(head);
    };
    let common = match fs::read_to_string(git.join("commondir")) {
        Ok(path) => git.join(path.trim()),
        Err(_) => git,
    };
    let packed = || {
        let refs = read(&common.join("packed-refs"))?;
        let commit =
            |line: &str| line.strip_suffix(reference)?.strip_suffix(' ').map(str::to_owned);
        refs.lines().find_map(commit)
    };
    read(&common.join(reference)).or_else(packed)
}

/// A file's text; cargo runs the script again when the file changes.
fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    println!("cargo:rerun-if-changed={}", path.display());
    Some(text.trim().to_owned())
}
