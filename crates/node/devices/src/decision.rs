//! What the scheduler decided about a pod's devices, as the pod's annotation `berth.dev/placement` tells.
//!
//! Owns what it means for devices. The annotation is a wish: it can be old, or written by anybody, so nothing in it is
//! trusted further than what is preferred. Must not know how decisions are made.

use berth_api::placement::{PLACEMENT, Placement};
use thiserror::Error;

use crate::device::GpuIndex;

/// What was decided for a pod that is bound to this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// UID of the pod.
    pub pod: String,
    /// When it was created: kubelets admit in this order.
    pub created_ms: i64,
    /// NUMA nodes of what is pinned, by id.
    pub numa: Vec<u32>,
    /// What it gets, one for each container and resource.
    pub wants: Vec<Want>,
}

/// Devices for a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Want {
    /// The resource.
    pub resource: String,
    /// How many; `None` where only the GPU is told.
    pub count: Option<usize>,
    /// Ids, or numbers where the scheduler was told no ids.
    pub ids: Vec<String>,
    /// The GPU that a share is to be on.
    pub gpu: Option<GpuIndex>,
}

/// An annotation that cannot be read.
#[derive(Debug, Error)]
#[error("annotation {PLACEMENT} of pod {pod} is not what Berth writes ({why}): remove it")]
pub struct DecisionError {
    /// UID of the pod.
    pub pod: String,
    /// What is wrong.
    pub why: serde_json::Error,
}

impl Decision {
    /// Reads the annotation of a pod.
    pub fn read(pod: &str, created_ms: i64, annotation: &str) -> Result<Self, DecisionError> {
        let written = Placement::read(annotation)
            .map_err(|why| DecisionError { pod: pod.to_owned(), why })?;
        let mut wants: Vec<Want> = written
            .devices
            .into_iter()
            .map(|one| Want {
                resource: one.resource,
                count: Some(one.count),
                ids: one.ids,
                gpu: None,
            })
            .collect();
        if let Some(grant) = written.grant
            && let Some(gpu) = grant.gpu.map(GpuIndex)
        {
            match wants.iter_mut().find(|want| want.resource == grant.resource) {
                Some(want) => want.gpu = Some(gpu),
                None => {
                    wants.push(Want { resource: grant.resource, gpu: Some(gpu), ..Want::default() })
                }
            }
        }
        Ok(Self { pod: pod.to_owned(), created_ms, numa: written.numa_nodes, wants })
    }
}
