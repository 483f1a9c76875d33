//! A ValidatingAdmissionPolicy that restricts which fields of an object one account may change.
//!
//! It applies to requests of one user and denies them if it cannot be evaluated; exceptions apply to all users. It
//! compares everything except the fields it names, so a field that a later Kubernetes adds is denied.

use serde_json::{Value, json};

use super::meta;

/// Metadata that the API server writes with every request.
const SERVER_METADATA: [&str; 5] = [
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
];

/// A policy under construction.
pub(super) struct Policy {
    name: String,
    rules: Vec<Value>,
    variables: Vec<Value>,
    validations: Vec<Value>,
}

impl Policy {
    /// A policy about these resources, in any version of their group.
    pub(super) fn new(name: &str, group: &str, resources: &[&str], operations: &[&str]) -> Self {
        let rule = json!({
            "apiGroups": [group], "apiVersions": ["*"], "operations": operations,
            "resources": resources,
        });
        let (name, rules) = (name.to_owned(), vec![rule]);
        Self { name, rules, variables: Vec::new(), validations: Vec::new() }
    }

    /// A name for an expression.
    pub(super) fn variable(mut self, name: &str, expression: impl Into<String>) -> Self {
        self.variables.push(json!({ "name": name, "expression": expression.into() }));
        self
    }

    /// Names `NAME` and `oldNAME` for a map in the new and in the old object. The path starts with `?` where a map
    /// can be absent: `metadata.?labels`.
    pub(super) fn maps(self, name: &str, path: &str) -> Self {
        let default = if path.contains('?') { ".orValue({})" } else { "" };
        let of = |object: &str| format!("dyn({object}.{path}{default})");
        let mut old = name.to_owned();
        if let Some(first) = old.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        self.variable(name, of("object")).variable(&format!("old{old}"), of("oldObject"))
    }

    /// Denies requests for which this expression is false.
    pub(super) fn check(mut self, expression: impl Into<String>, message: &str) -> Self {
        self.validations.push(json!({ "expression": expression.into(), "message": message }));
        self
    }

    /// Denies changes of metadata other than of these fields.
    pub(super) fn keep_metadata(self, except: &[&str], message: &str) -> Self {
        let free = [&SERVER_METADATA, except].concat();
        let expression = same("variables.meta", "variables.oldMeta", &keys(&free));
        self.maps("meta", "metadata").check(expression, message)
    }

    /// The policy and its binding, for requests of this user.
    pub(super) fn objects(self, user: &str) -> [Value; 2] {
        let account = format!("request.userInfo.username == \"{user}\"");
        self.matching("Fail", "account", &account)
    }

    /// The policy and its binding, for requests of every user for which this expression holds. A request for which the
    /// policy cannot be evaluated is allowed: it may be anybody's, such as a kubelet's.
    pub(super) fn objects_for_all(self, condition: &str, expression: &str) -> [Value; 2] {
        self.matching("Ignore", condition, expression)
    }

    fn matching(self, failure: &str, condition: &str, expression: &str) -> [Value; 2] {
        const GROUP: &str = "admissionregistration.k8s.io/v1";
        let mut policy = json!({
            "apiVersion": GROUP, "kind": "ValidatingAdmissionPolicy",
            "metadata": meta(&self.name),
            "spec": {
                "failurePolicy": failure,
                "matchConstraints": { "resourceRules": self.rules },
                "matchConditions": [{ "name": condition, "expression": expression }],
                "validations": self.validations,
            },
        });
        if !self.variables.is_empty() {
            policy["spec"]["variables"] = json!(self.variables);
        }
        let binding = json!({
            "apiVersion": GROUP, "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": meta(&self.name),
            "spec": { "policyName": self.name, "validationActions": ["Deny"] },
        });
        [policy, binding]
    }
}

/// Whether two maps are equal, except for keys `k` for which `free` holds.
pub(super) fn same(new: &str, old: &str, free: &str) -> String {
    format!(
        "{new}.all(k, {free} || k in {old} && {new}[k] == {old}[k]) && \
         {old}.all(k, {free} || k in {new})"
    )
}

/// Whether the key `k` is one of these.
pub(super) fn keys(keys: &[&str]) -> String {
    format!("k in {}", json!(keys))
}

/// The user name of a service account.
pub(super) fn user_of(namespace: &str, account: &str) -> String {
    format!("system:serviceaccount:{namespace}:{account}")
}
