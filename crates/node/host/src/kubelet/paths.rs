//! Paths of a kubelet's files, and the flags that override fields of its configuration.
//!
//! Nothing else of the kubelet's command line is kept.

use serde_json::{Map, Value, json};

use crate::root::{Diagnosis, Notes, Root};

/// Usual paths of the configuration: kubeadm's first, then those of EKS, GKE and Talos.
const CONFIGURATIONS: [&str; 5] = [
    "var/lib/kubelet/config.yaml",
    "etc/kubernetes/kubelet/config.json",
    "etc/kubernetes/kubelet/kubelet-config.json",
    "home/kubernetes/kubelet-config.yaml",
    "etc/kubernetes/kubelet.yaml",
];

/// Usual directories of drop-in files: EKS, kubeadm, k3s and RKE2.
const DIRECTORIES: [&str; 4] = [
    "etc/kubernetes/kubelet/config.json.d",
    "etc/kubernetes/kubelet.conf.d",
    "var/lib/rancher/k3s/agent/etc/kubelet.conf.d",
    "var/lib/rancher/rke2/agent/etc/kubelet.conf.d",
];

const COMMAND_BYTES_MAX: usize = 64 << 10;

/// Flags that set a string field, and flags that set a map such as `a=b,c=d`.
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

/// Paths of a kubelet's files, relative to the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletPaths {
    /// `None` if the whole configuration is in `config_dir`.
    pub configuration: Option<String>,
    /// Drop-in files (`--config-dir`).
    pub config_dir: Option<String>,
    /// The kubelet's root directory (`--root-dir`).
    pub root_dir: String,
    /// Fields of the configuration that flags override.
    pub flags: Value,
}

impl KubeletPaths {
    /// The first of the usual paths that exist.
    pub fn detect(root: &Root) -> Self {
        let has = |path: &str| {
            let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
            root.names(parent).is_ok_and(|names| names.iter().any(|one| one == name))
        };
        let directory = DIRECTORIES.iter().find(|path| root.has_directory(path));
        let configuration = CONFIGURATIONS.iter().find(|path| has(path));
        // If nothing exists, diagnoses name the usual path.
        let fallback = (directory.is_none()).then_some(&CONFIGURATIONS[0]);
        Self {
            configuration: configuration.or(fallback).map(|path| (*path).to_owned()),
            config_dir: directory.map(|path| (*path).to_owned()),
            root_dir: "var/lib/kubelet".to_owned(),
            flags: Value::Object(Map::new()),
        }
    }

    /// Paths of the running kubelet, from its command line; `None` if none is found. Looks at all
    /// processes, so call it once at the start.
    pub fn of_running(root: &Root) -> (Option<Self>, Vec<Diagnosis>) {
        root.begin_reading();
        let mut notes = Notes::default();
        let pids = match root.names("proc") {
            Ok(names) => names,
            Err(fault) => {
                notes.fault("proc", &fault, "a running kubelet cannot be found");
                Vec::new()
            }
        };
        let pids = pids.into_iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        let kubelets = pids
            .filter(|pid| root.line(&format!("proc/{pid}/comm")).is_ok_and(|one| one == "kubelet"));
        for pid in kubelets {
            let path = format!("proc/{pid}/cmdline");
            match root.words(&path, COMMAND_BYTES_MAX) {
                // A zombie has no command line.
                Ok(words) if words.is_empty() => {}
                Ok(words) => return (Some(Self::of_words(root, &words)), notes.done()),
                Err(fault) => {
                    notes.fault(&path, &fault, "the kubelet's flags are unknown");
                    break;
                }
            }
        }
        (None, notes.done())
    }

    fn of_words(root: &Root, words: &[String]) -> Self {
        let mut paths = Self::detect(root);
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
                "config" => paths.configuration = Some(path()),
                "config-dir" => paths.config_dir = Some(path()),
                "root-dir" => paths.root_dir = path(),
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
        paths.flags = Value::Object(flags);
        paths
    }

    /// Directories to watch for changes of the kubelet's state and configuration.
    pub fn directories(&self) -> Vec<String> {
        let above = |path: &String| path.rsplit_once('/').map(|(above, _)| above.to_owned());
        let mut all = vec![self.root_dir.clone()];
        all.extend(above(&self.state(super::DEVICE_STATE)));
        all.extend(self.configuration.as_ref().and_then(above));
        all.extend(self.config_dir.clone());
        all.sort_unstable();
        all.dedup();
        all
    }

    pub(crate) fn state(&self, name: &str) -> String {
        format!("{}/{name}", self.root_dir)
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
        let paths = KubeletPaths::of_words(&Root::new("/nowhere"), &words);
        assert_eq!(paths.configuration.as_deref(), Some("srv/kubelet.yaml"));
        assert_eq!(paths.config_dir.as_deref(), Some("srv/d"));
        assert_eq!(paths.state("x"), "srv/kubelet/x");
        let flags =
            json!({"cpuManagerPolicy": "static", "kubeReserved": {"cpu": "500m", "memory": "1Gi"}});
        assert_eq!(paths.flags, flags);
    }
}
