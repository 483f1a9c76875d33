//! Slices that a GPU can be divided into.
//!
//! Owns their names, which follow from compute slices and memory by a rule of NVIDIA's own
//! (go-nvlib does the same), and their order. Must not ask a driver.

use serde::{Deserialize, Serialize};

use berth_model::mig::Board;

/// A kind of slice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Profile {
    /// The id that `nvidia-smi mig -lgip` prints.
    pub id: u32,
    /// Name, such as `1g.18gb+me`.
    pub name: String,
    /// Most slices of this kind.
    pub instances: u32,
    /// Compute slices.
    pub slices: u32,
    /// Memory.
    pub memory_mib: u64,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Copy engines.
    pub copy_engines: u32,
    /// Decoders.
    pub decoders: u32,
    /// Encoders.
    pub encoders: u32,
    /// Where it may start, in units of memory.
    pub starts: Vec<u32>,
    /// How many units it takes; 0 where that is not known.
    pub units: u32,
    /// Who tells where it may start.
    pub placements: PlacementSource,
}

/// Who tells where slices may start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PlacementSource {
    /// The driver.
    Driver,
    /// The table of boards that the scheduler plans with.
    Table,
    /// Nobody.
    #[default]
    Unknown,
}

impl Profile {
    /// Takes from the board's table what the driver did not tell.
    ///
    /// Only where the table and the driver agree on all else: id, slices and name.
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

    /// As `nvidia-smi mig -lgipp` writes it: `{0,2,4}:2`.
    pub fn placements(&self) -> String {
        let starts: Vec<String> = self.starts.iter().map(u32::to_string).collect();
        format!("{{{}}}:{}", starts.join(","), self.units)
    }

    /// In the order of `nvidia-smi mig -lgip`.
    pub(super) fn order(&self) -> (u32, u64, bool, u32) {
        // The plain one comes before those with something added.
        (self.slices, self.memory_mib, self.name.contains(['+', '-']), self.id)
    }
}

/// The name of a slice: compute slices, and its eighths of the GPU's memory, in gigabytes.
///
/// `suffix` tells what sets it apart from others of this size, such as `+me`.
pub fn name_of_slice(slices: u32, memory_mib: u64, gpu_bytes: u64, suffix: &str) -> String {
    let gpu_gb = gpu_bytes.div_ceil(1 << 30);
    let eighths = match gpu_bytes {
        0 => 0,
        _ => (u128::from(memory_mib) << 23).div_ceil(u128::from(gpu_bytes)),
    };
    // Half a gigabyte is rounded up.
    let gb = (eighths * u128::from(gpu_gb) + 4) / 8;
    format!("{slices}g.{gb}gb{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What NVML says of an H200, and what `nvidia-smi` of driver 580 calls it.
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
    fn an_h200_has_the_names_placements_and_order_that_its_driver_prints() {
        let board = Board::by_product("NVIDIA H200", Some(143_771)).unwrap();
        let made = |(id, slices, memory_mib, suffix, ..): (u32, u32, u64, &str, &str, &str)| {
            let name = name_of_slice(slices, memory_mib, 143_771 << 20, suffix);
            let mut one = Profile { id, name, slices, memory_mib, ..Profile::default() };
            one.place_by_table(board);
            one
        };
        let mut profiles: Vec<Profile> = H200.into_iter().rev().map(made).collect();
        profiles.sort_by_key(Profile::order);
        let found: Vec<_> =
            profiles.iter().map(|one| (one.id, one.name.clone(), one.placements())).collect();
        let printed: Vec<_> =
            H200.iter().map(|one| (one.0, one.4.to_owned(), one.5.to_owned())).collect();
        assert_eq!(found, printed);
    }

    #[test]
    fn other_boards_have_the_names_people_know() {
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
    fn a_table_that_disagrees_with_the_driver_places_nothing() {
        let board = Board::by_product("NVIDIA H200", Some(143_771)).unwrap();
        let mut odd = Profile { id: 99, name: "1g.18gb".into(), slices: 1, ..Profile::default() };
        odd.place_by_table(board);
        assert_eq!((odd.placements, odd.units), (PlacementSource::Unknown, 0));
    }
}
