//! Running pods, from cgroups and names of processes.
#![allow(clippy::unwrap_used, reason = "tests may fail")]

use std::fs;
use std::path::Path;

use berth_devices::{CgroupPods, RunningPods as _};
use berth_host::Root;

fn container(root: &Path, pod: &str, id: char, processes: &[(u32, Option<&str>)]) {
    let group = root.join(format!(
        "sys/fs/cgroup/kubepods.slice/kubepods-pod{}.slice/cri-containerd-{}.scope",
        pod.replace('-', "_"),
        id.to_string().repeat(64)
    ));
    fs::create_dir_all(&group).unwrap();
    fs::write(group.join("cpuset.cpus.effective"), "0-3\n").unwrap();
    let pids: String = processes.iter().map(|(pid, _)| format!("{pid}\n")).collect();
    fs::write(group.join("cgroup.procs"), pids).unwrap();
    for (pid, name) in processes {
        let Some(name) = name else { continue };
        let process = root.join(format!("proc/{pid}"));
        fs::create_dir_all(&process).unwrap();
        fs::write(process.join("comm"), format!("{name}\n")).unwrap();
    }
}

#[test]
fn a_pod_runs_while_it_has_a_process_besides_the_sandbox() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    fs::create_dir_all(root.join("sys/fs/cgroup")).unwrap();
    fs::write(root.join("sys/fs/cgroup/cgroup.controllers"), "cpuset cpu memory\n").unwrap();
    let [works, crashed, hidden, ended] =
        [1, 2, 3, 4].map(|nth| format!("0000000{nth}-0000-4000-8000-000000000000"));
    container(root, &works, 'a', &[(10, Some("pause"))]);
    container(root, &works, 'b', &[(11, Some("python3"))]);
    container(root, &crashed, 'c', &[(12, Some("pause"))]);
    container(root, &crashed, 'd', &[]);
    // Names are not visible across process namespaces: such a pod counts as running.
    container(root, &hidden, 'e', &[(0, None)]);
    container(root, &ended, 'f', &[]);
    let pods = CgroupPods::new(Root::new(root)).pods().unwrap();
    assert_eq!(pods.into_iter().collect::<Vec<_>>(), [works, hidden]);
}
