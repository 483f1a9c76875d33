//! What a pod needs in devices: claims by name, and extended resources that a class may serve.
//!
//! Owns the data only.

use std::sync::Arc;

use crate::pod::Pod;

/// What a pod needs in devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceNeeds {
    /// The pod's namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its UID.
    pub uid: Arc<str>,
    /// Its claims, in the order in which they are given devices.
    pub claims: Vec<PodClaim>,
    /// Its containers: extended resources they request may be served by devices.
    pub pod: Pod,
}

/// A claim as a pod refers to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodClaim {
    /// What the pod calls it.
    pub name: Arc<str>,
    /// Which claim it is.
    pub source: ClaimSource,
}

/// Which claim a pod refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimSource {
    /// The one of this name.
    Named(Arc<str>),
    /// One that was made for the pod alone.
    Generated(Arc<str>),
    /// One that is yet to be made for the pod.
    ToBeGenerated,
    /// None: its template turned out to need no claim.
    NotNeeded,
    /// Something that is not understood.
    Unknown,
}
