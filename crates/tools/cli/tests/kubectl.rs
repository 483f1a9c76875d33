//! What kubectl prints against `berth up`, command by command: `kubectl/*.md`, in order.
//!
//! `[..]` stands for what differs from run to run. After a change of wording,
//! `TRYCMD=overwrite cargo test -p berth-cli --test kubectl` shows what is printed now. Without the kubectl
//! whose words these are nothing is tested, unless `BERTH_KUBECTL=required`.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "a test")]

#[path = "support/cluster.rs"]
mod cluster;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use cluster::Cluster;

/// The words of kubectl change from version to version.
const VERSION: &str = "v1.32.";

/// The kubectl of this machine, if it is of the version whose words are known.
fn kubectl() -> Result<PathBuf, String> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&paths).map(|path| path.join("kubectl"));
    let found = found.find(|path| path.is_file()).ok_or("there is no kubectl on this machine")?;
    let version = Command::new(&found).args(["version", "--client"]).output().unwrap();
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    if version.contains(VERSION) {
        return Ok(found);
    }
    Err(format!("the transcript is of kubectl {VERSION}x, and here is: {version}"))
}

/// The same; `None`: there is none, and the test is to be skipped.
fn kubectl_or_skip() -> Option<PathBuf> {
    let found = kubectl();
    if let Err(why) = &found {
        let required = std::env::var_os("BERTH_KUBECTL").is_some_and(|it| it == "required");
        assert!(!required, "{why}");
        eprintln!("skipped: {why}");
    }
    found.ok()
}

#[test]
fn kubectl_works_as_with_any_cluster() {
    let Some(kubectl) = kubectl_or_skip() else { return };
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let _cluster = Cluster::start(&kubeconfig, &[]);
    let cases = trycmd::TestCases::new();
    cases
        .env("KUBECONFIG", kubeconfig.to_str().unwrap())
        // Discovery is cached by address, and addresses are used again.
        .env("KUBECACHEDIR", directory.path().join("cache").to_str().unwrap())
        .env("KUBE_EDITOR", "false")
        .timeout(Duration::from_secs(60))
        .register_bin("kubectl", kubectl)
        .case("tests/kubectl/*.md");
    cases.run();
}

/// Runs kubectl with something on its standard input.
fn fed(kubectl: &Path, kubeconfig: &Path, arguments: &[&str], input: &[u8]) -> Output {
    let mut running = Command::new(kubectl)
        .args(arguments)
        .env("KUBECONFIG", kubeconfig)
        .env("KUBECACHEDIR", kubeconfig.with_extension("cache"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = running.stdin.take().unwrap();
    stdin.write_all(input).unwrap();
    drop(stdin);
    running.wait_with_output().unwrap()
}

#[test]
fn what_is_printed_to_install_berth_is_applied_changed_and_deleted() {
    let Some(kubectl) = kubectl_or_skip() else { return };
    let printed = Command::new(env!("CARGO_BIN_EXE_berth"))
        .args(["manifests", "--priority-classes"])
        .output()
        .unwrap()
        .stdout;
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let _cluster = Cluster::start(&kubeconfig, &[]);
    let run = |arguments: &[&str]| {
        let output = fed(&kubectl, &kubeconfig, arguments, &printed);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "kubectl {arguments:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let count = |said: &str, word: &str| said.lines().filter(|line| line.contains(word)).count();
    let objects = printed.split(|byte| *byte == b'\n').filter(|line| *line == b"---").count() + 1;
    let first = run(&["apply", "--server-side", "--force-conflicts", "-f", "-"]);
    assert_eq!(count(&first, " serverside-applied"), objects, "{first}");
    let again = run(&["apply", "--server-side", "-f", "-"]);
    assert_eq!(count(&again, " serverside-applied"), objects, "{again}");
    let there = run(&["get", "-f", "-", "-o", "name"]);
    assert_eq!(there.lines().count(), objects, "{there}");
    let differs = run(&["diff", "--server-side", "-f", "-"]);
    assert_eq!(differs, "");
    // What is in the namespace may go with it.
    run(&["delete", "-f", "-", "--ignore-not-found"]);
    let left = run(&["get", "-f", "-", "-o", "name", "--ignore-not-found"]);
    assert_eq!(left, "");
}
