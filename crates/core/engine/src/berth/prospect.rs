//! Prospects: whether nodes could take a pod at all, from amounts, node objects and neighbours alone.
//!
//! Owns conditions that are necessary and cheap. A pod without any prospect needs no ranking of nodes,
//! which costs far more and would displace a ranking that is of use. Must not say yes for certain.

use super::plan::Evictor;
use crate::amounts::{self, Amounts};
use crate::filter::{Inquiry, fit, object};
use crate::kube::preempt::priority;
use crate::state::{NodeState, State};
use crate::table::{ClassIx, ResourceIx};

/// Whether some node has room for a pod, by amounts, and its object and neighbours allow it.
pub(crate) fn some_node_has_room(inquiry: &Inquiry<'_>) -> bool {
    let (state, class) = (inquiry.state, inquiry.class);
    let cares = inquiry.has_neighbour_rules();
    !inquiry.lacks_needed_pods()
        && state.nodes.iter().any(|(at, node)| {
            let pods = node.pods.len() as i64;
            fit(&class.requests, node, &node.used, pods, &state.served).is_ok()
                && object(&class.spec, &node.object).is_ok()
                && inquiry.walk_allows(at, cares)
        })
}

/// Whether some node could have room for a class if others were evicted.
pub(crate) fn some_node_could_be_cleared(state: &State, class: ClassIx, evictor: &Evictor) -> bool {
    let class = state.class(class);
    state.nodes.iter().any(|(_, node)| {
        fit(&class.requests, node, &[], 0, &state.served).is_ok()
            && object(&class.spec, &node.object).is_ok()
            && node.pods.iter().any(|pod| evictor.may_outrank(state, *pod))
    })
}

/// Whether the object of some node allows pods of a class.
pub(crate) fn some_object_allows(state: &State, class: ClassIx) -> bool {
    let spec = &state.class(class).spec;
    state.nodes.iter().any(|(_, node)| object(spec, &node.object).is_ok())
}

/// What would be used on a node without its pods of lower priority; `None` if it has none.
pub(crate) fn used_without_lower(state: &State, node: &NodeState, than: i32) -> Option<Vec<i64>> {
    let mut lower = node.pods.iter().filter(|pod| priority(state, **pod) < than).peekable();
    lower.peek()?;
    let mut used = node.used.clone();
    let mut shares = node.shares.as_deref().cloned();
    lower.for_each(|pod| state.count_requests(*pod, &mut used, shares.as_mut(), -1));
    Some(used)
}

/// The request that exceeds most what a node has beside what is used.
pub(crate) fn scarcest(
    requests: &Amounts,
    node: &NodeState,
    used: &[i64],
    served: &[ResourceIx],
) -> Option<(ResourceIx, i64)> {
    let missing = |(resource, amount): &(ResourceIx, i64)| {
        let capacity = amounts::at(&node.capacity, *resource);
        let free = capacity.saturating_sub(amounts::at(used, *resource));
        let missing = i128::from(*amount) - i128::from(free);
        (missing > 0).then(|| missing * 1_000 / i128::from(capacity.max(1)))
    };
    let counted = requests.iter().filter(|(resource, _)| !served.contains(resource));
    let short = counted.filter_map(|request| Some((missing(request)?, *request)));
    short.max_by_key(|(missing, _)| *missing).map(|(_, request)| request)
}
