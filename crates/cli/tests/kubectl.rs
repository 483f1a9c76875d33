//! What kubectl prints against `berth up`, command by command: `kubectl/*.md`, in order.
//!
//! `[..]` stands for what differs from run to run. After a change of wording,
//! `TRYCMD=overwrite cargo test -p berth-cli --test kubectl` shows what is printed now. Without the kubectl
//! whose words these are nothing is tested, unless `BERTH_KUBECTL=required`.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "a test")]

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A cluster that ends with the test, however the test ends.
struct Cluster {
    process: Child,
}

impl Cluster {
    fn start(kubeconfig: &Path) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_berth"))
            .args(["up", "--port", "0", "--kubeconfig"])
            .arg(kubeconfig)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = process.stdout.take().unwrap();
        let cluster = Self { process };
        let mut lines = BufReader::new(output).lines();
        let ready = lines.any(|line| line.unwrap().starts_with("A cluster with"));
        assert!(ready, "berth up ended before it was ready");
        cluster
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

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

#[test]
fn kubectl_works_as_with_any_cluster() {
    let kubectl = match kubectl() {
        Ok(kubectl) => kubectl,
        Err(why) => {
            let required = std::env::var_os("BERTH_KUBECTL").is_some_and(|it| it == "required");
            assert!(!required, "{why}");
            eprintln!("skipped: {why}");
            return;
        }
    };
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let _cluster = Cluster::start(&kubeconfig);
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
