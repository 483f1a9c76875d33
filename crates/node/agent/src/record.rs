//! Recording a node: what its files say, and what its driver does.
//!
//! Owns the driver's part of a recording. UUIDs are replaced, each by the same as in the kubelet's files;
//! serial numbers and names of processes are never asked for. Must not know which files there are.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use berth_host::{KubeletPaths, RecordError, Recording, Root};

use crate::gpus::{GpuReading, RECORDED};

/// Records the node below `root`, and what its driver said, into a directory.
///
/// # Errors
/// When the directory is not empty or cannot be written to.
pub fn record(root: &Root, gpus: &GpuReading, to: &Path) -> Result<Recording, RecordError> {
    let places = KubeletPaths::of_running(root).0;
    let places = places.unwrap_or_else(|| KubeletPaths::detect(root));
    let mut recording = berth_host::record(root, &places, to)?;
    let text = match serde_json::to_string_pretty(&scrubbed(gpus, &recording.devices)) {
        Ok(text) => format!("{text}\n"),
        Err(error) => {
            recording.diagnoses.push(crate::gpus::note(
                "nvml",
                format!("cannot be written down ({error}), so the recording lacks it"),
                "record again",
            ));
            return Ok(recording);
        }
    };
    let path = to.join(RECORDED);
    fs::write(&path, &text).map_err(|cause| RecordError::Unwritable { path, cause })?;
    recording.entries += 1;
    recording.bytes += text.len();
    Ok(recording)
}

/// A reading with other UUIDs.
fn scrubbed(gpus: &GpuReading, known: &BTreeMap<String, String>) -> GpuReading {
    let mut stands = known.clone();
    let mut other = |uuid: &mut Option<String>| {
        let Some(real) = uuid.take() else { return };
        let kind = if real.starts_with("MIG-") { "MIG" } else { "GPU" };
        let number = stands.len() + 1;
        let made = || format!("{number:08x}-0000-4000-8000-{number:012x}");
        let stand = stands.entry(real).or_insert_with(made);
        *uuid = Some(format!("{kind}-{stand}"));
    };
    let mut made = gpus.clone();
    for gpu in &mut made.gpus {
        other(&mut gpu.uuid);
        for instance in &mut gpu.instances {
            other(&mut instance.uuid);
        }
    }
    made
}
