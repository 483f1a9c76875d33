//! How containers get at GPUs and at the memory they share.
//!
//! Owns the rules on environment and volumes. Must not know how many GPUs are right.

use k8s_openapi::api::core::v1 as core;

use super::{Breach, Scope};
use crate::finding::Fix;
use crate::rule::{Rule, Severity, Topic};
use crate::view::{ContainerView, PodView, Work};

pub(crate) static VISIBLE_DEVICES: Rule = Rule {
    code: "BERTH-106",
    name: "visible-devices",
    topic: Topic::Requests,
    severity: Severity::Error,
    summary: "A container does not choose its GPUs by NVIDIA_VISIBLE_DEVICES.",
    why: "The device plugin sets this variable to the GPUs that a container was given. A pod that \
          sets it itself takes GPUs that are accounted to others, and out-of-memory errors then hit \
          whoever had asked properly.",
    remedy: "Remove the variable and ask for the GPUs under limits.",
    safe_fix: Some(
        "Where the container asks for GPUs as well, the variable goes: the device plugin sets it to \
         what was asked for.",
    ),
};

pub(crate) static SMALL_SHM: Rule = Rule {
    code: "BERTH-107",
    name: "small-shm",
    topic: Topic::Requests,
    severity: Severity::Warning,
    summary: "A container with several GPUs has a memory-backed volume at /dev/shm.",
    why: "Container runtimes give /dev/shm 64 MiB. NCCL and the data loaders of PyTorch pass tensors \
          between processes through it, so that multi-GPU work dies with a bus error or falls back \
          to slower transports.",
    remedy: "Mount an emptyDir with medium: Memory and a sizeLimit at /dev/shm; it counts as memory of \
             the pod.",
    safe_fix: None,
};

pub(crate) static HOST_SHM: Rule = Rule {
    code: "BERTH-108",
    name: "host-shm",
    topic: Topic::Requests,
    severity: Severity::Warning,
    summary: "A pod does not use the node's own /dev/shm.",
    why: "What is written to the node's /dev/shm counts as nobody's memory, outlives the pod, and can \
          be read by every pod that mounts it.",
    remedy: "Use an emptyDir with medium: Memory and a sizeLimit instead of the hostPath.",
    safe_fix: None,
};

const VARIABLE: &str = "NVIDIA_VISIBLE_DEVICES";
const SHM: &str = "/dev/shm";

pub(crate) fn check(view: &PodView<'_>, scope: &mut Scope<'_>) {
    // Agents such as the device plugin and the exporter of metrics must see all GPUs.
    if view.work == Work::System {
        return;
    }
    for container in &view.containers {
        check_variable(container, view, scope);
    }
    check_shm(view, scope);
}

fn check_variable(container: &ContainerView<'_>, view: &PodView<'_>, scope: &mut Scope<'_>) {
    let Some((path, value)) = container.env(VARIABLE) else { return };
    // These two say that a container is to see none.
    if matches!(value, "none" | "void") || is_from_elsewhere(container) {
        return;
    }
    let asks = view.gpus.iter().any(|ask| ask.container.path == container.path);
    let message = if asks {
        format!("{VARIABLE}={value:?} overrides the GPUs that the container is given")
    } else {
        format!("{VARIABLE}={value:?} takes GPUs that nobody has accounted for")
    };
    let breach = Breach::new(&VISIBLE_DEVICES, path.clone(), message);
    // The last variable takes the list with it.
    let lone = container.spec.env.as_ref().is_some_and(|all| all.len() == 1);
    let path = if lone { container.path.clone().key("env") } else { path };
    scope.add(if asks { breach.fix([Fix::Remove { path }]) } else { breach });
}

/// A value that is filled in later cannot be judged.
fn is_from_elsewhere(container: &ContainerView<'_>) -> bool {
    let found = container.spec.env.iter().flatten().find(|one| one.name == VARIABLE);
    found.is_some_and(|one| one.value_from.is_some())
}

fn check_shm(view: &PodView<'_>, scope: &mut Scope<'_>) {
    let volumes = || view.template.spec.volumes.iter().flatten().enumerate();
    for (index, volume) in volumes() {
        if volume.host_path.as_ref().is_some_and(|host| host.path.trim_end_matches('/') == SHM) {
            let field = view.spec_field("volumes").at(index).key("hostPath");
            let message = format!("volume {:?} is the node's own {SHM}", volume.name);
            scope.add(Breach::new(&HOST_SHM, field, message));
        }
    }
    if view.template.spec.host_ipc == Some(true) {
        return;
    }
    for ask in view.gpus.iter().filter(|ask| ask.count.is_some_and(|count| count > 1)) {
        let container = ask.container.spec;
        if !mounts_shm(container) {
            let field = ask.container.path.clone().key("volumeMounts");
            let message = format!(
                "container {:?} has {} GPUs but only 64 MiB of shared memory",
                container.name,
                ask.count.unwrap_or(0),
            );
            scope.add(Breach::new(&SMALL_SHM, field, message));
        }
    }
}

fn mounts_shm(container: &core::Container) -> bool {
    let mut mounts = container.volume_mounts.iter().flatten();
    mounts.any(|mount| mount.mount_path.trim_end_matches('/') == SHM)
}
