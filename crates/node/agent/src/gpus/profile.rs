//! MIG profiles of a GPU. Names follow from compute slices and memory by NVIDIA's rule, which go-nvlib also uses.

use serde::{Deserialize, Serialize};

use berth_model::mig::Board;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Profile {
    /// As printed by `nvidia-smi mig -lgip`.
    pub id: u32,
    /// Such as `1g.18gb+me`.
    pub name: String,
    /// Maximum number of instances.
    pub instances: u32,
    /// Compute slices.
    pub slices: u32,
    pub memory_mib: u64,
    pub multiprocessors: u32,
    pub copy_engines: u32,
    pub decoders: u32,
    pub encoders: u32,
    /// Possible first memory units.
    pub starts: Vec<u32>,
    /// Size in memory units; 0 if unknown.
    pub units: u32,
    pub placements: PlacementSource,
}

/// Source of a profile's placements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PlacementSource {
    Driver,
    /// The scheduler's table of boards.
    Table,
    #[default]
    Unknown,
}

impl Profile {
    /// Takes missing placements from the board's table, if it agrees with the driver on id, slices and name.
    pub(super) fn place_by_table(&mut self, board: &Board) {
        let same = board.profiles().iter().find(|one| {
            let id = one.driver_id().map(u32::from);
            id.is_none_or(|id| id == self.id)
                && u32::from(one.compute_slices()) == self.slices
                && one.name().to_string() == self.name
        });
        let Some(same) = same else { return };
        let (Some(starts), Some(units)) = (same.starts(), same.memory_units()) else { return };
        self.starts = starts.iter().map(u32::from).collect();
        self.units = u32::from(units);
        self.placements = PlacementSource::Table;
    }

    /// As `nvidia-smi mig -lgipp` prints it: `{0,2,4}:2`.
    pub fn placements(&self) -> String {
        let starts: Vec<String> = self.starts.iter().map(u32::to_string).collect();
        format!("{{{}}}:{}", starts.join(","), self.units)
    }

    /// Sorts as `nvidia-smi mig -lgip`.
    pub(super) fn order(&self) -> (u32, u64, bool, u32) {
        // The plain profile comes before its variants.
        (self.slices, self.memory_mib, self.name.contains(['+', '-']), self.id)
    }
}

/// The name of a profile: compute slices, and memory in eighths of the GPU's, in gigabytes. `suffix` distinguishes
/// variants of this size, such as `+me`.
pub fn name_of_slice(slices: u32, memory_mib: u64, gpu_bytes: u64, suffix: &str) -> String {
    let gpu_gb = gpu_bytes.div_ceil(1 << 30);
    let eighths = match gpu_bytes {
        0 => 0,
        _ => (u128::from(memory_mib) << 23).div_ceil(u128::from(gpu_bytes)),
    };
    // Round half a gigabyte up.
    let gb = (eighths * u128::from(gpu_gb) + 4) / 8;
    format!("{slices}g.{gb}gb{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What NVML reports of an H200, and the names that `nvidia-smi` of driver 580 prints.
    const H200: [(u32, u32, u64, &str, &str, &str); 7] = [
        (19, 1, 16_384, "", "1g.18gb", "{0,1,2,3,4,5,6}:1"),
        (20, 1, 16_384, "+me", "1g.18gb+me", "{0,1,2,3,4,5,6}:1"),
        (15, 1, 33_280, "", "1g.35gb", "{0,2,4,6}:2"),
        (14, 2, 33_280, "", "2g.35gb", "{0,2,4}:2"),
        (9, 3, 71_424, "", "3g.71gb", "{0,4}:4"),
        (5, 4, 71_424, "", "4g.71gb", "{0}:4"),
        (0, 7, 143_360, "", "7g.141gb", "{0}:8"),
    ];

    #[test]
    fn names_placements_and_order_of_an_h200_match_its_driver() {
        let board = Board::by_product("NVIDIA H200", Some(143_771)).unwrap();
        let profile = |(id, slices, memory_mib, suffix, ..): (u32, u32, u64, &str, &str, &str)| {
            let name = name_of_slice(slices, memory_mib, 143_771 << 20, suffix);
            let mut one = Profile { id, name, slices, memory_mib, ..Profile::default() };
            one.place_by_table(board);
            one
        };
        let mut profiles: Vec<Profile> = H200.into_iter().rev().map(profile).collect();
        profiles.sort_by_key(Profile::order);
        let found: Vec<_> =
            profiles.iter().map(|one| (one.id, one.name.clone(), one.placements())).collect();
        let printed: Vec<_> =
            H200.iter().map(|one| (one.0, one.4.to_owned(), one.5.to_owned())).collect();
        assert_eq!(found, printed);
    }

    #[test]
    fn names_of_other_boards_match_their_drivers() {
        for (slices, memory_mib, gpu_mib, name) in [
            (1, 9_856, 81_559, "1g.10gb"),
            (1, 20_096, 81_559, "1g.20gb"),
            (3, 40_320, 81_559, "3g.40gb"),
            (7, 80_640, 81_559, "7g.80gb"),
            (1, 4_864, 40_960, "1g.5gb"),
            (2, 9_856, 40_960, "2g.10gb"),
            (1, 5_952, 24_576, "1g.6gb"),
        ] {
            assert_eq!(name_of_slice(slices, memory_mib, gpu_mib << 20, ""), name);
        }
        assert_eq!(name_of_slice(1, u64::MAX, 0, ""), "1g.0gb", "nothing overflows");
    }

    #[test]
    fn a_table_that_contradicts_the_driver_is_not_used() {
        let board = Board::by_product("NVIDIA H200", Some(143_771)).unwrap();
        let mut odd = Profile { id: 99, name: "1g.18gb".into(), slices: 1, ..Profile::default() };
        odd.place_by_table(board);
        assert_eq!((odd.placements, odd.units), (PlacementSource::Unknown, 0));
    }
}
