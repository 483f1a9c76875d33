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
        cert_manager: false,
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
    let with_cert_manager = manifests(&InstallOptions { cert_manager: true, ..everything() });
    let certificate = find(&with_cert_manager, "Certificate", NAME);
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
        "Issuer",
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
        assert!(!can("secrets", "create") && can("pods", "patch") == is_agent);
        assert_eq!(can("nodes", "patch"), is_agent, "labels are the agent's");
        assert!(!(is_agent && can("pods/binding", "create")));
    }
}

/// Group, resource and verb of every rule, of all roles or those of a name.
fn rights(all: &[Value]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let rules = all.iter().filter_map(|one| one["rules"].as_array()).flatten();
    for rule in rules {
        let words = |field: &str| rule[field].as_array().unwrap().clone();
        for resource in words("resources") {
            for verb in words("verbs") {
                found.insert(format!("{} {}", verb.as_str().unwrap(), resource.as_str().unwrap()));
            }
        }
    }
    found
}

#[test]
fn rights_are_printed_for_features_that_are_on() {
    let with = |change: fn(&mut InstallOptions)| {
        let mut options = InstallOptions::default();
        change(&mut options);
        manifests(&options)
    };
    let all = rights(&with(|_| {}));
    let missing = |fewer: &[Value]| -> Vec<String> {
        let fewer = rights(fewer);
        assert!(fewer.is_subset(&all));
        all.difference(&fewer).cloned().collect()
    };
    let configurations = [
        "get mutatingwebhookconfigurations",
        "get validatingwebhookconfigurations",
        "patch mutatingwebhookconfigurations",
        "patch validatingwebhookconfigurations",
    ];
    let off = with(|options| options.webhook = WebhookMode::Off);
    let kinds = ["list limitranges", "list nodepools", "watch limitranges", "watch nodepools"];
    let expected: BTreeSet<&str> = configurations.iter().chain(&kinds).copied().collect();
    assert_eq!(missing(&off), expected.into_iter().collect::<Vec<_>>());
    assert!(off.iter().all(|one| one["metadata"]["name"] != "berth-authorities"));

    let external = with(|options| options.cert_manager = true);
    let expected: BTreeSet<&str> =
        configurations.iter().chain(&["get secrets", "update secrets"]).copied().collect();
    assert_eq!(missing(&external), expected.into_iter().collect::<Vec<_>>());
    for name in ["berth-authorities", CERTIFICATES_SECRET] {
        assert!(external.iter().all(|one| one["metadata"]["name"] != name), "{name}");
    }
}

/// Everything that a role lets an account write has a policy, unless its role or the API bounds the fields.
#[test]
fn every_write_has_a_policy() {
    const BOUNDED: [&str; 5] = [
        // Reviews change nothing.
        "subjectaccessreviews",
        "tokenreviews",
        // A status of a custom resource is written alone.
        "headrooms/status",
        "teams/status",
        // The API server asks for it beside the status; it is no object.
        "resourceclaims/binding",
    ];
    let all = manifests(&everything());
    for (role, user) in [
        (NAME, "system:serviceaccount:gpu:berth"),
        (AGENT_NAME, "system:serviceaccount:gpu-agent:berth-agent"),
    ] {
        let guarded: BTreeSet<(String, String)> = all
            .iter()
            .filter(|one| one["kind"] == "ValidatingAdmissionPolicy")
            .filter(|one| {
                let account = &one["spec"]["matchConditions"][0]["expression"];
                account == &format!("request.userInfo.username == \"{user}\"")
            })
            .flat_map(|policy| {
                let name = policy["metadata"]["name"].as_str().unwrap();
                let binding = find(&all, "ValidatingAdmissionPolicyBinding", name);
                assert_eq!(binding["spec"]["policyName"], name);
                assert_eq!(binding["spec"]["validationActions"][0], "Deny");
                assert_eq!(policy["spec"]["failurePolicy"], "Fail");
                let rule = &policy["spec"]["matchConstraints"]["resourceRules"][0];
                let words = |field: &str| rule[field].as_array().unwrap().clone();
                let mut pairs = Vec::new();
                for resource in words("resources") {
                    for operation in words("operations") {
                        let text = |value: &Value| value.as_str().unwrap().to_owned();
                        pairs.push((text(&resource), text(&operation)));
                    }
                }
                pairs
            })
            .collect();
        let roles = all.iter().filter(|one| one["metadata"]["name"] == role);
        for right in rights(&roles.cloned().collect::<Vec<_>>()) {
            let (verb, resource) = right.split_once(' ').unwrap();
            let operation = match verb {
                "create" => "CREATE",
                "update" | "patch" => "UPDATE",
                "delete" => "DELETE",
                _ => continue,
            };
            let pair = (resource.to_owned(), operation.to_owned());
            assert!(BOUNDED.contains(&resource) || guarded.contains(&pair), "{role} may {right}");
        }
    }
}

#[test]
fn only_ports_that_are_served_can_be_reached() {
    let all = manifests(&everything());
    for (name, ports) in [(NAME, vec![TLS_PORT, PROBE_PORT]), (AGENT_NAME, vec![9441])] {
        let spec = &find(&all, "NetworkPolicy", name)["spec"];
        assert_eq!(spec["policyTypes"], serde_json::json!(["Ingress"]));
        let open = spec["ingress"][0]["ports"].as_array().unwrap().iter();
        let open: Vec<u64> = open.map(|one| one["port"].as_u64().unwrap()).collect();
        assert_eq!(open, ports.into_iter().map(u64::from).collect::<Vec<_>>());
        let template = all.iter().find(|one| {
            ["Deployment", "DaemonSet"].contains(&one["kind"].as_str().unwrap())
                && one["metadata"]["name"] == name
        });
        let served = &template.unwrap()["spec"]["template"]["spec"]["containers"][0]["ports"];
        let served = served.as_array().unwrap().iter();
        let served: BTreeSet<u64> =
            served.map(|one| one["containerPort"].as_u64().unwrap()).collect();
        assert_eq!(served, open.into_iter().collect());
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
