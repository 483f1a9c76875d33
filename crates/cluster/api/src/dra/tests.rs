//! What slices and claims become, and what is wrong with those that cannot be lowered.

use berth_model::dra::claim::{Claim, Count, RequestKind, Share};
use berth_model::dra::slice::{Attribute, NodeScope, ResourceSlice};
use k8s_openapi::api::resource::v1 as resource;
use serde_json::{Value, from_value, json};

use crate::{Lower, LowerError};

fn slice(spec: &Value) -> Result<ResourceSlice, LowerError> {
    let object = json!({ "metadata": { "name": "s" }, "spec": spec });
    from_value::<resource::ResourceSlice>(object).unwrap().lower()
}

fn claim(devices: &Value, status: &Value) -> Result<Claim, LowerError> {
    let metadata = json!({ "name": "c", "namespace": "team" });
    let object = json!({ "metadata": metadata, "spec": { "devices": devices }, "status": status });
    from_value::<resource::ResourceClaim>(object).unwrap().lower()
}

fn pool() -> Value {
    json!({ "name": "p", "generation": 1, "resourceSliceCount": 1 })
}

#[test]
fn slices_say_from_where_their_devices_can_be_used() {
    let device = json!({
        "name": "d",
        "allNodes": true,
        "attributes": { "a": { "int": 1 }, "l": { "ints": [1, 2] } },
        "taints": [
            { "key": "k", "effect": "NoSchedule" },
            { "key": "k", "effect": "None" },
        ],
    });
    let spec = json!({
        "driver": "x", "pool": pool(), "perDeviceNodeSelection": true, "devices": [device],
    });
    let lowered = slice(&spec).unwrap();
    assert_eq!(lowered.scope, NodeScope::PerDevice);
    let device = &lowered.devices[0];
    assert_eq!(device.scope, NodeScope::AllNodes);
    assert_eq!(device.attributes["a"], Attribute::Int(1));
    assert_eq!(device.attributes["l"], Attribute::Unsupported);
    // A taint without an effect on scheduling is as good as none.
    assert_eq!(device.taints.len(), 1);
}

#[test]
fn requests_have_the_defaults_of_the_api_server() {
    let asked = json!({ "requests": [
        { "name": "one", "exactly": { "deviceClassName": "gpu" } },
        { "name": "all", "exactly": { "deviceClassName": "gpu", "allocationMode": "All" } },
        { "name": "any", "firstAvailable": [{ "name": "s", "deviceClassName": "gpu", "count": 2 }] },
        { "name": "new" },
    ] });
    let lowered = claim(&asked, &Value::Null).unwrap();
    let counts: Vec<Option<&Count>> = lowered
        .spec
        .requests
        .iter()
        .map(|request| match &request.kind {
            RequestKind::Exactly(ask) => Some(&ask.count),
            RequestKind::FirstOf(list) => list.first().map(|(_, ask)| &ask.count),
            RequestKind::Unknown => None,
        })
        .collect();
    let expected = [Some(&Count::Exactly(1)), Some(&Count::All), Some(&Count::Exactly(2)), None];
    assert_eq!(counts, expected);
}

#[test]
fn a_share_is_a_part_and_everything_else_is_whole() {
    let result = json!({ "request": "r", "driver": "x", "pool": "p", "device": "d" });
    let mut shared = result.clone();
    shared["shareID"] = json!("u");
    shared["consumedCapacity"] = json!({ "memory": "10Gi" });
    let status = json!({ "allocation": { "devices": { "results": [result, shared] } } });
    let devices = claim(&json!({}), &status).unwrap().allocation.unwrap().devices;
    assert_eq!(devices[0].share, Share::Whole);
    assert!(matches!(&devices[1].share, Share::Part { consumed, .. } if consumed.len() == 1));
}

#[test]
fn problems_name_the_object_and_the_field() {
    let device = json!({ "name": "d", "capacity": { "memory": { "value": "much" } } });
    let spec = json!({ "driver": "x", "pool": pool(), "allNodes": true, "devices": [device] });
    let error = slice(&spec).unwrap_err();
    assert_eq!((error.kind, error.object.as_str()), ("ResourceSlice", "s"));
    assert_eq!(error.field, "spec.devices[0].capacity[memory].value");
    let asked = json!({ "requests": [
        { "name": "r", "exactly": { "deviceClassName": "gpu", "selectors": [{}] } },
    ] });
    let error = claim(&asked, &Value::Null).unwrap_err();
    assert_eq!(error.object, "team/c");
    assert_eq!(error.field, "spec.devices.requests[0].exactly.selectors[0].cel");
}
