//! From a report to the devices on offer.
#![allow(clippy::unwrap_used, reason = "tests may fail")]

use std::path::Path;

use berth_agent::gpus::{DriverGpu, GpuMemory, Health, MigMode, Xid};
use berth_agent::offers::{GpuErrors, Offers, XID_MS, read_supply, supply};
use berth_agent::report::{GpuReport, NodeReport, PairReport};
use berth_agent::{GpuReading, GpuSource};
use berth_devices::offer::{Form, GpuChoice, Offer};
use berth_host::Root;
use berth_host::pci::Distance;

mod support;

fn gpu(index: u32, numa: u32) -> GpuReport {
    let told = DriverGpu {
        index,
        uuid: Some(format!("GPU-{index}")),
        memory: Some(GpuMemory { total_bytes: 80 << 30, ..GpuMemory::default() }),
        ..DriverGpu::default()
    };
    let address = format!("0000:{index:02x}:00.0");
    GpuReport { address, numa: Some(numa), driver: Some(told), ..GpuReport::default() }
}

fn node() -> NodeReport {
    let pair = |one: u32, other: u32, pci, nvlinks| PairReport {
        gpu: format!("0000:{one:02x}:00.0"),
        other: format!("0000:{other:02x}:00.0"),
        pci,
        driver: None,
        nvlinks,
    };
    let mut divided = gpu(2, 1);
    let told = divided.driver.as_mut().unwrap();
    told.mig = Some(MigMode { enabled: true, pending: true });
    let instance = r#"{"index":0,"uuid":"MIG-a","profile":"1g.10gb","memoryBytes":10737418240}"#;
    told.instances = vec![serde_json::from_str(instance).unwrap()];
    NodeReport {
        // By address, which is not the driver's order.
        gpus: vec![divided, gpu(1, 0), gpu(0, 0)],
        distances: vec![
            pair(0, 1, Distance::Node, 12),
            pair(0, 2, Distance::Sys, 0),
            pair(1, 2, Distance::Sys, 0),
        ],
        ..NodeReport::default()
    }
}

#[test]
fn gpus_and_slices_are_offered_with_their_topology() {
    let (supply, diagnoses) =
        supply(&node(), Path::new("/nowhere"), &Offer::defaults(), &GpuErrors::default());
    assert_eq!(diagnoses, []);
    let gpus = supply.inventory.gpus();
    assert_eq!(gpus.iter().map(|gpu| gpu.index.0).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(gpus[1].numa, [0]);
    assert_eq!(gpus[0].distances, [0, 8, 900]);
    assert_eq!(gpus[1].device_files, ["/dev/nvidia1"]);
    let listed = supply.inventory.devices().iter();
    let listed: Vec<(&str, &str)> =
        listed.map(|one| (one.resource.as_str(), one.id.as_str())).collect();
    let expected = [
        ("nvidia.com/gpu", "GPU-0"),
        ("nvidia.com/gpu", "GPU-1"),
        ("nvidia.com/mig-1g.10gb", "MIG-a"),
    ];
    assert_eq!(listed, expected);
    assert!(supply.unhealthy.is_empty());
}

#[test]
fn ecc_errors_and_hardware_xids_make_a_gpu_unhealthy() {
    let mut node = node();
    node.gpus[1].driver.as_mut().unwrap().health =
        Health { repair_pending: Some(true), ..Health::default() };
    let xid = |index: u32, number| Xid { uuid: Some(format!("GPU-{index}")), number: Some(number) };
    let mut errors = GpuErrors::default();
    errors.record(&xid(0, 31), 0);
    errors.record(&xid(2, 79), 0);
    let ill = |errors: &GpuErrors| {
        supply(&node, Path::new("/nowhere"), &Offer::defaults(), errors).0.unhealthy
    };
    let now = ill(&errors);
    assert_eq!(now.keys().collect::<Vec<_>>(), ["GPU-1", "GPU-2"]);
    assert_eq!(now["GPU-2"], "XID 79");
    errors.expire(XID_MS - 1);
    assert_eq!(ill(&errors).len(), 2);
    errors.expire(XID_MS);
    assert_eq!(ill(&errors).len(), 1);
}

#[test]
fn device_files_follow_the_driver() {
    let base = tempfile::tempdir().unwrap();
    let directory = base.path().join("proc/driver/nvidia/gpus/0000:01:00.0");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("information"), "Model: \t H100\nDevice Minor: \t 5\n").unwrap();
    let (supply, _) = supply(&node(), base.path(), &Offer::defaults(), &GpuErrors::default());
    assert_eq!(supply.inventory.gpus()[1].device_files, ["/dev/nvidia5"]);
}

#[test]
fn a_recorded_h200_is_on_offer_whole_and_in_capped_shares() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded/h200");
    let gpus = GpuReading::read(&GpuSource::Recorded(directory.clone()));
    let report = NodeReport::read(&Root::new(&directory), gpus);
    let mut offers = Offer::defaults();
    let form = Form::Shares { count: 4, memory_bytes: None, threads: None, per_container: 1 };
    offers.push(Offer { gpus: GpuChoice::All, form, resource: None, profile: None });
    let (supply, diagnoses) = supply(&report, &directory, &offers, &GpuErrors::default());
    assert_eq!(diagnoses, []);
    assert_eq!(supply.inventory.resources().len(), 2);
    assert_eq!(supply.inventory.devices().len(), 5);
    let text = format!("{:?}", supply.inventory.devices()[1].sharing);
    assert!(text.contains("ThreadCap(25)"), "{text}");
}

#[test]
fn a_slice_has_its_capability_files() {
    let mut node = node();
    let divided = node.gpus[0].driver.as_mut().unwrap();
    let slice = |index: u32, gpu: u32, compute: u32| {
        let text = format!(
            r#"{{"index":{index},"uuid":"MIG-{index}","profile":"1g.10gb","memoryBytes":10737418240,
                "gpuInstance":{gpu},"computeInstance":{compute}}}"#
        );
        serde_json::from_str(&text).unwrap()
    };
    divided.instances = vec![slice(0, 1, 0), slice(1, 1, 1), slice(2, 9, 0)];
    let root = tempfile::tempdir().unwrap();
    let caps = root.path().join("proc/driver/nvidia-caps");
    std::fs::create_dir_all(&caps).unwrap();
    // As an H200's driver lists them; the GPU has the minor number 3, not its own 2.
    let list = "config 1\nmonitor 2\ngpu2/gi1/access 30\ngpu3/gi1/access 138\n\
                gpu3/gi1/ci0/access 139\ngpu3/gi1/ci1/access 140\nodd\n";
    std::fs::write(caps.join("mig-minors"), list).unwrap();
    let info = root.path().join("proc/driver/nvidia/gpus/0000:02:00.0");
    std::fs::create_dir_all(&info).unwrap();
    std::fs::write(info.join("information"), "Model: \t\t H200\nDevice Minor: \t 3\n").unwrap();

    let (supply, _) = supply(&node, root.path(), &Offer::defaults(), &GpuErrors::default());
    let common = berth_devices::cdi::Common::default();
    let specification =
        berth_devices::cdi::specification("berth.dev/gpu", &supply.inventory, &common);
    let paths = |name: &str| -> Vec<String> {
        let devices = specification["devices"].as_array().unwrap();
        let device = devices.iter().find(|device| device["name"] == name).unwrap();
        let nodes = device["containerEdits"]["deviceNodes"].as_array().unwrap();
        nodes.iter().map(|node| node["path"].as_str().unwrap().to_owned()).collect()
    };
    let cap = |number: u32| format!("/dev/nvidia-caps/nvidia-cap{number}");
    assert_eq!(paths("MIG-0"), ["/dev/nvidia3".to_owned(), cap(138), cap(139)]);
    assert_eq!(paths("MIG-1"), ["/dev/nvidia3".to_owned(), cap(138), cap(140)]);
    assert_eq!(paths("MIG-2"), ["/dev/nvidia3"]);
}

#[tokio::test]
async fn changed_offers_apply_and_invalid_ones_do_not() {
    let node = support::Node::new(berth_host::synthetic::epyc_9654(1));
    let (_, root) = node.written();
    let text = serde_json::to_string(&node.gpus).unwrap();
    std::fs::write(root.path().join("nvml.json"), text).unwrap();
    let file = root.path().join("offers.yaml");
    let write = |offers: &str| {
        let head = "apiVersion: berth.dev/v1alpha1\nkind: DeviceOffers\nspec:\n  offers:\n";
        std::fs::write(&file, format!("{head}{offers}")).unwrap();
    };
    let mut offers = Offers::of_file(file.clone(), Offer::defaults());
    let gpus = GpuSource::Recorded(root.path().to_owned());
    let mut resources = async || {
        let root = Root::new(root.path());
        let supply = read_supply(&root, &gpus, &mut offers, &GpuErrors::default()).await;
        let named = supply.inventory.resources();
        named.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    write("  - as: whole\n");
    assert_eq!(resources().await, ["nvidia.com/gpu"]);
    write("  - {as: shares, count: 2}\n");
    assert_eq!(resources().await, ["berth.dev/gpu-share"]);
    write("  - {as: shares, count: 2000}\n");
    assert_eq!(resources().await, ["berth.dev/gpu-share"]);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(resources().await, ["berth.dev/gpu-share"]);
}

#[test]
fn gpu_errors_survive_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("berth/errors.json");
    assert_eq!(GpuErrors::load(&file), GpuErrors::default());
    let mut errors = GpuErrors::default();
    let xid = Xid { uuid: Some("GPU-1".to_owned()), number: Some(79) };
    errors.record(&xid, 1_000);
    errors.save(&file);
    assert_eq!(GpuErrors::load(&file), errors);
    std::fs::write(&file, "{ damaged").unwrap();
    assert_eq!(GpuErrors::load(&file), GpuErrors::default());
}
