//! Builders for devices, claims and pods.
#![allow(dead_code, reason = "not every test uses every builder")]

use std::sync::Arc;

use berth_dra::{Demand, Inventory, Options, Placement, Rejection};
use berth_model::dra::DeviceClass;
use berth_model::dra::claim::{Claim, ClaimSpec, Count, DeviceRequest, Request, RequestKind};
use berth_model::dra::pod::{ClaimSource, DeviceNeeds, PodClaim};
use berth_model::dra::slice::{Attribute, Device, NodeScope, ResourceSlice, SlicePool};
use berth_model::node::Node;

pub(crate) const DRIVER: &str = "gpu.example.com";

pub(crate) fn node(name: &str) -> Node {
    Node { name: name.into(), ..Node::default() }
}

/// A device with its number and its NUMA node.
pub(crate) fn device(index: usize, numa: i64) -> Device {
    let attributes = [
        ("index", Attribute::Int(i64::try_from(index).unwrap_or(i64::MAX))),
        ("numa", Attribute::Int(numa)),
    ];
    Device {
        name: format!("gpu-{index}").into(),
        attributes: attributes.map(|(name, value)| (Arc::from(name), value)).into(),
        ..Device::default()
    }
}

/// All devices of a node, as a pool of one slice.
pub(crate) fn slice(node: &str, devices: Vec<Device>) -> ResourceSlice {
    ResourceSlice {
        name: format!("{node}-gpus").into(),
        driver: DRIVER.into(),
        pool: SlicePool { name: node.into(), generation: 1, slice_count: 1 },
        scope: NodeScope::Node(node.into()),
        devices,
        shared_counters: Vec::new(),
    }
}

pub(crate) fn class(selectors: &[&str]) -> DeviceClass {
    let selectors = selectors.iter().map(|text| Arc::from(*text)).collect();
    DeviceClass { name: "gpu".into(), selectors, ..DeviceClass::default() }
}

pub(crate) fn ask(count: i64, selectors: &[&str]) -> DeviceRequest {
    DeviceRequest {
        class: "gpu".into(),
        selectors: selectors.iter().map(|text| Arc::from(*text)).collect(),
        count: Count::Exactly(count),
        ..DeviceRequest::default()
    }
}

pub(crate) fn claim(name: &str, asks: Vec<DeviceRequest>) -> Claim {
    let request = |(at, ask): (usize, DeviceRequest)| Request {
        name: format!("r{at}").into(),
        kind: RequestKind::Exactly(ask),
    };
    let requests = asks.into_iter().enumerate().map(request).collect();
    Claim {
        namespace: "default".into(),
        name: name.into(),
        uid: name.into(),
        spec: ClaimSpec { requests, ..ClaimSpec::default() },
        ..Claim::default()
    }
}

pub(crate) fn pod(name: &str, claims: &[&str]) -> DeviceNeeds {
    let claim =
        |name: &&str| PodClaim { name: (*name).into(), source: ClaimSource::Named((*name).into()) };
    DeviceNeeds {
        namespace: "default".into(),
        name: name.into(),
        uid: name.into(),
        claims: claims.iter().map(claim).collect(),
        ..DeviceNeeds::default()
    }
}

pub(crate) fn demand(inventory: &Inventory, claims: &[&str]) -> Demand {
    inventory.prepare(&pod("pod", claims)).unwrap().unwrap()
}

pub(crate) fn place(
    inventory: &Inventory,
    claims: &[&str],
    on: &str,
) -> Result<Placement, Rejection> {
    inventory.place(&demand(inventory, claims), &node(on), &Options::default())
}

/// Names of the allocated devices.
pub(crate) fn devices(placement: &Placement) -> Vec<String> {
    let given = placement.allocations.iter().flat_map(|(_, allocation)| &allocation.devices);
    given.map(|device| device.id.device.to_string()).collect()
}
