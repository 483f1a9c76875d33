//! `/api/v1` and `-o json` of the CLI give the same for the same objects.

use berth_manifest::{Source as Text, Strictness, read_as};
use berth_plan::Snapshot;
use berth_scenario::cluster::{Objects, read};
use serde_json::from_value;

use super::*;
use crate::core::{Settings, Update};
use crate::metrics::Metrics;
use crate::watch::{SchedulerNames, UnreadPod};

const NOW_MS: i64 = 1_794_000_000_000;

fn node(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name, "creationTimestamp": "2026-11-01T00:00:00Z",
            "labels": {
                "berth.dev/numa-nodes": "2", "berth.dev/topology-manager-policy": "single-numa-node",
                "berth.dev/cpu-manager-policy": "static", "karpenter.sh/nodepool": "l4",
                "topology.kubernetes.io/zone": "eu-1a", "nvidia.com/gpu.product": "NVIDIA-L4",
                "nvidia.com/gpu.memory": "23034", "nvidia.com/gpu.count": "4",
            },
        },
        "status": {
            "capacity": { "cpu": "32", "memory": "128Gi", "pods": "110", "nvidia.com/gpu": "4" },
            "allocatable": { "cpu": "30", "memory": "128Gi", "pods": "110", "nvidia.com/gpu": "4" },
            "conditions": [{ "type": "Ready", "status": "True" }],
            "nodeInfo": {
                "kubeletVersion": "v1.35.1", "architecture": "amd64", "bootID": "", "machineID": "",
                "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                "operatingSystem": "linux", "osImage": "", "systemUUID": "",
            },
        },
    })
}

fn pod(name: &str, second: u32, gpus: &str, more: &Value) -> Value {
    let created = format!("2026-11-05T10:00:{second:02}Z");
    let limits = json!({ "cpu": "2", "memory": "4Gi", "nvidia.com/gpu": gpus });
    let container = json!({ "name": "c", "image": "i:1", "resources": { "limits": limits, "requests": limits } });
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "ml", "uid": format!("uid-{name}"), "resourceVersion": "7",
            "creationTimestamp": created, "labels": { "berth.dev/team": "red" },
        },
        "spec": { "schedulerName": "berth", "containers": [container] },
        "status": { "phase": "Pending" },
    });
    if let Some(node) = more.get("node") {
        pod["spec"]["nodeName"] = node.clone();
        pod["status"] = json!({ "phase": "Running", "startTime": created });
    }
    if let Some(placement) = more.get("placement") {
        pod["metadata"]["annotations"] = json!({ "berth.dev/placement": placement.to_string() });
    }
    if more.get("gated").is_some() {
        pod["spec"]["schedulingGates"] = json!([{ "name": "wait" }]);
    }
    pod
}

fn objects() -> Vec<Value> {
    let placement = json!({
        "alignment": "aligned", "numaNodes": [1], "why": "x",
        "devices": [{ "resource": "nvidia.com/gpu", "count": 1, "ids": ["gpu-3"] }],
    });
    vec![
        node("a"),
        node("b"),
        pod("first", 1, "2", &json!({ "node": "a" })),
        pod("second", 2, "1", &json!({ "node": "a", "placement": placement })),
        pod("third", 3, "2", &json!({ "node": "b" })),
        pod("large", 4, "3", &json!({})),
        pod("gated", 5, "1", &json!({ "gated": true })),
    ]
}

/// The leader's state after its watches have delivered the objects.
fn observed(objects: &[Value], names: &SchedulerNames) -> (Core, NodeTopologies) {
    let mut core = Core::new(Settings::default());
    let mut node_topologies = NodeTopologies::new(Metrics::new());
    for object in objects {
        let updates = match object["kind"].as_str() {
            Some("Node") => node_topologies.node(from_value(object.clone()).unwrap()).unwrap(),
            _ => {
                let pod = UnreadPod::Whole(Box::new(from_value(object.clone()).unwrap()));
                vec![Update::Pod(Box::new(pod.read(|_| None, names).unwrap()))]
            }
        };
        updates.into_iter().for_each(|update| core.apply(update, NOW_MS));
    }
    (core, node_topologies)
}

#[test]
fn the_api_and_the_cli_give_the_same_json() {
    let objects = objects();
    let names: SchedulerNames = Arc::new(["berth".into()]);
    let (mut core, node_topologies) = observed(&objects, &names);
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string();
    let documents = read_as(&Text::new("list", list), Strictness::Dump).unwrap();
    let dump = Objects::new(documents).unwrap();
    let cluster = read(&dump).unwrap();
    let mut snapshot = Snapshot::new(dump, cluster, Some(NOW_MS)).unwrap();
    let mut ask = |question: &Question, pod: Option<&Pod>| {
        answer(&mut core, &node_topologies, &names, question, pod, NOW_MS).unwrap()
    };
    let nodes = ask(&Question::Nodes, None);
    assert_eq!(nodes, json!(snapshot.inspect().nodes(&[]).unwrap()));
    assert_eq!(nodes["nodes"][0]["pods"][1]["place"]["evidence"], "placement");
    let queue = ask(&Question::Queue, None);
    assert_eq!(queue, json!(snapshot.inspect().queue(&QueueFilter::default())));
    assert_eq!(queue["pods"][0]["pod"]["name"], "large");
    for object in objects.iter().filter(|object| object["kind"] == "Pod") {
        let pod: Pod = from_value(object.clone()).unwrap();
        let (namespace, name) = ("ml".to_owned(), pod.metadata.name.clone().unwrap());
        let expected = json!(snapshot.pod(&namespace, &name).unwrap());
        let question = Question::Explanation { namespace, name, whole_cluster: true };
        assert_eq!(ask(&question, Some(&pod)), expected);
    }
}
