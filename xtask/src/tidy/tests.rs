//! Runs the tidy checks on this workspace, and on small trees that break one rule each.

use super::*;

/// The directory of a test, emptied.
fn scratch(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("berth-tidy-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).unwrap();
    dir
}

fn write(root: &Path, path: &str, bytes: &[u8]) {
    let full = root.join(path);
    fs::create_dir_all(full.parent().unwrap()).unwrap();
    fs::write(full, bytes).unwrap();
}

#[test]
fn this_workspace_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let problems = check(&root).unwrap();
    let lines: Vec<String> = problems.iter().map(Problem::to_string).collect();
    assert!(lines.is_empty(), "{} problem(s):\n{}", lines.len(), lines.join("\n"));
}

#[test]
fn a_workspace_is_checked_from_end_to_end() {
    let root = scratch("workspace");
    write(
        &root,
        "Cargo.toml",
        b"[workspace]\nresolver = \"3\"\nmembers = [\"crates/core/model\"]\n",
    );
    write(
        &root,
        "crates/core/model/Cargo.toml",
        b"[package]\nname = \"berth-model\"\nversion = \"0.0.0\"\nedition = \"2024\"\n",
    );
    write(&root, "crates/core/model/src/lib.rs", b"//! What exists here.\nuse std::fs;\n");
    write(
        &root,
        "crates/core/model/src/main.rs",
        b"//! Prints and exits.\nfn main() { println!(); }\n",
    );
    write(
        &root,
        "Cargo.lock",
        b"version = 4\n\n[[package]]\nname = \"berth-model\"\nversion = \"0.0.0\"\n",
    );
    let problems = check(&root).unwrap();
    let _ = fs::remove_dir_all(&root);
    let found: Vec<String> = problems
        .iter()
        .map(|problem| format!("{}:{} {}", problem.file.display(), problem.line, problem.rule))
        .collect();
    assert_eq!(
        found,
        ["crates/core/model/Cargo.toml:1 lints", "crates/core/model/src/lib.rs:2 pure-call"]
    );
}

#[test]
fn large_files_fail_and_binary_ones_are_left_alone() {
    let root = scratch("size");
    let too_many = usize::try_from(FILE_BYTES_MAX).unwrap() + 1;
    write(&root, "large.bin", &vec![0; too_many]);
    write(&root, "small.bin", b"\0 \n");
    write(&root, "latin.txt", b"\xe9 \n");
    let found = |path: &str| check_file(&root, Path::new(path), Role::default()).unwrap();
    assert_eq!(found("large.bin")[0].rule, "size");
    assert!(found("small.bin").is_empty());
    assert!(found("latin.txt").is_empty());
    assert!(found("deleted.txt").is_empty());
    let _ = fs::remove_dir_all(&root);
}

#[test]
fn without_git_the_tree_is_walked() {
    let root = scratch("walk");
    write(&root, ".gitignore", b"/target\n/fuzz/target\n");
    for path in ["a.rs", "src/target/b.rs", "target/c.rs", "fuzz/target/d.rs", "fuzz/e.rs"] {
        write(&root, path, b"");
    }
    let found = files(&root).unwrap();
    let _ = fs::remove_dir_all(&root);
    let expected = [".gitignore", "a.rs", "fuzz/e.rs", "src/target/b.rs"].map(PathBuf::from);
    assert_eq!(found, expected);
}

#[test]
fn roles_follow_the_crate_and_the_place() {
    let members = [
        ("berth-model", "crates/core/model"),
        ("berth-testkit", "crates/harness/testkit"),
        ("xtask", "xtask"),
    ]
    .map(|(name, dir)| Member::for_test(name, dir));
    let of = |path: &str| {
        let role = role(Path::new(path), &members);
        (role.pure, role.library)
    };
    assert_eq!(of("crates/core/model/src/a/b.rs"), (true, true));
    assert_eq!(of("crates/core/model/src/a/tests.rs"), (false, false));
    assert_eq!(of("crates/core/model/tests/a.rs"), (false, false));
    assert_eq!(of("crates/harness/testkit/src/lib.rs"), (false, true));
    assert_eq!(of("crates/harness/testkit/src/bin/a.rs"), (false, false));
    assert_eq!(of("xtask/src/bench.rs"), (false, false));
}
