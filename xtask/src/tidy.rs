//! The tidy checks: what the compiler and clippy do not say about this workspace.
//!
//! This module owns the list of files and who they belong to; the rules themselves are pure
//! functions in [`graph`] (who may depend on whom) and [`source`] (one file at a time). Every
//! problem names the file, the line and what to do.

mod graph;
mod lex;
mod source;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use self::graph::{Graph, Member};
use self::source::Role;

/// The largest file the repository takes.
const FILE_BYTES_MAX: u64 = 2 * 1024 * 1024;

/// One thing to put right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Relative to the workspace.
    pub(crate) file: PathBuf,
    /// From 1; 1 as well where the problem is the file as a whole.
    pub(crate) line: usize,
    /// Short name of the rule.
    pub(crate) rule: &'static str,
    /// What is wrong, and what to do about it.
    pub(crate) message: String,
}

impl Problem {
    fn new(file: &Path, line: usize, rule: &'static str, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, rule, message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: [{}] {}", self.file.display(), self.line, self.rule, self.message)
    }
}

/// Everything that is out of order in the workspace at `root`, by file and line.
pub(crate) fn check(root: &Path) -> anyhow::Result<Vec<Problem>> {
    let root = root
        .canonicalize()
        .with_context(|| format!("cannot find the workspace at {}", root.display()))?;
    let graph = Graph::load(&root)?;
    let mut problems = graph::check(&graph);
    for member in &graph.members {
        let path = member.dir.join("Cargo.toml");
        let manifest = fs::read_to_string(root.join(&path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        if graph::UNSAFE.contains(&member.name.as_str()) {
            let workspace = fs::read_to_string(root.join("Cargo.toml"))
                .context("cannot read the Cargo.toml of the workspace")?;
            problems.extend(source::lints_written_out(&path, &manifest, &workspace));
        } else {
            problems.extend(source::lints(&path, &manifest));
        }
    }
    for path in files(&root)? {
        problems.extend(check_file(&root, &path, role(&path, &graph.members))?);
    }
    problems.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
    Ok(problems)
}

fn check_file(root: &Path, path: &Path, role: Role) -> anyhow::Result<Vec<Problem>> {
    let full = root.join(path);
    // Listed but deleted, or a link: nothing of ours to read.
    let Ok(metadata) = fs::symlink_metadata(&full) else { return Ok(Vec::new()) };
    if !metadata.is_file() {
        return Ok(Vec::new());
    }
    let bytes_count = metadata.len();
    if bytes_count > FILE_BYTES_MAX {
        let message = format!(
            "{bytes_count} bytes, at most {FILE_BYTES_MAX}; compress it, keep a sample, or have \
             it made by a command"
        );
        return Ok(vec![Problem::new(path, 1, "size", message)]);
    }
    let bytes = fs::read(&full).with_context(|| format!("cannot read {}", path.display()))?;
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(source::check(path, &text, role)),
        _ => Ok(Vec::new()),
    }
}

/// Which rules on shipped code a file is under, by the crate whose `src` it is in.
fn role(path: &Path, members: &[Member]) -> Role {
    let Some(member) = members.iter().find(|member| path.starts_with(member.dir.join("src")))
    else {
        return Role::default();
    };
    let program = path == member.dir.join("src/main.rs")
        || path.starts_with(member.dir.join("src/bin"))
        // A binary without a library.
        || PROGRAMS.contains(&member.name.as_str());
    let test = source::is_test(path);
    Role { pure: !test && member.is_pure(), library: !test && !program }
}

/// Crates that are a program and nothing else: all of their modules may print.
const PROGRAMS: &[&str] = &["berth-cli", "xtask"];

/// The files of the repository, relative to `root`: what git tracks or would track. Without git,
/// everything but the directories that `.gitignore` names from the root.
fn files(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"])
        .current_dir(root)
        .output();
    if let Ok(output) = listed
        && output.status.success()
        && !output.stdout.is_empty()
    {
        let names = String::from_utf8(output.stdout)
            .context("git lists a file whose name is not UTF-8; rename it")?;
        return Ok(names.split_terminator('\0').map(PathBuf::from).collect());
    }
    let ignore = fs::read_to_string(root.join(".gitignore")).unwrap_or_default();
    let mut skipped: Vec<PathBuf> = vec![PathBuf::from(".git")];
    skipped.extend(ignore.lines().filter_map(|line| line.strip_prefix('/')).map(PathBuf::from));
    let mut found = Vec::new();
    walk(root, Path::new(""), &skipped, &mut found)?;
    found.sort();
    Ok(found)
}

fn walk(
    root: &Path,
    dir: &Path,
    skipped: &[PathBuf],
    found: &mut Vec<PathBuf>,
) -> anyhow::Result<()> {
    let failed = || format!("cannot list {}", root.join(dir).display());
    for entry in fs::read_dir(root.join(dir)).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        let path = dir.join(entry.file_name());
        if skipped.contains(&path) {
            continue;
        }
        let kind = entry.file_type().with_context(failed)?;
        if kind.is_dir() {
            walk(root, &path, skipped, found)?;
        } else if kind.is_file() {
            found.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
