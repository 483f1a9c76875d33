//! The node agent: its DaemonSet, service account, rights and admission policies.
//!
//! It mounts files of the node, which pods in the scheduler's namespace must not, so it has a namespace of its own. Each
//! right is restricted to what the code writes.

use berth_api::keys::{ALIGNMENT, MIG_STATE, MIG_STATE_LABEL};
use serde_json::{Value, json};

use super::access::{RBAC, role, rule};
use super::policies::event_policy;
use super::policy::{Policy, keys, same, user_of};
use super::service::network_policy;
use super::{AgentOptions, InstallOptions, NAME as PRODUCT, labels, meta};

/// The name of the agent's objects.
pub const NAME: &str = "berth-agent";

/// The port of health and metrics.
const PORT: u16 = 9441;
/// Where the node's files are mounted.
pub(super) const ROOT: &str = "/host";

/// What is mounted, and why: hardware, processes and cgroups.
pub(super) const HARDWARE: [(&str, &str); 2] = [("sys", "/sys"), ("proc", "/proc")];
/// The kubelet's configuration and state. State files are replaced, not written, so their directory is mounted.
const KUBELET: (&str, &str) = ("kubelet", "/var/lib/kubelet");

/// Directory and file name of the device offers.
const OFFERS: (&str, &str) = ("/etc/berth", "offers.yaml");

/// Directories of the node that the device plugin needs, mounted at the same path, and whether it writes to them:
/// the kubelet's sockets, CDI specifications, locks of MPS daemons, and the journal.
const TO_HAND_OUT: [(&str, &str, bool); 5] = [
    ("device-plugins", "/var/lib/kubelet/device-plugins", true),
    ("pod-resources", "/var/lib/kubelet/pod-resources", false),
    ("cdi", "/var/run/cdi", true),
    ("mps", MPS_DIRECTORY, false),
    ("device-journal", JOURNALS, true),
];
pub(super) const MPS_DIRECTORY: &str = "/run/berth/mps";
const JOURNALS: &str = "/var/lib/berth";

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
    all.extend(access(options, chosen));
    all.extend(policies(options, chosen));
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
    // All pods here, since none but the agents listen.
    all.push(network_policy(meta_here(options), json!({}), &[PORT]));
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

pub(super) fn access(options: &InstallOptions, chosen: &AgentOptions) -> Vec<Value> {
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta_here(options),
    });
    let mut rules = vec![
        rule("", &["nodes"], &["get", "patch"]),
        rule(
            "topology.node.k8s.io",
            &["noderesourcetopologies"],
            &["list", "watch", "create", "patch"],
        ),
        rule("", &["pods"], &["list", "watch", "patch"]),
        rule("events.k8s.io", &["events"], &["create"]),
    ];
    if chosen.mig {
        // The wanted layout is on the Node.
        rules.push(rule("", &["nodes"], &["list", "watch"]));
    }
    let binding = json!({
        "apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRoleBinding", "metadata": meta(NAME),
        "roleRef": { "apiGroup": RBAC, "kind": "ClusterRole", "name": NAME },
        "subjects": [
            { "kind": "ServiceAccount", "name": NAME, "namespace": namespace(options) },
        ],
    });
    vec![account, role("ClusterRole", meta(NAME), &Value::Array(rules)), binding]
}

/// Labels that an agent writes on its Node, as a regular expression: topology, GPUs and MIG profiles.
const NODE_LABELS: &str = "^(berth[.]dev/(numa-nodes|sockets|threads-per-core|mig-[0-9][0-9a-z.-]*)|\
                           nvidia[.]com/(gpu[.](count|memory|product|replicas)|mig[.]capable|\
                           mig-[0-9][0-9a-z.-]*[.](count|replicas)))$";

/// Labels that an agent with MIG writes on its Node.
const MIG_LABELS: [&str; 3] =
    [MIG_STATE_LABEL, "nvidia.com/mig.config", "nvidia.com/mig.config.state"];

/// Annotations that an agent writes on its Node: the kubelet's configuration.
const NODE_ANNOTATIONS: [&str; 6] = [
    "berth.dev/cpu-manager-policy",
    "berth.dev/cpu-manager-policy-options",
    "berth.dev/memory-manager-policy",
    "berth.dev/reserved-memory",
    "berth.dev/reserved-system-cpus",
    "berth.dev/topology-manager-policy-options",
];

/// Restrict what the agent may change of the objects that its role lets it write. A role cannot say "its own node", but
/// a token names the node of its pod: a token stolen from a node reaches only that node's objects.
pub(super) fn policies(options: &InstallOptions, chosen: &AgentOptions) -> Vec<Value> {
    let all = [nodes(chosen), pods(), topologies(), events()];
    let user = user_of(&namespace(options), NAME);
    all.into_iter().flat_map(|policy| policy.objects(&user)).collect()
}

/// Denies requests for other nodes than that of the token.
fn of_node(policy: Policy, expression: &str) -> Policy {
    const NODE: &str = "authentication.kubernetes.io/node-name";
    let node = format!(
        "\"{NODE}\" in request.userInfo.extra ? request.userInfo.extra[\"{NODE}\"][0] : \"\""
    );
    policy.variable("node", node).check(
        format!("variables.node != \"\" && {expression} == variables.node"),
        "an agent may only write objects of its own node, with a token that is bound to its pod",
    )
}

fn nodes(chosen: &AgentOptions) -> Policy {
    let mut labels = format!("k.matches(\"{NODE_LABELS}\")");
    let mut annotations = NODE_ANNOTATIONS.to_vec();
    if chosen.mig {
        labels = format!("({labels} || {})", keys(&MIG_LABELS));
        annotations.push(MIG_STATE);
    }
    let policy = Policy::new("berth-agent-nodes", "", &["nodes"], &["UPDATE"]);
    of_node(policy, "object.metadata.name")
        .keep_metadata(
            &["annotations", "labels"],
            "an agent may only change labels and annotations of its Node's metadata",
        )
        .maps("labels", "metadata.?labels")
        .maps("annotations", "metadata.?annotations")
        .check("object.spec == oldObject.spec", "an agent may not change the spec of its Node")
        .check(
            same("variables.labels", "variables.oldLabels", &labels),
            "an agent may only change the labels of its Node that berth-agent publishes",
        )
        .check(
            same("variables.annotations", "variables.oldAnnotations", &keys(&annotations)),
            "an agent may only change the annotations of its Node that berth-agent publishes",
        )
}

fn pods() -> Policy {
    let policy = Policy::new("berth-agent-pods", "", &["pods"], &["UPDATE"]);
    of_node(policy, "object.spec.?nodeName.orValue(\"\")")
        .keep_metadata(&["annotations"], "an agent may only change annotations of a pod's metadata")
        .maps("annotations", "metadata.?annotations")
        .check("object.spec == oldObject.spec", "an agent may not change the spec of a pod")
        .check(
            same("variables.annotations", "variables.oldAnnotations", &keys(&[ALIGNMENT])),
            "an agent may only write the annotation berth.dev/alignment of a pod",
        )
}

fn topologies() -> Policy {
    let policy = Policy::new(
        "berth-agent-topologies",
        "topology.node.k8s.io",
        &["noderesourcetopologies"],
        &["CREATE", "UPDATE"],
    );
    of_node(policy, "object.metadata.name").check(
        "size(object.metadata.?finalizers.orValue([])) == 0 && \
         object.metadata.?ownerReferences.orValue([]).all(o, o.kind == \"Node\" && \
         o.name == object.metadata.name)",
        "an agent may only write a NodeResourceTopology with no finalizers and no owner other than its Node",
    )
}

fn events() -> Policy {
    of_node(event_policy("berth-agent-events"), "object.?reportingInstance.orValue(\"\")").check(
        format!("object.?reportingController.orValue(\"\") == \"{NAME}\""),
        "an agent may only write events with reportingController berth-agent",
    )
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

/// Runs as root, because only root can read the kubelet's files and change GPU settings, but without capabilities.
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

/// A directory of the node. Those of the system and the kubelet must exist; those of Berth and CDI are created.
pub(super) fn host(name: &str, path: &str) -> Value {
    let is_there = HARDWARE.iter().chain([&KUBELET]).any(|(_, known)| path.starts_with(known));
    let kind = if is_there { "Directory" } else { "DirectoryOrCreate" };
    json!({ "name": name, "hostPath": { "path": path, "type": kind } })
}

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
