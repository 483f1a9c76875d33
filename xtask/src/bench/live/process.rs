//! Processes that are measured.
//!
//! Owns how they are started and what they used, as the kernel counts it. Must not know what they do.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// What a process has used.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    pub(super) cpu_ms: f64,
    pub(super) peak_mib: f64,
}

impl Usage {
    fn of(process: &str) -> Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
        // Fields after the name, which can hold anything: utime and stime, in hundredths of a second.
        let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
        let ticks: u64 = after
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|text| text.parse::<u64>().ok())
            .sum();
        let status = fs::read_to_string(format!("/proc/{process}/status"))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak_kib: f64 =
            peak.and_then(|text| text.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0.0);
        Ok(Self { cpu_ms: ticks as f64 * 10.0, peak_mib: peak_kib / 1024.0 })
    }

    /// What this process has used.
    pub(super) fn own() -> Self {
        Self::of("self").unwrap_or_default()
    }

    /// What several have used together; `None`: there are none, or one has ended.
    pub(super) fn of_all(processes: &[u32]) -> Option<Self> {
        let each = processes.iter().map(|process| Self::of(&process.to_string()).ok());
        each.reduce(|all, one| {
            let (all, one) = all.zip(one)?;
            Some(Self { cpu_ms: all.cpu_ms + one.cpu_ms, peak_mib: all.peak_mib + one.peak_mib })
        })?
    }

    pub(super) fn since(self, before: &Self) -> Self {
        Self { cpu_ms: self.cpu_ms - before.cpu_ms, peak_mib: self.peak_mib }
    }
}

/// A process that ends when this is dropped.
pub(super) struct Process(Child);

impl Process {
    fn start(mut command: Command, log: &Path) -> Result<Self> {
        let log = File::create(log).with_context(|| format!("{} cannot be made", log.display()))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("{command:?} cannot be started"))?;
        Ok(Self(child))
    }

    pub(super) fn kube_scheduler(
        program: Option<&Path>,
        directory: &Path,
        kubeconfig: &Path,
        pack: bool,
    ) -> Result<Self> {
        let Some(program) = program else { bail!("name kube-scheduler with --kube-scheduler") };
        let mut config = serde_json::json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": { "leaderElect": false },
            "clientConnection": { "kubeconfig": kubeconfig, "qps": 10_000, "burst": 10_000 },
        });
        if pack {
            let resources = [serde_json::json!({ "name": "nvidia.com/gpu", "weight": 1 })];
            let strategy = serde_json::json!({ "type": "MostAllocated", "resources": resources });
            let fit = serde_json::json!({ "name": "NodeResourcesFit", "args": {
                "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "NodeResourcesFitArgs",
                "scoringStrategy": strategy,
            }});
            config["profiles"] = serde_json::json!([{ "schedulerName": "default-scheduler", "pluginConfig": [fit] }]);
        }
        let path = directory.join("kube-scheduler.json");
        fs::write(&path, config.to_string())?;
        let mut command = Command::new(program);
        command.arg("--config").arg(&path).args(["--secure-port=0", "--v=0"]);
        Self::start(command, &directory.join("kube-scheduler.log"))
    }

    pub(super) fn berth(program: &Path, directory: &Path, kubeconfig: &Path) -> Result<Self> {
        let mut command = Command::new(program);
        command.args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--namespace",
            "default",
            "--kubeconfig",
        ]);
        command.arg(kubeconfig).env("RUST_LOG", "warn");
        Self::start(command, &directory.join("berth.log"))
    }

    /// What it has used; then it is told to stop.
    pub(super) fn stop(&mut self) -> Result<Usage> {
        let used = Usage::of(&self.0.id().to_string())?;
        let asked = Command::new("kill").arg(self.0.id().to_string()).status()?;
        if !asked.success() {
            bail!("a scheduler ended before it was told to; see its log");
        }
        self.0.wait()?;
        Ok(used)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
