//! Objects → types.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

use berth_manifest::{Object, Source, Strictness, object, read, read_as};

fn rendered(text: &str) -> String {
    match object(&read(&Source::new("f.yaml", text)).unwrap()[0]) {
        Ok(object) => format!("{object:?}").chars().take(40).collect(),
        Err(problem) => problem.to_string(),
    }
}

const POD: &str = "\
apiVersion: v1
kind: Pod
metadata:
  name: web
  namespace: team-a
  labels: {a: , b: \"1\"}
spec:
  priority: 10
  terminationGracePeriodSeconds: 0x10
  containers:
  - name: c
    image: web:1
    resources:
      limits: {cpu: 0.5, memory: 1Gib, nvidia.com/gpu: 1, x: 1e3, z: }
    ports:
    - containerPort: 80
    livenessProbe:
      httpGet: {port: 80}
    readinessProbe:
      httpGet: {port: http}
";

fn pod(text: &str) -> k8s_openapi::api::core::v1::Pod {
    match object(&read(&Source::new("f.yaml", text)).unwrap()[0]).unwrap() {
        Object::Pod(pod) => *pod,
        other => panic!("{other:?}"),
    }
}

#[test]
fn scalars_become_what_the_api_server_makes_of_them() {
    let pod = pod(POD);
    let labels = pod.metadata.labels.unwrap();
    assert_eq!((labels["a"].as_str(), labels["b"].as_str()), ("", "1"));
    let spec = pod.spec.unwrap();
    assert_eq!(spec.termination_grace_period_seconds, Some(16));
    let limits = spec.containers[0].resources.as_ref().unwrap().limits.as_ref().unwrap();
    let limits: Vec<(&str, &str)> =
        limits.iter().map(|(key, value)| (key.as_str(), value.0.as_str())).collect();
    assert_eq!(
        limits,
        [("cpu", "0.5"), ("memory", "1Gib"), ("nvidia.com/gpu", "1"), ("x", "1000"), ("z", "0")]
    );
}

#[test]
fn what_does_not_fit_the_type_names_object_field_and_place() {
    for (from, to, wanted) in [
        (
            "priority: 10",
            "priority: high",
            "f.yaml:8:13: Pod team-a/web: spec.priority: expected i32, found \"high\"",
        ),
        (
            "priority: 10",
            "priority: 99999999999",
            "f.yaml:8:13: Pod team-a/web: spec.priority: expected i32, found 99999999999",
        ),
        (
            "priority: 10",
            "prority: 10",
            "f.yaml:8:3: Pod team-a/web: spec.prority: unknown field; did you mean \"priority\"?",
        ),
        (
            "b: \"1\"",
            "b: yes",
            "f.yaml:6:20: Pod team-a/web: metadata.labels.b: expected a string, found true; quote it",
        ),
        (
            "b: \"1\"",
            "b: 010",
            "f.yaml:6:20: Pod team-a/web: metadata.labels.b: expected a string, found 8; quote it",
        ),
        (
            "containerPort: 80",
            "containerport: 80",
            "f.yaml:16:7: Pod team-a/web: spec.containers[0].ports[0].containerport: unknown field; did you mean \"containerPort\"?",
        ),
        (
            "    image: web:1",
            "    image: [web]",
            "f.yaml:12:12: Pod team-a/web: spec.containers[0].image: expected a string, found a list",
        ),
        (
            "  containers:",
            "  gpus: 1\n  containers:",
            "f.yaml:10:3: Pod team-a/web: spec.gpus: unknown field; remove it, or correct its name or indentation",
        ),
        (
            "cpu: 0.5",
            "cpu: [1]",
            "f.yaml:14:21: Pod team-a/web: spec.containers[0].resources.limits.cpu: expected Quantity, found a list",
        ),
    ] {
        let text = POD.replacen(from, to, 1);
        assert_ne!(text, POD, "{from}");
        assert_eq!(rendered(&text), wanted);
    }
}

#[test]
fn unknown_fields_of_dumps_are_passed_over_and_all_of_them_can_be_had() {
    let text = POD.replace("  priority: 10", "  newThing: {a: 1}\n  prority: 10");
    let document = &read_as(&Source::new("f", text), Strictness::Dump).unwrap()[0];
    assert!(object(document).is_ok());
    let (_, unknown) = document.decode_noting::<k8s_openapi::api::core::v1::Pod>().unwrap();
    let fields: Vec<String> = unknown.iter().map(|problem| problem.field.to_string()).collect();
    assert_eq!(fields, ["spec.newThing", "spec.prority"]);
}

#[test]
fn versions_that_are_not_read_are_told_from_kinds_of_others() {
    for (version, kind, wanted) in [
        (
            "extensions/v1beta1",
            "Deployment",
            "unsupported version extensions/v1beta1 of Deployment; use apps/v1",
        ),
        ("batch/v1beta1", "CronJob", "unsupported version batch/v1beta1 of CronJob; use batch/v1"),
        (
            "karpenter.sh/v1beta1",
            "NodePool",
            "unsupported version karpenter.sh/v1beta1 of NodePool; use karpenter.sh/v1",
        ),
        ("resource.k8s.io/v1beta1", "ResourceClaim", "use resource.k8s.io/v1"),
        ("apps/v1", "Pod", "use v1"),
        ("apps/v1", "deployment", "unknown kind \"deployment\"; did you mean `kind: Deployment`?"),
        ("''", "StatefulSet", "add `apiVersion: apps/v1`"),
        ("v1", "''", "kind: is required and must be a string"),
        ("serving.knative.dev/v1", "Service", "Other("),
        ("batch.volcano.sh/v1alpha1", "Job", "Other("),
        ("scheduling.x-k8s.io/v1alpha1", "PodGroup", "Other("),
        ("v1", "ConfigMap", "Other("),
    ] {
        let text = format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a}}\n");
        let found = rendered(&text);
        assert!(found.contains(wanted), "{version} {kind}: {found}");
    }
}

#[test]
fn topologies_and_pools_are_read() {
    let text = "\
apiVersion: topology.node.k8s.io/v1alpha2
kind: NodeResourceTopology
metadata: {name: gpu-1}
attributes:
- {name: topologyManagerPolicy, value: single-numa-node}
zones:
- name: node-0
  type: Node
  costs: [{name: node-0, value: 10}, {name: node-1, value: 21}]
  resources:
  - {name: cpu, capacity: 32, allocatable: \"31\", available: \"16\"}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: a100}
spec:
  weight: 10
  limits: {nvidia.com/gpu: 48}
  unread: {a: 1}
  template:
    metadata: {labels: {pool: a100}}
    spec:
      taints: [{key: nvidia.com/gpu, effect: NoSchedule}]
      requirements:
      - {key: node.kubernetes.io/instance-type, operator: In, values: [p4d.24xlarge]}
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
";
    let documents = read(&Source::new("f", text)).unwrap();
    let Object::NodeResourceTopology(topology) = object(&documents[0]).unwrap() else { panic!() };
    assert_eq!(topology.attribute("topologyManagerPolicy"), Some("single-numa-node"));
    assert_eq!(topology.zones[0].costs[1].value, 21);
    assert_eq!(topology.zones[0].resources[0].capacity.0, "32");
    let Object::NodePool(pool) = object(&documents[1]).unwrap() else { panic!() };
    assert_eq!(pool.spec.limits["nvidia.com/gpu"].0, "48");
    assert_eq!(pool.spec.template.spec.requirements[0].values, ["p4d.24xlarge"]);
}

#[test]
fn own_types_get_places_and_suggestions_too() {
    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "camelCase")]
    #[allow(dead_code, reason = "decoded only")]
    struct Scenario {
        seed: u64,
        arrivals: Vec<Arrivals>,
    }
    #[derive(Debug, serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    #[allow(dead_code, reason = "decoded only")]
    enum Arrivals {
        Poisson { per_second: f64 },
        Never,
    }
    let decode = |text: &str| {
        let decoded = read(&Source::new("s", text)).unwrap()[0].decode::<Scenario>();
        decoded.map_or_else(|problem| problem.to_string(), |_| "ok".to_owned())
    };
    for (text, wanted) in [
        ("seed: 1\narrivals: [never, poisson: {per_second: 2}]\n", "ok"),
        (
            "seed: 1\narrivls: []\n",
            "s:2:1: object: arrivls: unknown field; did you mean \"arrivals\"?",
        ),
        ("arrivals: []\n", "s:1:1: object: seed: is required; add it"),
        (
            "seed: 1\narrivals: [sometimes]\n",
            "s:2:12: object: arrivals[0]: unknown value \"sometimes\"; expected poisson, never",
        ),
        (
            "seed: 1\narrivals: [poisson: {per_second: x}]\n",
            "s:2:34: object: arrivals[0].poisson.per_second: expected f64, found \"x\"",
        ),
    ] {
        assert_eq!(decode(text), wanted, "{text}");
    }
}

#[test]
fn a_snippet_shows_the_line() {
    let text = POD.replace("priority: 10", "priority: high");
    let problem = object(&read(&Source::new("f.yaml", text)).unwrap()[0]).unwrap_err();
    assert_eq!(
        problem.snippet(),
        " --> f.yaml:8:13\n  |\n8 |   priority: high\n  |             ^^^^\n"
    );
}
