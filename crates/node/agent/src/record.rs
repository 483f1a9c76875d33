//! Recording of a node: its files, and the driver's report with replaced UUIDs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use berth_host::{KubeletPaths, RecordError, Recording, Root};

use crate::gpus::{GpuReading, RECORDED};

/// Records the node below `root`, and the driver's report, into a directory.
pub fn record(root: &Root, gpus: &GpuReading, to: &Path) -> Result<Recording, RecordError> {
    let paths = KubeletPaths::of_running(root).0;
    let paths = paths.unwrap_or_else(|| KubeletPaths::detect(root));
    let mut recording = berth_host::record(root, &paths, to)?;
    let text = match serde_json::to_string_pretty(&scrubbed(gpus, &recording.devices)) {
        Ok(text) => format!("{text}\n"),
        Err(error) => {
            recording.diagnoses.push(crate::gpus::note(
                "nvml",
                format!("cannot be serialized ({error}), so it is not in the recording"),
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

/// The reading with UUIDs replaced as in the kubelet's files.
fn scrubbed(gpus: &GpuReading, known: &BTreeMap<String, String>) -> GpuReading {
    let mut replacements = known.clone();
    let mut other = |uuid: &mut Option<String>| {
        let Some(real) = uuid.take() else { return };
        let kind = if real.starts_with("MIG-") { "MIG" } else { "GPU" };
        let number = replacements.len() + 1;
        let new = || format!("{number:08x}-0000-4000-8000-{number:012x}");
        let replacement = replacements.entry(real).or_insert_with(new);
        *uuid = Some(format!("{kind}-{replacement}"));
    };
    let mut scrubbed = gpus.clone();
    for gpu in &mut scrubbed.gpus {
        other(&mut gpu.uuid);
        for instance in &mut gpu.instances {
            other(&mut instance.uuid);
        }
    }
    scrubbed
}
