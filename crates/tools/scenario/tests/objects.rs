//! Nodes of scenarios, shown as a cluster would show them and read again.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::path::Path;

use berth_api::Lower as _;
use berth_model::gpu::device_pools;
use berth_scenario::cluster::ClusterNode;
use berth_scenario::objects::node_objects;
use berth_scenario::scenario::load;

#[test]
fn a_node_that_is_shown_and_read_again_is_the_same() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/48-gpus/scenario.yaml");
    let loaded = load(&path, None).unwrap();
    assert_eq!(loaded.nodes.len(), 6);
    for setup in &loaded.nodes {
        let (node, exported) = node_objects(&ClusterNode::from(setup.clone()));
        let lowered = node.lower().unwrap();
        let inside = berth_topology::read(&node, &lowered, exported.as_ref(), None).unwrap();
        let (machine, kubelet) = inside.machine.clone().unwrap();
        assert_eq!(machine, setup.machine);
        assert_eq!(kubelet, setup.kubelet);
        let attached = |pools: Vec<berth_model::device::DevicePool>| -> Vec<_> {
            let numa = |pool: berth_model::device::DevicePool| {
                let mut numa: Vec<_> = pool.devices.iter().map(|device| device.numa).collect();
                numa.sort_unstable();
                (pool.resource, numa)
            };
            pools.into_iter().map(numa).collect()
        };
        let own = device_pools(&setup.gpus, setup.naming, setup.preferred).unwrap();
        assert_eq!(attached(inside.devices().unwrap()), attached(own));
    }
}
