//! Where output goes, whether in colour, and what exit codes mean.
//!
//! Owns standard output and standard error. Must not know what is said there.

use std::io::{self, IsTerminal, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;
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
