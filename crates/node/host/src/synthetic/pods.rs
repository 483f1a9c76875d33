//! Pods' cgroups and processes, as kubelets and container runtimes create them.

use super::Tree;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// One tree per controller.
    V1,
    /// A single tree.
    V2,
    /// Version 1, with an empty version 2 tree beside it.
    Hybrid,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    Systemd,
    Cgroupfs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    Containerd,
    /// Processes are in a nested cgroup.
    Crio,
    Docker,
}

#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub version: CgroupVersion,
    pub driver: Driver,
    pub runtime: Runtime,
}

#[derive(Clone, Debug, Default)]
pub struct SyntheticPod {
    pub uid: String,
    /// `""` (Guaranteed), `burstable` or `besteffort`.
    pub qos: &'static str,
    pub containers: Vec<SyntheticContainer>,
}

#[derive(Clone, Debug, Default)]
pub struct SyntheticContainer {
    pub id: String,
    /// Configured CPUs; `""`: none.
    pub cpus: String,
    /// Configured NUMA nodes; `""`: none.
    pub mems: String,
    pub processes: Vec<SyntheticProcess>,
}

#[derive(Clone, Debug, Default)]
pub struct SyntheticProcess {
    pub pid: u32,
    /// Pages of 4 KiB by NUMA node.
    pub pages: Vec<(u32, u64)>,
}

impl Layout {
    /// Adds cgroups without pods, for a machine with these CPUs and NUMA nodes.
    pub fn add_host(self, tree: &mut Tree, cpus: &str, mems: &str) {
        match self.version {
            CgroupVersion::V2 => {
                tree.line(
                    "sys/fs/cgroup/cgroup.controllers",
                    "cpuset cpu io memory hugetlb pids rdma",
                );
            }
            CgroupVersion::V1 | CgroupVersion::Hybrid => {
                for controller in ["cpu,cpuacct", "memory", "pids", "systemd"] {
                    tree.line(format!("sys/fs/cgroup/{controller}/cgroup.procs"), 1);
                }
                tree.link("sys/fs/cgroup/cpu", "cpu,cpuacct");
            }
        }
        if self.version == CgroupVersion::Hybrid {
            tree.line("sys/fs/cgroup/unified/cgroup.controllers", "");
            tree.line("sys/fs/cgroup/unified/cgroup.procs", 1);
        }
        let base = self.base().to_owned();
        tree.line(format!("{base}/cgroup.procs"), 1);
        tree.line(format!("{base}/system.slice/containerd.service/cgroup.procs"), 812);
        for at in [base.clone(), format!("{base}/{}", self.level(""))] {
            self.set(tree, &at, cpus, mems, (cpus, mems));
        }
    }

    pub fn add(self, tree: &mut Tree, pod: &SyntheticPod, cpus: &str, mems: &str) {
        let path = self.pod_path(pod);
        let at = format!("{}/{path}", self.base());
        self.set(tree, &at, "", "", (cpus, mems));
        tree.file(format!("{at}/cgroup.procs"), "");
        for container in &pod.containers {
            let name = self.container_name(&container.id);
            let at = format!("{at}/{name}");
            let or =
                |own: &str, all: &str| if own.is_empty() { all.to_owned() } else { own.to_owned() };
            let effective = (or(&container.cpus, cpus), or(&container.mems, mems));
            let both = (effective.0.as_str(), effective.1.as_str());
            self.set(tree, &at, &container.cpus, &container.mems, both);
            let inner = self.runtime == Runtime::Crio && self.version == CgroupVersion::V2;
            let pids: String =
                container.processes.iter().map(|process| format!("{}\n", process.pid)).collect();
            if inner {
                tree.file(format!("{at}/cgroup.procs"), "");
                tree.file(format!("{at}/container/cgroup.procs"), pids);
            } else {
                tree.file(format!("{at}/cgroup.procs"), pids);
            }
            let mut cgroup = format!("/{path}/{name}");
            cgroup.push_str(if inner { "/container" } else { "" });
            for process in &container.processes {
                self.process(tree, process, &cgroup, both);
            }
        }
        if self.runtime == Runtime::Crio && self.driver == Driver::Systemd {
            for container in &pod.containers {
                let at = format!("{at}/crio-conmon-{}.scope", container.id);
                tree.line(format!("{at}/cgroup.procs"), 99_999);
            }
        }
    }

    fn base(self) -> &'static str {
        if self.version == CgroupVersion::V2 { "sys/fs/cgroup" } else { "sys/fs/cgroup/cpuset" }
    }

    fn level(self, qos: &str) -> String {
        match (self.driver, qos) {
            (Driver::Systemd, "") => "kubepods.slice".to_owned(),
            (Driver::Systemd, qos) => format!("kubepods.slice/kubepods-{qos}.slice"),
            (Driver::Cgroupfs, "") => "kubepods".to_owned(),
            (Driver::Cgroupfs, qos) => format!("kubepods/{qos}"),
        }
    }

    /// Path of the pod's cgroup in its tree.
    pub fn pod_path(self, pod: &SyntheticPod) -> String {
        let level = self.level(pod.qos);
        match self.driver {
            Driver::Cgroupfs => format!("{level}/pod{}", pod.uid),
            Driver::Systemd => {
                let qos = if pod.qos.is_empty() { String::new() } else { format!("-{}", pod.qos) };
                format!("{level}/kubepods{qos}-pod{}.slice", pod.uid.replace('-', "_"))
            }
        }
    }

    fn container_name(self, id: &str) -> String {
        match (self.driver, self.runtime) {
            (Driver::Systemd, Runtime::Containerd) => format!("cri-containerd-{id}.scope"),
            (Driver::Systemd, Runtime::Crio) => format!("crio-{id}.scope"),
            (Driver::Systemd, Runtime::Docker) => format!("docker-{id}.scope"),
            (Driver::Cgroupfs, Runtime::Crio) => format!("crio-{id}"),
            (Driver::Cgroupfs, _) => id.to_owned(),
        }
    }

    fn set(self, tree: &mut Tree, at: &str, cpus: &str, mems: &str, effective: (&str, &str)) {
        let v2 = self.version == CgroupVersion::V2;
        // Version 1 has no empty sets: a new cgroup starts with those of its parent.
        let own = if v2 { (cpus, mems) } else { effective };
        tree.line(format!("{at}/cpuset.cpus"), own.0).line(format!("{at}/cpuset.mems"), own.1);
        let names = if v2 {
            ["cpuset.cpus.effective", "cpuset.mems.effective"]
        } else {
            ["cpuset.effective_cpus", "cpuset.effective_mems"]
        };
        tree.line(format!("{at}/{}", names[0]), effective.0);
        tree.line(format!("{at}/{}", names[1]), effective.1);
    }

    fn process(
        self,
        tree: &mut Tree,
        process: &SyntheticProcess,
        cgroup: &str,
        (cpus, mems): (&str, &str),
    ) {
        let at = format!("proc/{}", process.pid);
        let status = format!(
            "Name:\tpython3\nUid:\t1000\t1000\t1000\t1000\nCpus_allowed:\tff\nCpus_allowed_list:\t{cpus}\n\
             Mems_allowed_list:\t{mems}\n"
        );
        tree.file(format!("{at}/status"), status);
        tree.file(format!("{at}/cmdline"), "python3\0serve.py\0--token\0secret\0");
        tree.file(
            format!("{at}/cgroup"),
            match self.version {
                CgroupVersion::V2 => format!("0::{cgroup}\n"),
                CgroupVersion::V1 => format!("4:memory:{cgroup}\n3:cpuset:{cgroup}\n"),
                CgroupVersion::Hybrid => format!("4:memory:{cgroup}\n3:cpuset:{cgroup}\n0::/\n"),
            },
        );
        let maps = process.pages.iter().enumerate().map(|(number, (node, pages))| {
            let file = if number == 0 { " file=/srv/models/secret.bin" } else { "" };
            format!(
                "7f{number:010x} default{file} anon={pages} N{node}={pages} kernelpagesize_kB=4\n"
            )
        });
        let maps: String = maps.collect();
        tree.file(format!("{at}/numa_maps"), format!("55e0c0de0000 default\n{maps}"));
    }
}
