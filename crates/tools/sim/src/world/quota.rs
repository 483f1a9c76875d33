//! ResourceQuotas with schedulers that ignore them: the API server rejects pods beyond a quota, and
//! controllers create them when others are gone. Berth holds such pods itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_engine::Profile;
use berth_engine::event::Event;
use berth_model::spec::PodObject;
use berth_tenancy::quota::{Arrival, PodPlacement, QuotaLedger};

use super::World;
use crate::experiment::{Experiment, Setup};

#[derive(Clone, Debug, Default)]
pub(crate) struct Admission {
    ledger: QuotaLedger,
    rejected: BTreeSet<u64>,
}

impl Admission {
    pub(super) fn new(experiment: &Experiment, setup: &Setup) -> Self {
        let mut ledger = QuotaLedger::default();
        if setup.profile != Profile::Berth {
            for event in &experiment.objects {
                if let Event::Quota(quota) = event {
                    ledger.set_quota(quota.clone());
                }
            }
        }
        Self { ledger, rejected: BTreeSet::new() }
    }

    pub(super) fn rejects(&self, id: u64) -> bool {
        self.rejected.contains(&id)
    }
}

fn arrival(pod: &PodObject) -> Arrival {
    Arrival { created_at_ms: pod.created_at_ms, uid: pod.uid.clone() }
}

impl World<'_> {
    /// Creates a pod, unless it exceeds a quota.
    pub(super) fn submit(&mut self, id: u64, pod: &PodObject) {
        let ledger = &mut self.admission.ledger;
        ledger.set_pod(arrival(pod), &pod.spec, PodPlacement::Pending, None);
        // A new pod changes nothing for older ones, and is checked below.
        ledger.take_changed();
        if ledger.refusal(&pod.spec.namespace, &arrival(pod)).is_some() {
            self.admission.rejected.insert(id);
        } else {
            self.engine.apply(Event::Pod(pod.clone()));
        }
    }

    pub(super) fn count_placed(&mut self, pod: &PodObject) {
        self.admission.ledger.set_pod(arrival(pod), &pod.spec, PodPlacement::Placed, None);
    }

    /// A pod is gone. Rejected pods that now fit into the quota are created.
    pub(super) fn uncount(&mut self, id: u64, pod: &PodObject) {
        let admission = &mut self.admission;
        admission.rejected.remove(&id);
        admission.ledger.remove_pod(&pod.spec.namespace, &arrival(pod));
        let changed: BTreeSet<Arc<str>> = admission.ledger.take_changed();
        for uid in changed {
            let Ok(id) = uid.parse::<u64>() else { continue };
            let Some(pod) = self.pods.get(&id).map(|pod| pod.object.clone()) else { continue };
            let admission = &mut self.admission;
            let is_beyond = admission.ledger.refusal(&pod.spec.namespace, &arrival(&pod)).is_some();
            if !is_beyond && admission.rejected.remove(&id) {
                self.engine.apply(Event::Pod(pod));
            }
        }
    }
}
