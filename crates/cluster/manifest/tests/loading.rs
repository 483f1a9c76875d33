//! Files and directories → objects.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use berth_manifest::{Strictness, load};

/// A directory of this test's own, gone when the test is.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str, files: &[(&str, &[u8])]) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        for (file, content) in files {
            let file = path.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        }
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn names(paths: &[PathBuf], stdin: &str) -> Result<Vec<String>, String> {
    let documents = load(paths, &mut stdin.as_bytes(), Strictness::Manifest);
    let documents = documents.map_err(|error| error.to_string())?;
    Ok(documents.iter().map(|document| document.name().unwrap_or("?").to_owned()).collect())
}

fn named(name: &str) -> Vec<u8> {
    format!("kind: Pod\nmetadata: {{name: {name}}}\n").into_bytes()
}

#[test]
fn a_directory_gives_its_files_in_order_without_hidden_ones() {
    let [a, b, c, d] = ["a", "b", "c", "d"].map(named);
    let directory = Directory::new(
        "in-order",
        &[
            ("2.yml", &b),
            ("10.yaml", &a),
            ("deep/er/3.json", br#"{"kind": "Pod", "metadata": {"name": "json"}}"#),
            ("z.yaml", &c),
            (".hidden.yaml", &d),
            (".git/x.yaml", &d),
            ("notes.txt", b"\xff: not: read"),
        ],
    );
    let found = names(std::slice::from_ref(&directory.0), "").unwrap();
    assert_eq!(found, ["a", "b", "json", "c"]);
}

#[test]
fn files_and_standard_input_come_in_the_order_they_are_named() {
    let directory = Directory::new("mixed", &[("a", &named("a"))]);
    let paths = [PathBuf::from("-"), directory.0.join("a")];
    assert_eq!(names(&paths, "{metadata: {name: piped}}").unwrap(), ["piped", "a"]);
    let why = names(&paths, "a: [").unwrap_err();
    assert!(why.starts_with("<stdin>:1:5: "), "{why}");
}

#[test]
fn what_is_not_there_or_not_text_says_so() {
    let directory = Directory::new("bad", &[("latin.yaml", b"a: 1\nb: \xe9\n"), ("empty/x", b"")]);
    for (path, says) in [
        ("empty", "empty: no .yaml, .yml or .json files in the directory"),
        ("nowhere", "nowhere: no such file or directory"),
        ("latin.yaml", "latin.yaml: line 2 is not UTF-8 (byte 8); save it as UTF-8"),
    ] {
        let why = names(&[directory.0.join(path)], "").unwrap_err();
        assert!(why.ends_with(says), "{why}");
    }
}

#[test]
#[cfg(unix)]
fn directories_that_go_in_circles_are_left() {
    let directory = Directory::new("circle", &[("a.yaml", &named("a"))]);
    std::os::unix::fs::symlink(&directory.0, directory.0.join("again")).unwrap();
    let why = names(std::slice::from_ref(&directory.0), "").unwrap_err();
    assert!(why.contains("check for a symlink loop"), "{why}");
}
