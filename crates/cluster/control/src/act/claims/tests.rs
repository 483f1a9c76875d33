//! Claims as they are written, against an API server in memory that can forget to answer, and against a
//! real one where `BERTH_TEST_API` and `BERTH_TEST_TOKEN` say which.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use berth_api::Lower as _;
use berth_dra::{ClaimRef, ExtendedClaim, Placement, RequestMapping};
use berth_engine::decision::Binding;
use berth_model::alignment::Alignment;
use berth_model::dra::DeviceId;
use berth_model::dra::claim::{
    AllocatedDevice, Allocation, ClaimSpec, DeviceRequest, Request as Ask, RequestKind, Share,
};
use berth_model::dra::pod::{ClaimSource, PodClaim};
use berth_model::resource::ResourceName;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::super::{Actor, Back, fence};
use super::{FINALIZER, resource};
use crate::core::Completion;
use crate::core::{BindOrder, BindOutcome, Update};
use crate::lease::{self, Elector, PodRef};
use crate::metrics::Metrics;

const NAMESPACE: &str = "default";

/// Which call meets a fault: its method, and what its path ends with.
struct Fault {
    method: Method,
    path: &'static str,
    /// Whether it is done although nobody hears of it.
    done: bool,
}

#[derive(Default)]
struct Server {
    objects: BTreeMap<String, Value>,
    version: u64,
    calls: Vec<String>,
    faults: VecDeque<Fault>,
}

type Shared = Arc<Mutex<Server>>;
type Answer = (StatusCode, Value);

fn failure(code: StatusCode) -> Answer {
    let reason = if code == StatusCode::NOT_FOUND { "NotFound" } else { "Conflict" };
    let status = json!({ "kind": "Status", "status": "Failure", "code": code.as_u16(),
                         "message": "so it is", "reason": reason });
    (code, status)
}

/// Whether a part of an object becomes another, other than by being added or removed.
fn changes(known: &Value, sent: &Value, pointer: &str) -> bool {
    let both = known.pointer(pointer).zip(sent.pointer(pointer));
    both.is_some_and(|(known, sent)| !known.is_null() && !sent.is_null() && known != sent)
}

/// A merge patch, in which lists of objects with a UID or a type are maps.
fn merge(to: &mut Value, patch: &Value) {
    match (to, patch) {
        (Value::Object(to), Value::Object(patch)) => {
            for (name, value) in patch {
                merge(to.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        (to, Value::Array(patch)) => {
            let mut list = to.as_array().cloned().unwrap_or_default();
            for one in patch {
                list.retain(|known| known["uid"] != one["uid"]);
                if one["$patch"] != "delete" {
                    list.push(one.clone());
                }
            }
            *to = Value::Array(list);
        }
        (to, patch) => *to = patch.clone(),
    }
}

impl Server {
    fn store(&mut self, key: &str, mut object: Value) -> Answer {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(key.to_owned(), object.clone());
        (StatusCode::OK, object)
    }

    fn create(&mut self, path: &str, mut object: Value) -> Answer {
        let meta = &mut object["metadata"];
        if let Some(base) = meta["generateName"].as_str() {
            meta["name"] = json!(format!("{base}{}", self.version));
        }
        meta["uid"] = json!(format!("uid-{}", self.version));
        let key = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap());
        if self.objects.contains_key(&key) {
            failure(StatusCode::CONFLICT)
        } else {
            self.store(&key, object)
        }
    }

    fn handle(&mut self, method: &Method, path: &str, sent: &Value) -> Answer {
        let is_post = *method == Method::POST;
        if is_post && !path.ends_with("/binding") {
            return self.create(path, sent.clone());
        }
        if *method == Method::GET && path.ends_with("claims") {
            let under = |key: &&String| key.starts_with(&format!("{path}/"));
            let names: Vec<String> = self.objects.keys().filter(under).cloned().collect();
            let items: Vec<Value> = names.iter().map(|name| self.objects[name].clone()).collect();
            return (StatusCode::OK, json!({ "metadata": {}, "items": items }));
        }
        let subresource = ["/status", "/binding"].into_iter().find(|end| path.ends_with(end));
        let key = path.trim_end_matches(subresource.unwrap_or_default());
        let Some(known) = self.objects.get(key).cloned() else {
            return failure(StatusCode::NOT_FOUND);
        };
        let asked =
            if *method == Method::DELETE { &sent["preconditions"] } else { &sent["metadata"] };
        for field in ["uid", "resourceVersion"] {
            if asked.get(field).is_some_and(|asked| *asked != known["metadata"][field]) {
                return failure(StatusCode::CONFLICT);
            }
        }
        let mut next = known.clone();
        match (method, subresource) {
            (&Method::GET, _) => return (StatusCode::OK, known),
            (&Method::DELETE, _) => {
                self.objects.remove(key);
                return (StatusCode::OK, known);
            }
            (_, Some("/binding")) => next["spec"]["nodeName"] = sent["target"]["name"].clone(),
            // An allocation stays as it is until it is removed.
            (&Method::PUT, Some(_)) if changes(&known, sent, "/status/allocation") => {
                return failure(StatusCode::UNPROCESSABLE_ENTITY);
            }
            (&Method::PUT, Some(_)) => next["status"] = sent["status"].clone(),
            (&Method::PUT, None) => {
                next = sent.clone();
                next["status"] = known["status"].clone();
            }
            _ => merge(&mut next, sent),
        }
        self.store(key, next)
    }
}

async fn serve(request: Request<Body>, server: Shared) -> Response<Full<bytes::Bytes>> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let body = request.into_body().collect().await.unwrap().to_bytes();
    // Bindings come in protobuf, and nothing else does.
    let sent = match body.strip_prefix(berth_protobuf::MAGIC) {
        Some(object) => {
            let envelope = berth_protobuf::Envelope::open(object).unwrap();
            let binding: k8s_openapi::api::core::v1::Binding =
                berth_protobuf::from_message(envelope.raw).unwrap();
            serde_json::to_value(binding).unwrap()
        }
        None => serde_json::from_slice(&body).unwrap_or(Value::Null),
    };
    let fault = {
        let mut server = server.lock().unwrap();
        let hit = |fault: &Fault| fault.method == method && path.ends_with(fault.path);
        let at = server.faults.iter().position(hit);
        at.and_then(|at| server.faults.remove(at))
    };
    let done = fault.as_ref().is_none_or(|fault| fault.done);
    let answer = done.then(|| {
        let mut server = server.lock().unwrap();
        if method != Method::GET && !path.contains("/leases") {
            server.calls.push(format!("{method} {}", path.rsplit("default/").next().unwrap()));
        }
        server.handle(&method, &path, &sent)
    });
    if fault.is_some() {
        std::future::pending::<()>().await;
    }
    let (code, body) = answer.unwrap();
    Response::builder().status(code).body(Full::from(body.to_string())).unwrap()
}

fn client(server: &Shared) -> Client {
    let shared = server.clone();
    let service = tower::service_fn(move |request| {
        let shared = shared.clone();
        async move { Ok::<_, Infallible>(serve(request, shared).await) }
    });
    Client::new(service, "default")
}

async fn make(client: &Client, path: &str, object: &Value) -> Value {
    let request = Request::post(path).header("content-type", "application/json");
    client.request(request.body(object.to_string().into_bytes()).unwrap()).await.unwrap()
}

async fn get(client: &Client, path: &str) -> Value {
    client.request(Request::get(path).body(Vec::new()).unwrap()).await.unwrap()
}

fn claims_path(name: &str) -> String {
    format!("/apis/resource.k8s.io/v1/namespaces/{NAMESPACE}/resourceclaims/{name}")
}

fn text(object: &Value, pointer: &str) -> Arc<str> {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().into()
}

fn version(object: &Value) -> u64 {
    text(object, "/metadata/resourceVersion").parse().unwrap()
}

async fn make_claim(client: &Client, name: &str) -> Value {
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": { "name": name },
        "spec": { "devices": { "requests": [{ "name": "gpu", "exactly": {
            "deviceClassName": "gpu.example.com", "allocationMode": "ExactCount", "count": 1,
            "tolerations": [{ "operator": "Exists", "effect": "NoSchedule" }] } }] } },
    });
    make(client, claims_path("").trim_end_matches('/'), &claim).await
}

async fn make_pod(client: &Client, name: &str, claim: Option<&str>) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": { "schedulerName": "berth", "containers": [{ "name": "main", "image": "none" }] },
    });
    if let Some(claim) = claim {
        pod["spec"]["resourceClaims"] = json!([{ "name": "gpu", "resourceClaimName": claim }]);
    }
    make(client, &format!("/api/v1/namespaces/{NAMESPACE}/pods"), &pod).await
}

fn device(request: &str, number: usize) -> Allocation {
    let device = AllocatedDevice {
        request: request.into(),
        id: DeviceId {
            driver: "gpu.example.com".into(),
            pool: "n1".into(),
            device: format!("gpu-{number}").into(),
        },
        admin_access: false,
        share: Share::Whole,
        tolerations: Vec::new(),
        binding_conditions: Vec::new(),
        binding_failure_conditions: Vec::new(),
    };
    Allocation { devices: vec![device], ..Allocation::default() }
}

fn order(pod: &Value, claims: &[&str], placed: Option<Placement>) -> BindOrder {
    let uid = text(pod, "/metadata/uid");
    let source = |name: &&str| ClaimSource::Named((*name).into());
    let claims = claims.iter().map(|name| PodClaim { name: "gpu".into(), source: source(name) });
    BindOrder {
        pod: PodRef {
            namespace: NAMESPACE.into(),
            name: text(pod, "/metadata/name"),
            uid: uid.clone(),
        },
        version: version(pod),
        binding: Binding {
            pod: uid,
            node: "n1".into(),
            gpu_grant: None,
            devices: placed.map(Box::new),
            alignment: Alignment::Unknown,
            numa: None,
        },
        claims: claims.collect(),
        volumes: Vec::new(),
        attempts: 0,
        is_last_attempt: false,
        created_at_ms: 0,
    }
}

fn given(claim: &Value, number: usize) -> Placement {
    let claim = ClaimRef {
        namespace: NAMESPACE.into(),
        name: text(claim, "/metadata/name"),
        uid: text(claim, "/metadata/uid"),
    };
    Placement { allocations: vec![(claim, device("gpu", number))], ..Placement::default() }
}

async fn actor(client: &Client) -> (Actor, mpsc::UnboundedReceiver<Back>) {
    let settings = lease::Settings { namespace: NAMESPACE.into(), ..lease::Settings::default() };
    let me = lease::incarnation("test").unwrap();
    let leadership = Elector::new(client.clone(), settings, me).unwrap().acquire().await;
    let (back, backs) = mpsc::unbounded_channel();
    let names: (crate::watch::SchedulerNames, Arc<str>) =
        (Arc::new(["berth".into()]), "test".into());
    (Actor::new(client.clone(), Arc::new(leadership), names, Metrics::new(), back), backs)
}

fn outcome(backs: &mut mpsc::UnboundedReceiver<Back>) -> (BindOutcome, Vec<super::Allocation>) {
    let mut told = Vec::new();
    while let Ok(back) = backs.try_recv() {
        match back {
            Back::Done(Completion::Bound(_, outcome)) => return (outcome, told),
            Back::Update(Update::Claim { claim, .. }) => told.extend(claim.allocation),
            _ => {}
        }
    }
    panic!("no answer");
}

fn users(claim: &Value) -> Vec<Arc<str>> {
    let users = claim["status"]["reservedFor"].as_array();
    users.into_iter().flatten().map(|user| text(user, "/uid")).collect()
}

fn lowered(claim: &Value) -> berth_model::dra::claim::Claim {
    serde_json::from_value::<resource::ResourceClaim>(claim.clone()).unwrap().lower().unwrap()
}

/// A claim is given a device, reserved for its pod and for a second one, and taken from that again.
async fn two_pods_share_a_claim(client: &Client, suffix: &str) {
    let (actor, mut backs) = actor(client).await;
    let name = format!("shared{suffix}");
    let claim = make_claim(client, &name).await;
    let one = make_pod(client, &format!("one{suffix}"), Some(&name)).await;
    let two = make_pod(client, &format!("two{suffix}"), Some(&name)).await;
    let placed = given(&claim, 3);
    actor.bind(&order(&one, &[&name], Some(placed.clone())), None).await;
    let (answer, told) = outcome(&mut backs);
    assert_eq!(answer, BindOutcome::Bound);
    assert_eq!(told.last().unwrap().devices[0].id, placed.allocations[0].1.devices[0].id);
    let written = get(client, &claims_path(&name)).await;
    assert_eq!(written["metadata"]["finalizers"], json!([FINALIZER]));
    assert!(written["status"]["allocation"]["allocationTimestamp"].is_string());
    let results = &written["status"]["allocation"]["devices"]["results"];
    assert_eq!(results[0]["device"], "gpu-3");
    assert_eq!(results[0]["tolerations"][0]["operator"], "Exists", "as the request has them");
    assert_eq!(users(&written), [text(&one, "/metadata/uid")]);

    actor.bind(&order(&two, &[&name], None), None).await;
    assert_eq!(outcome(&mut backs).0, BindOutcome::Bound);
    let shared = get(client, &claims_path(&name)).await;
    assert_eq!(users(&shared), [text(&one, "/metadata/uid"), text(&two, "/metadata/uid")]);
    assert_eq!(lowered(&shared).allocation, lowered(&written).allocation);

    // Devices for a claim that has some already: somebody else was faster.
    let three = make_pod(client, &format!("three{suffix}"), Some(&name)).await;
    actor.bind(&order(&three, &[&name], Some(given(&claim, 4))), None).await;
    assert_eq!(outcome(&mut backs).0, BindOutcome::Stale);
    let after = get(client, &claims_path(&name)).await;
    assert_eq!(users(&after).len(), 2, "nothing was reserved for it");
    // A binding that fails for good: what was reserved for it is not any more.
    let mut wrong = order(&three, &[&name], None);
    wrong.version = 0;
    actor.bind(&wrong, None).await;
    assert_eq!(outcome(&mut backs).0, BindOutcome::Refused);
    assert_eq!(users(&get(client, &claims_path(&name)).await).len(), 2);
}

fn extended() -> Placement {
    let ask = DeviceRequest { class: "gpu.example.com".into(), ..DeviceRequest::default() };
    let request = Ask { name: "container-0-request-0".into(), kind: RequestKind::Exactly(ask) };
    let mapping = RequestMapping {
        container: "main".to_owned(),
        resource: ResourceName::new("example.com/gpu"),
        request: request.name.clone(),
    };
    let claim = ClaimRef {
        namespace: NAMESPACE.into(),
        name: "<extended-resources>".into(),
        uid: "<extended-resources>/x".into(),
    };
    Placement {
        allocations: vec![(claim, device("container-0-request-0", 1))],
        extended: Some(ExtendedClaim {
            spec: ClaimSpec { requests: vec![request], ..ClaimSpec::default() },
            mappings: vec![mapping],
        }),
        score: 0,
    }
}

/// A pod's extended resource is served by a device.
async fn a_claim_is_made_for_extended_resources(client: &Client, suffix: &str) {
    let (actor, mut backs) = actor(client).await;
    let name = format!("extended{suffix}");
    let pod = make_pod(client, &name, None).await;
    actor.bind(&order(&pod, &[], Some(extended())), None).await;
    assert_eq!(outcome(&mut backs).0, BindOutcome::Bound);
    let bound = get(client, &format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}")).await;
    assert_eq!(bound["spec"]["nodeName"], "n1");
    let status = &bound["status"]["extendedResourceClaimStatus"];
    let made = text(status, "/resourceClaimName");
    assert!(made.starts_with(&format!("{name}-extended-resources-")), "{made}");
    assert_eq!(status["requestMappings"][0]["requestName"], "container-0-request-0");
    let claim = get(client, &claims_path(&made)).await;
    assert!(lowered(&claim).for_extended_resources);
    assert_eq!(lowered(&claim).controller_uid, Some(text(&pod, "/metadata/uid")));
    assert_eq!(claim["status"]["allocation"]["devices"]["results"][0]["device"], "gpu-1");
    assert_eq!(users(&claim), [text(&pod, "/metadata/uid")]);

    // The pod has changed since it was announced: nothing is left of the claim.
    let pod = make_pod(client, &format!("changed{suffix}"), None).await;
    let mut stale = order(&pod, &[], Some(extended()));
    stale.version -= 1;
    actor.bind(&stale, None).await;
    assert_eq!(outcome(&mut backs).0, BindOutcome::Conflict);
    let all = get(client, claims_path("").trim_end_matches('/')).await;
    let left = all["items"].as_array().unwrap().iter();
    let left = left.filter(|claim| text(claim, "/metadata/name").starts_with("changed"));
    assert_eq!(left.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn claims_are_given_devices_and_reserved_before_their_pods_are_bound() {
    let server = Shared::default();
    two_pods_share_a_claim(&client(&server), "").await;
    let calls = server.lock().unwrap().calls.clone();
    let expected = [
        "PUT resourceclaims/shared",
        "PUT resourceclaims/shared/status",
        "POST pods/one/binding",
        "PUT resourceclaims/shared/status",
        "POST pods/two/binding",
    ];
    let made = calls.iter().filter(|call| !call.ends_with("pods") && !call.ends_with("claims"));
    assert_eq!(made.take(5).collect::<Vec<_>>(), expected);
}

#[tokio::test(start_paused = true)]
async fn extended_resources_are_served_by_a_claim_that_the_pod_mentions_before_it_has_devices() {
    let server = Shared::default();
    a_claim_is_made_for_extended_resources(&client(&server), "").await;
    let calls = server.lock().unwrap().calls.clone();
    let order: Vec<&str> = calls.iter().filter_map(|call| call.rsplit('/').next()).collect();
    assert_eq!(order[..2], ["POST pods", "POST resourceclaims"]);
    assert_eq!(calls[2], "PATCH pods/extended/status");
    assert_eq!(order[4..6], ["status", "binding"]);
}

#[tokio::test(start_paused = true)]
async fn what_was_written_without_an_answer_is_not_written_again() {
    let server = Shared::default();
    let client = client(&server);
    let (actor, mut backs) = actor(&client).await;
    let claim = make_claim(&client, "c").await;
    let pod = make_pod(&client, "p", Some("c")).await;
    let faults = [("claims/c", true), ("claims/c/status", false), ("claims/c/status", true)];
    let faults = faults.map(|(path, done)| Fault { method: Method::PUT, path, done });
    server.lock().unwrap().faults.extend(faults);
    actor.bind(&order(&pod, &["c"], Some(given(&claim, 0))), None).await;
    assert_eq!(outcome(&mut backs).0, BindOutcome::Bound);
    let calls = server.lock().unwrap().calls.clone();
    let writes = calls.iter().filter(|call| call.ends_with("c/status"));
    assert_eq!(writes.count(), 1);
}

/// kube-scheduler writes no time where no device has conditions.
#[tokio::test(start_paused = true)]
async fn an_allocation_that_another_scheduler_wrote_is_left_as_it_is() {
    let server = Shared::default();
    let client = client(&server);
    let (actor, mut backs) = actor(&client).await;
    make_claim(&client, "c").await;
    let results = json!([{ "request": "gpu", "driver": "gpu.example.com", "pool": "n1",
                           "device": "gpu-0" }]);
    let allocation = json!({ "devices": { "results": results } });
    let other = json!({ "resource": "pods", "name": "other", "uid": "other" });
    {
        let mut server = server.lock().unwrap();
        let mut claim = server.objects[&claims_path("c")].clone();
        claim["status"] = json!({ "allocation": allocation, "reservedFor": [other] });
        server.store(&claims_path("c"), claim);
    }
    let pod = make_pod(&client, "p", Some("c")).await;
    actor.bind(&order(&pod, &["c"], None), None).await;
    assert_eq!(outcome(&mut backs).0, BindOutcome::Bound);
    let written = get(&client, &claims_path("c")).await;
    assert_eq!(written["status"]["allocation"], allocation);
    assert_eq!(users(&written), ["other".into(), text(&pod, "/metadata/uid")]);
}

/// However long the API server does not answer.
#[tokio::test(start_paused = true)]
async fn attempts_at_a_claim_have_an_end() {
    const MANY: usize = 1_000;
    let tries: [(Method, &'static str, bool); 6] = [
        (Method::GET, "claims/c", false),
        (Method::PUT, "claims/c", false),
        (Method::PUT, "claims/c/status", false),
        (Method::GET, "pods/p", true),
        (Method::POST, "resourceclaims", true),
        (Method::PATCH, "pods/p/status", true),
    ];
    for (method, path, is_extended) in tries {
        let server = Shared::default();
        let client = client(&server);
        let (actor, mut backs) = actor(&client).await;
        let claim = make_claim(&client, "c").await;
        let pod = make_pod(&client, "p", Some("c")).await;
        let fault = || Fault { method: method.clone(), path, done: false };
        server.lock().unwrap().faults.extend((0..MANY).map(|_| fault()));
        let order = if is_extended {
            order(&pod, &[], Some(extended()))
        } else {
            order(&pod, &["c"], Some(given(&claim, 0)))
        };
        let began = tokio::time::Instant::now();
        actor.bind(&order, None).await;
        assert_eq!(outcome(&mut backs).0, BindOutcome::Unprepared, "{method} {path}");
        let took = began.elapsed();
        assert!(took < std::time::Duration::from_secs(120), "{method} {path}: {took:?}");
        assert!(server.lock().unwrap().faults.len() > MANY / 2);
    }
}

/// After a binding that was rejected for good.
#[tokio::test(start_paused = true)]
async fn attempts_to_take_a_reservation_back_have_an_end() {
    const MANY: usize = 1_000;
    let server = Shared::default();
    let client = client(&server);
    let (actor, mut backs) = actor(&client).await;
    let claim = make_claim(&client, "c").await;
    let pod = make_pod(&client, "p", Some("c")).await;
    let mut order = order(&pod, &["c"], Some(given(&claim, 0)));
    order.version = 0;
    let fault = || Fault { method: Method::PATCH, path: "claims/c/status", done: false };
    server.lock().unwrap().faults.extend((0..MANY).map(|_| fault()));
    actor.bind(&order, None).await;
    assert_eq!(outcome(&mut backs).0, BindOutcome::Refused);
    assert!(server.lock().unwrap().faults.len() > MANY / 2);
}

#[tokio::test(start_paused = true)]
async fn who_was_deposed_gives_nothing() {
    let server = Shared::default();
    let client = client(&server);
    let (actor, mut backs) = actor(&client).await;
    let claim = make_claim(&client, "c").await;
    let pod = make_pod(&client, "p", Some("c")).await;
    let order = order(&pod, &["c"], Some(given(&claim, 0)));
    {
        let mut server = server.lock().unwrap();
        let key = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/berth");
        let mut lease = server.objects[&key].clone();
        lease["spec"]["holderIdentity"] = json!("somebody else");
        server.store(&key, lease);
    }
    actor.bind(&order, None).await;
    assert_eq!(outcome(&mut backs).0, BindOutcome::Unknown);
    assert!(get(&client, &claims_path("c")).await["status"].is_null());
    // Whoever took over touches pod and claim: what is still under way fails.
    fence::fence(&client, &order.pod, "somebody else").await.unwrap();
    let touched = get(&client, &claims_path("c")).await;
    assert!(version(&touched) > version(&claim));
    let late = json!({ "metadata": claim["metadata"], "status": { "allocation": {} } });
    let (code, _) =
        server.lock().unwrap().handle(&Method::PUT, &format!("{}/status", claims_path("c")), &late);
    assert_eq!(code, StatusCode::CONFLICT);
}

#[test]
fn devices_are_ready_when_all_conditions_hold_and_none_that_is_a_failure() {
    use super::Readiness;
    let claim = |conditions: Value| {
        let id = json!({ "driver": "x", "pool": "p", "device": "d" });
        let mut result = id.clone();
        result["request"] = json!("r");
        result["bindingConditions"] = json!(["attached", "warm"]);
        result["bindingFailureConditions"] = json!(["broken"]);
        let mut said = id;
        said["conditions"] = conditions;
        serde_json::from_value::<resource::ResourceClaim>(json!({
            "metadata": {}, "spec": {},
            "status": { "allocation": { "devices": { "results": [result] } }, "devices": [said] },
        }))
    };
    let holds = |name: &str| {
        let time = "2026-01-01T00:00:00Z";
        json!({ "type": name, "status": "True", "reason": "x", "message": "",
                "lastTransitionTime": time })
    };
    for (conditions, expected) in [
        (json!([]), Readiness::Waiting),
        (json!([holds("attached")]), Readiness::Waiting),
        (json!([holds("attached"), holds("warm")]), Readiness::Ready),
        (json!([holds("attached"), holds("warm"), holds("broken")]), Readiness::Failed),
    ] {
        let claim = claim(conditions.clone()).unwrap();
        assert_eq!(super::readiness(&claim), expected, "{conditions}");
    }
}

#[test]
fn shares_are_named_by_uuids() {
    let name = super::share_id();
    let lengths: Vec<usize> = name.split('-').map(str::len).collect();
    assert_eq!(lengths, [8, 4, 4, 4, 12], "{name}");
    assert_eq!(name.as_bytes()[14], b'4', "{name}");
    assert_ne!(name, super::share_id());
}

#[tokio::test]
#[expect(clippy::print_stderr, reason = "a test that does nothing says so")]
async fn a_real_api_server_takes_what_is_written() {
    let (Ok(url), Ok(token)) = (std::env::var("BERTH_TEST_API"), std::env::var("BERTH_TEST_TOKEN"))
    else {
        eprintln!("skipped: BERTH_TEST_API and BERTH_TEST_TOKEN do not say where a server is");
        return;
    };
    drop(rustls::crypto::ring::default_provider().install_default());
    let mut config = kube::Config::new(url.parse().unwrap());
    config.accept_invalid_certs = true;
    config.auth_info.token = Some(token.into());
    let client = Client::try_from(config).unwrap();
    let suffix = lease::incarnation("").unwrap().replace('_', "-");
    two_pods_share_a_claim(&client, &suffix).await;
    a_claim_is_made_for_extended_resources(&client, &suffix).await;
}
