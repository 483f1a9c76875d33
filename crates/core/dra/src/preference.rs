//! Which of several devices that will do is tried first, where somebody has a reason to choose.
//!
//! Owns the question only. kube-scheduler has no such reason: without a preference devices are tried
//! in its order, and with one whatever can be given there can be given as well. Must not know what is
//! preferred.

use std::fmt;

use berth_model::dra::slice::Device;

/// A device that a node has, given out or not.
#[derive(Clone, Copy, Debug)]
pub struct Offered<'a> {
    /// The driver that offers it.
    pub driver: &'a str,
    /// Its pool; devices of one pool share counters.
    pub pool: &'a str,
    /// The device.
    pub device: &'a Device,
    /// Whether somebody holds it or a part of it.
    pub held: bool,
}

/// Says which devices are tried first.
pub trait Preference: fmt::Debug {
    /// A number for each device, of which the least is tried first; of equals kube-scheduler's order.
    fn ranks(&self, devices: &[Offered<'_>]) -> Vec<u64>;
}
