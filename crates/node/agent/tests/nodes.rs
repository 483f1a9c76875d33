//! Reports on whole nodes, also with missing data.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use berth_agent::audit::DeviceKind;
use berth_agent::gpus::{DriverGpu, GpuProcess, GpuSource, PlacementSource};
use berth_agent::record::record;
use berth_agent::{GpuReading, NodeReport, table};
use berth_host::Root;
use berth_host::synthetic;
use berth_model::alignment::Alignment;

mod support;
use support::{Node, Pod, divide, gpu_uuid, slice_uuid, uid};

fn pod(number: usize, cpus: &str, gpu: String) -> Pod {
    Pod {
        uid: uid(number),
        containers: vec![("server", cpus.to_owned(), String::new(), Vec::new())],
        devices: vec![("server", "nvidia.com/gpu", gpu, None)],
        ..Pod::default()
    }
}

fn word(report: &NodeReport, number: usize) -> &'static str {
    report.audits().find(|audit| audit.uid == uid(number)).unwrap().finding.alignment.as_str()
}

#[test]
fn a_machine_with_8_gpus_is_told_whole() {
    for numa_per_socket in [1, 2, 4] {
        let mut node = Node::new(synthetic::epyc_9654(numa_per_socket));
        node.pods.push(pod(1, "96-99", gpu_uuid(0)));
        let report = node.report();
        assert_eq!(report.gpus.len(), 8);
        assert!(report.gpus.iter().all(|gpu| gpu.driver.is_some() && gpu.numa.is_some()));
        assert_eq!(report.numa.len(), 2 * numa_per_socket);
        assert_eq!(report.numa.iter().map(|node| node.gpus.len()).sum::<usize>(), 8);
        assert_eq!(report.distances.len(), 8 * 7 / 2 + 8 * 8);
        let pairs = report.distances.iter().filter(|pair| pair.nvlinks == 18).count();
        assert_eq!(pairs, 28, "every GPU reaches every other through the switches");
        assert_eq!(report.gpus[0].pods, [uid(1)]);
        let finding = &report.audits().next().unwrap().finding;
        assert_eq!(finding.alignment, Alignment::Misaligned, "the CPUs are on the other socket");
        let why = &finding.why;
        assert_eq!(finding.distance, Some(32), "{why}");
        let text = table::render(&report);
        for part in [
            "misaligned (32)",
            "NV18",
            "GPU7",
            "mlx5_0",
            "580.159.04",
            "topology manager best-effort",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }
}

#[test]
fn slices_and_shares_have_the_alignment_of_their_gpu() {
    let mut node = Node::new(synthetic::epyc_9654(1));
    divide(&mut node.gpus.gpus[0], 3);
    node.pods.push(pod(1, "8-9", slice_uuid(0, 2)));
    node.pods.push(pod(2, "100-101", slice_uuid(0, 1)));
    node.pods.push(pod(3, "100-101", format!("{}::1", gpu_uuid(7))));
    node.pods.push(pod(4, "8-9", format!("{}::1", slice_uuid(0, 0))));
    let report = node.report();
    let words: Vec<&str> = (1..=4).map(|number| word(&report, number)).collect();
    assert_eq!(words, ["aligned", "misaligned", "aligned", "aligned"]);
    let kinds: Vec<DeviceKind> = report.pods.iter().map(|pod| pod.devices[0].kind).collect();
    assert_eq!(kinds, [DeviceKind::Slice, DeviceKind::Slice, DeviceKind::Share, DeviceKind::Share]);
    assert_eq!(report.gpus[0].pods.len(), 3);
    let text = table::render(&report);
    for part in ["3x1g.10gb", "slice of GPU0", "share of GPU7", "{0,1,2,3,4,5,6}:1"] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

#[test]
fn a_gpu_unknown_to_the_driver_is_shown_with_a_diagnosis() {
    let mut node = Node::new(synthetic::epyc_9654(1));
    let lost = node.gpus.gpus.remove(3);
    node.pods.push(pod(1, "8-9", gpu_uuid(3)));
    let mut told = pod(2, "8-9", gpu_uuid(3));
    told.devices[0].3 = Some(1);
    node.pods.push(told);
    let report = node.report();
    let gpu = report.gpus.iter().find(|gpu| Some(&gpu.address) == lost.address.as_ref()).unwrap();
    assert!(gpu.driver.is_none() && gpu.numa.is_some());
    assert!(
        report.diagnoses.iter().any(|one| one.path.contains(&gpu.address)),
        "{:?}",
        report.diagnoses
    );
    assert_eq!(word(&report, 1), "unknown", "its NUMA node is unknown");
    assert_eq!(word(&report, 2), "misaligned", "the plugin reported it");
}

#[test]
fn a_host_without_gpus_shows_the_rest() {
    let mut node = Node::new(synthetic::no_gpu());
    node.gpus = GpuReading::default();
    let (root, directory) = node.written();
    let gpus = GpuReading::read(&GpuSource::Recorded(directory.path().to_owned()));
    assert!(gpus.diagnoses[0].what.contains("nvml.json cannot be read"), "{:?}", gpus.diagnoses);
    let report = NodeReport::read(&root, gpus);
    assert_eq!((report.gpus.len(), report.numa.len()), (0, 1));
    let text = table::render(&report);
    assert!(
        text.contains("No GPUs found") && text.contains("1 NUMA node") && text.contains("256 GiB"),
        "{text}"
    );
}

#[test]
fn pods_on_a_machine_with_one_numa_node_are_aligned() {
    let mut node = Node::new(synthetic::bare_gpu_vm());
    node.pods.push(pod(1, "", gpu_uuid(0)));
    assert_eq!(word(&node.report(), 1), "aligned");
}

#[test]
fn without_firmware_data_the_plugin_decides() {
    let mut node = Node::new(synthetic::without_numa_of_devices(synthetic::epyc_9654(1)));
    node.pods.push(pod(1, "8-9", gpu_uuid(0)));
    let mut told = pod(2, "8-9", gpu_uuid(0));
    told.devices[0].3 = Some(0);
    node.pods.push(told);
    node.pods.push(pod(3, "", gpu_uuid(0)));
    let report = node.report();
    let words: Vec<&str> = (1..=3).map(|number| word(&report, number)).collect();
    assert_eq!(words, ["unknown", "aligned", "unknown"]);
}

#[test]
fn a_plugin_with_the_wrong_node_is_overruled_and_diagnosed() {
    let mut node = Node::new(synthetic::epyc_9654(1));
    let mut wrong = pod(1, "100-101", gpu_uuid(0));
    wrong.devices[0].3 = Some(1);
    node.pods.push(wrong);
    let report = node.report();
    assert_eq!(word(&report, 1), "misaligned");
    assert!(report.diagnoses.iter().any(|one| one.what.contains("wrong CPUs")));
}

#[test]
fn assigned_cpus_that_no_container_has_make_alignment_unknown() {
    let mut node = Node::new(synthetic::epyc_9654(1));
    node.pods.push(Pod { stale: true, ..pod(1, "8-9", gpu_uuid(0)) });
    let report = node.report();
    let finding = &report.audits().next().unwrap().finding;
    assert_eq!(finding.alignment, Alignment::Unknown);
    let why = &finding.why;
    assert!(why.contains("no container of the pod has this cpuset"), "{why}");
}

#[test]
fn processes_identify_the_container_with_the_gpu() {
    let none = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    let mut node = Node::new(synthetic::epyc_9654(1));
    node.configuration = none;
    let mut both = pod(1, "8-9", gpu_uuid(0));
    both.containers.push(("sidecar", "100-101".to_owned(), String::new(), Vec::new()));
    node.pods.push(both);
    assert_eq!(word(&node.report(), 1), "unknown", "both containers may hold it");
    // The second container's process.
    node.gpus.gpus[0].processes = vec![GpuProcess { pid: 1001, ..GpuProcess::default() }];
    assert_eq!(word(&node.report(), 1), "misaligned");
    node.gpus.gpus[0].processes[0].pid = 1000;
    assert_eq!(word(&node.report(), 1), "aligned");
}

#[test]
fn advice_names_missing_settings_of_kubelet_and_pod() {
    let mut node = Node::new(synthetic::epyc_9654(1));
    node.configuration = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    node.pods.push(Pod { qos: "burstable", ..pod(1, "", gpu_uuid(0)) });
    let report = node.report();
    let audit = report.audits().next().unwrap();
    assert_eq!(audit.finding.alignment, Alignment::Floating);
    let all: Vec<String> =
        audit.advice.iter().map(|one| format!("{}: {}", one.of, one.set)).collect();
    let all = all.join("\n");
    for part in [
        "topologyManagerPolicy",
        "cpuManagerPolicy: static",
        "memoryManagerPolicy: Static",
        "requests equal to limits",
        "whole number of CPUs",
        "TopologyInfo for nvidia.com/gpu",
    ] {
        assert!(all.contains(part), "{part} is not in\n{all}");
    }
}

#[test]
fn a_recording_reads_like_the_node_without_uuids() {
    let mut node = Node::new(synthetic::epyc_9654(2));
    divide(&mut node.gpus.gpus[1], 2);
    node.pods.push(pod(1, "96-99", gpu_uuid(0)));
    node.pods.push(pod(2, "8-9", slice_uuid(1, 1)));
    node.pods.push(pod(3, "", format!("{}::2", gpu_uuid(5))));
    let (root, _directory) = node.written();
    let before = NodeReport::read(&root, node.gpus.clone());
    let target = support::directory();
    let to = target.path().join("recording");
    let recording = record(&root, &node.gpus, &to).unwrap();
    assert!(recording.entries > 100);
    let text = std::fs::read_to_string(to.join("nvml.json")).unwrap();
    for gpu in &node.gpus.gpus {
        assert!(!text.contains(gpu.uuid.as_deref().unwrap()));
        assert!(gpu.instances.iter().all(|one| !text.contains(one.uuid.as_deref().unwrap())));
    }
    let gpus = GpuReading::read(&GpuSource::Recorded(to.clone()));
    let after = NodeReport::read(&Root::new(&to), gpus);
    let words = |report: &NodeReport| -> Vec<&str> {
        report.audits().map(|audit| audit.finding.alignment.as_str()).collect()
    };
    assert_eq!(words(&before), ["misaligned", "aligned", "floating"]);
    assert_eq!(words(&after), words(&before));
    let holders = |report: &NodeReport| -> Vec<usize> {
        report.gpus.iter().map(|gpu| gpu.pods.len()).collect()
    };
    assert_eq!(holders(&after), holders(&before));
    assert_eq!((after.numa, after.distances), (before.numa, before.distances));
}

#[test]
fn a_broken_recording_of_the_driver_is_a_diagnosis() {
    for text in ["", "{", "[]", "{\"gpus\": 3}", "\u{0}", "{\"gpus\": [{\"index\": -1}]}"] {
        let directory = support::directory();
        std::fs::write(directory.path().join("nvml.json"), text).unwrap();
        let reading = GpuReading::read(&GpuSource::Recorded(directory.path().to_owned()));
        assert_eq!((reading.gpus.len(), reading.diagnoses.len()), (0, 1), "{text:?}");
    }
    let directory = support::directory();
    std::fs::create_dir(directory.path().join("nvml.json")).unwrap();
    let reading = GpuReading::read(&GpuSource::Recorded(directory.path().to_owned()));
    assert_eq!(reading.diagnoses.len(), 1);
}

#[test]
fn this_machine_has_a_driver_or_a_diagnosis() {
    let reading = GpuReading::read(&GpuSource::Nvml);
    match &reading.driver {
        Some(_) => assert!(reading.gpus.iter().all(|gpu: &DriverGpu| gpu.address.is_some())),
        None => {
            assert_eq!((reading.gpus.len(), reading.diagnoses.len()), (0, 1));
            assert!(!reading.diagnoses[0].remedy.is_empty());
        }
    }
}

#[test]
fn a_report_survives_serialization() {
    let mut node = Node::new(synthetic::epyc_9654(1));
    node.pods.push(pod(1, "96-99", gpu_uuid(0)));
    let report = node.report();
    let text = serde_json::to_string(&report).unwrap();
    assert!(text.contains("\"memoryBytes\"") && text.contains("\"alignment\":\"misaligned\""));
    assert_eq!(serde_json::from_str::<NodeReport>(&text).unwrap(), report);
}

/// `recorded/h200` was recorded on a machine with one, driver 580.159.04. What nvidia-smi printed there:
/// `mig -lgip` (id, name, how many, GiB, SMs) and `mig -lgipp` (placements and their size).
#[test]
fn a_recorded_h200_is_reported_as_its_driver_reports_it() {
    let recorded = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded/h200");
    let gpus = GpuReading::read(&GpuSource::Recorded(recorded.clone()));
    let report = NodeReport::read(&Root::new(recorded), gpus);
    let text = table::render(&report);
    let columns = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines: Vec<String> = text.lines().map(columns).collect();
    for line in [
        "1g.18gb 19 7 16.00 GiB 16 {0,1,2,3,4,5,6}:1 NVIDIA H200",
        "1g.18gb+me 20 1 16.00 GiB 16 {0,1,2,3,4,5,6}:1 NVIDIA H200",
        "1g.35gb 15 4 32.50 GiB 26 {0,2,4,6}:2 NVIDIA H200",
        "2g.35gb 14 3 32.50 GiB 32 {0,2,4}:2 NVIDIA H200",
        "3g.71gb 9 2 69.75 GiB 60 {0,4}:4 NVIDIA H200",
        "4g.71gb 5 1 69.75 GiB 64 {0}:4 NVIDIA H200",
        "7g.141gb 0 1 140.00 GiB 132 {0}:8 NVIDIA H200",
    ] {
        assert!(lines.iter().any(|one| one == line), "{line} is not in\n{text}");
    }
    assert!(text.contains("Driver:     NVIDIA 580.159.04, CUDA 13.0"), "{text}");
    assert_eq!(report.gpus.len(), 1);
}

#[test]
fn the_source_of_placements_is_shown() {
    let mut node = Node::new(synthetic::epyc_9654(1));
    divide(&mut node.gpus.gpus[0], 1);
    let mut shown = |placements: PlacementSource| {
        node.gpus.gpus[0].profiles[0].placements = placements;
        let text = table::render(&node.report());
        let line = text.lines().find(|line| line.contains("{0,1,2,3,4,5,6}:1")).unwrap();
        line.contains("(from table)")
    };
    assert!(shown(PlacementSource::Table));
    assert!(!shown(PlacementSource::Driver));
}
