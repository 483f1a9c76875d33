//! Formats of repartitioning: requests, labels, journals, and users of GPUs.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::BTreeMap;

use berth_agent::GpuReading;
use berth_agent::gpus::{DriverGpu, GpuProcess, Instance};
use berth_agent::mig::journal::{Direction, Unfinished};
use berth_agent::mig::manager::{self, CONFIG, DEPLOYED, Labels, MigOwner, Progress, STATE};
use berth_agent::mig::request::{RequestedLayout, RequestedSlice};
use berth_agent::mig::{
    FileJournal, GpuLayout, Journal, LayoutRequest, MigGpu, MigState, Placement, Slice, Workloads,
};
use berth_host::Root;
use berth_manifest::Source;
use berth_model::mig::Board;

fn gpu(index: u32, pci_id: &str) -> MigGpu {
    MigGpu {
        index,
        uuid: format!("GPU-{index}"),
        product: "NVIDIA H200".to_owned(),
        pci_id: Some(pci_id.to_owned()),
        board: Board::by_id("h200-141gb"),
        enabled: Some(false),
        pending: false,
        profiles: Vec::new(),
        slices: Vec::new(),
    }
}

fn wanted(request: &LayoutRequest, index: u32) -> Option<String> {
    request.of(&gpu(index, "0x233510DE")).map(|wanted| match wanted {
        RequestedLayout::Slices(slices) => {
            let text = |one: &RequestedSlice| match one.start {
                Some(start) => format!("{}@{start}", one.profile),
                None => one.profile.to_string(),
            };
            slices.iter().map(text).collect::<Vec<_>>().join(" ")
        }
        other => format!("{other:?}"),
    })
}

#[test]
fn a_text_selects_gpus_and_layouts() {
    let request =
        LayoutRequest::parse("2x1g.18gb, 3g.71gb@4 + 1g.18gb+me; 1 = off ;3-4=all-balanced")
            .unwrap();
    assert_eq!(wanted(&request, 0).unwrap(), "1g.18gb 1g.18gb 3g.71gb@4 1g.18gb+me");
    assert_eq!(wanted(&request, 1).unwrap(), "Off");
    assert_eq!(wanted(&request, 4).unwrap(), "Balanced");
    let request = LayoutRequest::parse("GPU-7=empty").unwrap();
    assert_eq!((wanted(&request, 7).unwrap().as_str(), wanted(&request, 6)), ("", None));
    let request = LayoutRequest::parse("all-1g.18gb.me").unwrap().only("2").unwrap();
    assert!(wanted(&request, 2).unwrap().starts_with("Full"));
    assert_eq!(wanted(&request, 0), None);
}

#[test]
fn an_invalid_text_is_an_error_with_a_remedy() {
    for (text, part) in [
        ("", "contains no slices"),
        (";;", "contains no slices"),
        ("3g", "is not a slice"),
        ("3g.71gb@", "has no valid position"),
        ("3g.71gb@x", "has no valid position"),
        ("0x1g.18gb", "has an invalid count"),
        ("2x3g.71gb@4", "has an invalid count"),
        ("99x1g.18gb", "too many times"),
        ("1g.18gb,4294967295x1g.18gb", "too many times"),
        ("x=off", "is not a GPU selection"),
        ("3-1=off", "is not a GPU selection"),
        ("all-round", "is not a known configuration"),
        ("1c.3g.71gb", "is not a slice"),
        ("3g.71gb,,1g.18gb", "is not a slice"),
    ] {
        let error = LayoutRequest::parse(text).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("; "), "{text:?}: {error}");
    }
    assert!(LayoutRequest::parse(&"1g.18gb,".repeat(10_000)).is_err());
    let chosen = LayoutRequest::parse("0=off").unwrap().only("1").unwrap_err();
    assert!(chosen.to_string().contains("conflicts with the GPUs"), "{chosen}");
}

const FILE: &str = r#"
version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false
  mine:
    - devices: [0, 2]
      mig-enabled: true
      mig-devices:
        "1g.18gb": 2
        "3g.71gb": 1
    - device-filter: ["0x20B010DE", "0x233510de"]
      devices: [1]
      mig-enabled: true
      mig-devices: {}
    - device-filter: "0x20B710DE"
      devices: all
      mig-enabled: false
"#;

#[test]
fn configurations_of_mig_parted_are_read_by_name() {
    let source = Source::new("config.yaml", FILE);
    let request = LayoutRequest::from_file(&source, Some("mine")).unwrap();
    assert_eq!(wanted(&request, 2).unwrap(), "1g.18gb 1g.18gb 3g.71gb");
    assert_eq!(wanted(&request, 1).unwrap(), "");
    assert_eq!(wanted(&request, 3), None, "the last group is for another device");
    assert!(request.of(&gpu(3, "0x20B710DE")).is_some());
    for (text, name, part) in [
        (FILE, None, "select one with its name: all-disabled, mine"),
        (FILE, Some("mien"), "did you mean mine?"),
        ("version: v2\nmig-configs: {}\n", None, "use version: v1"),
        ("{}", None, "is required"),
        ("- a\n", None, "object"),
        (
            "version: v1\nmig-configs:\n  a:\n  - devices: all\n    mig-enabled: true\n    mig-devices: {x: 1}\n",
            None,
            "is not a slice",
        ),
        (
            "version: v1\nmig-configs:\n  a:\n  - devices: all\n    mig-enabled: false\n    mig-devices: {1g.5gb: 1}\n",
            None,
            "mig-enabled is false",
        ),
        (
            "version: v1\nmig-configs:\n  a:\n  - devices: some\n    mig-enabled: false\n",
            None,
            "is not a GPU selection",
        ),
        (
            "version: v1\nmig-configs:\n  a:\n  - devices: all\n    mig-enabled: false\n    mig-slices: 3\n",
            None,
            "unknown field",
        ),
        (
            "version: v1\nmig-configs:\n  a:\n  - devices: all\n    mig-enabled: true\n    mig-devices: {1g.5gb: 4294967295}\n",
            None,
            "too many times",
        ),
    ] {
        let problem = LayoutRequest::from_file(&Source::new("a.yaml", text), name).unwrap_err();
        let said = format!("{} {}", problem.message, problem.remedy.clone().unwrap_or_default());
        assert!(said.contains(part), "{text}: {said}");
    }
}

fn labels(all: &[(&str, &str)]) -> Labels {
    all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn mig_manager_owns_nodes_where_it_runs() {
    for (all, owner) in [
        (vec![], MigOwner::Agent),
        (vec![(DEPLOYED, "true")], MigOwner::Manager),
        (vec![(DEPLOYED, "paused-for-driver-upgrade")], MigOwner::Manager),
        (vec![(DEPLOYED, "false"), (STATE, "success")], MigOwner::Agent),
        (vec![(STATE, "success")], MigOwner::Manager),
        (vec![(CONFIG, "all-disabled")], MigOwner::Agent),
    ] {
        assert_eq!(manager::owner(&labels(&all)), owner, "{all:?}");
    }
}

#[test]
fn mig_manager_is_driven_by_labels() {
    let request = LayoutRequest::parse("all-1g.18gb+me").unwrap();
    assert_eq!(request.configuration().as_deref(), Some("all-1g.18gb.me"));
    let before = labels(&[(CONFIG, "all-disabled"), (STATE, "success")]);
    let patch = manager::patch(&request, &before).unwrap().unwrap();
    assert_eq!(patch["metadata"]["labels"][CONFIG], "all-1g.18gb.me");
    // Otherwise its success with the previous configuration would count.
    assert!(patch["metadata"]["labels"][STATE].is_null() && patch.to_string().contains(STATE));
    let asked = |state: &str| labels(&[(CONFIG, "all-1g.18gb.me"), (STATE, state)]);
    for (state, progress) in [
        ("pending", Progress::Pending),
        ("rebooting", Progress::Rebooting),
        ("success", Progress::Success),
        ("failed", Progress::Failed),
        ("newer-word", Progress::Pending),
    ] {
        assert_eq!(manager::progress(&asked(state), "all-1g.18gb.me"), progress);
        let patch = manager::patch(&request, &asked(state)).unwrap();
        assert_eq!(patch.is_some(), progress == Progress::Failed, "{state}");
    }
    assert_eq!(manager::progress(&labels(&[(CONFIG, "a")]), "a"), Progress::Pending);
    assert_eq!(manager::progress(&before, "all-1g.18gb.me"), Progress::NotAsked);
    let unnamed = LayoutRequest::parse("3g.71gb").unwrap();
    let error = manager::patch(&unnamed, &before).unwrap_err().to_string();
    assert!(error.contains("by name only"), "{error}");
    for (text, name) in
        [("off", "all-disabled"), ("empty", "all-enabled"), ("all-balanced", "all-balanced")]
    {
        assert_eq!(LayoutRequest::parse(text).unwrap().configuration().as_deref(), Some(name));
    }
}

fn layout(text: &str) -> GpuLayout {
    let slices = vec![Slice::whole(Placement::parse(text).unwrap())];
    GpuLayout { gpu: "GPU-0".to_owned(), enabled: true, slices }
}

#[test]
fn a_journal_survives_its_writer_and_invalid_ones_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("deep/mig.json");
    let mut journal = FileJournal::new(&path);
    assert!(journal.read().unwrap().is_none());
    journal.clear().unwrap();
    let unfinished = Unfinished::new(vec![layout("3g.71gb@4")], vec![layout("1g.18gb+me@6")]);
    journal.write(&unfinished).unwrap();
    journal.write(&unfinished).unwrap();
    let read = FileJournal::new(&path).read().unwrap().unwrap();
    assert_eq!((&read, read.direction), (&unfinished, Direction::Forward));
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains("\"3g.71gb@4\""), "{text}");
    for odd in
        ["", "{", "[]", "{}", &text.replace("3g.71gb@4", "3g@"), &text.replace(": 1,", ": 2,")]
    {
        std::fs::write(&path, odd).unwrap();
        assert!(FileJournal::new(&path).read().is_err(), "{odd}");
    }
    std::fs::write(&path, vec![b' '; 2 << 20]).unwrap();
    assert!(journal.read().is_err());
    journal.clear().unwrap();
    assert!(journal.read().unwrap().is_none());
    assert!(
        FileJournal::new(directory.path().join("deep")).write(&unfinished).is_err(),
        "the path is a directory"
    );
}

#[test]
fn a_state_is_a_label_and_an_annotation() {
    let reason = "creating 3g.71gb@4 failed".to_owned();
    let state = MigState::RolledBack { reason, present: vec![layout("7g.141gb@0")] };
    let patch = state.patch();
    assert_eq!(patch["metadata"]["labels"]["berth.dev/mig.state"], "rolled-back");
    let text = patch["metadata"]["annotations"]["berth.dev/mig-state"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<MigState>(text).unwrap(), state);
    assert!(text.contains("\"state\":\"rolledBack\"") && text.contains("7g.141gb@0"), "{text}");
    let words: BTreeMap<&str, MigState> =
        [MigState::Idle, state].into_iter().map(|state| (state.word(), state)).collect();
    assert_eq!(words.len(), 2);
}

fn reading() -> GpuReading {
    let slice = |index: u32, start: Option<u32>| Instance {
        index,
        uuid: Some(format!("MIG-{index}")),
        gpu_instance: Some(10 + index),
        start,
        ..Instance::default()
    };
    let divided = DriverGpu {
        uuid: Some("GPU-0".to_owned()),
        instances: vec![slice(0, Some(0)), slice(1, Some(4)), slice(2, None)],
        ..DriverGpu::default()
    };
    let whole = DriverGpu { uuid: Some("GPU-1".to_owned()), index: 1, ..DriverGpu::default() };
    GpuReading { gpus: vec![divided, whole], ..GpuReading::default() }
}

#[test]
fn processes_and_pods_use_slices_and_gpus() {
    let place = |text: &str| Placement::parse(text).unwrap();
    let (low, high) = (place("3g.71gb@0"), place("3g.71gb@4"));
    let mut reading = reading();
    let process = |gpu_instance| GpuProcess { pid: 7, gpu_instance, ..GpuProcess::default() };
    reading.gpus[0].processes = vec![process(Some(11))];
    let workloads = Workloads::of(&reading, []);
    assert_eq!(workloads.slice_user("GPU-0", high), Some("process 7"));
    assert_eq!((workloads.slice_user("GPU-0", low), workloads.gpu_user("GPU-0")), (None, None));
    // A slice with unknown position makes the whole GPU count as in use.
    reading.gpus[0].processes = vec![process(Some(12))];
    assert_eq!(Workloads::of(&reading, []).gpu_user("GPU-0"), Some("process 7"));
    reading.gpus[0].processes = vec![process(None)];
    assert_eq!(Workloads::of(&reading, []).slice_user("GPU-0", low), Some("process 7"));
    reading.gpus[0].processes.clear();
    let workloads =
        Workloads::of(&reading, [("MIG-0::3", "pod a"), ("GPU-1", "pod b"), ("mlx5_0", "pod c")]);
    assert_eq!(
        (workloads.slice_user("GPU-0", low), workloads.slice_user("GPU-0", high)),
        (Some("pod a"), None)
    );
    assert_eq!((workloads.gpu_user("GPU-0"), workloads.gpu_user("GPU-1")), (None, Some("pod b")));
    // A pod with an unknown slice could be on any GPU.
    let workloads = Workloads::of(&reading, [("MIG-9", "pod d")]);
    assert!(workloads.gpu_user("GPU-0").unwrap().contains("which no GPU has"));
}

#[test]
fn with_an_unreadable_checkpoint_every_gpu_is_in_use() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("var/lib/kubelet/device-plugins");
    std::fs::create_dir_all(&at).unwrap();
    let root = || Root::new(directory.path());
    assert_eq!(Workloads::on_machine(&root(), &reading()).gpu_user("GPU-1"), None);
    let file = at.join("kubelet_internal_checkpoint");
    std::fs::write(&file, "{").unwrap();
    let workloads = Workloads::on_machine(&root(), &reading());
    assert!(workloads.gpu_user("GPU-1").unwrap().contains("unknown pods"));
    let entry = r#"{"PodUID":"u1","ContainerName":"c","ResourceName":"nvidia.com/mig-3g.71gb","DeviceIDs":{"0":["MIG-1"]},"AllocResp":""}"#;
    let text = format!(
        r#"{{"Data":{{"PodDeviceEntries":[{entry}],"RegisteredDevices":{{}}}},"Checksum":0}}"#
    );
    std::fs::write(&file, text).unwrap();
    let workloads = Workloads::on_machine(&root(), &reading());
    let high = Placement::parse("3g.71gb@4").unwrap();
    assert!(workloads.slice_user("GPU-0", high).is_some(), "{workloads:?}");
}
