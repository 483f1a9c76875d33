//! The agent serves GPUs to the kubelet as the scheduler decided.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::BTreeSet;
use std::time::Duration;

use berth_agent::GpuSource;
use berth_agent::device_service::DeviceService;
use berth_agent::offers::Offers;
use berth_devices::DeviceConfig;
use berth_devices::mps::DaemonLock;
use berth_host::Root;
use berth_host::synthetic;
use berth_manifest::Source;
use berth_testbed::{Testbed, Which};
use berth_testkit::device_manager::FakeKubelet;
use k8s_openapi::api::core::v1::Pod as ApiPod;
use kube::api::{Api, PostParams};
use serde_json::json;

mod support;
use support::{Node, gpu_uuid, until};

const OFFERS: &str = "apiVersion: berth.dev/v1alpha1\nkind: DeviceOffers\nspec:\n  offers:\n  - as: whole\n\
                      \x20 - gpus: [6, 7]\n    as: shares\n    count: 4\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gpus_are_allocated_as_decided_and_shares_have_a_cap() {
    let testbed = Testbed::start(Which::Embedded).await.unwrap();
    let client = testbed.admin().await.unwrap();
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" } });
    testbed.apply([node]).await.unwrap();
    // The scheduler chose the sixth GPU, on the second socket; packing alone would choose the first.
    let placement = json!({
        "alignment": "aligned", "numaNodes": [1], "why": "",
        "devices": [{ "resource": "nvidia.com/gpu", "count": 1, "ids": [gpu_uuid(5)] }],
    });
    let pod = json!({
        "metadata": { "name": "a",
                      "annotations": { "berth.dev/placement": placement.to_string() } },
        "spec": { "nodeName": "n1", "containers": [{ "name": "main", "image": "model:1" }] },
    });
    let pods: Api<ApiPod> = Api::namespaced(client.clone(), "default");
    let pod = serde_json::from_value(pod).unwrap();
    let uid = pods.create(&PostParams::default(), &pod).await.unwrap().metadata.uid.unwrap();

    let node = Node::new(synthetic::epyc_9654(1));
    let (_, directory) = node.written();
    let root = directory.path();
    std::fs::write(root.join("nvml.json"), serde_json::to_string(&node.gpus).unwrap()).unwrap();
    let mut config = DeviceConfig::read(&Source::new("offers.yaml", OFFERS)).unwrap();
    config.plugin.kubelet_directory = root.join("kubelet");
    config.plugin.journal = root.join("journal.json");
    config.plugin.responses.mps_directory = root.join("mps");
    let daemon = |gpu| DaemonLock::acquire(&root.join("mps"), &gpu_uuid(gpu)).unwrap();
    let _daemons = [daemon(6), daemon(7)];
    config.plugin.poll_interval = Duration::from_millis(20);
    let kubelet = FakeKubelet::start(&root.join("kubelet"), BTreeSet::new()).unwrap();
    let handing = DeviceService {
        node: "n1".to_owned(),
        root: Root::new(root),
        gpus: GpuSource::Recorded(root.to_owned()),
        offers: Offers::fixed(config.offers.clone()),
        config,
    };
    let running = tokio::spawn(handing.run(client, std::future::pending()));

    until("all GPUs are offered", async || {
        (kubelet.healthy("nvidia.com/gpu").len() == 8).then_some(())
    })
    .await;
    let (ids, _) = until("it is given what was decided", async || {
        // If the decision has not arrived yet, the allocation is returned.
        let given = kubelet.admit(&uid, "nvidia.com/gpu", 1).await.unwrap();
        if given.0 == [gpu_uuid(5)] {
            return Some(given);
        }
        kubelet.end(&uid);
        None
    })
    .await;
    assert_eq!(ids, [gpu_uuid(5)]);
    let (share, answer) = kubelet.admit("other", "berth.dev/gpu-share", 1).await.unwrap();
    assert!(share[0].starts_with(&gpu_uuid(6)) || share[0].starts_with(&gpu_uuid(7)), "{share:?}");
    assert_eq!(answer.envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], "25");
    running.abort();
}
