//! ResourceQuotas where the scheduler does not look at them: the API server refuses pods beyond them.
//!
//! Owns who is refused, and lets them in when others have left, as controllers that try again would.
//! Berth's own rules hold such pods themselves. Must not know what quotas count.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_engine::Profile;
use berth_engine::event::Event;
use berth_model::spec::PodObject;
use berth_tenancy::quota::{Arrival, QuotaLedger, PodPlacement};

use super::World;
use crate::experiment::{Experiment, Setup};

/// Namespaces' quotas and who is beyond them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Admission {
    books: QuotaLedger,
    refused: BTreeSet<u64>,
}

impl Admission {
    pub(super) fn new(experiment: &Experiment, setup: &Setup) -> Self {
        let mut books = QuotaLedger::default();
        if setup.profile != Profile::Berth {
            for event in &experiment.objects {
                if let Event::Quota(quota) = event {
                    books.set_quota(quota.clone());
                }
            }
        }
        Self { books, refused: BTreeSet::new() }
    }

    /// Whether a pod was refused.
    pub(super) fn refuses(&self, id: u64) -> bool {
        self.refused.contains(&id)
    }
}

fn arrival(pod: &PodObject) -> Arrival {
    Arrival { created_at_ms: pod.created_at_ms, uid: pod.uid.clone() }
}

impl World<'_> {
    /// The scheduler hears of a pod, unless it is beyond a quota.
    pub(super) fn submit(&mut self, id: u64, pod: &PodObject) {
        let books = &mut self.admission.books;
        books.set_pod(arrival(pod), &pod.spec, PodPlacement::Pending, None);
        // Who comes later changes nothing for those before, and is asked about here.
        books.take_changed();
        if books.refusal(&pod.spec.namespace, &arrival(pod)).is_some() {
            self.admission.refused.insert(id);
        } else {
            self.engine.apply(Event::Pod(pod.clone()));
        }
    }

    /// A pod has its place, and keeps it.
    pub(super) fn count_placed(&mut self, pod: &PodObject) {
        self.admission.books.set_pod(arrival(pod), &pod.spec, PodPlacement::Placed, None);
    }

    /// A pod is gone: others may come.
    pub(super) fn uncount(&mut self, id: u64, pod: &PodObject) {
        let admission = &mut self.admission;
        admission.refused.remove(&id);
        admission.books.remove_pod(&pod.spec.namespace, &arrival(pod));
        let changed: BTreeSet<Arc<str>> = admission.books.take_changed();
        for uid in changed {
            let Ok(id) = uid.parse::<u64>() else { continue };
            let Some(pod) = self.pods.get(&id).map(|pod| pod.object.clone()) else { continue };
            let admission = &mut self.admission;
            let is_beyond = admission.books.refusal(&pod.spec.namespace, &arrival(&pod)).is_some();
            if !is_beyond && admission.refused.remove(&id) {
                self.engine.apply(Event::Pod(pod));
            }
        }
    }
}
