//! What is wrong with a scenario is named by file, line and field.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::path::PathBuf;

use berth_scenario::scenario::load;

const GOOD: &str = "\
apiVersion: berth.dev/v1alpha1
kind: Scenario
metadata: {name: test}
spec:
  duration: 1h
  cluster:
    pools:
    - name: h100
      count: 1
      gpus: {product: NVIDIA-H100-80GB-HBM3, count: 8}
---
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: batch}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: main
        image: example.com/train:1
        resources: {limits: {cpu: 8, memory: 64Gi, nvidia.com/gpu: 1}}
";

/// What loading a text says, without the name of its directory.
fn said(test: &str, text: &str) -> Result<usize, String> {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(test);
    fs::create_dir_all(&directory).unwrap();
    let path = directory.join("s.yaml");
    fs::write(&path, text).unwrap();
    let loaded = load(&path, None).map(|experiment| experiment.workloads.len());
    loaded.map_err(|error| error.to_string().replace(&format!("{}/", directory.display()), ""))
}

#[test]
fn a_scenario_may_hold_its_manifests() {
    assert_eq!(said("good", GOOD), Ok(1));
}

#[test]
fn mistakes_are_told_with_file_line_and_field() {
    let cases: [(&str, &str, &[&str]); 17] = [
        ("duration: 1h", "duration: 1 fortnight", &["s.yaml:5:", "spec.duration", "fortnight"]),
        ("duration: 1h", "durations: 1h", &["s.yaml:5:", "durations", "duration"]),
        ("duration: 1h", "seed: 1", &["spec.duration", "is required"]),
        ("count: 1", "count: -1", &["s.yaml:9:", "spec.cluster.pools[0].count"]),
        ("count: 8}", "count: 800}", &["s.yaml:10:", "gpus.count", "800"]),
        ("count: 8}", "count: 8, mig: [9x1g.10gb]}", &["s.yaml:10:", "gpus.mig", "9x1g.10gb"]),
        ("count: 8}", "count: 8, mig: [8g.80gb]}", &["s.yaml:10:", "gpus.mig", "8g.80gb"]),
        ("64Gi", "64Gib", &["s.yaml:22:", "Job batch/train", "64Gib"]),
        ("kind: Scenario", "kind: Scene", &["s.yaml", "contains no scenario"]),
        ("v1alpha1", "v2", &["s.yaml:1:", "apiVersion", "berth.dev/v1alpha1"]),
        (
            "  duration: 1h\n",
            "  duration: 1h\n  arrivals: [{workload: batch/trains, every: 1h}]\n",
            &["s.yaml:6:", "spec.arrivals[0].workload", "batch/trains", "batch/train"],
        ),
        (
            "  duration: 1h\n",
            "  duration: 1h\n  failures: [{at: 5m, fault: {nodeLoss: h100-7}}]\n",
            &["s.yaml:6:", "spec.failures[0].fault", "unknown node", "h100-7", "h100-0"],
        ),
        (
            "  duration: 1h\n",
            "  duration: 1h\n  failures: [{at: 5m, fault: {nodeLost: h100-0}}]\n",
            &["s.yaml:6:", "spec.failures[0].fault", "nodeLost", "nodeLoss"],
        ),
        (
            "  duration: 1h\n",
            "  duration: 1h\n  failures: [{at: 1, fault: {nodeLoss: h100-0}}]\n",
            &["s.yaml:6:", "spec.failures[0].at", "1 has no unit"],
        ),
        (
            "  duration: 1h\n",
            "  duration: 1h\n  reservations: {time: 0%}\n",
            &["s.yaml:6:", "spec.reservations.time", "between 1% and 100%"],
        ),
        (
            "  duration: 1h\n",
            "  duration: 1h\n  workloadClasses: {night: nightly}\n",
            &["s.yaml:6:", "spec.workloadClasses.night", "nightly", "interactive"],
        ),
        (
            "  duration: 1h\n",
            "  duration: 1h\n  goals: {against: tuned}\n",
            &["s.yaml:6:", "spec.goals.against", "tuned", "kube-scheduler, berth"],
        ),
    ];
    for (at, (from, to, words)) in cases.into_iter().enumerate() {
        assert!(GOOD.contains(from), "{from}");
        let error = said(&format!("case-{at}"), &GOOD.replacen(from, to, 1)).unwrap_err();
        for word in words {
            assert!(error.contains(word), "{word:?} is not in: {error}");
        }
    }
}

#[test]
fn files_it_names_must_be_there() {
    let text = GOOD.replace("  duration: 1h\n", "  duration: 1h\n  manifests: [nowhere]\n");
    let error = said("missing", &text).unwrap_err();
    assert!(error.contains("s.yaml:6:") && error.contains("spec.manifests[0]"), "{error}");
}

#[test]
fn a_text_that_ends_anywhere_is_an_error_or_a_scenario() {
    for end in (0..GOOD.len()).step_by(7) {
        drop(said("cut", &GOOD[..end]));
    }
}
