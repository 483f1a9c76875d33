//! The board of a product name: `NVIDIA-H100-80GB-HBM3`, `NVIDIA A100 80GB PCIe`.
//!
//! A name matches a board if it has all the words of one of the board's word lists, and none that
//! the list marks with `!`. A word that states a memory size (`80GB`, `144G`) must be the board's
//! own size or one of the words listed, so an A100 with 64 GB is unknown rather than taken for one
//! with 40 or 80.

use super::board::Board;
use super::board::NameMatch::Near;
use super::name::ProfileName;
use super::table::BOARDS;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProductError {
    /// No board has this name.
    #[error("unknown MIG board {product:?}")]
    Unknown { product: String },
    /// Boards have this name, but none has this memory.
    #[error("no board named {product:?} has {memory_mib} MiB of memory")]
    MemoryMismatch { product: String, memory_mib: u64 },
    /// Several boards have this name; memory would tell them apart.
    #[error("{product:?} is ambiguous without its memory size: {}", candidates.join(", "))]
    Ambiguous { product: String, candidates: Vec<&'static str> },
}

impl Board {
    /// `product` is `nvidia-smi`'s name or the label `nvidia.com/gpu.product`, with or without
    /// `-SHARED` and, under the `single` strategy, `-MIG-<profile>` or `-MIG-INVALID`. `memory_mib`
    /// is the label `nvidia.com/gpu.memory`, which distinguishes boards of one name; it is ignored
    /// if the name ends in a MIG profile, because then it is a slice's memory.
    pub fn by_product(
        product: &str,
        memory_mib: Option<u64>,
    ) -> Result<&'static Board, ProductError> {
        // Feature discovery writes this, with a memory of 0, for a MIG GPU without slices.
        let (invalid, product) = match product.strip_suffix("-MIG-INVALID") {
            Some(name) => (true, name),
            None => (false, product),
        };
        let memory_mib = memory_mib.filter(|_| !invalid);
        let (name, slice) = split_slice(product);
        // Laptop GPUs and vGPUs (`A30-4-24C`) do not support MIG, whatever board their names
        // resemble.
        let vgpu = words(name).last().is_some_and(|word| {
            let digits = word.strip_suffix(['A', 'B', 'C', 'Q']);
            digits.is_some_and(|digits| {
                !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
            })
        });
        if vgpu || words(name).any(|word| word.eq_ignore_ascii_case("laptop")) {
            return Err(ProductError::Unknown { product: product.to_owned() });
        }
        let mut found: Vec<(&'static Board, usize)> = BOARDS
            .iter()
            .filter_map(|b| specificity(b, name).map(|s| (b, s)))
            .filter(|(b, _)| slice.is_none_or(|p| b.find(p).is_some()))
            .collect();
        let exact = |b: &Board| slice.and_then(|p| b.find(p)).is_some_and(|(_, how)| how != Near);
        if found.iter().any(|(b, _)| exact(b)) {
            found.retain(|(b, _)| exact(b));
        }
        if found.is_empty() {
            return Err(ProductError::Unknown { product: product.to_owned() });
        }
        if let Some(memory_mib) = memory_mib.filter(|_| slice.is_none()) {
            found.retain(|(b, _)| distance(b, memory_mib).is_some());
            let Some(least) = found.iter().filter_map(|(b, _)| distance(b, memory_mib)).min()
            else {
                let product = product.to_owned();
                return Err(ProductError::MemoryMismatch { product, memory_mib });
            };
            found.retain(|(b, _)| distance(b, memory_mib) == Some(least));
        }
        let most = found.iter().map(|(_, s)| *s).max();
        found.retain(|(_, s)| Some(*s) == most);
        match found.as_slice() {
            [(board, _)] => Ok(board),
            _ => Err(ProductError::Ambiguous {
                product: product.to_owned(),
                candidates: found.iter().map(|(b, _)| b.id).collect(),
            }),
        }
    }
}

/// Splits `NVIDIA-A100-SXM4-40GB-MIG-1g.5gb` into the product and the slice.
fn split_slice(product: &str) -> (&str, Option<ProfileName>) {
    for mark in ["-MIG-", " MIG "] {
        if let Some((name, slice)) = product.split_once(mark) {
            let slice = slice.strip_suffix("-SHARED").unwrap_or(slice);
            let read = slice.parse().or_else(|_| ProfileName::from_resource_part(slice));
            if let Ok(profile) = read {
                return (name, Some(profile));
            }
        }
    }
    (product, None)
}

fn words(name: &str) -> impl Iterator<Item = &str> {
    name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty())
}

/// How many words of the name match the board; `None` if it is another board.
fn specificity(board: &Board, name: &str) -> Option<usize> {
    let mut best = None;
    for list in board.words {
        let has = |word: &str| words(name).any(|w| w.eq_ignore_ascii_case(word));
        let listed = |word: &str| list.iter().any(|l| l.eq_ignore_ascii_case(word));
        if !list.iter().all(|w| w.strip_prefix('!').map_or_else(|| has(w), |not| !has(not))) {
            continue;
        }
        let mut sizes = words(name).filter(|w| !listed(w)).filter_map(stated_gb);
        if sizes.any(|gb| gb != board.gb) {
            continue;
        }
        best = best.max(Some(list.len()));
    }
    best
}

/// The memory size in a word: `80GB` and `144G` have one, `SXM4` and `HBM3` do not.
fn stated_gb(word: &str) -> Option<u16> {
    let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &word[digits.len()..];
    if !unit.eq_ignore_ascii_case("gb") && !unit.eq_ignore_ascii_case("g") {
        return None;
    }
    digits.parse().ok()
}

/// Difference between `memory_mib` and the board's; `None` beyond 4 %. Drivers report about 0.5 %
/// less than the size sold; the nearest two boards that share a name, 94 and 96 GB, are 2 % apart.
fn distance(board: &Board, memory_mib: u64) -> Option<u64> {
    let sold = u64::from(board.gb) * 1024;
    let off = sold.abs_diff(memory_mib);
    (off.saturating_mul(25) <= sold).then_some(off)
}
