//! The scheduler's decision about a pod's devices, from the annotation `berth.dev/placement`.
//!
//! The annotation can be old, or written by anybody. So it only influences which devices are preferred.

use berth_api::keys::PLACEMENT;
use berth_api::placement::Placement;
use thiserror::Error;

use crate::device::GpuIndex;

/// The decision for a pod that is bound to this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// UID.
    pub pod: String,
    /// Kubelets admit pods in order of creation.
    pub created_ms: i64,
    /// NUMA nodes to which the pod is pinned.
    pub numa: Vec<u32>,
    /// One per container and resource.
    pub allocations: Vec<Allocation>,
}

/// Devices of one resource for a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    pub resource: String,
    /// `None` if only the GPU was decided.
    pub count: Option<usize>,
    /// Device ids, or GPU numbers if the scheduler knew no ids.
    pub ids: Vec<String>,
    /// The GPU for a share.
    pub gpu: Option<GpuIndex>,
}

/// An invalid annotation.
#[derive(Debug, Error)]
#[error("annotation {PLACEMENT} of pod {pod} is invalid ({why}); remove it")]
pub struct DecisionError {
    /// UID.
    pub pod: String,
    pub why: serde_json::Error,
}

impl Decision {
    pub fn read(pod: &str, created_ms: i64, annotation: &str) -> Result<Self, DecisionError> {
        let written = Placement::read(annotation)
            .map_err(|why| DecisionError { pod: pod.to_owned(), why })?;
        let mut allocations: Vec<Allocation> = written
            .devices
            .into_iter()
            .map(|one| Allocation {
                resource: one.resource,
                count: Some(one.count),
                ids: one.ids,
                gpu: None,
            })
            .collect();
        if let Some(grant) = written.grant
            && let Some(gpu) = grant.gpu.map(GpuIndex)
        {
            match allocations.iter_mut().find(|one| one.resource == grant.resource) {
                Some(one) => one.gpu = Some(gpu),
                None => allocations.push(Allocation {
                    resource: grant.resource,
                    gpu: Some(gpu),
                    ..Allocation::default()
                }),
            }
        }
        Ok(Self { pod: pod.to_owned(), created_ms, numa: written.numa_nodes, allocations })
    }
}
