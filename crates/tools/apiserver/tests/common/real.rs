//! A real control plane for tests: etcd and kube-apiserver, where there are binaries of them.
//!
//! Looks in `KUBEBUILDER_ASSETS`, then in `/usr/local/kubebuilder/bin`. Everything lives in a
//! temporary directory and ends with the value.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kube::config::AuthInfo;
use kube::{Client, Config};

/// The token of a user that may do everything.
pub const ADMIN_TOKEN: &str = "admin-token";
/// The token of a user that may do nothing until a role says so.
pub const USER_TOKEN: &str = "alice-token";

const STARTS_WITHIN: Duration = Duration::from_secs(120);

/// A running etcd and kube-apiserver.
pub struct RealControlPlane {
    url: String,
    etcd: Child,
    api_server: Child,
    _directory: tempfile::TempDir,
}

/// Where the binaries are, if they are anywhere.
pub fn assets() -> Option<PathBuf> {
    let configured = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    let usual = PathBuf::from("/usr/local/kubebuilder/bin");
    [configured, Some(usual)]
        .into_iter()
        .flatten()
        .find(|path| path.join("kube-apiserver").exists() && path.join("etcd").exists())
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

fn spawn(program: &Path, log: &Path, arguments: &[String]) -> Child {
    let log = File::create(log).unwrap();
    Command::new(program)
        .args(arguments)
        .stdout(Stdio::from(log.try_clone().unwrap()))
        .stderr(Stdio::from(log))
        .spawn()
        .unwrap()
}

impl RealControlPlane {
    /// Starts one and waits until it is ready. None where there are no binaries.
    pub async fn start() -> Option<Self> {
        let assets = assets()?;
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let text = |name: &str| at(name).display().to_string();
        let (client, peer, secure) = (free_port(), free_port(), free_port());
        let etcd = spawn(
            &assets.join("etcd"),
            &at("etcd.log"),
            &[
                format!("--data-dir={}", text("etcd")),
                format!("--listen-client-urls=http://127.0.0.1:{client}"),
                format!("--advertise-client-urls=http://127.0.0.1:{client}"),
                format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
                "--unsafe-no-fsync".to_owned(),
            ],
        );
        let key = rcgen::KeyPair::generate().unwrap();
        std::fs::write(at("accounts.key"), key.serialize_pem()).unwrap();
        std::fs::write(at("accounts.pub"), key.public_key_pem()).unwrap();
        let tokens = format!(
            "{ADMIN_TOKEN},admin,admin,\"system:masters\"\n{USER_TOKEN},alice,alice,\"devs\"\n"
        );
        std::fs::write(at("tokens.csv"), tokens).unwrap();
        let api_server = spawn(
            &assets.join("kube-apiserver"),
            &at("kube-apiserver.log"),
            &[
                format!("--etcd-servers=http://127.0.0.1:{client}"),
                format!("--secure-port={secure}"),
                "--bind-address=127.0.0.1".to_owned(),
                format!("--cert-dir={}", text("certificates")),
                "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
                format!("--service-account-key-file={}", text("accounts.pub")),
                format!("--service-account-signing-key-file={}", text("accounts.key")),
                "--authorization-mode=RBAC".to_owned(),
                format!("--token-auth-file={}", text("tokens.csv")),
                "--disable-admission-plugins=ServiceAccount".to_owned(),
                "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            ],
        );
        let url = format!("https://127.0.0.1:{secure}");
        let plane = Self { url, etcd, api_server, _directory: directory };
        plane.wait_until_ready().await;
        Some(plane)
    }

    /// A client with a token.
    pub fn client(&self, token: &str) -> Client {
        let mut config = Config::new(self.url.parse().unwrap());
        config.accept_invalid_certs = true;
        config.auth_info = AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() };
        Client::try_from(config).unwrap()
    }

    async fn wait_until_ready(&self) {
        let client = self.client(ADMIN_TOKEN);
        let begun = Instant::now();
        loop {
            let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
            // Ready, and the namespace in which most tests work is there.
            let namespace =
                http::Request::get("/api/v1/namespaces/default").body(Vec::new()).unwrap();
            if client.request_text(request).await.is_ok()
                && client.request_text(namespace).await.is_ok()
            {
                return;
            }
            assert!(begun.elapsed() < STARTS_WITHIN, "the real API server did not start");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

impl Drop for RealControlPlane {
    fn drop(&mut self) {
        for child in [&mut self.api_server, &mut self.etcd] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
