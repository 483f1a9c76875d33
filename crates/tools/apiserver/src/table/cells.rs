//! Columns and cells of Kubernetes' own kinds.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{NONE, UNKNOWN, age, count, list, pod, text, text_or};
use crate::clock;

/// The cells of one object, in the order of the columns.
pub(super) type Cells = fn(&Value, Timestamp) -> Vec<Value>;

/// The columns of a kind and the cells under them.
pub(super) struct Layout {
    /// Names, separated by `|`. `+` marks those of `-o wide`; `#` integers, `?` booleans, `@` dates.
    columns: &'static str,
    pub(super) cells: Cells,
}

impl Layout {
    /// Name, type and priority of each column.
    pub(super) fn columns(&self) -> impl Iterator<Item = (&'static str, &'static str, i64)> {
        self.columns.split('|').map(|column| {
            let (column, priority) = match column.strip_prefix('+') {
                Some(wide) => (wide, 1),
                None => (column, 0),
            };
            let types = [('#', "integer"), ('?', "boolean"), ('@', "date")];
            let marked =
                types.iter().find_map(|(mark, kind)| Some((column.strip_prefix(*mark)?, *kind)));
            let (name, kind) = marked.unwrap_or((column, "string"));
            (name, kind, priority)
        })
    }
}

const PODS: &str = "Name|Ready|Status|Restarts|Age|+IP|+Node|+Nominated Node|+Readiness Gates";
const NODES: &str = "Name|Status|Roles|Age|Version|+Internal-IP|+External-IP|+OS-Image|+Kernel-Version|+Container-Runtime";
const EVENTS: &str =
    "Last Seen|Type|Reason|Object|+Subobject|+Source|Message|+First Seen|+Count|+Name";
const REPLICA_SETS: &str = "Name|#Desired|#Current|#Ready|Age|+Containers|+Images|+Selector";
const DAEMON_SETS: &str = "Name|#Desired|#Current|#Ready|#Up-to-date|#Available|Node Selector|Age|+Containers|+Images|+Selector";

pub(super) fn of(group: &str, plural: &str) -> Layout {
    let (columns, cells): (&'static str, Cells) = match (group, plural) {
        ("", "pods") => (PODS, pod::cells),
        ("", "nodes") => (NODES, node),
        ("", "namespaces") => ("Name|Status|Age", phase),
        ("", "events") | ("events.k8s.io", "events") => (EVENTS, event),
        ("", "configmaps") => ("Name|Data|Age", config_map),
        ("", "secrets") => ("Name|Type|Data|Age", secret),
        ("", "services") => ("Name|Type|Cluster-IP|External-IP|Port(s)|Age|+Selector", service),
        ("", "endpoints") => ("Name|Endpoints|Age", endpoints),
        ("", "resourcequotas") => ("Name|Request|Limit|Age", quota),
        ("", "replicationcontrollers") | ("apps", "replicasets") => (REPLICA_SETS, replica_set),
        ("", "persistentvolumes") => {
            ("Name|Capacity|Access Modes|Reclaim Policy|Status|Claim|StorageClass|Age", volume)
        }
        ("", "persistentvolumeclaims") => {
            ("Name|Status|Volume|Capacity|Access Modes|StorageClass|Age", claim)
        }
        ("apps", "deployments") => {
            ("Name|Ready|Up-to-date|Available|Age|+Containers|+Images|+Selector", deployment)
        }
        ("apps", "statefulsets") => ("Name|Ready|Age|+Containers|+Images", stateful_set),
        ("apps", "daemonsets") => (DAEMON_SETS, daemon_set),
        ("autoscaling", "horizontalpodautoscalers") => {
            ("Name|Reference|Targets|MinPods|MaxPods|#Replicas|Age", autoscaler)
        }
        ("batch", "jobs") => {
            ("Name|Status|Completions|Duration|Age|+Containers|+Images|+Selector", job)
        }
        ("batch", "cronjobs") => {
            ("Name|Schedule|Timezone|?Suspend|#Active|Last Schedule|Age", cron_job)
        }
        ("discovery.k8s.io", "endpointslices") => {
            ("Name|AddressType|Ports|Endpoints|Age", endpoint_slice)
        }
        ("policy", "poddisruptionbudgets") => {
            ("Name|Min Available|Max Unavailable|#Allowed Disruptions|Age", budget)
        }
        ("scheduling.k8s.io", "priorityclasses") => {
            ("Name|#Value|?Global-Default|Age|PreemptionPolicy", priority_class)
        }
        ("coordination.k8s.io", "leases") => ("Name|Holder|Age", lease),
        ("resource.k8s.io", "resourceclaims") => ("Name|State|Age", resource_claim),
        ("resource.k8s.io", "resourceslices") => ("Name|Node|Driver|Pool|Age", resource_slice),
        ("storage.k8s.io", "storageclasses") => (
            "Name|Provisioner|ReclaimPolicy|VolumeBindingMode|AllowVolumeExpansion|Age",
            storage_class,
        ),
        ("rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings") => {
            ("Name|Role|Age", role_binding)
        }
        ("rbac.authorization.k8s.io", "roles" | "clusterroles")
        | ("apiextensions.k8s.io", "customresourcedefinitions") => ("Name|@Created At", created_at),
        ("admissionregistration.k8s.io", _) => ("Name|#Webhooks|Age", webhooks),
        _ => ("Name|Age", plain),
    };
    Layout { columns, cells }
}

fn name(object: &Value) -> Value {
    json!(text(object, "/metadata/name"))
}

fn plain(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), age::of(object, now)]
}

fn phase(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(text(object, "/status/phase")), age::of(object, now)]
}

fn created_at(object: &Value, _: Timestamp) -> Vec<Value> {
    vec![name(object), object["metadata"]["creationTimestamp"].clone()]
}

const ROLE_PREFIX: &str = "node-role.kubernetes.io/";

fn node(node: &Value, now: Timestamp) -> Vec<Value> {
    let ready = list(node, "/status/conditions").iter().find(|c| c["type"] == "Ready");
    let mut status = match ready {
        Some(condition) if condition["status"] == "True" => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if node["spec"]["unschedulable"] == true {
        status.push_str(",SchedulingDisabled");
    }
    let mut roles: Vec<&str> = Vec::new();
    for (key, value) in node["metadata"]["labels"].as_object().into_iter().flatten() {
        match key.strip_prefix(ROLE_PREFIX) {
            Some(role) if !role.is_empty() => roles.push(role),
            _ if key == "kubernetes.io/role" => roles.extend(value.as_str()),
            _ => {}
        }
    }
    roles.sort_unstable();
    roles.dedup();
    let roles = if roles.is_empty() { NONE.to_owned() } else { roles.join(",") };
    let address = |kind: &str| {
        let found = list(node, "/status/addresses").iter().find(|a| a["type"] == kind);
        found.and_then(|address| address["address"].as_str()).unwrap_or(NONE)
    };
    let info = &node["status"]["nodeInfo"];
    let kernel = text_or(info, "/kernelVersion", UNKNOWN);
    let kernel = match text(info, "/architecture") {
        "" => kernel.to_owned(),
        architecture => format!("{kernel} ({architecture})"),
    };
    vec![
        name(node),
        json!(status),
        json!(roles),
        age::of(node, now),
        json!(text(info, "/kubeletVersion")),
        json!(address("InternalIP")),
        json!(address("ExternalIP")),
        json!(text_or(info, "/osImage", UNKNOWN)),
        json!(kernel),
        json!(text_or(info, "/containerRuntimeVersion", UNKNOWN)),
    ]
}

fn event(event: &Value, now: Timestamp) -> Vec<Value> {
    let event_time = || age::since(&event["eventTime"], now);
    let since = |field: &str| match &event[field] {
        Value::String(_) => Some(age::since(&event[field], now)),
        _ => None,
    };
    let first = since("firstTimestamp").unwrap_or_else(event_time);
    let mut last = since("lastTimestamp").unwrap_or_else(|| first.clone());
    let mut times = count(event, "/count").max(1);
    if event["series"].is_object() {
        last = age::since(&event["series"]["lastObservedTime"], now);
        times = count(event, "/series/count");
    }
    let kind = text(event, "/involvedObject/kind").to_lowercase();
    let target = match text(event, "/involvedObject/name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let component =
        text_or(event, "/source/component", text(event, "/reportingComponent")).to_owned();
    let instance = text_or(event, "/source/host", text(event, "/reportingInstance"));
    let source = if instance.is_empty() { component } else { format!("{component}, {instance}") };
    vec![
        json!(last),
        json!(text(event, "/type")),
        json!(text(event, "/reason")),
        json!(target),
        json!(text(event, "/involvedObject/fieldPath")),
        json!(source),
        json!(text(event, "/message").trim()),
        json!(first),
        json!(times),
        name(event),
    ]
}

fn entries(object: &Value, field: &str) -> usize {
    object[field].as_object().map_or(0, serde_json::Map::len)
}

fn config_map(map: &Value, now: Timestamp) -> Vec<Value> {
    let entries = entries(map, "data") + entries(map, "binaryData");
    vec![name(map), json!(entries), age::of(map, now)]
}

fn secret(secret: &Value, now: Timestamp) -> Vec<Value> {
    let kind = text(secret, "/type");
    vec![name(secret), json!(kind), json!(entries(secret, "data")), age::of(secret, now)]
}

fn service(service: &Value, now: Timestamp) -> Vec<Value> {
    let kind = text(service, "/spec/type");
    let ports: Vec<String> = list(service, "/spec/ports")
        .iter()
        .map(|port| {
            let protocol = text_or(port, "/protocol", "TCP");
            match count(port, "/nodePort") {
                0 => format!("{}/{protocol}", count(port, "/port")),
                node => format!("{}:{node}/{protocol}", count(port, "/port")),
            }
        })
        .collect();
    let ports = if ports.is_empty() { NONE.to_owned() } else { ports.join(",") };
    let external = match kind {
        "ExternalName" => text(service, "/spec/externalName").to_owned(),
        "LoadBalancer" => {
            let ips: Vec<&str> = list(service, "/status/loadBalancer/ingress")
                .iter()
                .map(|entry| text_or(entry, "/ip", text(entry, "/hostname")))
                .collect();
            if ips.is_empty() { "<pending>".to_owned() } else { ips.join(",") }
        }
        _ => {
            let ips: Vec<&str> =
                list(service, "/spec/externalIPs").iter().filter_map(Value::as_str).collect();
            if ips.is_empty() { NONE.to_owned() } else { ips.join(",") }
        }
    };
    vec![
        name(service),
        json!(kind),
        json!(text_or(service, "/spec/clusterIP", NONE)),
        json!(external),
        json!(ports),
        age::of(service, now),
        json!(labels(&service["spec"]["selector"])),
    ]
}

/// A map as `a=1,b=2`.
fn labels(map: &Value) -> String {
    let pairs: Vec<String> = map
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    if pairs.is_empty() { NONE.to_owned() } else { pairs.join(",") }
}

fn quota(quota: &Value, now: Timestamp) -> Vec<Value> {
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    for (resource, hard) in quota["status"]["hard"].as_object().into_iter().flatten() {
        let used = quota["status"]["used"][resource].as_str().unwrap_or("0");
        let entry = format!("{resource}: {used}/{}", hard.as_str().unwrap_or_default());
        let column = if resource.starts_with("limits.") { &mut limits } else { &mut requests };
        column.push(entry);
    }
    vec![name(quota), json!(requests.join(", ")), json!(limits.join(", ")), age::of(quota, now)]
}

fn storage(object: &Value, pointer: &str) -> String {
    text(object, pointer).to_owned()
}

fn access_modes(object: &Value, pointer: &str) -> String {
    let short = |mode: &Value| match mode.as_str() {
        Some("ReadWriteOnce") => "RWO",
        Some("ReadOnlyMany") => "ROX",
        Some("ReadWriteMany") => "RWX",
        Some("ReadWriteOncePod") => "RWOP",
        _ => "",
    };
    list(object, pointer).iter().map(short).collect::<Vec<_>>().join(",")
}

fn status_of_volume(object: &Value) -> &str {
    if object["metadata"]["deletionTimestamp"].is_string() {
        "Terminating"
    } else {
        text(object, "/status/phase")
    }
}

/// At most three entries, and how many more there are.
fn some_of(entries: &[String]) -> String {
    match entries {
        [] => NONE.to_owned(),
        [one, two, three, more @ ..] if !more.is_empty() => {
            format!("{one},{two},{three} + {} more...", more.len())
        }
        all => all.join(","),
    }
}

fn endpoints(endpoints: &Value, now: Timestamp) -> Vec<Value> {
    let mut all = Vec::new();
    for subset in list(endpoints, "/subsets") {
        for port in list(subset, "/ports") {
            let addresses = list(subset, "/addresses").iter();
            all.extend(addresses.map(|one| format!("{}:{}", text(one, "/ip"), port["port"])));
        }
    }
    vec![name(endpoints), json!(some_of(&all)), age::of(endpoints, now)]
}

fn endpoint_slice(slice: &Value, now: Timestamp) -> Vec<Value> {
    let ports = list(slice, "/ports").iter().map(|port| port["port"].to_string());
    let ports: Vec<String> = ports.collect();
    let ports = if ports.is_empty() { "<unset>".to_owned() } else { some_of(&ports) };
    let addresses = list(slice, "/endpoints").iter().flat_map(|one| list(one, "/addresses"));
    let addresses = addresses.filter_map(Value::as_str).map(str::to_owned);
    let addresses: Vec<String> = addresses.collect();
    let addresses = if addresses.is_empty() { "<unset>".to_owned() } else { some_of(&addresses) };
    let kind = json!(text(slice, "/addressType"));
    vec![name(slice), kind, json!(ports), json!(addresses), age::of(slice, now)]
}

/// Targets are never measured: there is no load.
fn autoscaler(autoscaler: &Value, now: Timestamp) -> Vec<Value> {
    let targets = list(autoscaler, "/spec/metrics").iter().map(|metric| {
        let target = match count(metric, "/resource/target/averageUtilization") {
            0 => text_or(metric, "/resource/target/averageValue", "<auto>").to_owned(),
            percent => format!("{percent}%"),
        };
        format!("{}: {UNKNOWN}/{target}", text_or(metric, "/resource/name", UNKNOWN))
    });
    let targets: Vec<String> = targets.collect();
    let reference = format!(
        "{}/{}",
        text(autoscaler, "/spec/scaleTargetRef/kind"),
        text(autoscaler, "/spec/scaleTargetRef/name")
    );
    vec![
        name(autoscaler),
        json!(reference),
        json!(if targets.is_empty() { NONE.to_owned() } else { some_of(&targets) }),
        json!(count(autoscaler, "/spec/minReplicas").max(1).to_string()),
        json!(count(autoscaler, "/spec/maxReplicas").to_string()),
        json!(count(autoscaler, "/status/currentReplicas")),
        age::of(autoscaler, now),
    ]
}

fn volume(volume: &Value, now: Timestamp) -> Vec<Value> {
    let claim = match text(volume, "/spec/claimRef/name") {
        "" => String::new(),
        claim => format!("{}/{claim}", text(volume, "/spec/claimRef/namespace")),
    };
    vec![
        name(volume),
        json!(storage(volume, "/spec/capacity/storage")),
        json!(access_modes(volume, "/spec/accessModes")),
        json!(text(volume, "/spec/persistentVolumeReclaimPolicy")),
        json!(status_of_volume(volume)),
        json!(claim),
        json!(text(volume, "/spec/storageClassName")),
        age::of(volume, now),
    ]
}

fn claim(claim: &Value, now: Timestamp) -> Vec<Value> {
    let bound = !text(claim, "/spec/volumeName").is_empty();
    let capacity = if bound { storage(claim, "/status/capacity/storage") } else { String::new() };
    let modes = if bound { access_modes(claim, "/status/accessModes") } else { String::new() };
    vec![
        name(claim),
        json!(status_of_volume(claim)),
        json!(text(claim, "/spec/volumeName")),
        json!(capacity),
        json!(modes),
        json!(text(claim, "/spec/storageClassName")),
        age::of(claim, now),
    ]
}

/// Names and images of the containers of a template.
fn containers(object: &Value, pointer: &str) -> [Value; 2] {
    let join = |field: &str| {
        let texts: Vec<&str> =
            list(object, pointer).iter().map(|c| c[field].as_str().unwrap_or_default()).collect();
        json!(texts.join(","))
    };
    [join("name"), join("image")]
}

const TEMPLATE: &str = "/spec/template/spec/containers";

fn selector(selector: &Value) -> Value {
    if !selector["matchLabels"].is_object() && !selector["matchExpressions"].is_array() {
        return json!(labels(selector));
    }
    let mut parts: Vec<String> = Vec::new();
    for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
        parts.push(format!("{key}={}", value.as_str().unwrap_or_default()));
    }
    for expression in list(selector, "/matchExpressions") {
        let key = text(expression, "/key");
        let values: Vec<&str> =
            list(expression, "/values").iter().filter_map(Value::as_str).collect();
        parts.push(match text(expression, "/operator") {
            "In" => format!("{key} in ({})", values.join(",")),
            "NotIn" => format!("{key} notin ({})", values.join(",")),
            "Exists" => key.to_owned(),
            _ => format!("!{key}"),
        });
    }
    json!(if parts.is_empty() { NONE.to_owned() } else { parts.join(",") })
}

fn deployment(object: &Value, now: Timestamp) -> Vec<Value> {
    let ready =
        format!("{}/{}", count(object, "/status/readyReplicas"), count(object, "/spec/replicas"));
    let [names, images] = containers(object, TEMPLATE);
    vec![
        name(object),
        json!(ready),
        json!(count(object, "/status/updatedReplicas")),
        json!(count(object, "/status/availableReplicas")),
        age::of(object, now),
        names,
        images,
        selector(&object["spec"]["selector"]),
    ]
}

fn replica_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(object, TEMPLATE);
    vec![
        name(object),
        json!(count(object, "/spec/replicas")),
        json!(count(object, "/status/replicas")),
        json!(count(object, "/status/readyReplicas")),
        age::of(object, now),
        names,
        images,
        selector(&object["spec"]["selector"]),
    ]
}

fn stateful_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let ready =
        format!("{}/{}", count(object, "/status/readyReplicas"), count(object, "/spec/replicas"));
    let [names, images] = containers(object, TEMPLATE);
    vec![name(object), json!(ready), age::of(object, now), names, images]
}

fn daemon_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(object, TEMPLATE);
    vec![
        name(object),
        json!(count(object, "/status/desiredNumberScheduled")),
        json!(count(object, "/status/currentNumberScheduled")),
        json!(count(object, "/status/numberReady")),
        json!(count(object, "/status/updatedNumberScheduled")),
        json!(count(object, "/status/numberAvailable")),
        json!(labels(&object["spec"]["template"]["spec"]["nodeSelector"])),
        age::of(object, now),
        names,
        images,
        selector(&object["spec"]["selector"]),
    ]
}

fn job(job: &Value, now: Timestamp) -> Vec<Value> {
    let succeeded = count(job, "/status/succeeded");
    let parallelism = count(job, "/spec/parallelism");
    let completions = match job["spec"]["completions"].as_i64() {
        Some(completions) => format!("{succeeded}/{completions}"),
        None if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
        None => format!("{succeeded}/1"),
    };
    let started = clock::parse(&job["status"]["startTime"]);
    let ended = clock::parse(&job["status"]["completionTime"]).unwrap_or(now);
    let duration = started.map_or_else(String::new, |started| age::between(started, ended));
    let [names, images] = containers(job, TEMPLATE);
    vec![
        name(job),
        json!(status_of_job(job)),
        json!(completions),
        json!(duration),
        age::of(job, now),
        names,
        images,
        selector(&job["spec"]["selector"]),
    ]
}

fn status_of_job(job: &Value) -> &'static str {
    let has = |kind: &str| {
        list(job, "/status/conditions").iter().any(|c| c["type"] == kind && c["status"] == "True")
    };
    if has("Complete") {
        "Complete"
    } else if has("Failed") {
        "Failed"
    } else if job["metadata"]["deletionTimestamp"].is_string() {
        "Terminating"
    } else if has("Suspended") {
        "Suspended"
    } else if has("FailureTarget") {
        "FailureTarget"
    } else if has("SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

fn cron_job(job: &Value, now: Timestamp) -> Vec<Value> {
    let last = match &job["status"]["lastScheduleTime"] {
        Value::String(_) => age::since(&job["status"]["lastScheduleTime"], now),
        _ => NONE.to_owned(),
    };
    vec![
        name(job),
        json!(text(job, "/spec/schedule")),
        json!(text_or(job, "/spec/timeZone", NONE)),
        json!(if job["spec"]["suspend"] == true { "True" } else { "False" }),
        json!(list(job, "/status/active").len()),
        json!(last),
        age::of(job, now),
    ]
}

fn budget(budget: &Value, now: Timestamp) -> Vec<Value> {
    let amount = |field: &str| match &budget["spec"][field] {
        Value::Null => json!("N/A"),
        Value::String(text) => json!(text),
        number => json!(number.to_string()),
    };
    vec![
        name(budget),
        amount("minAvailable"),
        amount("maxUnavailable"),
        json!(count(budget, "/status/disruptionsAllowed")),
        age::of(budget, now),
    ]
}

fn priority_class(class: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(class),
        json!(count(class, "/value")),
        json!(class["globalDefault"] == true),
        age::of(class, now),
        json!(text(class, "/preemptionPolicy")),
    ]
}

fn lease(lease: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(lease), json!(text(lease, "/spec/holderIdentity")), age::of(lease, now)]
}

fn resource_claim(claim: &Value, now: Timestamp) -> Vec<Value> {
    let mut states = Vec::new();
    if claim["metadata"]["deletionTimestamp"].is_string() {
        states.push("deleted");
    }
    if claim["status"]["allocation"].is_object() {
        states.push("allocated");
        if !list(claim, "/status/reservedFor").is_empty() {
            states.push("reserved");
        }
    } else {
        states.push("pending");
    }
    vec![name(claim), json!(states.join(",")), age::of(claim, now)]
}

fn resource_slice(slice: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(slice),
        json!(text(slice, "/spec/nodeName")),
        json!(text(slice, "/spec/driver")),
        json!(text(slice, "/spec/pool/name")),
        age::of(slice, now),
    ]
}

fn storage_class(class: &Value, now: Timestamp) -> Vec<Value> {
    let default = "storageclass.kubernetes.io/is-default-class";
    let mut shown = text(class, "/metadata/name").to_owned();
    if class["metadata"]["annotations"][default] == "true" {
        shown.push_str(" (default)");
    }
    vec![
        json!(shown),
        json!(text(class, "/provisioner")),
        json!(text_or(class, "/reclaimPolicy", "Delete")),
        json!(text_or(class, "/volumeBindingMode", "Immediate")),
        json!(class["allowVolumeExpansion"] == true),
        age::of(class, now),
    ]
}

fn role_binding(binding: &Value, now: Timestamp) -> Vec<Value> {
    let role = format!("{}/{}", text(binding, "/roleRef/kind"), text(binding, "/roleRef/name"));
    vec![name(binding), json!(role), age::of(binding, now)]
}

fn webhooks(configuration: &Value, now: Timestamp) -> Vec<Value> {
    let count = list(configuration, "/webhooks").len();
    vec![name(configuration), json!(count), age::of(configuration, now)]
}
