//! The loop of a term, against an API that records what is asked of it.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::convert::Infallible;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use berth_engine::event::Event;
use berth_kubelet::TopologyPolicy;
use berth_model::spec::PodSpec;
use berth_testkit::cluster::{NodeKind, gpu_template, pending};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use kube::client::Body;

use super::*;
use crate::core::SeenPod;

/// A request: whether it is a write of the Lease, its path and its body.
type Asked = (bool, String, String);

/// Answers with what it is sent; there is no Lease yet. The Lease is written when `writes` says so.
fn client(requests: mpsc::UnboundedSender<Asked>) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let requests = requests.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let path = head.uri.path().to_owned();
            let is_lease = path.contains("/leases");
            let text = String::from_utf8_lossy(&body).into_owned();
            let code = match head.method {
                Method::GET => StatusCode::NOT_FOUND,
                _ => StatusCode::OK,
            };
            if head.method != Method::GET {
                drop(requests.send((is_lease, path, text)));
            }
            let missing = br#"{"kind": "Status", "reason": "NotFound", "code": 404}"#;
            let body = if head.method == Method::GET { Bytes::from_static(missing) } else { body };
            let response =
                Response::builder().status(code).header("content-type", "application/json");
            Ok::<_, Infallible>(response.body(Full::from(body)).unwrap())
        }
    });
    Client::new(service, "default")
}

#[tokio::test(start_paused = true)]
async fn a_replica_without_the_namespace_of_the_lease_is_not_ready_and_says_why() {
    let has_namespace = Arc::new(AtomicBool::new(false));
    let exists = has_namespace.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let exists = exists.load(Ordering::Relaxed) && request.method() != Method::GET;
        async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let missing = br#"{"kind": "Status", "reason": "NotFound", "code": 404}"#;
            let (code, body) =
                if exists { (200, body) } else { (404, Bytes::from_static(missing)) };
            let response =
                Response::builder().status(code).header("content-type", "application/json");
            Ok::<_, Infallible>(response.body(Full::from(body)).unwrap())
        }
    });
    let options = Options {
        scheduler_names: [Arc::from("berth")].into(),
        identity: "me".into(),
        lease: lease::Settings::default(),
        core: Settings::default(),
    };
    let (metrics, health) = (Metrics::new(), Health::new(60_000));
    let (_ask, questions) = mpsc::channel(1);
    let (_stop, shutdown) = signal::channel(false);
    let client = Client::new(service, "default");
    let mut scheduler =
        Scheduler::new(client, options, (metrics.clone(), health.clone()), questions, shutdown);
    let elector = Elector::new(scheduler.client.clone(), lease::Settings::default(), "me").unwrap();
    let minute = Duration::from_secs(60);
    assert!(tokio::time::timeout(minute, scheduler.wait_for_lead(&elector)).await.is_err());
    assert!(!health.is_ready());
    let text = metrics.encode();
    assert!(text.contains("berth_lease_errors_total{reason=\"namespace_not_found\"}"), "{text}");
    has_namespace.store(true, Ordering::Relaxed);
    assert!(scheduler.wait_for_lead(&elector).await.is_some());
    assert!(health.is_ready());
}

fn seen(spec: PodSpec, number: u64) -> SeenPod {
    SeenPod {
        object: pending(&Arc::new(spec), number),
        version: number + 1,
        ours: true,
        scheduler: Some("berth".into()),
        record: None,
        rejected: None,
        condition: None,
        invalid: None,
        outline: None,
    }
}

/// A core with one node, where three pods have been found to fit nowhere, which is still to be said.
fn core() -> Core {
    let mut core = Core::new(Settings::default());
    let kind = NodeKind::whole("h100", "NVIDIA-H100-80GB-HBM3", TopologyPolicy::None);
    for event in kind.nodes(0, 1).unwrap() {
        if matches!(event, Event::Node(_)) {
            core.apply(Update::Other(event), 0);
        }
    }
    for gpus in [9, 10, 11] {
        let pod = seen(gpu_template("large", 0, gpus).unwrap(), u64::from(gpus));
        core.apply(Update::Pod(Box::new(pod)), 0);
    }
    assert!(core.turn(0).is_empty());
    assert!(core.can_explain(0));
    core
}

/// How often something was done.
fn count(metrics: &Metrics, step: &str) -> u64 {
    let wanted = format!("_count{{step=\"{step}\"}} ");
    let text = metrics.encode();
    let line = text.lines().find_map(|line| Some(line.split_once(&wanted)?.1.to_owned()));
    line.map_or(0, |count| count.parse().unwrap())
}

#[tokio::test(start_paused = true)]
async fn news_is_taken_in_before_each_turn_and_explanations_come_after_bindings() {
    let (requests, mut asked) = mpsc::unbounded_channel();
    let client = client(requests);
    let elector = Elector::new(client.clone(), lease::Settings::default(), "me").unwrap();
    let leadership = Arc::new(elector.acquire().await);
    while asked.try_recv().is_ok() {}
    let metrics = Metrics::new();
    let (back, backs) = mpsc::unbounded_channel();
    let names: SchedulerNames = [Arc::from("berth")].into();
    let actor = Actor::new(
        client,
        leadership.clone(),
        (names.clone(), "me".into()),
        metrics.clone(),
        back.clone(),
    );
    let mut term = Term {
        names,
        core: core(),
        node_topologies: NodeTopologies::new(metrics.clone()),
        object_statuses: ObjectStatuses::default(),
        actor: Arc::new(actor),
        metrics: metrics.clone(),
        health: Health::new(60_000),
        unlisted: HashSet::new(),
        clock: Clock::start(),
        began: Instant::now(),
        draining: false,
        explain_from: Instant::now(),
    };
    // An answer and news of a pod are there at the same time.
    let (sink, seen_by) = mpsc::channel(SEEN_MAX);
    let normal = seen(gpu_template("normal", 0, 1).unwrap(), 20);
    let name = normal.object.name.to_string();
    back.send(Back::Done(crate::core::Completion::StatusWritten("nobody".into(), true))).unwrap();
    sink.try_send(Seen::Update(Update::Pod(Box::new(normal)))).unwrap();
    let (_ask, mut questions) = mpsc::channel(1);
    let (_stop, mut shutdown) = signal::channel(false);
    let order: Mutex<Vec<(&str, u64, u64)>> = Mutex::default();
    let watching = async {
        let mut statuses = 0;
        while statuses < 3 {
            let (is_lease, path, body) = asked.recv().await.unwrap();
            let counts = (count(&metrics, "turn"), count(&metrics, "explain"));
            if is_lease && body.contains(&name) {
                order.lock().unwrap().push(("announced", counts.0, counts.1));
            } else if path.ends_with("/status") {
                statuses += 1;
                order.lock().unwrap().push(("explained", counts.0, counts.1));
            }
        }
    };
    tokio::select! {
        _ = term.run(seen_by, backs, (&mut questions, &mut shutdown), &leadership) => panic!("it ended"),
        () = watching => {}
        () = tokio::time::sleep(Duration::from_secs(60)) => panic!("{:?}", order.lock().unwrap()),
    }
    let order = order.into_inner().unwrap();
    // The first turn decides about the pod (the Lease is written beside the second), and nothing is
    // explained before.
    let (what, turns, explanations) = order[0];
    assert!(what == "announced" && turns <= 2 && explanations == 0, "{order:?}");
    // Each pod is explained by itself, with a look at the news in between.
    let explained: Vec<u64> =
        order.iter().filter(|(what, ..)| *what == "explained").map(|(.., count)| *count).collect();
    assert_eq!(explained, [1, 2, 3], "{order:?}");
}
