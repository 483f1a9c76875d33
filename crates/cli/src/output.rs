//! Where output goes, whether in colour, and what exit codes mean.
//!
//! Owns standard output and standard error. Must not know what is said there.

use std::io::{self, IsTerminal, Write as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use berth_lint::{Paint, render_problem};
use berth_manifest::LoadError;
use clap::ValueEnum;

/// Something was found.
pub(crate) const FOUND: u8 = 1;
/// The input cannot be used.
pub(crate) const UNUSABLE: u8 = 2;

/// When output is in colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Colour {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Colour {
    /// Whether what is written to `stream` is in colour.
    pub(crate) fn is_on(self, stream: &impl IsTerminal) -> bool {
        let refused = || {
            std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
                || std::env::var_os("TERM").is_some_and(|value| value == "dumb")
        };
        match self {
            Self::Auto => stream.is_terminal() && !refused(),
            Self::Always => true,
            Self::Never => false,
        }
    }
}

/// Writes to standard output. That nobody reads any more is no failure.
pub(crate) fn say(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("standard output cannot be written"),
    }
}

/// Writes to standard error. There is nobody to tell if that fails.
pub(crate) fn complain(text: &str) {
    drop(io::stderr().lock().write_all(text.as_bytes()));
}

/// Says why, and that the input could not be used.
pub(crate) fn failed(error: &anyhow::Error) -> ExitCode {
    complain(&format!("error: {error:#}\n"));
    ExitCode::from(UNUSABLE)
}

/// Says what is wrong with files, with the line it is in, and that they could not be used.
pub(crate) fn refused(error: &LoadError) -> ExitCode {
    let is_coloured = Colour::Auto.is_on(&io::stderr());
    let paint = if is_coloured { Paint::Coloured } else { Paint::Plain };
    complain(&render_problem(error, paint));
    ExitCode::from(UNUSABLE)
}

/// Writes a file as a whole or not at all.
pub(crate) fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    let failed = || format!("{} cannot be written", path.display());
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let mut file = tempfile::NamedTempFile::new_in(directory.unwrap_or(Path::new(".")))
        .with_context(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.flush()).with_context(failed)?;
    file.persist(path).with_context(failed)?;
    Ok(())
}
