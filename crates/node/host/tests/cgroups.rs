//! Pods' cgroups are found however a host lays them out.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use berth_host::Cgroups;
use berth_host::cgroup::{self, CgroupDriver, CgroupVersion, NodeMemory, Owner, Process, Qos};
use berth_host::synthetic::{
    self, Driver, Layout, Runtime, SyntheticContainer, SyntheticPod, SyntheticProcess, Tree,
};

mod support;

const UID: &str = "3f6e8b1a-52c5-4a3e-9a3e-0d4f1f7f2a11";
const CPUS: &str = "0-127";
const MEMS: &str = "0-1";

fn pods() -> Vec<SyntheticPod> {
    let container = |number: u32, cpus: &str, mems: &str| SyntheticContainer {
        id: format!("{number:064x}"),
        cpus: cpus.to_owned(),
        mems: mems.to_owned(),
        processes: vec![SyntheticProcess { pid: 1000 + number, pages: vec![(0, 100), (1, 28)] }],
    };
    let uid = |number: u32| format!("{number:08x}-52c5-4a3e-9a3e-0d4f1f7f2a11");
    vec![
        SyntheticPod {
            uid: UID.to_owned(),
            qos: "",
            containers: vec![container(1, "8-15,72-79", "0"), container(2, "", "")],
        },
        SyntheticPod {
            uid: uid(2),
            qos: "burstable",
            containers: vec![container(3, "0-7,64-71", "")],
        },
        SyntheticPod { uid: uid(3), qos: "besteffort", containers: vec![container(4, "", "")] },
    ]
}

fn host(layout: Layout) -> Tree {
    let mut tree = Tree::default();
    layout.add_host(&mut tree, CPUS, MEMS);
    for pod in pods() {
        layout.add(&mut tree, &pod, CPUS, MEMS);
    }
    tree
}

#[test]
fn all_layouts_read_the_same() {
    for version in [
        synthetic::CgroupVersion::V1,
        synthetic::CgroupVersion::V2,
        synthetic::CgroupVersion::Hybrid,
    ] {
        for driver in [Driver::Systemd, Driver::Cgroupfs] {
            for runtime in [Runtime::Containerd, Runtime::Crio, Runtime::Docker] {
                check(Layout { version, driver, runtime });
            }
        }
    }
}

fn check(layout: Layout) {
    let (root, _directory) = support::written(&host(layout));
    let (cgroups, diagnoses) = Cgroups::read(&root);
    assert_eq!(diagnoses, [], "{layout:?}");
    let version = match layout.version {
        synthetic::CgroupVersion::V1 => CgroupVersion::V1,
        synthetic::CgroupVersion::V2 => CgroupVersion::V2,
        synthetic::CgroupVersion::Hybrid => CgroupVersion::Hybrid,
    };
    let driver = match layout.driver {
        Driver::Systemd => CgroupDriver::Systemd,
        Driver::Cgroupfs => CgroupDriver::Cgroupfs,
    };
    assert_eq!((cgroups.version, cgroups.driver), (version, Some(driver)), "{layout:?}");
    let found: Vec<(Qos, usize)> =
        cgroups.pods.iter().map(|pod| (pod.qos, pod.containers.len())).collect();
    assert_eq!(
        found,
        [(Qos::Burstable, 1), (Qos::BestEffort, 1), (Qos::Guaranteed, 2)],
        "{layout:?}"
    );
    let pod = cgroups.pod(UID).unwrap();
    let pinned = &pod.containers[0];
    assert_eq!(pinned.id, format!("{:064x}", 1));
    let lists = |set: Option<berth_model::idset::IdSet>| set.map(|set| set.to_string());
    assert_eq!(lists(pinned.cpuset.effective_cpus).as_deref(), Some("8-15,72-79"), "{layout:?}");
    assert_eq!(lists(pinned.cpuset.effective_mems).as_deref(), Some("0"));
    assert_eq!(pinned.pids, [1001], "{layout:?}");
    let floating = &pod.containers[1];
    assert_eq!(lists(floating.cpuset.effective_cpus).as_deref(), Some(CPUS));
    if layout.version == synthetic::CgroupVersion::V2 {
        assert_eq!(floating.cpuset.cpus, None, "none are set");
    }
    let (owner, _) = Owner::read(&root, 1001);
    let owner = owner.unwrap();
    assert_eq!((owner.pod.as_str(), owner.container.as_deref()), (UID, Some(pinned.id.as_str())));
    assert_eq!(cgroups.container(&pinned.id).unwrap().0.uid, UID);
}

const LAYOUT: Layout = Layout {
    version: synthetic::CgroupVersion::V2,
    driver: Driver::Systemd,
    runtime: Runtime::Containerd,
};

#[test]
fn memory_of_a_process_is_counted_by_numa_node() {
    let (root, _directory) = support::written(&host(LAYOUT));
    let (process, diagnoses) = Process::read(&root, 1001, 1 << 20);
    let process = process.unwrap();
    assert_eq!(diagnoses, []);
    assert_eq!(process.cpus_allowed.unwrap().to_string(), "8-15,72-79");
    assert_eq!(process.mems_allowed.unwrap().to_string(), "0");
    let memory =
        [NodeMemory { node: 0, bytes: 100 << 12 }, NodeMemory { node: 1, bytes: 28 << 12 }];
    assert_eq!((&process.memory[..], process.whole), (&memory[..], true));
    // Two lines of it.
    let (process, _) = Process::read(&root, 1001, 110);
    let process = process.unwrap();
    assert_eq!((&process.memory[..], process.whole), (&memory[..1], false));
    assert_eq!(Process::read(&root, 4_000_000, 4096), (None, Vec::new()));
    assert_eq!(Owner::read(&root, 4_000_000), (None, Vec::new()));
}

#[test]
fn a_cgroup_without_the_controller_inherits_its_cpuset() {
    let mut tree = host(LAYOUT);
    let pod = &pods()[0];
    let at = format!("sys/fs/cgroup/{}", LAYOUT.pod_path(pod));
    for name in ["cpuset.cpus", "cpuset.mems", "cpuset.cpus.effective", "cpuset.mems.effective"] {
        tree.remove(&format!("{at}/cri-containerd-{:064x}.scope/{name}", 1));
        tree.remove(&format!("{at}/{name}"));
    }
    tree.line("sys/fs/cgroup/kubepods.slice/cpuset.cpus.effective", "2-127");
    let (root, _directory) = support::written(&tree);
    let (cgroups, diagnoses) = Cgroups::read(&root);
    assert_eq!(diagnoses, []);
    let container = &cgroups.pod(UID).unwrap().containers[0];
    assert_eq!(container.cpuset.cpus, None);
    assert_eq!(container.cpuset.effective_cpus.unwrap().to_string(), "2-127");
}

#[test]
fn a_kubelet_with_a_cgroup_root_is_found() {
    let mut tree = Tree::default();
    tree.line("sys/fs/cgroup/cgroup.controllers", "cpuset");
    let slice = format!("kubelet-kubepods-burstable-pod{}.slice", UID.replace('-', "_"));
    let at = format!(
        "sys/fs/cgroup/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/{slice}"
    );
    let container = format!("{at}/cri-containerd-{}.scope", "a".repeat(64));
    tree.line(format!("{container}/cpuset.cpus.effective"), "4-5")
        .line(format!("{container}/init.scope/cgroup.procs"), 12)
        .line(format!("{container}/system.slice/app.service/cgroup.procs"), 13);
    let (root, _directory) = support::written(&tree);
    let (cgroups, _) = Cgroups::read(&root);
    let pod = cgroups.pod(UID).unwrap();
    assert_eq!(pod.qos, Qos::Burstable);
    assert_eq!(pod.containers[0].runtime, Some(cgroup::Runtime::Containerd));
    assert_eq!(pod.containers[0].pids, [12, 13], "systemd inside of a container");
}

#[test]
fn a_host_without_cgroups_has_a_diagnosis() {
    let (root, _directory) = support::written(&Tree::default());
    let (cgroups, diagnoses) = Cgroups::read(&root);
    assert_eq!((cgroups.version, cgroups.pods.len()), (CgroupVersion::Unknown, 0));
    assert_eq!(diagnoses.len(), 1);
}
