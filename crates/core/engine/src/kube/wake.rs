//! Which parked pods are evaluated again after a change, under kube-scheduler's rules.

use crate::engine::Engine;
use crate::state::Place;
use crate::table::{ClassIx, PodIx};

impl Engine {
    /// Wakes the first pod of every class; the others follow when it is placed. Pods with claims or
    /// nominations are woken one by one.
    pub(crate) fn wake_as_kube_scheduler(&mut self, freed: bool) {
        let parked: Vec<ClassIx> = self.queue.parked_classes().collect();
        for class in parked {
            // Taken resources can help only pods with affinity or spread constraints.
            let rules = self.state.rules(class);
            if !freed && rules.affinity.is_none() && rules.hard_spread.is_empty() {
                continue;
            }
            let pods = &self.state.pods;
            let is_special = |at: &PodIx| {
                !pods[*at].claims.is_empty() || matches!(pods[*at].place, Place::Nominated(..))
            };
            let first = self.queue.parked_of(class).next();
            let special = self.queue.parked_of(class).skip(1).filter(is_special);
            let awake: Vec<PodIx> = first.into_iter().chain(special).collect();
            awake.into_iter().for_each(|pod| self.queue.wake(pod));
        }
    }
}
