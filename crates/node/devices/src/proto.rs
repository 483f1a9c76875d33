//! The kubelet's protocols, as generated from `proto/`.
//!
//! Owns nothing but names. Must not know what is done with the messages.

/// Device plugins: Registration and DevicePlugin.
#[allow(unreachable_pub, clippy::all, clippy::too_many_lines, reason = "generated")]
pub mod deviceplugin {
    tonic::include_proto!("v1beta1");
}

/// Podresources: what the kubelet's managers gave to whom.
#[allow(unreachable_pub, clippy::all, clippy::too_many_lines, reason = "generated")]
pub mod podresources {
    tonic::include_proto!("v1");
}
