//! Keeping daemons running.
//!
//! Owns their processes: each is started with its cap on threads in its environment, so that no client ever meets one
//! without, told the limit on memory, which it takes from nowhere else, and started again when it ends. One that an
//! earlier process left behind has clients, so it is told its limits and kept. Must not know what a GPU is offered as.

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

use super::{Alive, Daemon, pipes};

/// NVIDIA's program, which is both the daemon and the way to talk to it.
const PROGRAM: &str = "nvidia-cuda-mps-control";

/// How long a daemon may take to listen, or to do what it is told.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often one that starts is looked at, and one that is not our child.
const LOOK: Duration = Duration::from_millis(20);
const LOOK_AT_OTHERS: Duration = Duration::from_secs(2);
/// Between two attempts, and no longer than.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

const MIB: u64 = 1 << 20;

/// Whom a GPU lets at itself. A client that finds no daemon goes on without, so while none runs nobody is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everybody, as usual.
    Everybody,
    /// One process: the daemon's server.
    Daemon,
    /// Nobody.
    Nobody,
}

/// Sets whom the GPU of a UUID lets at itself.
pub type Gate = Arc<dyn Fn(&str, Access) -> Result<(), String> + Send + Sync>;

/// Keeps the daemons of a machine.
pub struct Keeper {
    directory: PathBuf,
    program: OsString,
    gate: Gate,
    kept: BTreeMap<String, Kept>,
}

struct Kept {
    daemon: Daemon,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Kept {
    async fn end(self) {
        self.stop.send_replace(true);
        let _ = self.task.await;
    }
}

impl Keeper {
    /// Keeps none yet. `directory` is the one that the plugin's answers name.
    pub fn new(directory: impl Into<PathBuf>, gate: Gate) -> Self {
        let directory = directory.into();
        Self { directory, program: PROGRAM.into(), gate, kept: BTreeMap::new() }
    }

    /// With another program than NVIDIA's.
    #[must_use]
    pub fn with_program(self, program: impl Into<OsString>) -> Self {
        Self { program: program.into(), ..self }
    }

    /// Keeps these daemons and no others. One that stays as it is goes on without a break.
    pub async fn follow(&mut self, needed: Vec<Daemon>) {
        let is_needed = |kept: &Kept| needed.contains(&kept.daemon);
        let over: Vec<String> = (self.kept.iter())
            .filter(|(_, kept)| !is_needed(kept))
            .map(|(uuid, _)| uuid.clone())
            .collect();
        for uuid in over {
            if let Some(kept) = self.kept.remove(&uuid) {
                kept.end().await;
            }
        }
        for daemon in needed {
            if self.kept.contains_key(&daemon.uuid) {
                continue;
            }
            let (stop, stopped) = watch::channel(false);
            let care = Care {
                daemon: daemon.clone(),
                directory: self.directory.clone(),
                program: self.program.clone(),
                gate: Arc::clone(&self.gate),
                stopped,
            };
            let task = tokio::spawn(care.keep());
            self.kept.insert(daemon.uuid.clone(), Kept { daemon, stop, task });
        }
    }

    /// Ends all daemons, and with them their clients.
    pub async fn stop(self) {
        futures::future::join_all(self.kept.into_values().map(Kept::end)).await;
    }
}

/// What is done for one daemon.
struct Care {
    daemon: Daemon,
    directory: PathBuf,
    program: OsString,
    gate: Gate,
    stopped: watch::Receiver<bool>,
}

impl Care {
    /// Until told to stop.
    async fn keep(mut self) {
        let uuid = self.daemon.uuid.clone();
        let mut pause = PAUSE;
        while !*self.stopped.borrow() {
            let ran = self.run().await;
            if !*self.stopped.borrow() {
                self.let_in(Access::Nobody);
            }
            match ran {
                Ok(()) => {
                    pause = PAUSE;
                    if !*self.stopped.borrow() {
                        warn!(uuid, "the MPS daemon has ended, and is started again");
                    }
                }
                Err(error) => {
                    warn!(uuid, %error, "the MPS daemon does not run; shares of its GPU are not handed out");
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = self.stopped.wait_for(|stopped| *stopped) => {}
            }
        }
        self.let_in(Access::Everybody);
    }

    /// A GPU that is on offer in other ways, too, lets everybody in at all times.
    fn let_in(&self, access: Access) {
        if self.daemon.alone
            && let Err(why) = (self.gate)(&self.daemon.uuid, access)
        {
            warn!(
                uuid = self.daemon.uuid,
                why,
                ?access,
                "the GPU's compute mode cannot be set: programs that do without MPS are not kept from it"
            );
        }
    }

    /// Runs the daemon once, or goes on with one that runs.
    async fn run(&mut self) -> io::Result<()> {
        let pipes = pipes(&self.directory, &self.daemon.uuid);
        let logs = self.directory.join(&self.daemon.uuid).join("log");
        std::fs::create_dir_all(&pipes)?;
        std::fs::create_dir_all(&logs)?;
        if self.tell(&pipes, "get_server_list\n").await.is_ok() {
            return self.go_on(&pipes).await;
        }
        let control = pipes.join("control");
        // What a daemon that was killed left there would look like one that listens.
        match std::fs::remove_file(&control) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.let_in(Access::Nobody);
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
        let listens = tokio::time::timeout(PATIENCE, async {
            while !control.exists() {
                tokio::time::sleep(LOOK).await;
            }
        });
        tokio::select! {
            ended = child.wait() => return Err(ended_early(&ended?)),
            listens = listens => if listens.is_err() {
                child.kill().await?;
                return Err(io::Error::other("it did not listen within ten seconds"));
            }
        }
        self.limit(&pipes).await?;
        self.let_in(Access::Daemon);
        let _alive = Alive::show(&self.directory, &self.daemon.uuid)?;
        info!(
            uuid = self.daemon.uuid,
            threads = self.daemon.threads.percent(),
            memory_mib = self.daemon.memory_bytes / MIB,
            "the MPS daemon runs"
        );
        tokio::select! {
            ended = child.wait() => return ended.map(drop),
            _ = self.stopped.wait_for(|stopped| *stopped) => {}
        }
        self.quit(&pipes).await;
        if tokio::time::timeout(PATIENCE, child.wait()).await.is_err() {
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
        command.spawn().map_err(|error| self.not_started(&error))
    }

    /// Watches over a daemon that runs already.
    async fn go_on(&mut self, pipes: &Path) -> io::Result<()> {
        self.limit(pipes).await?;
        self.let_in(Access::Daemon);
        let _alive = Alive::show(&self.directory, &self.daemon.uuid)?;
        info!(uuid = self.daemon.uuid, "an MPS daemon ran already, and is kept");
        while self.tell(pipes, "get_server_list\n").await.is_ok() {
            let told = self.stopped.wait_for(|stopped| *stopped);
            if tokio::time::timeout(LOOK_AT_OTHERS, told).await.is_ok() {
                self.quit(pipes).await;
                break;
            }
        }
        Ok(())
    }

    /// Tells the daemon its limits: for servers to come, and for clients to come of those that run.
    async fn limit(&self, pipes: &Path) -> io::Result<()> {
        let threads = self.daemon.threads.percent();
        let memory = format!("{}M", self.daemon.memory_bytes / MIB);
        let mut orders = format!(
            "set_default_active_thread_percentage {threads}\n\
             set_default_device_pinned_mem_limit 0 {memory}\n"
        );
        for server in self.tell(pipes, "get_server_list\n").await?.split_whitespace() {
            orders += &format!(
                "set_active_thread_percentage {server} {threads}\n\
                 set_device_pinned_mem_limit {server} 0 {memory}\n"
            );
        }
        self.tell(pipes, &orders).await.map(drop)
    }

    async fn quit(&self, pipes: &Path) {
        if let Err(error) = self.tell(pipes, "quit\n").await {
            warn!(uuid = self.daemon.uuid, %error, "the MPS daemon does not take orders");
        }
    }

    /// Gives the daemon orders; what it answers to them.
    async fn tell(&self, pipes: &Path, orders: &str) -> io::Result<String> {
        let mut command = Command::new(&self.program);
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", pipes)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| self.not_started(&error))?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(orders.as_bytes()).await?;
        }
        let answered = tokio::time::timeout(PATIENCE, child.wait_with_output()).await;
        let answer = answered.map_err(|_| io::Error::other("no answer within ten seconds"))??;
        if answer.status.success() {
            Ok(String::from_utf8_lossy(&answer.stdout).into_owned())
        } else {
            Err(ended_early(&answer.status))
        }
    }

    fn not_started(&self, error: &io::Error) -> io::Error {
        let what = format!(
            "{}: {error}; it comes with NVIDIA's driver, and into containers with \
             NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            self.program.display()
        );
        io::Error::new(error.kind(), what)
    }
}

fn ended_early(status: &std::process::ExitStatus) -> io::Error {
    io::Error::other(format!("it ended at once ({status})"))
}
