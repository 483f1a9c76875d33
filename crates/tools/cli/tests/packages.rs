//! What packages of the program contain besides it: man pages, completions and a version.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test may fail")]

use std::process::Command;

fn berth(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_berth")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_version_names_the_commit_and_the_platform() {
    let version: serde_json::Value =
        serde_json::from_str(&berth(&["version", "-o", "json"])).unwrap();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    let commit = version["commit"].as_str().unwrap();
    let is_hash = commit.len() >= 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(is_hash || commit == "unknown", "{commit}");
    assert!(version["platform"].as_str().unwrap().contains('-'));
    assert!(berth(&["version"]).contains(commit));
    assert!(berth(&["version", "-o", "yaml"]).contains(&format!("commit: {commit}")));
}

#[test]
fn every_shell_gets_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = berth(&["completion", shell]);
        assert!(script.contains("eviction-max-wait-ms"), "{shell}");
    }
}

#[test]
fn every_command_has_a_man_page() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("man");
    berth(&["man", target.to_str().unwrap()]);
    for name in ["berth.1", "berth-plan.1", "berth-agent-mig.1", "berth-replay-openb.1"] {
        let page = std::fs::read_to_string(target.join(name)).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{name}");
    }
    assert!(!target.join("berth-man.1").exists());
}
