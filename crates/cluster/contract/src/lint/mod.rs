//! The scheduling contract on files: what breaks it, at which line, and the same text mended.
//!
//! Owned here: which files are checked and which only give context, where in the text a finding is,
//! how findings are shown to people, scripts and code scanners, and how fixes reach files. Rules are
//! `the parent`'s, text is `berth-manifest`'s. Deliberately absent: arguments, exit codes and
//! printing, which are the program's.

mod catalogue;
mod fix;
mod input;
mod json;
mod report;
mod sarif;
mod text;
mod write;

pub use catalogue::{Catalogue, explain};
pub use fix::{Change, FixError, diff, plan};
pub use input::{Input, InputError, settings};
pub use json::render as json;
pub use report::{Count, Located, Report, lint};
pub use sarif::render as sarif;
pub use text::{Paint, render as text, render_problem};
pub use write::{WriteError, write};
