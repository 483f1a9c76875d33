//! Processes that live no longer than whoever started them.
//!
//! Owns starting, signals, and the end: a process is killed when its handle is dropped, and also when we
//! are killed ourselves. For the latter a guard, a shell with a pipe to us, waits until the pipe is closed,
//! which the kernel does however we end. Must not know what the processes are.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, bail};

/// So much of a log is shown.
const TAIL_BYTES: usize = 4_000;

/// A running process.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    guard: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a command. What it prints goes to a file.
    ///
    /// # Errors
    /// When it, or its guard, cannot be started.
    pub fn start(name: &str, command: &mut Command, log: &Path) -> anyhow::Result<Self> {
        let out = File::options().create(true).append(true).open(log);
        let out = out.with_context(|| format!("{} cannot be written", log.display()))?;
        let started = command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .process_group(0)
            .spawn();
        let mut child = started.with_context(|| format!("{name} cannot be started"))?;
        let guard = Command::new("sh")
            .args(["-c", "read -r _; kill -9 \"$1\"", "guard", &child.id().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        match guard {
            Ok(guard) => Ok(Self { name: name.to_owned(), child, guard, log: log.to_owned() }),
            Err(error) => {
                drop(child.kill());
                drop(child.wait());
                Err(error).context("a shell cannot be started")
            }
        }
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs; if it does not, how it ended.
    pub fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok()??;
        Some(match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "an unknown end".to_owned(),
        })
    }

    /// Sends a signal, as `STOP`.
    ///
    /// # Errors
    /// When there is no such process any more.
    pub fn signal(&self, signal: &str) -> anyhow::Result<()> {
        let sent = Command::new("kill")
            .args(["-s", signal, &self.id().to_string()])
            .stderr(Stdio::null())
            .status()
            .context("`kill` cannot be started")?;
        if !sent.success() {
            bail!("{} ({}) takes no signal {signal}", self.name, self.id());
        }
        Ok(())
    }

    /// Ends it at once, as `kill -9` does, and waits until it is gone.
    pub fn kill(&mut self) {
        // The guard first: it must not kill whoever gets the same number later.
        drop(self.guard.kill());
        drop(self.guard.wait());
        drop(self.child.kill());
        drop(self.child.wait());
    }

    /// The end of what it printed.
    pub fn tail(&self) -> String {
        let mut text = Vec::new();
        if let Ok(mut log) = File::open(&self.log) {
            drop(log.read_to_end(&mut text));
        }
        let from = text.len().saturating_sub(TAIL_BYTES);
        String::from_utf8_lossy(text.get(from..).unwrap_or_default()).into_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_running(id: u32) -> bool {
        let state = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        // A zombie does not run.
        !state.is_empty() && !state.contains(") Z ")
    }

    #[test]
    fn a_dropped_process_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let started =
            Process::start("sleep", Command::new("sleep").arg("600"), &dir.path().join("log"));
        let process = started.unwrap();
        let id = process.id();
        assert!(is_running(id));
        drop(process);
        assert!(!is_running(id));
    }

    #[test]
    fn a_process_ends_when_its_owner_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let started =
            Process::start("sleep", Command::new("sleep").arg("600"), &dir.path().join("log"));
        let mut process = started.unwrap();
        // What the kernel does with our end of the pipe when we die.
        drop(process.guard.stdin.take());
        let killed = process.child.wait().unwrap();
        assert_eq!(killed.signal(), Some(9));
    }
}
