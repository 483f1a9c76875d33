//! Limits on input. Exceeding one is an error with a position.

/// Bytes of one source.
pub const SOURCE_BYTES_MAX: usize = 256 << 20;

/// Objects of one source, those in lists counted one by one.
pub const DOCUMENTS_MAX: usize = 200_000;

/// Values inside of values.
pub const DEPTH_MAX: usize = 100;

/// Values of one source. A dump of 50 MB has about two million.
pub const VALUES_MAX: usize = 10_000_000;

/// Values of one source that are there because of anchors: each alias stands for all that its
/// anchor holds, so ten short lines can stand for a billion values.
pub const ALIASED_VALUES_MAX: usize = 1_000_000;

/// Files of one `load`.
pub const FILES_MAX: usize = 50_000;

/// Directories inside of directories, where links may go round in circles.
pub const DIRECTORY_DEPTH_MAX: usize = 32;
