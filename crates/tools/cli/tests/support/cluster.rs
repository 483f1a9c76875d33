//! `berth up` as a process.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A cluster that ends with the test, however the test ends.
pub(crate) struct Cluster {
    process: Child,
}

impl Cluster {
    /// Starts one at any port, and waits until it is ready.
    pub(crate) fn start(kubeconfig: &Path, arguments: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_berth"))
            .args(["up", "--port", "0", "--kubeconfig"])
            .arg(kubeconfig)
            .args(arguments)
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
    /// As `kill -9` does.
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
