//! Snapshots of an API that is scripted: pages, kinds that are not there or not allowed, and servers that
//! do not do as they should.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_control::snapshot::{Snapshot, SnapshotError, take};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use kube::Client;
use kube::client::Body;
use serde_json::json;

type Asked = Arc<Mutex<Vec<String>>>;

/// An API that answers paths with a status and a text; `None`: it never does.
fn api(
    answer: impl Fn(&str, &str) -> Option<(u16, String)> + Clone + Send + 'static,
) -> (Client, Asked) {
    let asked = Asked::default();
    let seen = asked.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (answer, seen) = (answer.clone(), seen.clone());
        async move {
            let uri = request.uri().clone();
            seen.lock().unwrap().push(uri.to_string());
            let Some((status, text)) = answer(uri.path(), uri.query().unwrap_or_default()) else {
                return std::future::pending().await;
            };
            let body = Full::new(Bytes::from(text));
            let response = Response::builder().status(status).body(body).unwrap();
            Ok::<_, Infallible>(response)
        }
    });
    (Client::new(service, "default"), asked)
}

fn status(code: u16, reason: &str, message: &str) -> (u16, String) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                        "reason": reason, "message": message});
    (code, status.to_string())
}

fn page(names: &[&str], next: &str) -> (u16, String) {
    let items: Vec<_> = names.iter().map(|name| json!({"metadata": {"name": name}})).collect();
    let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"continue": next},
                      "items": items});
    (200, list.to_string())
}

async fn taken(client: &Client) -> Result<Snapshot, SnapshotError> {
    take(client, "context test (http://test)", Some(Duration::from_millis(200))).await
}

fn paths(snapshot: &Snapshot) -> BTreeMap<&str, usize> {
    let mut paths = BTreeMap::new();
    for page in &snapshot.pages {
        *paths.entry(page.path.as_str()).or_default() += 1;
    }
    paths
}

#[tokio::test]
async fn everything_is_listed_page_by_page() {
    let (client, asked) = api(|path, query| {
        Some(match (path, query) {
            ("/api/v1/pods", "limit=500") => page(&["a", "b"], "a b&c="),
            ("/api/v1/pods", "limit=500&continue=a%20b%26c%3D") => page(&["c"], ""),
            ("/api/v1/pods", other) => panic!("asked for pods with {other}"),
            _ => page(&["x"], ""),
        })
    });
    let snapshot = taken(&client).await.unwrap();
    assert_eq!(snapshot.gaps, Vec::<String>::new());
    let paths = paths(&snapshot);
    assert_eq!(paths["/api/v1/pods"], 2);
    for path in [
        "/api/v1/nodes",
        "/apis/policy/v1/poddisruptionbudgets",
        "/apis/resource.k8s.io/v1/resourceslices",
        "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies",
        "/apis/karpenter.sh/v1/nodepools",
    ] {
        assert_eq!(paths.get(path), Some(&1), "{path}");
    }
    let asked = asked.lock().unwrap();
    assert!(!asked.iter().any(|uri| uri.contains("v1alpha2/podgroups")), "the newest will do");
}

#[tokio::test]
async fn kinds_that_are_not_there_are_passed_over() {
    let (client, _) = api(|path, _| {
        Some(match path {
            "/api/v1/pods" | "/api/v1/nodes" => page(&["x"], ""),
            path if path.ends_with("v1alpha2/podgroups") => page(&["gang"], ""),
            _ => (404, "404 page not found\n".to_owned()),
        })
    });
    let snapshot = taken(&client).await.unwrap();
    let paths = paths(&snapshot);
    assert_eq!(paths.len(), 3);
    assert!(paths.contains_key("/apis/scheduling.k8s.io/v1alpha2/podgroups"), "the older will do");
    assert_eq!(snapshot.gaps.len(), 1, "{:?}", snapshot.gaps);
    assert!(snapshot.gaps[0].contains("noderesourcetopologies"), "{:?}", snapshot.gaps);
    assert!(snapshot.gaps[0].contains("known only from their labels"), "{:?}", snapshot.gaps);
}

#[tokio::test]
async fn kinds_that_may_not_be_listed_are_reported_with_the_consequence() {
    let (client, _) = api(|path, _| {
        Some(match path {
            "/api/v1/resourcequotas" => status(403, "Forbidden", "no"),
            path if path.ends_with("sets") => status(403, "Forbidden", "no"),
            "/apis/policy/v1/poddisruptionbudgets" => status(500, "InternalError", "no"),
            _ => page(&["x"], ""),
        })
    });
    let gaps = taken(&client).await.unwrap().gaps;
    assert_eq!(gaps.len(), 3, "{gaps:?}");
    assert!(gaps[0].starts_with("you may not list resourcequotas: pods that a quota holds"));
    assert!(
        gaps[1].starts_with(
            "you may not list replicasets.apps, statefulsets.apps: default spreading of"
        )
    );
    assert!(gaps[2].starts_with("the server did not list (error 500) poddisruptionbudgets.policy"));
}

#[tokio::test]
async fn without_nodes_or_pods_nothing_can_be_said() {
    let forbidden = r#"pods is forbidden: User "jane" cannot list resource "pods" in API group """#;
    let (client, _) = api(move |path, _| {
        Some(match path {
            "/api/v1/pods" => status(403, "Forbidden", forbidden),
            _ => page(&["x"], ""),
        })
    });
    let said = taken(&client).await.unwrap_err().to_string();
    assert!(said.starts_with("context test (http://test) does not let user \"jane\" list pods"));
    assert!(said.contains("--user=\"jane\"") && said.contains("kind: ClusterRole"), "{said}");

    let (client, _) = api(|_, _| Some((404, "404 page not found".to_owned())));
    let said = taken(&client).await.unwrap_err().to_string();
    assert!(said.contains("is it a Kubernetes API?"), "{said}");
    let (client, _) = api(|_, _| Some((200, "<html>hello</html>".to_owned())));
    assert!(taken(&client).await.is_err());
    let (client, _) = api(|_, _| Some(status(401, "Unauthorized", "Unauthorized")));
    let said = taken(&client).await.unwrap_err().to_string();
    assert!(said.contains("(401)") && said.contains("log in again"), "{said}");
}

#[tokio::test]
async fn a_list_that_the_server_has_forgotten_is_started_over_and_then_taken_whole() {
    let (client, asked) = api(|path, query| {
        Some(match (path, query) {
            ("/api/v1/pods", "") => page(&["a", "b", "c"], ""),
            ("/api/v1/pods", "limit=500") => page(&["a"], "next"),
            ("/api/v1/pods", _) => status(410, "Expired", "too old"),
            _ => page(&["x"], ""),
        })
    });
    let snapshot = taken(&client).await.unwrap();
    let pods: Vec<_> = snapshot.pages.iter().filter(|page| page.path == "/api/v1/pods").collect();
    assert_eq!(pods.len(), 1);
    assert!(pods[0].text.contains("\"c\""));
    let asked = asked.lock().unwrap();
    assert_eq!(asked.iter().filter(|uri| uri.starts_with("/api/v1/pods")).count(), 5);
}

#[tokio::test]
async fn a_server_that_never_answers_or_never_ends_is_left() {
    let (client, _) = api(|_, _| None);
    let said = taken(&client).await.unwrap_err().to_string();
    assert!(said.contains("--request-timeout"), "{said}");
    let (client, _) = api(|path, _| {
        Some(match path {
            "/api/v1/nodes" => page(&["again"], "more"),
            _ => page(&["x"], ""),
        })
    });
    let said = taken(&client).await.unwrap_err().to_string();
    assert!(said.contains("more than 4000 pages"), "{said}");
}
