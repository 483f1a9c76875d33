//! Who is looked at again when something changed, where kube-scheduler's rules are followed.
//!
//! Owns that choice only. Must not know what is decided then.

use crate::engine::Engine;
use crate::state::Place;
use crate::table::{ClassIx, PodIx};

impl Engine {
    /// Pods that are alike fare alike: the first of every class is looked at again, and the others
    /// follow when it has found its place. Not so those with claims or with a node they wait for.
    pub(crate) fn wake_as_kube_scheduler(&mut self, freed: bool) {
        let parked: Vec<ClassIx> = self.queue.parked_classes().collect();
        for class in parked {
            // What others take can only help pods that want others near, or evenly spread.
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
