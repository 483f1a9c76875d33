//! Validation of Services, ConfigMaps, Secrets, Namespaces, Nodes and volumes.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::report::{Report, has, int, list, map, object, quantity, text};
use super::{meta, pod, text};

/// ConfigMaps and Secrets may hold no more.
const MAX_DATA_BYTES: usize = 1024 * 1024;

pub(super) fn check(plural: &str, object: &Value, spec: &Value, report: &mut Report) {
    match plural {
        "services" => service(spec, report),
        "configmaps" => config_map(object, report),
        "secrets" => secret(object, report),
        "namespaces" => finalizers(spec, report),
        "nodes" => node(object, spec, report),
        "persistentvolumeclaims" => claim("spec", spec, report),
        "persistentvolumes" => volume(spec, report),
        _ => {}
    }
}

fn finalizers(spec: &Value, report: &mut Report) {
    for name in list(spec, "finalizers").iter().filter_map(Value::as_str) {
        report.text("spec.finalizers", name, text::label_key(name));
        if !name.contains('/') && name != "kubernetes" {
            report.invalid("spec.finalizers", &json!(name), meta::NOT_A_FINALIZER);
        }
    }
}

fn service(spec: &Value, report: &mut Report) {
    let kind = text(spec, "type");
    let address = text(spec, "clusterIP");
    let ports = list(spec, "ports");
    if ports.is_empty() && address != "None" && kind != "ExternalName" {
        report.required("spec.ports", "");
    }
    let known = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    if kind == "ExternalName" {
        let name = text(spec, "externalName");
        match name.trim_end_matches('.') {
            "" => report.required("spec.externalName", ""),
            trimmed => report.text("spec.externalName", name, text::subdomain(trimmed)),
        }
    }
    service_ports(ports, report);
    meta::labels("spec.selector", spec, "selector", report);
    report.one_of("spec.sessionAffinity", text(spec, "sessionAffinity"), &["ClientIP", "None"]);
    report.one_of("spec.type", kind, &known);
    match address {
        "" => {}
        "None" if kind == "NodePort" || kind == "LoadBalancer" => {
            let detail = format!("may not be set to 'None' for {kind} services");
            report.invalid("spec.clusterIPs[0]", &json!("None"), &detail);
        }
        "None" => {}
        address => report.text("spec.clusterIPs[0]", address, text::address(address)),
    }
}

fn service_ports(ports: &[Value], report: &mut Report) {
    let mut names = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let at = |name: &str| format!("spec.ports[{i}].{name}");
        let name = text(port, "name");
        if name.is_empty() {
            if ports.len() > 1 {
                report.required(&at("name"), "");
            }
        } else {
            report.text(&at("name"), name, text::label(name));
            if !names.insert(name) {
                report.duplicate(&at("name"), &json!(name));
            }
        }
        report.port(&at("port"), int(port, "port").unwrap_or(0));
        report.one_of(&at("protocol"), text(port, "protocol"), &["SCTP", "TCP", "UDP"]);
        match port.get("targetPort") {
            Some(Value::String(name)) => {
                report.text(&at("targetPort"), name, text::port_name(name))
            }
            Some(target) => report.port(&at("targetPort"), target.as_i64().unwrap_or(0)),
            None => {}
        }
    }
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let (protocol, number) = (text(port, "protocol"), int(port, "port").unwrap_or(0));
        if !seen.insert((protocol, number)) {
            let shown = format!(
                "{{\"Name\":\"\",\"Protocol\":{},\"AppProtocol\":null,\"Port\":{number},\
                 \"TargetPort\":0,\"NodePort\":0}}",
                json!(protocol)
            );
            report.duplicate_as(&format!("spec.ports[{i}]"), shown, "");
        }
    }
}

fn config_map(object: &Value, report: &mut Report) {
    let mut bytes = 0_usize;
    for (key, value) in map(object, "data") {
        let path = format!("data[{key}]");
        report.text(&path, key, text::config_key(key));
        if object.pointer("/binaryData").is_some_and(|binary| binary.get(key).is_some()) {
            report.invalid(&path, &json!(key), "duplicate of key present in binaryData");
        }
        bytes = bytes.saturating_add(value.as_str().map_or(0, str::len));
    }
    for (key, value) in map(object, "binaryData") {
        report.text(&format!("binaryData[{key}]"), key, text::config_key(key));
        bytes = bytes.saturating_add(decoded_len(value));
    }
    if bytes > MAX_DATA_BYTES {
        report.too_long("[]", MAX_DATA_BYTES);
    }
}

fn decoded_len(value: &Value) -> usize {
    value.as_str().map_or(0, |text| text.trim_end_matches('=').len() * 3 / 4)
}

fn secret(object: &Value, report: &mut Report) {
    let mut bytes = 0_usize;
    for (key, value) in map(object, "data") {
        report.text(&format!("data[{key}]"), key, text::config_key(key));
        bytes = bytes.saturating_add(decoded_len(value));
    }
    if bytes > MAX_DATA_BYTES {
        report.too_long("data", MAX_DATA_BYTES);
    }
    let given = |key: &str| object.get("data").is_some_and(|data| data.get(key).is_some());
    let mut require = |keys: &[&str]| {
        for key in keys {
            report.required(&format!("data[{key}]"), "");
        }
    };
    match text(object, "type") {
        "kubernetes.io/tls" => {
            let missing: Vec<&str> =
                ["tls.crt", "tls.key"].into_iter().filter(|key| !given(key)).collect();
            require(&missing);
        }
        "kubernetes.io/dockerconfigjson" if !given(".dockerconfigjson") => {
            require(&[".dockerconfigjson"]);
        }
        "kubernetes.io/dockercfg" if !given(".dockercfg") => require(&[".dockercfg"]),
        "kubernetes.io/ssh-auth" if !given("ssh-privatekey") => require(&["ssh-privatekey"]),
        "kubernetes.io/basic-auth" if !given("username") && !given("password") => {
            require(&["username", "password"]);
        }
        _ => {}
    }
}

fn node(object: &Value, spec: &Value, report: &mut Report) {
    pod::taints("metadata.taints", spec, report);
    let status = object.get("status").unwrap_or(&Value::Null);
    for list in ["capacity", "allocatable"] {
        for (name, amount) in map(status, list) {
            let path = format!("status.{list}.{name}");
            if quantity(amount).is_some_and(|amount| amount.sign() < 0) {
                report.invalid(&path, amount, "must be greater than or equal to 0");
            }
        }
    }
    let first = text(spec, "podCIDR");
    let all = list(spec, "podCIDRs").iter().filter_map(Value::as_str);
    let all: Vec<&str> = if has(spec, "podCIDRs") { all.collect() } else { vec![first] };
    for (i, range) in all.into_iter().enumerate().filter(|(_, range)| !range.is_empty()) {
        let (address, bits) = range.split_once('/').unwrap_or((range, ""));
        let good = address.parse::<std::net::IpAddr>().is_ok_and(|address| {
            bits.parse::<u8>().is_ok_and(|bits| bits <= if address.is_ipv4() { 32 } else { 128 })
        });
        if !good {
            let detail = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
            report.invalid(&format!("spec.podCIDRs[{i}]"), &json!(range), detail);
        }
    }
}

const ACCESS_MODES: [&str; 4] =
    ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

fn access_modes(path: &str, spec: &Value, detail: &str, report: &mut Report) {
    let modes: Vec<&str> = list(spec, "accessModes").iter().filter_map(Value::as_str).collect();
    if modes.is_empty() {
        report.required(path, detail);
    }
    for mode in &modes {
        report.one_of(path, mode, &ACCESS_MODES);
    }
    if modes.len() > 1 && modes.contains(&"ReadWriteOncePod") {
        report.forbidden(path, "may not use ReadWriteOncePod with other access modes");
    }
}

fn claim(path: &str, spec: &Value, report: &mut Report) {
    access_modes(
        &format!("{path}.accessModes"),
        spec,
        "at least 1 access mode is required",
        report,
    );
    if let Some(selector) = spec.get("selector") {
        meta::selector(&format!("{path}.selector"), selector, report);
    }
    let at = format!("{path}.resources[storage]");
    match spec.pointer("/resources/requests/storage") {
        None => report.required(&at, ""),
        Some(amount) => {
            if quantity(amount).is_some_and(|amount| amount.sign() <= 0) {
                report.invalid(&at, amount, "must be greater than zero");
            }
        }
    }
    let class = text(spec, "storageClassName");
    if !class.is_empty() {
        report.text(&format!("{path}.storageClassName"), class, text::subdomain(class));
    }
    let mode = text(spec, "volumeMode");
    if !mode.is_empty() {
        report.one_of(&format!("{path}.volumeMode"), mode, &["Block", "Filesystem"]);
    }
}

/// Kinds of storage behind a volume, in the order in which the real server looks at them.
const VOLUME_SOURCES: [&str; 8] =
    ["hostPath", "nfs", "rbd", "iscsi", "fc", "local", "csi", "cephfs"];

fn volume(spec: &Value, report: &mut Report) {
    access_modes("spec.accessModes", spec, "", report);
    let capacity = object(spec, "capacity");
    if capacity.is_none_or(|capacity| capacity.is_empty()) {
        report.required("spec.capacity", "");
    }
    let only_storage = capacity.is_some_and(|all| all.len() == 1 && all.contains_key("storage"));
    if !only_storage {
        let shown = spec.get("capacity").unwrap_or(&Value::Null).to_string();
        report.unsupported_as("spec.capacity", shown, &["storage"]);
    }
    let given: Vec<&str> = VOLUME_SOURCES.into_iter().filter(|source| has(spec, source)).collect();
    let mut sources = given.iter();
    match sources.next() {
        None => report.required("spec", "must specify a volume type"),
        Some(&"hostPath") => pod::host_path("spec.hostPath", &spec["hostPath"], report),
        Some(_) => {}
    }
    for extra in sources {
        report.forbidden(&format!("spec.{extra}"), "may not specify more than 1 volume type");
    }
    let policy = text(spec, "persistentVolumeReclaimPolicy");
    let known = ["Delete", "Recycle", "Retain"];
    report.one_of("spec.persistentVolumeReclaimPolicy", policy, &known);
    let class = text(spec, "storageClassName");
    if !class.is_empty() {
        report.text("spec.storageClassName", class, text::subdomain(class));
    }
    let mode = text(spec, "volumeMode");
    if !mode.is_empty() {
        report.one_of("spec.volumeMode", mode, &["Block", "Filesystem"]);
    }
}
