//! Tests of the MIG tables and algebra, against hand-verified facts and exhaustive search.

mod facts;
mod futures;
mod lookup;
mod props;
mod rules;
mod shares;

use super::{Board, Layout, Profile};

fn board(id: &str) -> &'static Board {
    Board::by_id(id).unwrap_or_else(|| panic!("no board {id}"))
}

fn layout(board: &'static Board, text: &str) -> Layout {
    Layout::parse(board, text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn profile(board: &'static Board, name: &str) -> &'static Profile {
    board.profile(name).unwrap_or_else(|e| panic!("{e}"))
}

fn placeable() -> impl Iterator<Item = &'static Board> {
    Board::all().iter().filter(|b| b.memory_units().is_some())
}

/// One board of each grid, those with the most variants: results for the others are the same.
fn one_of_each_grid() -> [&'static Board; 3] {
    [board("a30-24gb"), board("h200-141gb"), board("rtx-pro-6000-bw-96gb")]
}

/// Every legal layout of the admitted profiles.
fn every_layout(board: &'static Board, allow: fn(&Profile) -> bool) -> Vec<Layout> {
    fn grow(layout: Layout, from: u8, allow: fn(&Profile) -> bool, found: &mut Vec<Layout>) {
        found.push(layout);
        for profile in layout.board().profiles().iter().filter(|p| allow(p)) {
            for start in from..16 {
                if let Ok(next) = layout.with(profile, start) {
                    grow(next, start + 1, allow, found);
                }
            }
        }
    }
    let mut found = Vec::new();
    grow(Layout::empty(board).unwrap(), 0, allow, &mut found);
    found
}

/// What can still be created of each profile, alone.
fn room(gpu: Layout) -> impl Iterator<Item = (&'static Profile, u8)> {
    gpu.board().profiles().iter().map(move |p| (p, gpu.remaining(p)))
}

/// The most instances of a shape that fit into the free units, by exhaustive search.
fn most(units: u8, starts: &[u8], occupied: u16) -> u8 {
    let bits = |start: u8| (((1_u32 << units) - 1) << start) as u16;
    starts
        .iter()
        .filter(|s| bits(**s) & occupied == 0)
        .map(|s| 1 + most(units, starts, occupied | bits(*s)))
        .max()
        .unwrap_or(0)
}
