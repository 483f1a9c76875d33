//! CDI specifications (Container Device Interface, version 0.6.0), from which container runtimes learn the
//! files of a device.
//!
//! A GPU or MIG instance is one CDI device, however many pods share it.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::device::{Device, Inventory, Kind};
use crate::file::write_atomically;

pub const VERSION: &str = "0.6.0";

/// Edits for every container with a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Common {
    /// Such as `/dev/nvidiactl`, `/dev/nvidia-uvm`.
    pub device_files: Vec<String>,
    /// Files of the driver, mounted read-only at the same path.
    pub mounts: Vec<String>,
    /// Variables as `NAME=value`.
    pub environment: Vec<String>,
}

/// The CDI name of a device: the UUID of its hardware.
pub fn name<'a>(inventory: &'a Inventory, device: &'a Device) -> &'a str {
    match &device.kind {
        Kind::Mig { uuid, .. } => uuid,
        Kind::Whole => inventory.gpu(device.gpu).map_or("", |gpu| &gpu.uuid),
    }
}

/// `kind` is vendor and class, such as `berth.dev/gpu`.
pub fn specification(kind: &str, inventory: &Inventory, common: &Common) -> Value {
    let mut seen = BTreeSet::new();
    let mut devices = Vec::new();
    for device in inventory.devices() {
        let name = name(inventory, device);
        if !seen.insert(name) {
            continue;
        }
        let gpu = inventory.gpu(device.gpu).map_or(&[][..], |gpu| &gpu.device_files[..]);
        let own = match &device.kind {
            Kind::Mig { device_files, .. } => device_files,
            Kind::Whole => &[][..],
        };
        let nodes = nodes(gpu.iter().chain(own));
        devices.push(json!({ "name": name, "containerEdits": { "deviceNodes": nodes } }));
    }
    let mounts: Vec<Value> = common
        .mounts
        .iter()
        .map(|path| {
            let options = ["ro", "nosuid", "nodev", "bind"];
            json!({ "hostPath": path, "containerPath": path, "options": options })
        })
        .collect();
    let mut edits = json!({});
    let parts = [
        ("deviceNodes", nodes(common.device_files.iter())),
        ("mounts", mounts),
        ("env", common.environment.iter().map(|one| json!(one)).collect()),
    ];
    for (name, part) in parts {
        if !part.is_empty() {
            edits[name] = Value::Array(part);
        }
    }
    json!({ "cdiVersion": VERSION, "kind": kind, "devices": devices, "containerEdits": edits })
}

fn nodes<'a>(paths: impl Iterator<Item = &'a String>) -> Vec<Value> {
    paths.map(|path| json!({ "path": path, "hostPath": path, "permissions": "rw" })).collect()
}

/// Writes a specification into a directory that runtimes watch, such as `/var/run/cdi`, and returns its path.
pub fn write(directory: &Path, specification: &Value) -> io::Result<PathBuf> {
    let kind = specification["kind"].as_str().unwrap_or_default().replace('/', "-");
    let path = directory.join(format!("{kind}.json"));
    write_atomically(&path, &serde_json::to_string_pretty(specification)?)?;
    Ok(path)
}
