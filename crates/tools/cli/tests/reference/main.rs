//! The pages of `docs/reference`, which are generated from the code. The test fails if a page is stale;
//! `REFERENCE=overwrite cargo test -p berth-cli --test reference` writes them.
#![allow(clippy::panic, clippy::unwrap_used, clippy::expect_used, reason = "a test may fail")]

mod annotations;
mod cli;
mod crds;
mod markdown;
mod metrics;
mod schemas;

use std::fs;
use std::path::{Path, PathBuf};

use berth_contract::lint::Catalogue;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap()
}

/// Every generated file: its path below `docs/reference` and its text.
fn pages() -> Vec<(&'static str, String)> {
    let mut pages = vec![
        ("annotations.md", annotations::page()),
        ("cli.md", cli::page(berth_cli::command("berth"))),
        ("crds.md", crds::page(&root())),
        ("metrics.md", metrics::page()),
        ("rules.md", Catalogue.markdown()),
        ("scenario.md", schemas::scenario_page()),
        ("settings.md", schemas::settings_page()),
    ];
    pages.extend(schemas::schemas());
    pages
}

#[test]
fn pages_are_current() {
    let directory = root().join("docs/reference");
    let overwrite = std::env::var_os("REFERENCE").is_some_and(|value| value == "overwrite");
    let mut stale = Vec::new();
    for (name, text) in pages() {
        let path = directory.join(name);
        if fs::read_to_string(&path).is_ok_and(|current| current == text) {
            continue;
        }
        if overwrite {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
        } else {
            stale.push(name);
        }
    }
    assert!(
        stale.is_empty(),
        "docs/reference is stale: {stale:?}; run `REFERENCE=overwrite cargo test -p berth-cli --test \
         reference`"
    );
}
