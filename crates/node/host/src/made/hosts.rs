//! What a kubelet leaves on a host.
//!
//! Owns where its files are. Must not know what is in them.

use super::Tree;

/// Gives a host a kubelet with a configuration, and with state that follows from nothing else: texts as
/// they stand in the files, `None` for a file that is not there.
pub fn kubelet_on(
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
