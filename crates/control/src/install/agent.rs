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
pub(super) const ROOT: &str = "/host";

/// What is mounted, and why: hardware, processes and cgroups.
pub(super) const HARDWARE: [(&str, &str); 2] = [("sys", "/sys"), ("proc", "/proc")];
/// The kubelet's configuration and state. State files are replaced, not written, so their directory is mounted.
const KUBELET: (&str, &str) = ("kubelet", "/var/lib/kubelet");

/// Where it reads what to hand out, and the name of that file.
const OFFERS: (&str, &str) = ("/etc/berth", "offers.yaml");

/// What it needs to hand out devices: names, directories of the node that are at the same place in the
/// container, and whether they are written to. The kubelet's sockets, CDI's specifications, the locks of MPS
/// daemons, and the journal.
const TO_HAND_OUT: [(&str, &str, bool); 5] = [
    ("device-plugins", "/var/lib/kubelet/device-plugins", true),
    ("pod-resources", "/var/lib/kubelet/pod-resources", false),
    ("cdi", "/var/run/cdi", true),
    ("mps", MPS_DIRECTORY, false),
    ("device-journal", JOURNALS, true),
];
pub(super) const MPS_DIRECTORY: &str = "/run/berth/mps";
const JOURNALS: &str = "/var/lib/berth";

/// The namespace that it runs in.
pub fn namespace(options: &InstallOptions) -> String {
    format!("{}-agent", options.namespace)
}

pub(super) fn meta_here(options: &InstallOptions) -> Value {
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
    if let Some(offers) = &chosen.offers {
        all.push(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta_here(options),
            "data": { OFFERS.1: offers },
        }));
    }
    all.push(set(options, chosen));
    if chosen.offers.is_some() && chosen.shares {
        all.push(super::mps::set(options, chosen));
    }
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
    let of_node = HARDWARE.iter().chain([&KUBELET]);
    let mut volumes: Vec<Value> = of_node.map(|(name, path)| host(name, path)).collect();
    if chosen.offers.is_some() {
        volumes.push(offers_volume());
        volumes.extend(TO_HAND_OUT.iter().map(|(name, path, _)| host(name, path)));
    }
    if chosen.mig {
        volumes.push(host("mig-journal", JOURNALS));
    }
    let mut pod = pod(chosen, container(options, chosen), volumes);
    pod["serviceAccountName"] = json!(NAME);
    if chosen.offers.is_some() {
        // Which pods have processes is seen in cgroups, where the kernel shows nobody processes that it cannot name.
        pod["hostPID"] = json!(true);
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

/// A pod on every node. The kubelet's files are root's alone, and so are settings of GPUs; no capability comes with
/// that.
pub(super) fn pod(chosen: &AgentOptions, container: Value, volumes: Vec<Value>) -> Value {
    let mut pod = json!({
        "terminationGracePeriodSeconds": 30,
        "nodeSelector": { "kubernetes.io/os": "linux" },
        "tolerations": [{ "operator": "Exists" }],
        "securityContext": {
            "runAsUser": 0, "runAsGroup": 0, "seccompProfile": { "type": "RuntimeDefault" },
        },
        "containers": [container],
        "volumes": volumes,
    });
    if let Some(class) = &chosen.runtime_class {
        pod["runtimeClassName"] = json!(class);
    }
    pod
}

/// A directory of the node. The system's and the kubelet's are there; ours and CDI's are made.
pub(super) fn host(name: &str, path: &str) -> Value {
    let is_there = HARDWARE.iter().chain([&KUBELET]).any(|(_, known)| path.starts_with(known));
    let kind = if is_there { "Directory" } else { "DirectoryOrCreate" };
    json!({ "name": name, "hostPath": { "path": path, "type": kind } })
}

/// Files of the node, below a directory of their own.
pub(super) fn below_root((name, path): &(&str, &str)) -> Value {
    mount(name, &format!("{ROOT}{path}"), true)
}

pub(super) fn mount(name: &str, path: &str, read_only: bool) -> Value {
    json!({ "name": name, "mountPath": path, "readOnly": read_only })
}

pub(super) fn offers_volume() -> Value {
    json!({ "name": "offers", "configMap": { "name": NAME } })
}

pub(super) fn offers_mount() -> Value {
    mount("offers", OFFERS.0, true)
}

pub(super) fn offers_argument() -> String {
    format!("--devices={}/{}", OFFERS.0, OFFERS.1)
}

fn container(options: &InstallOptions, chosen: &AgentOptions) -> Value {
    let mut mounts: Vec<Value> = HARDWARE.iter().chain([&KUBELET]).map(below_root).collect();
    let mut args = vec![
        "agent".to_owned(),
        format!("--root={ROOT}"),
        "--nvml".to_owned(),
        format!("--listen=0.0.0.0:{PORT}"),
        "--log-format=json".to_owned(),
    ];
    let mut env = vec![
        json!({ "name": "NODE_NAME", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } }),
        // NVIDIA's runtime gives whoever says so the driver's library and device files, and no CUDA.
        json!({ "name": "NVIDIA_VISIBLE_DEVICES", "value": "all" }),
        json!({ "name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility" }),
    ];
    if chosen.offers.is_some() {
        args.push(offers_argument());
        mounts.push(offers_mount());
        let these = TO_HAND_OUT.iter().map(|(name, path, written)| mount(name, path, !written));
        mounts.extend(these);
    }
    if chosen.mig {
        args.push("--mig".to_owned());
        mounts.push(mount("mig-journal", &format!("{ROOT}{JOURNALS}"), false));
        for name in ["NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"] {
            env.push(json!({ "name": name, "value": "all" }));
        }
    }
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
    let mut security = json!({
        "allowPrivilegeEscalation": chosen.mig, "readOnlyRootFilesystem": true,
        "capabilities": capabilities,
    });
    if chosen.mig {
        // Each slice that is made comes with device files, which the driver's library makes and opens on its way.
        security["privileged"] = json!(true);
    }
    json!({
        "name": "agent",
        "image": options.image,
        "args": args,
        "env": env,
        "ports": [{ "name": "probes", "containerPort": PORT }],
        "livenessProbe": probe("/healthz", 20),
        "readinessProbe": probe("/readyz", 10),
        "resources": {
            "requests": { "cpu": "10m", "memory": "32Mi" }, "limits": { "memory": "128Mi" },
        },
        "securityContext": security,
        "volumeMounts": mounts,
    })
}
