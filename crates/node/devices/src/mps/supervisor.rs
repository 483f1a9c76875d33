//! Supervises MPS daemons.
//!
//! A daemon starts with its thread cap in its environment, so that no client ever sees it without, and gets its
//! memory limit by command, the only way to set it. It is restarted when it ends. A daemon that an earlier process
//! started has clients, so it gets its limits and keeps running.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{debug, info, warn};

use super::{Daemon, DaemonLock, pipes};

/// NVIDIA's program: the daemon and its command line client.
const PROGRAM: &str = "nvidia-cuda-mps-control";

/// Timeout for a daemon to listen or to execute commands.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Poll intervals: of a starting daemon, and of one that is not a child process.
const START_POLL: Duration = Duration::from_millis(20);
const ADOPTED_POLL: Duration = Duration::from_secs(2);
/// First and maximum pause between attempts to start.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

const MIB: u64 = 1 << 20;

/// Who may use a GPU. A client without a daemon runs unlimited, so nobody may while the daemon is down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Everybody,
    /// One process: the server of the MPS daemon.
    Daemon,
    Nobody,
}

/// Sets who may use the GPU with a UUID.
pub type Gate = Arc<dyn Fn(&str, Access) -> Result<(), GateError> + Send + Sync>;

/// Why the access to a GPU could not be set.
pub type GateError = Box<dyn std::error::Error + Send + Sync>;

pub struct Supervisor {
    directory: PathBuf,
    program: OsString,
    gate: Gate,
    running: BTreeMap<String, Running>,
}

struct Running {
    daemon: Daemon,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Running {
    async fn end(self) {
        self.stop.send_replace(true);
        let _ = self.task.await;
    }
}

impl Supervisor {
    /// `directory` is the MPS directory of [`crate::ResponseConfig`].
    pub fn new(directory: impl Into<PathBuf>, gate: Gate) -> Self {
        let directory = directory.into();
        Self { directory, program: PROGRAM.into(), gate, running: BTreeMap::new() }
    }

    /// Uses another program than NVIDIA's, for tests.
    #[must_use]
    pub fn with_program(self, program: impl Into<OsString>) -> Self {
        Self { program: program.into(), ..self }
    }

    /// Runs exactly these daemons. Unchanged ones keep running.
    pub async fn follow(&mut self, needed: Vec<Daemon>) {
        let is_needed = |running: &Running| needed.contains(&running.daemon);
        let over: Vec<String> = (self.running.iter())
            .filter(|(_, running)| !is_needed(running))
            .map(|(uuid, _)| uuid.clone())
            .collect();
        for uuid in over {
            if let Some(running) = self.running.remove(&uuid) {
                running.end().await;
            }
        }
        for daemon in needed {
            if self.running.contains_key(&daemon.uuid) {
                continue;
            }
            let (stop, stopped) = watch::channel(false);
            let task_state = Task {
                daemon: daemon.clone(),
                directory: self.directory.clone(),
                program: self.program.clone(),
                gate: Arc::clone(&self.gate),
                stopped,
            };
            let task = tokio::spawn(task_state.keep());
            self.running.insert(daemon.uuid.clone(), Running { daemon, stop, task });
        }
    }

    /// Stops all daemons, which ends their clients.
    pub async fn stop(self) {
        futures::future::join_all(self.running.into_values().map(Running::end)).await;
    }
}

/// Task that supervises one daemon.
struct Task {
    daemon: Daemon,
    directory: PathBuf,
    program: OsString,
    gate: Gate,
    stopped: watch::Receiver<bool>,
}

impl Task {
    /// Runs until stopped.
    async fn keep(mut self) {
        let uuid = self.daemon.uuid.clone();
        let mut pause = PAUSE;
        while !*self.stopped.borrow() {
            let ran = self.run().await;
            if !*self.stopped.borrow() {
                self.set_access(Access::Nobody);
            }
            match ran {
                Ok(()) => {
                    pause = PAUSE;
                    if !*self.stopped.borrow() {
                        warn!(uuid, "MPS daemon ended; restarting it");
                    }
                }
                Err(error) => {
                    warn!(uuid, %error, "MPS daemon is not running; shares of its GPU are unhealthy");
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = self.stopped.wait_for(|stopped| *stopped) => {}
            }
        }
        self.set_access(Access::Everybody);
    }

    /// A GPU that is also offered in other ways is open to everybody at all times.
    fn set_access(&self, access: Access) {
        if self.daemon.exclusive
            && let Err(error) = (self.gate)(&self.daemon.uuid, access)
        {
            warn!(
                uuid = self.daemon.uuid,
                %error,
                ?access,
                "cannot set the GPU's compute mode; programs can use the GPU without MPS"
            );
        }
    }

    /// Runs the daemon once, or adopts a running one.
    async fn run(&mut self) -> io::Result<()> {
        let pipes = pipes(&self.directory, &self.daemon.uuid);
        let logs = self.directory.join(&self.daemon.uuid).join("log");
        std::fs::create_dir_all(&pipes)?;
        std::fs::create_dir_all(&logs)?;
        if self.send(&pipes, "get_server_list\n").await.is_ok() {
            return self.adopt(&pipes).await;
        }
        let control = pipes.join("control");
        // The socket of a killed daemon would look like one that listens.
        match std::fs::remove_file(&control) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.set_access(Access::Nobody);
        let mut child = self.start(&pipes, &logs)?;
        if let Some(output) = child.stdout.take() {
            let uuid = self.daemon.uuid.clone();
            let mut lines = BufReader::new(output).lines();
            tokio::spawn(async move {
                while let Ok(Some(line)) = lines.next_line().await {
                    debug!(uuid, line, "MPS");
                }
            });
        }
        let listens = tokio::time::timeout(TIMEOUT, async {
            while !control.exists() {
                tokio::time::sleep(START_POLL).await;
            }
        });
        tokio::select! {
            ended = child.wait() => return Err(ended_early(&ended?)),
            listens = listens => if listens.is_err() {
                child.kill().await?;
                return Err(io::Error::other("it did not listen within 10 seconds"));
            }
        }
        self.set_limits(&pipes).await?;
        self.set_access(Access::Daemon);
        let _lock = DaemonLock::acquire(&self.directory, &self.daemon.uuid)?;
        info!(
            uuid = self.daemon.uuid,
            threads = self.daemon.threads.percent(),
            memory_mib = self.daemon.memory_bytes / MIB,
            "MPS daemon is running"
        );
        tokio::select! {
            ended = child.wait() => return ended.map(drop),
            _ = self.stopped.wait_for(|stopped| *stopped) => {}
        }
        self.quit(&pipes).await;
        if tokio::time::timeout(TIMEOUT, child.wait()).await.is_err() {
            child.kill().await?;
        }
        Ok(())
    }

    fn start(&self, pipes: &Path, logs: &Path) -> io::Result<Child> {
        let Daemon { uuid, threads, .. } = &self.daemon;
        let mut command = Command::new(&self.program);
        command
            .arg("-f")
            .env("CUDA_VISIBLE_DEVICES", uuid)
            .env("CUDA_MPS_PIPE_DIRECTORY", pipes)
            .env("CUDA_MPS_LOG_DIRECTORY", logs)
            .env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", threads.percent().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        command.spawn().map_err(|error| self.start_failed(&error))
    }

    /// Supervises a daemon that an earlier process started.
    async fn adopt(&mut self, pipes: &Path) -> io::Result<()> {
        self.set_limits(pipes).await?;
        self.set_access(Access::Daemon);
        let _lock = DaemonLock::acquire(&self.directory, &self.daemon.uuid)?;
        info!(uuid = self.daemon.uuid, "adopted a running MPS daemon");
        while self.send(pipes, "get_server_list\n").await.is_ok() {
            let stop = self.stopped.wait_for(|stopped| *stopped);
            if tokio::time::timeout(ADOPTED_POLL, stop).await.is_ok() {
                self.quit(pipes).await;
                break;
            }
        }
        Ok(())
    }

    /// Sets the limits for new servers, and for new clients of running servers.
    async fn set_limits(&self, pipes: &Path) -> io::Result<()> {
        let threads = self.daemon.threads.percent();
        let memory = format!("{}M", self.daemon.memory_bytes / MIB);
        let mut commands = format!(
            "set_default_active_thread_percentage {threads}\n\
             set_default_device_pinned_mem_limit 0 {memory}\n"
        );
        for server in self.send(pipes, "get_server_list\n").await?.split_whitespace() {
            commands += &format!(
                "set_active_thread_percentage {server} {threads}\n\
                 set_device_pinned_mem_limit {server} 0 {memory}\n"
            );
        }
        self.send(pipes, &commands).await.map(drop)
    }

    async fn quit(&self, pipes: &Path) {
        if let Err(error) = self.send(pipes, "quit\n").await {
            warn!(uuid = self.daemon.uuid, %error, "cannot stop the MPS daemon");
        }
    }

    /// Sends commands to the daemon and returns its output.
    async fn send(&self, pipes: &Path, commands: &str) -> io::Result<String> {
        let mut command = Command::new(&self.program);
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", pipes)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| self.start_failed(&error))?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(commands.as_bytes()).await?;
        }
        let answered = tokio::time::timeout(TIMEOUT, child.wait_with_output()).await;
        let answer = answered.map_err(|_| io::Error::other("no answer within 10 seconds"))??;
        if answer.status.success() {
            Ok(String::from_utf8_lossy(&answer.stdout).into_owned())
        } else {
            Err(ended_early(&answer.status))
        }
    }

    fn start_failed(&self, error: &io::Error) -> io::Error {
        let what = format!(
            "{}: {error}; it is part of NVIDIA's driver and needs NVIDIA_DRIVER_CAPABILITIES=compute,utility in \
             containers",
            self.program.display()
        );
        io::Error::new(error.kind(), what)
    }
}

fn ended_early(status: &std::process::ExitStatus) -> io::Error {
    io::Error::other(format!("it ended unexpectedly ({status})"))
}
