//! Rules on NVIDIA_VISIBLE_DEVICES and shared memory.

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
    summary: "Containers do not set NVIDIA_VISIBLE_DEVICES.",
    why: "The device plugin sets this variable to the GPUs allocated to the container. A pod that \
          sets it itself uses GPUs that are allocated to other pods, which then run out of memory.",
    remedy: "Remove the variable and request the GPUs under limits.",
    safe_fix: Some(
        "Removes the variable if the container also requests GPUs: the device plugin sets it.",
    ),
};

pub(crate) static SMALL_SHM: Rule = Rule {
    code: "BERTH-107",
    name: "small-shm",
    topic: Topic::Requests,
    severity: Severity::Warning,
    summary: "Containers with several GPUs mount a memory-backed volume at /dev/shm.",
    why: "Container runtimes limit /dev/shm to 64 MiB. NCCL and PyTorch's data loaders pass tensors \
          between processes through it, so multi-GPU work fails with a bus error or falls back to \
          slower transports.",
    remedy: "Mount an emptyDir with medium: Memory and a sizeLimit at /dev/shm. It counts towards the \
             pod's memory.",
    safe_fix: None,
};

pub(crate) static HOST_SHM: Rule = Rule {
    code: "BERTH-108",
    name: "host-shm",
    topic: Topic::Requests,
    severity: Severity::Warning,
    summary: "Pods do not mount the node's /dev/shm.",
    why: "Data in the node's /dev/shm is not counted as memory of any pod, outlives the pod, and can be \
          read by every pod that mounts it.",
    remedy: "Use an emptyDir with medium: Memory and a sizeLimit instead of the hostPath.",
    safe_fix: None,
};

const VARIABLE: &str = "NVIDIA_VISIBLE_DEVICES";
const SHM: &str = "/dev/shm";

pub(crate) fn check(view: &PodView<'_>, scope: &mut Scope<'_>) {
    // Agents such as the device plugin and metric exporters must see all GPUs.
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
    // These two values hide all GPUs.
    if matches!(value, "none" | "void") || is_from_elsewhere(container) {
        return;
    }
    let asks = view.gpus.iter().any(|ask| ask.container.path == container.path);
    let message = if asks {
        format!("{VARIABLE}={value:?} overrides the GPUs allocated to the container")
    } else {
        format!("{VARIABLE}={value:?} uses GPUs that are not allocated to the container")
    };
    let breach = Breach::new(&VISIBLE_DEVICES, path.clone(), message);
    // An empty list would remain.
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
            let message = format!("volume {:?} is the node's {SHM}", volume.name);
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
                "container {:?} has {} GPUs, but /dev/shm is limited to 64 MiB",
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
