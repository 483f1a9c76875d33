//! Findings for terminals.

use std::fmt::Write as _;

use crate::Severity;
use berth_manifest::LoadError;
pub use berth_text::Paint;

use super::input::Input;
use super::report::{Count, Report, snippet};

/// Widest that reasons are printed.
const WIDTH: usize = 96;

fn severity(paint: Paint, severity: Severity) -> String {
    let code = match severity {
        Severity::Error => "1;31",
        Severity::Warning => "1;33",
        Severity::Info => "1;36",
    };
    paint.with(code, severity.as_str())
}

/// All findings, and how many there are.
pub fn render(report: &Report, input: &Input, paint: Paint) -> String {
    let mut text = String::new();
    for located in &report.findings {
        let Some(document) = input.documents.get(located.document) else { continue };
        let finding = &located.finding;
        let heading = format!("[{}] {}", finding.rule.code, finding.rule.name);
        let _ = writeln!(
            text,
            "{}{} {}",
            severity(paint, finding.severity),
            paint.heading(&format!("{heading}:")),
            finding.message
        );
        text.push_str(&located.snippet(document));
        let gutter = " ".repeat(located.start.line.to_string().len());
        let mut note = |name: &str, body: &str| {
            let label = paint.with("2", &format!("= {name}:"));
            let hang = gutter.len() + name.len() + 5;
            let _ = writeln!(text, "{gutter} {label} {}", wrapped(body, hang));
        };
        note("in", &format!("{}, {}", finding.object, finding.field));
        let remedy = if finding.is_fixable() { "fix (--fix)" } else { "fix" };
        note(remedy, &finding.remedy);
        text.push('\n');
    }
    text.push_str(&summary(report));
    text
}

/// `2 errors, 1 warning in 3 objects of 1 file; 1 fixable with --fix`.
fn summary(report: &Report) -> String {
    let Count { errors, warnings, infos, fixable } = report.count();
    let (objects, files) = (counted(report.objects, "object"), counted(report.files, "file"));
    let parts: Vec<String> = [(errors, "error"), (warnings, "warning"), (infos, "note")]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, name)| counted(count, name))
        .collect();
    if parts.is_empty() {
        return format!("no findings in {objects} of {files}\n");
    }
    let fixes = if fixable > 0 { format!("; {fixable} fixable with --fix") } else { String::new() };
    format!(
        "{} in {objects} of {files}{fixes}; `berth lint --explain CODE` says why\n",
        parts.join(", ")
    )
}

fn counted(count: usize, name: &str) -> String {
    if count == 1 { format!("1 {name}") } else { format!("{count} {name}s") }
}

/// A text in lines of at most [`WIDTH`]; those after the first are indented.
pub(crate) fn wrapped(text: &str, indent: usize) -> String {
    let mut lines = String::new();
    let mut column = indent;
    for word in text.split_whitespace() {
        let width = word.chars().count();
        if column > indent && column + 1 + width > WIDTH {
            lines.push('\n');
            lines.push_str(&" ".repeat(indent));
            column = indent;
        } else if column > indent {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += width;
    }
    lines
}

/// Input that cannot be read.
pub fn render_problem(error: &LoadError, paint: Paint) -> String {
    let heading = severity(paint, Severity::Error);
    match error {
        LoadError::File { .. } => format!("{heading}: {error}\n"),
        LoadError::Text(problem) => format!("{heading}: {problem}\n{}", snippet(problem)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_wrapped_and_hang() {
        let text = wrapped(&"word ".repeat(40), 8);
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with("        word")), "{text}");
        assert_eq!(text.split_whitespace().count(), 40);
        assert_eq!(wrapped("one two", 4), "one two");
    }

    #[test]
    fn colours_are_only_where_they_are_wanted() {
        assert_eq!(severity(Paint::Plain, Severity::Error), "error");
        assert!(severity(Paint::Coloured, Severity::Error).contains("\u{1b}[1;31m"));
    }
}
