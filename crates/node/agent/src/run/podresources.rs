//! The kubelet's podresources API as a source of devices. It corrects the checkpoint, which is written late and can be
//! damaged, and reports NUMA nodes of all devices. Without a socket, the checkpoint counts.

use std::collections::BTreeMap;
use std::path::PathBuf;

use berth_devices::PodResourcesClient;
use berth_devices::proto::podresources::{ContainerDevices, PodResources as Answer};
use berth_host::Diagnosis;
use berth_host::kubelet::{DeviceEntry, HeldDevice};
use futures::future::BoxFuture;

use super::device_source::{DeviceListing, DeviceSource};
use crate::publish::{Offered, Resident, offered};
use crate::report::Reading;

const REMEDY: &str = "check the kubelet's log and the agent's access to the socket; until then its checkpoint is used";

#[derive(Clone, Debug)]
pub struct PodResources {
    client: PodResourcesClient,
    socket: PathBuf,
}

impl PodResources {
    /// The socket is usually `/var/lib/kubelet/pod-resources/kubelet.sock`.
    pub fn new(socket: PathBuf) -> Self {
        Self { client: PodResourcesClient::new(&socket), socket }
    }

    async fn ask(&self, reading: &mut Reading, residents: &[Resident]) -> DeviceListing {
        let listed = self.client.list().await;
        let all = match &listed {
            Ok(Some(_)) => self.client.allocatable().await,
            _ => Ok(None),
        };
        let mut listing = DeviceListing::default();
        match listed {
            Ok(Some(pods)) => correct(reading, residents, &pods),
            Ok(None) => {}
            Err(error) => listing.diagnoses.push(self.note(&error)),
        }
        listing.offered = match all {
            Ok(Some(all)) if !all.devices.is_empty() => by_kubelet(&all.devices),
            Ok(_) => offered(reading),
            Err(error) => {
                listing.diagnoses.push(self.note(&error));
                offered(reading)
            }
        };
        listing
    }

    fn note(&self, error: &dyn std::error::Error) -> Diagnosis {
        Diagnosis {
            path: self.socket.display().to_string(),
            what: error.to_string(),
            remedy: REMEDY.to_owned(),
        }
    }
}

impl DeviceSource for PodResources {
    fn update<'a>(
        &'a mut self,
        reading: &'a mut Reading,
        residents: &'a [Resident],
    ) -> BoxFuture<'a, DeviceListing> {
        Box::pin(self.ask(reading, residents))
    }
}

fn numa_of(devices: &ContainerDevices) -> Vec<u32> {
    let nodes = devices.topology.iter().flat_map(|topology| &topology.nodes);
    nodes.filter_map(|node| u32::try_from(node.id).ok()).collect()
}

/// Replaces the checkpoint's entries of pods with the kubelet's answer. Pods whose UID is not known yet keep the
/// checkpoint's entries.
fn correct(reading: &mut Reading, residents: &[Resident], pods: &[Answer]) {
    let uids: BTreeMap<(&str, &str), &str> = residents
        .iter()
        .map(|one| ((one.namespace.as_str(), one.name.as_str()), one.uid.as_str()))
        .collect();
    let state = reading.kubelet.devices.get_or_insert_default();
    for pod in pods {
        let Some(uid) = uids.get(&(pod.namespace.as_str(), pod.name.as_str())) else { continue };
        state.entries.retain(|entry| entry.pod != **uid);
        for container in &pod.containers {
            for given in &container.devices {
                let numa = numa_of(given);
                let held = |id: &String| HeldDevice { id: id.clone(), numa: numa.clone() };
                state.entries.push(DeviceEntry {
                    pod: (*uid).to_owned(),
                    container: container.name.clone(),
                    resource: given.resource_name.clone(),
                    devices: given.device_ids.iter().map(held).collect(),
                });
            }
        }
    }
}

/// All devices and NUMA nodes that the kubelet knows from their plugins.
fn by_kubelet(all: &[ContainerDevices]) -> Vec<Offered> {
    let mut found: BTreeMap<(&str, &str), Vec<u32>> = BTreeMap::new();
    for devices in all {
        for id in &devices.device_ids {
            // A device of several NUMA nodes is listed once for each.
            let numa = found.entry((&devices.resource_name, id)).or_default();
            numa.extend(numa_of(devices));
            numa.sort_unstable();
            numa.dedup();
        }
    }
    let offered = |((resource, id), numa): ((&str, &str), Vec<u32>)| Offered {
        resource: resource.to_owned(),
        id: id.to_owned(),
        numa,
    };
    found.into_iter().map(offered).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use berth_devices::proto::podresources::{ContainerResources, NumaNode, TopologyInfo};

    use super::*;

    fn given(id: &str, numa: i64) -> ContainerDevices {
        ContainerDevices {
            resource_name: "nvidia.com/gpu".to_owned(),
            device_ids: vec![id.to_owned()],
            topology: Some(TopologyInfo { nodes: vec![NumaNode { id: numa }] }),
        }
    }

    #[test]
    fn podresources_replace_entries_of_known_pods_only() {
        let mut reading = Reading::default();
        let entry = |pod: &str| DeviceEntry { pod: pod.to_owned(), ..DeviceEntry::default() };
        let state = reading.kubelet.devices.get_or_insert_default();
        state.entries = vec![entry("u-a"), entry("u-b")];
        let resident = |name: &str| Resident {
            namespace: "n".to_owned(),
            name: name.to_owned(),
            uid: format!("u-{name}"),
        };
        let answer = |name: &str| Answer {
            namespace: "n".to_owned(),
            name: name.to_owned(),
            containers: vec![ContainerResources {
                name: "server".to_owned(),
                devices: vec![given("GPU-1", 1)],
                ..ContainerResources::default()
            }],
        };
        correct(&mut reading, &[resident("a")], &[answer("a"), answer("stranger")]);
        let entries = reading.kubelet.devices.unwrap().entries;
        let pods: Vec<&str> = entries.iter().map(|entry| entry.pod.as_str()).collect();
        assert_eq!(pods, ["u-b", "u-a"]);
        assert_eq!(entries[1].devices, [HeldDevice { id: "GPU-1".to_owned(), numa: vec![1] }]);
    }

    #[test]
    fn a_device_at_several_numa_nodes_is_one_device() {
        let found = by_kubelet(&[given("GPU-1", 1), given("GPU-1", 0), given("GPU-2", 1)]);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].numa, [0, 1]);
    }

    #[tokio::test]
    async fn without_a_socket_the_checkpoint_counts() {
        let mut source = PodResources::new("/nowhere/kubelet.sock".into());
        let listing = source.update(&mut Reading::default(), &[]).await;
        assert!(listing.diagnoses.is_empty() && listing.offered.is_empty());
    }
}
