//! Manifests of the installation, as `berth manifests` prints them.
//!
//! They are Rust values rather than templates, because they have to agree with the code: rights and admission
//! policies use the names and constants of the code that needs them, and tests compare both. The Helm chart is
//! generated from them by `cargo xtask chart`.

mod access;
mod agent;
mod mps;
mod options;
mod policies;
mod policy;
mod service;
#[cfg(test)]
mod tests;
mod webhook;

pub use agent::{NAME as AGENT_NAME, namespace as agent_namespace};
pub use options::{AgentOptions, FailurePolicy, InstallOptions, WebhookMode, release_image};

use serde_json::{Value, json};

/// The name of the Deployment, its service account, roles, Service, Lease and webhook configurations.
pub const NAME: &str = "berth";
/// The Secret with Berth's own certificates.
pub const CERTIFICATES_SECRET: &str = "berth-certificates";
/// The Secret with cert-manager's certificate.
pub const CERT_MANAGER_SECRET: &str = "berth-tls";
/// The port of the webhook and of the API, with TLS.
pub const TLS_PORT: u16 = 9443;
/// The port of health and metrics.
pub const PROBE_PORT: u16 = 9440;
/// Where `webhook.yaml` is mounted.
pub const SETTINGS_DIRECTORY: &str = "/etc/berth";
/// Where cert-manager's certificate is mounted.
pub const TLS_DIRECTORY: &str = "/etc/berth-tls";

/// The scheduler's account and roles, a part of [`manifests`].
pub fn access(options: &InstallOptions) -> Vec<Value> {
    access::objects(options)
}

/// The admission policies for the scheduler's account, a part of [`manifests`].
pub fn policies(options: &InstallOptions) -> Vec<Value> {
    policies::objects(options)
}

pub fn agent_access(options: &InstallOptions, agent: &AgentOptions) -> Vec<Value> {
    agent::access(options, agent)
}

pub fn agent_policies(options: &InstallOptions, agent: &AgentOptions) -> Vec<Value> {
    agent::policies(options, agent)
}

/// The Secret for certificates. It has no data, so applying it again changes nothing.
pub fn certificates_secret(options: &InstallOptions) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": meta_in(options, CERTIFICATES_SECRET),
    })
}

/// All objects, in an order in which they can be applied.
pub fn manifests(options: &InstallOptions) -> Vec<Value> {
    let mut all = vec![namespace(options)];
    all.extend(berth_api::crd::definitions());
    if options.topology_definition {
        all.push(berth_api::topology::definition());
    }
    all.extend(access(options));
    all.extend(policies(options));
    if options.priority_classes {
        all.extend(priority_classes());
    }
    all.push(settings(options));
    if options.makes_certificates() {
        all.push(certificates_secret(options));
    }
    all.extend(service::objects(options));
    if options.cert_manager {
        all.extend(webhook::certificates(options));
    }
    if options.webhook != WebhookMode::Off {
        all.extend(webhook::configurations(options));
    }
    if options.service_monitor {
        all.push(service::monitor(options));
    }
    if let Some(chosen) = &options.agent {
        all.extend(agent::objects(options, chosen));
    }
    all
}

/// DNS names of the webhook's certificate.
pub fn service_names(namespace: &str) -> Vec<String> {
    let name = format!("{NAME}.{namespace}.svc");
    vec![name.clone(), format!("{name}.cluster.local"), format!("{NAME}.{namespace}")]
}

fn labels() -> Value {
    json!({
        "app.kubernetes.io/name": NAME,
        "app.kubernetes.io/part-of": NAME,
        "app.kubernetes.io/version": env!("CARGO_PKG_VERSION"),
    })
}

/// Selector of the pods. It must never change.
fn selector() -> Value {
    json!({ "app.kubernetes.io/name": NAME, "app.kubernetes.io/component": "scheduler" })
}

fn meta(name: &str) -> Value {
    json!({ "name": name, "labels": labels() })
}

fn meta_in(options: &InstallOptions, name: &str) -> Value {
    json!({ "name": name, "namespace": options.namespace, "labels": labels() })
}

fn namespace(options: &InstallOptions) -> Value {
    let mut metadata = meta(&options.namespace);
    metadata["labels"]["pod-security.kubernetes.io/enforce"] = json!("restricted");
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata })
}

fn settings(options: &InstallOptions) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta_in(options, NAME),
        "data": { "webhook.yaml": options.webhook_settings },
    })
}

/// Priorities by which `berth-model` recognizes the classes of work.
fn priority_classes() -> Vec<Value> {
    let class = |name: &str, value: i32, preempts: bool, description: &str| {
        json!({
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
            "metadata": meta(&format!("berth-{name}")), "value": value,
            "preemptionPolicy": if preempts { "PreemptLowerPriority" } else { "Never" },
            "description": description,
        })
    };
    vec![
        class("interactive", 1_000_000, true, "Serving with people waiting for answers."),
        class("embedding", 100_000, true, "Serving that other services wait for."),
        class("batch", 1_000, false, "Training, evaluation and offline inference."),
        class("experimentation", -1_000, false, "Experiments and notebooks."),
    ]
}
