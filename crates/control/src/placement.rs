//! What is written on a pod about its place: the annotation `berth.dev/placement`.
//!
//! Owns its form; what a pod was given is read from it again when pods are lowered. It goes onto the pod with the binding itself, so that it is
//! there whenever the pod has a node. Must not know how places are chosen.

use std::sync::Arc;

use berth_engine::Engine;
use berth_engine::decision::{Alignment, Binding};
use berth_kubelet::Kubelet;
use berth_model::numa::NumaMask;
use serde::{Deserialize, Serialize};

/// The annotation.
pub const PLACEMENT: &str = "berth.dev/placement";

/// Where a pod lies on its node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    /// `aligned`, `misaligned`, `unmanaged` (nothing of it is pinned) or `unknown` (nobody tells what the
    /// node looks like inside).
    pub alignment: String,
    /// The NUMA nodes of what is pinned, by id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub numa_nodes: Vec<u32>,
    /// The devices it will be given, as far as that can be known beforehand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<GivenDevices>,
    /// What it was given for the part of a GPU it asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<Grant>,
    /// Why there.
    pub why: String,
}

/// Devices of one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenDevices {
    /// The resource.
    pub resource: String,
    /// How many.
    pub count: usize,
    /// Those that are certain, as the node's list has them: by number, where nobody tells their ids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<String>,
}

/// A part of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// One of this resource, or a share of it.
    pub resource: String,
    /// The number of the GPU of which it is a share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u16>,
}

/// What to write about a binding that the engine has just decided.
pub fn describe(engine: &Engine, binding: &Binding) -> Placement {
    let kubelet = engine.kubelet(&binding.node).map(|(kubelet, _)| kubelet);
    let ids =
        |numa: NumaMask| kubelet.map_or_else(Vec::new, |kubelet| kubelet.machine().numa_ids(numa));
    let (alignment, numa_nodes) = match binding.alignment {
        Alignment::Aligned(numa) => ("aligned", ids(numa)),
        Alignment::Misaligned(numa) => ("misaligned", ids(numa)),
        Alignment::Unmanaged => ("unmanaged", Vec::new()),
        Alignment::Unknown => ("unknown", Vec::new()),
    };
    let grant = binding
        .gpu_grant
        .as_ref()
        .map(|grant| Grant { resource: grant.resource.to_string(), gpu: grant.gpu });
    let why = match binding.alignment {
        Alignment::Aligned(_) => {
            "its CPUs, memory and devices are on the same NUMA nodes, and the least room is lost for others"
        }
        Alignment::Misaligned(_) => {
            "no node could take it aligned, and this one comes nearest to it"
        }
        Alignment::Unmanaged => "nothing of it is pinned; the least room is lost for others here",
        Alignment::Unknown => "no node of known topology could take it",
    };
    Placement {
        alignment: alignment.to_owned(),
        numa_nodes,
        devices: kubelet.map_or_else(Vec::new, |kubelet| devices(kubelet, &binding.pod)),
        grant,
        why: why.to_owned(),
    }
}

/// The devices that the kubelet will give a pod.
pub(crate) fn devices(kubelet: &Kubelet, uid: &str) -> Vec<GivenDevices> {
    let given = kubelet.assignment(uid);
    let given = given.iter().flat_map(|given| &given.containers).flat_map(|one| &one.devices);
    given
        .map(|given| {
            let listed = kubelet.pools().nth(given.pool).map_or(&[][..], |pool| &pool.devices);
            let named = given.certain.iter().filter_map(|at| Some(listed.get(at)?.id.clone()));
            GivenDevices {
                resource: given.resource.to_string(),
                count: given.devices.len(),
                ids: named.collect(),
            }
        })
        .collect()
}

/// The annotation's text.
pub fn text(placement: &Placement) -> Arc<str> {
    serde_json::to_string(placement).unwrap_or_default().into()
}
