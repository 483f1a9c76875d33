//! A kubelet's files.

use super::Tree;

/// Adds a kubelet with a configuration and state files, given as their text; `None` for a missing file.
pub fn add_kubelet(
    tree: &mut Tree,
    configuration: &str,
    cpu_state: Option<&str>,
    memory_state: Option<&str>,
    devices: Option<&str>,
) {
    tree.file("var/lib/kubelet/config.yaml", configuration);
    for (name, text) in [
        ("cpu_manager_state", cpu_state),
        ("memory_manager_state", memory_state),
        ("device-plugins/kubelet_internal_checkpoint", devices),
    ] {
        if let Some(text) = text {
            tree.file(format!("var/lib/kubelet/{name}"), text);
        }
    }
}
