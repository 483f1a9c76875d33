//! A real kube-apiserver above a real etcd.
//!
//! Owns both processes, their arguments, and what can be done to them. Must not know what they are used
//! for.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::certificates::Certificates;
use crate::history::{self, Change};
use crate::kubeconfig;
use crate::process::Process;

/// The token of an administrator.
pub(crate) const ADMIN: &str = "testbed-admin";

/// A machine with other work to do takes its time.
const READY: Duration = Duration::from_secs(120);

/// Between two looks at whether somebody is ready.
const LOOK: Duration = Duration::from_millis(50);

/// Where the programs are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assets {
    /// `kube-apiserver`.
    pub api_server: PathBuf,
    /// `etcd`.
    pub etcd: PathBuf,
    /// The directory of both.
    pub dir: PathBuf,
}

/// Finds kube-apiserver and etcd: where `KUBEBUILDER_ASSETS` points, or in `/usr/local/kubebuilder/bin`.
pub fn real_assets() -> Option<Assets> {
    let named = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    let usual = PathBuf::from("/usr/local/kubebuilder/bin");
    named.into_iter().chain([usual]).find_map(|dir| {
        let assets = Assets { api_server: dir.join("kube-apiserver"), etcd: dir.join("etcd"), dir };
        (assets.api_server.is_file() && assets.etcd.is_file()).then_some(assets)
    })
}

fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    Ok(listener.local_addr()?.port())
}

/// The two processes.
#[derive(Debug)]
pub struct Real {
    assets: Assets,
    dir: PathBuf,
    certificates: Certificates,
    etcd_port: u16,
    port: u16,
    etcd: Process,
    api_server: Option<Process>,
    options: Vec<String>,
}

impl Real {
    pub(crate) async fn start(
        assets: Assets,
        dir: &Path,
        options: &[String],
    ) -> anyhow::Result<Self> {
        let certificates = Certificates::make(dir)?;
        let tokens = format!("{ADMIN},admin,admin,system:masters\n");
        std::fs::write(dir.join("tokens.csv"), tokens)?;
        let (etcd_port, peer_port) = (free_port()?, free_port()?);
        let etcd = start_etcd(&assets, dir, etcd_port, peer_port)?;
        let mut real = Self {
            assets,
            dir: dir.to_owned(),
            certificates,
            etcd_port,
            port: free_port()?,
            etcd,
            api_server: None,
            options: options.to_vec(),
        };
        real.wait_for_etcd().await?;
        real.start_api_server().await?;
        Ok(real)
    }

    /// Where the API server listens, also after a restart.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// The processes of the API: etcd, and the API server while it runs.
    pub fn processes(&self) -> impl Iterator<Item = u32> {
        std::iter::once(&self.etcd).chain(&self.api_server).map(Process::id)
    }

    pub(crate) fn authority(&self) -> &Path {
        &self.certificates.authority
    }

    async fn wait_for_etcd(&mut self) -> anyhow::Result<()> {
        let began = Instant::now();
        while self.etcd_call("/v3/maintenance/status", "{}").await.is_err() {
            if let Some(end) = self.etcd.ended() {
                bail!("etcd ended with {end}:\n{}", self.etcd.tail());
            }
            if began.elapsed() > READY {
                bail!("etcd is not ready after {READY:?}:\n{}", self.etcd.tail());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Starts the API server and waits until it is ready. Does nothing while one runs.
    ///
    /// # Errors
    /// When it does not become ready; the end of its log is told.
    pub async fn start_api_server(&mut self) -> anyhow::Result<()> {
        if self.api_server.as_mut().is_some_and(|process| process.ended().is_none()) {
            return Ok(());
        }
        let mut command = self.api_server_command();
        let log = self.dir.join("kube-apiserver.log");
        let process = self.api_server.insert(Process::start("kube-apiserver", &mut command, &log)?);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let client = kubeconfig::client(address, &self.certificates.authority, ADMIN).await?;
        let began = Instant::now();
        loop {
            if let Some(end) = process.ended() {
                bail!("kube-apiserver ended with {end}:\n{}", process.tail());
            }
            let missing = match check_ready(&client).await {
                Ok(()) => return Ok(()),
                Err(missing) => missing,
            };
            if began.elapsed() > READY {
                bail!("kube-apiserver is not ready: {missing}:\n{}", process.tail());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn api_server_command(&self) -> Command {
        let mut command = Command::new(&self.assets.api_server);
        let path = |path: &Path| path.display().to_string();
        let flags = [
            ("etcd-servers", format!("http://127.0.0.1:{}", self.etcd_port)),
            ("bind-address", "127.0.0.1".to_owned()),
            ("secure-port", self.port.to_string()),
            ("cert-dir", path(&self.dir)),
            ("tls-cert-file", path(&self.certificates.server)),
            ("tls-private-key-file", path(&self.certificates.server_key)),
            ("token-auth-file", path(&self.dir.join("tokens.csv"))),
            ("service-account-issuer", "https://kubernetes.default.svc".to_owned()),
            ("service-account-key-file", path(&self.certificates.accounts_public)),
            ("service-account-signing-key-file", path(&self.certificates.accounts_key)),
            ("service-cluster-ip-range", "10.0.0.0/24".to_owned()),
            ("authorization-mode", "RBAC".to_owned()),
            ("allow-privileged", "true".to_owned()),
            // Nobody here makes the service accounts that it wants every pod to have.
            ("disable-admission-plugins", "ServiceAccount".to_owned()),
            ("max-requests-inflight", "2000".to_owned()),
            ("max-mutating-requests-inflight", "1000".to_owned()),
            // Nothing waits at the end of a test.
            ("shutdown-delay-duration", "0s".to_owned()),
        ];
        command.args(flags.map(|(name, value)| format!("--{name}={value}")));
        command.args(&self.options);
        command
    }

    /// Ends the API server at once.
    pub fn kill_api_server(&mut self) {
        self.api_server = None;
    }

    /// Asks the API server to end, as an upgrade does, and waits until it has.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn stop_api_server(&mut self) -> anyhow::Result<()> {
        let Some(mut process) = self.api_server.take() else { return Ok(()) };
        process.signal("TERM")?;
        let began = Instant::now();
        while process.ended().is_none() {
            if began.elapsed() > READY {
                bail!("kube-apiserver does not end:\n{}", process.tail());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Holds etcd still.
    ///
    /// # Errors
    /// When it is gone.
    pub fn pause_etcd(&self) -> anyhow::Result<()> {
        self.etcd.signal("STOP")
    }

    /// Lets etcd go on.
    ///
    /// # Errors
    /// When it is gone.
    pub fn resume_etcd(&self) -> anyhow::Result<()> {
        self.etcd.signal("CONT")
    }

    /// Makes etcd forget all but the newest version of everything: whoever watches from an older one is
    /// told that it is gone.
    ///
    /// # Errors
    /// When etcd does not answer.
    pub async fn compact(&self) -> anyhow::Result<()> {
        let status = self.etcd_call("/v3/kv/range", r#"{"key":"AA=="}"#).await?;
        let status: serde_json::Value = serde_json::from_str(&status)?;
        let revision = status["header"]["revision"].as_str().unwrap_or_default();
        let body = format!(r#"{{"revision":"{revision}","physical":true}}"#);
        self.etcd_call("/v3/kv/compaction", &body).await.map(drop)
    }

    /// Everything that was and will be written under a prefix of etcd's keys, in order, as far as it
    /// begins with one of `wanted`, such as `/registry/pods/`. Needs [`AS_JSON`](crate::AS_JSON). An error
    /// is the last thing that is told.
    pub fn history(
        &self,
        prefix: &str,
        wanted: &'static [&'static str],
    ) -> mpsc::UnboundedReceiver<anyhow::Result<Change>> {
        history::follow(self.etcd_port, prefix, wanted)
    }

    /// Asks etcd by its JSON gateway, and gives the answer's body.
    async fn etcd_call(&self, path: &str, body: &str) -> anyhow::Result<String> {
        let asked = async {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.etcd_port)).await?;
            let length = body.len();
            let request = format!(
                "POST {path} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}"
            );
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            std::io::Result::Ok(answer)
        };
        let answer = tokio::time::timeout(Duration::from_secs(10), asked).await??;
        match answer.split_once("\r\n\r\n") {
            Some((head, body)) if head.contains(" 200 ") => Ok(body.to_owned()),
            _ => bail!("etcd answered: {answer}"),
        }
    }

    /// What runs.
    pub fn versions(&self) -> String {
        let first = |program: &Path| {
            let said = Command::new(program).arg("--version").output().ok();
            let said = said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned());
            said.and_then(|said| said.lines().next().map(str::to_owned)).unwrap_or_default()
        };
        let api_server = first(&self.assets.api_server).replace("Kubernetes ", "kube-apiserver ");
        let etcd = first(&self.assets.etcd).replace("etcd Version:", "etcd");
        format!("{api_server}, {etcd}")
    }
}

fn start_etcd(assets: &Assets, dir: &Path, port: u16, peer_port: u16) -> anyhow::Result<Process> {
    let [client, peer] = [port, peer_port].map(|port| format!("http://127.0.0.1:{port}"));
    let mut command = Command::new(&assets.etcd);
    command.arg("--data-dir").arg(dir.join("etcd"));
    command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.args(["--initial-cluster", &format!("default={peer}")]);
    // Nothing here has to survive the machine. Only etcd 3.5 and later have this.
    let help = Command::new(&assets.etcd).arg("--help").output();
    let knows = |flag: &str| {
        help.as_ref().is_ok_and(|said| String::from_utf8_lossy(&said.stdout).contains(flag))
    };
    if knows("unsafe-no-fsync") {
        command.arg("--unsafe-no-fsync");
    }
    // Whoever starts us may have said how its own etcd is to be.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ETCD_") {
            command.env_remove(name);
        }
    }
    Process::start("etcd", &mut command, &dir.join("etcd.log"))
}

/// Asks until all is there; the error is what is missing.
async fn check_ready(client: &kube::Client) -> Result<(), String> {
    // The namespace is made a moment after everything else.
    for path in ["/readyz", "/api/v1/namespaces/default"] {
        let request = http::Request::get(path).body(Vec::new());
        let request = request.map_err(|error| error.to_string())?;
        let asked = tokio::time::timeout(Duration::from_secs(5), client.request_text(request));
        match asked.await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(format!("{path}: {error:?}")),
            Err(_) => return Err(format!("{path}: no answer")),
        }
    }
    Ok(())
}
