//! Device needs of a pod: claims, and extended resources that a device class may serve.

use std::sync::Arc;

use crate::pod::Pod;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceNeeds {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub uid: Arc<str>,
    /// In the order in which they are allocated.
    pub claims: Vec<PodClaim>,
    /// Extended resources its containers request may be served by devices.
    pub pod: Pod,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodClaim {
    /// The name in the pod's spec.
    pub name: Arc<str>,
    pub source: ClaimSource,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimSource {
    Named(Arc<str>),
    /// Generated for this pod from a template.
    Generated(Arc<str>),
    /// Not generated yet.
    ToBeGenerated,
    /// The template needs no claim.
    NotNeeded,
    /// A form that Berth does not know.
    Unknown,
}
