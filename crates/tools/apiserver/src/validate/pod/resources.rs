//! Validation of resource requests and limits, and names of resources.

use std::collections::{BTreeMap, BTreeSet};

use berth_model::quantity::Quantity;
use serde_json::{Value, json};

use crate::validate::report::{Report, list, map, quantity, text};
use crate::validate::text;

/// Native resources of containers.
const CONTAINER_RESOURCES: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// Unprefixed names of resources that Kubernetes knows.
const STANDARD: [&str; 27] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "storage",
    "requests.storage",
    "services.nodeports",
    "services.loadbalancers",
    "count/pods",
    "count/services",
    "count/secrets",
    "count/configmaps",
    "count/persistentvolumeclaims",
    "count/resourcequotas",
    "count/replicationcontrollers",
];

pub(in crate::validate) fn is_standard(name: &str) -> bool {
    STANDARD.contains(&name)
        || name.starts_with("hugepages-")
        || name.starts_with("requests.hugepages-")
}

pub(in crate::validate) fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

pub(in crate::validate) fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && text::qualified_name(&format!("requests.{name}")).is_empty()
}

fn is_huge(name: &str) -> bool {
    name.starts_with("hugepages-")
}

fn may_be_overcommitted(name: &str) -> bool {
    is_native(name) && !is_huge(name)
}

fn is_whole(name: &str) -> bool {
    is_extended(name)
}

/// Validates the name of a resource. Returns whether further checks make sense.
pub(in crate::validate) fn check_name(path: &str, name: &str, report: &mut Report) -> bool {
    let wrong = text::qualified_name(name);
    if !wrong.is_empty() {
        report.text(path, name, wrong);
        return false;
    }
    if !name.contains('/') && !is_standard(name) {
        let detail = "must be a standard resource type or fully qualified";
        report.invalid(path, &json!(name), detail);
        return false;
    }
    true
}

/// A name of what containers can ask for.
pub(in crate::validate) fn check_container_name(path: &str, name: &str, report: &mut Report) {
    check_name(path, name, report);
    if !name.contains('/') {
        if !CONTAINER_RESOURCES.contains(&name) && !is_huge(name) {
            report.invalid(path, &json!(name), "must be a standard resource for containers");
        }
    } else if !is_native(name) && !is_extended(name) {
        report.invalid(path, &json!(name), "doesn't follow extended resource name standard");
    }
}

fn check_amount(path: &str, name: &str, value: &Value, report: &mut Report) {
    let Some(amount) = quantity(value) else { return };
    if amount.sign() < 0 {
        report.invalid(path, &json!(amount.to_string()), "must be greater than or equal to 0");
    }
    if is_whole(name) && amount.as_i64().is_none() {
        report.invalid(path, &json!(amount.to_string()), "must be an integer");
    }
}

fn check_huge(path: &str, name: &str, value: &Value, report: &mut Report) {
    let page = name.strip_prefix("hugepages-").and_then(|size| Quantity::parse(size).ok());
    let (Some(page), Some(amount)) = (page, quantity(value)) else { return };
    let whole = page.sign() > 0 && amount.nanos() % page.nanos() == 0;
    if !whole {
        let detail = format!("{amount} is not positive integer multiple of {name}");
        report.invalid(path, &json!(amount.to_string()), &detail);
    }
}

pub(super) fn check(path: &str, resources: &Value, claims: &BTreeSet<String>, report: &mut Report) {
    let limits: BTreeMap<&str, &Value> =
        map(resources, "limits").map(|(name, amount)| (name.as_str(), amount)).collect();
    let requests: BTreeMap<&str, &Value> =
        map(resources, "requests").map(|(name, amount)| (name.as_str(), amount)).collect();
    for (name, amount) in &limits {
        let path = format!("{path}.limits[{name}]");
        check_container_name(&path, name, report);
        check_amount(&path, name, amount, report);
        if is_huge(name) {
            check_huge(&path, name, amount, report);
        }
    }
    for (name, amount) in &requests {
        let at = format!("{path}.requests[{name}]");
        check_container_name(&at, name, report);
        check_amount(&at, name, amount, report);
        match limits.get(name) {
            Some(limit) => compare(&format!("{path}.requests"), name, amount, limit, report),
            None if !may_be_overcommitted(name) => report.required(
                &format!("{path}.limits"),
                "Limit must be set for non overcommitable resources",
            ),
            None => {}
        }
        if is_huge(name) {
            check_huge(&at, name, amount, report);
        }
    }
    let named = |name: &str| limits.contains_key(name) || requests.contains_key(name);
    let huge = limits.keys().chain(requests.keys()).any(|name| is_huge(name));
    if huge && !named("cpu") && !named("memory") {
        report.forbidden(path, "HugePages require cpu or memory");
    }
    for (i, claim) in list(resources, "claims").iter().enumerate() {
        let name = text(claim, "name");
        if !claims.contains(name) {
            let mut detail = "must be one of the names in pod.spec.resourceClaims".to_owned();
            if claims.is_empty() {
                detail.push_str(" which is empty");
            }
            report.not_found(&format!("{path}.claims[{i}]"), &json!(name), &detail);
        }
    }
}

fn compare(path: &str, name: &str, request: &Value, limit: &Value, report: &mut Report) {
    let (Some(asked), Some(most)) = (quantity(request), quantity(limit)) else { return };
    let shown = json!(asked.to_string());
    if !may_be_overcommitted(name) {
        if asked != most {
            report.invalid(path, &shown, &format!("must be equal to {name} limit of {most}"));
        }
    } else if asked > most {
        report.invalid(
            path,
            &shown,
            &format!("must be less than or equal to {name} limit of {most}"),
        );
    }
}

/// Resources of a pod as a whole.
pub(super) fn check_pod_level(path: &str, spec: &Value, report: &mut Report) {
    let Some(resources) = spec.get("resources").filter(|resources| resources.is_object()) else {
        return;
    };
    let known = |name: &str| matches!(name, "cpu" | "memory") || is_huge(name);
    for field in ["limits", "requests"] {
        for (name, amount) in map(resources, field) {
            let path = format!("{path}.{field}[{name}]");
            if known(name) {
                check_amount(&path, name, amount, report);
            } else if field == "limits"
                || resources.pointer("/limits").and_then(|l| l.get(name)).is_none()
            {
                report.unsupported(&path, name, &["cpu", "hugepages-", "memory"]);
            }
        }
    }
    for (name, amount) in map(resources, "requests").filter(|(name, _)| known(name)) {
        let sum = list(spec, "containers").iter().fold(Quantity::ZERO, |sum, container| {
            let own = container.pointer("/resources/requests").and_then(|all| all.get(name));
            sum.saturating_add(own.and_then(quantity).unwrap_or(Quantity::ZERO))
        });
        if quantity(amount).is_some_and(|asked| asked < sum) {
            let detail =
                format!("must be greater than or equal to aggregate container requests of {sum}");
            report.invalid(&format!("{path}.requests[{name}]"), amount, &detail);
        }
        if let Some(limit) = resources.pointer("/limits").and_then(|limits| limits.get(name)) {
            compare(&format!("{path}.requests"), name, amount, limit, report);
        }
    }
}
