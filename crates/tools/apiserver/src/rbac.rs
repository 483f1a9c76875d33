//! RBAC. Roles and bindings are read from the store for every decision.

use serde_json::Value;

use crate::identity::{MASTERS, User};
use crate::kinds::Resource;
use crate::select::Labels;
use crate::store::Store;

const GROUP: &str = "rbac.authorization.k8s.io";

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AccessRequest {
    pub(crate) verb: String,
    /// The path, if it is about no object.
    pub(crate) path: String,
    pub(crate) group: String,
    pub(crate) plural: String,
    pub(crate) subresource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct AccessDecision {
    pub(crate) allowed: bool,
    /// Which binding allowed it, or which role could not be found.
    pub(crate) reason: String,
}

impl AccessRequest {
    /// `pods` or `pods/log`.
    pub(crate) fn resource(&self) -> String {
        if self.subresource.is_empty() {
            self.plural.clone()
        } else {
            format!("{}/{}", self.plural, self.subresource)
        }
    }

    /// The message of a refusal.
    pub(crate) fn refusal(&self, user: &User) -> String {
        let name = &user.name;
        let verb = &self.verb;
        if !self.path.is_empty() {
            return format!("User \"{name}\" cannot {verb} path \"{}\"", self.path);
        }
        let place = if self.namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace \"{}\"", self.namespace)
        };
        format!(
            "User \"{name}\" cannot {verb} resource \"{}\" in API group \"{}\" {place}",
            self.resource(),
            self.group
        )
    }

    fn is_covered_by(&self, rule: &Value) -> bool {
        let has = |field: &str, wanted: &str| {
            texts(&rule[field]).any(|entry| entry == "*" || entry == wanted)
        };
        if !has("verbs", &self.verb) {
            return false;
        }
        if !self.path.is_empty() {
            return texts(&rule["nonResourceURLs"])
                .any(|pattern| path_matches(pattern, &self.path));
        }
        let resource = self.resource();
        let any_subresource = format!("*/{}", self.subresource);
        let resource_covered = texts(&rule["resources"]).any(|entry| {
            entry == "*"
                || entry == resource
                || (!self.subresource.is_empty() && entry == any_subresource)
        });
        let names = &rule["resourceNames"];
        let name_covered = names.as_array().is_none_or(Vec::is_empty)
            || texts(names).any(|entry| entry == self.name);
        has("apiGroups", &self.group) && resource_covered && name_covered
    }
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn path_matches(pattern: &str, path: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => pattern == path,
    }
}

pub(crate) fn decide(store: &Store, user: &User, asked: &AccessRequest) -> AccessDecision {
    if user.groups.iter().any(|group| group == MASTERS) {
        return AccessDecision { allowed: true, reason: String::new() };
    }
    let mut missing = Vec::new();
    let bindings =
        [("clusterrolebindings", None), ("rolebindings", Some(asked.namespace.as_str()))];
    for (plural, namespace) in bindings {
        if namespace == Some("") {
            continue;
        }
        for binding in store.list(&Resource::new(GROUP, plural), namespace).items {
            if !binds(&binding.value, binding.namespace(), user) {
                continue;
            }
            match rules_of(store, &binding.value["roleRef"], binding.namespace()) {
                Ok(rules) => {
                    if rules.iter().any(|rule| asked.is_covered_by(rule)) {
                        let kind = binding.value["kind"].as_str().unwrap_or_default();
                        let reason = describe(kind, &binding.value, binding.name(), user);
                        return AccessDecision { allowed: true, reason };
                    }
                }
                Err(name) => missing.push(name),
            }
        }
    }
    let reason = match missing.as_slice() {
        [] => String::new(),
        [one] => format!("RBAC: {one}"),
        many => format!("RBAC: [{}]", many.join(", ")),
    };
    AccessDecision { allowed: false, reason }
}

fn describe(kind: &str, binding: &Value, name: &str, user: &User) -> String {
    let role = &binding["roleRef"];
    format!(
        "RBAC: allowed by {kind} \"{name}\" of {} \"{}\" to User \"{}\"",
        role["kind"].as_str().unwrap_or_default(),
        role["name"].as_str().unwrap_or_default(),
        user.name
    )
}

fn binds(binding: &Value, namespace: &str, user: &User) -> bool {
    binding["subjects"].as_array().into_iter().flatten().any(|subject| {
        let name = subject["name"].as_str().unwrap_or_default();
        match subject["kind"].as_str() {
            Some("User") => user.name == name,
            Some("Group") => user.groups.iter().any(|group| group == name),
            Some("ServiceAccount") => {
                let own = subject["namespace"].as_str().unwrap_or(namespace);
                user.name == format!("system:serviceaccount:{own}:{name}")
            }
            _ => false,
        }
    })
}

/// The rules of a role, or a message if it does not exist.
fn rules_of(store: &Store, role: &Value, namespace: &str) -> Result<Vec<Value>, String> {
    let name = role["name"].as_str().unwrap_or_default();
    let (plural, key, word) = match role["kind"].as_str() {
        Some("Role") => ("roles", format!("{namespace}/{name}"), "role"),
        _ => ("clusterroles", name.to_owned(), "clusterrole"),
    };
    let found = store
        .get(&Resource::new(GROUP, plural), &key)
        .ok_or_else(|| format!("{word}.{GROUP} \"{name}\" not found"))?;
    let mut rules = list(&found.value["rules"]);
    // An aggregated role has the rules of the selected roles. A real cluster's controller copies them; here they
    // are looked up.
    let selectors = list(&found.value["aggregationRule"]["clusterRoleSelectors"]);
    if !selectors.is_empty() {
        for other in store.list(&Resource::new(GROUP, "clusterroles"), None).items {
            let labels = &other.value["metadata"]["labels"];
            if other.name() != name
                && selectors.iter().any(|s| Labels::from_spec(s).matches(labels))
            {
                rules.extend(list(&other.value["rules"]));
            }
        }
    }
    Ok(rules)
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Expected, HistoryLimits, key_of};
    use serde_json::json;

    fn store() -> Store {
        let store = Store::in_memory(HistoryLimits { changes: 10, bytes: 1 << 20 });
        let put = |plural: &str, namespace: &str, name: &str, object: Value| {
            let resource = Resource::new(GROUP, plural);
            store.put(&resource, &key_of(namespace, name), Expected::Absent, object).unwrap();
        };
        put(
            "clusterroles",
            "",
            "reader",
            json!({"kind": "ClusterRole", "rules": [
                {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]},
                {"nonResourceURLs": ["/metrics", "/debug/*"], "verbs": ["get"]},
            ]}),
        );
        put(
            "roles",
            "n",
            "one",
            json!({"kind": "Role", "rules": [
                {"apiGroups": ["apps"], "resources": ["*"], "resourceNames": ["web"], "verbs": ["*"]},
            ]}),
        );
        put(
            "clusterrolebindings",
            "",
            "everywhere",
            json!({
                "kind": "ClusterRoleBinding",
                "roleRef": {"kind": "ClusterRole", "name": "reader"},
                "subjects": [{"kind": "Group", "name": "devs"}],
            }),
        );
        put(
            "rolebindings",
            "n",
            "here",
            json!({
                "kind": "RoleBinding",
                "roleRef": {"kind": "Role", "name": "one"},
                "subjects": [{"kind": "ServiceAccount", "namespace": "n", "name": "bot"}],
            }),
        );
        store
    }

    fn asked(verb: &str, group: &str, plural: &str, namespace: &str, name: &str) -> AccessRequest {
        let (plural, subresource) = plural.split_once('/').unwrap_or((plural, ""));
        let text = str::to_owned;
        AccessRequest {
            verb: text(verb),
            group: text(group),
            plural: text(plural),
            subresource: text(subresource),
            namespace: text(namespace),
            name: text(name),
            ..AccessRequest::default()
        }
    }

    #[test]
    fn only_what_a_role_says_is_allowed() {
        let store = store();
        let dev = User { name: "d".into(), groups: vec!["devs".into()], ..User::default() };
        let bot = User { name: "system:serviceaccount:n:bot".into(), ..User::default() };
        let cases = [
            (&dev, asked("get", "", "pods", "n", "x"), true),
            (&dev, asked("get", "", "pods/log", "n", "x"), true),
            (&dev, asked("get", "", "pods/status", "n", "x"), false),
            (&dev, asked("delete", "", "pods", "n", "x"), false),
            (&dev, asked("get", "", "secrets", "n", "x"), false),
            (&bot, asked("update", "apps", "deployments", "n", "web"), true),
            (&bot, asked("update", "apps", "deployments/scale", "n", "web"), true),
            (&bot, asked("update", "apps", "deployments", "n", "db"), false),
            (&bot, asked("list", "apps", "deployments", "n", ""), false),
            (&bot, asked("update", "apps", "deployments", "m", "web"), false),
        ];
        for (user, asked, allowed) in cases {
            assert_eq!(decide(&store, user, &asked).allowed, allowed, "{} {asked:?}", user.name);
        }
        let path = |path: &str| AccessRequest {
            verb: "get".into(),
            path: path.into(),
            ..AccessRequest::default()
        };
        assert!(decide(&store, &dev, &path("/debug/x")).allowed);
        assert!(!decide(&store, &dev, &path("/metrics/x")).allowed);
    }
}
