//! The requests that are compared.
#![allow(unreachable_pub, reason = "a module of tests has no other crate to export to")]
#![allow(clippy::too_many_lines, reason = "lists of requests are data")]

mod custom;

use serde_json::{Value, json};

use crate::common::compare::Step;

const PODS: &str = "/api/v1/namespaces/default/pods";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";

/// All of them, in an order in which later ones build on earlier ones.
pub fn all() -> Vec<Step> {
    let mut steps = Vec::new();
    steps.extend(paths());
    steps.extend(pods());
    steps.extend(binding());
    steps.extend(updates());
    steps.extend(patches());
    steps.extend(workloads());
    steps.extend(lists());
    steps.extend(namespaces());
    steps.extend(kinds());
    steps.extend(custom::definitions());
    steps.extend(custom::schemas());
    steps.extend(events());
    steps.extend(deletions());
    steps.extend(reviews());
    steps
}

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    })
}

fn get(title: &'static str, path: &str) -> Step {
    Step::new(title, "GET", path)
}

fn post(title: &'static str, path: &str, body: Value) -> Step {
    Step::new(title, "POST", path).body(body)
}

fn put(title: &'static str, path: &str, body: Value) -> Step {
    Step::new(title, "PUT", path).body(body)
}

fn patch(title: &'static str, path: &str, body: Value) -> Step {
    Step::new(title, "PATCH", path).body(body)
}

fn delete(title: &'static str, path: &str) -> Step {
    Step::new(title, "DELETE", path)
}

fn paths() -> Vec<Step> {
    vec![
        get("a path of nothing", "/foo"),
        get("a group of nothing", "/apis/foo/v1/foos"),
        get("a resource of nothing", "/api/v1/foos"),
        get("an object without its namespace", "/api/v1/pods/x"),
        get("a pod that is not there", &format!("{PODS}/nope")),
        get("a subresource of nothing", &format!("{PODS}/nope/foo")),
        Step::new("a method that is not allowed", "PUT", PODS),
        get("a label selector that is none", "/api/v1/pods?labelSelector=a%20b"),
        get("a label selector without an end", "/api/v1/pods?labelSelector=a%20in%20(x"),
        get("a label selector with a bad value", "/api/v1/pods?labelSelector=a%3D%21%21"),
        get("a label selector with a bad key", "/api/v1/pods?labelSelector=_a%3Db"),
        get("a field selector that is none", "/api/v1/pods?fieldSelector=ab"),
        get("a field of pods that cannot be selected", "/api/v1/pods?fieldSelector=a%3Db"),
        get("a field of nodes that cannot be selected", "/api/v1/nodes?fieldSelector=a%3Db"),
        get(
            "a field of deployments that cannot be selected",
            "/apis/apps/v1/deployments?fieldSelector=spec.foo%3Db",
        ),
        get("a revision that is none", "/api/v1/pods?resourceVersion=abc"),
        get("a match without a revision", "/api/v1/pods?resourceVersionMatch=Exact"),
        get("a match of zero exactly", "/api/v1/pods?resourceVersionMatch=Exact&resourceVersion=0"),
        get("a match that is unknown", "/api/v1/pods?resourceVersionMatch=Foo&resourceVersion=1"),
        get("initial events of a list", "/api/v1/pods?sendInitialEvents=true"),
        get(
            "initial events of a watch without a match",
            "/api/v1/pods?watch=1&sendInitialEvents=true",
        ),
        get("a match for a watch", "/api/v1/pods?watch=1&resourceVersionMatch=NotOlderThan"),
        get("an empty list", "/api/v1/pods"),
        get("an empty list of a namespace that is not there", "/api/v1/namespaces/nope/pods"),
    ]
}

fn pods() -> Vec<Step> {
    vec![
        post("a pod", PODS, pod("a"))
            .keep("a", "/metadata/uid")
            .keep("rv-a", "/metadata/resourceVersion"),
        post("the same pod again", PODS, pod("a")),
        get("the pod", &format!("{PODS}/a")),
        post("a pod in a namespace that is not there", "/api/v1/namespaces/nope/pods", pod("a")),
        post(
            "a pod without a name",
            PODS,
            json!({
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            }),
        ),
        post(
            "a pod with a generated name",
            PODS,
            json!({
                "metadata": {"generateName": "gen-", "labels": {"generated": "yes"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            }),
        ),
        post(
            "a pod with a revision",
            PODS,
            json!({
                "metadata": {"name": "x", "resourceVersion": "5"},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            }),
        ),
        post(
            "a pod of another namespace",
            PODS,
            json!({
                "metadata": {"name": "x", "namespace": "other"},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            }),
        ),
        post(
            "a pod of another version",
            PODS,
            json!({
                "apiVersion": "v2", "kind": "Pod", "metadata": {"name": "x"},
            }),
        ),
        post(
            "another kind than a pod",
            PODS,
            json!({
                "apiVersion": "v1", "kind": "Node", "metadata": {"name": "x"},
            }),
        ),
        post("a pod as a trial", &format!("{PODS}?dryRun=All"), pod("trial")),
        get("the trial has left nothing", &format!("{PODS}/trial")),
        post("a trial of an unknown kind", &format!("{PODS}?dryRun=Some"), pod("trial")),
        Step::new("a body that is no JSON", "POST", PODS).raw(b"{\"a\": "),
        Step::new("a body of another type", "POST", PODS).raw(b"a").content_type("text/plain"),
        Step::new("no body", "POST", PODS),
        post(
            "a pod with an unknown field",
            &format!("{PODS}?fieldValidation=Strict"),
            json!({
                "metadata": {"name": "strict"},
                "spec": {"containers": [{"name": "c", "image": "i", "foo": 1}]},
            }),
        ),
        post(
            "a pod without containers",
            PODS,
            json!({
                "metadata": {"name": "empty"}, "spec": {"containers": []},
            }),
        ),
        post(
            "a node",
            "/api/v1/nodes",
            json!({
                "metadata": {"name": "n1"},
                "status": {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "4"}},
            }),
        ),
    ]
}

fn binding_to(pod: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod, "annotations": {"why": "test"}},
        "target": {"kind": "Node", "name": node},
    })
}

fn binding() -> Vec<Step> {
    let path = format!("{PODS}/a/binding");
    let with = |field: &str, value: &str| {
        let mut binding = binding_to("a", "n1");
        binding["metadata"][field] = json!(value);
        binding
    };
    vec![
        post("a binding for another name", &path, binding_to("b", "n1")),
        post(
            "a binding of a pod that is not there",
            &format!("{PODS}/nope/binding"),
            binding_to("nope", "n1"),
        ),
        post("a binding without a node", &path, json!({"metadata": {"name": "a"}, "target": {}})),
        post(
            "a binding to something else",
            &path,
            json!({
                "metadata": {"name": "a"}, "target": {"kind": "Pod", "name": "x"},
            }),
        ),
        post(
            "a binding of another uid",
            &path,
            with("uid", "00000000-0000-0000-0000-000000000000"),
        ),
        post("a binding of an old revision", &path, with("resourceVersion", "1")),
        post("a binding with the right uid and revision", &path, {
            let mut binding = with("uid", "${a}");
            binding["metadata"]["resourceVersion"] = json!("${rv-a}");
            binding
        }),
        get("the bound pod", &format!("{PODS}/a")),
        post("a second binding", &path, binding_to("a", "n2")),
        post(
            "a pod with a gate",
            PODS,
            json!({
                "metadata": {"name": "gated"},
                "spec": {
                    "containers": [{"name": "c", "image": "i"}],
                    "schedulingGates": [{"name": "example.com/gate"}],
                },
            }),
        ),
        post(
            "a binding of a gated pod",
            &format!("{PODS}/gated/binding"),
            binding_to("gated", "n1"),
        ),
        post("a pod for the other way", PODS, pod("legacy")),
        post(
            "a binding the other way",
            "/api/v1/namespaces/default/bindings",
            binding_to("legacy", "n1"),
        ),
        get("the pod bound the other way", &format!("{PODS}/legacy")),
    ]
}

fn updates() -> Vec<Step> {
    let path = "/api/v1/namespaces/default/configmaps/c";
    let map = |data: &str| json!({"metadata": {"name": "c"}, "data": {"k": data}});
    vec![
        put("an update of what is not there", path, map("1")),
        post("a config map", "/api/v1/namespaces/default/configmaps", map("1"))
            .keep("cm", "/metadata/uid")
            .keep("rv-cm", "/metadata/resourceVersion"),
        put("an update without a revision", path, map("2")),
        put(
            "an update of an old revision",
            path,
            json!({
                "metadata": {"name": "c", "resourceVersion": "${rv-cm}"}, "data": {"k": "3"},
            }),
        ),
        put(
            "an update of another uid",
            path,
            json!({
                "metadata": {"name": "c", "uid": "00000000-0000-0000-0000-000000000000"},
            }),
        ),
        put("an update of another name", path, json!({"metadata": {"name": "d"}})),
        put(
            "an update of another namespace",
            path,
            json!({"metadata": {"name": "c", "namespace": "x"}}),
        ),
        put("an update as a trial", &format!("{path}?dryRun=All"), map("trial")),
        get("the config map", path),
        put(
            "the status of a pod",
            &format!("{PODS}/a/status"),
            json!({
                "metadata": {"name": "a", "labels": {"from": "status"}},
                "spec": {"containers": [{"name": "other", "image": "x"}]},
                "status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]},
            }),
        ),
        get("the pod with its status", &format!("{PODS}/a")),
        put(
            "the status of a node",
            "/api/v1/nodes/n1/status",
            json!({
                "metadata": {"name": "n1"},
                "spec": {"unschedulable": true},
                "status": {
                    "capacity": {"cpu": "8"},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }),
        ),
        post(
            "a lease",
            "/apis/coordination.k8s.io/v1/namespaces/default/leases",
            json!({
                "metadata": {"name": "l"},
                "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15},
            }),
        ),
        put(
            "a lease without a revision",
            "/apis/coordination.k8s.io/v1/namespaces/default/leases/l",
            json!({
                "metadata": {"name": "l"}, "spec": {"holderIdentity": "you"},
            }),
        ),
        put(
            "a lease that is made by an update",
            "/apis/coordination.k8s.io/v1/namespaces/default/leases/m",
            json!({
                "metadata": {"name": "m"}, "spec": {"holderIdentity": "you"},
            }),
        ),
    ]
}

fn patches() -> Vec<Step> {
    let path = "/api/v1/namespaces/default/configmaps/c";
    vec![
        patch("a merge patch", path, json!({"data": {"k": null, "l": "1"}})),
        patch("a merge patch that changes nothing", path, json!({"data": {"l": "1"}})),
        patch(
            "a merge patch of an old revision",
            path,
            json!({
                "metadata": {"resourceVersion": "${rv-cm}"}, "data": {"l": "2"},
            }),
        ),
        patch("a JSON patch", path, json!([{"op": "add", "path": "/data/m", "value": "1"}]))
            .content_type("application/json-patch+json"),
        patch(
            "a JSON patch whose test fails",
            path,
            json!([
                {"op": "test", "path": "/data/m", "value": "2"},
            ]),
        )
        .content_type("application/json-patch+json"),
        patch(
            "a strategic patch of a pod",
            &format!("{PODS}/a"),
            json!({
                "spec": {"containers": [{"name": "c", "image": "j"}]},
            }),
        )
        .content_type("application/strategic-merge-patch+json"),
        patch(
            "a patch of what cannot change",
            &format!("{PODS}/a"),
            json!({
                "spec": {"nodeName": "n9"},
            }),
        ),
        patch("a patch of an unknown type", path, json!({})).content_type("application/foo"),
        patch(
            "a patch of what is not there",
            "/api/v1/namespaces/default/configmaps/nope",
            json!({}),
        ),
        patch(
            "an apply that creates",
            "/api/v1/namespaces/default/configmaps/applied?fieldManager=me",
            json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "applied"}, "data": {"a": "1"},
            }),
        )
        .content_type("application/apply-patch+yaml"),
        patch(
            "an apply of somebody else",
            "/api/v1/namespaces/default/configmaps/applied?fieldManager=you",
            json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "applied"}, "data": {"a": "2"},
            }),
        )
        .content_type("application/apply-patch+yaml"),
        patch(
            "an apply by force",
            "/api/v1/namespaces/default/configmaps/applied?fieldManager=you&force=true",
            json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "applied"}, "data": {"a": "2"},
            }),
        )
        .content_type("application/apply-patch+yaml"),
        patch(
            "a patch of a pod's status",
            &format!("{PODS}/a/status"),
            json!({
                "status": {"message": "hello"},
            }),
        ),
    ]
}

fn deployment(name: &str, replicas: i64) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            },
        },
    })
}

fn workloads() -> Vec<Step> {
    let path = format!("{DEPLOYMENTS}/web");
    vec![
        post("a deployment", DEPLOYMENTS, deployment("web", 2)),
        get("its scale", &format!("{path}/scale")),
        put(
            "another scale",
            &format!("{path}/scale"),
            json!({
                "metadata": {"name": "web"}, "spec": {"replicas": 3},
            }),
        ),
        patch("a patch of the scale", &format!("{path}/scale"), json!({"spec": {"replicas": 4}})),
        put(
            "a negative scale",
            &format!("{path}/scale"),
            json!({
                "metadata": {"name": "web"}, "spec": {"replicas": -1},
            }),
        ),
        get("the scaled deployment", &path),
        patch(
            "an annotation counts as a generation",
            &path,
            json!({
                "metadata": {"annotations": {"a": "b"}},
            }),
        ),
        patch("a label does not", &path, json!({"metadata": {"labels": {"a": "b"}}})),
        patch("nor does a status", &format!("{path}/status"), json!({"status": {"replicas": 4}})),
        post(
            "a stateful set",
            "/apis/apps/v1/namespaces/default/statefulsets",
            json!({
                "metadata": {"name": "db"},
                "spec": {
                    "serviceName": "db",
                    "selector": {"matchLabels": {"app": "db"}},
                    "template": {
                        "metadata": {"labels": {"app": "db"}},
                        "spec": {"containers": [{"name": "c", "image": "i"}]},
                    },
                },
            }),
        ),
        post(
            "a job",
            "/apis/batch/v1/namespaces/default/jobs",
            json!({
                "metadata": {"name": "once"},
                "spec": {"template": {"spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "c", "image": "i"}],
                }}},
            }),
        ),
    ]
}

fn lists() -> Vec<Step> {
    vec![
        get("pods by label", "/api/v1/namespaces/default/pods?labelSelector=app%3Dweb"),
        get("pods by node", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1"),
        get("pods by phase", "/api/v1/pods?fieldSelector=status.phase!%3DRunning"),
        get("pods by name", "/api/v1/pods?fieldSelector=metadata.name%3Da"),
        get("the first page", "/api/v1/namespaces/default/pods?limit=2")
            .keep("page", "/metadata/continue"),
        get("the second page", "/api/v1/namespaces/default/pods?limit=2&continue=${page}"),
        get(
            "a page with a revision",
            "/api/v1/namespaces/default/pods?limit=2&continue=${page}&resourceVersion=1",
        ),
        get("a page of no token", "/api/v1/namespaces/default/pods?limit=2&continue=abc"),
    ]
}

fn namespaces() -> Vec<Step> {
    vec![
        post("a namespace", "/api/v1/namespaces", json!({"metadata": {"name": "team"}})),
        post(
            "something in it",
            "/api/v1/namespaces/team/configmaps",
            json!({"metadata": {"name": "x"}}),
        ),
        delete("the end of the namespace", "/api/v1/namespaces/team"),
        post(
            "nothing new in it",
            "/api/v1/namespaces/team/configmaps",
            json!({"metadata": {"name": "y"}}),
        ),
        delete("what is in it", "/api/v1/namespaces/team/configmaps/x"),
        get("the namespace that ends", "/api/v1/namespaces/team"),
        put(
            "its finalizers go",
            "/api/v1/namespaces/team/finalize",
            json!({
                "metadata": {"name": "team"}, "spec": {},
            }),
        ),
        get("the namespace that was", "/api/v1/namespaces/team"),
        delete("all namespaces", "/api/v1/namespaces"),
    ]
}

fn kinds() -> Vec<Step> {
    vec![
        post(
            "a priority class",
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            json!({
                "metadata": {"name": "high"}, "value": 1000,
            }),
        ),
        post(
            "a budget",
            "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
            json!({
                "metadata": {"name": "b"},
                "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
            }),
        ),
        post(
            "a quota",
            "/api/v1/namespaces/default/resourcequotas",
            json!({
                "metadata": {"name": "q"}, "spec": {"hard": {"count/secrets": "1"}},
            }),
        ),
        post(
            "a secret",
            "/api/v1/namespaces/default/secrets",
            json!({
                "metadata": {"name": "s"}, "stringData": {"a": "b"},
            }),
        ),
        post(
            "a device class",
            "/apis/resource.k8s.io/v1/deviceclasses",
            json!({
                "metadata": {"name": "gpu"}, "spec": {},
            }),
        ),
        post(
            "a resource claim",
            "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims",
            json!({
                "metadata": {"name": "claim"},
                "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}},
            }),
        ),
        post(
            "a role",
            "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles",
            json!({
                "metadata": {"name": "r"},
                "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}],
            }),
        ),
        post(
            "a storage class",
            "/apis/storage.k8s.io/v1/storageclasses",
            json!({
                "metadata": {"name": "fast"}, "provisioner": "example.com/fast",
            }),
        ),
        post(
            "a webhook",
            "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
            json!({
                "metadata": {"name": "w"}, "webhooks": [],
            }),
        ),
    ]
}

fn events() -> Vec<Step> {
    vec![
        post(
            "an event",
            "/api/v1/namespaces/default/events",
            json!({
                "metadata": {"name": "e"},
                "involvedObject": {"kind": "Pod", "name": "a", "namespace": "default"},
                "reason": "Tested", "message": "hello", "type": "Normal",
                "source": {"component": "test"}, "count": 2,
            }),
        ),
        get("the event by its other name", "/apis/events.k8s.io/v1/namespaces/default/events/e"),
        post(
            "an event by its other name",
            "/apis/events.k8s.io/v1/namespaces/default/events",
            json!({
                "metadata": {"name": "f"},
                "regarding": {"kind": "Pod", "name": "a", "namespace": "default"},
                "eventTime": "2026-01-01T00:00:00.000000Z",
                "reportingController": "example.com/test", "reportingInstance": "i",
                "action": "Testing", "reason": "Tested", "note": "hello", "type": "Normal",
            }),
        ),
        get("that event", "/api/v1/namespaces/default/events/f"),
        get(
            "events of a pod",
            "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Da,reason%3DTested",
        ),
    ]
}

fn deletions() -> Vec<Step> {
    let maps = "/api/v1/namespaces/default/configmaps";
    vec![
        delete("what is not there", &format!("{maps}/nope")),
        delete("a deletion of another uid", &format!("{maps}/c")).body(json!({
            "preconditions": {"uid": "00000000-0000-0000-0000-000000000000"},
        })),
        delete("a deletion of an old revision", &format!("{maps}/c")).body(json!({
            "preconditions": {"resourceVersion": "1"},
        })),
        delete("a deletion by an unknown policy", &format!("{maps}/c?propagationPolicy=Foo")),
        delete("a deletion as a trial", &format!("{maps}/c?dryRun=All")),
        delete("a config map goes", &format!("{maps}/c")),
        post(
            "something with a finalizer",
            maps,
            json!({
                "metadata": {"name": "f", "finalizers": ["example.com/wait"]},
            }),
        ),
        delete("it waits", &format!("{maps}/f")),
        delete("it still waits", &format!("{maps}/f")),
        patch(
            "its finalizer goes",
            &format!("{maps}/f"),
            json!({"metadata": {"finalizers": null}}),
        ),
        get("it has gone", &format!("{maps}/f")),
        delete(
            "a deployment in the foreground",
            &format!("{DEPLOYMENTS}/web?propagationPolicy=Foreground"),
        ),
        delete(
            "a job by orphaning",
            "/apis/batch/v1/namespaces/default/jobs/once?propagationPolicy=Orphan",
        ),
        delete("a pod with a node", &format!("{PODS}/a")),
        post("it is not bound again", &format!("{PODS}/a/binding"), binding_to("a", "n1")),
        delete("a shorter grace", &format!("{PODS}/a?gracePeriodSeconds=5")),
        delete("no grace", &format!("{PODS}/a?gracePeriodSeconds=0")),
        get("the pod has gone", &format!("{PODS}/a")),
        post("a pod without a node", PODS, pod("free")),
        delete("goes at once", &format!("{PODS}/free")),
        delete("all pods with a label", &format!("{PODS}?labelSelector=generated")),
        delete("a node", "/api/v1/nodes/n1"),
    ]
}

fn reviews() -> Vec<Step> {
    vec![
        post(
            "a review of a bad token",
            "/apis/authentication.k8s.io/v1/tokenreviews",
            json!({
                "spec": {"token": "nobody"},
            }),
        ),
        post(
            "a review of nobody's access",
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            json!({
                "spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}},
            }),
        ),
        get("a review is not kept", "/apis/authentication.k8s.io/v1/tokenreviews"),
        post(
            "a token of a service account that is not there",
            "/api/v1/namespaces/default/serviceaccounts/nope/token",
            json!({
                "spec": {},
            }),
        ),
    ]
}
