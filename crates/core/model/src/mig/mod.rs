//! MIG geometry: which slices a GPU can be divided into and where they may start.
//!
//! Tables of boards and pure algebra over them: legality, room left, the start that leaves the most
//! room, full layouts, the smallest sufficient slice, cost shares, and the difference of two
//! layouts. Nothing is guessed: if a board's placements are unknown, no [`Layout`] of it exists.
//!
//! A board has a grid of memory units (4, 8 or 12) and a number of compute slices (4 or 7). A
//! [`Profile`] takes some of both and may start at certain units only. Occupancy is a bitmask, the
//! tables are static, and a [`Layout`] is a small copyable value without heap memory.
//!
//! ```
//! use berth_model::mig::{Board, Layout};
//!
//! let board = Board::by_product("NVIDIA-H100-80GB-HBM3", Some(81559)).unwrap();
//! let third = board.profile_by_resource("nvidia.com/mig-3g.40gb").unwrap();
//! let mut gpu = Layout::empty(board).unwrap();
//! assert_eq!(gpu.best_start(third), Some(4)); // keeps 4g.40gb possible at 0
//! gpu.add(third, 4).unwrap();
//! assert_eq!(gpu.remaining(board.profile("4g.40gb").unwrap()), 1);
//! assert_eq!(gpu.to_string(), "3g.40gb@4");
//! ```

mod board;
mod diff;
mod future;
mod geometry;
mod layout;
mod name;
mod need;
mod product;
mod share;
mod table;
mod text;

#[cfg(test)]
mod tests;

pub use board::{Board, MemorySource, NameMatch, Profile, ProfileError};
pub use diff::{BoardMismatch, Repartition};
pub use geometry::{Future, Starts};
pub use layout::{Instance, Layout, LayoutError};
pub use name::{Attribute, MigResource, NameError, ProfileName, RESOURCE_PREFIX};
pub use need::Need;
pub use product::ProductError;
pub use share::{Share, Shares};
pub use text::LayoutTextError;
