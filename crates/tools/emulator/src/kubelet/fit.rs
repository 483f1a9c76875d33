//! General kubelet admission besides the resource managers: node resources, selectors, taints. Order, reasons and
//! messages are those of Kubernetes 1.36.

use berth_model::node::Node;
use berth_model::pod::PodLevelResources;
use berth_model::resource::ResourceList;
use berth_model::spec::PodSpec;
use berth_model::taint::Effect;

/// Why a kubelet rejects a pod, as in the pod's status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) reason: String,
    pub(super) message: String,
}

pub(super) fn requests(pod: &PodSpec) -> ResourceList {
    pod.pod.total_requests(PodLevelResources::HonouredIfEmptyToo)
}

/// Checks that a pod fits beside the others on the node.
pub(super) fn check<'a>(
    node: &Node,
    pod: &PodSpec,
    others: impl Iterator<Item = &'a PodSpec> + Clone,
) -> Result<(), Refusal> {
    resources(node, pod, others.clone())?;
    let failed = |predicate: &str, why: &str| {
        let message = format!("Predicate {predicate} failed: {why}");
        Err(Refusal { reason: predicate.to_owned(), message })
    };
    let terms = pod.node_affinity.required.as_ref();
    let wanted = terms.is_none_or(|terms| terms.iter().any(|term| term.matches(node)));
    if !node.labels.contains_all(&pod.node_selector) || !wanted {
        return failed("NodeAffinity", "node(s) didn't match Pod's node affinity/selector");
    }
    let mut taken = others.flat_map(|other| &other.host_ports);
    if taken.any(|port| pod.host_ports.iter().any(|own| own.conflicts(port))) {
        let why = "node(s) didn't have free ports for the requested pod ports";
        return failed("NodePorts", why);
    }
    let mut drives_out = node.taints.iter().filter(|taint| taint.effect == Effect::NoExecute);
    if drives_out.any(|taint| !pod.tolerations.iter().any(|one| one.tolerates(taint))) {
        let why = "node(s) had taints that the pod didn't tolerate";
        return failed("TaintToleration", why);
    }
    Ok(())
}

fn resources<'a>(
    node: &Node,
    pod: &PodSpec,
    others: impl Iterator<Item = &'a PodSpec> + Clone,
) -> Result<(), Refusal> {
    let short = |resource: &str, requested: i64, used: i64, capacity: i64| {
        let message = format!(
            "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, \
             capacity: {capacity}"
        );
        Err(Refusal { reason: format!("OutOf{resource}"), message })
    };
    if let Some(allowed) = node.allocatable.get("pods") {
        let used = i64::try_from(others.clone().count()).unwrap_or(i64::MAX);
        if used >= allowed.value() {
            return short("pods", 1, used, allowed.value());
        }
    }
    let in_use: Vec<ResourceList> = others.map(requests).collect();
    let wanted = requests(pod);
    // Those that every node has come first, then the others.
    let order = |name: &str| match name {
        "cpu" => 0,
        "memory" => 1,
        "ephemeral-storage" => 2,
        _ => 3,
    };
    let mut names: Vec<_> = wanted.iter().collect();
    names.sort_by_key(|(name, _)| order(name.as_str()));
    for (name, amount) in names {
        let text = name.as_str();
        let count = |amount: &berth_model::quantity::Quantity| match text {
            "cpu" => amount.milli_value(),
            _ => amount.value(),
        };
        let capacity = match node.allocatable.get(text) {
            Some(capacity) => count(capacity),
            // What no node has is none of the kubelet's business.
            None if name.is_extended() => continue,
            None => 0,
        };
        let used = in_use.iter().filter_map(|list| list.get(text)).map(count);
        let used = used.fold(0_i64, i64::saturating_add);
        let requested = count(amount);
        if requested > 0 && requested > capacity.saturating_sub(used) {
            return short(text, requested, used, capacity);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::Lower as _;
    use k8s_openapi::api::core::v1 as core;
    use serde_json::{Value, from_value, json};

    fn node() -> Node {
        let node: core::Node = from_value(json!({
            "metadata": { "name": "n", "labels": { "zone": "a" } },
            "spec": { "taints": [{ "key": "drain", "effect": "NoExecute" }] },
            "status": { "allocatable": {
                "cpu": "8", "memory": "64Gi", "pods": "3", "nvidia.com/gpu": "2",
            } },
        }))
        .unwrap();
        node.lower().unwrap()
    }

    fn pod(requests: Value, more: Value) -> PodSpec {
        let mut pod = json!({
            "metadata": { "name": "p" },
            "spec": {
                "tolerations": [{ "key": "drain", "operator": "Exists" }],
                "containers": [{
                    "name": "c", "image": "i",
                    "resources": { "limits": requests },
                    "ports": [{ "containerPort": 80, "hostPort": 80 }],
                }],
            },
        });
        for (key, value) in more.as_object().unwrap() {
            pod["spec"][key] = value.clone();
        }
        let pod: core::Pod = from_value(pod).unwrap();
        (*pod.lower().unwrap().spec).clone()
    }

    fn refused(pod: &PodSpec, others: &[PodSpec]) -> String {
        let refusal = check(&node(), pod, others.iter()).unwrap_err();
        format!("{}: {}", refusal.reason, refusal.message)
    }

    #[test]
    fn what_does_not_fit_is_refused_in_the_kubelets_words() {
        let free = json!({ "containers": [{ "name": "c", "image": "i" }] });
        let small = pod(json!({ "cpu": "7500m" }), json!({}));
        assert_eq!(check(&node(), &small, [].iter()), Ok(()));
        let large = pod(json!({ "cpu": "1", "nvidia.com/gpu": "3" }), free.clone());
        assert_eq!(check(&node(), &large, [].iter()), Ok(()), "nothing is asked for");
        let one = pod(json!({ "cpu": "1" }), json!({}));
        assert_eq!(
            refused(&one, std::slice::from_ref(&small)),
            "OutOfcpu: Node didn't have enough resource: cpu, requested: 1000, used: 7500, \
             capacity: 8000"
        );
        let gpus = pod(json!({ "nvidia.com/gpu": "3" }), json!({}));
        assert!(refused(&gpus, &[]).starts_with("OutOfnvidia.com/gpu: "));
        let unknown = pod(json!({ "example.com/thing": "3" }), json!({}));
        assert_eq!(check(&node(), &unknown, [].iter()), Ok(()));
        let nothing = pod(json!({}), free);
        assert!(refused(&nothing, &vec![nothing.clone(); 3]).starts_with("OutOfpods: "));
    }

    #[test]
    fn places_ports_and_taints_are_looked_at_too() {
        let elsewhere = pod(json!({}), json!({ "nodeSelector": { "zone": "b" } }));
        assert_eq!(
            refused(&elsewhere, &[]),
            "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node \
             affinity/selector"
        );
        let here = pod(json!({}), json!({ "nodeSelector": { "zone": "a" } }));
        assert_eq!(check(&node(), &here, [].iter()), Ok(()));
        assert!(refused(&here, std::slice::from_ref(&here)).starts_with("NodePorts: "));
        let intolerant = pod(json!({}), json!({ "tolerations": [] }));
        assert!(refused(&intolerant, &[]).starts_with("TaintToleration: "));
    }
}
