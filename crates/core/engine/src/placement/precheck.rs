//! Cheap necessary conditions for a place, from amounts, node objects and rules about other pods.
//!
//! A pod that fails them needs no ranking, which costs more and would evict a useful one.

use super::victims::Preemptor;
use crate::amounts::{self, Amounts};
use crate::filter::{Inquiry, fit, object};
use crate::kube::preempt::priority;
use crate::state::{NodeState, State};
use crate::table::{ClassIx, ResourceIx};

/// Whether some node has room by amounts, and its object and rules about other pods allow the pod.
pub(crate) fn some_node_has_room(inquiry: &Inquiry<'_>) -> bool {
    let (state, class) = (inquiry.state, inquiry.class);
    let has_rules = inquiry.has_neighbour_rules();
    !inquiry.lacks_required_pods()
        && state.nodes.iter().any(|(at, node)| {
            let pods = node.pods.len() as i64;
            fit(&class.requests, node, &node.used, pods, &state.served).is_ok()
                && object(&class.spec, &node.object).is_ok()
                && inquiry.others_allow(at, has_rules)
        })
}

pub(crate) fn some_node_could_be_cleared(
    state: &State,
    class: ClassIx,
    preemptor: &Preemptor,
) -> bool {
    let class = state.class(class);
    state.nodes.iter().any(|(_, node)| {
        fit(&class.requests, node, &[], 0, &state.served).is_ok()
            && object(&class.spec, &node.object).is_ok()
            && node.pods.iter().any(|pod| preemptor.may_outrank(state, *pod))
    })
}

pub(crate) fn some_object_allows(state: &State, class: ClassIx) -> bool {
    let spec = &state.class(class).spec;
    state.nodes.iter().any(|(_, node)| object(spec, &node.object).is_ok())
}

/// What would be used without pods of lower priority; `None` if there are none.
pub(crate) fn used_without_lower(state: &State, node: &NodeState, than: i32) -> Option<Vec<i64>> {
    let mut lower = node.pods.iter().filter(|pod| priority(state, **pod) < than).peekable();
    lower.peek()?;
    let mut used = node.used.clone();
    let mut shares = node.shares.as_deref().cloned();
    lower.for_each(|pod| state.count_requests(*pod, &mut used, shares.as_mut(), -1));
    Some(used)
}

/// The request that exceeds a node's free amount most, relative to capacity.
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
