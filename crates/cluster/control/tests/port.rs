//! The port with TLS under attack: what it holds stays bounded, and others are answered.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use axum_server::tls_rustls::RustlsConfig;
use berth_control::certificates::{Generation, server_config};
use berth_control::metrics::Metrics;
use berth_control::port::{Limits, Port, listen};
use berth_control::webhook::{ContextFeed, Settings, Webhook};
use berth_testbed::Target;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Mutex;

const MIB: u64 = 1 << 20;
/// A slow body.
const BODY_BYTES: usize = 3 << 20;

/// Memory is of the process, so attacks come one after the other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

fn address(last: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, last).into()
}

/// The webhook on a port with TLS.
fn webhook() -> (Target, Metrics) {
    let metrics = Metrics::new();
    let feed = ContextFeed::default();
    let webhook = Webhook::new(Settings::default(), feed, metrics.clone()).unwrap();
    let made = Generation::make(&["localhost".to_owned()], jiff::Timestamp::now()).unwrap();
    let config = server_config(made.certificate.as_bytes(), made.key.as_bytes()).unwrap();
    let listener = listen((address(1), 0).into()).unwrap();
    let target = Target::new(listener.local_addr().unwrap(), &made.ca).unwrap();
    let port = Port { name: "https", limits: Limits::TLS, metrics: metrics.clone() };
    let tls = RustlsConfig::from_config(config);
    tokio::spawn(port.serve_tls(listener, tls, webhook.router(), std::future::pending()));
    (target, metrics)
}

fn review() -> Vec<u8> {
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p" },
                      "spec": { "containers": [{ "name": "c", "image": "i:1" }] } });
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": { "uid": "u", "kind": { "group": "", "version": "v1", "kind": "Pod" },
                     "namespace": "n", "operation": "CREATE", "object": pod },
    })
    .to_string()
    .into_bytes()
}

/// A sample of the metrics; 0 if there is none.
fn sample(metrics: &Metrics, name: &str) -> u64 {
    let text = metrics.encode();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(0, |value| value.parse().unwrap())
}

fn shed(metrics: &Metrics, reason: &str) -> u64 {
    let labels = format!("{{port=\"https\",reason=\"{reason}\"}}");
    sample(metrics, &format!("berth_http_shed_total{labels}"))
}

/// Memory of this process.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// What was seen in some seconds of an attack.
#[derive(Debug, Default)]
struct Seen {
    bytes_max: u64,
    connections_max: u64,
    grown_max: u64,
    slowest: Duration,
}

/// Asks for reviews from an address for some seconds; every one must be answered.
async fn watch(
    (target, metrics): &(Target, Metrics),
    from: IpAddr,
    seconds: u64,
    resident_before: u64,
) -> Seen {
    let (began, mut seen) = (Instant::now(), Seen::default());
    while began.elapsed() < Duration::from_secs(seconds) {
        let asked = Instant::now();
        let code = target.post(from, "/validate", &review()).await;
        assert_eq!(code.unwrap(), 200, "{seen:?}");
        seen.slowest = seen.slowest.max(asked.elapsed());
        let of = |name: &str| sample(metrics, &format!("berth_http_{name}{{port=\"https\"}}"));
        seen.bytes_max = seen.bytes_max.max(of("inflight_bytes"));
        seen.connections_max = seen.connections_max.max(of("connections"));
        seen.grown_max = seen.grown_max.max(resident_bytes().saturating_sub(resident_before));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_bodies_fill_no_memory_and_delay_nobody_else() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let server = webhook();
    let before = resident_bytes();
    let attack = server.0.slow_bodies(&[address(2), address(3), address(4)], 200, BODY_BYTES);
    let seen = watch(&server, address(1), 8, before).await;
    assert!(attack.sent_bytes() > 100 * MIB, "the attack is too weak: {}", attack.sent_bytes());
    assert!(seen.bytes_max <= Limits::TLS.bytes * 3 / 2, "{seen:?}");
    assert!(seen.grown_max < 200 * MIB, "{seen:?}");
    assert!(seen.slowest < Duration::from_secs(1), "{seen:?}");
    assert!(shed(&server.1, "bytes") > 0 && attack.ended() > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_shares_the_address_of_an_attacker_is_answered_too() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let server = webhook();
    let _attack = server.0.slow_bodies(&[address(2)], 60, BODY_BYTES);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut answered = 0;
    for _ in 0..10 {
        let code = server.0.post(address(2), "/validate", &review()).await;
        answered += u32::from(code.is_ok_and(|code| code == 200));
    }
    assert!(answered >= 5, "{answered} of 10");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_are_shed_and_keep_nobody_out() {
    let _turn = ONE_AT_A_TIME.lock().await;
    let server = webhook();
    let before = resident_bytes();
    let _attack = server.0.idle(&[address(2), address(3), address(4)], 1_000);
    let seen = watch(&server, address(1), 4, before).await;
    assert!(seen.connections_max <= Limits::TLS.connections as u64, "{seen:?}");
    assert!(seen.connections_max >= Limits::TLS.connections as u64 / 2, "too weak: {seen:?}");
    assert!(seen.slowest < Duration::from_secs(1), "{seen:?}");
    assert!(shed(&server.1, "connections") > 0);
}

#[tokio::test(start_paused = true)]
async fn heads_and_bodies_that_do_not_arrive_end_the_connection() {
    let listener = listen((address(1), 0).into()).unwrap();
    let at = listener.local_addr().unwrap();
    let metrics = Metrics::new();
    let port = Port { name: "http", limits: Limits::PLAIN, metrics: metrics.clone() };
    let router = axum::Router::new().route("/", axum::routing::post(async || "ok"));
    tokio::spawn(port.serve(listener, router, std::future::pending()));
    for (sent, answer) in [
        ("POST / HTTP/1.1\r\nhost: x\r\nslow", ""),
        ("", ""),
        ("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nslow", "HTTP/1.1 408 "),
        ("POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\n", "HTTP/1.1 408 "),
        ("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 99999\r\n\r\n", "HTTP/1.1 413 "),
        ("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n", "HTTP/1.1 200 "),
    ] {
        let mut stream = tokio::net::TcpStream::connect(at).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        let (began, mut read) = (tokio::time::Instant::now(), Vec::new());
        // It may be cut off.
        let _ = stream.read_to_end(&mut read).await;
        assert!(began.elapsed() < Duration::from_secs(32), "{sent:?}: {:?}", began.elapsed());
        let read = String::from_utf8(read).unwrap();
        assert!(read.starts_with(answer) && !(answer.is_empty() && read.contains("200")), "{read}");
    }
    assert_eq!(sample(&metrics, "berth_http_connections{port=\"http\"}"), 0);
}
