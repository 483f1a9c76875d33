//! Findings with their positions in the text.

use crate::{Context, Finding, Settings, Severity, check};
use berth_api::FieldPath;
use berth_manifest::{Document, Position, Problem, Span};
use serde_json::Value;

use super::input::{Input, read_text};

/// Shorter excerpts are not searched for.
const SHORTEST_SIGN: usize = 8;

#[derive(Debug, Default)]
pub struct Report {
    /// In order of document and position.
    pub findings: Vec<Located>,
    pub objects: usize,
    pub files: usize,
}

#[derive(Debug)]
pub struct Located {
    /// Index in the input.
    pub document: usize,
    pub finding: Finding,
    pub span: Span,
    pub start: Position,
    /// Exclusive.
    pub end: Position,
    pub file: String,
}

/// Findings by severity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub errors: usize,
    pub warnings: usize,
    pub infos: usize,
    pub fixable: usize,
}

impl Report {
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

    /// Whether a finding has at least this severity.
    pub fn reaches(&self, severity: Severity) -> bool {
        self.findings.iter().any(|one| one.finding.severity >= severity)
    }
}

/// Checks all documents, with each other and the cluster as context.
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

/// Whether to mark the key instead of the value.
fn is_large(document: &Document, field: &FieldPath) -> bool {
    match document.value_at(field) {
        Some(Value::Object(_) | Value::Array(_)) => true,
        Some(Value::String(text)) => text.contains('\n'),
        _ => false,
    }
}

/// Search texts for an excerpt: all of it, else a prefix without quotes, which nested strings escape.
fn sign(excerpt: &str) -> impl Iterator<Item = &str> {
    let line = excerpt.lines().next().unwrap_or_default().trim();
    let plain = line.split(['"', '\\']).next().unwrap_or_default();
    let enough = |sign: &&str| sign.len() >= SHORTEST_SIGN;
    [excerpt, line, plain].into_iter().filter(enough)
}

impl Located {
    pub fn snippet(&self, document: &Document) -> String {
        let problem = document.problem(self.finding.field.clone(), "");
        snippet(&Problem { span: self.span, ..problem })
    }
}

/// The line with a marker, without trailing white space.
pub(crate) fn snippet(problem: &Problem) -> String {
    problem.snippet().lines().map(|line| format!("{}\n", line.trim_end())).collect()
}
