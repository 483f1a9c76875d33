//! Validation of volumes of pods. Sources of cloud providers are not checked.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::validate::report::{Report, int, list, quantity, text};
use crate::validate::text;

const HOST_PATH_TYPES: [&str; 8] = [
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
];

/// In the order in which the real server looks at them.
const SOURCES: [&str; 30] = [
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "storageos",
    "projected",
    "scaleIO",
    "csi",
    "ephemeral",
    "image",
];

/// Validates volumes. Returns their names.
pub(super) fn check(path: &str, spec: &Value, report: &mut Report) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (i, volume) in list(spec, "volumes").iter().enumerate() {
        let path = format!("{path}[{i}]");
        check_sources(&path, spec, volume, report);
        let name = text(volume, "name");
        if name.is_empty() {
            report.required(&format!("{path}.name"), "");
            continue;
        }
        let wrong = text::label(name);
        if wrong.is_empty() && !names.insert(name.to_owned()) {
            report.duplicate(&format!("{path}.name"), &json!(name));
        }
        report.text(&format!("{path}.name"), name, wrong);
    }
    names
}

fn check_sources(path: &str, spec: &Value, volume: &Value, report: &mut Report) {
    let mut given = 0;
    for kind in SOURCES {
        let Some(source) = volume.get(kind).filter(|source| source.is_object()) else { continue };
        let path = format!("{path}.{kind}");
        given += 1;
        if given > 1 {
            report.forbidden(&path, "may not specify more than 1 volume type");
        } else {
            check_source(&path, kind, spec, source, report);
        }
    }
}

fn check_source(path: &str, kind: &str, spec: &Value, source: &Value, report: &mut Report) {
    let at = |name: &str| format!("{path}.{name}");
    let required = |name: &str, report: &mut Report| {
        if text(source, name).is_empty() {
            report.required(&at(name), "");
        }
    };
    match kind {
        "emptyDir" => {
            let limit = source.get("sizeLimit").and_then(quantity);
            if limit.is_some_and(|limit| limit.sign() < 0) {
                let detail = "SizeLimit field must be a valid resource quantity";
                report.forbidden(&at("sizeLimit"), detail);
            }
        }
        "hostPath" => host_path(path, source, report),
        "secret" | "configMap" => {
            required(if kind == "secret" { "secretName" } else { "name" }, report);
            mode(&at("defaultMode"), source, "defaultMode", report);
            items(&at("items"), source, report);
        }
        "persistentVolumeClaim" => required("claimName", report),
        "nfs" => {
            required("server", report);
            required("path", report);
            if !text(source, "path").starts_with('/') {
                let value = json!(text(source, "path"));
                report.invalid(&at("path"), &value, "must be an absolute path");
            }
        }
        "csi" => required("driver", report),
        "downwardAPI" => downward(path, source, report),
        "projected" => projected(path, spec, source, report),
        _ => {}
    }
}

pub(in crate::validate) fn host_path(path: &str, source: &Value, report: &mut Report) {
    let place = text(source, "path");
    if place.is_empty() {
        report.required(&format!("{path}.path"), "");
        return;
    }
    if place.split('/').any(|part| part == "..") {
        report.invalid(&format!("{path}.path"), &json!(place), "must not contain '..'");
    }
    report.one_of(&format!("{path}.type"), text(source, "type"), &HOST_PATH_TYPES);
}

fn mode(path: &str, holder: &Value, field: &str, report: &mut Report) {
    if let Some(mode) = int(holder, field).filter(|mode| !(0..=0o777).contains(mode)) {
        let detail = "must be a number between 0 and 0777 (octal), both inclusive";
        report.invalid(path, &json!(mode), detail);
    }
}

fn items(path: &str, source: &Value, report: &mut Report) {
    for (i, item) in list(source, "items").iter().enumerate() {
        let path = format!("{path}[{i}]");
        if text(item, "key").is_empty() {
            report.required(&format!("{path}.key"), "");
        }
        let place = text(item, "path");
        if place.is_empty() {
            report.required(&format!("{path}.path"), "");
        }
        relative(&format!("{path}.path"), place, report);
        mode(&format!("{path}.mode"), item, "mode", report);
    }
}

pub(super) fn relative(path: &str, place: &str, report: &mut Report) {
    if place.starts_with('/') {
        report.invalid(path, &json!(place), "must be a relative path");
    }
    if place.split('/').any(|part| part == "..") {
        report.invalid(path, &json!(place), "must not contain '..'");
    }
}

fn downward(path: &str, source: &Value, report: &mut Report) {
    mode(&format!("{path}.defaultMode"), source, "defaultMode", report);
    for item in list(source, "items") {
        if text(item, "path").is_empty() {
            report.required(&format!("{path}.path"), "");
        }
        if item.get("fieldRef").is_none() && item.get("resourceFieldRef").is_none() {
            report.required(path, "one of fieldRef and resourceFieldRef is required");
        }
    }
}

fn projected(path: &str, spec: &Value, source: &Value, report: &mut Report) {
    mode(&format!("{path}.defaultMode"), source, "defaultMode", report);
    for (i, inner) in list(source, "sources").iter().enumerate() {
        let path = format!("{path}.sources[{i}]");
        let token = inner.get("serviceAccountToken").is_some();
        if token && text(spec, "serviceAccountName").is_empty() {
            report.forbidden(
                &format!("{path}.serviceAccountToken"),
                "must not be specified when serviceAccountName is not set",
            );
        }
        if let Some(api) = inner.get("downwardAPI") {
            downward(&format!("{path}.downwardAPI"), api, report);
        }
    }
}
