//! Certificates over months of virtual time, shared by replicas through a Secret in memory.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use jiff::{Timestamp, ToSpan as _};
use kube::client::Body;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};

use super::*;

const NAME: &str = "berth-webhook.berth-system.svc";

fn names() -> Vec<String> {
    vec![NAME.to_owned()]
}

fn day(day: i64) -> Timestamp {
    "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + (day * 24).hours()
}

/// Whether a client that trusts `bundle` accepts what is served by `config`, by a handshake in memory.
fn is_trusted(bundle: &str, config: Arc<rustls::ServerConfig>) -> bool {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(NAME).unwrap();
    let mut client = rustls::ClientConnection::new(Arc::new(client), name).unwrap();
    let mut server = rustls::ServerConnection::new(config).unwrap();
    for _ in 0..10 {
        let mut wire = Vec::new();
        client.write_tls(&mut wire).unwrap();
        server.read_tls(&mut wire.as_slice()).unwrap();
        if server.process_new_packets().is_err() {
            return false;
        }
        let mut wire = Vec::new();
        server.write_tls(&mut wire).unwrap();
        client.read_tls(&mut wire.as_slice()).unwrap();
        if client.process_new_packets().is_err() {
            return false;
        }
        if !client.is_handshaking() && !server.is_handshaking() {
            return true;
        }
    }
    false
}

fn config_of(generation: &Generation) -> Arc<rustls::ServerConfig> {
    server_config(generation.certificate.as_bytes(), generation.key.as_bytes()).unwrap()
}

#[test]
fn a_year_of_rotations_never_serves_what_yesterdays_bundle_does_not_know() {
    let mut stored = Stored::default();
    let mut old_bundle = String::new();
    let mut served_before = String::new();
    let (mut rotations, mut made) = (0, 0);
    let mut now = day(0);
    while now < day(365) {
        if let Some(next) = stored.next(&names(), now).unwrap() {
            made += usize::from(next.generations.last() != stored.generations.last());
            stored = next;
        }
        let served = stored.served(now).unwrap();
        assert!(served.expires > now, "{now}");
        assert!(stored.bundle().contains(&served.ca), "{now}");
        // An API server that has seen the bundle of ten minutes ago still trusts what is served.
        assert!(old_bundle.is_empty() || old_bundle.contains(&served.ca), "{now}");
        rotations += usize::from(!served_before.is_empty() && served_before != served.ca);
        served_before.clone_from(&served.ca);
        assert!(stored.generations.len() <= 2, "{now}");
        old_bundle = stored.bundle();
        now += 10.minutes();
    }
    assert_eq!((rotations, made), (6, 7));
}

#[test]
fn who_was_off_for_long_starts_anew_and_other_names_need_another_certificate() {
    let first = Stored::default().next(&names(), day(0)).unwrap().unwrap();
    assert_eq!(first.next(&names(), day(1)).unwrap(), None);
    let later = first.next(&names(), day(200)).unwrap().unwrap();
    assert_eq!(later.generations.len(), 1);
    assert_eq!(later.served(day(200)), later.generations.last());
    let others = vec!["other.svc".to_owned()];
    let renamed = first.next(&others, day(1)).unwrap().unwrap();
    assert_eq!(renamed.generations.len(), 2);
    assert_eq!(renamed.served(day(1)), renamed.generations.first());
    assert_eq!(renamed.served(day(1) + 11.minutes()), renamed.generations.last());
}

#[test]
fn clients_that_know_the_bundle_shake_hands_and_others_do_not() {
    // Clients judge by the real time of day.
    let now = Timestamp::now();
    let one = Generation::make(&names(), now).unwrap();
    let other = Generation::make(&names(), now).unwrap();
    assert!(is_trusted(&one.ca, config_of(&one)));
    assert!(is_trusted(&format!("{}{}", other.ca, one.ca), config_of(&one)));
    assert!(!is_trusted(&other.ca, config_of(&one)));
    let stranger = Generation::make(&["other.svc".to_owned()], now).unwrap();
    assert!(!is_trusted(&stranger.ca, config_of(&stranger)));
    assert!(server_config(b"no certificate", one.key.as_bytes()).is_err());
    assert!(server_config(one.certificate.as_bytes(), other.key.as_bytes()).is_err());
}

type Objects = Arc<Mutex<BTreeMap<String, Value>>>;

async fn serve(request: Request<Body>, objects: Objects) -> Response<Full<bytes::Bytes>> {
    let answer = |code: StatusCode, body: Value| {
        Response::builder().status(code).body(Full::from(body.to_string())).unwrap()
    };
    let failure = |code: StatusCode| {
        let reason = if code == StatusCode::NOT_FOUND { "NotFound" } else { "Conflict" };
        let status = json!({ "kind": "Status", "code": code.as_u16(), "reason": reason });
        answer(code, status)
    };
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let mut sent: Value = serde_json::from_slice(&body).unwrap_or_default();
    // Others run between a read and a write.
    tokio::time::sleep(Duration::from_millis(1)).await;
    let mut objects = objects.lock().unwrap();
    let found = objects.get(&path).cloned();
    let version = |of: &Value| of["metadata"]["resourceVersion"].clone();
    match (&method, found) {
        (&Method::GET, Some(found)) => return answer(StatusCode::OK, found),
        (_, None) => return failure(StatusCode::NOT_FOUND),
        (_, Some(found)) if version(&found) != version(&sent) => {
            return failure(StatusCode::CONFLICT);
        }
        (&Method::PATCH, Some(mut found)) => {
            found["webhooks"] = sent["webhooks"].take();
            sent = found;
        }
        _ => {}
    }
    let next = version(&sent).as_str().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0) + 1;
    sent["metadata"]["resourceVersion"] = json!(next.to_string());
    objects.insert(path, sent.clone());
    answer(StatusCode::OK, sent)
}

struct World {
    objects: Objects,
    now: Arc<AtomicI64>,
}

const SECRET: &str = "/api/v1/namespaces/berth-system/secrets/berth-webhook";
const VALIDATING: &str =
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/berth";

impl World {
    fn new() -> Self {
        let objects = Objects::default();
        let secret = json!({ "metadata": { "name": "berth-webhook", "resourceVersion": "1" } });
        objects.lock().unwrap().insert(SECRET.to_owned(), secret);
        objects.lock().unwrap().insert(
            VALIDATING.to_owned(),
            json!({ "metadata": { "name": "berth", "resourceVersion": "1" }, "webhooks": [
                { "name": "a.berth.dev", "clientConfig": { "service": { "name": "w", "namespace": "n" } },
                  "admissionReviewVersions": ["v1"], "sideEffects": "None" },
                { "name": "b.berth.dev", "clientConfig": { "caBundle": "b2xk" },
                  "admissionReviewVersions": ["v1"], "sideEffects": "None" },
            ] }),
        );
        Self { objects, now: Arc::new(AtomicI64::new(day(0).as_second())) }
    }

    fn source(&self) -> Source {
        let objects = self.objects.clone();
        let service = tower::service_fn(move |request| {
            let objects = objects.clone();
            async move { Ok::<_, Infallible>(serve(request, objects).await) }
        });
        let now = self.now.clone();
        Source::Managed(Managed {
            client: kube::Client::new(service, "default"),
            namespace: "berth-system".to_owned(),
            secret: "berth-webhook".to_owned(),
            names: names(),
            configurations: vec!["berth".to_owned()],
            wall: Arc::new(move || Timestamp::from_second(now.load(Ordering::SeqCst)).unwrap()),
        })
    }

    fn bundles(&self) -> Vec<String> {
        use base64::Engine as _;
        let objects = self.objects.lock().unwrap();
        let webhooks = objects[VALIDATING]["webhooks"].as_array().unwrap().iter();
        let text = |one: &Value| one["clientConfig"]["caBundle"].as_str().unwrap().to_owned();
        let decode = |text: String| base64::engine::general_purpose::STANDARD.decode(text).unwrap();
        webhooks.map(|one| String::from_utf8(decode(text(one))).unwrap()).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn replicas_that_start_together_agree_and_publish_the_bundle() {
    let world = World::new();
    let (one, other) = tokio::join!(Keeper::start(world.source()), Keeper::start(world.source()));
    // Whoever lost the race looks again and finds what the other made.
    assert_eq!(one.served(), other.served());
    let bundles = world.bundles();
    assert_eq!((bundles.len(), &bundles[0]), (2, &bundles[1]));
    assert!(bundles[0].starts_with("-----BEGIN CERTIFICATE-----"));
}

#[tokio::test(start_paused = true)]
async fn a_rotation_reaches_the_server_without_a_restart() {
    let world = World::new();
    let keeper = Keeper::start(world.source()).await;
    let tls = keeper.tls();
    let running = tokio::spawn(keeper.run());
    let first = tls.get_inner();
    world.now.store(day(61).as_second(), Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(120)).await;
    // The next authority is known, the old certificate is served.
    assert_eq!(world.bundles()[0].matches("BEGIN CERTIFICATE").count(), 2);
    assert!(Arc::ptr_eq(&first, &tls.get_inner()));
    world.now.store((day(61) + 15.minutes()).as_second(), Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(!Arc::ptr_eq(&first, &tls.get_inner()));
    world.now.store(day(63).as_second(), Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(world.bundles()[0].matches("BEGIN CERTIFICATE").count(), 1);
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_somebody_broke_is_made_anew() {
    let world = World::new();
    world.objects.lock().unwrap().insert(
        SECRET.to_owned(),
        json!({ "metadata": { "name": "berth-webhook", "resourceVersion": "7" },
                "data": { "generations.json": "bm90IGpzb24=" } }),
    );
    let keeper = Keeper::start(world.source()).await;
    assert!(world.bundles()[0].contains("BEGIN CERTIFICATE"));
    drop(keeper);
}

#[tokio::test]
async fn a_secret_that_is_not_installed_is_an_error_that_says_what_to_do() {
    let world = World::new();
    let source = world.source();
    world.objects.lock().unwrap().remove(SECRET);
    let Err(error) = source.current().await else { panic!("there is no Secret") };
    assert_eq!(
        error.to_string(),
        "secret berth-system/berth-webhook does not exist: apply the output of `berth manifests`, or \
         the chart, again"
    );
    assert!(!world.objects.lock().unwrap().contains_key(SECRET), "it has no right to create one");
}

#[tokio::test]
async fn files_are_read_again_when_they_change() {
    let directory = std::env::temp_dir().join(format!("berth-certificates-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let write = |generation: &Generation| {
        std::fs::write(directory.join("tls.crt"), &generation.certificate).unwrap();
        std::fs::write(directory.join("tls.key"), &generation.key).unwrap();
    };
    let now = Timestamp::now();
    write(&Generation::make(&names(), now).unwrap());
    let source = Source::Files(Files { directory: directory.clone() });
    let mut keeper = Keeper::start(source).await;
    let first = keeper.tls().get_inner();
    keeper.look().await.unwrap();
    assert!(Arc::ptr_eq(&first, &keeper.tls().get_inner()));
    // Half written is not served.
    std::fs::write(directory.join("tls.crt"), "-----BEGIN").unwrap();
    assert!(keeper.look().await.is_err());
    assert!(Arc::ptr_eq(&first, &keeper.tls().get_inner()));
    write(&Generation::make(&names(), now).unwrap());
    keeper.look().await.unwrap();
    assert!(!Arc::ptr_eq(&first, &keeper.tls().get_inner()));
    std::fs::remove_dir_all(&directory).unwrap();
}
