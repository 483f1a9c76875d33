//! Claims of devices, written before a pod is bound.
//!
//! Owns what stands in a claim's status: what was allocated, and for whom it is reserved. Must not know how devices
//! were chosen.

use kube::Client;

use crate::core::{BindOrder, BindOutcome};

/// Writes what the pod's claims were given, and reserves them for it.
pub(super) async fn prepare(_client: &Client, order: &BindOrder) -> Result<(), BindOutcome> {
    if order.claims.is_empty() && order.binding.devices.is_none() {
        return Ok(());
    }
    Err(BindOutcome::Refused)
}
