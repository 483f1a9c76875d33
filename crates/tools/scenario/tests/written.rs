//! What a scenario may say, as people write it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::PathBuf;

use berth_engine::event::Event;
use berth_model::workload::{PoolClasses, WorkloadClass};
use berth_scenario::scenario::load;
use berth_sim::experiment::{Experiment, WorkloadKind};

fn written(test: &str, files: &[(&str, &str)], seed: Option<u64>) -> Experiment {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(test);
    fs::create_dir_all(&directory).unwrap();
    for (name, text) in files {
        fs::write(directory.join(name), text).unwrap();
    }
    load(&directory.join("s.yaml"), seed).map_err(|error| error.to_string()).unwrap()
}

const TRACED: &str = "\
apiVersion: berth.dev/v1alpha1
kind: Scenario
metadata: {name: traced}
spec:
  seed: 1
  duration: 2h
  cluster:
    pools:
    - {name: t4, count: 1, gpus: {product: NVIDIA-T4, memory: 16Gi, count: 2, sharing: {method: shares}}}
  arrivals:
  - {trace: pods.csv, copies: 2}
";

const PODS: &str = "\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
a,4000,8192,1,500,,LS,Running,0,600,0
b,4000,8192,1,1000,,LS,Running,60,660,60
c,4000,8192,1,1000,,LS,Running,90,,90
";

#[test]
fn pods_of_a_trace_come_as_they_did() {
    let experiment = written("traced", &[("s.yaml", TRACED), ("pods.csv", PODS)], None);
    let WorkloadKind::Jobs(jobs) = &experiment.workloads[0].kind else { panic!("jobs") };
    let at_start = jobs.iter().filter(|job| job.at_ms <= 60_000).count();
    assert_eq!((jobs.len(), at_start), (4, 2), "what never ended has no lifetime");
    let report = berth_sim::run(&experiment, &mut |_, _| {}).unwrap();
    let berth = report.runs.iter().find(|run| run.name == "berth").unwrap();
    assert!(berth.summary.jobs >= 2, "{}", berth.summary.jobs);
}

#[test]
fn another_seed_draws_other_times() {
    let text =
        TRACED.replace("  - {trace: pods.csv, copies: 2}", "  - {workload: ci/run, perHour: 20}");
    let text = format!(
        "{text}---\napiVersion: batch/v1\nkind: Job\nmetadata: {{name: run, namespace: ci}}\nspec:\n  \
         template:\n    spec:\n      restartPolicy: Never\n      containers:\n      - {{name: c, image: i:1}}\n"
    );
    let times = |seed| {
        let experiment = written("seeds", &[("s.yaml", &text)], seed);
        let WorkloadKind::Jobs(jobs) = &experiment.workloads[0].kind else { panic!("jobs") };
        jobs.iter().map(|job| job.at_ms).collect::<Vec<_>>()
    };
    assert_eq!(times(None), times(Some(1)));
    assert_ne!(times(None), times(Some(2)));
}

#[test]
fn node_pools_of_manifests_can_grow() {
    let text = "\
apiVersion: berth.dev/v1alpha1
kind: Scenario
metadata: {name: pools}
spec: {duration: 1h}
---
apiVersion: v1
kind: Node
metadata:
  name: gpu-0
  labels:
    karpenter.sh/nodepool: gpu
    nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3
    nvidia.com/gpu.count: \"8\"
status:
  allocatable: {cpu: \"64\", memory: 512Gi, pods: \"110\", nvidia.com/gpu: \"8\"}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: gpu}
spec:
  limits: {nodes: \"3\"}
  template:
    spec:
      requirements: []
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: gpu}
";
    let experiment = written("pools", &[("s.yaml", text)], None);
    assert_eq!((experiment.nodes.len(), experiment.pools.len()), (1, 1));
    assert!(experiment.pools[0].growth > 0);
    assert_eq!(experiment.pools[0].template.gpus.len(), 8);
}

#[test]
fn teams_pools_and_headroom_are_objects_and_settings_are_those_of_serve() {
    let text = "\
apiVersion: berth.dev/v1alpha1
kind: Scenario
metadata: {name: policy}
spec:
  duration: 1h
  reservations: {max: 20m, share: 50%}
  workloadClasses: {nightly: batch}
  cluster:
    pools:
    - {name: l4, count: 1, gpus: {product: NVIDIA-L4, memory: 24Gi, count: 2}}
---
apiVersion: berth.dev/v1alpha1
kind: Pool
metadata: {name: l4}
spec: {classes: [interactive], only: true}
---
apiVersion: berth.dev/v1alpha1
kind: Pool
metadata: {name: elsewhere}
spec: {classes: [batch]}
---
apiVersion: berth.dev/v1alpha1
kind: Team
metadata: {name: search}
spec: {namespaces: [search], shares: [{resource: gpus, guaranteed: 1}]}
---
apiVersion: berth.dev/v1alpha1
kind: Headroom
metadata: {name: warm}
spec:
  count: 2
  class: interactive
  template: {spec: {containers: [{name: c, image: i:1}]}}
";
    let experiment = written("policy", &[("s.yaml", text)], None);
    let reservations = experiment.reservations;
    assert_eq!(
        (reservations.max_ms, reservations.share_percent, reservations.time_percent),
        (20 * 60_000, 50, 25)
    );
    let (mut pools, mut teams, mut rooms, mut classes) = (Vec::new(), 0, 0, Vec::new());
    for event in experiment.objects {
        match event {
            Event::Pool(pool) => {
                let labels = pool.template.labels.iter().count();
                pools.push((pool.name.to_string(), pool.classes, labels > 0));
            }
            Event::Team(team) => teams += usize::from(&*team.name == "search"),
            Event::Headroom(headroom) => rooms += headroom.count,
            Event::Classes(rules) => classes.extend(rules.by_priority_class.into_values()),
            _ => {}
        }
    }
    pools.sort_by_key(|(name, ..)| name.clone());
    let only = PoolClasses::Only([WorkloadClass::Interactive].into_iter().collect());
    let preferred = PoolClasses::Preferred([WorkloadClass::Batch].into_iter().collect());
    let expected = [("elsewhere".to_owned(), preferred, false), ("l4".to_owned(), only, true)];
    assert_eq!(pools, expected, "one pool per name");
    assert_eq!((teams, rooms, classes), (1, 2, vec![WorkloadClass::Batch]));
}
