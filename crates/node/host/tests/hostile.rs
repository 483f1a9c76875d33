//! Broken files never panic, and intact ones are still read.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use berth_host::cgroup::{Owner, Process};
use berth_host::synthetic::{
    self, CgroupVersion, Driver, Entry, Layout, Runtime, SyntheticContainer, SyntheticPod,
    SyntheticProcess, Tree,
};
use berth_host::{Cgroups, Diagnosis, KubeletFiles, KubeletPaths, Machine, Pci, Root, record};
use berth_model::dice::Dice;
use berth_model::idset::IdSet;

mod support;

const UID: &str = "3f6e8b1a-52c5-4a3e-9a3e-0d4f1f7f2a11";

/// A host with something of everything; few CPUs, so that many rounds are quick.
fn host() -> Tree {
    let mut machine = synthetic::xeon_8480_snc2();
    machine.cores_per_numa = 3;
    machine.cores_per_l3 = 6;
    machine.offline = [5].into_iter().collect();
    let mut tree = machine.tree();
    let layout = Layout {
        version: CgroupVersion::V2,
        driver: Driver::Systemd,
        runtime: Runtime::Containerd,
    };
    layout.add_host(&mut tree, "0-23", "0-3");
    for number in 0..3u32 {
        let container = SyntheticContainer {
            id: format!("{number:064x}"),
            cpus: format!("{number}"),
            mems: "0".to_owned(),
            processes: vec![SyntheticProcess { pid: 900 + number, pages: vec![(number, 7)] }],
        };
        let uid = UID.replace("3f6e", &format!("{number:04x}"));
        let qos = ["", "burstable", "besteffort"][number as usize];
        layout.add(
            &mut tree,
            &SyntheticPod { uid, qos, containers: vec![container] },
            "0-23",
            "0-3",
        );
    }
    synthetic::add_kubelet(
        &mut tree,
        "kind: KubeletConfiguration\ncpuManagerPolicy: static\nmemoryManagerPolicy: Static\n",
        Some(include_str!("vectors/cpu-v4.json")),
        Some(include_str!("vectors/mem-v3.json")),
        Some(include_str!("vectors/dev-v2.json")),
    );
    tree
}

struct Found {
    machine: Machine,
    pci: Pci,
    kubelet: KubeletFiles,
    cgroups: Cgroups,
    processes: Vec<Option<Process>>,
    diagnoses: Vec<Diagnosis>,
}

fn read(root: &Root) -> Found {
    let (machine, mut diagnoses) = Machine::read(root);
    let (pci, more) = Pci::read(root, &machine);
    diagnoses.extend(more);
    let (kubelet, more) = KubeletFiles::read(root);
    diagnoses.extend(more);
    let (cgroups, more) = Cgroups::read(root);
    diagnoses.extend(more);
    let mut processes = Vec::new();
    for pid in 900..903 {
        let (process, more) = Process::read(root, pid, 4096);
        processes.push(process);
        diagnoses.extend(more);
        let _ = Owner::read(root, pid);
    }
    Found { machine, pci, kubelet, cgroups, processes, diagnoses }
}

/// What holds of any machine that is read.
fn check_laws(machine: &Machine) {
    let mut seen = IdSet::EMPTY;
    for core in &machine.cores {
        assert!(!core.threads.is_empty() && !core.threads.intersects(&seen), "{core:?}");
        assert!(machine.node(core.numa).is_some());
        assert!(core.l3.is_none_or(|id| machine.l3.iter().any(|one| one.id == id)), "{core:?}");
        seen |= core.threads;
    }
    assert_eq!(seen, machine.cpus);
    let mut seen = IdSet::EMPTY;
    for node in &machine.numa {
        assert!(!node.cpus.intersects(&seen), "{node:?}");
        seen |= node.cpus;
    }
    assert_eq!(seen, machine.cpus);
    let sockets = machine.sockets.iter().fold(IdSet::EMPTY, |all, one| all | one.cpus);
    assert_eq!(sockets, machine.cpus);
    assert!(machine.l3.iter().all(|one| one.cpus.is_subset(&machine.cpus)));
    let _ = machine.to_model();
}

/// Ways to break a file. The first ones leave nothing that could be believed.
const DESTROYING: usize = 8;
const WAYS: usize = 11;

fn break_it(at: &Path, way: usize, dice: Dice, other: &[u8]) {
    let _ = fs::remove_file(at);
    match way {
        0 => {}
        1 => fs::write(at, b"").unwrap(),
        2 => fs::write(at, [0u8, 159, 146, 150, 255, 10, 0]).unwrap(),
        3 => fs::write(at, vec![b'#'; (1 << 20) + 17]).unwrap(),
        4 => fs::create_dir(at).unwrap(),
        5 => symlink(at.file_name().unwrap(), at).unwrap(),
        6 => drop(UnixListener::bind(at)),
        7 => symlink("/nowhere/at/all", at).unwrap(),
        8 => fs::write(at, other).unwrap(),
        9 => {
            let letters = b"0123456789,-:{}[]\"x \n";
            let byte = |thing| letters[dice.below(thing, letters.len())];
            fs::write(at, (0..40).map(byte).collect::<Vec<u8>>()).unwrap();
        }
        _ => {
            let numbers = ["-1", "18446744073709551616", "4294967295", "0-1023", "0,0,0", "1e9"];
            fs::write(at, numbers[dice.below(99, numbers.len())]).unwrap();
        }
    }
}

fn restore(at: &Path, entry: &Entry) {
    let kind = fs::symlink_metadata(at);
    if kind.is_ok_and(|kind| kind.is_dir()) {
        fs::remove_dir_all(at).unwrap();
    } else {
        let _ = fs::remove_file(at);
    }
    match entry {
        Entry::File(bytes) => fs::write(at, bytes).unwrap(),
        Entry::Link(target) => symlink(target, at).unwrap(),
        Entry::Directory => fs::create_dir(at).unwrap(),
    }
}

#[test]
fn a_broken_file_affects_nothing_else() {
    let tree = host();
    let (root, directory) = support::written(&tree);
    let whole = read(&root);
    assert_eq!(whole.diagnoses, []);
    check_laws(&whole.machine);
    let paths: Vec<&str> = tree.paths().collect();
    let mut destroyed_rounds = 0;
    for round in 0..1500u64 {
        let dice = Dice::new(20_261_115).of(round);
        let count = 1 + dice.below(0, 6);
        let mut broken: BTreeSet<&str> = BTreeSet::new();
        let mut destroys = true;
        for number in 0..count as u64 {
            let path = paths[dice.below(10 + number, paths.len())];
            let way = dice.below(20 + number, WAYS);
            let other = paths[dice.below(30 + number, paths.len())];
            let other = match tree.get(other) {
                Some(Entry::File(bytes)) => bytes.clone(),
                _ => Vec::new(),
            };
            if broken.insert(path) {
                destroys &= way < DESTROYING;
                break_it(&directory.path().join(path), way, dice.of(number), &other);
            }
        }
        let found = read(&root);
        check_laws(&found.machine);
        if destroys {
            destroyed_rounds += 1;
            compare(&whole, &found, &broken);
        }
        if round % 50 == 0 {
            let to = support::directory();
            record(&root, &KubeletPaths::detect(&root), to.path()).unwrap();
        }
        for path in broken {
            restore(&directory.path().join(path), tree.get(path).unwrap());
        }
    }
    assert!(destroyed_rounds > 300);
    let again = read(&root);
    assert_eq!(
        (again.machine, again.diagnoses.len()),
        (whole.machine, 0),
        "all files were restored"
    );
}

/// What no broken file is about reads as before.
fn compare(whole: &Found, found: &Found, broken: &BTreeSet<&str>) {
    let is_broken = |start: &str| broken.iter().any(|path| path.starts_with(start));
    let (machine, before) = (&found.machine, &whole.machine);
    // Which CPUs are in use is told twice, and so is which NUMA node has which.
    assert_eq!(machine.cpus, before.cpus, "{broken:?}");
    for core in &before.cores {
        let own = |cpu: usize| is_broken(&format!("sys/devices/system/cpu/cpu{cpu}/"));
        if !core.threads.iter().any(own) && !is_broken("sys/devices/system/node/") {
            assert!(machine.cores.contains(core), "{core:?} of {broken:?}");
        }
    }
    for node in &before.numa {
        let at = format!("sys/devices/system/node/node{}/", node.id);
        if !is_broken(&at) {
            let other = machine.node(node.id).unwrap();
            assert_eq!(other.memory_bytes, node.memory_bytes);
            assert_eq!(other.hugepages, node.hugepages);
            assert_eq!(other.distances, node.distances);
        }
    }
    for device in &whole.pci.devices {
        let names: Vec<&str> = device
            .location
            .bridges
            .iter()
            .map(String::as_str)
            .chain([device.address.as_str()])
            .collect();
        let own = |path: &&str| path.split('/').any(|part| names.contains(&part));
        if !broken.iter().any(own) {
            assert_eq!(found.pci.at(&device.address), Some(device), "{broken:?}");
        }
    }
    if !is_broken("var/lib/kubelet/cpu_manager_state") {
        assert_eq!(found.kubelet.cpus, whole.kubelet.cpus);
    }
    if !is_broken("var/lib/kubelet/memory_manager_state") {
        assert_eq!(found.kubelet.memory, whole.kubelet.memory);
    }
    if !is_broken("var/lib/kubelet/device-plugins") {
        assert_eq!(found.kubelet.devices, whole.kubelet.devices);
    }
    if !is_broken("sys/fs/cgroup/cgroup.controllers") {
        for pod in &whole.cgroups.pods {
            let uid = pod.uid.replace('-', "_");
            if !broken.iter().any(|path| path.contains(&uid)) {
                assert_eq!(found.cgroups.pod(&pod.uid), Some(pod), "{broken:?}");
            }
        }
    }
    for (process, before) in found.processes.iter().zip(&whole.processes) {
        let pid = before.as_ref().unwrap().pid;
        if !is_broken(&format!("proc/{pid}/")) {
            assert_eq!(process, before);
        }
    }
}

#[test]
fn every_kind_of_broken_file_has_a_diagnosis() {
    let gpu = "sys/devices/pci0000:48/0000:48:01.0/0000:4a:00.0";
    let node = "sys/devices/system/node/node1";
    let pod = format!("kubepods-pod{}.slice", UID.replace("3f6e", "0000").replace('-', "_"));
    let container = format!("sys/fs/cgroup/kubepods.slice/{pod}/cri-containerd-{:064x}.scope", 0);
    let files = [
        "proc/meminfo".to_owned(),
        "proc/cpuinfo".to_owned(),
        "proc/900/status".to_owned(),
        "proc/900/numa_maps".to_owned(),
        "sys/devices/system/cpu/online".to_owned(),
        "sys/devices/system/cpu/present".to_owned(),
        // The only thread of its core that is in use.
        "sys/devices/system/cpu/cpu17/topology/core_cpus_list".to_owned(),
        "sys/devices/system/cpu/cpu17/topology/physical_package_id".to_owned(),
        "sys/devices/system/cpu/cpu17/cache/index3/shared_cpu_list".to_owned(),
        "sys/devices/system/cpu/cpu17/cache/index3/level".to_owned(),
        "sys/devices/system/cpu/cpu17/cache/index3/id".to_owned(),
        format!("{node}/cpulist"),
        format!("{node}/meminfo"),
        format!("{node}/distance"),
        format!("{node}/hugepages/hugepages-1048576kB/nr_hugepages"),
        format!("{gpu}/class"),
        format!("{gpu}/vendor"),
        format!("{gpu}/numa_node"),
        format!("{gpu}/local_cpulist"),
        format!("{container}/cpuset.cpus"),
        format!("{container}/cpuset.mems"),
        format!("{container}/cpuset.cpus.effective"),
        format!("{container}/cpuset.mems.effective"),
        format!("{container}/cgroup.procs"),
        "var/lib/kubelet/config.yaml".to_owned(),
        "var/lib/kubelet/cpu_manager_state".to_owned(),
        "var/lib/kubelet/memory_manager_state".to_owned(),
        "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint".to_owned(),
    ];
    let mut tree = host();
    for name in ["thread_siblings_list", "thread_siblings"] {
        tree.remove(&format!("sys/devices/system/cpu/cpu17/topology/{name}"));
    }
    let (root, directory) = support::written(&tree);
    assert_eq!(read(&root).diagnoses, []);
    for path in files {
        let entry = tree.get(&path).unwrap_or_else(|| panic!("{path} is not in the tree"));
        let at = directory.path().join(&path);
        for way in [2, 3, 4, 5, 6] {
            break_it(&at, way, Dice::new(1), b"");
            // Paths of sockets are short.
            let missing = fs::symlink_metadata(&at).is_err();
            let found = read(&root);
            let told = found.diagnoses.iter().any(|one| one.path == format!("/{path}"));
            let cut = way == 3
                && ["meminfo", "cpuinfo", "numa_maps"].iter().any(|end| path.ends_with(end));
            assert!(told || cut || missing, "{path} by way {way}: {:?}", found.diagnoses);
            restore(&at, entry);
        }
    }
}

#[test]
fn links_do_not_lead_out_of_the_root() {
    let outside = support::directory();
    fs::write(outside.path().join("secret"), "0-7\n").unwrap();
    let mut tree = host();
    let target = outside.path().join("secret");
    tree.link("sys/devices/system/cpu/online", target.to_str().unwrap());
    tree.link(
        "sys/devices/system/cpu/present",
        format!("../../../../../../../../../..{}", target.display()),
    );
    let (root, _directory) = support::written(&tree);
    let (machine, diagnoses) = Machine::read(&root);
    assert_eq!(machine.cpus.len(), 23, "from topology directories");
    assert_eq!(diagnoses.len(), 2, "{diagnoses:?}");
    // An absolute link is meant from the root on.
    let mut tree = host();
    tree.file("elsewhere/online", "0-3\n");
    tree.link("sys/devices/system/cpu/online", "/elsewhere/online");
    let (root, _directory) = support::written(&tree);
    assert_eq!(Machine::read(&root).0.cpus.to_string(), "0-3");
}

#[test]
fn permission_denied_is_a_diagnosis() {
    let (root, directory) = support::written(&host());
    let at = directory.path().join("var/lib/kubelet/cpu_manager_state");
    fs::set_permissions(&at, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::read(&at).is_ok() {
        // Whoever may do everything cannot be denied anything.
        return;
    }
    let (files, diagnoses) = KubeletFiles::read(&root);
    assert!(files.cpus.is_none() && files.memory.is_some());
    assert!(diagnoses[0].what.contains("permission denied"), "{diagnoses:?}");
    assert!(diagnoses[0].remedy.contains("read permission"), "{diagnoses:?}");
}

#[test]
fn an_empty_root_is_all_diagnoses() {
    let (root, _directory) = support::written(&Tree::default());
    let found = read(&root);
    assert!(found.machine.cpus.is_empty() && found.pci.devices.is_empty());
    assert!(found.machine.to_model().is_err());
    assert!(found.diagnoses.len() >= 6, "{:?}", found.diagnoses);
    let nowhere = read(&Root::new("/nowhere/at/all"));
    assert_eq!(nowhere.diagnoses, found.diagnoses);
}

#[test]
fn diagnoses_are_limited() {
    let mut tree = synthetic::epyc_9654(1).tree();
    let broken: Vec<String> =
        tree.paths().filter(|path| path.contains("/cpu/cpu")).map(str::to_owned).collect();
    for path in broken {
        tree.file(path, "?");
    }
    let (root, _directory) = support::written(&tree);
    let (machine, diagnoses) = Machine::read(&root);
    check_laws(&machine);
    assert_eq!(machine.cores.len(), 384, "each CPU by itself");
    assert_eq!(diagnoses.len(), 501);
    assert!(diagnoses[500].what.contains("more files"), "{}", diagnoses[500]);
}
