//! A caller's preference among suitable devices.
//!
//! kube-scheduler has none. A preference changes which devices are allocated, never whether any can
//! be.

use std::fmt;

use berth_model::dra::slice::Device;

/// A device of a node, in use or not.
#[derive(Clone, Copy, Debug)]
pub struct PoolDevice<'a> {
    pub driver: &'a str,
    /// Devices of one pool share counters.
    pub pool: &'a str,
    pub device: &'a Device,
    /// Whether some claim has the device or a part of it.
    pub held: bool,
}

pub trait Preference: fmt::Debug {
    /// A rank for each device; lower ranks are tried first, equal ranks in kube-scheduler's order.
    fn ranks(&self, devices: &[PoolDevice<'_>]) -> Vec<u64>;
}
