//! Which webhooks match a request, by rules and selectors.

use serde_json::Value;

use crate::admission::{Request, View};
use crate::kinds::Resource;
use crate::validate::selects;

fn list<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a str> {
    let all = value.get(name).and_then(Value::as_array).into_iter().flatten();
    all.filter_map(Value::as_str)
}

/// Whether a webhook matches a request with this object.
pub(super) fn concerns(
    webhook: &Value,
    request: &Request<'_>,
    object: Option<&Value>,
    view: &(impl View + ?Sized),
) -> bool {
    let rules = webhook.get("rules").and_then(Value::as_array).into_iter().flatten();
    let mut rules = rules.filter(|rule| rule_means(rule, request));
    rules.next().is_some()
        && namespace_is_selected(webhook, request, object, view)
        && object_is_selected(webhook, request, object)
}

fn rule_means(rule: &Value, request: &Request<'_>) -> bool {
    let means = |name: &str, wanted: &str| list(rule, name).any(|one| one == "*" || one == wanted);
    let resource = &request.kind.resource;
    let scope = match rule.get("scope").and_then(Value::as_str).unwrap_or("*") {
        "Namespaced" => !request.namespace.is_empty(),
        "Cluster" => request.namespace.is_empty() || request.kind.is("", "namespaces"),
        _ => true,
    };
    scope
        && means("operations", request.operation.as_str())
        && means("apiGroups", &resource.group)
        && means("apiVersions", &request.kind.version)
        && list(rule, "resources").any(|one| {
            let (plural, subresource) = one.split_once('/').unwrap_or((one, ""));
            (plural == "*" || plural == &*resource.plural)
                && (subresource == request.subresource || subresource == "*")
        })
}

fn namespace_is_selected(
    webhook: &Value,
    request: &Request<'_>,
    object: Option<&Value>,
    view: &(impl View + ?Sized),
) -> bool {
    let selector = webhook.get("namespaceSelector");
    if request.kind.is("", "namespaces") {
        let namespace = object.or(request.old);
        return selects(selector, namespace.and_then(|one| one.pointer("/metadata/labels")));
    }
    if request.namespace.is_empty() {
        return true;
    }
    let namespace = view.get(&Resource::new("", "namespaces"), "", request.namespace);
    selects(selector, namespace.as_ref().and_then(|one| one.pointer("/metadata/labels")))
}

fn object_is_selected(webhook: &Value, request: &Request<'_>, object: Option<&Value>) -> bool {
    let selector = webhook.get("objectSelector");
    let labels = |object: Option<&Value>| {
        selects(selector, object.and_then(|one| one.pointer("/metadata/labels")))
    };
    labels(object) || request.old.is_some() && labels(request.old)
}
