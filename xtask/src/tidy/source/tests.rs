//! Proves that each rule on a file can fail, where it says so, and that it leaves good code alone.

use super::*;

/// The problems in a file, as `line rule`.
fn found(path: &str, text: &str, role: Role) -> Vec<String> {
    let problems = check(Path::new(path), text, role);
    problems.iter().map(|problem| format!("{} {}", problem.line, problem.rule)).collect()
}

const PURE: Role = Role { pure: true, library: true };
const OTHER: Role = Role { pure: false, library: false };
const DOCS: &str = "//! What it owns.\n";

/// The problems of the second line of a source file.
fn second_line(code: &str, role: Role) -> Vec<String> {
    found("crates/x/src/a.rs", &format!("{DOCS}{code}\n"), role)
}

#[test]
fn a_good_file_passes() {
    let code = "use std::collections::BTreeMap;\nuse std::time::Duration;\nfn f(env: u8) {}";
    assert!(second_line(code, PURE).is_empty());
}

#[test]
fn pure_crates_name_nothing_impure() {
    for code in [
        "use std::time::Instant;",
        "use std::time::{Duration, SystemTime};",
        "use std::time::*;",
        "use std::{fmt, fs};",
        "fn f() { std::env::var(NAME); }",
        "fn f() { ::std::process::exit(1); }",
        "type T = std::net::IpAddr;",
        "fn f() { std::thread::sleep(d); }",
        "use rand::Rng;",
        "use std::collections::HashMap;",
        "use std::collections::{BTreeMap, HashSet as Set};",
        "type S = foldhash::fast::RandomState;",
    ] {
        assert_eq!(second_line(code, PURE), ["2 pure-call"], "{code}");
        assert!(second_line(code, OTHER).is_empty(), "{code}");
    }
    let through_an_import = "use std::time;\nfn f() { time::Instant::now(); }";
    assert_eq!(second_line(through_an_import, PURE), ["3 pure-call"]);
}

#[test]
fn pure_crates_may_mention_and_test_with_anything() {
    for code in [
        "// std::time::Instant would be wrong here",
        "const S: &str = \"std::fs::read\";",
        "#[cfg(test)]\nmod tests { use std::collections::HashMap; }",
        "struct Instant; fn f(x: Instant) { x.fs::<u8>(); }",
    ] {
        assert!(second_line(code, PURE).is_empty(), "{code}");
    }
}

#[test]
fn the_hash_map_message_says_what_to_use() {
    let problems = pure_calls(Path::new("a.rs"), "use std::collections::HashMap;");
    assert!(problems[0].message.contains("BTreeMap"), "{problems:?}");
    assert!(problems[0].message.contains("iteration order"), "{problems:?}");
}

#[test]
fn libraries_do_not_print() {
    for code in ["println!(\"x\");", "eprint!(\"x\");", "dbg!(x);"] {
        let code = format!("fn f() {{ {code} }}");
        assert_eq!(second_line(&code, PURE), ["2 print"], "{code}");
        assert!(second_line(&code, OTHER).is_empty(), "{code}");
    }
    assert!(second_line("#[cfg(test)]\nmod tests { fn f() { println!(); } }", PURE).is_empty());
}

#[test]
fn unfinished_work_is_found_in_code_and_comments() {
    let markers = ["TODO", "FIXME", "XXX"].map(|marker| format!("// {marker}: later"));
    let macros = ["todo", "unimplemented"].map(|name| format!("fn f() {{ {name}!() }}"));
    for code in markers.iter().chain(&macros) {
        assert_eq!(second_line(code, OTHER), ["2 unfinished"], "{code}");
    }
    assert!(second_line("const S: &str = \"TODO\"; // todo list, XXXL", OTHER).is_empty());
}

#[test]
fn long_files_fail_and_tests_may_be_longer() {
    let lines = |count: usize| format!("{DOCS}{}", "//\n".repeat(count - 1));
    assert!(found("src/a.rs", &lines(800), OTHER).is_empty());
    assert_eq!(found("src/a.rs", &lines(801), OTHER), ["801 length"]);
    assert!(found("src/a/tests.rs", &lines(1_200), OTHER).is_empty());
    assert_eq!(found("tests/a.rs", &lines(1_201), OTHER), ["1201 length"]);
    assert!(found("a.md", &lines(2_000), OTHER).is_empty());
}

#[test]
fn modules_start_with_docs() {
    for text in ["", "fn f() {}\n", "\n//! What it owns.\n", "//! x\n", "// What it owns.\n"] {
        assert_eq!(found("src/a.rs", text, OTHER), ["1 module-docs"], "{text:?}");
    }
}

#[test]
fn whitespace_is_checked_in_what_we_write() {
    assert_eq!(found("a.md", "x \ny\t\nz\r\n", OTHER).len(), 3);
    assert_eq!(found("a.md", "x\ny", OTHER), ["2 final-newline"]);
    assert!(found("empty", "", OTHER).is_empty());
    assert!(found("crates/x/testdata/a.txt", "x \ny", OTHER).is_empty());
    assert!(found("a.jsonl", "{}", OTHER).is_empty());
}

#[test]
fn machine_paths_are_found_in_any_text() {
    for (dir, rest) in [("wo", "rk/x"), ("ro", "ot/.cache"), ("ho", "me/ada/src")] {
        let path = format!("/{dir}{rest}");
        for text in [format!("cd {path}\n"), format!("\"{path}\"\n"), format!("{path}\n")] {
            assert_eq!(found("vectors/a.txt", &text, OTHER), ["1 machine-path"], "{text}");
        }
        assert!(found("a.md", &format!("src{path} $X{path} ${{X}}{path}\n"), OTHER).is_empty());
    }
    let nobody = format!("/{}me/<user>/\n", "ho");
    assert!(found("a.md", &nobody, OTHER).is_empty());
}

#[test]
fn members_take_the_lints_of_the_workspace() {
    let check = |manifest: &str| lints(Path::new("Cargo.toml"), manifest).is_some();
    assert!(!check("[package]\nname = \"a\"\n\n[lints]\nworkspace = true\n"));
    assert!(!check("lints.workspace = true # all of them\n[package]\n"));
    assert!(check("[package]\nname = \"a\"\n"));
    assert!(check("[lints.rust]\nunsafe_code = \"forbid\"\n[package]\nworkspace = true\n"));
    assert!(check("[lints]\n# workspace = true\n"));
}

#[test]
fn a_crate_with_unsafe_code_writes_the_other_lints_out() {
    let workspace = "[workspace.lints.rust]\nunsafe_code = \"forbid\"\nmissing_docs = \"warn\"\n\n\
                     [profile.dev]\ndebug = false\n";
    let missing = |manifest: &str| lints_written_out(Path::new("a"), manifest, workspace).len();
    let whole = "[lints.rust]\nmissing_docs = \"warn\" # too\nunsafe_op_in_unsafe_fn = \"deny\"\n\
                 [lints.clippy]\nundocumented_unsafe_blocks = \"deny\"\n";
    assert_eq!(missing(whole), 0);
    assert_eq!(missing(&whole.replace("missing_docs", "other")), 1);
    assert_eq!(missing(&whole.replace("missing_docs = \"warn\"", "missing_docs = \"allow\"")), 1);
    assert_eq!(missing("[lints]\nworkspace = true\n"), 3);
}
