//! Rules on one file at a time: pure functions over its path and its text.
//!
//! Which files are tests, and which are recorded data, is decided by path alone; see [`is_test`]
//! and [`is_recorded`].

use std::path::Path;

use super::Problem;
use super::lex::{NamedPath, blank, named_paths, shipped_tokens, tokens};

/// The most lines a source file may have, and a file of tests.
const LINES_MAX: usize = 800;
const TEST_LINES_MAX: usize = 1_200;

const NO_CLOCK: &str = "a pure crate has no clock: take the time in milliseconds as an argument";
const NO_IO: &str = "a pure crate does no I/O: take the data as an argument";
const NO_RANDOMNESS: &str = "a pure crate has no randomness: take what is drawn as an argument";
const NO_HASH_ORDER: &str = "its iteration order differs from run to run: use a BTreeMap or \
                             BTreeSet, or a vector indexed by a newtype";

/// What the code of a pure crate must not name, and what to do instead.
const IMPURE_PATHS: &[(&str, &str)] = &[
    ("std::time::Instant", NO_CLOCK),
    ("std::time::SystemTime", NO_CLOCK),
    ("std::time::UNIX_EPOCH", NO_CLOCK),
    ("std::thread::sleep", NO_CLOCK),
    ("std::env", NO_IO),
    ("std::fs", NO_IO),
    ("std::io::stderr", NO_IO),
    ("std::io::stdin", NO_IO),
    ("std::io::stdout", NO_IO),
    ("std::net", NO_IO),
    ("std::os", NO_IO),
    ("std::process", NO_IO),
    ("fastrand", NO_RANDOMNESS),
    ("getrandom", NO_RANDOMNESS),
    ("rand", NO_RANDOMNESS),
    ("rand_chacha", NO_RANDOMNESS),
    ("rand_core", NO_RANDOMNESS),
    ("std::collections::HashMap", NO_HASH_ORDER),
    ("std::collections::HashSet", NO_HASH_ORDER),
    ("std::collections::hash_map", NO_HASH_ORDER),
    ("std::collections::hash_set", NO_HASH_ORDER),
    ("std::hash::RandomState", NO_HASH_ORDER),
];

/// Paths that exist on one machine only. Each is written in two pieces so that this file passes.
const MACHINE_DIRS: &[&str] =
    &[concat!("/ro", "ot/"), concat!("/wo", "rk/"), concat!("/ho", "me/")];

/// What the rules need to know of the crate a file belongs to.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Role {
    /// Shipped source of a pure crate.
    pub(crate) pure: bool,
    /// Shipped source of a library.
    pub(crate) library: bool,
}

/// Whether the file holds tests only: `tests.rs`, or anything under `tests/` or `benches/`. A
/// module under `#[cfg(test)]` in a file of its own must bear such a name to count as one.
pub(crate) fn is_test(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "tests.rs")
        || path.iter().any(|part| part == "tests" || part == "benches")
}

/// Whether the file is recorded or generated rather than written, so that its layout is not ours.
fn is_recorded(path: &Path) -> bool {
    const DIRS: [&str; 4] = ["fixtures", "snapshots", "testdata", "vectors"];
    const EXTENSIONS: [&str; 4] = ["jsonl", "lock", "proptest-regressions", "snap"];
    path.iter().any(|part| DIRS.iter().any(|dir| part == *dir))
        || path.extension().is_some_and(|ext| EXTENSIONS.iter().any(|known| ext == *known))
}

/// Every rule that looks at one file.
pub(crate) fn check(path: &Path, text: &str, role: Role) -> Vec<Problem> {
    let mut problems = machine_paths(path, text);
    if !is_recorded(path) {
        problems.extend(whitespace(path, text));
    }
    if path.extension().is_some_and(|ext| ext == "rs") {
        problems.extend(length(path, text));
        problems.extend(module_docs(path, text));
        problems.extend(unfinished(path, text));
        if role.pure {
            problems.extend(pure_calls(path, text));
        }
        if role.library {
            problems.extend(prints(path, text));
        }
    }
    problems
}

/// The rule `pure-call`. Comments, literals and items under `#[cfg(test)]` are not looked at; names
/// are followed through the imports of the same file.
fn pure_calls(path: &Path, text: &str) -> Vec<Problem> {
    let mut problems: Vec<Problem> = Vec::new();
    for named in named_paths(&shipped_tokens(text)) {
        let Some(remedy) = impure_remedy(&named) else { continue };
        let name = named.segments.join("::");
        let name = if named.glob { format!("{name}::*") } else { name };
        problems.push(Problem::new(path, named.line, "pure-call", format!("`{name}`: {remedy}")));
    }
    problems
}

fn impure_remedy(named: &NamedPath) -> Option<&'static str> {
    let name = named.segments.join("::");
    let starts = |long: &str, short: &str| {
        long.strip_prefix(short).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    let known = IMPURE_PATHS
        .iter()
        .find(|(banned, _)| starts(&name, banned) || (named.glob && starts(banned, &name)));
    match known {
        Some((_, remedy)) => Some(remedy),
        // Other crates have a hasher of this name too, seeded as differently.
        None if named.segments.iter().any(|part| part == "RandomState") => Some(NO_HASH_ORDER),
        None => None,
    }
}

/// The rule `print`: a library says what it has to say in what it returns.
fn prints(path: &Path, text: &str) -> Vec<Problem> {
    const MACROS: [&str; 5] = ["dbg", "eprint", "eprintln", "print", "println"];
    shipped_tokens(text)
        .windows(2)
        .filter(|pair| MACROS.contains(&pair[0].text.as_str()) && pair[1].text == "!")
        .map(|pair| {
            let message = format!("`{}!` in a library; return what it would print", pair[0].text);
            Problem::new(path, pair[0].line, "print", message)
        })
        .collect()
}

/// The rule `unfinished`: markers in code and comments; literals are not looked at.
fn unfinished(path: &Path, text: &str) -> Vec<Problem> {
    const MARKERS: [&str; 3] = ["TODO", "FIXME", "XXX"];
    const MACROS: [&str; 2] = ["todo", "unimplemented"];
    let problem = |line: usize, what: &str| {
        let message = format!("`{what}`; finish it, or open an issue and remove the marker");
        Problem::new(path, line, "unfinished", message)
    };
    let mut problems = Vec::new();
    for (index, line) in blank(text, true).lines().enumerate() {
        let mut words = line.split(|c: char| c != '_' && !c.is_alphanumeric());
        if let Some(marker) = words.find(|word| MARKERS.contains(word)) {
            problems.push(problem(index + 1, marker));
        }
    }
    for pair in tokens(text).windows(2) {
        if MACROS.contains(&pair[0].text.as_str()) && pair[1].text == "!" {
            problems.push(problem(pair[0].line, &format!("{}!", pair[0].text)));
        }
    }
    problems
}

/// The rule `length`.
fn length(path: &Path, text: &str) -> Option<Problem> {
    let lines = text.lines().count();
    let lines_max = if is_test(path) { TEST_LINES_MAX } else { LINES_MAX };
    (lines > lines_max).then(|| {
        let message = format!("{lines} lines, at most {lines_max}; split it by what it owns");
        Problem::new(path, lines_max + 1, "length", message)
    })
}

/// The rule `module-docs`: the first line says what the module is, in three words or more.
fn module_docs(path: &Path, text: &str) -> Option<Problem> {
    let docs = text.lines().next().and_then(|line| line.strip_prefix("//!"));
    let words = docs.map_or(0, |docs| docs.split_whitespace().count());
    (words < 3).then(|| {
        let message = "must start with `//!` and a sentence on what the module is for";
        Problem::new(path, 1, "module-docs", message)
    })
}

/// The rules `trailing-space` and `final-newline`.
fn whitespace(path: &Path, text: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (index, line) in text.split('\n').enumerate() {
        if line.ends_with([' ', '\t', '\r']) {
            let message = "whitespace at the end of the line; remove it";
            problems.push(Problem::new(path, index + 1, "trailing-space", message));
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        let message = "the last line does not end; add a newline";
        problems.push(Problem::new(path, text.lines().count(), "final-newline", message));
    }
    problems
}

/// The rule `machine-path`: an absolute path into somebody's machine.
fn machine_paths(path: &Path, text: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if let Some(dir) = MACHINE_DIRS.iter().find(|dir| names_machine_dir(line, dir)) {
            let message = format!("`{dir}…` exists on one machine only; use a relative path");
            problems.push(Problem::new(path, index + 1, "machine-path", message));
        }
    }
    problems
}

fn names_machine_dir(line: &str, dir: &str) -> bool {
    line.match_indices(dir).any(|(at, _)| {
        // What continues a relative path, a variable or a placeholder is not absolute.
        let before = line[..at].chars().next_back();
        let absolute = before.is_none_or(|c| !c.is_alphanumeric() && !"_.~-)}>*".contains(c));
        absolute && (!dir.starts_with("/h") || starts_with_user(&line[at + dir.len()..]))
    })
}

/// Whether a user's name and a slash come first.
fn starts_with_user(rest: &str) -> bool {
    rest.split_once('/').is_some_and(|(user, _)| {
        !user.is_empty() && user.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
    })
}

/// The rule `lints`: the manifest of a member takes the lints of the workspace.
pub(crate) fn lints(path: &Path, manifest: &str) -> Option<Problem> {
    let mut section = String::new();
    let mut inherits = false;
    for line in manifest.lines() {
        let line: String = line.split('#').next().unwrap_or("").split_whitespace().collect();
        if line.starts_with('[') {
            section = line;
        } else {
            inherits |= section == "[lints]" && line == "workspace=true";
            inherits |= section.is_empty() && line == "lints.workspace=true";
        }
    }
    (!inherits).then(|| {
        let message = "does not take the lints of the workspace; add `[lints]` with \
                       `workspace = true`";
        Problem::new(path, 1, "lints", message)
    })
}

/// The rule `lints` for a crate that may use `unsafe`: a forbidden lint cannot be allowed again, so it
/// writes all others of the workspace out, and asks for a reason at each use.
pub(crate) fn lints_written_out(path: &Path, manifest: &str, workspace: &str) -> Vec<Problem> {
    let own = tables(manifest, "[lints.");
    let mut wanted = tables(workspace, "[workspace.lints.");
    wanted.retain(|(_, line)| !line.starts_with("unsafe_code="));
    wanted.push(("clippy]".to_owned(), "undocumented_unsafe_blocks=\"deny\"".to_owned()));
    wanted.push(("rust]".to_owned(), "unsafe_op_in_unsafe_fn=\"deny\"".to_owned()));
    let missing = wanted.into_iter().filter(|one| !own.contains(one));
    let message = |(table, line): (String, String)| {
        Problem::new(
            path,
            1,
            "lints",
            format!("may use `unsafe`, and lacks `{line}` in [lints.{table}"),
        )
    };
    missing.map(message).collect()
}

/// Lines of the tables whose heads begin so, without blanks, each with the rest of its head.
fn tables(manifest: &str, prefix: &str) -> Vec<(String, String)> {
    let mut head = None;
    let mut lines = Vec::new();
    for line in manifest.lines() {
        let line: String = line.split('#').next().unwrap_or("").split_whitespace().collect();
        if line.starts_with('[') {
            head = line.strip_prefix(prefix).map(str::to_owned);
        } else if let Some(head) = head.as_ref().filter(|_| !line.is_empty()) {
            lines.push((head.clone(), line));
        }
    }
    lines
}

#[cfg(test)]
mod tests;
