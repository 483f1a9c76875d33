//! Plans of the example cluster: two nodes of eight H100 with two of each four taken on either socket,
//! one divided node, one of which nothing is known inside.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::path::PathBuf;

use berth_engine::Profile;
use berth_inspect::place::Placed;
use berth_inspect::remedy::Reason;
use berth_inspect::text::Style;
use berth_manifest::{Document, Source, Strictness, read_as};
use berth_model::alignment::Alignment;
use berth_plan::report::{Plan, WorkloadPlan};
use berth_plan::{Edit, Question, plan, table};
use berth_scenario::cluster::{Objects, Prices, read};
use berth_scenario::workloads::pods_of;

fn example(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../examples/plan").join(name);
    std::fs::read_to_string(path).unwrap()
}

/// The example cluster with its text changed.
fn dump(change: impl Fn(&str, String) -> String) -> Vec<Document> {
    let names = ["nodes", "topologies", "pods", "policies"];
    names
        .iter()
        .flat_map(|name| documents(&change(name, example(&format!("cluster/{name}.yaml")))))
        .collect()
}

fn documents(text: &str) -> Vec<Document> {
    read_as(&Source::new("text.yaml", text), Strictness::Dump).unwrap()
}

fn planned(dump: Vec<Document>, manifests: &str, what_if: &[&str], profile: Profile) -> Plan {
    let mut cluster = read(&Objects::new(dump).unwrap()).unwrap();
    let manifests = Objects::new(documents(manifests)).unwrap();
    cluster.add(&manifests, false).unwrap();
    let workloads = pods_of(&manifests, &cluster).unwrap();
    let edits: Vec<Edit> = what_if.iter().map(|text| text.parse().unwrap()).collect();
    let question = Question {
        cluster: &cluster,
        workloads: &workloads,
        what_if: &edits,
        profile,
        prices: &Prices::default(),
    };
    plan(&question).unwrap()
}

fn of(manifests: &str, what_if: &[&str]) -> Plan {
    planned(dump(|_, text| text), &example(manifests), what_if, Profile::Berth)
}

fn workload<'a>(plan: &'a Plan, name: &str) -> &'a WorkloadPlan {
    plan.workloads.iter().find(|one| one.name == name).unwrap()
}

fn nodes(placed: &[Placed]) -> Vec<&str> {
    placed.iter().map(|one| one.node.as_str()).collect()
}

#[test]
fn four_gpus_do_not_fit_where_no_socket_has_four_left() {
    let plan = of("train.yaml", &[]);
    let train = workload(&plan, "train");
    assert_eq!(plan.counts(), (1, 0));
    let group = &train.unplaced[0];
    assert_eq!(group.reason, Reason::NoRoom);
    assert!(group.why.contains("free but split 2+2 over sockets"), "{}", group.why);
    let kinds: Vec<&str> = group.remedies.iter().map(|one| one.kind.as_str()).collect();
    assert!(kinds.contains(&"evict") && kinds.contains(&"grow"), "{kinds:?}");
    let evict = group.remedies.iter().find(|one| one.kind == "evict").unwrap();
    assert!(evict.victims[0].name.starts_with("sweep-"), "{evict:?}");
    assert!(plan.notes.is_empty(), "the example agrees with itself: {:?}", plan.notes);
}

#[test]
fn what_is_said_to_help_helps() {
    let plan = of("train.yaml", &["add=h100:1"]);
    let train = workload(&plan, "train");
    assert_eq!(nodes(&train.placed), ["h100-a-new-1"]);
    assert_eq!((train.placed[0].alignment, train.placed[0].numa.len()), (Alignment::Aligned, 1));
    let difference = plan.difference.unwrap();
    assert_eq!(difference.placed.len(), 1);
    // A node of eight costs eight times as much as a GPU.
    assert_eq!(difference.cluster_microusd_per_month, 8 * 6_880_000 * 730);
    assert_eq!(difference.microusd_per_month, 4 * 6_880_000 * 730);
}

#[test]
fn pods_are_placed_down_to_gpu_and_slice() {
    let plan = of("serving.yaml", &[]);
    assert_eq!(plan.counts(), (5, 5));
    for chat in &workload(&plan, "chat").placed {
        assert_eq!(
            (chat.alignment, chat.numa.len(), chat.cpus),
            (Alignment::Aligned, 1, 8),
            "{chat:?}"
        );
        let given = &chat.devices[0];
        assert_eq!((given.count, given.resource.as_str()), (1, "nvidia.com/gpu"));
        // NVIDIA's plugin picks by links, of which nothing is known, so it is one of those that are left.
        let numbers: Vec<usize> = given.one_of.iter().filter_map(|one| one.gpu).collect();
        let expected: &[usize] = if chat.numa == [0] { &[0, 1, 2, 3] } else { &[4, 5, 6, 7] };
        assert!(numbers.iter().all(|number| expected.contains(number)), "{numbers:?}");
        assert_eq!(chat.microusd_per_month, Some(6_880_000 * 730));
    }
    let embed = workload(&plan, "embed");
    assert_eq!(nodes(&embed.placed), ["mig-a"; 3]);
    let slices = embed.placed[0].devices[0].one_of.iter();
    let slices: Vec<&str> = slices.filter_map(|one| one.slice.as_deref()).collect();
    assert!(slices.contains(&"1g.10gb@6"), "{slices:?}");
    assert_eq!(embed.placed[0].cpus, 4, "as the LimitRange says");
    assert_eq!(plan.cost.by_team["assistants"], 2 * 6_880_000 * 730);
    let pool = plan.pools.iter().find(|pool| pool.pool == "h100").unwrap();
    assert_eq!(
        (pool.gpus, pool.before.allocated_milli, pool.after.allocated_milli),
        (16, 8000, 10_000)
    );
}

#[test]
fn a_gpu_divided_otherwise_makes_room() {
    let plan = of("rerank.yaml", &[]);
    let unplaced = &workload(&plan, "rerank").unplaced[0];
    assert!(unplaced.why.contains("nvidia.com/mig-3g.40gb"), "{}", unplaced.why);
    let repartition = unplaced.remedies.iter().find(|one| one.kind == "repartition");
    assert_eq!(repartition.unwrap().node.as_deref(), Some("mig-a"), "{:?}", unplaced.remedies);
    let plan = of("rerank.yaml", &["repartition=mig-a/0:3g.40gb@0+3g.40gb@4"]);
    let rerank = &workload(&plan, "rerank").placed[0];
    assert_eq!((rerank.node.as_str(), rerank.numa.as_slice()), ("mig-a", [0].as_slice()));
    let slices = rerank.devices[0].one_of.iter().map(|one| one.slice.as_deref().unwrap());
    assert_eq!(slices.collect::<Vec<_>>(), ["3g.40gb@0", "3g.40gb@4"]);
    assert_eq!(plan.difference.unwrap().placed.len(), 1);
    // Wherever they fit is as good.
    let plan = of("rerank.yaml", &["repartition=mig-a/0:3g.40gb+2g.20gb"]);
    assert_eq!(plan.counts(), (1, 1));
    // Who has a slice of the GPU loses it.
    assert!(plan.others.unplaced.is_empty(), "those on the other GPU keep what they have");
    let plan = of("rerank.yaml", &["repartition=mig-a/1:7g.80gb"]);
    let waiting = plan.others.unplaced.iter().map(|one| one.pods.len()).sum::<usize>();
    assert_eq!(waiting, 2, "{:?}", plan.others.unplaced);
}

#[test]
fn pods_of_a_lost_zone_look_for_another_place() {
    let plan = of("serving.yaml", &["lose-zone=eu-1b"]);
    assert!(workload(&plan, "chat").placed.iter().all(|one| one.node == "h100-a"));
    let others: Vec<&str> = plan
        .others
        .unplaced
        .iter()
        .flat_map(|one| &one.pods)
        .map(|pod| pod.name.as_str())
        .collect();
    assert_eq!(others, ["sweep-2-tt4vw", "sweep-3-hk8zr"]);
    assert_eq!(plan.pools.iter().map(|pool| pool.gpus).sum::<usize>(), 10);
}

#[test]
fn drained_nodes_keep_nothing_and_get_nothing() {
    let plan = of("serving.yaml", &["drain=mig-a"]);
    assert_eq!(workload(&plan, "embed").unplaced[0].pods.len(), 3);
    let why = &plan.others.unplaced[0].why;
    assert!(why.contains("cordoned"), "{why}");
    assert!(plan.lost.is_empty());
}

#[test]
fn quotas_hold_and_can_be_raised() {
    let two =
        example("train.yaml").replace("spec:\n  template", "spec:\n  parallelism: 2\n  template");
    let train = |what_if: &[&str]| planned(dump(|_, text| text), &two, what_if, Profile::Berth);
    let plan = train(&["add=h100:1"]);
    let train_of = workload(&plan, "train");
    assert_eq!((train_of.placed.len(), train_of.unplaced[0].reason), (1, Reason::Quota));
    assert!(train_of.unplaced[0].why.contains("quota"), "{}", train_of.unplaced[0].why);
    let plan = train(&["add=h100:1", "quota=research/gpus:requests.nvidia.com/gpu=16"]);
    assert_eq!(plan.counts(), (2, 2));
}

#[test]
fn evictions_are_listed_with_what_becomes_of_the_evicted() {
    let urgent = example("train.yaml").replace(
        "      restartPolicy: Never\n",
        "      restartPolicy: Never\n      priorityClassName: serving\n",
    );
    let plan = planned(dump(|_, text| text), &urgent, &[], Profile::Berth);
    assert_eq!(plan.counts(), (1, 1));
    assert_eq!(plan.evictions.len(), 1, "{:?}", plan.evictions);
    let eviction = &plan.evictions[0];
    assert!(eviction.pod.name.starts_with("sweep-") && eviction.by.name == "train-0");
    assert!(eviction.is_replaced && eviction.goes_to.is_none());
    assert_eq!(plan.others.unplaced[0].pods[0], eviction.pod);
    // With a node to go to it goes there.
    let plan = planned(dump(|_, text| text), &urgent, &["add=h100:1"], Profile::Berth);
    assert!(plan.evictions.is_empty(), "nobody need be evicted: {:?}", plan.evictions);
    assert_eq!(plan.difference.unwrap().spared.len(), 1);
}

#[test]
fn a_scheduler_that_does_not_ask_is_turned_down() {
    let plan = planned(dump(|_, text| text), &example("train.yaml"), &[], Profile::KubeScheduler);
    let group = &workload(&plan, "train").unplaced[0];
    assert_eq!(group.reason, Reason::RejectedByKubelet);
    assert!(group.why.contains("TopologyAffinityError"), "{}", group.why);
}

#[test]
fn a_plan_with_changes_is_the_plan_of_the_changed_cluster() {
    let cordoned = |name: &str, text: String| match name {
        "nodes" => {
            text.replace("    providerID: aws:///eu-1a/i-0h100-a", "    unschedulable: true")
        }
        _ => text,
    };
    for manifests in ["serving.yaml", "train.yaml", "rerank.yaml"] {
        let mut with = of(manifests, &["cordon=h100-a"]);
        (with.what_if, with.difference) = (Vec::new(), None);
        let fresh = planned(dump(cordoned), &example(manifests), &[], Profile::Berth);
        assert_eq!(with, fresh, "{manifests}");
    }
}

#[test]
fn the_same_question_has_the_same_answer() {
    let one = of("serving.yaml", &["lose-zone=eu-1a", "add=l4:2"]);
    assert_eq!(one, of("serving.yaml", &["lose-zone=eu-1a", "add=l4:2"]));
    assert!(!table::render(&one, Style::PLAIN).contains('\u{1b}'));
}

#[test]
fn a_workload_that_runs_already_makes_way_for_its_new_pods() {
    let rank = example("rerank.yaml").replace("rerank", "rank");
    let plan = planned(dump(|_, text| text), &rank, &[], Profile::Berth);
    assert_eq!(plan.counts(), (1, 1));
    assert!(
        plan.notes[0].starts_with("2 pods of the cluster belong to workloads"),
        "{:?}",
        plan.notes
    );
}

#[test]
fn a_dump_that_disagrees_with_itself_is_told() {
    let other = |name: &str, text: String| match name {
        "topologies" => text.replacen("available: \"2\"", "available: \"4\"", 1),
        _ => text,
    };
    let plan = planned(dump(other), &example("train.yaml"), &[], Profile::Berth);
    assert!(plan.notes[0].contains("node h100-a: the exporter reports other"), "{:?}", plan.notes);
}

#[test]
fn daemons_are_planned_for_every_node_that_takes_them() {
    let daemon = "apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, namespace: serving}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      nodeSelector: {karpenter.sh/nodepool: h100}
      tolerations: [{operator: Exists}]
      containers: [{name: a, image: a, resources: {limits: {cpu: 100m, memory: 64Mi}}}]
";
    let plan = planned(dump(|_, text| text), daemon, &[], Profile::Berth);
    let agent = workload(&plan, "agent");
    let names: Vec<&str> = agent.placed.iter().map(|one| one.pod.name.as_str()).collect();
    assert_eq!(names, ["agent-h100-a", "agent-h100-b"]);
    assert_eq!(nodes(&agent.placed), ["h100-a", "h100-b"]);
}

#[test]
fn changes_that_cannot_be_are_told_with_what_is_near() {
    let error = |text: &str| -> String {
        match text.parse::<Edit>() {
            Err(error) => error.to_string(),
            Ok(edit) => {
                let cluster = read(&Objects::new(dump(|_, text| text)).unwrap()).unwrap();
                let question = Question {
                    cluster: &cluster,
                    workloads: &[],
                    what_if: &[edit],
                    profile: Profile::Berth,
                    prices: &Prices::default(),
                };
                plan(&question).unwrap_err().to_string()
            }
        }
    };
    for (text, expected) in [
        ("remove=h100-aa", "node \"h100-aa\" not found; did you mean \"h100-a\"?"),
        ("lose-zone=mars", "zone \"mars\" not found; known: eu-1a, eu-1b"),
        ("add=h10:2", "node or pool \"h10\" not found; did you mean \"h100\"?"),
        ("add=h100:many", "the count after \":\" must be 1 to 10000"),
        ("repartition=mig-a/2:7g.80gb", "mig-a has GPUs 0 to 1"),
        ("repartition=mig-a/0:4g.40gb+4g.40gb", "layout 4g.40gb+4g.40gb does not fit"),
        ("repartition=mig-a/0:4g.40gb@0+4g.40gb@4", "4g.40gb"),
        ("quota=research/gpu:pods=3", "did you mean \"research/gpus\"?"),
        ("quota=research/gpus:pods=much", "quantity \"much\""),
        ("reparition=a/0:7g", "did you mean repartition?"),
        ("repartition=mig-a/0:3g.40gb,3g.40gb", "separated by \"+\", not commas: 3g.40gb+3g.40gb"),
        ("nothing", "unknown change (expected add="),
    ] {
        let error = error(text);
        assert!(error.starts_with(&format!("--what-if {text}: ")), "{error}");
        assert!(error.contains(expected), "{error} should have {expected}");
    }
}
