//! What a pod requests of GPUs, in short.

use berth_model::gpu::WHOLE_GPU;
use berth_model::quantity::{Format, Quantity};
use berth_model::spec::PodObject;

use crate::usage::requests;

/// Of a pod that requests no GPU.
pub(crate) const NONE: &str = "-";

const MIG: &str = "nvidia.com/mig-";
const NVIDIA: &str = "nvidia.com/";

/// `4`, `2×1g.10gb`, `16Gi`, `30%`, or [`NONE`].
pub(crate) fn gpus(pod: &PodObject) -> String {
    let requests = requests(&pod.spec);
    let mut parts = Vec::new();
    for (name, count) in requests.iter().filter(|(name, _)| name.is_extended()) {
        let count = count.value();
        let times = if count == 1 { String::new() } else { format!("{count}×") };
        match name.as_str() {
            _ if count <= 0 => {}
            WHOLE_GPU => parts.push(count.to_string()),
            name => match name.strip_prefix(MIG).or_else(|| name.strip_prefix(NVIDIA)) {
                Some(kind) => parts.push(format!("{times}{kind}")),
                None => parts.push(format!("{times}{name}")),
            },
        }
    }
    if let Some(need) = pod.spec.gpu {
        if need.memory_bytes > 0 {
            let bytes = i64::try_from(need.memory_bytes).unwrap_or(i64::MAX);
            parts.push(Quantity::from_units(bytes, Format::BinarySi).to_string());
        }
        if need.compute_milli > 0 {
            parts.push(format!("{}%", need.compute_milli.div_ceil(10)));
        }
    }
    parts.extend(pod.claims.iter().map(|claim| format!("claim {}", claim.name)));
    if parts.is_empty() { NONE.to_owned() } else { parts.join(" + ") }
}
