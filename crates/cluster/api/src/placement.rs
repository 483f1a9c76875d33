//! The annotation `berth.dev/placement`, in JSON.
//!
//! Anybody who may write pods can write it, so readers must not trust it beyond the pod itself.

use berth_model::alignment::Alignment;
use berth_model::resource::ResourceName;
use berth_model::spec::GpuGrant;
use serde::{Deserialize, Serialize};

/// Where a pod is expected to run on its node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    #[serde(default)]
    pub alignment: Alignment,
    /// Ids of the NUMA nodes of pinned CPUs, memory and devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub numa_nodes: Vec<u32>,
    /// Devices that the pod is expected to get.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<PlacedDevices>,
    /// What the pod gets for its request for a part of a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<Grant>,
    #[serde(default)]
    pub why: String,
}

/// Devices of one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedDevices {
    pub resource: String,
    pub count: usize,
    /// Ids of the devices that are certain; indexes if the node does not report ids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<String>,
}

/// A part of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// A unit of this resource, or a share of one.
    pub resource: String,
    /// The index of the GPU, for a share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u16>,
}

/// The grant in the annotation's text; `None` if there is none or the text is invalid.
pub fn grant(text: &str) -> Option<GpuGrant> {
    let Grant { resource, gpu } = Placement::read(text).ok()?.grant?;
    Some(GpuGrant { resource: ResourceName::new(resource), gpu })
}

impl Placement {
    pub fn read(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let placement = Placement {
            alignment: Alignment::Aligned,
            numa_nodes: vec![1],
            devices: vec![PlacedDevices {
                resource: "nvidia.com/gpu".to_owned(),
                count: 2,
                ids: vec!["4".to_owned()],
            }],
            grant: Some(Grant { resource: "berth.dev/gpu-share".to_owned(), gpu: Some(3) }),
            why: "x".to_owned(),
        };
        assert_eq!(Placement::read(&placement.text()).unwrap(), placement);
        assert!(placement.text().contains(r#""numaNodes":[1]"#));
        assert!(!Placement::default().text().contains("numaNodes"));
        let unknown = Placement::read(r#"{"alignment":"word of another version"}"#).unwrap();
        assert_eq!(unknown.alignment, Alignment::Unknown);
        assert!(Placement::read("node a").is_err());
    }

    #[test]
    fn what_was_given_is_read_where_it_is_written() {
        let slice =
            grant(r#"{"alignment":"aligned","grant":{"resource":"nvidia.com/mig-1g.10gb"}}"#);
        let resource = ResourceName::new("nvidia.com/mig-1g.10gb");
        assert_eq!(slice, Some(GpuGrant { resource, gpu: None }));
        let share = grant(r#"{"grant":{"resource":"nvidia.com/gpu","gpu":3},"why":"x"}"#);
        assert_eq!(share.and_then(|share| share.gpu), Some(3));
        for text in ["", "{}", "null", "node a", r#"{"grant":{"resource":7}}"#, r#"{"grant":null}"#]
        {
            assert_eq!(grant(text), None, "{text}");
        }
    }
}
