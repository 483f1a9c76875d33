//! Rules on images, GPU node pools and the device plugin's configuration.

use berth_api::FieldPath;
use serde_json::Value;

use super::{Breach, Scope};
use crate::object::What;
use crate::pool::NodeGroup;
use crate::rule::{Rule, Severity, Topic};
use crate::sharing::{self, Method};
use crate::view::PodView;

pub(crate) static MOVING_IMAGE: Rule = Rule {
    code: "BERTH-601",
    name: "moving-image",
    topic: Topic::Platform,
    severity: Severity::Warning,
    summary: "Images have a version tag or a digest.",
    why: "With a tag such as latest, replicas run different code depending on when their node pulled it. \
          Inference images have many gigabytes, and latest is pulled again at every start.",
    remedy: "Use a version tag or, better, a digest (image@sha256:…).",
    safe_fix: None,
};

pub(crate) static UNTAINTED_POOL: Rule = Rule {
    code: "BERTH-604",
    name: "untainted-gpu-pool",
    topic: Topic::Platform,
    severity: Severity::Warning,
    summary: "GPU nodes and their pools have a taint.",
    why: "Without one, any pod may run on the most expensive nodes, take the CPUs and memory that GPU pods \
          need, and prevent scale-down.",
    remedy: "Add a taint such as {key: nvidia.com/gpu, value: present, effect: NoSchedule}.",
    safe_fix: None,
};

pub(crate) static SILENT_SLICES: Rule = Rule {
    code: "BERTH-605",
    name: "silent-time-slicing",
    topic: Topic::Platform,
    severity: Severity::Warning,
    summary: "Time-sliced GPUs have a resource name of their own.",
    why: "Without renameByDefault a pod that requests nvidia.com/gpu may get a time slice instead of a \
          GPU, and one that requests two may get two time slices of the same GPU.",
    remedy: "Set renameByDefault: true (the resource becomes nvidia.com/gpu.shared) and \
             failRequestsGreaterThanOne: true.",
    safe_fix: None,
};

const MOVING_TAGS: [&str; 7] = ["latest", "stable", "main", "master", "nightly", "edge", "dev"];

pub(crate) fn check_pod(view: &PodView<'_>, scope: &mut Scope<'_>) {
    for container in &view.containers {
        let image = container.spec.image.as_deref().unwrap_or_default();
        let message = match tag(image) {
            Tag::None => format!("image {image:?} has no tag, which means latest"),
            Tag::Is(tag) if MOVING_TAGS.contains(&tag) => {
                format!("image {image:?} has the moving tag {tag:?}")
            }
            Tag::Is(_) | Tag::Fixed => continue,
        };
        let field = container.path.clone().key("image");
        scope.add(Breach::new(&MOVING_IMAGE, field, message));
    }
}

enum Tag<'a> {
    /// By digest, or not written yet.
    Fixed,
    None,
    Is(&'a str),
}

fn tag(image: &str) -> Tag<'_> {
    // A placeholder, or empty.
    if image.is_empty() || image.contains(['@', '{', '$', '<']) {
        return Tag::Fixed;
    }
    // A colon before a slash belongs to the registry's port.
    let name = image.rsplit_once('/').map_or(image, |(_, name)| name);
    name.split_once(':').map_or(Tag::None, |(_, tag)| Tag::Is(tag))
}

pub(crate) fn check(scope: &mut Scope<'_>) {
    check_taints(scope);
    if scope.object.is("", "ConfigMap") {
        for one in sharing::of_config_map(scope.object, scope.context.read) {
            if one.method == Method::TimeSlicing && one.replicas > 1 && !one.renamed {
                let rest = if one.one_each { "" } else { ", and a pod may get several of one GPU" };
                let message = format!(
                    "{} pods share each {}, which is not renamed{rest}",
                    one.replicas, one.offered_as
                );
                scope.add(Breach::new(&SILENT_SLICES, one.field, message).about("timeSlicing"));
            }
        }
    }
}

fn check_taints(scope: &mut Scope<'_>) {
    let Some(pool) = NodeGroup::of(scope.object) else { return };
    if pool.node.taints.iter().any(|taint| taint.effect.is_hard()) {
        return;
    }
    let has_gpus = match &scope.object.what {
        What::Node(_) => pool
            .node
            .allocatable
            .iter()
            .any(|(name, amount)| scope.settings.is_gpu(name.as_str()) && amount.sign() > 0),
        _ => makes_gpu_nodes(scope.object.json.get("spec").unwrap_or(&Value::Null)),
    };
    if has_gpus {
        let spec = FieldPath::root().key("spec");
        let field = match scope.object.reference.kind.as_str() {
            "NodePool" => spec.key("template").key("spec").key("taints"),
            _ => spec.key("taints"),
        };
        let message = format!("{} has GPUs but no taint", pool.name);
        scope.add(Breach::new(&UNTAINTED_POOL, field, message));
    }
}

/// Whether all instances that a Karpenter pool may pick have GPUs.
fn makes_gpu_nodes(spec: &Value) -> bool {
    let of_pool = spec.pointer("/template/spec/requirements").or_else(|| spec.get("requirements"));
    let requirements = of_pool.and_then(Value::as_array).into_iter().flatten();
    requirements.into_iter().any(|one| {
        let text = |field: &str| one.get(field).and_then(Value::as_str).unwrap_or_default();
        let values = one.get("values").and_then(Value::as_array);
        let all = |is_gpu: fn(&str) -> bool| {
            let listed = values.filter(|values| !values.is_empty() && text("operator") == "In");
            listed.is_some_and(|values| values.iter().filter_map(Value::as_str).all(is_gpu))
        };
        match text("key") {
            "karpenter.k8s.aws/instance-category" => all(|value| matches!(value, "g" | "p")),
            "karpenter.k8s.aws/instance-family" | "node.kubernetes.io/instance-type" => {
                all(is_gpu_family)
            }
            "karpenter.k8s.aws/instance-gpu-manufacturer"
            | "karpenter.k8s.aws/instance-gpu-name" => all(|_| true),
            "karpenter.k8s.aws/instance-gpu-count" => text("operator") == "Gt",
            _ => false,
        }
    })
}

/// `p5`, `g6e.xlarge`: AWS's families with GPUs.
fn is_gpu_family(name: &str) -> bool {
    let rest = name.strip_prefix(['p', 'g']);
    rest.is_some_and(|rest| rest.starts_with(|one: char| one.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_distinguished_from_ports_and_digests() {
        for (image, expected) in [
            ("llm", Some("")),
            ("registry:5000/llm", Some("")),
            ("registry:5000/llm:v1", None),
            ("llm:latest", Some("latest")),
            ("llm:stable@sha256:00", None),
            ("{{ .image }}", None),
            ("<your image>", None),
            ("", None),
        ] {
            let found = match tag(image) {
                Tag::None => Some(""),
                Tag::Is(tag) => Some(tag).filter(|tag| MOVING_TAGS.contains(tag)),
                Tag::Fixed => None,
            };
            assert_eq!(found, expected, "{image}");
        }
    }
}
