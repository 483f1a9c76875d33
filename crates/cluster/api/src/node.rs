//! Lowers Nodes to the model.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_model::node::{Image, Node};
use berth_model::taint::{Effect, Taint};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::Lower;
use crate::error::{self, LowerError, Problem, each};
use crate::keys::{MODEL_PREFIX, MODELS};
use crate::meta;
use crate::resource::resource_list;

impl Lower for core::Node {
    type Model = Node;

    fn lower(&self) -> Result<Node, LowerError> {
        error::of(self, node(self))
    }
}

fn node(node: &core::Node) -> Result<Node, Problem> {
    let (no_spec, no_status) = (core::NodeSpec::default(), core::NodeStatus::default());
    let spec = node.spec.as_ref().unwrap_or(&no_spec);
    let status = node.status.as_ref().unwrap_or(&no_status);
    let allocatable = match &status.allocatable {
        Some(allocatable) => resource_list("status.allocatable", Some(allocatable)),
        None => resource_list("status.capacity", status.capacity.as_ref()),
    };
    Ok(Node {
        name: meta::name(&node.metadata)?,
        labels: meta::labels(&node.metadata),
        taints: each("spec.taints", spec.taints.as_ref(), taint)?,
        unschedulable: spec.unschedulable.unwrap_or(false),
        allocatable: allocatable?,
        images: status.images.iter().flatten().map(image).collect(),
        models: models(&node.metadata),
    })
}

/// Models that the node has cached, by labels and annotation.
fn models(meta: &ObjectMeta) -> BTreeSet<Arc<str>> {
    let labels = meta.labels.iter().flatten().filter(|(_, value)| value.as_str() != "false");
    let by_label = labels.filter_map(|(key, _)| key.strip_prefix(MODEL_PREFIX));
    let listed = meta::annotation(meta, MODELS).into_iter().flat_map(|list| list.split(','));
    let all = by_label.chain(listed.map(str::trim)).filter(|name| !name.is_empty());
    all.map(Arc::from).collect()
}

fn taint(taint: &core::Taint) -> Result<Taint, Problem> {
    Ok(Taint {
        key: taint.key.as_str().into(),
        value: meta::text(taint.value.as_ref()),
        effect: effect(&taint.effect)?,
    })
}

pub(crate) fn effect(effect: &str) -> Result<Effect, Problem> {
    match effect {
        "NoSchedule" => Ok(Effect::NoSchedule),
        "PreferNoSchedule" => Ok(Effect::PreferNoSchedule),
        "NoExecute" => Ok(Effect::NoExecute),
        other => {
            Err(Problem::unknown("effect", other, "NoSchedule, PreferNoSchedule or NoExecute"))
        }
    }
}

fn image(image: &core::ContainerImage) -> Image {
    let names = image.names.iter().flatten().map(|name| Arc::from(name.as_str())).collect();
    Image { names, size_bytes: image.size_bytes.unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};

    #[test]
    fn a_node_has_its_capacity_until_it_says_what_pods_may_have() {
        let mut node: core::Node = from_value(json!({
            "metadata": { "name": "n", "labels": { "zone": "a" } },
            "spec": { "unschedulable": true, "taints": [{ "key": "gpu", "effect": "NoExecute" }] },
            "status": {
                "capacity": { "cpu": "8" },
                "images": [{ "names": ["a:1", "a@sha256:0"], "sizeBytes": 7 }],
            },
        }))
        .unwrap();
        let lowered = node.lower().unwrap();
        assert_eq!(lowered.allocatable["cpu"].value(), 8);
        assert!(lowered.unschedulable && lowered.labels.get("zone").is_some());
        assert_eq!((lowered.taints[0].effect, &*lowered.taints[0].value), (Effect::NoExecute, ""));
        assert_eq!((lowered.images[0].names.len(), lowered.images[0].size_bytes), (2, 7));
        let allocatable = from_value(json!({ "cpu": "7500m" })).unwrap();
        node.status.as_mut().unwrap().allocatable = Some(allocatable);
        assert_eq!(node.lower().unwrap().allocatable["cpu"].milli_value(), 7500);
    }

    #[test]
    fn a_node_holds_the_models_that_its_labels_and_its_annotation_name() {
        let node: core::Node = from_value(json!({
            "metadata": {
                "name": "n",
                "labels": { "model.berth.dev/small": "true", "model.berth.dev/gone": "false" },
                "annotations": { "berth.dev/models": "org/large-70b, ,small" },
            },
        }))
        .unwrap();
        let models: Vec<_> = node.lower().unwrap().models.into_iter().collect();
        assert_eq!(models, ["org/large-70b".into(), "small".into()]);
    }

    #[test]
    fn errors_name_kind_object_field_and_remedy() {
        for (node, expected) in [
            (
                json!({ "metadata": { "name": "n" },
                        "spec": { "taints": [{ "key": "gpu", "effect": "Maybe" }] } }),
                "Node n: spec.taints[0].effect: unknown value \"Maybe\"; use NoSchedule, ",
            ),
            (
                json!({ "metadata": { "name": "n" },
                        "status": { "allocatable": { "cpu": "many" } } }),
                "Node n: status.allocatable[cpu]: quantity \"many\": ",
            ),
            (json!({ "metadata": {} }), "Node ?: metadata.name: is required"),
        ] {
            let node: core::Node = from_value(node).unwrap();
            let error = node.lower().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
