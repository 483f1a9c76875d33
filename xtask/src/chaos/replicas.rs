//! Replicas of the scheduler, each a process with a connection of its own to the API server.
//!
//! Owns their lives, and finding out which of them leads. Must not know why they die.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use berth_control::install::{self, InstallOptions};
use berth_testbed::{Process, Proxy, Testbed};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::Api;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::NAMESPACE;

/// What the end of a run wants to know of each replica.
const FIGURES: &[&str] = &[
    "berth_leader ",
    "berth_leader_transitions_total",
    "berth_bindings_total",
    "berth_fenced_pods_total",
    "berth_watch_relists_total",
    "berth_watch_errors_total",
    "berth_watch_skipped_objects_total",
];

/// One of them.
pub(crate) struct Replica {
    pub(crate) process: Process,
    pub(crate) proxy: Proxy,
    kubeconfig: PathBuf,
    port: u16,
    log: PathBuf,
}

/// All of them.
pub(crate) struct Replicas {
    all: Vec<Replica>,
    program: PathBuf,
    leases: Api<Lease>,
}

fn start_process(
    program: &Path,
    number: usize,
    (kubeconfig, port, log): (&Path, u16, &Path),
) -> anyhow::Result<Process> {
    let mut command = Command::new(program);
    command.arg("serve").arg("--kubeconfig").arg(kubeconfig);
    command.args(["--identity", &format!("replica-{number}")]);
    command.args(["--listen", &format!("127.0.0.1:{port}")]);
    // As short as a slow machine bears: there is a new leader every few seconds.
    command.args(["--lease-duration-ms", "3000", "--renew-deadline-ms", "2000"]);
    command.args(["--lease-retry-ms", "250"]);
    Process::start("berth", &mut command, log)
}

impl Replicas {
    pub(crate) async fn start(
        testbed: &Testbed,
        program: &Path,
        count: usize,
    ) -> anyhow::Result<Self> {
        let client: Client = testbed.admin().await?;
        // With the rights that are printed for it, and no others.
        testbed.apply(install::access(&InstallOptions::default())).await?;
        let token = testbed.token_of(NAMESPACE, install::NAME).await?;
        let mut all = Vec::new();
        for number in 0..count {
            let proxy = Proxy::start(testbed.address()).await?;
            let kubeconfig = testbed.kubeconfig(&token, Some(&proxy))?;
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
            let log = testbed.dir().join(format!("replica-{number}.log"));
            let process = start_process(program, number, (&kubeconfig, port, &log))?;
            all.push(Replica { process, proxy, kubeconfig, port, log });
        }
        let leases = Api::namespaced(client, NAMESPACE);
        Ok(Self { all, program: program.to_owned(), leases })
    }

    pub(crate) fn all(&self) -> &[Replica] {
        &self.all
    }

    /// Who holds the Lease now, by its own name.
    async fn holder(&self) -> Option<String> {
        let asked = tokio::time::timeout(Duration::from_secs(2), self.leases.get_opt("berth"));
        asked.await.ok()?.ok()??.spec?.holder_identity.filter(|holder| !holder.is_empty())
    }

    /// Waits for a leader other than the one named, for a while, and gives its number and name.
    pub(crate) async fn leader(&self, other_than: Option<&str>) -> Option<(usize, String)> {
        for _ in 0..150 {
            if let Some(holder) = self.holder().await
                && Some(&*holder) != other_than
                && let Some(number) = number_of(&holder).filter(|number| *number < self.all.len())
            {
                return Some((number, holder));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        None
    }

    /// Kills a replica, as a node does that runs out of memory; another process takes its place.
    pub(crate) fn kill(&mut self, number: usize) -> anyhow::Result<()> {
        let replica = self.all.get_mut(number).context("there is no such replica")?;
        replica.process.kill();
        let with = (&*replica.kubeconfig, replica.port, &*replica.log);
        replica.process = start_process(&self.program, number, with)?;
        Ok(())
    }

    /// Those that have ended by themselves, which none should.
    pub(crate) fn ended(&mut self) -> Vec<String> {
        let all = self.all.iter_mut().enumerate();
        all.filter_map(|(number, replica)| {
            let end = replica.process.ended()?;
            Some(format!("replica {number} ended with {end}:\n{}", replica.process.tail()))
        })
        .collect()
    }

    /// What the metrics of those that live say.
    pub(crate) async fn figures(&self) -> String {
        let mut text = String::new();
        for (number, replica) in self.all.iter().enumerate() {
            let said = metrics(replica.port).await.unwrap_or_else(|error| error.to_string());
            text.push_str(&format!("  replica {number}\n"));
            let lines = said.lines().filter(|line| {
                FIGURES.iter().any(|figure| line.starts_with(figure)) && !line.ends_with(" 0")
            });
            lines.for_each(|line| text.push_str(&format!("    {line}\n")));
        }
        text
    }

    /// The ends of their logs.
    pub(crate) fn tails(&self) -> Vec<String> {
        self.all.iter().map(|replica| replica.process.tail()).collect()
    }
}

/// `replica-2_0123456789abcdef` is number 2.
fn number_of(holder: &str) -> Option<usize> {
    holder.strip_prefix("replica-")?.split('_').next()?.parse().ok()
}

async fn metrics(port: u16) -> anyhow::Result<String> {
    let asked = async {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        anyhow::Ok(answer)
    };
    tokio::time::timeout(Duration::from_secs(5), asked).await?
}
