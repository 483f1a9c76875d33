//! MIG geometry: which slices a GPU can be divided into, where they may lie, and what follows from
//! that.
//!
//! This module owns the boards' tables and the pure algebra over them: legality, what is left, the
//! start that keeps the most possible, full layouts, the smallest slice that is enough, shares for
//! cost, and the difference of two layouts. It must not know nodes, pods, or how instances are
//! created; it does no I/O and guesses nothing: where a board's placements are not known
//! ([`Confidence::Unknown`]) no [`Layout`] of it can be made.
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

pub use board::{Board, Confidence, MemorySource, NameMatch, Profile, ProfileError, Source};
pub use diff::{BoardMismatch, Repartition};
pub use future::Room;
pub use geometry::{Future, Starts};
pub use layout::{Instance, Layout, LayoutError};
pub use name::{Attribute, MigResource, NameError, ProfileName, RESOURCE_PREFIX};
pub use need::Need;
pub use product::ProductError;
pub use share::{Apportioned, Share, Shares};
pub use text::LayoutTextError;
