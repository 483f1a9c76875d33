//! DeviceOffers files, and the devices that follow from them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may fail")]

use std::path::Path;

use berth_devices::offer::{FoundGpu, FoundInstance, Offer, inventory};
use berth_devices::{Device, DeviceConfig, GpuIndex, Inventory, Kind, OfferedGpu, SharingMode};
use berth_manifest::Source;

const GIB: u64 = 1 << 30;

fn gpu(index: u16) -> FoundGpu {
    let gpu = OfferedGpu {
        index: GpuIndex(index),
        uuid: format!("GPU-{index}"),
        memory_bytes: 141 * GIB,
        ..OfferedGpu::default()
    };
    FoundGpu { gpu, ..FoundGpu::default() }
}

fn mig_enabled(index: u16, profiles: &[(&str, u64)]) -> FoundGpu {
    let instance = |(nth, (profile, gib)): (usize, &(&str, u64))| FoundInstance {
        uuid: format!("MIG-{index}-{nth}"),
        profile: (*profile).to_owned(),
        start: u8::try_from(nth).unwrap(),
        memory_bytes: gib * GIB,
        device_files: Vec::new(),
    };
    let instances = profiles.iter().enumerate().map(instance).collect();
    FoundGpu { mig_enabled: true, instances, ..gpu(index) }
}

fn read(offers: &str) -> Result<DeviceConfig, String> {
    let head = "apiVersion: berth.dev/v1alpha1\nkind: DeviceOffers\nspec:\n";
    let source = Source::new("offers.yaml", format!("{head}{offers}"));
    DeviceConfig::read(&source).map_err(|problem| {
        let remedy = problem.remedy.clone().unwrap_or_default();
        format!("{}: {} ({remedy})", problem.field, problem.message)
    })
}

fn of(inventory: &Inventory, resource: &str) -> Vec<String> {
    let devices = inventory.devices().iter().filter(|device| device.resource == resource);
    devices.map(|device| device.id.clone()).collect()
}

fn share(device: &Device) -> (u64, u8) {
    match device.sharing {
        SharingMode::Mps(share) => (share.memory_bytes, share.threads.percent()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn by_default_gpus_are_whole_and_mig_gpus_are_slices() {
    let found =
        vec![mig_enabled(1, &[("1g.18gb", 16), ("1g.18gb+me", 16)]), gpu(0), mig_enabled(2, &[])];
    let (inventory, diagnoses) = inventory(found, &Offer::defaults());
    assert_eq!(of(&inventory, "nvidia.com/gpu"), ["GPU-0"]);
    assert_eq!(of(&inventory, "nvidia.com/mig-1g.18gb"), ["MIG-1-0"]);
    assert_eq!(of(&inventory, "nvidia.com/mig-1g.18gb.me"), ["MIG-1-1"]);
    assert_eq!(inventory.devices().len(), 3);
    assert_eq!(diagnoses, []);
}

#[test]
fn shares_have_memory_and_a_cap_rounded_up() {
    let config = read(
        "  offers:\n  - {gpus: [0], as: shares, count: 3}\n  - {gpus: [GPU-1], as: shares, count: 2, \
         memory: 40Gi, threadPercent: 25, resource: berth.dev/small}\n",
    );
    let (inventory, diagnoses) = inventory(vec![gpu(0), gpu(1)], &config.unwrap().offers);
    assert_eq!(diagnoses, []);
    assert_eq!(of(&inventory, "berth.dev/gpu-share"), ["GPU-0::0", "GPU-0::1", "GPU-0::2"]);
    assert_eq!(share(&inventory.devices()[0]), (47 * GIB, 34));
    assert_eq!(of(&inventory, "berth.dev/small"), ["GPU-1::0", "GPU-1::1"]);
    assert_eq!(share(&inventory.devices()[3]), (40 * GIB, 25));
}

#[test]
fn slices_can_be_shared_and_replicated() {
    let config = read(
        "  offers:\n  - {as: shares, count: 2, profile: 3g.71gb}\n  - {as: replicas, count: 2, profile: 1g.18gb}\n",
    );
    let found = vec![mig_enabled(0, &[("3g.71gb", 70), ("1g.18gb", 16)]), gpu(1)];
    let (inventory, _) = inventory(found, &config.unwrap().offers);
    assert_eq!(of(&inventory, "berth.dev/gpu-share"), ["MIG-0-0::0", "MIG-0-0::1"]);
    assert_eq!(share(&inventory.devices()[0]), (35 * GIB, 50));
    assert_eq!(of(&inventory, "nvidia.com/mig-1g.18gb.shared"), ["MIG-0-1::0", "MIG-0-1::1"]);
    assert_eq!(inventory.devices()[2].sharing, SharingMode::TimeSliced);
    assert!(
        matches!(&inventory.devices()[2].kind, Kind::Mig { profile, .. } if profile == "1g.18gb")
    );
    assert_eq!(inventory.devices().len(), 4);
}

#[test]
fn conflicting_offers_are_left_out_with_a_diagnosis() {
    let config = read(
        "  offers:\n  - as: whole\n  - {gpus: [1, 7], as: whole}\n  - {gpus: [1], as: shares, count: 4, \
         memory: 40Gi}\n  - {gpus: [0], as: shares, count: 2}\n  - {gpus: [0], as: shares, count: 2, \
         resource: berth.dev/more}\n",
    );
    let (inventory, diagnoses) = inventory(vec![gpu(0), gpu(1)], &config.unwrap().offers);
    let paths: Vec<&str> = diagnoses.iter().map(|one| one.path.as_str()).collect();
    let expected = ["spec.offers[1].gpus", "spec.offers[1]", "spec.offers[2]", "spec.offers[4]"];
    assert_eq!(paths, expected);
    assert!(diagnoses[0].what.contains('7') && diagnoses[2].what.contains("4 shares of 40960 MiB"));
    assert!(diagnoses.iter().all(|one| !one.remedy.is_empty()));
    assert_eq!(inventory.devices().len(), 4);
}

#[test]
fn errors_name_the_field_and_the_remedy() {
    let cases = [
        (
            "  offers:\n  - {as: shares}\n",
            "spec.offers[0].count: is required (use the number of parts",
        ),
        ("  offers:\n  - {as: shares, count: 49}\n", "spec.offers[0].count: 49 is out of range"),
        (
            "  offers:\n  - as: whole\n  - {as: shares, count: 2, threadPercent: 0}\n",
            "spec.offers[1].threadPercent: 0 is out of range (use 1 to 100",
        ),
        (
            "  offers:\n  - {as: shares, count: 2, memory: much}\n",
            "spec.offers[0].memory: \"much\"",
        ),
        ("  offers:\n  - {as: half}\n", "spec.offers[0].as: unknown form \"half\" (use"),
        ("  offers:\n  - {gpus: [0]}\n", "spec.offers[0].as: is required"),
        ("  offers:\n  - {as: whole, gpus: []}\n", "spec.offers[0].gpus: is empty"),
        ("  offers:\n  - {as: whole, gpus: [-1]}\n", "spec.offers[0].gpus[0]: -1 is not a GPU"),
        (
            "  offers:\n  - {as: whole, count: 2}\n",
            "spec.offers[0].count: applies only to shares and replicas",
        ),
        (
            "  offers:\n  - {as: replicas, count: 2, memory: 1Gi}\n",
            "spec.offers[0].memory: applies only",
        ),
        ("  offers:\n  - {as: whole, resource: gpu}\n", "spec.offers[0].resource: \"gpu\""),
        (
            "  offers:\n  - {as: whole, profile: 1g.18gb}\n",
            "spec.offers[0].profile: does not apply",
        ),
        ("  journal: devices.json\n", "spec.journal: \"devices.json\" is not an absolute path"),
        ("  cdi: {directory: /var/run/cdi}\n", "spec.cdi.kind: is required (use vendor"),
        ("  cdi: {kind: berth.dev/gpu, mounts: [/a]}\n", "spec.cdi.directory: is required"),
    ];
    for (text, expected) in cases {
        let problem = read(text).unwrap_err();
        assert!(problem.starts_with(expected), "{text}: {problem}");
        assert!(!problem.ends_with("()"), "{problem}");
    }
    let unknown = read("  offers:\n  - {as: shares, shares: 2}\n").unwrap_err();
    assert!(unknown.contains("shares"), "{unknown}");
    let nothing = DeviceConfig::read(&Source::new("a", "kind: Pod\napiVersion: v1\n")).unwrap_err();
    assert!(nothing.message.contains("DeviceOffers") && nothing.remedy.is_some());
    let other = "apiVersion: berth.dev/v1\nkind: DeviceOffers\n";
    assert!(DeviceConfig::read(&Source::new("a", other)).is_err());
}

#[test]
fn an_empty_spec_has_the_defaults() {
    let source = Source::new(
        "a",
        "apiVersion: berth.dev/v1alpha1\nkind: DeviceOffers\nmetadata: {name: a}\n",
    );
    let config = DeviceConfig::read(&source).unwrap();
    assert_eq!(config.offers, Offer::defaults());
    assert_eq!(config.plugin.responses.cdi_kind, None);
    let config = read("  cdi: {kind: nvidia.com/gpu}\n  mpsDirectory: /run/mps\n").unwrap();
    assert_eq!(config.plugin.responses.cdi_kind.as_deref(), Some("nvidia.com/gpu"));
    assert!(config.specification.is_none());
    assert_eq!(config.plugin.responses.mps_directory, Path::new("/run/mps"));
}

#[test]
fn the_example_is_valid() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/device-offers.yaml");
    let source = Source::new("device-offers.yaml", std::fs::read_to_string(path).unwrap());
    let config = DeviceConfig::read(&source).unwrap();
    let (inventory, diagnoses) = inventory((0..8).map(gpu).collect(), &config.offers);
    assert_eq!(diagnoses, []);
    assert_eq!(inventory.devices().len(), 8 + 8 + 2);
}
