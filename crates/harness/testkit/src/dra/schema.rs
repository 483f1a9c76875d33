//! The JSON form of a case, field by field as the vectors document it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeSelector, Pod};
use k8s_openapi::api::resource::v1::{Device, DeviceClass, ResourceClaim, ResourceSlice};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct CaseJson {
    pub(super) id: String,
    #[serde(default)]
    pub(super) stratum: String,
    pub(super) nodes: Vec<Node>,
    #[serde(default)]
    pub(super) device_classes: Vec<DeviceClass>,
    #[serde(default)]
    pub(super) resource_slices: Vec<ResourceSlice>,
    #[serde(default)]
    pub(super) resource_claims: Vec<ResourceClaim>,
    pub(super) pod: Pod,
    pub(super) expect: ExpectJson,
}

/// What was recorded.
#[derive(Clone, Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct ExpectJson {
    pub(super) nodes: BTreeMap<String, NodeJson>,
    #[serde(default)]
    pub(super) scores: BTreeMap<String, i64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct NodeJson {
    pub(super) feasible: bool,
    pub(super) at: Option<String>,
    #[serde(default)]
    pub(super) plugin: String,
    #[serde(default)]
    pub(super) code: String,
    #[serde(default)]
    pub(super) reasons: Vec<String>,
    /// `None` where only the verdict was recorded.
    pub(super) allocations: Option<Vec<AllocationJson>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct AllocationJson {
    pub(super) claim: String,
    pub(super) results: Vec<ResultJson>,
    #[serde(rename = "nodeSelector")]
    pub(super) node_selector: Option<NodeSelector>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(expecting = "an object")]
#[serde(rename_all = "camelCase")]
pub(super) struct ResultJson {
    pub(super) request: String,
    pub(super) driver: String,
    pub(super) pool: String,
    pub(super) device: String,
    #[serde(default)]
    pub(super) admin_access: bool,
    #[serde(default)]
    pub(super) shared: bool,
    #[serde(default)]
    pub(super) consumed_capacity: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) binding_conditions: Vec<String>,
}

/// One expression, and what came of it for some devices.
#[derive(Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct SelectionJson {
    pub(super) expression: String,
    pub(super) driver: String,
    pub(super) devices: Vec<Device>,
    /// Why it was refused.
    pub(super) compile: Option<String>,
    #[serde(default)]
    pub(super) results: Vec<OutcomeJson>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct OutcomeJson {
    pub(super) matches: Option<bool>,
    pub(super) error: Option<String>,
}
