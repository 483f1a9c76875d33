//! Replicas of the scheduler, each a process with a connection and a clock of its own.
//!
//! Owns their lives, and finding out which of them leads. Must not know why they die.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use berth_control::install::{self, InstallOptions};
use berth_testbed::{Process, Proxy, Repeater, Testbed};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::Api;

use super::NAMESPACE;
use super::metrics::{self, ReplicaMetrics};

/// A library that shows processes another time than it is (Debian's `libfaketime`).
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// One of them.
pub(crate) struct Replica {
    pub(crate) process: Process,
    pub(crate) proxy: Proxy,
    life: Life,
}

/// What outlives its process.
struct Life {
    number: usize,
    kubeconfig: PathBuf,
    port: u16,
    log: PathBuf,
    /// Says by how much its clock is wrong.
    clock: PathBuf,
}

/// All of them.
pub(crate) struct Replicas {
    all: Vec<Replica>,
    repeater: Repeater,
    /// Bindings that were counted by processes that are no more.
    counted: u64,
    program: PathBuf,
    leases: Api<Lease>,
}

impl Life {
    fn begin(&self, program: &Path) -> anyhow::Result<Process> {
        let mut command = Command::new(program);
        command.arg("serve").arg("--kubeconfig").arg(&self.kubeconfig);
        command.args(["--identity", &format!("replica-{}", self.number)]);
        command.args(["--listen", &format!("127.0.0.1:{}", self.port)]);
        // As short as a slow machine bears: there is a new leader every few seconds.
        command.args(["--lease-duration-ms", "3000", "--renew-deadline-ms", "2000"]);
        command.args(["--lease-retry-ms", "250"]);
        if clocks_can_be_moved() {
            command.env("LD_PRELOAD", FAKETIME).env("FAKETIME_TIMESTAMP_FILE", &self.clock);
            // Only the time of day jumps. A clock that counts from the start of the machine never does.
            command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("FAKETIME_CACHE_DURATION", "1");
        }
        Process::start("berth", &mut command, &self.log)
    }
}

/// Whether this machine has what moves clocks of processes.
pub(crate) fn clocks_can_be_moved() -> bool {
    Path::new(FAKETIME).is_file()
}

impl Replica {
    /// Makes its clock wrong by so much.
    pub(crate) fn set_clock(&self, by_s: i64) -> anyhow::Result<()> {
        let clock = &self.life.clock;
        // Renamed into its place: whoever reads it sees all of it.
        let new = clock.with_extension("new");
        std::fs::write(&new, format!("{by_s:+}"))?;
        std::fs::rename(&new, clock).with_context(|| format!("{} is not set", clock.display()))
    }
}

impl Replicas {
    pub(crate) async fn start(
        testbed: &Testbed,
        program: &Path,
        count: usize,
    ) -> anyhow::Result<Self> {
        let client: Client = testbed.admin().await?;
        // With the rights that are printed for it, and no others.
        let options = InstallOptions::default();
        testbed.apply(install::access(&options)).await?;
        testbed.apply(install::policies(&options)).await?;
        let token = testbed.token_of(NAMESPACE, install::NAME).await?;
        let repeater = testbed.repeater().await?;
        let mut all = Vec::new();
        for number in 0..count {
            let proxy = Proxy::start(repeater.address()).await?;
            let kubeconfig = testbed.in_the_clear(&token, proxy.address())?;
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
            let log = testbed.dir().join(format!("replica-{number}.log"));
            let clock = testbed.dir().join(format!("replica-{number}.clock"));
            std::fs::write(&clock, "+0")?;
            let life = Life { number, kubeconfig, port, log, clock };
            all.push(Replica { process: life.begin(program)?, proxy, life });
        }
        let leases = Api::namespaced(client, NAMESPACE);
        Ok(Self { all, repeater, counted: 0, program: program.to_owned(), leases })
    }

    pub(crate) fn all(&self) -> &[Replica] {
        &self.all
    }

    /// How many events of watches were told twice.
    pub(crate) fn repeated(&self) -> u64 {
        self.repeater.repeated()
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
    pub(crate) async fn kill(&mut self, number: usize) -> anyhow::Result<()> {
        let replica = self.all.get_mut(number).context("there is no such replica")?;
        self.counted +=
            ReplicaMetrics::scrape(replica.life.port).await.map_or(0, |metrics| metrics.bound());
        replica.process.kill();
        replica.process = replica.life.begin(&self.program)?;
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

    /// What the metrics of those that live show, and what is wrong with them if so many bindings were made.
    pub(crate) async fn figures(&self, made: u64) -> (String, Vec<String>) {
        let (mut text, mut counted, mut leaders) = (String::new(), self.counted, 0);
        for (number, replica) in self.all.iter().enumerate() {
            text.push_str(&format!("  replica {number}\n"));
            match ReplicaMetrics::scrape(replica.life.port).await {
                Ok(metrics) => {
                    counted += metrics.bound();
                    leaders += usize::from(metrics.leads());
                    metrics.shown().for_each(|line| text.push_str(&format!("    {line}\n")));
                }
                Err(error) => text.push_str(&format!("    {error:#}\n")),
            }
        }
        text.push_str(&format!("  all that ever ran: {counted} bindings counted\n"));
        (text, metrics::inconsistencies(counted, leaders, made))
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
