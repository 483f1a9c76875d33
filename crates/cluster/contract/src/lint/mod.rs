//! The contract on files: findings with positions, in several formats, and fixes of the text. Arguments, exit codes
//! and printing are the CLI's.

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
