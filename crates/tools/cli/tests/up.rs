//! `berth up` as its users start it: what it keeps, which nodes it has, what it shows.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "support/cluster.rs"]
mod cluster;

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use berth_testbed::Target;
use cluster::Cluster;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;

/// One node with two GPUs.
const CLUSTER: &str = "\
apiVersion: berth.dev/v1alpha1
kind: Scenario
metadata: {name: small}
spec:
  cluster:
    pools:
    - name: only
      count: 1
      machine: {sockets: 1, coresPerNuma: 8, threadsPerCore: 2, memoryPerNuma: 64Gi}
      gpus: {product: NVIDIA-L4, count: 2, memory: 24Gi}
";

async fn client(kubeconfig: &Path) -> Client {
    let read = Kubeconfig::read_from(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    Client::try_from(Config::from_custom_kubeconfig(read, &options).await.unwrap()).unwrap()
}

fn pod(name: &str, gpus: u32) -> Pod {
    let limits = json!({ "cpu": "1", "memory": "1Gi", "nvidia.com/gpu": gpus.to_string() });
    let container = json!({ "name": "c", "image": "model:1", "resources": { "limits": limits } });
    let pod = json!({ "metadata": { "name": name }, "spec": { "containers": [container] } });
    serde_json::from_value(pod).unwrap()
}

async fn until<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(done) = attempt().await {
            return done;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{what} does not happen");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_a_kill_and_placed_once() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(at("cluster.yaml"), CLUSTER).unwrap();
    let arguments = ["--data", &at("data"), "--cluster", &at("cluster.yaml")];
    let kubeconfig = directory.path().join("kubeconfig");
    let first = Cluster::start(&kubeconfig, &arguments);
    let connected = client(&kubeconfig).await;
    let nodes = Api::<Node>::all(connected.clone()).list(&ListParams::default()).await.unwrap();
    assert_eq!(nodes.items.len(), 1);
    let pods: Api<Pod> = Api::default_namespaced(connected);
    pods.create(&PostParams::default(), &pod("one", 1)).await.unwrap();
    let runs = until("the pod runs", async || {
        Some(pods.get("one").await.unwrap()).filter(|pod| phase(pod) == "Running")
    });
    let before = runs.await;
    drop(first);

    let _second = Cluster::start(&kubeconfig, &arguments);
    let pods: Api<Pod> = Api::default_namespaced(client(&kubeconfig).await);
    let after = pods.get("one").await.unwrap();
    let place = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    assert_eq!(after.metadata.uid, before.metadata.uid);
    assert_eq!(place(&after), place(&before));
    // One GPU is taken: of two more pods with one each, one waits.
    for name in ["two", "three"] {
        pods.create(&PostParams::default(), &pod(name, 1)).await.unwrap();
    }
    until("one of both runs, and the other is told why it does not", async || {
        let all = pods.list(&ListParams::default()).await.unwrap().items;
        let running = all.iter().filter(|pod| phase(pod) == "Running").count();
        let told = all.iter().flat_map(|pod| pod.status.iter().flat_map(|it| &it.conditions));
        let told = told.flatten().any(|one| one.reason.as_deref() == Some("Unschedulable"));
        (running == 2 && told).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_restart_without_cluster_keeps_the_nodes_that_there_are() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(at("cluster.yaml"), CLUSTER).unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    drop(Cluster::start(&kubeconfig, &["--data", &at("data"), "--cluster", &at("cluster.yaml")]));
    let _second = Cluster::start(&kubeconfig, &["--data", &at("data")]);
    let nodes: Api<Node> = Api::all(client(&kubeconfig).await);
    let names: Vec<_> = nodes.list(&ListParams::default()).await.unwrap().items;
    let names: Vec<_> = names.into_iter().filter_map(|node| node.metadata.name).collect();
    assert_eq!(names, ["only-0"]);
}

#[tokio::test]
async fn metrics_are_shown_where_it_is_told_to() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let _cluster = Cluster::start(&kubeconfig, &["--listen", &free.to_string()]);
    let config = Config::new(format!("http://{free}").parse().unwrap());
    let shown = Client::try_from(config).unwrap();
    until("it leads", async || {
        let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
        let text = shown.request_text(request).await.ok()?;
        text.lines().any(|line| line == "berth_leader 1").then_some(())
    })
    .await;
    let state = http::Request::get("/api/v1/state").body(Vec::new()).unwrap();
    let refused = shown.request_text(state).await.unwrap_err().to_string();
    assert!(refused.contains("Unauthorized"), "without a token: {refused}");
}

#[tokio::test]
async fn the_webhook_denies_what_breaks_the_contract_and_is_asked_no_more_when_it_is_off() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(at("cluster.yaml"), CLUSTER).unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    let arguments = ["--data", &at("data"), "--cluster", &at("cluster.yaml")];
    let enforcing =
        Cluster::start(&kubeconfig, &[&arguments[..], &["--webhook", "enforce"]].concat());
    let pods: Api<Pod> = Api::default_namespaced(client(&kubeconfig).await);
    // It takes GPUs that are accounted to nobody.
    let thief = || {
        let mut pod = serde_json::to_value(pod("thief", 0)).unwrap();
        pod["spec"]["containers"][0]["resources"] = json!({});
        pod["spec"]["containers"][0]["env"] =
            json!([{ "name": "NVIDIA_VISIBLE_DEVICES", "value": "all" }]);
        serde_json::from_value::<Pod>(pod).unwrap()
    };
    let refused = until("it is denied", async || {
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        pods.create(&dry, &thief()).await.err()
    })
    .await;
    let refused = refused.to_string();
    assert!(refused.contains("contract.berth.dev") && refused.contains("BERTH-"), "{refused}");
    pods.create(&PostParams::default(), &pod("honest", 1)).await.unwrap();
    drop(enforcing);

    let _without = Cluster::start(&kubeconfig, &arguments);
    let pods: Api<Pod> = Api::default_namespaced(client(&kubeconfig).await);
    pods.create(&PostParams::default(), &thief()).await.unwrap();
}

/// The code and the body of an answer.
fn parts(answer: &str) -> (u16, String) {
    let code = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (code, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

/// Asks in the clear.
fn get(at: &str, path: &str, headers: &str) -> (u16, String) {
    let mut stream = std::net::TcpStream::connect(at).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    parts(&answer)
}

#[tokio::test]
async fn pages_of_other_sites_and_clients_without_the_token_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    // An earlier file that all may read.
    std::fs::write(&kubeconfig, "{}").unwrap();
    std::fs::set_permissions(&kubeconfig, std::fs::Permissions::from_mode(0o644)).unwrap();
    let view = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let _cluster = Cluster::start(&kubeconfig, &["--listen", &view]);
    let mode = std::fs::metadata(&kubeconfig).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let written = std::fs::read_to_string(&kubeconfig).unwrap();
    let written: serde_json::Value = serde_json::from_str(&written).unwrap();
    let cluster = &written["clusters"][0]["cluster"];
    let at = cluster["server"].as_str().unwrap().strip_prefix("https://").unwrap();
    let authority = cluster["certificate-authority-data"].as_str().unwrap();
    let authority = String::from_utf8(BASE64_STANDARD.decode(authority).unwrap()).unwrap();
    let target = Target::new(at.parse().unwrap(), &authority).unwrap();
    let send = async |request: String| {
        parts(&target.send(Ipv4Addr::LOCALHOST.into(), &request).await.unwrap())
    };
    let token = written["users"][0]["user"]["token"].as_str().unwrap();
    assert_eq!(token.len(), 64);
    let port = at.split_once(':').unwrap().1;
    let with_token = format!("authorization: Bearer {token}\r\n");
    let map = "{\"metadata\":{\"name\":\"m\"}}";
    let maps = "/api/v1/namespaces/default/configmaps";
    let post = async |headers: &str| {
        let length = format!("content-length: {}\r\n", map.len());
        let line = format!("POST {maps} HTTP/1.1\r\nconnection: close\r\n");
        send(format!("{line}{length}{headers}\r\n{map}")).await
    };
    let see = async |path: &str, headers: &str| {
        send(format!("GET {path} HTTP/1.1\r\nconnection: close\r\n{headers}\r\n")).await
    };
    let host = format!("host: localhost:{port}\r\n");
    let json = "content-type: application/json\r\n";
    for (headers, code, why) in [
        (format!("host: evil.example:{port}\r\n{json}{with_token}"), 403, "evil.example"),
        (format!("{host}{json}"), 401, "Unauthorized"),
        (format!("{host}{json}authorization: Bearer guess\r\n"), 401, "Unauthorized"),
        (format!("{host}origin: https://evil.example\r\n{json}{with_token}"), 403, "cross-site"),
        (format!("{host}sec-fetch-site: cross-site\r\n{json}{with_token}"), 403, "cross-site"),
        (format!("{host}{with_token}"), 415, "UnsupportedMediaType"),
        (format!("{host}content-type: text/plain\r\n{with_token}"), 415, "UnsupportedMediaType"),
    ] {
        let (seen, body) = post(&headers).await;
        assert_eq!(seen, code, "{headers}: {body}");
        assert!(body.contains("\"kind\":\"Status\"") && body.contains(why), "{headers}: {body}");
    }
    let (code, body) = see(maps, &format!("{host}{with_token}")).await;
    assert!(code == 200 && !body.contains("\"name\":\"m\""), "nothing was made: {body}");
    assert_eq!(post(&format!("{host}{json}{with_token}")).await.0, 201);
    for path in ["/healthz", "/livez", "/readyz", "/version"] {
        assert_eq!(see(path, &host).await.0, 200, "{path}");
    }
    for path in ["/", "/api", "/apis", "/openapi/v3", maps] {
        assert_eq!(see(path, &host).await.0, 401, "{path}");
    }
    // The view: the same token may see it, and it has the same names.
    let host = format!("host: {view}\r\n");
    assert_eq!(get(&view, "/api/v1/state", &format!("{host}{with_token}")).0, 200);
    assert_eq!(get(&view, "/api/v1/state", &host).0, 401);
    for path in ["/metrics", "/healthz", "/api/v1/state"] {
        let foreign = get(&view, path, &format!("host: evil.example\r\n{with_token}"));
        assert_eq!(foreign.0, 403, "{path}: {}", foreign.1);
        let foreign = get(&view, path, &format!("{host}origin: http://evil.example\r\n"));
        assert_eq!(foreign.0, 403, "{path}: {}", foreign.1);
    }
}
