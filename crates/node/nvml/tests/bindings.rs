//! The bindings against a fake driver library: what they report, do and refuse.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod support;

use std::sync::{Mutex, MutexGuard, PoisonError};

use berth_nvml::{Activation, GpuInstance, Instances, MigError, Placement, gpu_instance_of};
use nvml_wrapper::Nvml;

/// The fake library has one GPU.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

fn opened() -> Nvml {
    Nvml::builder().lib_path(support::fake_driver().as_os_str()).init().unwrap()
}

fn place(start: u32, size: u32) -> Placement {
    Placement { start, size }
}

#[test]
fn placements_are_those_of_the_driver() {
    let _alone = alone();
    let nvml = opened();
    let device = nvml.device_by_index(0).unwrap();
    let placements = |profile| Instances::of(&device).placements(profile).unwrap();
    assert_eq!(placements(19), (0..7).map(|start| place(start, 1)).collect::<Vec<_>>());
    assert_eq!(placements(15), [place(0, 2), place(2, 2), place(4, 2), place(6, 2)]);
    assert_eq!(placements(9), [place(0, 4), place(4, 4)]);
    assert_eq!(placements(0), [place(0, 8)]);
    assert!(Instances::of(&device).placements(77).is_err());
    // If this fails, the wrapper was fixed, and this crate can drop a function.
    assert_eq!(device.possible_placements(9).unwrap().len(), 0, "the wrapper reports placements");
}

#[test]
fn instances_are_created_where_wanted_found_and_destroyed() {
    let _alone = alone();
    let nvml = opened();
    let device = nvml.device_by_index(0).unwrap();
    let all = Instances::of(&device);
    assert!(matches!(all.gpu_instances(9), Err(MigError::NotSupported)), "MIG is off");
    assert_eq!(berth_nvml::set_mig_mode(&device, true).unwrap(), Activation::Active);
    assert_eq!(all.gpu_instances(9).unwrap(), []);
    let upper = all.create_gpu_instance(9, place(4, 4)).unwrap();
    assert_eq!(upper, GpuInstance { id: 1, profile: 9, placement: place(4, 4) });
    let lower = all.create_gpu_instance(14, place(2, 2)).unwrap();
    assert_eq!((lower.id, lower.placement), (2, place(2, 2)));
    assert!(matches!(all.create_gpu_instance(9, place(0, 4)), Err(MigError::NoRoom)));
    assert!(all.create_gpu_instance(9, place(2, 4)).is_err(), "it cannot start there");

    let kinds = all.compute_profiles(upper.id).unwrap();
    assert_eq!(kinds.iter().map(|kind| kind.slices).collect::<Vec<_>>(), [1, 2, 3]);
    let compute = all.create_compute_instance(upper.id, kinds[2].id).unwrap();
    assert_eq!(all.compute_instances(upper.id).unwrap(), [compute]);
    assert_eq!(all.compute_instances(lower.id).unwrap(), []);
    assert_eq!(gpu_instance_of(&device.mig_device_by_index(0).unwrap()).unwrap(), upper.id);
    assert!(matches!(gpu_instance_of(&device), Err(MigError::NotSupported)));

    assert!(matches!(all.destroy_gpu_instance(upper.id), Err(MigError::InUse)));
    assert!(matches!(berth_nvml::set_mig_mode(&device, false), Err(MigError::InUse)));
    assert!(matches!(all.destroy_compute_instance(upper.id, 5), Err(MigError::NotThere)));
    all.destroy_compute_instance(upper.id, compute.id).unwrap();
    all.destroy_gpu_instance(upper.id).unwrap();
    assert!(matches!(all.destroy_gpu_instance(upper.id), Err(MigError::NotThere)));
    all.destroy_gpu_instance(lower.id).unwrap();
    assert_eq!(berth_nvml::set_mig_mode(&device, false).unwrap(), Activation::Active);
}

#[test]
fn a_library_that_is_not_there_is_an_error() {
    assert!(Nvml::builder().lib_path("libnvidia-ml.so.none".as_ref()).init().is_err());
}
