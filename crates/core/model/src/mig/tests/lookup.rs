//! Lookup of boards by product name and of profiles by resource name.

use super::{board, profile};
use crate::mig::{
    Attribute, Board, NameError, NameMatch, Need, ProductError, ProfileError, ProfileName,
};

#[test]
fn product_strings_find_their_board() {
    for (product, memory, id) in [
        ("NVIDIA A30", None, "a30-24gb"),
        ("NVIDIA-A100-SXM4-40GB", Some(40960), "a100-40gb"),
        ("A100-PCIE-40GB", Some(40536), "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", None, "a100-80gb"),
        ("NVIDIA-A100-80GB-PCIe", Some(81920), "a100-80gb"),
        ("NVIDIA A800-SXM4-80GB", None, "a100-80gb"),
        ("NVIDIA-A100-SXM4-80GB-SHARED", Some(81920), "a100-80gb"),
        ("NVIDIA-H100-80GB-HBM3", Some(81559), "h100-80gb"),
        ("NVIDIA H100 PCIe", None, "h100-80gb"),
        ("NVIDIA-H800", Some(81559), "h100-80gb"),
        ("NVIDIA-H100-NVL", None, "h100-94gb"),
        ("NVIDIA H100 NVL", Some(95830), "h100-94gb"),
        ("NVIDIA-GH200-480GB", None, "h100-96gb"),
        ("NVIDIA GH200 480GB", Some(97871), "h100-96gb"),
        ("NVIDIA H20", Some(97871), "h100-96gb"),
        ("NVIDIA-GH200-144G-HBM3e", None, "gh200-144gb"),
        ("NVIDIA-H200", Some(143_771), "h200-141gb"),
        ("NVIDIA H200 NVL", None, "h200-141gb"),
        ("NVIDIA B200", Some(183_359), "b200-180gb"),
        ("NVIDIA GB200", Some(189_471), "gb200-186gb"),
        ("NVIDIA-B300-SXM6-AC", None, "b300-269gb"),
        ("NVIDIA GB300", None, "gb300-278gb"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", Some(97887), "rtx-pro-6000-bw-96gb"),
        ("NVIDIA RTX PRO 5000 Blackwell", None, "rtx-pro-5000-bw-48gb"),
        ("nvidia h200", None, "h200-141gb"),
    ] {
        assert_eq!(Board::by_product(product, memory).map(Board::id), Ok(id), "{product}");
    }
}

#[test]
fn memory_tells_boards_of_one_name_apart() {
    for (product, memory, id) in [
        ("NVIDIA H100", 81559, "h100-80gb"),
        ("NVIDIA H100", 95830, "h100-94gb"),
        ("NVIDIA H100", 97871, "h100-96gb"),
        ("NVIDIA A100", 40960, "a100-40gb"),
        ("NVIDIA A100", 81920, "a100-80gb"),
        ("NVIDIA GH200", 97871, "h100-96gb"),
        ("NVIDIA GH200", 147_456, "gh200-144gb"),
    ] {
        assert_eq!(Board::by_product(product, Some(memory)).map(Board::id), Ok(id), "{product}");
    }
    let error = Board::by_product("NVIDIA H100", None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "\"NVIDIA H100\" is ambiguous without its memory size: h100-80gb, h100-94gb, h100-96gb"
    );
}

#[test]
fn boards_not_in_the_table_are_not_taken_for_similar_ones() {
    for product in [
        "NVIDIA-A100-SXM-64GB",
        "NVIDIA H100 64GB HBM2",
        "NVIDIA RTX PRO 5000 72GB Blackwell",
        "NVIDIA RTX PRO 6000D Blackwell Workstation Edition",
        "NVIDIA-GB300-WS",
        "NVIDIA H20-3e",
        "NVIDIA L40S",
        "Tesla-T4",
        "NVIDIA A1000",
        "",
        "é-MIG-",
    ] {
        let unknown = ProductError::Unknown { product: product.to_owned() };
        assert_eq!(Board::by_product(product, None).unwrap_err(), unknown);
    }
    let wrong = Board::by_product("NVIDIA H200", Some(81559)).unwrap_err();
    assert!(matches!(wrong, ProductError::MemoryMismatch { memory_mib: 81559, .. }));
    assert!(Board::by_product("NVIDIA H200", Some(u64::MAX)).is_err());
}

#[test]
fn the_single_strategys_product_label_finds_the_board_of_the_slice() {
    // Under this strategy the memory label is the slice's, so it must not be compared.
    for (product, memory, id) in [
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", Some(4864), "a100-40gb"),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb.me", Some(9856), "a100-80gb"),
        ("NVIDIA-H100-MIG-3g.47gb", None, "h100-94gb"),
        ("NVIDIA-GB200-MIG-3g.94gb", None, "gb200-186gb"),
        ("NVIDIA-H200-MIG-1g.18gb-SHARED", Some(16384), "h200-141gb"),
        (
            "NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb-me",
            None,
            "rtx-pro-6000-bw-96gb",
        ),
    ] {
        assert_eq!(Board::by_product(product, memory).map(Board::id), Ok(id), "{product}");
    }
    assert!(Board::by_product("NVIDIA-A100-SXM4-40GB-MIG-1g.18gb", None).is_err());
}

#[test]
fn every_profile_is_found_by_its_name_and_its_resource() {
    for b in Board::all() {
        for p in b.profiles() {
            assert_eq!(b.profile(&p.to_string()).unwrap(), p);
            assert_eq!(b.profile_by_resource(&p.name().resource().to_string()).unwrap(), p);
            assert_eq!(p.name().to_string().parse(), Ok(p.name()));
        }
    }
}

#[test]
fn resource_names_follow_nvidias_device_plugin() {
    for (name, resource) in [
        ("3g.40gb", "nvidia.com/mig-3g.40gb"),
        ("1g.10gb+me", "nvidia.com/mig-1g.10gb.me"),
        ("1g.24gb+me.all", "nvidia.com/mig-1g.24gb.me.all"),
        ("4g.96gb+gfx", "nvidia.com/mig-4g.96gb.gfx"),
        ("1g.24gb-me", "nvidia.com/mig-1g.24gb-me"),
    ] {
        let read: ProfileName = name.parse().unwrap();
        assert_eq!(read.resource().to_string(), resource);
        assert_eq!(ProfileName::from_resource(resource), Ok(read));
    }
}

#[test]
fn malformed_names_are_errors() {
    for text in [
        "",
        "g",
        "3g",
        "3g.",
        "3g.gb",
        "3g.40",
        "3g.40GB",
        "+3g.40gb",
        "3g.+40gb",
        "03g.40gb",
        "3g.40gb+",
        "3g.40gb+xx",
        "3g.40gb.me",
        " 3g.40gb",
        "300g.40gb",
        "3g.99999gb",
        "3g.40gb+me+gfx",
        "é",
    ] {
        assert_eq!(
            text.parse::<ProfileName>(),
            Err(NameError::Malformed { text: text.to_owned() }),
        );
    }
    let inside = "1c.3g.40gb".parse::<ProfileName>();
    assert!(matches!(inside, Err(NameError::ComputeInstance { .. })));
    for resource in ["nvidia.com/gpu", "mig-3g.40gb", "example.com/mig-3g.40gb", ""] {
        let error = ProfileName::from_resource(resource);
        assert!(matches!(error, Err(NameError::NotAMigResource { .. })), "{resource}");
    }
    for resource in ["nvidia.com/mig-3g.40gb+me", "nvidia.com/mig-1g.5gb.shared"] {
        let error = ProfileName::from_resource(resource);
        assert!(matches!(error, Err(NameError::Malformed { .. })), "{resource}");
    }
}

#[test]
fn drifting_names_find_the_profile_and_say_how() {
    let b = board("gb200-186gb");
    let find =
        |text: &str| b.find(text.parse().unwrap()).map(|(p, how)| (p.to_string(), how)).unwrap();
    assert_eq!(find("1g.23gb"), ("1g.23gb".into(), NameMatch::Exact));
    assert_eq!(find("1g.24gb+me"), ("1g.23gb+me".into(), NameMatch::Alias));
    assert_eq!(find("3g.95gb"), ("3g.93gb".into(), NameMatch::Alias));
    assert_eq!(find("2g.48gb"), ("2g.47gb".into(), NameMatch::Near));
    // The double-memory slice is another profile, not a near name.
    assert_eq!(profile(board("a100-40gb"), "1g.10gb").memory_units(), Some(2));
    let error = board("h100-80gb").profile("1g.12gb").unwrap_err();
    assert_eq!(error.to_string(), "board h100-80gb has no MIG profile 1g.12gb");
    assert!(matches!(b.profile("x"), Err(ProfileError::Name(_))));
}

#[test]
fn similar_product_names_are_not_boards() {
    let found = |product: &str, memory_mib| Board::by_product(product, memory_mib).map(Board::id);
    assert_eq!(found("NVIDIA-A100-SXM4-40GB-MIG-INVALID", Some(0)), Ok("a100-40gb"));
    for product in ["NVIDIA A30-4-24C", "NVIDIA RTX PRO 5000 Blackwell Generation Laptop GPU"] {
        assert!(found(product, None).is_err(), "{product}");
    }
    assert!(board("a30-24gb").profile("0g.6gb").is_err());
}

#[test]
fn the_smallest_slice_that_is_enough_is_found() {
    let smallest = |id: &str, gib: u64, per_mille: u16| {
        let need = Need { memory_bytes: gib << 30, compute_per_mille: per_mille, attribute: None };
        board(id).smallest(&need).map(|p| p.to_string())
    };
    assert_eq!(smallest("h200-141gb", 0, 0).unwrap(), "1g.18gb");
    assert_eq!(smallest("h200-141gb", 16, 142).unwrap(), "1g.18gb");
    // 17 GiB are in the name 1g.18gb but not in the slice; one compute slice is 142.9 ‰.
    assert_eq!(smallest("h200-141gb", 17, 142).unwrap(), "1g.35gb");
    assert_eq!(smallest("h200-141gb", 17, 143).unwrap(), "1g.35gb");
    assert_eq!(smallest("h200-141gb", 17, 144).unwrap(), "2g.35gb");
    assert_eq!(smallest("h200-141gb", 1, 500).unwrap(), "4g.71gb");
    assert_eq!(smallest("h200-141gb", 60, 0).unwrap(), "3g.71gb");
    assert_eq!(smallest("h200-141gb", 70, 0).unwrap(), "7g.141gb");
    assert_eq!(smallest("h200-141gb", 1, 572).unwrap(), "4g.71gb");
    assert_eq!(smallest("h200-141gb", 1, 573).unwrap(), "7g.141gb");
    // A driver printed 21.62 GiB for 2g.24gb, so 1g.24gb of as many units has no more.
    assert_eq!(smallest("h100-94gb", 21, 0).unwrap(), "1g.24gb");
    assert_eq!(smallest("h100-94gb", 23, 0).unwrap(), "3g.47gb");
    assert_eq!(smallest("h200-141gb", 141, 0), None);
    assert_eq!(smallest("h200-141gb", 1, 1001), None);
    assert_eq!(smallest("rtx-pro-6000-bw-96gb", 23, 250).unwrap(), "1g.24gb");
    assert_eq!(smallest("rtx-pro-6000-bw-96gb", 23, 251).unwrap(), "2g.48gb");
}

#[test]
fn the_smallest_slice_respects_a_wanted_suffix_and_a_nodes_own_memory() {
    let b = board("rtx-pro-6000-bw-96gb");
    let need =
        Need { memory_bytes: 30 << 30, attribute: Some(Attribute::Graphics), ..Need::default() };
    assert_eq!(b.smallest(&need).unwrap().to_string(), "2g.48gb+gfx");
    let b = board("h100-80gb");
    let need = Need { memory_bytes: 10 << 30, ..Need::default() };
    // Only the name is known, and it may overstate.
    assert_eq!(b.smallest(&need).unwrap().to_string(), "1g.20gb");
    let measured = |p: &crate::mig::Profile| p.memory_bytes();
    assert_eq!(b.smallest_by(&need, measured).unwrap().to_string(), "1g.10gb");
}
