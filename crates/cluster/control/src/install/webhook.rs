//! The webhook's configurations, and cert-manager's objects for its certificate.

use berth_api::keys::{WEBHOOK, WEBHOOK_DISABLED};
use serde_json::{Value, json};

use super::{CERT_MANAGER_SECRET, InstallOptions, NAME, meta, meta_in, service_names};

/// How long a request waits for a webhook that does not answer.
const TIMEOUT_SECONDS: u32 = 5;
/// The cluster's own namespaces, whose pods must start whatever happens to the webhook.
const SYSTEM: [&str; 3] = ["kube-node-lease", "kube-public", "kube-system"];

pub(super) fn configurations(options: &InstallOptions) -> Vec<Value> {
    let rule = |group: &str, version: &str, operations: &[&str], resources: &[&str]| {
        json!({
            "apiGroups": [group], "apiVersions": [version], "operations": operations,
            "resources": resources, "scope": "Namespaced",
        })
    };
    let both = &["CREATE", "UPDATE"];
    // Objects that controllers create, such as ReplicaSets, are checked as pods.
    let rules = json!([
        rule("", "v1", &["CREATE"], &["pods"]),
        rule("", "v1", both, &["replicationcontrollers"]),
        rule("apps", "v1", both, &["daemonsets", "deployments", "statefulsets"]),
        rule("batch", "v1", both, &["cronjobs", "jobs"]),
        rule("jobset.x-k8s.io", "v1alpha2", both, &["jobsets"]),
        rule("leaderworkerset.x-k8s.io", "v1", both, &["leaderworkersets"]),
    ]);
    let validating = webhook(options, "contract.berth.dev", "/validate", rules);
    let pods = json!([rule("", "v1", &["CREATE"], &["pods"])]);
    let mut mutating = webhook(options, "pods.berth.dev", "/mutate", pods);
    mutating["reinvocationPolicy"] = json!("IfNeeded");
    let configuration = |kind: &str, webhook: Value| {
        let mut metadata = meta(NAME);
        if options.cert_manager {
            let certificate = format!("{}/{NAME}", options.namespace);
            metadata["annotations"] = json!({ "cert-manager.io/inject-ca-from": certificate });
        }
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": metadata,
            "webhooks": [webhook],
        })
    };
    vec![
        configuration("ValidatingWebhookConfiguration", validating),
        configuration("MutatingWebhookConfiguration", mutating),
    ]
}

fn webhook(options: &InstallOptions, name: &str, path: &str, rules: Value) -> Value {
    let mut spared: Vec<&str> = SYSTEM.to_vec();
    spared.push(&options.namespace);
    spared.extend(options.exempt_namespaces.iter().map(String::as_str));
    json!({
        "name": name,
        "admissionReviewVersions": ["v1"],
        "clientConfig": { "service": {
            "name": NAME, "namespace": options.namespace, "path": path, "port": 443,
        } },
        "failurePolicy": options.fail.as_str(),
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
        "timeoutSeconds": TIMEOUT_SECONDS,
        "namespaceSelector": { "matchExpressions": [
            { "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": spared },
            { "key": WEBHOOK, "operator": "NotIn", "values": [WEBHOOK_DISABLED] },
        ] },
        "rules": rules,
    })
}

/// A self-signed issuer, and the certificate that the Deployment mounts.
pub(super) fn certificates(options: &InstallOptions) -> Vec<Value> {
    let object = |kind: &str, spec: Value| {
        json!({
            "apiVersion": "cert-manager.io/v1", "kind": kind, "metadata": meta_in(options, NAME),
            "spec": spec,
        })
    };
    vec![
        object("Issuer", json!({ "selfSigned": {} })),
        object(
            "Certificate",
            json!({
                "secretName": CERT_MANAGER_SECRET,
                "dnsNames": service_names(&options.namespace),
                "issuerRef": { "kind": "Issuer", "name": NAME },
                "privateKey": { "algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always" },
            }),
        ),
    ]
}
