//! Devices and the kubelet.

pub mod proto;
