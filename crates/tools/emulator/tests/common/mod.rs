//! API servers for tests: the embedded one, and a real one where its programs are on the machine.

#![allow(dead_code, reason = "every file of tests uses another part")]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use berth_emulator::kubelet::VIRTUAL;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

const ASSETS: &str = "/usr/local/kubebuilder/bin";

/// An API server that ends with the test.
pub(crate) struct Server {
    pub(crate) client: Client,
    /// Only a real one has to be ended.
    real: Option<Real>,
}

/// etcd and kube-apiserver.
struct Real {
    etcd: Child,
    apiserver: Child,
    data: TempDir,
}

impl Drop for Real {
    fn drop(&mut self) {
        for child in [&mut self.apiserver, &mut self.etcd] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The embedded API server.
pub(crate) async fn embedded() -> Option<Server> {
    let options =
        berth_apiserver::Options { empty_namespaces: false, ..berth_apiserver::Options::default() };
    let server = berth_apiserver::ApiServer::new(options).unwrap();
    Some(Server { client: Client::new(server.service(), "default"), real: None })
}

fn assets() -> Option<PathBuf> {
    let named = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    let found = named.unwrap_or_else(|| PathBuf::from(ASSETS));
    found.join("kube-apiserver").exists().then_some(found)
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn start(program: &Path, log: &Path, arguments: &[String]) -> Child {
    let log = std::fs::File::create(log).unwrap();
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::from(log))
        .spawn()
        .unwrap()
}

/// A real API server; `None` where there is none on the machine.
pub(crate) async fn real() -> Option<Server> {
    let Some(assets) = assets() else {
        eprintln!("skipped: no kube-apiserver in {ASSETS} or $KUBEBUILDER_ASSETS");
        return None;
    };
    let data = tempfile::tempdir().unwrap();
    let at = |name: &str| data.path().join(name).display().to_string();
    let key = rcgen::KeyPair::generate().unwrap();
    std::fs::write(at("sa.key"), key.serialize_pem()).unwrap();
    std::fs::write(at("sa.pub"), key.public_key_pem()).unwrap();
    std::fs::write(at("tokens.csv"), "secret,admin,admin,system:masters\n").unwrap();
    let (client_port, peer_port, port) = (free_port(), free_port(), free_port());
    let etcd_url = format!("http://127.0.0.1:{client_port}");
    let etcd = start(
        &assets.join("etcd"),
        &data.path().join("etcd.log"),
        &[
            format!("--data-dir={}", at("etcd")),
            format!("--listen-client-urls={etcd_url}"),
            format!("--advertise-client-urls={etcd_url}"),
            format!("--listen-peer-urls=http://127.0.0.1:{peer_port}"),
            "--unsafe-no-fsync".to_owned(),
            "--log-level=error".to_owned(),
        ],
    );
    let apiserver = start(
        &assets.join("kube-apiserver"),
        &data.path().join("apiserver.log"),
        &[
            format!("--etcd-servers={etcd_url}"),
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--cert-dir={}", at("certs")),
            format!("--service-account-key-file={}", at("sa.pub")),
            format!("--service-account-signing-key-file={}", at("sa.key")),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--token-auth-file={}", at("tokens.csv")),
            "--authorization-mode=RBAC".to_owned(),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            "--max-requests-inflight=3000".to_owned(),
            "--max-mutating-requests-inflight=1000".to_owned(),
        ],
    );
    let mut config = kube::Config::new(format!("https://127.0.0.1:{port}").parse().unwrap());
    config.accept_invalid_certs = true;
    // Else an eviction that is refused is asked for again until it is not.
    config.default_retry = false;
    config.auth_info.token = Some("secret".to_owned().into());
    let client = Client::try_from(config).unwrap();
    let server = Server { client, real: Some(Real { etcd, apiserver, data }) };
    let begin = Instant::now();
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(server.client.clone());
    loop {
        let default = namespaces.get_opt("default").await;
        if matches!(default, Ok(Some(_))) {
            return Some(server);
        }
        if begin.elapsed() > Duration::from_secs(60) {
            let data = server.real.as_ref().unwrap().data.path();
            let log = std::fs::read_to_string(data.join("apiserver.log")).unwrap_or_default();
            panic!("no API server after a minute: {default:?}\n{log}");
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// Binds every pod that waits to one of the virtual nodes, in turns.
pub(crate) async fn schedule_in_turns(client: Client) {
    let pods: Api<Pod> = Api::all(client.clone());
    let nodes: Api<Node> = Api::all(client.clone());
    let mut turn = 0;
    let unbound = watcher::Config::default().fields("spec.nodeName=");
    let mut events = std::pin::pin!(watcher(pods, unbound));
    while let Some(event) = events.next().await {
        let Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) = event else {
            continue;
        };
        let spec = pod.spec.as_ref().unwrap();
        if spec.node_name.is_some() || pod.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let listed = nodes.list(&ListParams::default().labels(&format!("{VIRTUAL}=true"))).await;
        let names: Vec<String> =
            listed.unwrap().items.into_iter().filter_map(|node| node.metadata.name).collect();
        if names.is_empty() {
            continue;
        }
        turn += 1;
        let _ = bind(&client, &pod, &names[turn % names.len()]).await;
    }
}

/// Binds a pod.
pub(crate) async fn bind(client: &Client, pod: &Pod, node: &str) -> Result<(), kube::Error> {
    let namespace = pod.metadata.namespace.as_deref().unwrap();
    let name = pod.metadata.name.as_deref().unwrap();
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": { "name": name, "namespace": namespace },
        "target": { "apiVersion": "v1", "kind": "Node", "name": node },
    });
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let answer: Result<Value, _> =
        pods.create_subresource("binding", name, &PostParams::default(), &binding).await;
    answer.map(|_| ())
}

/// Asks again and again until the answer is there, or says what it was last.
pub(crate) async fn eventually<T, Ask, Answer>(what: &str, ask: Ask) -> T
where
    Ask: Fn() -> Answer,
    Answer: Future<Output = Result<T, String>>,
{
    let begin = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(last) if begin.elapsed() > Duration::from_secs(60) => {
                panic!("{what}: not within a minute; last: {last}")
            }
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}
