//! GPUs are repartitioned as their Node requests, and the outcome is written to it.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use berth_agent::GpuSource;
use berth_agent::mig::{
    Activation, DriverError, MigDriver, MigGpu, Placement, Slice, SupportedProfile,
};
use berth_agent::mig_reconciler::MigReconciler;
use berth_host::Root;
use berth_model::mig::Board;
use berth_testbed::{Testbed, Which};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

/// A fake H200.
#[derive(Clone)]
struct Obedient(Arc<Mutex<MigGpu>>);

impl MigDriver for Obedient {
    fn gpus(&mut self) -> Result<Vec<MigGpu>, DriverError> {
        Ok(vec![self.0.lock().unwrap().clone()])
    }

    fn set_mode(&mut self, _gpu: &str, enabled: bool) -> Result<Activation, DriverError> {
        let mut gpu = self.0.lock().unwrap();
        (gpu.enabled, gpu.pending) = (Some(enabled), enabled);
        Ok(Activation::Active)
    }

    fn create(&mut self, _gpu: &str, place: Placement) -> Result<(), DriverError> {
        let mut gpu = self.0.lock().unwrap();
        gpu.slices.push(Slice { place, compute: Vec::new() });
        gpu.slices.sort();
        Ok(())
    }

    fn add_compute(&mut self, _gpu: &str, place: Placement, slices: u8) -> Result<(), DriverError> {
        let mut gpu = self.0.lock().unwrap();
        let slice = gpu.slices.iter_mut().find(|one| one.place == place);
        slice.ok_or(DriverError::NotThere)?.compute.push(slices);
        Ok(())
    }

    fn remove_compute(&mut self, _gpu: &str, place: Placement) -> Result<(), DriverError> {
        let mut gpu = self.0.lock().unwrap();
        let slice = gpu.slices.iter_mut().find(|one| one.place == place);
        slice.ok_or(DriverError::NotThere)?.compute.pop();
        Ok(())
    }

    fn destroy(&mut self, _gpu: &str, place: Placement) -> Result<(), DriverError> {
        self.0.lock().unwrap().slices.retain(|one| one.place != place);
        Ok(())
    }
}

fn h200() -> MigGpu {
    let board = Board::by_product("NVIDIA H200", Some(143_771)).unwrap();
    let offer = |one: &berth_model::mig::Profile| SupportedProfile {
        profile: one.name(),
        starts: one.starts().map(|all| all.iter().collect()).unwrap_or_default(),
    };
    MigGpu {
        index: 0,
        uuid: "GPU-1".to_owned(),
        product: "NVIDIA H200".to_owned(),
        pci_id: None,
        board: Some(board),
        enabled: Some(false),
        pending: false,
        profiles: board.profiles().iter().map(offer).collect(),
        slices: Vec::new(),
    }
}

struct World {
    nodes: Api<Node>,
    gpu: Arc<Mutex<MigGpu>>,
    _testbed: Testbed,
    _directory: tempfile::TempDir,
}

impl World {
    async fn new(labels: Value) -> Self {
        let testbed = Testbed::start(Which::Embedded).await.unwrap();
        let client = testbed.admin().await.unwrap();
        let node = json!({ "apiVersion": "v1", "kind": "Node",
                           "metadata": { "name": "n1", "labels": labels } });
        testbed.apply([node]).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let gpu = Arc::new(Mutex::new(h200()));
        let opened = gpu.clone();
        let dividing = MigReconciler {
            node: "n1".to_owned(),
            root: Root::new(directory.path()),
            gpus: GpuSource::Recorded(directory.path().to_owned()),
            driver: Arc::new(move || Ok(Box::new(Obedient(opened.clone())))),
            journal: directory.path().join("mig.json"),
        };
        tokio::spawn(dividing.run(client.clone(), std::future::pending()));
        Self { nodes: Api::all(client), gpu, _testbed: testbed, _directory: directory }
    }

    async fn request(&self, text: &str) {
        let patch = json!({ "metadata": { "annotations": { "berth.dev/mig-layout": text } } });
        let how = PatchParams::default();
        self.nodes.patch("n1", &how, &Patch::Merge(&patch)).await.unwrap();
    }

    /// Waits for a label of the Node.
    async fn says(&self, label: &str, value: &str) -> Node {
        let began = Instant::now();
        loop {
            let node = self.nodes.get("n1").await.unwrap();
            let labels = node.metadata.labels.clone().unwrap_or_default();
            if labels.get(label).is_some_and(|said| said == value) {
                return node;
            }
            assert!(
                began.elapsed() < Duration::from_secs(20),
                "{label} is never {value}: {labels:?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn slices(&self) -> Vec<String> {
        self.gpu.lock().unwrap().slices.iter().map(|one| one.place.to_string()).collect()
    }
}

#[tokio::test]
async fn the_requested_layout_is_applied_and_reported() {
    let world = World::new(json!({})).await;
    world.request("4g.71gb,3g.71gb").await;
    world.says("berth.dev/mig.state", "success").await;
    assert_eq!(world.slices(), ["4g.71gb@0", "3g.71gb@4"]);
    world.request("8x1g.18gb").await;
    let node = world.says("berth.dev/mig.state", "rolled-back").await;
    let why = &node.metadata.annotations.unwrap()["berth.dev/mig-state"];
    assert!(why.contains("8 compute slices"), "{why}");
    assert_eq!(world.slices(), ["4g.71gb@0", "3g.71gb@4"], "nothing was touched");
    world.request("nonsense").await;
    world.says("berth.dev/mig.state", "failed").await;
    world.request("7x1g.18gb").await;
    world.says("berth.dev/mig.state", "success").await;
    assert_eq!(world.slices().len(), 7);
}

#[tokio::test]
async fn mig_manager_is_asked_where_it_runs() {
    let world = World::new(json!({ "nvidia.com/gpu.deploy.mig-manager": "true" })).await;
    world.request("all-1g.18gb").await;
    world.says("nvidia.com/mig.config", "all-1g.18gb").await;
    assert!(world.slices().is_empty(), "mig-manager does it");
}
