//! Standard output and standard error, colours and exit codes.

use std::io::{self, IsTerminal, Write as _};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use berth_contract::lint::{Paint, render_problem};
use berth_inspect::text::Style;
use berth_manifest::{LoadError, Problem};
use clap::ValueEnum;
use serde::Serialize;

/// Exit code: findings, or pods without a place.
pub(crate) const FOUND: u8 = 1;
/// Exit code: invalid arguments or input.
pub(crate) const UNUSABLE: u8 = 2;

/// The name by which the program was called: `kubectl berth` as kubectl's plugin.
pub(crate) fn program() -> &'static str {
    let called = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&called).file_stem().unwrap_or_default().to_string_lossy();
    // kubectl also accepts plugins whose dashes are written as underscores.
    if name == "kubectl-berth" || name == "kubectl_berth" { "kubectl berth" } else { "berth" }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Human-readable
    #[default]
    Table,
    /// Additional columns
    Wide,
    Json,
    Yaml,
    /// Names only, as pod/NAME or node/NAME
    Name,
}

/// A value as YAML, or else as JSON.
pub(crate) fn data(value: &impl Serialize, format: Format) -> anyhow::Result<String> {
    let failed = "cannot serialize the output";
    Ok(match format {
        Format::Yaml => berth_manifest::to_yaml(&serde_json::to_value(value).context(failed)?),
        _ => format!("{}\n", serde_json::to_string_pretty(value).context(failed)?),
    })
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Colour {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    Always,
    Never,
}

impl Colour {
    /// For tables on standard output.
    pub(crate) fn style(self) -> Style {
        let stdout = io::stdout();
        let paint = if self.is_on(&stdout) { Paint::Coloured } else { Paint::Plain };
        let width = stdout.is_terminal().then(|| terminal_width(&stdout)).flatten();
        Style { paint, width }
    }

    pub(crate) fn is_on(self, stream: &impl IsTerminal) -> bool {
        let is_disabled = || {
            std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
                || std::env::var_os("TERM").is_some_and(|value| value == "dumb")
        };
        match self {
            Self::Auto => stream.is_terminal() && !is_disabled(),
            Self::Always => true,
            Self::Never => false,
        }
    }
}

/// Writes to standard output. A closed pipe is not an error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write to standard output"),
    }
}

/// Writes to standard error. If that fails, there is nowhere to report it.
pub(crate) fn print_error(text: &str) {
    drop(io::stderr().lock().write_all(text.as_bytes()));
}

/// Prints an error.
pub(crate) fn failed(error: &anyhow::Error) -> ExitCode {
    print_error(&format!("error: {error:#}\n"));
    ExitCode::from(UNUSABLE)
}

/// Prints an error, with the line of the file it is in; exit code 1, as kubectl.
pub(crate) fn failed_as_kubectl(error: anyhow::Error) -> ExitCode {
    let error = match error.downcast::<Problem>() {
        Ok(problem) => anyhow::Error::from(LoadError::Text(problem)),
        Err(other) => other,
    };
    match error.downcast::<LoadError>() {
        Ok(error) => drop(failed_to_load(&error)),
        Err(other) => print_error(&format!("error: {other:#}\n")),
    }
    ExitCode::FAILURE
}

/// Prints what is wrong with files, with the lines.
pub(crate) fn failed_to_load(error: &LoadError) -> ExitCode {
    let is_coloured = Colour::Auto.is_on(&io::stderr());
    let paint = if is_coloured { Paint::Coloured } else { Paint::Plain };
    print_error(&render_problem(error, paint));
    ExitCode::from(UNUSABLE)
}

/// In characters; `None` if the terminal does not say. COLUMNS takes precedence.
fn terminal_width(stream: &impl AsFd) -> Option<usize> {
    let set = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let asked = || rustix::termios::tcgetwinsize(stream).ok().map(|size| usize::from(size.ws_col));
    set.or_else(asked).filter(|width| *width > 0)
}

/// Writes a file as a whole or not at all. The umask decides who may read it.
pub(crate) fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    write_with(path, text, 0o666)
}

/// Writes a file with secrets, readable by its owner only.
pub(crate) fn write_private_file(path: &Path, text: &str) -> anyhow::Result<()> {
    write_with(path, text, 0o600)
}

fn write_with(path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", path.display());
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let mut builder = tempfile::Builder::new();
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(mode));
    let mut file = builder.tempfile_in(directory.unwrap_or(Path::new("."))).with_context(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.flush()).with_context(failed)?;
    file.persist(path).with_context(failed)?;
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_umask_decides_who_may_read_a_written_file() {
        let directory = tempfile::tempdir().unwrap();
        let mode = |name: &str| {
            let metadata = std::fs::metadata(directory.path().join(name)).unwrap();
            metadata.permissions().mode() & 0o777
        };
        std::fs::write(directory.path().join("plain"), "text").unwrap();
        write_file(&directory.path().join("report"), "text").unwrap();
        assert_eq!(mode("report"), mode("plain"));
        write_private_file(&directory.path().join("secret"), "text").unwrap();
        assert_eq!(mode("secret"), 0o600);
    }
}
