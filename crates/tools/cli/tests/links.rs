//! Relative links of the documents lead to files and headings that exist.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test may fail")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap()
}

/// The Markdown files of the root directory, and those below `docs` and `examples`.
fn documents(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![PathBuf::new(), PathBuf::from("docs"), PathBuf::from("examples")];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(root.join(&directory)).unwrap() {
            let entry = entry.unwrap();
            let path = directory.join(entry.file_name());
            let is_root = directory.as_os_str().is_empty();
            if entry.file_type().unwrap().is_dir() && !is_root {
                open.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found
}

/// The text without fenced code.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let mut kept = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// What stands in parentheses after each `](`.
fn targets(prose: &str) -> Vec<&str> {
    let parts = prose.split("](").skip(1);
    parts.filter_map(|part| part.split_once(')')).map(|(target, _)| target.trim()).collect()
}

/// The anchors of the headings, as GitHub makes them: repeated ones are numbered.
fn anchors(prose: &str) -> BTreeSet<String> {
    let mut seen = BTreeMap::<String, u32>::new();
    let mut anchors = BTreeSet::new();
    for line in prose.lines().filter(|line| line.starts_with('#')) {
        let heading = line.trim_start_matches('#').trim();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor = kept.collect::<String>().to_lowercase().replace(' ', "-");
        let count = seen.entry(anchor.clone()).or_default();
        anchors.insert(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
        *count += 1;
    }
    anchors
}

/// Resolves `..` without the file system, so that the path must stay in the repository.
fn resolve(from: &Path, target: &str) -> Option<PathBuf> {
    let mut path = from.parent()?.to_owned();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir if !path.pop() => return None,
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    Some(path)
}

fn problem(root: &Path, from: &Path, own: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let text = if path.is_empty() {
        own.to_owned()
    } else {
        let full = resolve(from, path).map(|path| root.join(path)).filter(|path| path.exists());
        let Some(full) = full else {
            return Some(format!("{}: {target} does not exist", from.display()));
        };
        match anchor {
            "" => return None,
            _ => prose(&fs::read_to_string(full).unwrap()),
        }
    };
    let is_known = anchors(&text).contains(anchor);
    (!is_known).then(|| format!("{}: {target} names no heading", from.display()))
}

#[test]
fn links_and_anchors_exist() {
    let root = root();
    let mut count = 0;
    let mut problems = Vec::new();
    for document in documents(&root) {
        let text = prose(&fs::read_to_string(root.join(&document)).unwrap());
        for target in targets(&text) {
            count += 1;
            problems.extend(problem(&root, &document, &text, target));
        }
    }
    assert!(count > 100, "found only {count} links");
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn broken_links_are_found() {
    let root = root();
    let text = "# A title: with `code`\n";
    let check = |target| problem(&root, Path::new("docs/README.md"), text, target);
    assert_eq!(check("#a-title-with-code"), None);
    assert_eq!(check("../README.md"), None);
    assert!(check("#a-title").is_some());
    assert!(check("nowhere.md").is_some());
    assert!(check("../../../etc/hosts").is_some());
    assert!(check("../README.md#no-such-heading").is_some());
}
