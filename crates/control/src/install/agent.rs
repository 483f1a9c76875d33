//! The node agent: what runs on every node, what it sees there, and what it may do.
//!
//! Owns the DaemonSet and everything around it. It reads files of the node and so may mount them, which pods
//! beside the scheduler may not: it has a namespace of its own. Whatever it asks of the API server is listed
//! here, and nothing else. Must not know what it does with what it sees.

use serde_json::{Value, json};

use super::access::{RBAC, role, rule};
use super::{AgentOptions, InstallOptions, NAME as PRODUCT, labels, meta};

/// The name of all that is the agent's.
pub const NAME: &str = "berth-agent";

/// The port of health and metrics.
const PORT: u16 = 9441;
/// Where the node's files are mounted.
const ROOT: &str = "/host";

/// What is mounted, and why: hardware, processes and cgroups; the kubelet's configuration and state. State
/// files are replaced, not written, so their directory is mounted.
const MOUNTS: [(&str, &str); 3] =
    [("sys", "/sys"), ("proc", "/proc"), ("kubelet", "/var/lib/kubelet")];

/// The namespace that it runs in.
pub fn namespace(options: &InstallOptions) -> String {
    format!("{}-agent", options.namespace)
}

fn meta_here(options: &InstallOptions) -> Value {
    let mut meta = meta(NAME);
    meta["namespace"] = json!(namespace(options));
    meta
}

fn selector() -> Value {
    json!({ "app.kubernetes.io/name": PRODUCT, "app.kubernetes.io/component": "agent" })
}

pub(super) fn objects(options: &InstallOptions, chosen: &AgentOptions) -> Vec<Value> {
    let mut home = meta(&namespace(options));
    home["labels"]["pod-security.kubernetes.io/enforce"] = json!("privileged");
    let mut all = vec![json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": home })];
    all.extend(access(options));
    all.extend(confinement(options));
    all.push(set(options, chosen));
    let mut metadata = meta_here(options);
    metadata["labels"]["app.kubernetes.io/component"] = json!("agent");
    all.push(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata,
        "spec": {
            "clusterIP": "None", "selector": selector(),
            "ports": [{ "name": "metrics", "port": PORT, "targetPort": "probes" }],
        },
    }));
    if options.service_monitor {
        all.push(json!({
            "apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor",
            "metadata": meta_here(options),
            "spec": {
                "selector": { "matchLabels": selector() },
                "endpoints": [{ "port": "metrics", "path": "/metrics", "interval": "30s" }],
            },
        }));
    }
    all
}

/// Its account and its role.
pub(super) fn access(options: &InstallOptions) -> Vec<Value> {
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta_here(options),
    });
    let rules = json!([
        // Labels and annotations of its Node.
        rule("", &["nodes"], &["get", "patch"]),
        // What its Node looks like inside.
        rule(
            "topology.node.k8s.io",
            &["noderesourcetopologies"],
            &["list", "watch", "create", "patch"],
        ),
        // The pods of its Node, and how they lie.
        rule("", &["pods"], &["list", "watch", "patch"]),
        rule("events.k8s.io", &["events"], &["create"]),
    ]);
    let binding = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRoleBinding", "metadata": meta(NAME),
        "roleRef": { "apiGroup": RBAC, "kind": "ClusterRole", "name": NAME },
        "subjects": [
            { "kind": "ServiceAccount", "name": NAME, "namespace": namespace(options) },
        ],
    });
    vec![account, role("ClusterRole", meta(NAME), &rules), binding]
}

/// Roles cannot say "its own node", but tokens say on which node their pod is: whoever takes an agent's token
/// gets at that node's labels and pods, and no others.
fn confinement(options: &InstallOptions) -> Vec<Value> {
    const NODE: &str = "authentication.kubernetes.io/node-name";
    let user = format!("system:serviceaccount:{}:{NAME}", namespace(options));
    let rule = |group: &str, version: &str, operations: &[&str], resources: &[&str]| {
        json!({
            "apiGroups": [group], "apiVersions": [version], "operations": operations,
            "resources": resources,
        })
    };
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": meta(NAME),
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [
                rule("", "v1", &["UPDATE"], &["nodes", "pods"]),
                rule(
                    "topology.node.k8s.io",
                    "v1alpha2",
                    &["CREATE", "UPDATE"],
                    &["noderesourcetopologies"],
                ),
            ] },
            "matchConditions": [{
                "name": "agent", "expression": format!("request.userInfo.username == \"{user}\""),
            }],
            "variables": [{
                "name": "node",
                "expression": format!(
                    "\"{NODE}\" in request.userInfo.extra ? request.userInfo.extra[\"{NODE}\"][0] : \"\""
                ),
            }],
            "validations": [
                {
                    "expression": "request.resource.resource == \"pods\" ? object.spec.nodeName == \
                                   variables.node : object.metadata.name == variables.node",
                    "message": "an agent writes of its own node only",
                },
                {
                    "expression": "request.resource.resource != \"nodes\" || \
                                   object.spec == oldObject.spec",
                    "message": "an agent changes labels and annotations of its Node only",
                },
            ],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": meta(NAME),
        "spec": { "policyName": NAME, "validationActions": ["Deny"] },
    });
    vec![policy, binding]
}

fn set(options: &InstallOptions, chosen: &AgentOptions) -> Value {
    let mut metadata = json!({ "labels": labels() });
    for (key, value) in selector().as_object().into_iter().flatten() {
        metadata["labels"][key] = value.clone();
    }
    let volumes: Vec<Value> = MOUNTS
        .iter()
        .map(|(name, path)| json!({ "name": name, "hostPath": { "path": path, "type": "Directory" } }))
        .collect();
    let mut pod = json!({
        "serviceAccountName": NAME,
        "terminationGracePeriodSeconds": 5,
        "nodeSelector": { "kubernetes.io/os": "linux" },
        "tolerations": [{ "operator": "Exists" }],
        // The kubelet's files are root's alone. No capability comes with that.
        "securityContext": {
            "runAsUser": 0, "runAsGroup": 0, "seccompProfile": { "type": "RuntimeDefault" },
        },
        "containers": [container(options, chosen)],
        "volumes": volumes,
    });
    if let Some(class) = &chosen.runtime_class {
        pod["runtimeClassName"] = json!(class);
    }
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta_here(options),
        "spec": {
            "selector": { "matchLabels": selector() },
            "updateStrategy": {
                "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": "10%" },
            },
            "template": { "metadata": metadata, "spec": pod },
        },
    })
}

fn container(options: &InstallOptions, chosen: &AgentOptions) -> Value {
    let mount = |(name, path): &(&str, &str)| json!({ "name": name, "mountPath": format!("{ROOT}{path}"), "readOnly": true });
    let mounts: Vec<Value> = MOUNTS.iter().map(mount).collect();
    let probe = |path: &str, period: u32| {
        json!({
            "httpGet": { "path": path, "port": "probes" },
            "periodSeconds": period, "failureThreshold": 3, "timeoutSeconds": 5,
        })
    };
    let mut capabilities = json!({ "drop": ["ALL"] });
    if chosen.memory {
        capabilities["add"] = json!(["SYS_PTRACE"]);
    }
    json!({
        "name": "agent",
        "image": options.image,
        "args": [
            "agent", format!("--root={ROOT}"), "--nvml", format!("--listen=0.0.0.0:{PORT}"),
            "--log-format=json",
        ],
        "env": [
            { "name": "NODE_NAME", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } },
            // NVIDIA's runtime gives whoever says so the driver's library and device files, and no CUDA.
            { "name": "NVIDIA_VISIBLE_DEVICES", "value": "all" },
            { "name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility" },
        ],
        "ports": [{ "name": "probes", "containerPort": PORT }],
        "livenessProbe": probe("/healthz", 20),
        "readinessProbe": probe("/readyz", 10),
        "resources": {
            "requests": { "cpu": "10m", "memory": "32Mi" }, "limits": { "memory": "128Mi" },
        },
        "securityContext": {
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
            "capabilities": capabilities,
        },
        "volumeMounts": mounts,
    })
}
