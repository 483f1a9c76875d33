//! Where output goes, whether in colour, and what exit codes mean.
//!
//! Owns standard output and standard error. Must not know what is said there.

use std::io::{self, IsTerminal, Write as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use berth_contract::lint::{Paint, render_problem};
use berth_manifest::{LoadError, Problem};
use berth_plan::table;
use clap::ValueEnum;
use serde::Serialize;

/// Something was found.
pub(crate) const FOUND: u8 = 1;
/// The input cannot be used.
pub(crate) const UNUSABLE: u8 = 2;

/// How this program is called: `kubectl berth` where it is kubectl's plugin.
pub(crate) fn program() -> &'static str {
    let called = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&called).file_stem().unwrap_or_default().to_string_lossy();
    // kubectl looks for plugins with dashes of names written as underscores, too.
    if name == "kubectl-berth" || name == "kubectl_berth" { "kubectl berth" } else { "berth" }
}

/// How something is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Table,
    /// For people, with more of it.
    Wide,
    /// As JSON.
    Json,
    /// As YAML.
    Yaml,
    /// Kinds and names alone.
    Name,
}

/// Something as data.
pub(crate) fn data(what: &impl Serialize, format: Format) -> anyhow::Result<String> {
    Ok(match format {
        Format::Yaml => {
            berth_manifest::to_yaml(&serde_json::to_value(what).context("cannot be shown")?)
        }
        _ => format!("{}\n", serde_json::to_string_pretty(what).context("cannot be shown")?),
    })
}

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
    /// How tables on standard output are painted.
    pub(crate) fn paint(self) -> table::Paint {
        if self.is_on(&io::stdout()) { table::Paint::Coloured } else { table::Paint::Plain }
    }

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

/// Says why, with the line it is in where it is a text, by kubectl's exit code.
pub(crate) fn failed_as_kubectl(error: anyhow::Error) -> ExitCode {
    let error = match error.downcast::<Problem>() {
        Ok(problem) => anyhow::Error::from(LoadError::Text(problem)),
        Err(other) => other,
    };
    match error.downcast::<LoadError>() {
        Ok(error) => drop(refused(&error)),
        Err(other) => complain(&format!("error: {other:#}\n")),
    }
    ExitCode::FAILURE
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
