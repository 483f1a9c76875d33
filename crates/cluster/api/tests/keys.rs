//! The table of keys is complete: every key under `berth.dev/` that a source names is in it, once.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use berth_api::keys::{KEYS, Section};

/// Text in sources that looks like a key and is none: an API version and a resource.
const OTHER: [&str; 2] = ["berth.dev/v1alpha1", "berth.dev/gpu-share"];

#[test]
fn every_key_that_a_source_names_is_in_the_table() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut missing = BTreeSet::new();
    for file in sources(&crates) {
        let text = fs::read_to_string(&file).unwrap();
        // Tests name keys that nobody reads, to see that nobody does.
        let shipped = text.split("#[cfg(test)]").next().unwrap();
        for key in keys_in(shipped) {
            if !OTHER.contains(&key) && !is_listed(key) {
                missing.insert(format!("{key} in {}", file.display()));
            }
        }
    }
    assert_eq!(missing, BTreeSet::new());
}

#[test]
fn every_entry_is_complete_and_the_only_one_of_its_name() {
    let mut seen = BTreeSet::new();
    for key in KEYS {
        assert!(seen.insert((key.name, key.kind)), "{} is listed twice", key.name);
        assert!(!key.writers.is_empty() && !key.objects.is_empty(), "{}", key.name);
        assert!(!key.value.is_empty() && key.meaning.ends_with('.'), "{}", key.name);
        assert!(Section::ALL.contains(&key.section));
    }
}

fn is_listed(key: &str) -> bool {
    let placeholder =
        |name: &'static str| ["NAME", "PROFILE"].into_iter().find_map(|end| name.strip_suffix(end));
    KEYS.iter().any(|known| match placeholder(known.name) {
        Some(prefix) => key.starts_with(prefix),
        None => known.name == key,
    })
}

/// Keys in string literals.
fn keys_in(text: &str) -> impl Iterator<Item = &str> {
    text.split('"').filter(|literal| {
        let parts = literal.split_once("berth.dev/");
        parts.is_some_and(|(before, name)| {
            let is_name = |one: char| one.is_ascii_alphanumeric() || "-._".contains(one);
            ["", "model."].contains(&before) && !name.is_empty() && name.chars().all(is_name)
        })
    })
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !["tests", "harness", "examples", "benches"].contains(&name.as_str()) {
            found.extend(sources(&path));
        } else if name.ends_with(".rs") && name != "tests.rs" {
            found.push(path);
        }
    }
    found
}
