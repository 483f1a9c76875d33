//! What Berth's own objects are to the model, and what is wrong with those that are not.

use berth_model::policy::AcceleratorMemory;
use berth_model::workload::{CapacityType, PoolClasses, WorkloadClass};
use berth_tenancy::share::{Dimension, GPU_PARTS};
use serde_json::{from_value, json};

use super::*;
use crate::Lower;

#[test]
fn a_team_has_parts_of_gpus_and_bytes() {
    let team: Team = from_value(json!({
        "metadata": { "name": "search" },
        "spec": {
            "parent": "ml", "namespaces": ["search", "ranking"], "weight": "1.5",
            "shares": [
                { "resource": "gpus", "guaranteed": 4, "borrowLimit": "2.5", "lendLimit": "500m" },
                { "resource": "gpus", "model": "NVIDIA-H100-80GB-HBM3", "guaranteed": "1" },
                { "resource": "gpu-memory", "guaranteed": "80Gi" },
                { "resource": "cpu", "guaranteed": "1500m" },
            ],
        },
    }))
    .unwrap();
    let model = team.lower().unwrap();
    assert_eq!((&*model.name, model.parent.as_deref()), ("search", Some("ml")));
    assert_eq!((model.weight_milli, model.namespaces.len()), (1_500, 2));
    let gpus = model.entitlements[&Dimension::Gpus];
    assert_eq!(gpus.guaranteed, 4 * GPU_PARTS);
    assert_eq!(gpus.borrow_max, Some(GPU_PARTS * 5 / 2));
    assert_eq!(gpus.lend_max, Some(GPU_PARTS / 2));
    let of_model = Dimension::GpusOf("NVIDIA-H100-80GB-HBM3".into());
    assert_eq!(model.entitlements[&of_model].guaranteed, GPU_PARTS);
    assert_eq!(model.entitlements[&Dimension::GpuMemory].guaranteed, 80 << 30);
    assert_eq!(model.entitlements[&Dimension::Cpu].guaranteed, 1_500);
}

#[test]
fn what_is_wrong_is_said_with_the_field() {
    let team = |shares: serde_json::Value| -> String {
        let team: Team =
            from_value(json!({ "metadata": { "name": "t" }, "spec": { "shares": shares } }))
                .unwrap();
        team.lower().unwrap_err().to_string()
    };
    let twice = team(json!([{ "resource": "cpu" }, { "resource": "cpu" }]));
    assert_eq!(twice, "Team t: spec.shares[1]: CPU is listed twice; write it once");
    let model = team(json!([{ "resource": "cpu", "model": "x" }]));
    assert!(model.starts_with("Team t: spec.shares[0].model: is for gpus only"), "{model}");
    let amount = team(json!([{ "resource": "gpus", "guaranteed": "four" }]));
    assert!(amount.starts_with("Team t: spec.shares[0].guaranteed: "), "{amount}");
    let negative = team(json!([{ "resource": "gpus", "lendLimit": -1 }]));
    assert!(negative.starts_with("Team t: spec.shares[0].lendLimit: "), "{negative}");
    let pool: Pool =
        from_value(json!({ "metadata": { "name": "p" }, "spec": { "only": true } })).unwrap();
    assert_eq!(pool.lower().unwrap_err().field, "spec.only");
    let accelerator: Accelerator =
        from_value(json!({ "metadata": { "name": "a" }, "spec": { "resource": "a.b/c" } }))
            .unwrap();
    assert_eq!(accelerator.lower().unwrap_err().field, "spec.memory");
}

#[test]
fn headroom_is_a_pod_that_could_come() {
    let headroom: Headroom = from_value(json!({
        "metadata": { "name": "warm" },
        "spec": { "count": 2, "class": "interactive", "template": {
            "metadata": { "annotations": { "berth.dev/gpu-memory": "16Gi" } },
            "spec": { "nodeSelector": { "zone": "a" }, "containers": [{
                "name": "c", "resources": { "limits": { "cpu": "4" } } }] },
        } },
    }))
    .unwrap();
    let model = headroom.lower().unwrap();
    assert_eq!((model.count, model.class), (2, WorkloadClass::Interactive));
    assert_eq!(model.template.gpu.as_ref().unwrap().memory_bytes, 16 << 30);
    assert_eq!(model.template.node_selector.get("zone").map(AsRef::as_ref), Some("a"));
    let wrong: Headroom = from_value(json!({
        "metadata": { "name": "warm" },
        "spec": { "count": 2, "class": "batch", "template": {
            "metadata": { "annotations": { "berth.dev/gpu-memory": "lots" } },
            "spec": { "containers": [{ "name": "c" }] },
        } },
    }))
    .unwrap();
    let field = wrong.lower().unwrap_err().field;
    assert_eq!(field, "spec.template.metadata.annotations[berth.dev/gpu-memory]");
}

#[test]
fn pools_and_accelerators_are_what_they_say() {
    let pool: Pool = from_value(json!({
        "metadata": { "name": "spot" },
        "spec": { "classes": ["batch"], "only": true, "capacityType": "spot" },
    }))
    .unwrap();
    let pool = pool.lower().unwrap();
    assert_eq!(pool.capacity, Some(CapacityType::Spot));
    assert!(matches!(pool.classes, PoolClasses::Only(set) if set.contains(WorkloadClass::Batch)));
    let accelerator: Accelerator = from_value(json!({
        "metadata": { "name": "mi300" },
        "spec": { "resource": "amd.com/gpu", "compute": "12.5%",
                  "memoryLabel": { "key": "amd.com/gpu.vram", "unit": "1Mi" } },
    }))
    .unwrap();
    let accelerator = accelerator.lower().unwrap();
    assert_eq!(accelerator.compute_milli, 125);
    let label = AcceleratorMemory::Label { key: "amd.com/gpu.vram".into(), unit_bytes: 1 << 20 };
    assert_eq!(accelerator.memory, label);
}

#[test]
fn every_field_of_a_definition_is_described() {
    fn undescribed(schema: &serde_json::Value, path: &str, found: &mut Vec<String>) {
        if let Some(properties) = schema["properties"].as_object() {
            for (name, inside) in properties {
                let path = format!("{path}.{name}");
                let exempt = ["apiVersion", "kind", "metadata", "labels", "annotations"];
                if inside["description"].is_null() && !exempt.contains(&name.as_str()) {
                    found.push(path.clone());
                }
                undescribed(inside, &path, found);
            }
        }
        if !schema["items"].is_null() {
            undescribed(&schema["items"], &format!("{path}[]"), found);
        }
    }
    let mut found = Vec::new();
    for definition in definitions() {
        let name = definition["metadata"]["name"].as_str().unwrap().to_owned();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        undescribed(schema, &name, &mut found);
    }
    assert_eq!(found, Vec::<String>::new());
}
