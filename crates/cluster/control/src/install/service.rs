//! The Deployment, its PodDisruptionBudget, Services, NetworkPolicy and ServiceMonitor.

use serde_json::{Value, json};

use super::{
    CERT_MANAGER_SECRET, InstallOptions, NAME, PROBE_PORT, SETTINGS_DIRECTORY, TLS_DIRECTORY,
    TLS_PORT, labels, meta_in, selector,
};

pub(super) fn objects(options: &InstallOptions) -> Vec<Value> {
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta_in(options, NAME),
        "spec": {
            "maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": { "matchLabels": selector() },
        },
    });
    let service = |name: &str, port: Value| {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": meta_in(options, name),
            "spec": { "selector": selector(), "ports": [port] },
        })
    };
    let tls = json!({ "name": "https", "port": 443, "targetPort": "https" });
    let metrics = json!({ "name": "metrics", "port": PROBE_PORT, "targetPort": "probes" });
    let ports = [TLS_PORT, PROBE_PORT];
    let ingress = network_policy(meta_in(options, NAME), selector(), &ports);
    vec![
        deployment(options),
        budget,
        service(NAME, tls),
        service("berth-metrics", metrics),
        ingress,
    ]
}

/// Allows these ports only. Sources cannot be restricted: the API server and kubelets have addresses of hosts.
pub(super) fn network_policy(metadata: Value, labels: Value, ports: &[u16]) -> Value {
    let ports: Vec<Value> =
        ports.iter().map(|port| json!({ "protocol": "TCP", "port": port })).collect();
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata,
        "spec": {
            "podSelector": { "matchLabels": labels }, "policyTypes": ["Ingress"],
            "ingress": [{ "ports": ports }],
        },
    })
}

fn deployment(options: &InstallOptions) -> Value {
    let mut metadata = json!({ "labels": labels() });
    for (key, value) in selector().as_object().into_iter().flatten() {
        metadata["labels"][key] = value.clone();
    }
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta_in(options, NAME),
        "spec": {
            "replicas": options.replicas,
            "selector": { "matchLabels": selector() },
            // A new replica takes over before an old one goes.
            "strategy": { "type": "RollingUpdate",
                          "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } },
            "template": { "metadata": metadata, "spec": pod(options) },
        },
    })
}

fn pod(options: &InstallOptions) -> Value {
    let mut volumes = vec![json!({ "name": "settings", "configMap": { "name": NAME } })];
    if options.cert_manager {
        volumes.push(json!({ "name": "tls", "secret": { "secretName": CERT_MANAGER_SECRET } }));
    }
    let spread = |key: &str| {
        json!({
            "maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": { "matchLabels": selector() },
        })
    };
    // GPU nodes are for those who use GPUs.
    let elsewhere = json!({ "nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [{
            "weight": 100,
            "preference": { "matchExpressions": [
                { "key": "nvidia.com/gpu.present", "operator": "DoesNotExist" },
            ] },
        }],
    } });
    json!({
        "serviceAccountName": NAME,
        "terminationGracePeriodSeconds": 30,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
            "seccompProfile": { "type": "RuntimeDefault" },
        },
        "affinity": elsewhere,
        "topologySpreadConstraints": [
            spread("kubernetes.io/hostname"), spread("topology.kubernetes.io/zone"),
        ],
        "containers": [container(options)],
        "volumes": volumes,
    })
}

fn container(options: &InstallOptions) -> Value {
    let mut arguments = vec![
        "serve".to_owned(),
        format!("--namespace={}", options.namespace),
        format!("--listen=0.0.0.0:{PROBE_PORT}"),
        format!("--tls-listen=0.0.0.0:{TLS_PORT}"),
        format!("--webhook={}", options.webhook.as_str()),
        format!("--webhook-settings={SETTINGS_DIRECTORY}/webhook.yaml"),
        "--log-format=json".to_owned(),
    ];
    let mut mounts =
        vec![json!({ "name": "settings", "mountPath": SETTINGS_DIRECTORY, "readOnly": true })];
    if options.cert_manager {
        arguments.push(format!("--certificates={TLS_DIRECTORY}"));
        mounts.push(json!({ "name": "tls", "mountPath": TLS_DIRECTORY, "readOnly": true }));
    }
    let probe = |path: &str, period: u32, failures: u32| {
        json!({
            "httpGet": { "path": path, "port": "probes" },
            "periodSeconds": period, "failureThreshold": failures, "timeoutSeconds": 5,
        })
    };
    json!({
        "name": NAME,
        "image": options.image,
        "args": arguments,
        "env": [
            { "name": "POD_NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
        ],
        "ports": [
            { "name": "https", "containerPort": TLS_PORT },
            { "name": "probes", "containerPort": PROBE_PORT },
        ],
        // Whoever asks the webhook hears only after a while that we are about to go.
        "lifecycle": { "preStop": { "sleep": { "seconds": 5 } } },
        "startupProbe": probe("/livez", 2, 30),
        "livenessProbe": probe("/livez", 10, 3),
        "readinessProbe": probe("/readyz", 5, 2),
        "resources": {
            "requests": { "cpu": "250m", "memory": "256Mi" }, "limits": { "memory": "2Gi" },
        },
        "securityContext": {
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"] },
        },
        "volumeMounts": mounts,
    })
}

pub(super) fn monitor(options: &InstallOptions) -> Value {
    json!({
        "apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor",
        "metadata": meta_in(options, NAME),
        "spec": {
            "selector": { "matchLabels": { "app.kubernetes.io/name": NAME } },
            "endpoints": [{ "port": "metrics", "path": "/metrics", "interval": "30s" }],
        },
    })
}
