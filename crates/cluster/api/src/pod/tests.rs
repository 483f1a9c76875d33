//! Pods as the API server stores them, and what becomes of them.

use berth_model::affinity::{NodeInclusionPolicy, WhenUnsatisfiable};
use berth_model::pod::PodLevelResources;
use berth_model::policy::PriorityClass;
use berth_model::spec::{Disk, HostPort, Protocol, Volume};
use berth_model::storage::{InTreeDisk, InTreePlugin};
use berth_model::taint::Effect;
use serde_json::{Value, from_value, json};

use super::*;

/// A pod with one container, whose spec has these fields too.
fn parse(spec: Value, status: Value) -> core::Pod {
    let mut full = json!({ "containers": [{ "name": "c", "image": "i" }] });
    let Value::Object(more) = spec else { panic!("a spec is an object") };
    full.as_object_mut().unwrap().extend(more);
    let metadata = json!({ "name": "p", "namespace": "team", "uid": "u" });
    from_value(json!({ "metadata": metadata, "spec": full, "status": status })).unwrap()
}

fn lowered(spec: Value) -> PodSpec {
    PodSpec::clone(&parse(spec, json!({})).lower().unwrap().spec)
}

fn refused(spec: Value) -> String {
    parse(spec, json!({})).lower().unwrap_err().to_string()
}

fn requests(pod: &core::Pod) -> Vec<String> {
    let total = pod.lower().unwrap().spec.pod.total_requests(PodLevelResources::Honoured);
    total.iter().map(|(name, quantity)| format!("{name}={quantity}")).collect()
}

#[test]
fn identity_and_life_come_from_metadata_and_status() {
    let mut pod = parse(
        json!({ "nodeName": "n1", "priority": 7, "preemptionPolicy": "Never" }),
        json!({ "startTime": "2026-03-01T00:00:01Z", "nominatedNodeName": "" }),
    );
    let object = pod.lower().unwrap();
    assert_eq!((&*object.uid, &*object.name, &*object.spec.namespace), ("u", "p", "team"));
    assert_eq!(object.node.as_deref(), Some("n1"));
    assert_eq!((object.spec.node_name.clone(), object.nominated), (None, None));
    assert_eq!(object.started_at_ms, Some(1_772_323_201_000));
    assert_eq!((object.spec.priority, object.spec.preemption), (7, PreemptionPolicy::Never));
    pod.metadata.uid = None;
    assert_eq!(&*pod.lower().unwrap().uid, "team/p");
}

#[test]
fn what_is_written_on_a_pod_without_a_node_was_not_given_to_it() {
    for (node, given) in [(json!("n1"), true), (json!(""), false), (json!(null), false)] {
        let mut pod = parse(json!({ "nodeName": node }), json!({}));
        let placement = r#"{"grant":{"resource":"nvidia.com/gpu","gpu":3}}"#;
        let annotation = (crate::keys::PLACEMENT.to_owned(), placement.to_owned());
        pod.metadata.annotations = Some([annotation].into());
        assert_eq!(pod.lower().unwrap().gpu_grant.is_some(), given, "{node}");
    }
}

#[test]
fn a_pod_ends_by_phase_and_terminates_by_whoever_was_first_to_say_so() {
    let condition =
        |status, reason| json!({ "type": "DisruptionTarget", "status": status, "reason": reason });
    let preempted = condition("True", "PreemptionByScheduler");
    for (deleted, phase, conditions, expected) in [
        (false, "Running", vec![preempted.clone()], Phase::Alive),
        (true, "Running", vec![], Phase::Terminating { by_preemption: false }),
        (true, "Running", vec![preempted.clone()], Phase::Terminating { by_preemption: true }),
        (
            true,
            "Pending",
            vec![condition("True", "EvictionByEvictionAPI"), preempted.clone()],
            Phase::Terminating { by_preemption: false },
        ),
        (
            true,
            "Running",
            vec![condition("False", "PreemptionByScheduler")],
            Phase::Terminating { by_preemption: false },
        ),
        (true, "Failed", vec![preempted], Phase::Finished),
        (false, "Succeeded", vec![], Phase::Finished),
    ] {
        let mut pod = parse(json!({}), json!({ "phase": phase, "conditions": conditions }));
        let at = from_value(json!("2026-03-02T00:00:00Z")).unwrap();
        pod.metadata.deletion_timestamp = deleted.then_some(at);
        assert_eq!(pod.lower().unwrap().phase, expected, "{deleted} {phase} {conditions:?}");
    }
}

#[test]
fn only_kubernetes_own_controllers_keep_their_plain_name() {
    for (version, kind, controls, expected) in [
        ("apps/v1", "ReplicaSet", true, Some("ReplicaSet")),
        ("v1", "ReplicationController", true, Some("ReplicationController")),
        ("example.com/v1", "ReplicaSet", true, Some("ReplicaSet.example.com/v1")),
        ("batch/v1", "Job", true, Some("Job")),
        ("apps/v1", "ReplicaSet", false, None),
    ] {
        let mut pod = parse(json!({}), json!({}));
        let owner = json!({ "apiVersion": version, "kind": kind, "name": "o", "uid": "o",
                            "controller": controls });
        pod.metadata.owner_references = from_value(json!([owner])).unwrap();
        let controller = pod.lower().unwrap().spec.controller.clone();
        assert_eq!(controller.as_ref().map(|owner| &*owner.kind), expected, "{version} {kind}");
    }
}

#[test]
fn resized_pods_count_with_the_largest_of_three_unless_that_is_infeasible() {
    let spec = || {
        let container = json!({ "name": "c", "resources": { "requests": { "cpu": "1" } } });
        json!({ "containers": [container] })
    };
    let status = |conditions: Value, resources: Value| {
        json!({ "conditions": conditions, "containerStatuses": [{
            "name": "c", "ready": true, "restartCount": 0, "image": "i", "imageID": "",
            "allocatedResources": { "cpu": "500m" }, "resources": resources,
        }] })
    };
    let in_use = json!({ "requests": { "cpu": "700m" } });
    let pending =
        |reason| json!([{ "type": "PodResizePending", "status": "True", "reason": reason }]);
    for (conditions, resources, expected) in [
        (json!([]), in_use.clone(), "cpu=1"),
        (pending("Deferred"), in_use.clone(), "cpu=1"),
        (pending("Infeasible"), in_use, "cpu=700m"),
        (pending("Infeasible"), json!({}), "cpu=500m"),
        (pending("Infeasible"), Value::Null, "cpu=1"),
    ] {
        let pod = parse(spec(), status(conditions.clone(), resources.clone()));
        assert_eq!(requests(&pod), [expected], "{conditions} {resources}");
    }
}

#[test]
fn requests_default_to_limits_and_odd_ones_are_let_through() {
    let container = |resources: Value| json!({ "name": "c", "resources": resources });
    let limits = json!({ "limits": { "nvidia.com/gpu": "2" } });
    let pod = parse(json!({ "containers": [container(limits)] }), json!({}));
    assert_eq!(requests(&pod), ["nvidia.com/gpu=2"]);
    let odd = json!({ "requests": { "hugepages-2048Ki": "4Mi", "cpu": "2" },
                      "limits": { "cpu": "1" } });
    let pod = parse(json!({ "containers": [container(odd)] }), json!({}));
    assert_eq!(requests(&pod), ["cpu=2", "hugepages-2048Ki=4Mi"]);
}

#[test]
fn ports_are_taken_by_containers_that_stay() {
    let port = |ip: &str, protocol: &str, host_port: i32| json!({ "containerPort": 1, "hostIP": ip, "protocol": protocol, "hostPort": host_port });
    let spec = lowered(json!({
        "initContainers": [
            { "name": "ends", "ports": [port("", "TCP", 1)] },
            { "name": "stays", "restartPolicy": "Always", "ports": [port("10.0.0.1", "UDP", 2)] },
        ],
        "containers": [
            { "name": "c", "ports": [port("0.0.0.0", "", 3), port("::", "SCTP", 4),
                                     port("", "TCP", 0), { "containerPort": 5 }] },
        ],
    }));
    let taken =
        |ip: Option<&str>, protocol, port| HostPort { ip: ip.map(Into::into), protocol, port };
    let expected = [
        taken(Some("10.0.0.1"), Protocol::Udp, 2),
        taken(None, Protocol::Tcp, 3),
        taken(Some("::"), Protocol::Sctp, 4),
    ];
    assert_eq!(spec.host_ports, expected);
}

#[test]
fn images_and_volumes_keep_what_ties_a_pod_to_nodes() {
    let spec = lowered(json!({
        "initContainers": [{ "name": "i", "image": "first" }],
        "volumes": [
            { "name": "a", "persistentVolumeClaim": { "claimName": "data" } },
            { "name": "b", "ephemeral": {} },
            { "name": "c", "gcePersistentDisk": { "pdName": "d", "readOnly": true } },
            { "name": "d", "awsElasticBlockStore": { "volumeID": "vol-1" } },
            { "name": "e", "iscsi": { "iqn": "iqn", "lun": 0, "targetPortal": "t" } },
            { "name": "f", "rbd": { "monitors": ["m"], "image": "r" } },
            { "name": "g", "cinder": { "volumeID": "v" } },
            { "name": "h", "azureDisk": { "diskName": "d", "diskURI": "u", "kind": "Shared" } },
            { "name": "i", "image": { "reference": "weights:1" } },
            { "name": "j", "csi": { "driver": "csi.example.com" } },
            { "name": "k", "emptyDir": {} },
        ],
    }));
    let claim = |name: &str, ephemeral| Volume::Claim { name: name.into(), ephemeral };
    let expected = [
        claim("data", false),
        claim("p-b", true),
        Volume::Disk(Disk::Gce { name: "d".into(), read_only: true }),
        Volume::Disk(Disk::Ebs { id: "vol-1".into() }),
        Volume::Disk(Disk::Iscsi { iqn: "iqn".into(), read_only: false }),
        Volume::Disk(Disk::Rbd {
            monitors: vec!["m".into()],
            pool: "rbd".into(),
            image: "r".into(),
            read_only: false,
        }),
        Volume::Disk(Disk::Counted(InTreeDisk { plugin: InTreePlugin::Cinder, id: "v".into() })),
    ];
    assert_eq!(spec.volumes, expected);
    assert_eq!(spec.images, ["first", "i", "weights:1"].map(Arc::from));
}

#[test]
fn wishes_tell_absent_selectors_from_empty_ones() {
    let term = |more: Value| {
        let mut term = json!({ "topologyKey": "zone" });
        term.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        term
    };
    let spec = lowered(json!({
        "affinity": {
            "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{}] } },
            "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
                term(json!({})), term(json!({ "labelSelector": {}, "namespaceSelector": {} }))] },
            "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [
                { "weight": 5, "podAffinityTerm": term(json!({ "namespaces": ["a"] })) }] },
        },
        "topologySpreadConstraints": [
            { "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway",
              "nodeTaintsPolicy": "Honor", "matchLabelKeys": ["app"] }],
    }));
    assert_eq!(spec.node_affinity.required.map(|terms| terms.len()), Some(1));
    let [absent, empty] = &spec.pod_affinity.required[..] else { panic!("two terms") };
    assert_eq!((&absent.selector, &absent.namespace_selector), (&None, &None));
    assert!(empty.selector.as_ref().is_some_and(|selector| selector.is_empty()));
    assert!(empty.namespace_selector.as_ref().is_some_and(|selector| selector.is_empty()));
    let (weight, avoided) = &spec.pod_affinity.anti_preferred[0];
    assert_eq!((*weight, avoided.namespaces.len()), (5, 1));
    let [spread] = &spec.spread[..] else { panic!("one constraint") };
    assert_eq!((spread.min_domains, spread.unsatisfiable), (1, WhenUnsatisfiable::ScheduleAnyway));
    assert_eq!(
        (spread.node_affinity, spread.node_taints),
        (NodeInclusionPolicy::Honor, NodeInclusionPolicy::Honor)
    );
    assert_eq!((&spread.selector, spread.match_label_keys.len()), (&None, 1));
}

#[test]
fn tolerations_read_like_the_schedulers() {
    for (toleration, operator, effect) in [
        (json!({ "key": "k" }), TolerationOperator::Equal("".into()), None),
        (json!({ "operator": "Exists", "effect": "" }), TolerationOperator::Exists, None),
        (
            json!({ "key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute" }),
            TolerationOperator::Equal("v".into()),
            Some(Effect::NoExecute),
        ),
        (json!({ "operator": "Gt", "value": "5" }), TolerationOperator::Gt(Some(5)), None),
        (json!({ "operator": "Lt", "value": "05" }), TolerationOperator::Lt(None), None),
    ] {
        let spec = lowered(json!({ "tolerations": [toleration] }));
        let [got] = &spec.tolerations[..] else { panic!("one toleration") };
        assert_eq!((&got.operator, got.effect), (&operator, effect), "{toleration}");
    }
}

#[test]
fn errors_name_the_pod_and_the_path_to_the_field() {
    let node_term =
        json!({ "matchFields": [{ "key": "spec.x", "operator": "In", "values": ["a"] }] });
    let required = json!({ "nodeSelectorTerms": [node_term] });
    for (spec, expected) in [
        (json!({ "containers": [] }), "spec.containers: is empty"),
        (
            json!({ "containers": [{ "name": "c", "resources": { "limits": { "cpu": "-1" } } }] }),
            "spec.containers[0].resources.limits[cpu]: quantity \"-1\"",
        ),
        (
            json!({ "affinity": { "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": required } } }),
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution\
             .nodeSelectorTerms[0].matchFields[0].key: unknown value \"spec.x\"; use metadata.name",
        ),
        (
            json!({ "tolerations": [{ "operator": "Near" }] }),
            "spec.tolerations[0].operator: unknown value \"Near\"",
        ),
        (json!({ "preemptionPolicy": "Maybe" }), "spec.preemptionPolicy: unknown value \"Maybe\""),
    ] {
        let error = refused(spec);
        assert!(error.starts_with(&format!("Pod team/p: {expected}")), "{error}");
    }
}

#[test]
fn priorities_are_resolved_as_the_api_server_does_it() {
    let class = |name: &str, value, is_default| PriorityClass {
        name: name.into(),
        value,
        preemption: if name == "batch" { PreemptionPolicy::Never } else { Default::default() },
        is_default,
    };
    let plain = [class("batch", 5, false)];
    let with_default = [class("high", 9, true), class("batch", 5, true)];
    for (spec, classes, expected) in [
        (json!({}), &plain[..], Some((0, PreemptionPolicy::LowerPriority))),
        (json!({}), &with_default, Some((5, PreemptionPolicy::Never))),
        (json!({ "priorityClassName": "batch" }), &plain, Some((5, PreemptionPolicy::Never))),
        (
            json!({ "priorityClassName": "batch", "priority": 3 }),
            &plain,
            Some((3, PreemptionPolicy::LowerPriority)),
        ),
        (
            json!({ "priorityClassName": "system-node-critical" }),
            &plain,
            Some((2_000_001_000, PreemptionPolicy::LowerPriority)),
        ),
        (json!({ "priorityClassName": "unheard" }), &plain, None),
    ] {
        let mut pod = parse(spec.clone(), json!({}));
        let got = resolve_priority(&mut pod, classes).map(|()| {
            let lowered = pod.lower().unwrap();
            (lowered.spec.priority, lowered.spec.preemption)
        });
        if let Err(error) = &got {
            assert!(error.to_string().contains("spec.priorityClassName: no PriorityClass"));
        }
        assert_eq!(got.ok(), expected, "{spec}");
    }
}
