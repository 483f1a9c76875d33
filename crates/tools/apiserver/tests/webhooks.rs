//! Webhooks that really listen: over TLS, with a certificate of their own.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_apiserver::admission::webhook::Webhooks;
use berth_apiserver::admission::{Operation, Request, User, View};
use berth_apiserver::kinds::{Kind, Resource, built_in};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

const GROUP: &str = "admissionregistration.k8s.io";

type Respond = Arc<dyn Fn(&Value) -> Value + Send + Sync>;

/// A webhook that answers with what a function makes of the request.
struct Listening {
    address: SocketAddr,
    ca_bundle: String,
    asked: Arc<AtomicUsize>,
}

async fn listen(respond: Respond) -> Listening {
    let names = vec!["hook.sys.svc".to_owned()];
    let certified = rcgen::generate_simple_self_signed(names).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (acceptor, respond, count) = (acceptor.clone(), respond.clone(), count.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(socket).await else { return };
                let service =
                    hyper::service::service_fn(move |request: http::Request<Incoming>| {
                        let (respond, count) = (respond.clone(), count.clone());
                        async move {
                            count.fetch_add(1, Ordering::SeqCst);
                            let body = request.into_body().collect().await.unwrap().to_bytes();
                            let review: Value = serde_json::from_slice(&body).unwrap();
                            let response = respond(&review);
                            let body = Bytes::from(response.to_string());
                            Ok::<_, Infallible>(http::Response::new(Full::new(body)))
                        }
                    });
                let server = hyper::server::conn::http1::Builder::new();
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    Listening { address, ca_bundle: STANDARD.encode(certified.cert.pem()), asked }
}

fn answer(review: &Value, mut response: Value) -> Value {
    response["uid"] = review["request"]["uid"].clone();
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

#[derive(Default)]
struct Objects(BTreeMap<(Resource, String), Arc<Value>>);

impl View for Objects {
    fn get(&self, resource: &Resource, _: &str, name: &str) -> Option<Arc<Value>> {
        self.0.get(&(resource.clone(), name.to_owned())).cloned()
    }

    fn list(&self, resource: &Resource, _: &str) -> Vec<Arc<Value>> {
        self.0.iter().filter(|((of, _), _)| of == resource).map(|(_, one)| one.clone()).collect()
    }
}

/// A world with one webhook, as its configuration would be after defaults.
fn world(plural: &str, listening: &Listening, change: impl FnOnce(&mut Value)) -> Objects {
    let mut webhook = json!({
        "name": "check.berth.dev",
        "clientConfig": {
            "service": {"name": "hook", "namespace": "sys", "path": "/ask", "port": 443},
            "caBundle": listening.ca_bundle
        },
        "rules": [{
            "operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"],
            "resources": ["pods"], "scope": "*"
        }],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "timeoutSeconds": 1,
        "namespaceSelector": {},
        "objectSelector": {},
        "reinvocationPolicy": "Never"
    });
    change(&mut webhook);
    let configuration = json!({"metadata": {"name": "hooks"}, "webhooks": [webhook]});
    let namespace = json!({"metadata": {"name": "default", "labels": {"team": "a"}}});
    Objects(BTreeMap::from([
        ((Resource::new(GROUP, plural), "hooks".to_owned()), Arc::new(configuration)),
        ((Resource::new("", "namespaces"), "default".to_owned()), Arc::new(namespace)),
    ]))
}

fn webhooks(listening: &Listening) -> Webhooks {
    let address = listening.address;
    Webhooks::new(Some(Arc::new(move |namespace, name, port| {
        assert_eq!((namespace, name, port), ("sys", "hook", 443));
        Some(address)
    })))
}

fn pod() -> Value {
    let spec = json!({"containers": [{"name": "c", "image": "a:1"}]});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec})
}

fn request<'a>(kind: &'a Kind, user: &'a User) -> Request<'a> {
    Request {
        kind,
        operation: Operation::Create,
        namespace: "default",
        name: "p",
        subresource: "",
        user,
        dry_run: false,
        options: &Value::Null,
        old: None,
    }
}

#[tokio::test]
async fn a_mutating_webhook_changes_the_object_and_warns() {
    let listening = listen(Arc::new(|review| {
        assert_eq!(review["request"]["operation"], "CREATE");
        assert_eq!(review["request"]["resource"]["resource"], "pods");
        let patch = json!([{"op": "add", "path": "/spec/schedulerName", "value": "berth"}]);
        let patch = STANDARD.encode(patch.to_string());
        let said = json!({
            "allowed": true, "patchType": "JSONPatch", "patch": patch, "warnings": ["mind"]
        });
        answer(review, said)
    }))
    .await;
    let (kind, user) = (built_in("", "pods").unwrap(), User::default());
    let world = world("mutatingwebhookconfigurations", &listening, |_| {});
    let (hooks, mut pod) = (webhooks(&listening), pod());
    for _ in 0..3 {
        let asked = hooks.mutate(&request(&kind, &user), &mut pod, &world).await;
        assert_eq!(asked.unwrap(), ["mind"]);
    }
    assert_eq!(pod["spec"]["schedulerName"], "berth");
    assert_eq!(pod["spec"]["dnsPolicy"], "ClusterFirst", "what a webhook made is defaulted");
    assert_eq!(listening.asked.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_denial_is_told_in_the_words_of_the_webhook() {
    let listening = listen(Arc::new(|review| {
        let status = json!({"code": 403, "reason": "Forbidden", "message": "no GPUs on Sundays"});
        answer(review, json!({"allowed": false, "status": status}))
    }))
    .await;
    let (kind, user) = (built_in("", "pods").unwrap(), User::default());
    let world = world("validatingwebhookconfigurations", &listening, |_| {});
    let hooks = webhooks(&listening);
    let denied = hooks.validate(&request(&kind, &user), Some(&pod()), &world).await.unwrap_err();
    assert_eq!((denied.code, denied.reason), (403, "Forbidden"));
    assert_eq!(
        denied.message,
        "admission webhook \"check.berth.dev\" denied the request: no GPUs on Sundays"
    );
}

#[tokio::test]
async fn who_does_not_answer_in_time_decides_by_failure_policy() {
    let listening = listen(Arc::new(|review| {
        std::thread::sleep(Duration::from_millis(1500));
        answer(review, json!({"allowed": true}))
    }))
    .await;
    let (kind, user) = (built_in("", "pods").unwrap(), User::default());
    let hooks = webhooks(&listening);
    let request = request(&kind, &user);
    let plural = "validatingwebhookconfigurations";
    // A certificate that nobody trusts fails at once, a slow answer after its time.
    for (policy, trusts) in [("Fail", false), ("Ignore", false)] {
        let world = world(plural, &listening, |webhook| {
            webhook["failurePolicy"] = json!(policy);
            if !trusts {
                webhook["clientConfig"]["caBundle"] = json!("");
            }
        });
        let asked = hooks.validate(&request, Some(&pod()), &world).await;
        match policy {
            "Ignore" => assert!(asked.unwrap().is_empty()),
            _ => {
                let failed = asked.unwrap_err();
                assert_eq!(failed.code, 500);
                let head = "Internal error occurred: failed calling webhook \"check.berth.dev\": \
                            failed to call webhook: Post \
                            \"https://hook.sys.svc:443/ask?timeout=1s\": ";
                assert!(failed.message.starts_with(head), "{}", failed.message);
            }
        }
    }
    let world = world(plural, &listening, |_| {});
    let slow = hooks.validate(&request, Some(&pod()), &world).await.unwrap_err();
    assert!(slow.message.ends_with("context deadline exceeded"), "{}", slow.message);
}

#[tokio::test]
async fn only_those_that_rules_and_selectors_mean_are_asked() {
    let listening = listen(Arc::new(|review| answer(review, json!({"allowed": true})))).await;
    let (kind, user) = (built_in("", "pods").unwrap(), User::default());
    let hooks = webhooks(&listening);
    let request = request(&kind, &user);
    let changes: [(&str, Value, usize); 6] = [
        ("namespaceSelector", json!({"matchLabels": {"team": "a"}}), 1),
        ("namespaceSelector", json!({"matchLabels": {"team": "b"}}), 0),
        ("objectSelector", json!({"matchExpressions": [{"key": "x", "operator": "Exists"}]}), 0),
        (
            "objectSelector",
            json!({"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}),
            1,
        ),
        (
            "rules",
            json!([{"operations": ["UPDATE"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}]),
            0,
        ),
        (
            "rules",
            json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]),
            1,
        ),
    ];
    for (field, value, times) in changes {
        let before = listening.asked.load(Ordering::SeqCst);
        let shown = value.to_string();
        let world = world("validatingwebhookconfigurations", &listening, |webhook| {
            webhook[field] = value;
        });
        hooks.validate(&request, Some(&pod()), &world).await.unwrap();
        assert_eq!(listening.asked.load(Ordering::SeqCst) - before, times, "{field} {shown}");
    }
}
