//! What a reader who may see one namespace is shown of an explanation.
//!
//! Owns which names are withheld: those of pods in other namespaces. A tenant learns how many pods are in
//! the way, and not whose they are.

use super::data::{Cause, Explanation, Group, PodName, Remedy};

impl Explanation {
    /// The same explanation with the names of pods outside of `namespace` withheld.
    pub fn for_namespace(mut self, namespace: &str) -> Self {
        self.withhold(&|pod: &PodName| *pod.namespace != *namespace);
        self
    }

    fn withhold(&mut self, is_foreign: &impl Fn(&PodName) -> bool) {
        match self {
            Self::AwaitsRoom { leaving, .. } => withhold_all(leaving, is_foreign),
            Self::Waiting { groups, remedies, .. } => {
                for remedy in remedies {
                    if let Remedy::Evict { victims, leaving, .. } = remedy {
                        withhold_all(victims, is_foreign);
                        withhold_all(leaving, is_foreign);
                    }
                }
                *groups = std::mem::take(groups).into_iter().fold(Vec::new(), |merged, group| {
                    merge(merged, without_names(group, is_foreign))
                });
            }
            Self::InGang { next: Some(next), .. } => next.withhold(is_foreign),
            _ => {}
        }
    }
}

fn without_names(mut group: Group, is_foreign: &impl Fn(&PodName) -> bool) -> Group {
    match &mut group.cause {
        Cause::Reserved { by } | Cause::Refused { by: Some(by), .. } if is_foreign(by) => {
            *by = PodName::default();
        }
        _ => {}
    }
    group
}

/// Groups that differed by a name alone are one.
fn merge(mut groups: Vec<Group>, group: Group) -> Vec<Group> {
    match groups.iter_mut().find(|known| known.cause == group.cause) {
        Some(known) => known.nodes += group.nodes,
        None => groups.push(group),
    }
    groups
}

/// Those that are withheld come last, since lists name the first.
fn withhold_all(pods: &mut [PodName], is_foreign: &impl Fn(&PodName) -> bool) {
    pods.sort_by_key(is_foreign);
    for pod in pods.iter_mut().filter(|pod| is_foreign(pod)) {
        *pod = PodName::default();
    }
}
