//! Names of pods' and containers' cgroups, as kubelets and container runtimes spell them.

use serde::{Deserialize, Serialize};

/// Quality of service class of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Qos {
    Guaranteed,
    Burstable,
    BestEffort,
}

/// Container runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Runtime {
    Containerd,
    Crio,
    /// Through cri-dockerd.
    Docker,
}

/// A longer text is not a UID.
const UID_BYTES_MAX: usize = 128;

/// Whether pods are below: `kubepods`, `kubepods.slice`, or with the prefix of a kubelet that runs in a
/// container.
pub(super) fn is_pods(name: &str) -> bool {
    let name = name.strip_suffix(".slice").unwrap_or(name);
    name.strip_prefix("kubelet-").unwrap_or(name) == "kubepods"
}

/// The class of pods below a cgroup between `kubepods` and pods.
pub(super) fn qos(name: &str) -> Option<Qos> {
    let level = match name.strip_suffix(".slice") {
        Some(slice) => slice.strip_prefix("kubelet-").unwrap_or(slice).strip_prefix("kubepods-")?,
        None => name,
    };
    match level {
        "burstable" => Some(Qos::Burstable),
        "besteffort" => Some(Qos::BestEffort),
        _ => None,
    }
}

/// The UID of a pod: `pod<uid>`, or `kubepods-burstable-pod<uid>.slice` with `_` for `-`.
pub(super) fn pod(name: &str) -> Option<String> {
    let uid = match name.strip_suffix(".slice") {
        Some(slice) => {
            let (before, uid) = slice.rsplit_once("-pod")?;
            (is_pods(before) || qos(&format!("{before}.slice")).is_some())
                .then(|| uid.replace('_', "-"))?
        }
        None => name.strip_prefix("pod")?.to_owned(),
    };
    let plain = uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    (plain && !uid.is_empty() && uid.len() <= UID_BYTES_MAX).then_some(uid)
}

/// The id of a container, and its runtime if the name tells. Its monitor (`crio-conmon-…`) is not a
/// container.
pub(super) fn container(name: &str) -> Option<(String, Option<Runtime>)> {
    let name = name.strip_suffix(".scope").unwrap_or(name);
    let (runtime, id) = match name.rsplit_once('-') {
        Some(("cri-containerd", id)) => (Some(Runtime::Containerd), id),
        Some(("crio", id)) => (Some(Runtime::Crio), id),
        Some(("docker", id)) => (Some(Runtime::Docker), id),
        Some(_) => return None,
        None => (None, name),
    };
    let is_id = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id.then(|| (id.to_owned(), runtime))
}

/// Whether a name with a dot is a directory created by systemd.
pub(super) fn is_unit(name: &str) -> bool {
    [".slice", ".scope", ".service"].iter().any(|suffix| name.ends_with(suffix))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "3f6e8b1a-52c5-4a3e-9a3e-0d4f1f7f2a11";

    #[test]
    fn pods_are_found_under_all_names() {
        let slice = UID.replace('-', "_");
        for name in [
            format!("pod{UID}"),
            format!("kubepods-pod{slice}.slice"),
            format!("kubepods-burstable-pod{slice}.slice"),
            format!("kubelet-kubepods-besteffort-pod{slice}.slice"),
        ] {
            assert_eq!(pod(&name).as_deref(), Some(UID), "{name}");
        }
        // Static pods have a hash for a UID.
        assert_eq!(
            pod("kubepods-burstable-pod0a1b2c3d4e5f60718293a4b5c6d7e8f9.slice").as_deref(),
            Some("0a1b2c3d4e5f60718293a4b5c6d7e8f9")
        );
        for name in ["pod", "podman.slice", "user-pod1.slice", "kubepods-burstable.slice", "podé"]
        {
            assert_eq!(pod(name), None, "{name}");
        }
    }

    #[test]
    fn monitors_are_not_containers() {
        let id = "9".repeat(64);
        for (name, runtime) in [
            (format!("cri-containerd-{id}.scope"), Some(Runtime::Containerd)),
            (format!("crio-{id}.scope"), Some(Runtime::Crio)),
            (format!("crio-{id}"), Some(Runtime::Crio)),
            (format!("docker-{id}.scope"), Some(Runtime::Docker)),
            (id.clone(), None),
        ] {
            assert_eq!(container(&name), Some((id.clone(), runtime)), "{name}");
        }
        for name in
            [format!("crio-conmon-{id}.scope"), "container".to_owned(), "cgroup.procs".to_owned()]
        {
            assert_eq!(container(&name), None, "{name}");
        }
    }

    #[test]
    fn levels_are_qos_classes() {
        for name in ["burstable", "kubepods-burstable.slice", "kubelet-kubepods-burstable.slice"] {
            assert_eq!(qos(name), Some(Qos::Burstable), "{name}");
        }
        assert_eq!(qos("besteffort"), Some(Qos::BestEffort));
        assert_eq!(qos("kubepods.slice"), None);
        assert!(
            is_pods("kubelet-kubepods.slice") && is_pods("kubepods") && !is_pods("system.slice")
        );
    }
}
