//! Findings with their places.
//!
//! Owns where in the text a finding is, and how many there are. Must not know how they are shown.

use crate::{Context, Finding, Settings, Severity, check};
use berth_api::FieldPath;
use berth_manifest::{Document, Position, Problem, Span};
use serde_json::Value;

use super::input::{Input, read_text};

/// Shortest beginning of a text that is looked for.
const SHORTEST_SIGN: usize = 8;

/// What was found.
#[derive(Debug, Default)]
pub struct Report {
    /// By document, and then by place.
    pub findings: Vec<Located>,
    /// How many objects were checked.
    pub objects: usize,
    /// In how many files.
    pub files: usize,
}

/// A finding with its place.
#[derive(Debug)]
pub struct Located {
    /// The position of its document in the input.
    pub document: usize,
    /// What was found.
    pub finding: Finding,
    /// Where in the text.
    pub span: Span,
    /// Where it starts.
    pub start: Position,
    /// Just after its end.
    pub end: Position,
    /// The name of the text.
    pub file: String,
}

/// How many findings there are of each severity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Errors.
    pub errors: usize,
    /// Warnings.
    pub warnings: usize,
    /// What is worth knowing.
    pub infos: usize,
    /// How many of all can be mended without risk.
    pub fixable: usize,
}

impl Report {
    /// How many findings there are.
    pub fn count(&self) -> Count {
        let of = |severity: Severity| {
            self.findings.iter().filter(|one| one.finding.severity == severity).count()
        };
        Count {
            errors: of(Severity::Error),
            warnings: of(Severity::Warning),
            infos: of(Severity::Info),
            fixable: self.findings.iter().filter(|one| one.finding.is_fixable()).count(),
        }
    }

    /// Whether something is as grave as this, or graver.
    pub fn reaches(&self, severity: Severity) -> bool {
        self.findings.iter().any(|one| one.finding.severity >= severity)
    }
}

/// Checks all documents against each other and what is known of the cluster.
pub fn lint(input: &Input, settings: &Settings) -> Report {
    let context = Context::new(input.cluster.iter().chain(&input.objects), read_text);
    let mut report = Report { objects: input.objects.len(), ..Report::default() };
    let mut last_file = None;
    for (index, (document, object)) in input.documents.iter().zip(&input.objects).enumerate() {
        let file = document.source().name.clone();
        if last_file.as_ref() != Some(&file) {
            report.files += 1;
            last_file = Some(file);
        }
        let mut found: Vec<Located> = check(object, &context, settings)
            .into_iter()
            .map(|finding| locate(index, document, finding))
            .collect();
        found.sort_by_key(|one| (one.span, one.finding.rule.code));
        report.findings.append(&mut found);
    }
    report
}

fn locate(index: usize, document: &Document, finding: Finding) -> Located {
    let span = span(document, &finding);
    let source = document.source();
    Located {
        document: index,
        span,
        start: source.start(span),
        end: source.end(span),
        file: source.name.to_string(),
        finding,
    }
}

fn span(document: &Document, finding: &Finding) -> Span {
    let whole = document.span(&finding.field);
    if let Some(excerpt) = &finding.excerpt {
        let text = document.source().slice(whole);
        if let Some((at, length)) =
            sign(excerpt).find_map(|sign| Some((text.find(sign)?, sign.len())))
        {
            return Span::new(whole.start() + at, whole.start() + at + length);
        }
    }
    if is_large(document, &finding.field) { document.key_span(&finding.field) } else { whole }
}

/// Whether a value is better marked by its key.
fn is_large(document: &Document, field: &FieldPath) -> bool {
    match document.value_at(field) {
        Some(Value::Object(_) | Value::Array(_)) => true,
        Some(Value::String(text)) => text.contains('\n'),
        _ => false,
    }
}

/// What to look for in the text: all of the excerpt, else as much of its beginning as is written in
/// the same way everywhere. Texts in texts escape their quotes.
fn sign(excerpt: &str) -> impl Iterator<Item = &str> {
    let line = excerpt.lines().next().unwrap_or_default().trim();
    let plain = line.split(['"', '\\']).next().unwrap_or_default();
    let enough = |sign: &&str| sign.len() >= SHORTEST_SIGN;
    [excerpt, line, plain].into_iter().filter(enough)
}

impl Located {
    /// The line with the place marked.
    pub fn snippet(&self, document: &Document) -> String {
        let problem = document.problem(self.finding.field.clone(), "");
        snippet(&Problem { span: self.span, ..problem })
    }
}

/// The line with the place marked, without white space at ends.
pub(crate) fn snippet(problem: &Problem) -> String {
    problem.snippet().lines().map(|line| format!("{}\n", line.trim_end())).collect()
}
