//! A recording reads like the machine, and gives nothing away.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::path::Path;

use berth_host::cgroup::{Owner, Process};
use berth_host::kubelet::Checksum;
use berth_host::synthetic::{
    self, CgroupVersion, Driver, Layout, Runtime, SyntheticContainer, SyntheticPod,
    SyntheticProcess, Tree,
};
use berth_host::{Cgroups, KubeletFiles, KubeletPaths, Machine, Pci, RecordError, Root, record};

mod support;

const UIDS: [&str; 2] =
    ["3f6e8b1a-52c5-4a3e-9a3e-0d4f1f7f2a11", "b7c1d2e3-0f1e-4d2c-8b3a-495867768594"];

fn configuration() -> String {
    "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nclusterDNS: [192.0.2.10]\n\
     staticPodURL: https://secret.example/pods\ncpuManagerPolicy: static\nreservedSystemCPUs: 0-1\n\
     memoryManagerPolicy: Static\n"
        .to_owned()
}

fn host(version: CgroupVersion) -> Tree {
    let machine = synthetic::xeon_8480_snc2();
    let mut tree = machine.tree();
    let layout = Layout { version, driver: Driver::Systemd, runtime: Runtime::Crio };
    layout.add_host(&mut tree, "0-223", "0-3");
    for (number, uid) in UIDS.iter().enumerate() {
        let container = |at: usize| SyntheticContainer {
            id: format!("{:064x}", 0xfeed_0000 + 16 * number + at),
            cpus: format!("{}-{}", 8 * at + 2, 8 * at + 9),
            mems: "0".to_owned(),
            processes: vec![SyntheticProcess {
                pid: 7000 + (16 * number + at) as u32,
                pages: vec![(0, 9), (2, 1)],
            }],
        };
        let qos = if number == 0 { "" } else { "burstable" };
        let pod = SyntheticPod {
            uid: (*uid).to_owned(),
            qos,
            containers: vec![container(0), container(1)],
        };
        layout.add(&mut tree, &pod, "0-223", "0-3");
    }
    synthetic::add_kubelet(
        &mut tree,
        &configuration(),
        Some(include_str!("vectors/cpu-v4.json")),
        Some(include_str!("vectors/mem-v1.json")),
        Some(include_str!("vectors/dev-v2.json")),
    );
    // An interface called after its address, and one called by its owner.
    let nic = "sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/net";
    tree.line(format!("{nic}/enx02005e100001/address"), "02:00:5e:10:00:01");
    tree.line(format!("{nic}/secret0/address"), "02:00:5e:10:00:02");
    tree.line("etc/hostname", "secret-host")
        .line("etc/machine-id", "0123456789abcdef0123456789abcdef");
    tree
}

fn all_below(at: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(at).unwrap().map(Result::unwrap) {
        let path = entry.path();
        let kind = entry.file_type().unwrap();
        let text = if kind.is_symlink() {
            fs::read_link(&path).unwrap().to_string_lossy().into_owned()
        } else if kind.is_file() {
            fs::read_to_string(&path).unwrap()
        } else {
            all_below(&path, found);
            String::new()
        };
        found.push((path.to_string_lossy().into_owned(), text));
    }
}

#[test]
fn nothing_private_is_recorded() {
    for version in [CgroupVersion::V1, CgroupVersion::V2, CgroupVersion::Hybrid] {
        let (root, _directory) = support::written(&host(version));
        let to = support::directory();
        record(&root, &KubeletPaths::detect(&root), to.path()).unwrap();
        let mut all = Vec::new();
        all_below(to.path(), &mut all);
        assert!(all.len() > 1000);
        for (path, text) in &all {
            for private in [
                "secret",
                "3f6e8b1a",
                "b7c1d2e3",
                "feed00",
                "0200:5e10",
                "02005e",
                "02:00",
                "192.0.2",
                "6a1f2c3d",
                "python3",
                "server",
                "CioA",
                "0123456789abcdef",
                "7f00",
                "55e0c0de",
                "/srv",
            ] {
                let path = path.strip_prefix(&*to.path().to_string_lossy()).unwrap();
                assert!(!path.contains(private), "{private} in {path}");
                assert!(!text.contains(private), "{private} in {path}: {text}");
            }
        }
    }
}

#[test]
fn a_recording_reads_like_the_machine() {
    let (root, _directory) = support::written(&host(CgroupVersion::V2));
    let to = support::directory();
    let recording = record(&root, &KubeletPaths::detect(&root), to.path()).unwrap();
    assert_eq!(recording.diagnoses, []);
    assert!(recording.bytes < 1 << 20, "{} bytes", recording.bytes);
    let again = Root::new(to.path());

    let (machine, diagnoses) = Machine::read(&again);
    assert_eq!((&machine, &diagnoses[..]), (&Machine::read(&root).0, &[][..]));
    let (mut pci, diagnoses) = Pci::read(&again, &machine);
    assert_eq!(diagnoses, []);
    let (mut before, _) = Pci::read(&root, &machine);
    for device in pci.devices.iter_mut().chain(&mut before.devices) {
        device.interfaces.retain(|name| name == "ens1f0np0");
    }
    assert_eq!(pci, before, "but for names of interfaces");

    let (cgroups, before) = (Cgroups::read(&again).0, Cgroups::read(&root).0);
    assert_eq!((cgroups.version, cgroups.driver), (before.version, before.driver));
    assert_eq!(cgroups.pods.len(), 2);
    for (pod, other) in cgroups.pods.iter().zip(&before.pods) {
        assert_eq!((pod.qos, pod.containers.len()), (other.qos, other.containers.len()));
        for (container, other) in pod.containers.iter().zip(&other.containers) {
            assert_eq!((container.cpuset, &container.pids), (other.cpuset, &other.pids));
            assert_ne!(container.id, other.id);
            let pid = container.pids[0];
            assert_eq!(Process::read(&again, pid, 4096), Process::read(&root, pid, 4096));
            let owner = Owner::read(&again, pid).0.unwrap();
            assert_eq!((&owner.pod, owner.container.as_ref()), (&pod.uid, Some(&container.id)));
        }
    }

    let (files, diagnoses) = KubeletFiles::read(&again);
    assert_eq!(diagnoses, []);
    let before = KubeletFiles::read(&root).0;
    assert_eq!(files.configuration, before.configuration);
    let (cpus, cpus_before) = (files.cpus.unwrap(), before.cpus.unwrap());
    assert_eq!((cpus.version, cpus.checksum), (4, Some(Checksum::Right)));
    // The same pods are called the same in all files.
    assert_eq!(cpus.containers[0].pod.as_deref(), Some(cgroups.pods[0].uid.as_str()));
    for (one, other) in cpus.containers.iter().zip(&cpus_before.containers) {
        assert_eq!(one.cpus, other.cpus);
    }
    let memory = files.memory.unwrap();
    assert_eq!(memory.checksum, Some(Checksum::Right));
    assert_eq!(memory.nodes, before.memory.unwrap().nodes);
    assert_eq!(memory.containers[0].pod, cgroups.pods[0].uid);
    let devices = files.devices.unwrap();
    assert_eq!(devices.checksum, Some(Checksum::Right));
    let held = &devices.entries[0].devices;
    assert!(held[0].id.starts_with("GPU-") && held[1].numa == [1], "{held:?}");
    let ids: Vec<&String> = held.iter().map(|one| &one.id).collect();
    assert_eq!(ids, devices.registered["nvidia.com/gpu"].iter().collect::<Vec<_>>());
}

#[test]
fn a_recording_of_a_recording_is_the_same() {
    let (root, _directory) = support::written(&host(CgroupVersion::Hybrid));
    let (one, other) = (support::directory(), support::directory());
    record(&root, &KubeletPaths::detect(&root), one.path()).unwrap();
    let again = Root::new(one.path());
    record(&again, &KubeletPaths::detect(&again), other.path()).unwrap();
    let listed = |at: &Path| {
        let mut all = Vec::new();
        all_below(at, &mut all);
        let base = at.to_string_lossy().into_owned();
        let mut all: Vec<_> =
            all.into_iter().map(|(path, text)| (path.replace(&base, ""), text)).collect();
        all.sort();
        all
    };
    assert_eq!(listed(one.path()), listed(other.path()));
}

#[test]
fn existing_files_are_not_overwritten() {
    let (root, directory) = support::written(&Tree::default());
    fs::write(directory.path().join("there"), "").unwrap();
    let error = record(&root, &KubeletPaths::detect(&root), directory.path()).unwrap_err();
    assert!(matches!(error, RecordError::NotEmpty(_)), "{error}");
}

#[test]
fn unexpected_content_is_not_recorded() {
    let mut tree = synthetic::no_gpu().tree();
    tree.line("sys/devices/system/node/node0/distance", "my secret");
    tree.directory("sys/devices/system/cpu/present/odd");
    tree.remove("sys/devices/system/cpu/present");
    tree.directory("sys/devices/system/cpu/present");
    let (root, _directory) = support::written(&tree);
    let to = support::directory();
    let recording = record(&root, &KubeletPaths::detect(&root), to.path()).unwrap();
    let distance = to.path().join("sys/devices/system/node/node0/distance");
    assert_eq!(fs::read_to_string(distance).unwrap(), "?\n");
    let paths: Vec<&str> = recording.diagnoses.iter().map(|one| one.path.as_str()).collect();
    assert!(paths.contains(&"/sys/devices/system/node/node0/distance"), "{paths:?}");
    assert!(paths.contains(&"/sys/devices/system/cpu/present"), "{paths:?}");
}
