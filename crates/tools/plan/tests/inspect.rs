//! Looks at a small cluster: who waits, why, and who holds what; and at clusters that hold nonsense.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::fmt::Write as _;

use berth_inspect::Evidence;
use berth_inspect::node::{Insight, NodeReport, Nodes};
use berth_inspect::parse_selector;
use berth_inspect::place::Placed;
use berth_inspect::pod::Fate;
use berth_inspect::queue::{Queue, QueueFilter, QueueState};
use berth_inspect::table::{self, Form};
use berth_inspect::text::Style;
use berth_manifest::{Source, Strictness, read_as};
use berth_model::alignment::Alignment;
use berth_plan::Snapshot;
use berth_scenario::cluster::{Objects, read_sound};

/// A node of four GPUs on two NUMA nodes, whose kubelet insists on one.
const NODE: &str = r#"
apiVersion: v1
kind: Node
metadata:
  name: gpu-a
  creationTimestamp: "2026-11-01T00:00:00Z"
  labels:
    berth.dev/numa-nodes: "2"
    berth.dev/sockets: "2"
    berth.dev/topology-manager-policy: single-numa-node
    berth.dev/cpu-manager-policy: static
    nvidia.com/gpu.product: NVIDIA-L4
    nvidia.com/gpu.memory: "23034"
    nvidia.com/gpu.count: "4"
  annotations: {berth.dev/reserved-system-cpus: "0"}
status:
  capacity: {cpu: "32", memory: 128Gi, pods: "110", nvidia.com/gpu: "4"}
  allocatable: {cpu: "31", memory: 128Gi, pods: "110", nvidia.com/gpu: "4"}
  conditions: [{type: Ready, status: "True"}]
"#;

/// A pod with so many GPUs and whatever else is written.
fn pod(name: &str, at: &str, gpus: u32, priority: i32, spec: &str, rest: &str) -> String {
    format!(
        r#"---
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  namespace: team-a
  uid: uid-{name}
  creationTimestamp: "2026-11-10T{at}Z"
{rest}
spec:
  schedulerName: berth
  priority: {priority}
{spec}
  containers:
  - name: main
    image: x
    resources:
      requests: {{cpu: "2", memory: 4Gi, nvidia.com/gpu: "{gpus}"}}
      limits: {{cpu: "2", memory: 4Gi, nvidia.com/gpu: "{gpus}"}}
"#
    )
}

fn running(name: &str, at: &str, gpus: u32) -> String {
    let mut text = pod(name, at, gpus, 0, "  nodeName: gpu-a", "");
    let _ = writeln!(text, "status: {{phase: Running, startTime: \"2026-11-10T{at}Z\"}}");
    text
}

fn ended(name: &str, minute: u32) -> String {
    let mut text = pod(name, &format!("08:{minute:02}:00"), 1, 0, "  nodeName: gpu-a", "");
    let _ = writeln!(
        text,
        "status:\n  phase: Succeeded\n  startTime: \"2026-11-10T08:{minute:02}:00Z\"\n  \
         containerStatuses:\n  - name: main\n    state: {{terminated: {{exitCode: 0, finishedAt: \
         \"2026-11-10T09:{minute:02}:00Z\"}}}}"
    );
    text
}

fn scene(texts: &[&str]) -> Snapshot {
    scene_and_problems(texts).0
}

fn scene_and_problems(texts: &[&str]) -> (Snapshot, Vec<String>) {
    let documents = texts
        .iter()
        .flat_map(|text| read_as(&Source::new("text.yaml", *text), Strictness::Dump).unwrap());
    let (objects, mut wrong) = Objects::sound(documents.collect());
    let (cluster, unfit) = read_sound(&objects);
    wrong.extend(unfit);
    let wrong = wrong.iter().map(|one| format!("{}: {}", one.object, one.message)).collect();
    (Snapshot::new(objects, cluster, None).unwrap(), wrong)
}

fn names(queue: &Queue) -> Vec<&str> {
    queue.pods.iter().map(|one| one.pod.name.as_str()).collect()
}

#[test]
fn who_waits_is_in_the_order_of_turns() {
    let gang = |name: &str, at: &str| {
        let labels = "  labels: {berth.dev/gang: ring, berth.dev/gang-size: \"2\"}";
        pod(name, at, 2, 0, "", labels)
    };
    let texts = [
        NODE.to_owned(),
        running("busy", "09:00:00", 4),
        pod("young", "10:05:00", 1, 0, "", ""),
        pod("old", "10:00:00", 1, 0, "", ""),
        pod("urgent", "10:09:00", 1, 100, "", ""),
        gang("ring-0", "10:01:00"),
        gang("ring-1", "10:08:00"),
        pod("later", "10:00:00", 1, 0, "  schedulingGates: [{name: hold}]", ""),
    ];
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let mut scene = scene(&texts);
    let queue = scene.inspect().queue(&QueueFilter::default());
    assert_eq!(names(&queue), ["urgent", "old", "ring-0", "ring-1", "young", "later"]);
    let positions: Vec<Option<usize>> = queue.pods.iter().map(|one| one.position).collect();
    assert_eq!(positions, [Some(1), Some(2), Some(3), Some(4), Some(5), None]);
    let states: Vec<QueueState> = queue.pods.iter().map(|one| one.state).collect();
    assert_eq!(states[..2], [QueueState::Waiting; 2]);
    assert_eq!(states[2..4], [QueueState::Gang; 2]);
    assert_eq!(states[5], QueueState::Gated);
    assert_eq!((queue.waiting, queue.pods[0].age_seconds, queue.pods[1].age_seconds), (5, 0, 540));
    assert!(queue.pods[1].reason.starts_with("0 of 1 nodes fit. Node gpu-a: nvidia.com/gpu: 1"));
    scene.pod("team-a", "old").unwrap();
    assert_eq!(scene.inspect().queue(&QueueFilter::default()), queue, "looking changes nothing");
}

#[test]
fn a_filter_leaves_positions_as_they_are() {
    let texts = [
        NODE.to_owned(),
        running("busy", "09:00:00", 4),
        pod("one", "10:00:00", 1, 0, "", "  labels: {berth.dev/team: red, app: web}"),
        pod("two", "10:01:00", 1, 0, "", "  labels: {berth.dev/team: blue}"),
    ];
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let mut scene = scene(&texts);
    let team = QueueFilter { team: Some("blue".to_owned()), ..QueueFilter::default() };
    let queue = scene.inspect().queue(&team);
    assert_eq!((names(&queue), queue.pods[0].position), (vec!["two"], Some(2)));
    let selector = Some(parse_selector("app in (web)").unwrap());
    let queue = scene.inspect().queue(&QueueFilter { selector, ..QueueFilter::default() });
    assert_eq!(names(&queue), ["one"]);
    let namespace = Some("team-b".to_owned());
    let queue = scene.inspect().queue(&QueueFilter { namespace, ..QueueFilter::default() });
    assert_eq!((queue.pods.len(), queue.waiting), (0, 2));
}

#[test]
fn quotas_hold_whom_they_hold() {
    let quota = "---\napiVersion: v1\nkind: ResourceQuota\nmetadata: {name: cap, namespace: team-a}\n\
                 spec: {hard: {requests.nvidia.com/gpu: \"3\"}}\n";
    let texts = [
        NODE.to_owned(),
        quota.to_owned(),
        running("busy", "09:00:00", 2),
        pod("one", "10:00:00", 1, 0, "", ""),
        pod("two", "10:01:00", 1, 0, "", ""),
    ];
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let mut scene = scene(&texts);
    let queue = scene.inspect().queue(&QueueFilter::default());
    assert_eq!(queue.pods[0].state, QueueState::Fits);
    assert_eq!(queue.pods[1].state, QueueState::Held);
    assert_eq!(queue.pods[1].held_by.as_deref(), Some("quota cap"));
    let one = scene.pod("team-a", "one").unwrap();
    assert_eq!(one.would_go.as_ref().unwrap().node, "gpu-a");
    assert_eq!(one.would_go.as_ref().unwrap().alignment, Alignment::Aligned);
    let two = scene.pod("team-a", "two").unwrap();
    assert_eq!((two.position, two.would_go), (Some((2, 2)), None));
    assert!(two.why.contains("more nodes would not help"), "{}", two.why);
}

#[test]
fn teams_are_heeded() {
    let team = |name: &str, gpus: u32| {
        format!(
            "---\napiVersion: berth.dev/v1alpha1\nkind: Team\nmetadata: {{name: {name}}}\nspec:\n  \
             namespaces: [team-a]\n  shares: [{{resource: gpus, guaranteed: {gpus}, borrowLimit: 0}}]\n"
        )
    };
    let labelled = |name: &str, at: &str, team: &str| {
        pod(name, at, 1, 0, "", &format!("  labels: {{berth.dev/team: {team}}}"))
    };
    let texts = [
        NODE.to_owned(),
        team("red", 1),
        team("blue", 3),
        running("busy", "09:00:00", 1)
            .replace("namespace: team-a", "namespace: team-a\n  labels: {berth.dev/team: red}"),
        labelled("one", "10:00:00", "red"),
        labelled("two", "10:01:00", "blue"),
        labelled("three", "10:02:00", "green"),
    ];
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let (mut scene, wrong) = scene_and_problems(&texts);
    assert_eq!(wrong, Vec::<String>::new());
    let queue = scene.inspect().queue(&QueueFilter::default());
    let told: Vec<(&str, &str, QueueState)> = queue
        .pods
        .iter()
        .map(|one| (one.pod.name.as_str(), one.team.as_str(), one.state))
        .collect();
    // Who is within a guarantee goes first; a team that is not there is the first of the namespace.
    let expected = [
        ("two", "blue", QueueState::Fits),
        ("three", "blue", QueueState::Fits),
        ("one", "red", QueueState::Held),
    ];
    assert_eq!(told, expected);
}

#[test]
fn what_berth_wrote_at_binding_says_what_a_pod_holds() {
    let rest = "  annotations:\n    berth.dev/gpu-memory: 16Gi\n    berth.dev/placement: \
                '{\"alignment\":\"aligned\",\"grant\":{\"resource\":\"nvidia.com/gpu\"},\"why\":\"near\"}'";
    let part = pod("part", "09:00:00", 0, 0, "  nodeName: gpu-a", rest);
    let part = part.replace(", nvidia.com/gpu: \"0\"", "");
    let mut scene = scene(&[NODE, &part]);
    assert_eq!(node(&mut scene).gpu_use.allocated_milli, 1000);
    let report = scene.pod("team-a", "part").unwrap();
    assert_eq!(report.recorded.unwrap()["why"], "near");
    assert_eq!(report.place.unwrap().gpu_milli, 1000);
}

#[test]
fn a_forecast_needs_pods_that_have_ended() {
    let told = |count: u32| {
        let mut texts = vec![
            NODE.to_owned(),
            running("busy", "09:55:00", 4),
            pod("next", "10:00:00", 4, 0, "  activeDeadlineSeconds: 7200", ""),
        ];
        texts.extend((0..count).map(|at| ended(&format!("done-{at}"), at)));
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        scene(&texts).pod("team-a", "next").unwrap()
    };
    assert_eq!(told(3).forecast, None);
    let report = told(20);
    let forecast = report.forecast.unwrap();
    assert!(forecast.starts_with("Starts ") || forecast.starts_with("Not before"), "{forecast}");
    assert!(forecast.ends_with("Based on 20 finished pods that are still listed."));
}

#[test]
fn a_pod_that_is_not_there_may_be_elsewhere() {
    let mut scene = scene(&[NODE, &running("busy", "09:00:00", 1)]);
    let missing = scene.pod("default", "busy").unwrap_err();
    assert_eq!(missing.elsewhere, ["team-a"]);
    assert!(scene.pod("team-a", "nobody").unwrap_err().elsewhere.is_empty());
    let report = scene.pod("team-a", "busy").unwrap();
    let place = report.place.unwrap();
    assert_eq!((report.fate, place.numa.len(), place.cpus), (Fate::Placed, 1, 2));
}

fn node(scene: &mut Snapshot) -> NodeReport {
    scene.inspect().nodes(&[]).unwrap().nodes.remove(0)
}

#[test]
fn a_node_shows_who_holds_what() {
    let mut scene = scene(&[NODE, &running("two", "09:00:00", 2), &running("one", "09:01:00", 1)]);
    let node = node(&mut scene);
    assert_eq!((node.gpus, node.gpu_use.allocated_milli, node.gpu_use.free_milli), (4, 3000, 1000));
    assert_ne!(node.inside, Insight::Unknown);
    assert_eq!(node.sockets.len(), 2);
    let numa: Vec<_> = node.sockets.iter().flat_map(|socket| &socket.numa).collect();
    let held = |at: usize| -> Vec<bool> {
        let parts = numa[at].gpus.iter().map(|gpu| &gpu.parts[0]);
        parts.map(|part| !(part.held_by.is_empty() && part.perhaps_by.is_empty())).collect()
    };
    assert_eq!(held(0), [true, true], "two GPUs on the first, for the pod of two");
    assert_eq!(held(1), [true, true], "either may be the one");
    let free: Vec<usize> = node.devices[0].free.iter().map(|one| one.free).collect();
    assert_eq!(free, [0, 1]);
    assert_eq!(node.pods.len(), 2);
    assert_eq!(numa.iter().map(|one| one.cpu_holders.len()).sum::<usize>(), 2);
    let error = scene.inspect().nodes(&["gpu-b".to_owned()]).unwrap_err();
    assert_eq!(error.near.as_deref(), Some("gpu-a"));
}

#[test]
fn a_cluster_that_holds_nonsense_is_seen_without_it() {
    let bad_pod = pod("bad", "10:00:00", 1, 0, "  tolerations: [{operator: Never}]", "")
        .replace("cpu: \"2\"", "cpu: \"two\"");
    let bad_node =
        NODE.replace("gpu-a", "gpu-z").replace("numa-nodes: \"2\"", "numa-nodes: \"two\"");
    let bad_price = NODE
        .replace("gpu-a", "gpu-y")
        .replace("annotations: {", "annotations: {berth.dev/price-per-hour: cheap, ");
    let twice = running("busy", "09:00:00", 1);
    let (mut scene, wrong) =
        scene_and_problems(&[NODE, &bad_node, &bad_price, &bad_pod, &twice, &twice]);
    let nodes = scene.inspect().nodes(&[]).unwrap();
    let inside: Vec<(&str, bool)> = nodes
        .nodes
        .iter()
        .map(|node| (node.name.as_str(), node.inside == Insight::Unknown))
        .collect();
    assert_eq!(inside, [("gpu-a", false), ("gpu-y", false), ("gpu-z", true)]);
    assert_eq!(nodes.nodes[2].gpus, 4, "what it offers is known all the same");
    for what in ["Pod team-a/bad", "Node gpu-z", "Node gpu-y", "Pod team-a/busy: duplicate object"]
    {
        assert!(wrong.iter().any(|one| one.starts_with(what)), "{what}: {wrong:?}");
    }
    assert_eq!(wrong.len(), 4, "{wrong:?}");
}

#[test]
fn an_empty_cluster_is_shown_as_one() {
    let mut scene = scene(&[]);
    let nodes = scene.inspect().nodes(&[]).unwrap();
    let shown = table::nodes(&nodes, Form::PLAIN);
    assert_eq!(shown.lines().count(), 1);
    let form = Form { no_headers: true, ..Form::PLAIN };
    assert_eq!(table::queue(&scene.inspect().queue(&QueueFilter::default()), form), "");
}

/// A running pod with a GPU and an annotation.
fn annotated(name: &str, key: &str, value: &str) -> String {
    let annotations = format!("  annotations: {{{key}: '{value}'}}");
    let mut text = pod(name, "09:00:00", 1, 0, "  nodeName: gpu-a", &annotations);
    let _ = writeln!(text, "status: {{phase: Running, startTime: \"2026-11-10T09:00:00Z\"}}");
    text
}

/// CPUs by pod, with the evidence for them.
fn cpus(node: &NodeReport) -> Vec<(&str, Vec<usize>, Evidence)> {
    let numa = node.sockets.iter().flat_map(|socket| &socket.numa);
    let holders = numa.flat_map(|numa| &numa.cpu_holders);
    let mut all: Vec<_> =
        holders.map(|one| (one.pod.name.as_str(), one.cpus.clone(), one.evidence)).collect();
    all.sort();
    all
}

fn place<'a>(node: &'a NodeReport, name: &str) -> &'a Placed {
    &node.pods.iter().find(|one| one.place.pod.name == name).unwrap().place
}

#[test]
fn what_a_kubelet_recorded_goes_before_inference() {
    // By the order of start, the first would be on NUMA node 0.
    let recorded = |numa: u32, cpus: &str, gpu: &str| {
        format!(
            r#"{{"containers":[{{"name":"main","numa":[{numa}],"preferred":true,"cpus":"{cpus}","devices":{{"nvidia.com/gpu":["{gpu}"]}}}}]}}"#
        )
    };
    let key = "berth.dev/virtual-devices";
    let first = annotated("first", key, &recorded(1, "8,24", "gpu-2"));
    let second = annotated("second", key, &recorded(0, "3,19", "gpu-1"));
    let mut recorded = scene(&[NODE, &first, &second]);
    let report = node(&mut recorded);
    assert_eq!(
        cpus(&report),
        [("first", vec![8, 24], Evidence::Kubelet), ("second", vec![3, 19], Evidence::Kubelet),]
    );
    assert_eq!(place(&report, "first").numa, [1]);
    let gpus = |name: &str| place(&report, name).devices[0].certain[0].gpu;
    assert_eq!((gpus("first"), gpus("second")), (Some(2), Some(1)));
    let shown = table::pictures(&nodes_of(&report), Style::PLAIN);
    assert!(shown.contains("CPUs 8,24  team-a/first") && !shown.contains('~'), "{shown}");
    let mut inferred = scene(&[NODE, &running("first", "09:00:00", 1)]);
    let report = node(&mut inferred);
    assert_eq!(cpus(&report)[0].2, Evidence::Inferred);
    let shown = table::pictures(&nodes_of(&report), Style::PLAIN);
    assert!(shown.contains("CPUs ~") && shown.contains("note: ~ inferred"), "{shown}");
}

fn nodes_of(report: &NodeReport) -> Nodes {
    Nodes { nodes: vec![report.clone()], ..Nodes::default() }
}

#[test]
fn what_the_scheduler_recorded_goes_before_the_order_of_start() {
    let recorded = r#"{"alignment":"aligned","numaNodes":[1],"devices":[{"resource":"nvidia.com/gpu","count":1,"ids":["gpu-3"]}]}"#;
    let placed = annotated("placed", "berth.dev/placement", recorded);
    let mut scene = scene(&[NODE, &placed, &running("other", "09:30:00", 1)]);
    let report = node(&mut scene);
    let own = place(&report, "placed");
    assert_eq!((own.numa.as_slice(), own.evidence), ([1].as_slice(), Evidence::Placement));
    assert_eq!(own.devices[0].certain[0].gpu, Some(3));
    assert_eq!(own.cpus, 2);
    let by_pod = cpus(&report);
    let (_, own, evidence) = by_pod.iter().find(|(name, ..)| *name == "placed").unwrap();
    assert!(own.iter().all(|cpu| (8..16).contains(cpu) || *cpu >= 24), "NUMA node 1: {own:?}");
    assert_eq!(*evidence, Evidence::Placement);
    assert_eq!(place(&report, "other").evidence, Evidence::Inferred);
    let shown = table::pictures(&nodes_of(&report), Style::PLAIN);
    assert!(shown.contains("CPUs ~"), "CPUs are not in the record: {shown}");
    let explained = scene.pod("team-a", "placed").unwrap();
    assert_eq!(explained.place.unwrap().numa, [1]);
}

#[test]
fn gpus_of_a_cordoned_node_are_not_stranded() {
    let cordoned = NODE.replace("status:\n", "spec: {unschedulable: true}\nstatus:\n");
    let mut scene = scene(&[&cordoned, &running("busy", "09:00:00", 1)]);
    let report = node(&mut scene);
    let gpu_use = report.gpu_use;
    assert_eq!((gpu_use.allocated_milli, gpu_use.free_milli), (1000, 0));
    assert_eq!((gpu_use.cordoned_milli, gpu_use.stranded_milli), (3000, 0));
    let nodes = nodes_of(&report);
    let shown = table::pictures(&nodes, Style::PLAIN);
    assert!(shown.contains("1 used, 3 free but cordoned, 0 stranded"), "{shown}");
    let row = table::nodes(&nodes, Form::PLAIN);
    assert!(row.contains("SchedulingDisabled") && row.contains("1+2"), "{row}");
}

#[test]
fn berth_is_known_by_what_it_wrote_whatever_scheduler_name_it_serves() {
    let by = |scheduler: &str, metadata: &str| {
        let name = format!("of-{scheduler}");
        pod(&name, "10:00:00", 8, 0, "", metadata)
            .replace("schedulerName: berth", &format!("schedulerName: {scheduler}"))
    };
    let written = "  managedFields: [{manager: berth, operation: Update, subresource: status}]";
    let mut scene =
        scene(&[NODE, &by("default-scheduler", written), &by("other", ""), &by("berth", "")]);
    for (scheduler, expected, shown) in [
        ("default-scheduler", true, "default-scheduler (Berth)"),
        ("other", false, "other (not Berth)"),
        ("berth", true, "scheduler:  berth\n"),
    ] {
        let report = scene.pod("team-a", &format!("of-{scheduler}")).unwrap();
        assert_eq!(report.scheduled_by_berth, expected, "{scheduler}");
        let text = table::pod(&report, Style::PLAIN);
        assert!(text.contains(shown), "{text}");
    }
    let queue = scene.inspect().queue(&QueueFilter::default());
    assert_eq!(queue.notes.iter().filter(|note| note.contains("1 pod uses another")).count(), 1);
}
