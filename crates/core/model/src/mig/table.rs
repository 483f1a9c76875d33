//! The MIG boards, as data. Each board names its sources:
//!
//! - guide: NVIDIA MIG User Guide, "Supported MIG Profiles";
//! - go-nvml: its mock tables (2f9e261, `pkg/nvml/mock/gpus`). The placements for H100, H200 and
//!   B200 are wrong (sizes 3, 7 and 1 where the driver has 4, 8 and 2) and are not used;
//! - k8s-test-infra: its mock tables (790eaa3, `pkg/gpu/mocknvml/configs`; H100: c0148fc);
//! - mig-parted configuration: bd7160f, `deployments/systemd/config-default.yaml`;
//! - mig-parted listing: `nvidia-smi mig` output in mig-parted #101 #139 #166 #187 #227 or
//!   gpu-operator #1303;
//! - own listing: `nvidia-smi mig` output of one H200, driver 580.159.04.
//!
//! If a driver's figure was not seen, memory is nominal.

use super::board::{Board, MemorySource, Profile};
use super::geometry::{GRID_4, GRID_8, GRID_12, Geometry, Starts};
use super::name::Attribute::{Graphics, Media, MediaAll, NoMedia, Plain};
use super::name::{Attribute, ProfileName};

/// Shapes of the eight-unit grid.
const G7: u8 = 0;
const G4: u8 = 1;
const G3: u8 = 2;
const G2: u8 = 3;
/// One compute slice with two units of memory.
const G1W: u8 = 4;
const G1: u8 = 5;

/// Shapes of the four- and twelve-unit grids.
const FULL: u8 = 0;
const HALF: u8 = 1;
const QUARTER: u8 = 2;

const fn on8(shape: u8, gb: u16, attribute: Attribute, max: u8) -> Profile {
    on(&GRID_8, shape, gb, attribute).max(max)
}

const fn on4(shape: u8, gb: u16, attribute: Attribute, max: u8) -> Profile {
    on(&GRID_4, shape, gb, attribute).max(max)
}

const fn on12(shape: u8, gb: u16, attribute: Attribute, max: u8) -> Profile {
    on(&GRID_12, shape, gb, attribute).max(max)
}

const fn on(grid: &Geometry, shape: u8, gb: u16, attribute: Attribute) -> Profile {
    let s = &grid.shapes[shape as usize];
    let mut profile = unplaced(s.compute, gb, attribute, 0);
    profile.shape = shape;
    profile.units = Some(s.units);
    profile.starts = Some(Starts::new(s.starts));
    profile
}

const fn unplaced(compute: u8, gb: u16, attribute: Attribute, max: u8) -> Profile {
    Profile {
        index: 0,
        name: ProfileName { compute, gb, attribute },
        also_gb: &[],
        driver_id: None,
        shape: 0,
        units: None,
        starts: None,
        max_instances: max,
        memory_mib: gb as u32 * 1024,
        memory_source: MemorySource::Nominal,
    }
}

impl Profile {
    const fn max(mut self, max: u8) -> Self {
        self.max_instances = max;
        self
    }

    const fn id(mut self, id: u8) -> Self {
        self.driver_id = Some(id);
        self
    }

    const fn also(mut self, gb: &'static [u16]) -> Self {
        self.also_gb = gb;
        self
    }

    const fn driver(mut self, mib: u32) -> Self {
        self.memory_mib = mib;
        self.memory_source = MemorySource::Driver;
        self
    }

    const fn mock(mut self, mib: u32) -> Self {
        self.memory_mib = mib;
        self.memory_source = MemorySource::Mock;
        self
    }
}

/// Sets every profile's index in its board's table.
const fn numbered<const N: usize>(mut profiles: [Profile; N]) -> [Profile; N] {
    let mut i = 0;
    while i < N {
        profiles[i].index = i as u8;
        i += 1;
    }
    profiles
}

pub(super) static BOARDS: [Board; 14] = [
    // Guide, go-nvml; placements from go-nvml's mock, whose A30 and A100 tables agree with NVIDIA's
    // published output.
    Board {
        id: "a30-24gb",
        product: "A30 24GB",
        words: &[&["A30"]],
        gb: 24,
        geometry: Some(&GRID_4),
        compute_slices: 4,
        max_instances: 4,
        profiles: &numbered([
            on4(QUARTER, 6, Plain, 4).mock(5836),
            on4(QUARTER, 6, Media, 1).mock(5836),
            on4(HALF, 12, Plain, 2).mock(11672),
            on4(HALF, 12, Media, 1).mock(11672),
            on4(FULL, 24, Plain, 1).mock(23344),
        ]),
    },
    // Guide, go-nvml; placements as listed by `nvidia-smi`. The guide prints 1/8 of the memory for
    // 1g.10gb; its placement size 2 and its 9.62 GiB show 2/8.
    Board {
        id: "a100-40gb",
        product: "A100 40GB (SXM4, PCIe), A800 40GB",
        words: &[&["A100"], &["A800"]],
        gb: 40,
        geometry: Some(&GRID_8),
        compute_slices: 7,
        max_instances: 7,
        profiles: &numbered([
            on8(G1, 5, Plain, 7).id(19).mock(4864),
            on8(G1, 5, Media, 1).id(20).mock(4864),
            on8(G1W, 10, Plain, 4).id(15).mock(9856),
            on8(G2, 10, Plain, 3).id(14).mock(9856),
            on8(G3, 20, Plain, 2).id(9).mock(19968),
            on8(G4, 20, Plain, 1).id(5).mock(19968),
            on8(G7, 40, Plain, 1).id(0).mock(40192),
        ]),
    },
    // Guide, go-nvml, public listing; placements as listed by `nvidia-smi`. Old drivers do not list
    // 1g.20gb.
    Board {
        id: "a100-80gb",
        product: "A100 80GB (SXM4, PCIe), A800 80GB",
        words: &[&["A100"], &["A800"]],
        gb: 80,
        geometry: Some(&GRID_8),
        compute_slices: 7,
        max_instances: 7,
        profiles: &numbered([
            on8(G1, 10, Plain, 7).id(19).mock(9856),
            on8(G1, 10, Media, 1).id(20).mock(9856),
            on8(G1W, 20, Plain, 4).id(15).mock(19968),
            on8(G2, 20, Plain, 3).id(14).mock(19968),
            on8(G3, 40, Plain, 2).id(9).mock(40192),
            on8(G4, 40, Plain, 1).id(5).mock(40192),
            on8(G7, 80, Plain, 1).id(0).mock(80384),
        ]),
    },
    // Guide, k8s-test-infra; placements from k8s-test-infra's mock, which follows the guide's
    // diagrams. Multiprocessors of 1g.20gb, 3g and 7g were not seen for this board; on H100 NVL and
    // H200 they are 26, 60 and 132.
    Board {
        id: "h100-80gb",
        product: "H100 80GB (SXM5, PCIe), H800 80GB",
        words: &[&["H100"], &["H100", "PCIe"], &["H800"]],
        gb: 80,
        geometry: Some(&GRID_8),
        compute_slices: 7,
        max_instances: 7,
        profiles: &numbered([
            on8(G1, 10, Plain, 7).id(19),
            on8(G1, 10, Media, 1).id(20),
            on8(G1W, 20, Plain, 4).id(15),
            on8(G2, 20, Plain, 3).id(14),
            on8(G3, 40, Plain, 2).id(9),
            on8(G4, 40, Plain, 1).id(5),
            on8(G7, 80, Plain, 1).id(0),
        ]),
    },
    // Mig-parted listing, public listing, mig-parted configuration; placements as listed by
    // `nvidia-smi`.
    Board {
        id: "h100-94gb",
        product: "H100 94GB (NVL, SXM5, PCIe), H800 NVL",
        words: &[&["H100"], &["H100", "NVL"], &["H800", "NVL"]],
        gb: 94,
        geometry: Some(&GRID_8),
        compute_slices: 7,
        max_instances: 7,
        profiles: &numbered([
            on8(G1, 12, Plain, 7).id(19).driver(11008),
            on8(G1, 12, Media, 1).id(20).driver(11008),
            on8(G1W, 24, Plain, 4).id(15),
            on8(G2, 24, Plain, 3).id(14).driver(22139),
            on8(G3, 47, Plain, 2).id(9).driver(47493),
            on8(G4, 47, Plain, 1).id(5).driver(47493),
            on8(G7, 94, Plain, 1).id(0).driver(95355),
        ]),
    },
    // Mig-parted configuration; placements inferred from a product with the same die and fractions.
    // Ids and placements inferred from the H100 NVL listing.
    Board {
        id: "h100-96gb",
        product: "H100 96GB on GH200; H20 96GB and PG506 96GB share its names",
        // A GH200's 480GB or 120GB is its processor's memory; an H20-3e is a 141 GB board.
        words: &[
            &["GH200"],
            &["GH200", "480GB"],
            &["GH200", "120GB"],
            &["H100"],
            &["H20", "!3e"],
            &["PG506"],
        ],
        gb: 96,
        geometry: Some(&GRID_8),
        compute_slices: 7,
        max_instances: 7,
        profiles: &numbered([
            on8(G1, 12, Plain, 7).id(19),
            on8(G1, 12, Media, 1).id(20),
            on8(G1W, 24, Plain, 4).id(15),
            on8(G2, 24, Plain, 3).id(14),
            on8(G3, 48, Plain, 2).id(9),
            on8(G4, 48, Plain, 1).id(5),
            on8(G7, 96, Plain, 1).id(0),
        ]),
    },
    // Own listing; placements as listed by `nvidia-smi`. Another driver printed 0.25 GiB less for
    // some profiles (mig-parted #120).
    Board {
        id: "h200-141gb",
        product: "H200 141GB (SXM5, NVL)",
        words: &[&["H200"]],
        gb: 141,
        geometry: Some(&GRID_8),
        compute_slices: 7,
        max_instances: 7,
        profiles: &numbered([
            on8(G1, 18, Plain, 7).id(19).driver(16384),
            on8(G1, 18, Media, 1).id(20).driver(16384),
            on8(G1W, 35, Plain, 4).id(15).driver(33280),
            on8(G2, 35, Plain, 3).id(14).driver(33280),
            on8(G3, 71, Plain, 2).id(9).driver(71424),
            on8(G4, 71, Plain, 1).id(5).driver(71424),
            on8(G7, 141, Plain, 1).id(0).driver(143_360),
        ]),
    },
    // Mig-parted listing, mig-parted configuration; placements inferred from a product with the
    // same die and fractions.
    Board {
        id: "gh200-144gb",
        product: "GH200 144G HBM3e",
        words: &[&["GH200"]],
        gb: 144,
        geometry: Some(&GRID_8),
        compute_slices: 7,
        max_instances: 7,
        profiles: &numbered([
            on8(G1, 18, Plain, 7).id(19).driver(17920),
            on8(G1, 18, Media, 1).id(20).driver(17920),
            on8(G1W, 36, Plain, 4).id(15).driver(36096),
            on8(G2, 36, Plain, 3).id(14).driver(36096),
            on8(G3, 72, Plain, 2).id(9),
            on8(G4, 72, Plain, 1).id(5),
            on8(G7, 144, Plain, 1).id(0),
        ]),
    },
    // Guide, mig-parted listing, k8s-test-infra; placements from k8s-test-infra's mock, which
    // follows the guide's diagrams. 1g.23gb printed 22.00 GiB in one listing and 20.50 GiB in
    // another.
    Board {
        id: "b200-180gb",
        product: "B200 180GB",
        words: &[&["B200"]],
        gb: 180,
        geometry: Some(&GRID_8),
        compute_slices: 7,
        max_instances: 7,
        profiles: &numbered([
            on8(G1, 23, Plain, 7).id(19).driver(22528),
            on8(G1, 23, Media, 1).id(20).driver(22528),
            on8(G1W, 45, Plain, 4).id(15).driver(45312),
            on8(G2, 45, Plain, 3).id(14).driver(45312),
            on8(G3, 90, Plain, 2),
            on8(G4, 90, Plain, 1),
            on8(G7, 180, Plain, 1),
        ]),
    },
    // Mig-parted listing, mig-parted configuration; placements inferred from a product with the
    // same die and fractions. Names drift between drivers: the same board has shown 1g.24gb with
    // 20.00 GiB.
    Board {
        id: "gb200-186gb",
        product: "GB200 186GB (HGX, NVL)",
        words: &[&["GB200"]],
        gb: 186,
        geometry: Some(&GRID_8),
        compute_slices: 7,
        max_instances: 7,
        profiles: &numbered([
            on8(G1, 23, Plain, 7).also(&[24]).id(19).driver(22528),
            on8(G1, 23, Media, 1).also(&[24]).id(20).driver(22528),
            on8(G1W, 47, Plain, 4).id(15).driver(46592),
            on8(G2, 47, Plain, 3).id(14).driver(46592),
            on8(G3, 93, Plain, 2).also(&[95]),
            on8(G4, 93, Plain, 1).also(&[95]),
            on8(G7, 186, Plain, 1).also(&[189]),
        ]),
    },
    // Mig-parted configuration; placements inferred from a product with the same die and fractions.
    // Names, counts and PCI id from mig-parted; no listing seen.
    Board {
        id: "b300-269gb",
        product: "B300 269GB",
        words: &[&["B300"]],
        gb: 269,
        geometry: Some(&GRID_8),
        compute_slices: 7,
        max_instances: 7,
        profiles: &numbered([
            on8(G1, 34, Plain, 7),
            on8(G1, 34, Media, 1),
            on8(G1W, 67, Plain, 4),
            on8(G2, 67, Plain, 3),
            on8(G3, 135, Plain, 2),
            on8(G4, 135, Plain, 1),
            on8(G7, 269, Plain, 1),
        ]),
    },
    // Mig-parted configuration; placements inferred from a product with the same die and fractions.
    // Names, counts and PCI id from mig-parted; no listing seen.
    Board {
        id: "gb300-278gb",
        product: "GB300 278GB",
        words: &[&["GB300", "!WS"]],
        gb: 278,
        geometry: Some(&GRID_8),
        compute_slices: 7,
        max_instances: 7,
        profiles: &numbered([
            on8(G1, 35, Plain, 7),
            on8(G1, 35, Media, 1),
            on8(G1W, 70, Plain, 4),
            on8(G2, 70, Plain, 3),
            on8(G3, 139, Plain, 2),
            on8(G4, 139, Plain, 1),
            on8(G7, 278, Plain, 1),
        ]),
    },
    // Public listing, guide, mig-parted configuration; placements as listed by `nvidia-smi`. The
    // PCI id and the listing are the Server Edition's; the guide gives the Workstation and Max-Q
    // Editions the same table.
    Board {
        id: "rtx-pro-6000-bw-96gb",
        product: "RTX PRO 6000 Blackwell 96GB",
        words: &[&["RTX", "PRO", "6000", "Blackwell"]],
        gb: 96,
        geometry: Some(&GRID_12),
        compute_slices: 4,
        max_instances: 4,
        profiles: &numbered([
            on12(QUARTER, 24, Plain, 4).id(14).driver(24187),
            on12(QUARTER, 24, Media, 1).id(21).driver(24187),
            on12(QUARTER, 24, Graphics, 4).id(47).driver(24187),
            on12(QUARTER, 24, MediaAll, 1).id(65).driver(24187),
            on12(QUARTER, 24, NoMedia, 4).id(67).driver(24187),
            on12(HALF, 48, Plain, 2).id(5).driver(48517),
            on12(HALF, 48, Graphics, 2).id(35).driver(48517),
            on12(HALF, 48, MediaAll, 1).id(64).driver(48517),
            on12(HALF, 48, NoMedia, 2).id(66).driver(48517),
            on12(FULL, 96, Plain, 1).id(0).driver(97403),
            on12(FULL, 96, Graphics, 1).id(32).driver(97403),
        ]),
    },
    // Guide; placements unknown. As the guide's edition 580 prints it; a later edition prints other
    // profiles (1g.24gb, 2g.48gb). No placement was seen, and the limit of two instances does not
    // agree with three of 1g.12gb-me.
    Board {
        id: "rtx-pro-5000-bw-48gb",
        product: "RTX PRO 5000 Blackwell 48GB",
        words: &[&["RTX", "PRO", "5000", "Blackwell"]],
        gb: 48,
        geometry: None,
        compute_slices: 4,
        max_instances: 2,
        profiles: &numbered([
            unplaced(1, 12, Plain, 1),
            unplaced(1, 12, Media, 1),
            unplaced(1, 12, Graphics, 1),
            unplaced(1, 12, NoMedia, 3),
            unplaced(2, 24, NoMedia, 1),
            unplaced(4, 48, Plain, 1),
            unplaced(4, 48, Graphics, 1),
        ]),
    },
];
