//! The agent repartitions a GPU through the real bindings, against a fake driver library.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use berth_agent::mig::journal::Unfinished;
use berth_agent::mig::{
    FileJournal, Journal, LayoutRequest, MigDriver, MigReport, MigState, NvmlDriver, Placement,
    Reach, Slice, Workloads,
};

mod support;

/// One test, since there is one GPU.
#[test]
fn a_gpu_is_repartitioned_through_nvml() {
    let directory = tempfile::tempdir().unwrap();
    let mut journal = FileJournal::new(directory.path().join("mig.json"));
    let mut driver = NvmlDriver::of_library(support::fake_driver().as_os_str()).unwrap();
    let gpu = driver.gpus().unwrap().remove(0);
    assert_eq!((gpu.product.as_str(), gpu.enabled), ("NVIDIA H200", Some(false)));
    assert_eq!(gpu.board.unwrap().id(), "h200-141gb");
    assert_eq!(gpu.pci_id.as_deref(), Some("0x233510DE"));
    let starts = |name: &str| {
        let offer = gpu.profiles.iter().find(|one| one.profile.to_string() == name).unwrap();
        offer.starts.clone()
    };
    assert_eq!((starts("1g.35gb"), starts("3g.71gb")), (vec![0, 2, 4, 6], vec![0, 4]));

    let mut make = |driver: &mut NvmlDriver, request: &str, workloads: &Workloads| {
        let request = LayoutRequest::parse(request).unwrap();
        MigReport::apply(driver, &mut journal, &request, workloads, Reach::AroundWork)
    };
    let idle = Workloads::default();
    let there = |driver: &mut NvmlDriver| driver.gpus().unwrap()[0].layout().to_string();
    let report = make(&mut driver, "4g.71gb,3g.71gb", &idle).unwrap();
    assert!(report.is_good(), "{}", report.table());
    assert_eq!(there(&mut driver), "4g.71gb@0 + 3g.71gb@4");
    let report = make(&mut driver, "all-balanced", &idle).unwrap();
    assert_eq!(report.gpus[0].kept, [Placement::parse("3g.71gb@4").unwrap()]);
    assert_eq!(there(&mut driver), "1g.18gb@0 + 1g.18gb@1 + 2g.35gb@2 + 3g.71gb@4");
    let report = make(&mut driver, "1g.18gb+me@6,1g.35gb@0,2g.35gb@4", &idle).unwrap();
    assert!(report.is_good(), "{}", report.table());
    assert_eq!(there(&mut driver), "1g.35gb@0 + 2g.35gb@4 + 1g.18gb+me@6");

    let mut workloads = Workloads::default();
    workloads.slice(&gpu.uuid, 4, "pod a");
    let refused = make(&mut driver, "all-1g.18gb", &workloads).unwrap_err();
    assert!(refused.to_string().contains("2g.35gb@4 is in use by pod a"), "{refused}");
    let report = make(&mut driver, "2g.35gb,1g.18gb,1g.18gb", &workloads).unwrap();
    assert_eq!(report.gpus[0].kept.len(), 1);
    assert!(there(&mut driver).contains("2g.35gb@4"));

    let report = make(&mut driver, "off", &idle).unwrap();
    assert_eq!((report.is_good(), there(&mut driver).as_str()), (true, "off"));

    // After a crash: two slices were wanted, one exists, without compute.
    let mut wanted = driver.gpus().unwrap()[0].layout();
    let former = vec![wanted.clone()];
    wanted.enabled = true;
    wanted.slices =
        ["3g.71gb@0", "3g.71gb@4"].map(|one| Slice::whole(Placement::parse(one).unwrap())).into();
    journal.write(&Unfinished::new(former, vec![wanted])).unwrap();
    driver.set_mode(&gpu.uuid, true).unwrap();
    driver.create(&gpu.uuid, Placement::parse("3g.71gb@4").unwrap()).unwrap();
    assert_eq!(there(&mut driver), "3g.71gb@4 (no compute)");
    let request = LayoutRequest::parse("2x3g.71gb").unwrap();
    let report =
        MigReport::apply(&mut driver, &mut journal, &request, &idle, Reach::IdleGpus).unwrap();
    assert!(matches!(report.recovered, Some(MigState::Applied { .. })), "{report:?}");
    assert!(report.gpus[0].created.is_empty() && report.is_good());
    assert_eq!(there(&mut driver), "3g.71gb@0 + 3g.71gb@4");
}
