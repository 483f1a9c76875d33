//! What people and programs write about dividing GPUs: wishes, labels, journals, and who uses what.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::BTreeMap;

use berth_agent::GpuReading;
use berth_agent::gpus::{DriverGpu, GpuProcess, Instance};
use berth_agent::mig::journal::{Direction, Unfinished};
use berth_agent::mig::manager::{self, CONFIG, DEPLOYED, Labels, Progress, STATE, Who};
use berth_agent::mig::wish::{Wanted, WantedSlice};
use berth_agent::mig::{
    Busy, FileJournal, GpuLayout, Journal, MigGpu, MigState, Place, Slice, Wish,
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
        offers: Vec::new(),
        slices: Vec::new(),
    }
}

fn wanted(wish: &Wish, index: u32) -> Option<String> {
    wish.of(&gpu(index, "0x233510DE")).map(|wanted| match wanted {
        Wanted::Slices(slices) => {
            let text = |one: &WantedSlice| match one.start {
                Some(start) => format!("{}@{start}", one.profile),
                None => one.profile.to_string(),
            };
            slices.iter().map(text).collect::<Vec<_>>().join(" ")
        }
        other => format!("{other:?}"),
    })
}

#[test]
fn a_text_says_what_is_wanted_of_which_gpu() {
    let wish = Wish::parse("2x1g.18gb, 3g.71gb@4 + 1g.18gb+me; 1 = off ;3-4=all-balanced").unwrap();
    assert_eq!(wanted(&wish, 0).unwrap(), "1g.18gb 1g.18gb 3g.71gb@4 1g.18gb+me");
    assert_eq!(wanted(&wish, 1).unwrap(), "Off");
    assert_eq!(wanted(&wish, 4).unwrap(), "Balanced");
    let wish = Wish::parse("GPU-7=empty").unwrap();
    assert_eq!((wanted(&wish, 7).unwrap().as_str(), wanted(&wish, 6)), ("", None));
    let wish = Wish::parse("all-1g.18gb.me").unwrap().only("2").unwrap();
    assert!(wanted(&wish, 2).unwrap().starts_with("Full"));
    assert_eq!(wanted(&wish, 0), None);
}

#[test]
fn a_text_that_is_no_wish_is_an_error_with_a_remedy() {
    for (text, part) in [
        ("", "names no slices"),
        (";;", "names no slices"),
        ("3g", "is no slice"),
        ("3g.71gb@", "starts nowhere"),
        ("3g.71gb@x", "starts nowhere"),
        ("0x1g.18gb", "is not there so often"),
        ("2x3g.71gb@4", "is not there so often"),
        ("99x1g.18gb", "too many times"),
        ("1g.18gb,4294967295x1g.18gb", "too many times"),
        ("x=off", "names no GPU"),
        ("3-1=off", "names no GPU"),
        ("all-round", "no configuration that is known by name"),
        ("1c.3g.71gb", "is no slice"),
        ("3g.71gb,,1g.18gb", "is no slice"),
    ] {
        let error = Wish::parse(text).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("; "), "{text:?}: {error}");
    }
    assert!(Wish::parse(&"1g.18gb,".repeat(10_000)).is_err());
    let chosen = Wish::parse("0=off").unwrap().only("1").unwrap_err();
    assert!(chosen.to_string().contains("chooses already"), "{chosen}");
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
fn a_file_of_mig_parted_is_read_by_name() {
    let source = Source::new("config.yaml", FILE);
    let wish = Wish::from_file(&source, Some("mine")).unwrap();
    assert_eq!(wanted(&wish, 2).unwrap(), "1g.18gb 1g.18gb 3g.71gb");
    assert_eq!(wanted(&wish, 1).unwrap(), "");
    assert_eq!(wanted(&wish, 3), None, "the last group is for another device");
    assert!(wish.of(&gpu(3, "0x20B710DE")).is_some());
    for (text, name, part) in [
        (FILE, None, "name one: all-disabled, mine"),
        (FILE, Some("mien"), "did you mean mine?"),
        ("version: v2\nmig-configs: {}\n", None, "write version: v1"),
        ("{}", None, "is missing"),
        ("- a\n", None, "object"),
        (
            "version: v1\nmig-configs:\n  a:\n  - devices: all\n    mig-enabled: true\n    mig-devices: {x: 1}\n",
            None,
            "is no slice",
        ),
        (
            "version: v1\nmig-configs:\n  a:\n  - devices: all\n    mig-enabled: false\n    mig-devices: {1g.5gb: 1}\n",
            None,
            "not to be divided",
        ),
        (
            "version: v1\nmig-configs:\n  a:\n  - devices: some\n    mig-enabled: false\n",
            None,
            "names no GPU",
        ),
        (
            "version: v1\nmig-configs:\n  a:\n  - devices: all\n    mig-enabled: false\n    mig-slices: 3\n",
            None,
            "the field is unknown",
        ),
        (
            "version: v1\nmig-configs:\n  a:\n  - devices: all\n    mig-enabled: true\n    mig-devices: {1g.5gb: 4294967295}\n",
            None,
            "too many times",
        ),
    ] {
        let problem = Wish::from_file(&Source::new("a.yaml", text), name).unwrap_err();
        let said = format!("{} {}", problem.message, problem.remedy.clone().unwrap_or_default());
        assert!(said.contains(part), "{text}: {said}");
    }
}

fn labels(all: &[(&str, &str)]) -> Labels {
    all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn mig_manager_divides_where_it_runs() {
    for (all, who) in [
        (vec![], Who::Agent),
        (vec![(DEPLOYED, "true")], Who::Manager),
        (vec![(DEPLOYED, "paused-for-driver-upgrade")], Who::Manager),
        (vec![(DEPLOYED, "false"), (STATE, "success")], Who::Agent),
        (vec![(STATE, "success")], Who::Manager),
        (vec![(CONFIG, "all-disabled")], Who::Agent),
    ] {
        assert_eq!(manager::who(&labels(&all)), who, "{all:?}");
    }
}

#[test]
fn mig_manager_is_asked_by_its_label_and_answers_by_another() {
    let wish = Wish::parse("all-1g.18gb+me").unwrap();
    assert_eq!(wish.configuration().as_deref(), Some("all-1g.18gb.me"));
    let before = labels(&[(CONFIG, "all-disabled"), (STATE, "success")]);
    let patch = manager::patch(&wish, &before).unwrap().unwrap();
    assert_eq!(patch["metadata"]["labels"][CONFIG], "all-1g.18gb.me");
    // Or its success with what was before would be taken for one with this.
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
        let patch = manager::patch(&wish, &asked(state)).unwrap();
        assert_eq!(patch.is_some(), progress == Progress::Failed, "{state}");
    }
    assert_eq!(manager::progress(&labels(&[(CONFIG, "a")]), "a"), Progress::Pending);
    assert_eq!(manager::progress(&before, "all-1g.18gb.me"), Progress::NotAsked);
    let unnamed = Wish::parse("3g.71gb").unwrap();
    let error = manager::patch(&unnamed, &before).unwrap_err().to_string();
    assert!(error.contains("by name only"), "{error}");
    for (text, name) in
        [("off", "all-disabled"), ("empty", "all-enabled"), ("all-balanced", "all-balanced")]
    {
        assert_eq!(Wish::parse(text).unwrap().configuration().as_deref(), Some(name));
    }
}

fn layout(text: &str) -> GpuLayout {
    let slices = vec![Slice::whole(Place::parse(text).unwrap())];
    GpuLayout { gpu: "GPU-0".to_owned(), enabled: true, slices }
}

#[test]
fn a_journal_outlives_its_writer_and_odd_ones_are_errors() {
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
        "it is a directory"
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
fn processes_and_holders_make_slices_and_gpus_busy() {
    let place = |text: &str| Place::parse(text).unwrap();
    let (low, high) = (place("3g.71gb@0"), place("3g.71gb@4"));
    let mut reading = reading();
    let process = |gpu_instance| GpuProcess { pid: 7, gpu_instance, ..GpuProcess::default() };
    reading.gpus[0].processes = vec![process(Some(11))];
    let busy = Busy::of(&reading, []);
    assert_eq!(busy.of_slice("GPU-0", high), Some("process 7"));
    assert_eq!((busy.of_slice("GPU-0", low), busy.of_gpu("GPU-0")), (None, None));
    // Of a slice that nobody can place, the whole GPU is taken to be in use.
    reading.gpus[0].processes = vec![process(Some(12))];
    assert_eq!(Busy::of(&reading, []).of_gpu("GPU-0"), Some("process 7"));
    reading.gpus[0].processes = vec![process(None)];
    assert_eq!(Busy::of(&reading, []).of_slice("GPU-0", low), Some("process 7"));
    reading.gpus[0].processes.clear();
    let busy = Busy::of(&reading, [("MIG-0::3", "pod a"), ("GPU-1", "pod b"), ("mlx5_0", "pod c")]);
    assert_eq!((busy.of_slice("GPU-0", low), busy.of_slice("GPU-0", high)), (Some("pod a"), None));
    assert_eq!((busy.of_gpu("GPU-0"), busy.of_gpu("GPU-1")), (None, Some("pod b")));
    // A pod with a slice that is not there could be anywhere.
    let busy = Busy::of(&reading, [("MIG-9", "pod d")]);
    assert!(busy.of_gpu("GPU-0").unwrap().contains("which no GPU has"));
}

#[test]
fn a_checkpoint_that_cannot_be_read_makes_every_gpu_busy() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("var/lib/kubelet/device-plugins");
    std::fs::create_dir_all(&at).unwrap();
    let root = || Root::new(directory.path());
    assert_eq!(Busy::on_machine(&root(), &reading()).of_gpu("GPU-1"), None);
    let file = at.join("kubelet_internal_checkpoint");
    std::fs::write(&file, "{").unwrap();
    let busy = Busy::on_machine(&root(), &reading());
    assert!(busy.of_gpu("GPU-1").unwrap().contains("nobody can name"));
    let entry = r#"{"PodUID":"u1","ContainerName":"c","ResourceName":"nvidia.com/mig-3g.71gb","DeviceIDs":{"0":["MIG-1"]},"AllocResp":""}"#;
    let text = format!(
        r#"{{"Data":{{"PodDeviceEntries":[{entry}],"RegisteredDevices":{{}}}},"Checksum":0}}"#
    );
    std::fs::write(&file, text).unwrap();
    let busy = Busy::on_machine(&root(), &reading());
    let high = Place::parse("3g.71gb@4").unwrap();
    assert!(busy.of_slice("GPU-0", high).is_some(), "{busy:?}");
}
