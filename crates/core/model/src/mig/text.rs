//! Layouts as text: `3g.40gb@0 + 2g.20gb@4 + 1g.10gb@6`.

use std::fmt;

use super::board::{Board, ProfileError};
use super::layout::{Layout, LayoutError};

const EMPTY: &str = "empty";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LayoutTextError {
    /// Not instances of the form `<profile>@<start>` joined by `+`.
    #[error("{text:?} is not a layout, such as 3g.40gb@0 + 1g.10gb+me@6")]
    Malformed {
        /// From where parsing stopped.
        text: String,
    },
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str(EMPTY);
        }
        for (i, instance) in self.instances().enumerate() {
            let joint = if i == 0 { "" } else { " + " };
            write!(f, "{joint}{instance}")?;
        }
        Ok(())
    }
}

impl Layout {
    /// Parses the printed form; the instances may come in any order.
    pub fn parse(board: &'static Board, text: &str) -> Result<Self, LayoutTextError> {
        let mut layout = Self::empty(board)?;
        let mut rest = text.trim();
        if rest.is_empty() || rest == EMPTY {
            return Ok(layout);
        }
        // A name may itself contain `+`, so an instance ends after the digits behind its `@`.
        loop {
            let malformed = || LayoutTextError::Malformed { text: rest.to_owned() };
            let (name, tail) = rest.split_once('@').ok_or_else(malformed)?;
            let end = tail.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(tail.len());
            let (digits, tail) = tail.split_at(end);
            let start = digits.parse().map_err(|_| malformed())?;
            layout.add(board.profile(name.trim())?, start)?;
            let tail = tail.trim_start();
            if tail.is_empty() {
                return Ok(layout);
            }
            rest = tail.strip_prefix('+').ok_or_else(malformed)?;
        }
    }
}
