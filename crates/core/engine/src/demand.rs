//! Pods as kubelets see them, lowered once per kind of pod.
//!
//! Owns the cache only; the lowering is the kubelet model's. Must not know any node.

use std::sync::Arc;

use berth_kubelet::{KubeletVersion, PodDemand};
use berth_model::pod::Pod;
use berth_model::resource::ResourceName;
use smallvec::SmallVec;

use crate::table::ResourceIx;

/// A kubelet's version and the resource given for a part of a GPU.
type Variant = (KubeletVersion, Option<ResourceIx>);

/// One pod as different kubelets see it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Demands {
    /// `None` where the pod cannot be counted; the API server would not have let it in.
    known: SmallVec<[(Variant, Option<Arc<PodDemand>>); 1]>,
}

impl Demands {
    /// What a kubelet of this version sees of the pod.
    pub(crate) fn get(
        &mut self,
        pod: &Pod,
        version: KubeletVersion,
        grant: Option<(ResourceIx, &ResourceName)>,
    ) -> Option<&Arc<PodDemand>> {
        let variant = (version, grant.map(|(number, _)| number));
        let at = match self.known.iter().position(|(one, _)| *one == variant) {
            Some(at) => at,
            None => {
                let demand = match grant {
                    None => PodDemand::new(pod, version),
                    Some((_, resource)) => PodDemand::new(&pod.with_device(resource), version),
                };
                self.known.push((variant, demand.ok().map(Arc::new)));
                self.known.len() - 1
            }
        };
        self.known.get(at).and_then(|(_, demand)| demand.as_ref())
    }
}
