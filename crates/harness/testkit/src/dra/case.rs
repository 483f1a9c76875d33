//! One case: nodes, devices, claims, a pod that needs devices, and what was recorded.
//!
//! Owns the way from JSON to an inventory, with errors that name the object and the field.

use berth_api::Lower;
use berth_api::pod::device_needs;
use berth_dra::Inventory;
use berth_model::dra::pod::DeviceNeeds;
use berth_model::node::Node;

use super::schema::{CaseJson, ExpectJson};
use crate::vector::{CaseError, FieldResult, read};

/// A case ready to be decided.
#[derive(Debug)]
pub struct Case {
    /// Unique id.
    pub id: String,
    /// Label for counting.
    pub stratum: String,
    /// The nodes, by name.
    pub nodes: Vec<Node>,
    /// What there is and who holds it.
    pub inventory: Inventory,
    /// The pod that is asked about.
    pub needs: DeviceNeeds,
    pub(super) expect: ExpectJson,
}

impl Case {
    /// Reads a case from one line of JSON.
    pub fn parse(line: &str) -> Result<Self, CaseError> {
        let json: CaseJson = read(line)?;
        let id = json.id.clone();
        Self::lower(json).map_err(|(field, problem)| CaseError { id, field, problem })
    }

    fn lower(json: CaseJson) -> FieldResult<Self> {
        let mut inventory = Inventory::new();
        for class in all("device_classes", &json.device_classes)? {
            inventory.apply_class(class);
        }
        for slice in all("resource_slices", &json.resource_slices)? {
            inventory.apply_slice(slice);
        }
        for claim in all("resource_claims", &json.resource_claims)? {
            inventory.apply_claim(claim);
        }
        let mut nodes = all("nodes", &json.nodes)?;
        nodes.sort_by(|one, other| one.name.cmp(&other.name));
        let needs = device_needs(&json.pod);
        Ok(Self {
            id: json.id,
            stratum: json.stratum,
            nodes,
            inventory,
            needs: needs.map_err(|error| ("pod".to_owned(), error.to_string()))?,
            expect: json.expect,
        })
    }
}

fn all<K: Lower>(list: &str, objects: &[K]) -> FieldResult<Vec<K::Model>> {
    let lower = |(index, object): (usize, &K)| {
        object.lower().map_err(|error| (format!("{list}[{index}]"), error.to_string()))
    };
    objects.iter().enumerate().map(lower).collect()
}
