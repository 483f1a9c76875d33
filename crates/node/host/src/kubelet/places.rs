//! Where a kubelet has its files, and what its command line sets.
//!
//! Owns the places that distributions use, and the flags that mean the same as fields of the
//! configuration. Of the command line of a running kubelet nothing else is kept.

use serde_json::{Map, Value, json};

use crate::root::{Diagnosis, Notes, Root};

/// Where configurations usually are: kubeadm's place first, then those of EKS, GKE and Talos.
const CONFIGURATIONS: [&str; 5] = [
    "var/lib/kubelet/config.yaml",
    "etc/kubernetes/kubelet/config.json",
    "etc/kubernetes/kubelet/kubelet-config.json",
    "home/kubernetes/kubelet-config.yaml",
    "etc/kubernetes/kubelet.yaml",
];

/// Directories of further files, which some distributions use: EKS, k3s and RKE2.
const DIRECTORIES: [&str; 4] = [
    "etc/kubernetes/kubelet/config.json.d",
    "etc/kubernetes/kubelet.conf.d",
    "var/lib/rancher/k3s/agent/etc/kubelet.conf.d",
    "var/lib/rancher/rke2/agent/etc/kubelet.conf.d",
];

/// Bytes of a command line.
const COMMAND_BYTES_MAX: usize = 64 << 10;

/// Flags that are fields: texts, and pairs such as `a=b,c=d`.
const TEXT_FLAGS: [(&str, &str); 6] = [
    ("topology-manager-policy", "topologyManagerPolicy"),
    ("topology-manager-scope", "topologyManagerScope"),
    ("cpu-manager-policy", "cpuManagerPolicy"),
    ("reserved-cpus", "reservedSystemCPUs"),
    ("memory-manager-policy", "memoryManagerPolicy"),
    ("cgroup-driver", "cgroupDriver"),
];
const PAIR_FLAGS: [(&str, &str); 4] = [
    ("topology-manager-policy-options", "topologyManagerPolicyOptions"),
    ("cpu-manager-policy-options", "cpuManagerPolicyOptions"),
    ("system-reserved", "systemReserved"),
    ("kube-reserved", "kubeReserved"),
];

/// Where a kubelet has its files. Paths are from the root on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletPlaces {
    /// The configuration; `None` where everything is in `directory`.
    pub configuration: Option<String>,
    /// Further files of configuration (`--config-dir`).
    pub directory: Option<String>,
    /// The kubelet's own directory (`--root-dir`).
    pub own: String,
    /// What flags set, as fields of the configuration, which they override.
    pub flags: Value,
}

impl KubeletPlaces {
    /// The first of the usual places where something is.
    pub fn usual(root: &Root) -> Self {
        let has = |path: &str| {
            let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
            root.names(parent).is_ok_and(|names| names.iter().any(|one| one == name))
        };
        let directory = DIRECTORIES.iter().find(|path| root.has_directory(path));
        let configuration = CONFIGURATIONS.iter().find(|path| has(path));
        // Where there is nothing at all, the usual place is what is missing.
        let fallback = (directory.is_none()).then_some(&CONFIGURATIONS[0]);
        Self {
            configuration: configuration.or(fallback).map(|path| (*path).to_owned()),
            directory: directory.map(|path| (*path).to_owned()),
            own: "var/lib/kubelet".to_owned(),
            flags: Value::Object(Map::new()),
        }
    }

    /// Those of the kubelet that runs, from its command line; `None` where none is seen. All processes
    /// are looked at, so this is for the start and not for every time.
    pub fn of_running(root: &Root) -> (Option<Self>, Vec<Diagnosis>) {
        root.begin();
        let mut notes = Notes::default();
        let pids = match root.names("proc") {
            Ok(names) => names,
            Err(fault) => {
                notes.fault("proc", &fault, "whether a kubelet runs is unknown");
                Vec::new()
            }
        };
        let pids = pids.into_iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        let kubelets = pids
            .filter(|pid| root.line(&format!("proc/{pid}/comm")).is_ok_and(|one| one == "kubelet"));
        for pid in kubelets {
            let path = format!("proc/{pid}/cmdline");
            match root.words(&path, COMMAND_BYTES_MAX) {
                // One that has ended and that nobody has buried yet.
                Ok(words) if words.is_empty() => {}
                Ok(words) => return (Some(Self::of_words(root, &words)), notes.done()),
                Err(fault) => {
                    notes.fault(&path, &fault, "flags of the kubelet are unknown");
                    break;
                }
            }
        }
        (None, notes.done())
    }

    fn of_words(root: &Root, words: &[String]) -> Self {
        let mut places = Self::usual(root);
        let mut flags = Map::new();
        let mut words = words.iter().skip(1).peekable();
        while let Some(word) = words.next() {
            let Some(flag) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
                continue;
            };
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name, value.to_owned()),
                None => (
                    flag,
                    words.next_if(|next| !next.starts_with('-')).cloned().unwrap_or_default(),
                ),
            };
            let path = || value.trim_start_matches('/').to_owned();
            match name {
                "config" => places.configuration = Some(path()),
                "config-dir" => places.directory = Some(path()),
                "root-dir" => places.own = path(),
                _ => {}
            }
            if let Some((_, field)) = TEXT_FLAGS.iter().find(|(flag, _)| *flag == name) {
                flags.insert((*field).to_owned(), json!(value));
            }
            if let Some((_, field)) = PAIR_FLAGS.iter().find(|(flag, _)| *flag == name) {
                let pairs = value.split(',').filter_map(|pair| pair.split_once('='));
                let pairs: Map<String, Value> =
                    pairs.map(|(key, value)| (key.to_owned(), json!(value))).collect();
                flags.insert((*field).to_owned(), Value::Object(pairs));
            }
        }
        places.flags = Value::Object(flags);
        places
    }

    /// Directories in which the kubelet writes what it gives away, and is configured.
    pub fn directories(&self) -> Vec<String> {
        let above = |path: &String| path.rsplit_once('/').map(|(above, _)| above.to_owned());
        let mut all = vec![self.own.clone()];
        all.extend(above(&self.state(super::DEVICE_STATE)));
        all.extend(self.configuration.as_ref().and_then(above));
        all.extend(self.directory.clone());
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Where a state file is.
    pub(crate) fn state(&self, name: &str) -> String {
        format!("{}/{name}", self.own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_say_where_files_are_and_what_is_set() {
        let words = [
            "/usr/bin/kubelet",
            "--config=/srv/kubelet.yaml",
            "--root-dir",
            "/srv/kubelet",
            "--config-dir=/srv/d",
            "--node-ip=192.0.2.1",
            "--cpu-manager-policy=static",
            "--kube-reserved=cpu=500m,memory=1Gi",
            "--v=2",
        ];
        let words = words.map(str::to_owned);
        let places = KubeletPlaces::of_words(&Root::new("/nowhere"), &words);
        assert_eq!(places.configuration.as_deref(), Some("srv/kubelet.yaml"));
        assert_eq!(places.directory.as_deref(), Some("srv/d"));
        assert_eq!(places.state("x"), "srv/kubelet/x");
        let flags =
            json!({"cpuManagerPolicy": "static", "kubeReserved": {"cpu": "500m", "memory": "1Gi"}});
        assert_eq!(places.flags, flags);
    }
}
