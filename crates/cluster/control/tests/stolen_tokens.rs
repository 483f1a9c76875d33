//! What the tokens of Berth's service accounts can do on a real kube-apiserver with everything that is printed: each
//! attempt of a thief is denied, with the reason, and each kind of write that the code makes is allowed.
//!
//! Attempts are dry runs: admission sees them as it sees others, and one that is not denied changes nothing.
//! Runs where kube-apiserver and etcd are: `KUBEBUILDER_ASSETS`, or `/usr/local/kubebuilder/bin`.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a helper of a test fails the test"
)]

mod support;

use std::time::{Duration, Instant};

use berth_control::install::{
    AGENT_NAME, AgentOptions, CERTIFICATES_SECRET, InstallOptions, NAME, agent_namespace, manifests,
};
use berth_testbed::{Testbed, Which, real_assets};
use http::Method;
use kube::Client;
use serde_json::{Value, json};
use support::{agent_on, apply, create};

const NAMESPACE: &str = "berth-system";
const POD: &str = "/api/v1/namespaces/default/pods/running";
const PENDING: &str = "/api/v1/namespaces/default/pods/pending";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const VOLUME_CLAIM: &str = "/api/v1/namespaces/default/persistentvolumeclaims/data";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
const WEBHOOKS: &str = "/apis/admissionregistration.k8s.io/v1";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/berth-system/leases";
const SECRETS: &str = "/api/v1/namespaces/berth-system/secrets";
const NODES: &str = "/api/v1/nodes";
const EXTENDED: &str = "resource.kubernetes.io/extended-resource-claim";
const PROTECTION: &str = "resource.kubernetes.io/delete-protection";

/// Sends a request as a client with a token would.
async fn send(
    client: &Client,
    method: Method,
    path: &str,
    body: &Value,
) -> Result<Value, kube::Error> {
    let kind = match method {
        Method::PATCH => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = http::Request::builder().method(method).uri(path);
    let request = request.header(http::header::CONTENT_TYPE, kind);
    client.request(request.body(body.to_string().into_bytes()).unwrap()).await
}

/// What a thief tries, and what the API server answers.
struct Thief<'a>(&'a Client);

impl Thief<'_> {
    async fn fails(&self, method: Method, path: &str, body: Value, says: &str) {
        let path = format!("{path}?dryRun=All");
        let began = Instant::now();
        // A policy takes effect a moment after it was created.
        loop {
            let answer = send(self.0, method.clone(), &path, &body).await;
            let denied = match &answer {
                Err(kube::Error::Api(status)) => {
                    matches!(status.code, 403 | 422) && status.message.contains(says)
                }
                _ => false,
            };
            if denied {
                return;
            }
            let is_late = began.elapsed() > Duration::from_secs(20);
            assert!(!is_late, "{method} {path} {body} is not denied with {says:?}: {answer:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn cannot_patch(&self, path: &str, body: Value, says: &str) {
        self.fails(Method::PATCH, path, body, says).await;
    }

    async fn cannot_create(&self, path: &str, body: Value, says: &str) {
        self.fails(Method::POST, path, body, says).await;
    }
}

/// A write of Berth's own.
async fn writes(client: &Client, method: Method, path: &str, body: Value) -> Value {
    let written = send(client, method.clone(), path, &body).await;
    written.unwrap_or_else(|error| panic!("{method} {path} {body}: {error}"))
}

fn everything() -> InstallOptions {
    InstallOptions {
        agent: Some(AgentOptions { mig: true, ..AgentOptions::default() }),
        topology_definition: true,
        ..InstallOptions::default()
    }
}

async fn installed() -> Option<(Testbed, Client)> {
    if real_assets().is_none() {
        eprintln!("skipped: no kube-apiserver and etcd; set KUBEBUILDER_ASSETS");
        return None;
    }
    let testbed = Testbed::start(Which::Real).await.unwrap();
    let admin = testbed.admin().await.unwrap();
    for object in manifests(&everything()) {
        let applied = apply(&admin, &object).await;
        assert!(applied.is_ok(), "{} {}: {applied:?}", object["kind"], object["metadata"]["name"]);
    }
    Some((testbed, admin))
}

fn pod(namespace: &str, name: &str, node: Option<&str>) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": namespace },
        "spec": { "schedulerName": "berth", "containers": [{
            "name": "c", "image": "i", "resources": { "limits": { "example.com/gpu": "1" } },
        }] },
    });
    if let Some(node) = node {
        pod["spec"]["nodeName"] = json!(node);
    }
    pod
}

/// Two nodes, and pods on them and without a node.
async fn populate(admin: &Client) {
    for name in ["n1", "n2"] {
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
        create(admin, &node).await.unwrap();
    }
    for object in [
        pod("kube-system", "dns", Some("n2")),
        pod("default", "running", Some("n1")),
        pod("default", "elsewhere", Some("n2")),
        pod("default", "pending", None),
    ] {
        create(admin, &object).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stolen_scheduler_token_changes_only_what_the_scheduler_writes() {
    let Some((testbed, admin)) = installed().await else { return };
    populate(&admin).await;
    let berth = testbed.client_as(NAMESPACE, NAME).await.unwrap();
    pods(&berth).await;
    claims(&admin, &berth).await;
    extended_claims(&admin, &berth).await;
    volumes(&admin, &berth).await;
    certificates(&admin, &berth).await;
    cluster(&admin, &berth).await;
}

async fn pods(berth: &Client) {
    let thief = Thief(berth);
    let mut image = json!({ "spec": { "containers": pod("", "", None)["spec"]["containers"] } });
    image["spec"]["containers"][0]["image"] = json!("evil");
    for path in ["/api/v1/namespaces/kube-system/pods/dns", POD] {
        thief.cannot_patch(path, image.clone(), "cannot patch resource \"pods\"").await;
    }
    let status = format!("{POD}/status");
    for metadata in [
        json!({ "labels": { "app": "other" } }),
        json!({ "annotations": { "example.com/a": "b" } }),
        json!({ "finalizers": ["example.com/never"] }),
    ] {
        let body = json!({ "metadata": metadata });
        thief.cannot_patch(&status, body, "may not change metadata of pods").await;
    }
    for change in [json!({ "phase": "Succeeded" }), json!({ "podIPs": [{ "ip": "10.0.0.1" }] })] {
        let body = json!({ "status": change });
        thief.cannot_patch(&status, body, "may only change conditions").await;
    }
    let ready = json!([{ "type": "Ready", "status": "True" }]);
    let body = json!({ "status": { "conditions": ready } });
    thief.cannot_patch(&status, body, "may only write the conditions").await;

    let binding = |metadata: Value, kind: &str| {
        json!({ "apiVersion": "v1", "kind": "Binding", "metadata": metadata,
                "target": { "apiVersion": "v1", "kind": kind, "name": "n1" } })
    };
    let annotated = json!({ "name": "pending", "annotations": { "example.com/a": "b" } });
    let path = format!("{PENDING}/binding");
    let says = "may only set the annotation berth.dev/placement";
    thief.cannot_create(&path, binding(annotated, "Node"), says).await;
    let labelled = json!({ "name": "pending", "labels": { "app": "other" } });
    thief.cannot_create(&path, binding(labelled, "Node"), says).await;

    let eviction = |options: Value| {
        json!({ "apiVersion": "policy/v1", "kind": "Eviction",
                "metadata": { "name": "running", "namespace": "default" },
                "deleteOptions": options })
    };
    let path = format!("{POD}/eviction");
    let now = json!({ "gracePeriodSeconds": 0, "preconditions": { "uid": "u" } });
    for options in [json!({}), now] {
        thief
            .cannot_create(&path, eviction(options), "may only evict with preconditions.uid")
            .await;
    }

    let allowed = json!({ "status": {
        "nominatedNodeName": "n1",
        "conditions": [
            { "type": "PodScheduled", "status": "False", "reason": "Unschedulable" },
            { "type": "DisruptionTarget", "status": "True", "reason": "r" },
            { "type": "berth.dev/Fenced", "status": "True", "reason": "r" },
        ],
    } });
    let noted = writes(berth, Method::PATCH, &format!("{PENDING}/status"), allowed).await;
    let mentioned = json!({ "status": { "extendedResourceClaimStatus": {
        "resourceClaimName": "pending-extended-resources-x",
        "requestMappings": [{ "containerName": "c", "resourceName": "example.com/gpu", "requestName": "r" }],
    } } });
    writes(berth, Method::PATCH, &format!("{PENDING}/status?dryRun=All"), mentioned).await;
    let bound = json!({ "name": "pending", "namespace": "default", "uid": noted["metadata"]["uid"],
                        "annotations": { "berth.dev/placement": "{}" } });
    writes(berth, Method::POST, &format!("{PENDING}/binding"), binding(bound, "Node")).await;
    let running = writes(berth, Method::GET, POD, json!({})).await;
    let uid = json!({ "preconditions": { "uid": running["metadata"]["uid"] } });
    writes(berth, Method::POST, &format!("{POD}/eviction?dryRun=All"), eviction(uid)).await;
}

fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "devices": { "requests": [
            { "name": "gpu", "exactly": { "deviceClassName": "gpu.example.com" } },
        ] } },
    })
}

fn allocation(device: &str) -> Value {
    json!({ "devices": { "results": [
        { "request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": device },
    ] } })
}

fn user(number: u32) -> Value {
    json!({ "resource": "pods", "name": format!("p{number}"), "uid": format!("u{number}") })
}

async fn claims(admin: &Client, berth: &Client) {
    create(admin, &claim("mine")).await.unwrap();
    let (path, status) = (format!("{CLAIMS}/mine"), format!("{CLAIMS}/mine/status"));
    let fenced = json!({ "metadata": { "labels": { "berth.dev/fenced": "x" } } });
    writes(berth, Method::PATCH, &path, fenced).await;
    let protected = json!({ "metadata": { "finalizers": [PROTECTION] } });
    writes(berth, Method::PATCH, &path, protected).await;
    let allocated = json!({ "status": {
        "allocation": allocation("gpu-0"), "reservedFor": [user(0)],
    } });
    writes(berth, Method::PATCH, &status, allocated).await;
    let shared = json!({ "status": { "reservedFor": [user(0), user(1)] } });
    writes(berth, Method::PATCH, &status, shared).await;

    let thief = Thief(berth);
    let other = json!({ "status": { "allocation": allocation("gpu-1") } });
    let mut timed = allocation("gpu-0");
    timed["allocationTimestamp"] = json!("2026-01-01T00:00:00Z");
    for changed in [other, json!({ "status": { "allocation": timed } })] {
        thief.cannot_patch(&status, changed, "status.allocation: Invalid value").await;
    }
    let freed = json!({ "status": { "allocation": null, "reservedFor": null } });
    thief.cannot_patch(&status, freed, "may not remove an allocation that other pods").await;
    let many = json!({ "status": { "reservedFor": [user(0), user(1), user(2), user(3)] } });
    thief.cannot_patch(&status, many, "may only reserve a ResourceClaim").await;
    let gateway = json!({ "apiGroup": "example.com", "resource": "jobs", "name": "j", "uid": "u" });
    let job = json!({ "status": { "reservedFor": [user(0), user(1), gateway] } });
    thief.cannot_patch(&status, job, "may only reserve a ResourceClaim").await;
    let driver =
        json!({ "driver": "gpu.example.com", "pool": "n1", "device": "gpu-0", "data": {} });
    let devices = json!({ "status": { "devices": [driver] } });
    thief.cannot_patch(&status, devices, "changing status.devices requires").await;

    let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u" });
    for metadata in
        [json!({ "ownerReferences": [owner] }), json!({ "annotations": { EXTENDED: "true" } })]
    {
        let body = json!({ "metadata": metadata });
        thief.cannot_patch(&path, body, "may only change finalizers and labels").await;
    }
    let label = json!({ "metadata": { "labels": { "app": "other" } } });
    thief.cannot_patch(&path, label, "may only write the label berth.dev/fenced").await;
    for finalizers in [json!([]), json!([PROTECTION, "example.com/never"])] {
        let body = json!({ "metadata": { "finalizers": finalizers } });
        thief.cannot_patch(&path, body, "may only add the finalizer").await;
    }
    let says = "may only create and delete ResourceClaims for extended resources";
    thief.fails(Method::DELETE, &path, json!({}), says).await;
    thief.cannot_create(CLAIMS, claim("new"), says).await;

    let one = json!({ "status": { "reservedFor": [user(0)] } });
    writes(berth, Method::PATCH, &status, one).await;
    let freed = json!({ "status": { "allocation": null, "reservedFor": null } });
    writes(berth, Method::PATCH, &status, freed).await;
}

async fn extended_claims(admin: &Client, berth: &Client) {
    let pod = admin.request(http::Request::get(PENDING).body(Vec::new()).unwrap()).await;
    let pod: Value = pod.unwrap();
    let mut made = claim("pending-extended-resources-x");
    made["metadata"]["annotations"] = json!({ EXTENDED: "true" });
    made["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "v1", "kind": "Pod", "name": "pending", "uid": pod["metadata"]["uid"],
        "controller": true,
    }]);
    let thief = Thief(berth);
    let says = "one owner, one annotation, no label and no finalizer";
    let mut labelled = made.clone();
    labelled["metadata"]["labels"] = json!({ "app": "other" });
    thief.cannot_create(CLAIMS, labelled, says).await;
    let mut forever = made.clone();
    forever["metadata"]["finalizers"] = json!(["example.com/never"]);
    thief.cannot_create(CLAIMS, forever, says).await;

    writes(berth, Method::POST, CLAIMS, made).await;
    let path = format!("{CLAIMS}/pending-extended-resources-x");
    for finalizers in [json!([PROTECTION]), json!([])] {
        let body = json!({ "metadata": { "finalizers": finalizers } });
        writes(berth, Method::PATCH, &path, body).await;
    }
    writes(berth, Method::DELETE, &path, json!({})).await;
}

fn volume(name: &str, claim: Option<&str>) -> Value {
    let mut volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
            "hostPath": { "path": "/data" },
        },
    });
    if let Some(claim) = claim {
        volume["spec"]["claimRef"] = claim_ref(claim);
    }
    volume
}

fn claim_ref(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default",
            "name": name, "uid": format!("uid-of-{name}") })
}

async fn volumes(admin: &Client, berth: &Client) {
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": "data", "namespace": "default" },
        "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "local",
                  "resources": { "requests": { "storage": "1Gi" } } },
    });
    for object in [claim, volume("free", None), volume("taken", Some("data"))] {
        create(admin, &object).await.unwrap();
    }
    let kept = json!({
        "metadata": { "annotations": { "pv.kubernetes.io/bound-by-controller": "yes" } },
        "spec": { "claimRef": claim_ref("data") },
    });
    writes(berth, Method::PATCH, &format!("{VOLUMES}/free"), kept).await;
    let node = |name: &str| json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": name } } });
    writes(berth, Method::PATCH, VOLUME_CLAIM, node("n1")).await;

    let thief = Thief(berth);
    let says = "may only add the annotation volume.kubernetes.io/selected-node";
    thief.cannot_patch(VOLUME_CLAIM, node("n2"), says).await;
    let provisioner = "volume.kubernetes.io/storage-provisioner";
    let body = json!({ "metadata": { "annotations": { provisioner: "evil" } } });
    thief.cannot_patch(VOLUME_CLAIM, body, says).await;
    let body = json!({ "spec": { "volumeName": "taken" } });
    thief.cannot_patch(VOLUME_CLAIM, body, "may not change the spec").await;
    let body = json!({ "metadata": { "finalizers": [] } });
    thief.cannot_patch(VOLUME_CLAIM, body, "may only change annotations").await;

    let taken = format!("{VOLUMES}/taken");
    let body = json!({ "spec": { "claimRef": claim_ref("other") } });
    thief.cannot_patch(&taken, body, "may not rebind a PersistentVolume").await;
    let body = json!({ "spec": { "claimRef": null } });
    thief.cannot_patch(&taken, body, "may not rebind a PersistentVolume").await;
    let body = json!({ "spec": { "persistentVolumeReclaimPolicy": "Delete" } });
    thief.cannot_patch(&taken, body, "may only change claimRef").await;
    let body = json!({ "metadata": { "annotations": { "example.com/a": "b" } } });
    thief.cannot_patch(&taken, body, "may only add the annotation pv.kubernetes.io").await;
    let body = json!({ "metadata": { "labels": { "zone": "other" } } });
    thief.cannot_patch(&taken, body, "may only change annotations").await;
}

/// The certificates' Secret and the webhook configurations, by which a thief would get at every Secret.
async fn certificates(admin: &Client, berth: &Client) {
    let thief = Thief(berth);
    let token = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": { "name": CERTIFICATES_SECRET, "namespace": NAMESPACE,
                      "annotations": { "kubernetes.io/service-account.name": "admin" } },
    });
    thief.cannot_create(SECRETS, token.clone(), "cannot create resource \"secrets\"").await;
    let secret = format!("{SECRETS}/{CERTIFICATES_SECRET}");
    let mut found = writes(berth, Method::GET, &secret, json!({})).await;
    assert_eq!(found["data"], Value::Null, "the Secret is installed without data");
    for field in ["annotations", "labels"] {
        let mut marked = found.clone();
        marked["metadata"][field]["kubernetes.io/service-account.name"] = json!("admin");
        thief.fails(Method::PUT, &secret, marked, "may not change metadata of its Secret").await;
    }
    let mut locked = found.clone();
    locked["immutable"] = json!(true);
    thief.fails(Method::PUT, &secret, locked, "may only change data of its Secret").await;
    found["data"] = json!({ "ca.crt": "eA==" });
    writes(berth, Method::PUT, &secret, found).await;
    // What is installed again leaves the data alone.
    for object in manifests(&everything()) {
        apply(admin, &object).await.unwrap();
    }
    let kept = writes(berth, Method::GET, &secret, json!({})).await;
    assert_eq!(kept["data"]["ca.crt"], "eA==");

    for kind in ["validatingwebhookconfigurations", "mutatingwebhookconfigurations"] {
        let path = format!("{WEBHOOKS}/{kind}/{NAME}");
        let found = writes(berth, Method::GET, &path, json!({})).await;
        let change = |field: &str, value: Value| {
            let mut webhooks = found["webhooks"].clone();
            *webhooks[0].pointer_mut(field).unwrap() = value;
            json!({ "webhooks": webhooks })
        };
        let secrets = json!([{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"],
                               "resources": ["secrets"], "scope": "*" }]);
        let mut added = found["webhooks"].clone();
        let mut second = added[0].clone();
        second["name"] = json!("second.berth.dev");
        added.as_array_mut().unwrap().push(second);
        for body in [
            change("/rules", secrets),
            change("/namespaceSelector", json!({})),
            change("/failurePolicy", json!("Fail")),
            change("/clientConfig", json!({ "url": "https://evil.example/" })),
            change("/clientConfig/service/namespace", json!("default")),
            json!({ "webhooks": added }),
            json!({ "webhooks": [] }),
        ] {
            thief.cannot_patch(&path, body, "may only change caBundle").await;
        }
        let body = json!({ "metadata": { "labels": { "a": "b" } } });
        thief.cannot_patch(&path, body, "may not change metadata of a webhook").await;
        let mut client = found["webhooks"][0]["clientConfig"].clone();
        client["caBundle"] = json!(CERTIFICATE);
        writes(berth, Method::PATCH, &path, change("/clientConfig", client)).await;
    }
}

/// A certificate, in base64 of PEM as webhook configurations have it.
const CERTIFICATE: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1JSUJpVENDQVMrZ0F3SUJBZ0lVUTZZPQotLS0tLUVORCBDRVJUSUZJQ0FURS0tLS0tCg==";

fn event(name: &str, controller: &str, instance: &str, namespace: &str, kind: &str) -> Value {
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": { "name": name, "namespace": "default" },
        "eventTime": "2026-01-01T00:00:00.000000Z", "action": "Scheduling", "reason": "r",
        "type": "Normal", "note": "n", "reportingController": controller,
        "reportingInstance": instance,
        "regarding": { "apiVersion": "v1", "kind": kind, "name": "running", "namespace": namespace },
    })
}

/// Events, Leases, statuses of Berth's own objects, and what there is no right to.
async fn cluster(admin: &Client, berth: &Client) {
    let thief = Thief(berth);
    let body = event("e", "kubelet", "n1", "default", "Pod");
    thief.cannot_create(EVENTS, body, "reportingController berth").await;
    for (namespace, kind) in [("kube-system", "Pod"), ("default", "Secret")] {
        let body = event("e", "berth", "me", namespace, kind);
        thief.cannot_create(EVENTS, body, "only be about pods of their own namespace").await;
    }
    writes(berth, Method::POST, EVENTS, event("e", "berth", "me", "default", "Pod")).await;

    let lease = |name: &str, metadata: Value| {
        let mut lease = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                                "metadata": metadata, "spec": { "holderIdentity": "me" } });
        lease["metadata"]["name"] = json!(name);
        lease
    };
    let body = lease("kube-controller", json!({}));
    thief.cannot_create(LEASES, body, "may only create the Lease berth").await;
    let forever = json!({ "finalizers": ["example.com/never"] });
    let body = lease(NAME, forever.clone());
    thief.cannot_create(LEASES, body, "without annotations, finalizers, labels").await;
    writes(berth, Method::POST, LEASES, lease(NAME, json!({}))).await;
    // What another client has written on it is no obstacle.
    let path = format!("{LEASES}/{NAME}");
    let noted = json!({ "metadata": { "annotations": { "example.com/note": "n" } } });
    let mut held = writes(admin, Method::PATCH, &path, noted).await;
    held["metadata"]["annotations"]["berth.dev/binding"] = json!("{}");
    let mut held = writes(berth, Method::PUT, &path, held).await;
    held["metadata"]["annotations"]["example.com/note"] = json!("other");
    let says = "may only write the annotation berth.dev/binding";
    thief.fails(Method::PUT, &path, held.clone(), says).await;
    held["metadata"]["finalizers"] = forever["finalizers"].clone();
    thief.fails(Method::PUT, &path, held, "may only change annotations of its Lease").await;

    let team = json!({ "apiVersion": "berth.dev/v1alpha1", "kind": "Team",
                       "metadata": { "name": "search" }, "spec": {} });
    create(admin, &team).await.unwrap();
    let path = "/apis/berth.dev/v1alpha1/teams/search";
    let body = json!({ "spec": { "weight": "1000" } });
    thief.cannot_patch(path, body.clone(), "cannot patch resource \"teams\"").await;
    let written = writes(berth, Method::PATCH, &format!("{path}/status"), body).await;
    assert_eq!(written["spec"]["weight"], Value::Null, "a status is written, and no spec");

    let cordon = json!({ "spec": { "unschedulable": true } });
    thief.cannot_patch(&format!("{NODES}/n1"), cordon, "cannot patch resource \"nodes\"").await;
    let grant = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                        "metadata": { "name": "mine" },
                        "roleRef": { "apiGroup": "rbac.authorization.k8s.io",
                                     "kind": "ClusterRole", "name": "cluster-admin" } });
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    thief.cannot_create(path, grant, "cannot create resource \"clusterrolebindings\"").await;
    let path = format!("{WEBHOOKS}/validatingadmissionpolicies/berth-authorities");
    thief.cannot_patch(&path, json!({}), "cannot patch resource").await;
}

fn label(key: &str) -> Value {
    json!({ "metadata": { "labels": { key: "x" } } })
}

fn annotation(key: &str) -> Value {
    json!({ "metadata": { "annotations": { key: "x" } } })
}

const OWN: &str = "/api/v1/nodes/n1";
const OTHERS: &str = "may only write objects of its own node";
const TOPOLOGIES: &str = "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies";

#[tokio::test(flavor = "multi_thread")]
async fn a_stolen_agent_token_changes_only_what_the_agent_writes_about_its_node() {
    let Some((testbed, admin)) = installed().await else { return };
    populate(&admin).await;
    let agent = agent_on(&testbed, &admin, &agent_namespace(&everything()), "n1").await;
    own_node(&agent).await;
    pods_and_events_of_a_node(&agent).await;
    topologies(&agent).await;
    // A token that is bound to no pod says nothing of a node.
    let unbound = testbed.client_as(&agent_namespace(&everything()), AGENT_NAME).await.unwrap();
    Thief(&unbound).cannot_patch(OWN, label("berth.dev/sockets"), OTHERS).await;
    Thief(&unbound).cannot_patch(PENDING, annotation("berth.dev/alignment"), OTHERS).await;
}

async fn own_node(agent: &Client) {
    let thief = Thief(agent);
    thief.cannot_patch(&format!("{NODES}/n2"), label("berth.dev/sockets"), OTHERS).await;
    for key in [
        "node-restriction.kubernetes.io/tenant",
        "node-role.kubernetes.io/control-plane",
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
        "berth.dev/pool",
        "berth.dev/mig.config",
        "nvidia.com/gpu.deploy.mig-manager",
    ] {
        thief.cannot_patch(OWN, label(key), "may only change the labels of its Node").await;
    }
    for key in
        ["berth.dev/mig-layout", "berth.dev/models", "kubeadm.alpha.kubernetes.io/cri-socket"]
    {
        thief
            .cannot_patch(OWN, annotation(key), "may only change the annotations of its Node")
            .await;
    }
    let owner = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "u" });
    for metadata in
        [json!({ "finalizers": ["example.com/never"] }), json!({ "ownerReferences": [owner] })]
    {
        let body = json!({ "metadata": metadata });
        thief.cannot_patch(OWN, body, "of its Node's metadata").await;
    }
    for spec in [
        json!({ "unschedulable": true }),
        json!({ "taints": [{ "key": "a", "effect": "NoExecute" }] }),
        json!({ "providerID": "aws:///other" }),
    ] {
        thief.cannot_patch(OWN, json!({ "spec": spec }), "may not change the spec").await;
    }

    for key in [
        "berth.dev/numa-nodes",
        "berth.dev/mig-1g.10gb",
        "berth.dev/mig-1g.10gb.me",
        "berth.dev/mig.state",
        "nvidia.com/gpu.product",
        "nvidia.com/mig.capable",
        "nvidia.com/mig.config",
        "nvidia.com/mig-1g.10gb.count",
    ] {
        writes(agent, Method::PATCH, OWN, label(key)).await;
    }
    for key in ["berth.dev/mig-state", "berth.dev/cpu-manager-policy"] {
        writes(agent, Method::PATCH, OWN, annotation(key)).await;
    }
    // Repartitioning follows the Node.
    let path = format!("{NODES}?fieldSelector=metadata.name%3Dn1");
    writes(agent, Method::GET, &path, json!({})).await;
}

async fn pods_and_events_of_a_node(agent: &Client) {
    let thief = Thief(agent);
    let mut image = json!({ "spec": { "containers": pod("", "", None)["spec"]["containers"] } });
    image["spec"]["containers"][0]["image"] = json!("evil");
    thief.cannot_patch(POD, image, "may not change the spec of a pod").await;
    thief.cannot_patch(POD, label("app"), "may only change annotations of a pod").await;
    let body = annotation("berth.dev/model");
    thief.cannot_patch(POD, body, "may only write the annotation berth.dev/alignment").await;
    let alignment = annotation("berth.dev/alignment");
    for path in ["/api/v1/namespaces/default/pods/elsewhere", PENDING] {
        thief.cannot_patch(path, alignment.clone(), OTHERS).await;
    }
    let body = event("e", "berth-agent", "n2", "default", "Pod");
    thief.cannot_create(EVENTS, body, OTHERS).await;
    let body = event("e", "kubelet", "n1", "default", "Pod");
    thief.cannot_create(EVENTS, body, "reportingController berth-agent").await;
    let body = event("e", "berth-agent", "n1", "kube-system", "Pod");
    thief.cannot_create(EVENTS, body, "only be about pods of their own namespace").await;

    writes(agent, Method::PATCH, POD, alignment).await;
    let body = event("e", "berth-agent", "n1", "default", "Pod");
    writes(agent, Method::POST, EVENTS, body).await;
}

async fn topologies(agent: &Client) {
    let thief = Thief(agent);
    let topology = |name: &str, owner: &str, finalizers: Value| {
        json!({ "apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology",
                "metadata": { "name": name, "finalizers": finalizers, "ownerReferences": [
                    { "apiVersion": "v1", "kind": "Node", "name": owner, "uid": "u" },
                ] }, "zones": [] })
    };
    thief.cannot_create(TOPOLOGIES, topology("n2", "n2", json!([])), OTHERS).await;
    let says = "with no finalizers and no owner other";
    thief.cannot_create(TOPOLOGIES, topology("n1", "n2", json!([])), says).await;
    let forever = topology("n1", "n1", json!(["example.com/never"]));
    thief.cannot_create(TOPOLOGIES, forever, says).await;
    writes(agent, Method::POST, TOPOLOGIES, topology("n1", "n1", json!([]))).await;
}

const SHARE: &str = "/api/v1/namespaces/default/pods/share";

/// The owner of a share of a GPU, who may do anything with pods.
#[tokio::test(flavor = "multi_thread")]
async fn a_bound_share_stays_as_large_as_it_was() {
    let Some((testbed, admin)) = installed().await else { return };
    populate(&admin).await;
    let mut share = pod("default", "share", None);
    share["metadata"]["annotations"] = json!({ "berth.dev/gpu-memory": "40Gi" });
    create(&admin, &share).await.unwrap();
    let annotations = |value: Value| json!({ "metadata": { "annotations": value } });
    let memory = |value: Value| annotations(json!({ "berth.dev/gpu-memory": value }));
    // Until it is bound, its owner may change what it asks for.
    writes(&admin, Method::PATCH, SHARE, memory(json!("30Gi"))).await;
    let berth = testbed.client_as(NAMESPACE, NAME).await.unwrap();
    let placement = json!({ "berth.dev/placement": "{}" });
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": { "name": "share", "namespace": "default", "annotations": placement },
        "target": { "apiVersion": "v1", "kind": "Node", "name": "n1" },
    });
    writes(&berth, Method::POST, &format!("{SHARE}/binding"), binding).await;

    let owner = Thief(&admin);
    let says = "cannot be changed after it is bound";
    for path in [SHARE.to_owned(), format!("{SHARE}/status")] {
        for body in [
            memory(json!("1Gi")),
            memory(json!(null)),
            annotations(json!({ "berth.dev/gpu-compute": "10%" })),
            annotations(json!({ "berth.dev/placement": "{\"why\":\"\"}" })),
            annotations(json!(null)),
        ] {
            owner.cannot_patch(&path, body, says).await;
        }
    }

    // Everything else goes on: the owner's own annotations, the agent's, and the kubelet's status.
    writes(&admin, Method::PATCH, SHARE, annotations(json!({ "example.com/a": "b" }))).await;
    let agent = agent_on(&testbed, &admin, &agent_namespace(&everything()), "n1").await;
    writes(&agent, Method::PATCH, SHARE, annotation("berth.dev/alignment")).await;
    let running = json!({ "status": { "phase": "Running" } });
    writes(&admin, Method::PATCH, &format!("{SHARE}/status"), running).await;
    let found = writes(&admin, Method::GET, SHARE, json!({})).await;
    let kept = &found["metadata"]["annotations"];
    assert_eq!(
        (&kept["berth.dev/gpu-memory"], &kept["berth.dev/placement"]),
        (&json!("30Gi"), &json!("{}"))
    );
    writes(&admin, Method::DELETE, SHARE, json!({})).await;
}
