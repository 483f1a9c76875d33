//! Pods that manifests make.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use berth_engine::event::Event;
use berth_manifest::{Source, Strictness, read_as};
use berth_model::spec::{PodSpec, PreemptionPolicy};
use berth_scenario::cluster::{Cluster, Objects};
use berth_scenario::workloads::{JobBounds, WorkloadPods, pods_of};

fn workloads_or(text: &str) -> Result<(Cluster, Vec<WorkloadPods>), String> {
    let source = Source::new("work.yaml", text);
    let documents = read_as(&source, Strictness::Manifest).map_err(|error| error.to_string())?;
    let objects = Objects::new(documents).map_err(|error| error.to_string())?;
    let mut cluster = Cluster { now_ms: 7, ..Cluster::default() };
    cluster.add(&objects, false).map_err(|error| error.to_string())?;
    let workloads = pods_of(&objects, &cluster).map_err(|error| error.to_string())?;
    for workload in &workloads {
        workload.new_pods(&cluster).map_err(|error| error.to_string())?;
    }
    Ok((cluster, workloads))
}

fn workloads(text: &str) -> (Cluster, Vec<WorkloadPods>) {
    workloads_or(text).unwrap()
}

const POD: &str = "metadata: {labels: {app: a, berth.dev/team: blue}}
    spec: {containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: '1'}}}]}";

fn object(version: &str, kind: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: {version}\nkind: {kind}\nmetadata: {{name: {}, namespace: team}}\nspec:\n{spec}\n",
        kind.to_lowercase()
    )
}

fn templated(version: &str, kind: &str, more: &str) -> String {
    object(version, kind, &format!("{more}  template:\n    {POD}"))
}

fn controller(spec: &PodSpec) -> String {
    let owner = spec.controller.as_ref();
    owner.map_or_else(String::new, |owner| format!("{}/{}", owner.kind, owner.name))
}

#[test]
fn every_kind_makes_the_pods_its_controller_would() {
    let selector = "  selector: {matchLabels: {app: a}}\n";
    let cron = format!(
        "  schedule: '@daily'\n  jobTemplate:\n    spec:\n      template:\n        {}",
        POD.replace("\n", "\n    ")
    );
    let text = templated("apps/v1", "Deployment", &format!("  replicas: 3\n{selector}"))
        + &templated("apps/v1", "ReplicaSet", &format!("  replicas: 2\n{selector}"))
        + &templated("apps/v1", "StatefulSet", selector)
        + &templated("v1", "ReplicationController", "  replicas: 0\n")
        + &templated(
            "batch/v1",
            "Job",
            "  parallelism: 4\n  completions: 6\n  backoffLimit: 2\n  activeDeadlineSeconds: 60\n",
        )
        + &object("batch/v1", "CronJob", &cron)
        + &templated("apps/v1", "DaemonSet", selector)
        + "---\napiVersion: v1\nkind: Pod\nmetadata: {name: pod, namespace: team}\nspec: {containers: [{name: c, image: i}]}\n";
    let (cluster, workloads) = workloads(&text);
    let shown: Vec<(String, Option<u32>, String)> = workloads
        .iter()
        .map(|one| {
            (one.outline.name.clone(), one.templates[0].copies, controller(&one.templates[0].spec))
        })
        .collect();
    let expected = [
        ("deployment", Some(3), "ReplicaSet/deployment"),
        ("replicaset", Some(2), "ReplicaSet/replicaset"),
        ("statefulset", Some(1), "StatefulSet/statefulset"),
        ("replicationcontroller", Some(0), "ReplicationController/replicationcontroller"),
        ("job", Some(4), "Job/job"),
        ("cronjob", Some(1), "Job/cronjob"),
        ("daemonset", None, "DaemonSet/daemonset"),
        ("pod", Some(1), ""),
    ];
    let expected =
        expected.map(|(name, copies, owner)| (name.to_owned(), copies, owner.to_owned()));
    assert_eq!(shown, expected);
    assert_eq!(
        workloads[4].templates[0].job,
        Some(JobBounds {
            completions: 6,
            parallelism: 4,
            backoff_limit: 2,
            deadline_ms: Some(60_000)
        })
    );
    let pods = workloads[0].new_pods(&cluster).unwrap();
    let names: Vec<&str> = pods.iter().map(|new| &*new.pod.name).collect();
    assert_eq!(names, ["deployment-0", "deployment-1", "deployment-2"]);
    assert!(
        pods.iter()
            .all(|new| std::sync::Arc::ptr_eq(&new.pod.spec, &workloads[0].templates[0].spec))
    );
    assert_eq!(
        (workloads[0].outline.team.as_str(), workloads[0].outline.class.as_str()),
        ("blue", "batch")
    );
    assert_eq!(workloads[7].new_pods(&cluster).unwrap()[0].pod.name.as_ref(), "pod");
    let tolerated = &workloads[6].templates[0].spec.tolerations;
    assert!(tolerated.iter().any(|one| &*one.key == "node.kubernetes.io/unschedulable"));
}

#[test]
fn what_another_object_makes_is_not_made_twice() {
    let owned = templated("apps/v1", "ReplicaSet", "  replicas: 2\n  selector: {matchLabels: {app: a}}\n").replace(
        "metadata: {name: replicaset,",
        "metadata: {name: r, ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: deployment, \
         controller: true, uid: u}],",
    );
    let owner = templated("apps/v1", "Deployment", "  selector: {matchLabels: {app: a}}\n");
    assert_eq!(workloads(&(owner + &owned)).1.len(), 1);
    assert_eq!(workloads(&owned).1.len(), 1, "alone it stands for itself");
}

#[test]
fn priorities_and_limits_are_filled_in_as_the_api_server_does() {
    let text = "apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: low}
value: -10
preemptionPolicy: Never
globalDefault: true
---
apiVersion: v1
kind: LimitRange
metadata: {name: l, namespace: team}
spec:
  limits:
  - {type: Container, default: {cpu: '2', memory: 4Gi}, defaultRequest: {cpu: '1'}, max: {cpu: '8', memory: 16Gi}}
"
    .to_owned()
        + &templated("batch/v1", "Job", "");
    let (_, workloads) = workloads(&text);
    let spec = &workloads[0].templates[0].spec;
    assert_eq!((spec.priority, spec.preemption), (-10, PreemptionPolicy::Never));
    let resources = &spec.pod.containers[0].resources;
    let shown = |list: &berth_model::resource::ResourceList| {
        list.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(shown(&resources.requests), "cpu=1 memory=4Gi nvidia.com/gpu=1");
    assert_eq!(shown(&resources.limits), "cpu=2 memory=4Gi nvidia.com/gpu=1");
    assert_eq!(workloads[0].templates[0].refused, None);
    let greedy = text.replace("nvidia.com/gpu: '1'", "cpu: '9'");
    let refused = workloads_or(&greedy).unwrap().1[0].templates[0].refused.clone().unwrap();
    assert_eq!(refused, "container \"c\": maximum cpu usage per Container is 8, but limit is 9");
}

#[test]
fn claims_are_made_for_each_pod() {
    let text = "apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpu, namespace: team}
spec: {spec: {devices: {requests: [{name: g, exactly: {deviceClassName: gpu.example}}]}}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: team}
spec:
  replicas: 2
  selector: {matchLabels: {app: a}}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, storageClassName: fast}
  template:
    metadata: {labels: {app: a}}
    spec:
      containers: [{name: c, image: i}]
      resourceClaims: [{name: g, resourceClaimTemplateName: gpu}]
";
    let (cluster, workloads) = workloads(text);
    let pods = workloads[0].new_pods(&cluster).unwrap();
    let claims: Vec<String> = pods
        .iter()
        .flat_map(|new| &new.claims)
        .map(|event| match event {
            Event::Claim(claim) => claim.name.to_string(),
            Event::DeviceClaim(claim) => format!("{} for {:?}", claim.name, claim.controller_uid),
            other => format!("{other:?}"),
        })
        .collect();
    assert_eq!(
        claims,
        [
            "db-0-g for Some(\"new/team/db-0\")",
            "data-db-0",
            "db-1-g for Some(\"new/team/db-1\")",
            "data-db-1"
        ]
    );
    assert_ne!(pods[0].pod.spec.volumes, pods[1].pod.spec.volumes);
    let missing =
        workloads_or(&text.replace("name: gpu, namespace: team", "name: other, namespace: team"));
    let error = missing.unwrap_err();
    assert!(
        error.contains(
            "spec.template.spec.resourceClaims[0].resourceClaimTemplateName: ResourceClaimTemplate \
             team/gpu not found"
        ),
        "{error}"
    );
}

#[test]
fn what_cannot_be_is_told_with_its_place() {
    let job = |more: &str| templated("batch/v1", "Job", more);
    let with_class =
        job("").replace("spec: {containers", "spec: {priorityClassName: gold, containers");
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: other}\n".to_owned();
    for (text, expected) in [
        (
            with_class,
            "work.yaml:8:31: Job team/job: spec.template.spec.priorityClassName: no PriorityClass \
             \"gold\" is known; ",
        ),
        (
            templated("apps/v1", "Deployment", "  selector: {matchLabels: {app: b}}\n"),
            "work.yaml:6:33: Deployment team/deployment: spec.selector.matchLabels.app: the pod \
             template has no label app=b; ",
        ),
        (
            job("").replace("gpu: '1'", "gpu: 1Gib"),
            "work.yaml:8:82: Job team/job: spec.template.spec.containers[0].resources.limits\
             [nvidia.com/gpu]: quantity \"1Gib\"",
        ),
        (
            namespace + &job(""),
            "work.yaml:7:34: Job team/job: metadata.namespace: namespace \"team\" not found; ",
        ),
        (
            templated(
                "apps/v1",
                "Deployment",
                "  replicas: 2000000\n  selector: {matchLabels: {app: a}}\n",
            ),
            "work.yaml:6:13: Deployment team/deployment: spec.replicas: must be at most 100000 (got \
             2000000)",
        ),
        (job("  parralelism: 2\n"), "work.yaml:6:3: Job team/job: spec.parralelism: "),
    ] {
        let error = workloads_or(&text).unwrap_err();
        assert!(error.starts_with(expected), "{error}\n{expected}");
    }
}
