//! What is installed hangs together.

use std::collections::BTreeSet;

use serde_json::Value;

use super::*;

fn find<'a>(all: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found = all.iter().find(|one| one["kind"] == kind && one["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}

fn everything() -> InstallOptions {
    InstallOptions {
        namespace: "gpu".to_owned(),
        image: "registry/berth:1".to_owned(),
        replicas: 3,
        webhook: WebhookMode::Enforce,
        fail: FailurePolicy::Closed,
        exempt_namespaces: BTreeSet::from(["sandbox".to_owned()]),
        webhook_settings: "{}".to_owned(),
        cert_manager: true,
        service_monitor: true,
        priority_classes: true,
        agent: Some(AgentOptions {
            runtime_class: Some("nvidia".to_owned()),
            memory: true,
            ..AgentOptions::default()
        }),
        topology_definition: true,
    }
}

#[test]
fn names_and_namespaces_agree_everywhere() {
    let all = manifests(&everything());
    let text = serde_json::to_string(&all).unwrap();
    assert!(!text.contains("berth-system"), "the namespace is an option");
    let deployment = find(&all, "Deployment", NAME);
    let pod = &deployment["spec"]["template"];
    let selects = |selector: &Value| {
        let labels = pod["metadata"]["labels"].as_object().unwrap();
        selector.as_object().unwrap().iter().all(|(key, value)| labels.get(key) == Some(value))
    };
    assert!(selects(&deployment["spec"]["selector"]["matchLabels"]));
    assert!(selects(&find(&all, "Service", NAME)["spec"]["selector"]));
    assert!(selects(&find(&all, "PodDisruptionBudget", NAME)["spec"]["selector"]["matchLabels"]));
    let container = &pod["spec"]["containers"][0];
    let ports: BTreeSet<&str> = container["ports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    for name in [NAME, "berth-metrics"] {
        let port = &find(&all, "Service", name)["spec"]["ports"][0]["targetPort"];
        assert!(ports.contains(port.as_str().unwrap()), "{name}: {port}");
    }
    assert_eq!(deployment["spec"]["replicas"], 3);
    assert_eq!(container["image"], "registry/berth:1");
    let certificate = find(&all, "Certificate", NAME);
    assert_eq!(certificate["spec"]["dnsNames"][0], "berth.gpu.svc");
    let identities: BTreeSet<String> = all
        .iter()
        .map(|one| format!("{} {} {}", one["apiVersion"], one["kind"], one["metadata"]["name"]))
        .collect();
    assert_eq!(identities.len(), all.len(), "no object twice");
}

#[test]
fn options_take_effect_and_only_then() {
    let few = manifests(&InstallOptions { webhook: WebhookMode::Off, ..InstallOptions::default() });
    let kinds: BTreeSet<&str> = few.iter().map(|one| one["kind"].as_str().unwrap()).collect();
    for absent in [
        "ValidatingWebhookConfiguration",
        "MutatingWebhookConfiguration",
        "ServiceMonitor",
        "Certificate",
        "PriorityClass",
    ] {
        assert!(!kinds.contains(absent), "{absent}");
    }
    let all = manifests(&everything());
    let webhook = &find(&all, "ValidatingWebhookConfiguration", NAME)["webhooks"][0];
    assert_eq!(webhook["failurePolicy"], "Fail");
    let spared = webhook["namespaceSelector"]["matchExpressions"][0]["values"].to_string();
    for namespace in ["kube-system", "gpu", "sandbox"] {
        assert!(spared.contains(namespace), "{namespace}");
    }
    let arguments = |all: &[Value]| {
        find(all, "Deployment", NAME)["spec"]["template"]["spec"]["containers"][0]["args"]
            .to_string()
    };
    assert!(arguments(&all).contains("--webhook=enforce") && arguments(&few).contains("=off"));
    let settings = find(&all, "ConfigMap", NAME)["data"]["webhook.yaml"].as_str().unwrap();
    assert!(serde_json::from_str::<crate::webhook::Settings>(settings).is_ok());
}

#[test]
fn no_role_says_all() {
    for object in manifests(&everything()) {
        let Some(rules) = object["rules"].as_array() else { continue };
        for rule in rules {
            assert!(!rule.to_string().contains("\"*\""), "{rule}");
        }
        let can = |resource: &str, verb: &str| {
            rules.iter().any(|rule| {
                let has = |field: &str, text: &str| {
                    rule[field].as_array().unwrap().iter().any(|one| one == text)
                };
                has("resources", resource) && has("verbs", verb) && rule["resourceNames"].is_null()
            })
        };
        assert!(!can("secrets", "get") && !can("secrets", "list") && !can("leases", "update"));
        assert!(!can("pods", "create") && !can("pods", "update") && !can("nodes", "update"));
        let is_agent = object["metadata"]["name"] == AGENT_NAME;
        assert_eq!(can("nodes", "patch"), is_agent, "labels are the agent's");
        assert!(!(is_agent && can("pods/binding", "create")));
    }
}

#[test]
fn pods_satisfy_the_restricted_standard() {
    let all = manifests(&InstallOptions::default());
    let pod = &find(&all, "Deployment", NAME)["spec"]["template"]["spec"];
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    let container = &pod["containers"][0]["securityContext"];
    assert_eq!(container["allowPrivilegeEscalation"], false);
    assert_eq!(container["readOnlyRootFilesystem"], true);
    assert_eq!(container["capabilities"]["drop"][0], "ALL");
}

#[test]
fn the_agent_sees_the_node_and_changes_nothing_on_it() {
    let all = manifests(&everything());
    let set = find(&all, "DaemonSet", AGENT_NAME);
    let namespace = agent_namespace(&everything());
    assert_eq!(
        (set["metadata"]["namespace"].as_str(), namespace.as_str()),
        (Some("gpu-agent"), "gpu-agent")
    );
    let pod = &set["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    for mount in container["volumeMounts"].as_array().unwrap() {
        assert_eq!(mount["readOnly"], true, "{mount}");
        assert!(mount["mountPath"].as_str().unwrap().starts_with("/host/"), "{mount}");
    }
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        assert!(pod[field].is_null(), "{field}");
    }
    let rights = &container["securityContext"];
    assert_eq!(rights["capabilities"]["drop"][0], "ALL");
    assert_eq!(rights["capabilities"]["add"], serde_json::json!(["SYS_PTRACE"]));
    assert_eq!(rights["readOnlyRootFilesystem"], true);
    assert!(rights["privileged"].is_null());
    assert_eq!(pod["runtimeClassName"], "nvidia");
    let bare = InstallOptions { agent: Some(AgentOptions::default()), ..InstallOptions::default() };
    let all = manifests(&bare);
    let pod = &find(&all, "DaemonSet", AGENT_NAME)["spec"]["template"]["spec"];
    assert!(pod["runtimeClassName"].is_null());
    assert!(pod["containers"][0]["securityContext"]["capabilities"]["add"].is_null());
    // Where the scheduler runs, no pod may mount anything of a node.
    let level = |name: &str| {
        let labels = &find(&all, "Namespace", name)["metadata"]["labels"];
        labels["pod-security.kubernetes.io/enforce"].as_str().map(str::to_owned)
    };
    assert_eq!(level("berth-system").as_deref(), Some("restricted"));
    assert_eq!(level("berth-system-agent").as_deref(), Some("privileged"));
    let none = manifests(&InstallOptions::default());
    assert!(!serde_json::to_string(&none).unwrap().contains(AGENT_NAME));
}

#[test]
fn what_hands_out_divides_and_shares_gpus_has_what_it_needs_and_no_more() {
    let agent = AgentOptions {
        runtime_class: Some("nvidia".to_owned()),
        memory: false,
        offers: Some("kind: DeviceOffers".to_owned()),
        shares: true,
        mig: true,
    };
    let with = |agent: AgentOptions| {
        manifests(&InstallOptions { agent: Some(agent), ..InstallOptions::default() })
    };
    let all = with(agent.clone());
    let offers = &find(&all, "ConfigMap", AGENT_NAME)["data"]["offers.yaml"];
    assert_eq!(offers, "kind: DeviceOffers");
    let spec = |name: &str| find(&all, "DaemonSet", name)["spec"]["template"]["spec"].clone();
    let written = |pod: &Value| -> Vec<String> {
        let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap().clone();
        let volumes = pod["volumes"].as_array().unwrap();
        let host = |mount: &Value| {
            let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).unwrap();
            volume["hostPath"]["path"].as_str().map(str::to_owned)
        };
        mounts.iter().filter(|mount| mount["readOnly"] == false).filter_map(host).collect()
    };
    let rights = |pod: &Value| pod["containers"][0]["securityContext"]["capabilities"].clone();
    let pod = spec(AGENT_NAME);
    let directories =
        ["/var/lib/kubelet/device-plugins", "/var/run/cdi", "/var/lib/berth", "/var/lib/berth"];
    assert_eq!(written(&pod), directories);
    assert_eq!(pod["containers"][0]["securityContext"]["privileged"], true);
    assert_eq!(pod["hostPID"], true);

    let daemons = spec("berth-mps");
    assert_eq!(written(&daemons), ["/run/berth/mps"]);
    assert_eq!(rights(&daemons)["add"], serde_json::json!(["SYS_ADMIN"]));
    assert_eq!(daemons["automountServiceAccountToken"], false);
    assert_eq!(daemons["runtimeClassName"], "nvidia");
    let set = find(&all, "DaemonSet", "berth-mps");
    assert_eq!(set["spec"]["updateStrategy"]["type"], "OnDelete");
    assert_ne!(
        set["spec"]["selector"],
        find(&all, "DaemonSet", AGENT_NAME)["spec"]["selector"],
        "the two sets must not adopt each other's pods"
    );

    // Shares of nothing need no daemons.
    let none = with(AgentOptions { offers: None, mig: false, ..agent });
    assert!(!serde_json::to_string(&none).unwrap().contains("berth-mps"));
    let pod = &find(&none, "DaemonSet", AGENT_NAME)["spec"]["template"]["spec"];
    assert_eq!(written(pod), Vec::<String>::new());
    let security = &pod["containers"][0]["securityContext"];
    assert!(security["privileged"].is_null() && security["allowPrivilegeEscalation"] == false);
    assert!(pod["hostPID"].is_null());
}
