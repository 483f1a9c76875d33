//! Watches, the disk, permissions and hostile input: what clients rely on beyond single answers.
#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use std::path::Path;
use std::time::Duration;

use berth_apiserver::{ApiServer, Authorization, OpenError, Options, Token};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use tower::ServiceExt as _;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn send(
    server: &ApiServer,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Vec<u8>,
) -> http::Response<berth_apiserver::Body> {
    let mut request = http::Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(Bytes::from(body))).unwrap();
    server.service().oneshot(request).await.unwrap()
}

async fn ask(server: &ApiServer, method: &str, path: &str, body: Value) -> (u16, Value) {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let response = send(server, method, path, &[("content-type", kind)], body).await;
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap_or_default())
}

fn map(name: &str, labels: Value) -> Value {
    json!({"metadata": {"name": name, "labels": labels}})
}

fn server() -> ApiServer {
    ApiServer::new(Options::default()).unwrap()
}

/// A watch that is read event by event.
struct Events {
    body: berth_apiserver::Body,
    text: String,
}

impl Events {
    async fn open(server: &ApiServer, path: &str) -> Self {
        let response = send(server, "GET", path, &[], Vec::new()).await;
        assert_eq!(response.status(), 200);
        Self { body: response.into_body(), text: String::new() }
    }

    /// The next event, or none if the watch has ended.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((line, rest)) = self.text.split_once('\n') {
                let event = serde_json::from_str(line).unwrap();
                self.text = rest.to_owned();
                return Some(event);
            }
            let frame = tokio::time::timeout(Duration::from_secs(10), self.body.frame()).await;
            let data = frame.unwrap()?.unwrap().into_data().unwrap();
            self.text.push_str(std::str::from_utf8(&data).unwrap());
        }
    }

    async fn next_shown(&mut self) -> String {
        let event = self.next().await.unwrap();
        let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default();
        format!("{} {name}", event["type"].as_str().unwrap())
    }
}

#[tokio::test]
async fn objects_enter_and_leave_a_selection() {
    let server = server();
    let mut events = Events::open(&server, &format!("{MAPS}?watch=1&labelSelector=team%3Da")).await;
    ask(&server, "POST", MAPS, map("x", json!({"team": "a"}))).await;
    ask(&server, "POST", MAPS, map("other", json!({"team": "b"}))).await;
    let path = format!("{MAPS}/x");
    ask(&server, "PATCH", &path, json!({"data": {"k": "v"}})).await;
    ask(&server, "PATCH", &path, json!({"metadata": {"labels": {"team": "b"}}})).await;
    ask(&server, "PATCH", &path, json!({"metadata": {"labels": {"team": "a"}}})).await;
    ask(&server, "DELETE", &path, Value::Null).await;
    for expected in ["ADDED x", "MODIFIED x", "DELETED x", "ADDED x", "DELETED x"] {
        assert_eq!(events.next_shown().await, expected);
    }
}

#[tokio::test]
async fn a_streaming_list_ends_with_a_bookmark_and_goes_on() {
    let server = server();
    ask(&server, "POST", MAPS, map("x", json!({}))).await;
    let query =
        "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut events = Events::open(&server, &format!("{MAPS}?{query}")).await;
    assert_eq!(events.next_shown().await, "ADDED x");
    let bookmark = events.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    let annotations = &bookmark["object"]["metadata"]["annotations"];
    assert_eq!(annotations["k8s.io/initial-events-end"], "true");
    ask(&server, "POST", MAPS, map("y", json!({}))).await;
    assert_eq!(events.next_shown().await, "ADDED y");
}

#[tokio::test]
async fn quiet_watches_get_bookmarks_that_move_on() {
    let bookmark_interval = Duration::from_millis(20);
    let server = ApiServer::new(Options { bookmark_interval, ..Options::default() }).unwrap();
    let mut events =
        Events::open(&server, &format!("{MAPS}?watch=1&allowWatchBookmarks=true")).await;
    let revision = |event: &Value| -> u64 {
        event["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
    };
    let first = events.next().await.unwrap();
    // Something else changes: the bookmark says up to where this watch has seen everything.
    ask(&server, "POST", "/api/v1/nodes", json!({"metadata": {"name": "n"}})).await;
    let mut last = first.clone();
    for _ in 0..50 {
        last = events.next().await.unwrap();
        assert_eq!(last["type"], "BOOKMARK");
        if revision(&last) > revision(&first) {
            break;
        }
    }
    assert!(revision(&last) > revision(&first));
}

#[tokio::test]
async fn a_kind_nobody_has_touched_can_be_watched_from_any_list() {
    let server = server();
    let (_, listed) = ask(&server, "GET", MAPS, Value::Null).await;
    let revision = listed["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    // Something else changes between the list and the watch.
    let secret = json!({"metadata": {"name": "s"}});
    ask(&server, "POST", "/api/v1/namespaces/default/secrets", secret).await;
    let mut events =
        Events::open(&server, &format!("{MAPS}?watch=1&resourceVersion={revision}")).await;
    ask(&server, "POST", MAPS, map("m", json!({}))).await;
    let event = events.next().await.unwrap();
    assert_eq!(event["type"], "ADDED", "{event}");
}

#[tokio::test]
async fn a_watch_that_fell_behind_is_told_to_list_again() {
    let server = ApiServer::new(Options { history: 4, ..Options::default() }).unwrap();
    let (_, first) = ask(&server, "POST", MAPS, map("x0", json!({}))).await;
    let revision = first["metadata"]["resourceVersion"].as_str().unwrap();
    for at in 1..10 {
        ask(&server, "POST", MAPS, map(&format!("x{at}"), json!({}))).await;
    }
    let mut events =
        Events::open(&server, &format!("{MAPS}?watch=1&resourceVersion={revision}")).await;
    let error = events.next().await.unwrap();
    assert_eq!(error["type"], "ERROR");
    assert_eq!(
        (&error["object"]["code"], &error["object"]["reason"]),
        (&json!(410), &json!("Expired"))
    );
    assert!(events.next().await.is_none());
    let exact = format!("{MAPS}?resourceVersion={revision}&resourceVersionMatch=Exact");
    assert_eq!(ask(&server, "GET", &exact, Value::Null).await.0, 410);
}

#[tokio::test]
async fn pages_are_of_one_moment() {
    let server = server();
    for name in ["a", "b", "c", "d"] {
        ask(&server, "POST", MAPS, map(name, json!({}))).await;
    }
    let (_, first) = ask(&server, "GET", &format!("{MAPS}?limit=2"), Value::Null).await;
    ask(&server, "DELETE", &format!("{MAPS}/c"), Value::Null).await;
    ask(&server, "POST", MAPS, map("bb", json!({}))).await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    let (_, second) =
        ask(&server, "GET", &format!("{MAPS}?limit=2&continue={token}"), Value::Null).await;
    let names: Vec<&str> = second["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["metadata"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["c", "d"]);
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
}

fn on_disk(directory: &Path) -> Result<ApiServer, OpenError> {
    ApiServer::new(Options { data: Some(directory.to_owned()), ..Options::default() })
}

fn log_of(directory: &Path) -> std::path::PathBuf {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &std::path::PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    entries.filter(|path| name(path).starts_with("log-")).max().unwrap()
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_a_stop_at_any_byte() {
    let directory = tempfile::tempdir().unwrap();
    let server = on_disk(directory.path()).unwrap();
    let (mut ends, mut marks) = (Vec::new(), Vec::new());
    let mark = directory.path().join("acknowledged");
    for name in ["a", "b", "c"] {
        let (code, _) = ask(&server, "POST", MAPS, map(name, json!({}))).await;
        assert_eq!(code, 201);
        marks.push(std::fs::read(&mark).unwrap());
        ends.push(std::fs::metadata(log_of(directory.path())).unwrap().len());
    }
    assert!(matches!(on_disk(directory.path()), Err(OpenError::Data(_))), "it is in use");
    drop(server);
    let log = log_of(directory.path());
    let whole = std::fs::read(&log).unwrap();
    // The log is cut at every byte behind the first object, as a kill or a lost power would.
    for cut in ends[0]..=ends[2] {
        std::fs::write(&log, &whole[..usize::try_from(cut).unwrap()]).unwrap();
        let acknowledged = ends.iter().filter(|end| **end <= cut).count();
        std::fs::write(&mark, &marks[acknowledged - 1]).unwrap();
        let server = on_disk(directory.path()).unwrap();
        let (_, list) = ask(&server, "GET", MAPS, Value::Null).await;
        assert_eq!(list["items"].as_array().unwrap().len(), acknowledged, "cut at {cut}");
        // It goes on from there.
        assert_eq!(ask(&server, "POST", MAPS, map("new", json!({}))).await.0, 201);
    }
    // Damage in the middle is refused, and says where and what to do.
    let mut damaged = whole.clone();
    damaged[usize::try_from(ends[0]).unwrap() + 30] ^= 1;
    std::fs::write(&log, &damaged).unwrap();
    let Err(error) = on_disk(directory.path()) else { panic!("damage was not noticed") };
    let text = error.to_string();
    assert!(text.contains("log-") && text.contains(&format!("byte {}", ends[0])), "{text}");
    assert!(text.contains("Restore"), "{text}");
}

#[tokio::test]
async fn revisions_go_on_after_a_restart_and_old_watches_list_again() {
    let directory = tempfile::tempdir().unwrap();
    let server = on_disk(directory.path()).unwrap();
    let (_, created) = ask(&server, "POST", MAPS, map("a", json!({}))).await;
    let revision: u64 = created["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    ask(&server, "DELETE", &format!("{MAPS}/a"), Value::Null).await;
    drop(server);
    let server = on_disk(directory.path()).unwrap();
    let (_, list) = ask(&server, "GET", MAPS, Value::Null).await;
    let now: u64 = list["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    assert!(now > revision);
    assert_eq!(list["items"], json!([]));
    let mut events =
        Events::open(&server, &format!("{MAPS}?watch=1&resourceVersion={revision}")).await;
    assert_eq!(events.next().await.unwrap()["type"], "ERROR");
}

async fn as_user(server: &ApiServer, token: &str, method: &str, path: &str) -> (u16, Value) {
    let bearer = format!("Bearer {token}");
    let response = send(server, method, path, &[("authorization", &bearer)], Vec::new()).await;
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap_or_default())
}

#[tokio::test]
async fn roles_decide_what_a_token_may_do() {
    let alice = Token { token: "secret".into(), user: "alice".into(), groups: vec!["devs".into()] };
    let server = ApiServer::new(Options {
        authorization: Authorization::Rbac,
        tokens: vec![alice],
        ..Options::default()
    })
    .unwrap();
    assert_eq!(as_user(&server, "nobody", "GET", MAPS).await.0, 401);
    let (code, refusal) = as_user(&server, "secret", "GET", MAPS).await;
    assert_eq!(code, 403);
    assert_eq!(
        refusal["message"],
        "configmaps is forbidden: User \"alice\" cannot list resource \"configmaps\" in API group \"\" in the namespace \"default\""
    );
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    ask(
        &server,
        "POST",
        &format!("{rbac}/roles"),
        json!({
            "metadata": {"name": "reader"},
            "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}],
        }),
    )
    .await;
    ask(
        &server,
        "POST",
        &format!("{rbac}/rolebindings"),
        json!({
            "metadata": {"name": "devs"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"},
            "subjects": [
                {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "devs"},
                {"kind": "ServiceAccount", "name": "default", "namespace": "default"},
            ],
        }),
    )
    .await;
    assert_eq!(as_user(&server, "secret", "GET", MAPS).await.0, 200);
    assert_eq!(as_user(&server, "secret", "DELETE", &format!("{MAPS}/x")).await.0, 403);
    // A service account gets a token and may do the same.
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let (code, token) = ask(&server, "POST", path, json!({"spec": {}})).await;
    assert_eq!(code, 201, "{token}");
    let token = token["status"]["token"].as_str().unwrap();
    assert_eq!(as_user(&server, token, "GET", MAPS).await.0, 200);
    let review = "/apis/authentication.k8s.io/v1/tokenreviews";
    let (_, review) = ask(&server, "POST", review, json!({"spec": {"token": token}})).await;
    assert_eq!(
        review["status"]["user"]["username"], "system:serviceaccount:default:default",
        "{review}"
    );
}

#[tokio::test]
async fn an_eviction_asks_the_budget() {
    let server = server();
    let pods = "/api/v1/namespaces/default/pods";
    for name in ["p", "q"] {
        let (code, pod) = ask(
            &server,
            "POST",
            pods,
            json!({
                "metadata": {"name": name, "labels": {"app": "web"}},
                "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]},
            }),
        )
        .await;
        assert_eq!(code, 201, "{pod}");
        let status = json!({"status": {
            "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
        }});
        ask(&server, "PATCH", &format!("{pods}/{name}/status"), status).await;
    }
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    ask(
        &server,
        "POST",
        budgets,
        json!({
            "metadata": {"name": "b"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
        }),
    )
    .await;
    let status = json!({"status": {
        "observedGeneration": 1, "disruptionsAllowed": 1,
        "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2,
    }});
    ask(&server, "PATCH", &format!("{budgets}/b/status"), status).await;
    let evict = |name: &str| {
        let body = json!({
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name},
        });
        (format!("{pods}/{name}/eviction"), body)
    };
    let (path, body) = evict("p");
    assert_eq!(ask(&server, "POST", &path, body).await.0, 201);
    let (_, pod) = ask(&server, "GET", &format!("{pods}/p"), Value::Null).await;
    assert!(pod["metadata"]["deletionTimestamp"].is_string(), "{pod}");
    let conditions = pod["status"]["conditions"].as_array().unwrap();
    assert!(conditions.iter().any(|condition| condition["type"] == "DisruptionTarget"));
    let (path, body) = evict("q");
    let (code, refusal) = ask(&server, "POST", &path, body).await;
    assert_eq!((code, &refusal["reason"]), (429, &json!("TooManyRequests")));
    assert_eq!(refusal["details"]["causes"][0]["reason"], "DisruptionBudget");
}

#[tokio::test]
async fn hostile_input_gets_a_status() {
    let server = server();
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let bodies: Vec<Vec<u8>> = vec![
        b"{\"metadata\":{\"name\":\"\xff\xfe\"}}".to_vec(),
        deep.into_bytes(),
        b"null".to_vec(),
        b"[]".to_vec(),
        b"{\"metadata\": 3}".to_vec(),
        b"{\"metadata\": {\"name\": {}}}".to_vec(),
        b"{\"metadata\": {\"name\": \"x\", \"labels\": []}}".to_vec(),
        vec![b' '; 4 << 20],
        format!("{{\"metadata\": {{\"name\": \"{}\"}}}}", "x".repeat(100_000)).into_bytes(),
    ];
    for body in bodies {
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        let headers = [("content-type", "application/json")];
        let response = send(&server, "POST", MAPS, &headers, body).await;
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let status: Value = serde_json::from_slice(&bytes).unwrap();
        assert!((400..500).contains(&code), "{code} for {shown}");
        assert_eq!(status["kind"], "Status", "{shown}");
    }
    let selector = "a%20in%20(".repeat(2000);
    let (code, _) =
        ask(&server, "GET", &format!("{MAPS}?labelSelector={selector}"), Value::Null).await;
    assert_eq!(code, 400);
    let protobuf = [("content-type", "application/vnd.kubernetes.protobuf")];
    let body = b"k8s\0\xff\xff\xff\xff\xff".to_vec();
    assert_eq!(send(&server, "POST", MAPS, &protobuf, body).await.status(), 400);
}

#[tokio::test]
async fn a_deleted_namespace_empties_itself_and_goes() {
    let server = server();
    ask(&server, "POST", "/api/v1/namespaces", json!({"metadata": {"name": "team"}})).await;
    let maps = "/api/v1/namespaces/team/configmaps";
    ask(&server, "POST", maps, map("x", json!({}))).await;
    ask(&server, "DELETE", "/api/v1/namespaces/team", Value::Null).await;
    for _ in 0..100 {
        if ask(&server, "GET", "/api/v1/namespaces/team", Value::Null).await.0 == 404 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(ask(&server, "GET", "/api/v1/namespaces/team", Value::Null).await.0, 404);
    assert_eq!(ask(&server, "GET", maps, Value::Null).await.1["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: run it alone, with --ignored --nocapture"]
#[allow(clippy::print_stdout, reason = "the figures are what it is for")]
async fn how_fast_it_is() {
    let server = server();
    let pods = "/api/v1/namespaces/default/pods";
    let begun = std::time::Instant::now();
    for at in 0..10_000 {
        let pod = json!({
            "metadata": {"name": format!("p{at}"), "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": {
                "requests": {"cpu": "1", "nvidia.com/gpu": "1"},
                "limits": {"cpu": "1", "nvidia.com/gpu": "1"},
            }}]},
        });
        assert_eq!(ask(&server, "POST", pods, pod).await.0, 201);
    }
    println!("10,000 pods created in {:?}", begun.elapsed());
    let begun = std::time::Instant::now();
    for at in 0..4_000 {
        let binding = json!({
            "metadata": {"name": format!("p{at}")},
            "target": {"kind": "Node", "name": format!("n{}", at % 1000)},
        });
        let path = format!("{pods}/p{at}/binding");
        assert_eq!(ask(&server, "POST", &path, binding).await.0, 201);
    }
    println!("4,000 pods bound in {:?}", begun.elapsed());
    let begun = std::time::Instant::now();
    let response = send(&server, "GET", "/api/v1/pods", &[], Vec::new()).await;
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    println!("10,000 pods listed in {:?}: {} bytes", begun.elapsed(), bytes.len());
    let path = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1";
    let begun = std::time::Instant::now();
    let (_, list) = ask(&server, "GET", path, Value::Null).await;
    println!(
        "{} pods of a node found in {:?}",
        list["items"].as_array().unwrap().len(),
        begun.elapsed()
    );
}

#[tokio::test]
async fn built_in_roles_and_impersonation_work_as_in_a_new_cluster() {
    let root = Token {
        token: "root".into(),
        user: "root".into(),
        groups: vec!["system:masters".to_owned()],
    };
    let alice = Token { token: "alice".into(), user: "alice".into(), groups: vec![] };
    let server = ApiServer::new(Options {
        authorization: Authorization::RbacWithToken,
        tokens: vec![root, alice],
        ..Options::default()
    })
    .unwrap();
    let binding = json!({
        "metadata": {"name": "alice"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}],
    });
    let bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
    assert_eq!(ask(&server, "POST", bindings, binding).await.0, 201);
    assert_eq!(as_user(&server, "alice", "GET", MAPS).await.0, 200);
    let secrets = "/api/v1/namespaces/default/secrets";
    assert_eq!(as_user(&server, "alice", "GET", secrets).await.0, 403);
    assert_eq!(as_user(&server, "alice", "GET", "/apis").await.0, 200);
    assert_eq!(as_user(&server, "root", "GET", secrets).await.0, 200);
    let acting = async |token: &str| {
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", bearer.as_str()), ("impersonate-user", "alice")];
        send(&server, "GET", secrets, &headers, Vec::new()).await.status().as_u16()
    };
    assert_eq!((acting("root").await, acting("alice").await), (403, 403));
    let headers = [("authorization", "Bearer root"), ("impersonate-user", "alice")];
    assert_eq!(send(&server, "GET", MAPS, &headers, Vec::new()).await.status().as_u16(), 200);
}

#[tokio::test]
async fn what_needs_containers_is_refused_with_the_reason() {
    let server = server();
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    });
    assert_eq!(ask(&server, "POST", pods, pod).await.0, 201);
    for part in ["exec", "attach", "portforward"] {
        let (code, status) = ask(&server, "POST", &format!("{pods}/p/{part}"), Value::Null).await;
        assert_eq!((code, &status["reason"]), (501, &json!("NotImplemented")), "{status}");
        let message = format!("pods/{part}: virtual nodes run no containers");
        assert_eq!(status["message"], message);
        let (code, _) = ask(&server, "POST", &format!("{pods}/q/{part}"), Value::Null).await;
        assert_eq!(code, 404);
    }
}

#[tokio::test]
async fn openapi_has_the_fields_of_built_in_and_custom_kinds() {
    let server = server();
    let (_, apps) = ask(&server, "GET", "/openapi/v3/apis/apps/v1", Value::Null).await;
    let schemas = &apps["components"]["schemas"];
    let spec = &schemas["io.k8s.api.apps.v1.Deployment"]["properties"]["spec"];
    assert_eq!(spec["$ref"], "#/components/schemas/io.k8s.DeploymentSpec");
    let fields = &schemas["io.k8s.DeploymentSpec"]["properties"];
    assert_eq!(fields["replicas"], json!({"type": "integer", "format": "int32"}));
    assert_eq!(fields["strategy"]["x-kubernetes-patch-strategy"], "retainKeys");
    let containers = &schemas["io.k8s.PodSpec"]["properties"]["containers"];
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(containers["items"]["$ref"], "#/components/schemas/io.k8s.Container");
    // Every reference leads somewhere.
    let text = apps.to_string();
    for reference in text.split("\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(schemas[name].is_object(), "{name}");
    }
    let definition = json!({
        "metadata": {"name": "teams.example.com"},
        "spec": {
            "group": "example.com", "scope": "Cluster",
            "names": {"plural": "teams", "kind": "Team"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "description": "What it gets."},
                }}},
            }],
        },
    });
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(ask(&server, "POST", definitions, definition).await.0, 201);
    let (_, custom) = ask(&server, "GET", "/openapi/v3/apis/example.com/v1", Value::Null).await;
    let team = &custom["components"]["schemas"]["com.example.v1.Team"]["properties"];
    assert_eq!(team["spec"]["description"], "What it gets.");
    assert_eq!(team["metadata"]["$ref"], "#/components/schemas/io.k8s.ObjectMeta");
}

#[tokio::test]
async fn templates_of_stateful_sets_may_mount_their_volume_claims() {
    let server = server();
    let set = |mounted: &str| {
        let mount = json!({"name": mounted, "mountPath": "/data"});
        let container = json!({"name": "c", "image": "i", "volumeMounts": [mount]});
        json!({
            "metadata": {"name": format!("set-{mounted}")},
            "spec": {
                "serviceName": "db",
                "selector": {"matchLabels": {"app": "db"}},
                "template": {
                    "metadata": {"labels": {"app": "db"}},
                    "spec": {"containers": [container]},
                },
                "volumeClaimTemplates": [{
                    "metadata": {"name": "data"},
                    "spec": {
                        "accessModes": ["ReadWriteOnce"],
                        "resources": {"requests": {"storage": "1Gi"}},
                    },
                }],
            },
        })
    };
    let sets = "/apis/apps/v1/namespaces/default/statefulsets";
    let (code, made) = ask(&server, "POST", sets, set("data")).await;
    assert_eq!(code, 201, "{made}");
    let (code, refused) = ask(&server, "POST", sets, set("other")).await;
    assert_eq!(code, 422);
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("volumeMounts[0].name: Not found: \"other\""), "{message}");
}
