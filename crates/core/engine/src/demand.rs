//! Cache of pods lowered to the kubelet model, per class.

use std::sync::Arc;

use berth_kubelet::{KubeletVersion, PodDemand};
use berth_model::pod::Pod;
use berth_model::resource::ResourceName;
use smallvec::SmallVec;

use crate::table::ResourceIx;

type Variant = (KubeletVersion, Option<ResourceIx>);

#[derive(Clone, Debug, Default)]
pub(crate) struct Demands {
    /// `None` if the requests cannot be summed; the API server would have rejected the pod.
    known: SmallVec<[(Variant, Option<Arc<PodDemand>>); 1]>,
}

impl Demands {
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
