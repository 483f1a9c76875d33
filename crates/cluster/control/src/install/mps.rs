//! The MPS daemons of shared GPUs: a DaemonSet beside the agent's.
//!
//! Processes on shares end with their daemon, so its pods are replaced only when somebody deletes them, not with every
//! release of the agent.

use serde_json::{Value, json};

use super::agent::{
    HARDWARE, MPS_DIRECTORY, ROOT, below_root, host, meta_here, mount, offers_argument,
    offers_mount, offers_volume, pod,
};
use super::{AgentOptions, InstallOptions, NAME as PRODUCT, labels};

const NAME: &str = "berth-mps";

pub(super) fn set(options: &InstallOptions, chosen: &AgentOptions) -> Value {
    let selector =
        json!({ "app.kubernetes.io/name": PRODUCT, "app.kubernetes.io/component": "mps" });
    let mut marks = labels();
    marks["app.kubernetes.io/component"] = json!("mps");
    let mut metadata = meta_here(options);
    metadata["name"] = json!(NAME);
    let mut mounts: Vec<Value> = HARDWARE.iter().map(below_root).collect();
    mounts.extend([offers_mount(), mount("mps", MPS_DIRECTORY, false)]);
    let mut volumes: Vec<Value> = HARDWARE.iter().map(|(name, path)| host(name, path)).collect();
    volumes.extend([offers_volume(), host("mps", MPS_DIRECTORY)]);
    let container = json!({
        "name": "mps",
        "image": options.image,
        "args": [
            "agent", "mps", format!("--root={ROOT}"), "--nvml", offers_argument(),
            "--log-format=json",
        ],
        "env": [
            { "name": "NVIDIA_VISIBLE_DEVICES", "value": "all" },
            // With CUDA's library comes NVIDIA's program.
            { "name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility" },
        ],
        "resources": { "requests": { "cpu": "10m", "memory": "64Mi" } },
        "securityContext": {
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
            // The driver asks for it of whoever sets a GPU's compute mode.
            "capabilities": { "drop": ["ALL"], "add": ["SYS_ADMIN"] },
        },
        "volumeMounts": mounts,
    });
    let mut pod = pod(chosen, container, volumes);
    pod["automountServiceAccountToken"] = json!(false);
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata,
        "spec": {
            "selector": { "matchLabels": selector },
            "updateStrategy": { "type": "OnDelete" },
            "template": { "metadata": { "labels": marks }, "spec": pod },
        },
    })
}
