//! What a pod wants of GPUs, in a few words.
//!
//! Owns the words only. Must not know what is to be had.

use berth_kubelet::KubeletVersion;
use berth_model::gpu::WHOLE_GPU;
use berth_model::quantity::{Format, Quantity};
use berth_model::spec::PodObject;

const MIG: &str = "nvidia.com/mig-";
const NVIDIA: &str = "nvidia.com/";

/// `4`, `2×1g.10gb`, `16Gi`, `30%`; a dash for none.
pub(crate) fn gpus(pod: &PodObject) -> String {
    let requests = pod.spec.pod.total_requests(KubeletVersion::default().pod_level_resources());
    let mut wants = Vec::new();
    for (name, count) in requests.iter().filter(|(name, _)| name.is_extended()) {
        let count = count.value();
        let times = if count == 1 { String::new() } else { format!("{count}×") };
        match name.as_str() {
            _ if count <= 0 => {}
            WHOLE_GPU => wants.push(count.to_string()),
            name => match name.strip_prefix(MIG).or_else(|| name.strip_prefix(NVIDIA)) {
                Some(kind) => wants.push(format!("{times}{kind}")),
                None => wants.push(format!("{times}{name}")),
            },
        }
    }
    if let Some(need) = pod.spec.gpu {
        if need.memory_bytes > 0 {
            let bytes = i64::try_from(need.memory_bytes).unwrap_or(i64::MAX);
            wants.push(Quantity::from_units(bytes, Format::BinarySi).to_string());
        }
        if need.compute_milli > 0 {
            wants.push(format!("{}%", need.compute_milli.div_ceil(10)));
        }
    }
    wants.extend(pod.claims.iter().map(|claim| format!("claim {}", claim.name)));
    if wants.is_empty() { "-".to_owned() } else { wants.join(" + ") }
}
