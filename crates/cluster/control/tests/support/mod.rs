//! What tests against a real kube-apiserver share: objects of any kind, waiting, tokens of agents.
#![allow(dead_code, reason = "each test uses a part")]

use std::time::{Duration, Instant};

use berth_control::install::AGENT_NAME;
use berth_testbed::Testbed;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1 as core;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};

pub(crate) fn api_of(client: &Client, object: &Value) -> Api<DynamicObject> {
    let text = |field: &str| object.pointer(field).and_then(Value::as_str).unwrap_or_default();
    let (group, version) = text("/apiVersion").split_once('/').unwrap_or(("", text("/apiVersion")));
    let kind = GroupVersionKind::gvk(group, version, text("/kind"));
    let resource = ApiResource::from_gvk(&kind);
    match text("/metadata/namespace") {
        "" => Api::all_with(client.clone(), &resource),
        namespace => Api::namespaced_with(client.clone(), namespace, &resource),
    }
}

pub(crate) async fn apply(client: &Client, object: &Value) -> Result<Value, kube::Error> {
    let name = object["metadata"]["name"].as_str().unwrap();
    let parameters = PatchParams::apply("test").validation_strict();
    let applied = api_of(client, object).patch(name, &parameters, &Patch::Apply(object)).await?;
    Ok(serde_json::to_value(applied).unwrap())
}

pub(crate) async fn create(client: &Client, object: &Value) -> Result<Value, kube::Error> {
    let typed: DynamicObject = serde_json::from_value(object.clone()).unwrap();
    let made = api_of(client, object).create(&PostParams::default(), &typed).await?;
    Ok(serde_json::to_value(made).unwrap())
}

pub(crate) async fn until<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(done) = attempt().await {
            return done;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The token of an agent on a node.
pub(crate) async fn agent_on(
    testbed: &Testbed,
    admin: &Client,
    namespace: &str,
    node: &str,
) -> Client {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": format!("agent-{node}"), "namespace": namespace },
        "spec": {
            "nodeName": node, "serviceAccountName": AGENT_NAME,
            "containers": [{ "name": "agent", "image": "berth:1" }],
        },
    });
    let pod = create(admin, &pod).await.unwrap();
    let bound = BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: pod["metadata"]["name"].as_str().map(str::to_owned),
        uid: pod["metadata"]["uid"].as_str().map(str::to_owned),
    };
    let spec = TokenRequestSpec { bound_object_ref: Some(bound), ..TokenRequestSpec::default() };
    let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
    let accounts: Api<core::ServiceAccount> = Api::namespaced(admin.clone(), namespace);
    let given =
        accounts.create_token_request(AGENT_NAME, &PostParams::default(), &request).await.unwrap();
    testbed.client_with(&given.status.unwrap().token.unwrap()).await.unwrap()
}
