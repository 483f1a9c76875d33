//! The kubelet's gRPC APIs, generated from `proto/`.

#[allow(unreachable_pub, clippy::all, clippy::too_many_lines, reason = "generated")]
pub mod deviceplugin {
    tonic::include_proto!("v1beta1");
}

#[allow(unreachable_pub, clippy::all, clippy::too_many_lines, reason = "generated")]
pub mod podresources {
    tonic::include_proto!("v1");
}
