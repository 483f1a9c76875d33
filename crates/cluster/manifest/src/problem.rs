//! Errors with their position in the text.

use std::fmt;

use berth_api::FieldPath;

use crate::source::{Source, Span};

/// Characters of a line that a snippet shows.
const SNIPPET_WIDTH: usize = 100;

/// Characters it shows before what is marked, when the line is longer.
const SNIPPET_LEAD: usize = 40;

/// Something that cannot be read, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// In which text.
    pub source: Source,
    pub span: Span,
    /// In which object, as `Pod team-a/web`; empty where there is none yet.
    pub object: String,
    /// In which of its fields; the root where it is not about one.
    pub field: FieldPath,
    pub message: String,
    pub remedy: Option<String>,
}

impl Problem {
    /// A problem of the text itself, outside of any object.
    pub fn of_text(source: &Source, span: Span, message: impl Into<String>) -> Self {
        Self {
            source: source.clone(),
            span,
            object: String::new(),
            field: FieldPath::root(),
            message: message.into(),
            remedy: None,
        }
    }

    #[must_use]
    pub fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// The line with what is wrong in it marked, under its place:
    ///
    /// ```text
    ///   --> pod.yaml:7:12
    ///    |
    ///  7 |     image: [web]
    ///    |            ^^^^^
    /// ```
    pub fn snippet(&self) -> String {
        let (start, end) = (self.source.start(self.span), self.source.end(self.span));
        let line = self.source.line(start.line).trim_start_matches('\u{feff}');
        let from = start.column - 1;
        let to = if end.line == start.line { end.column - 1 } else { usize::MAX };
        let skipped = if line.chars().count() > SNIPPET_WIDTH {
            from.saturating_sub(SNIPPET_LEAD)
        } else {
            0
        };
        let shown: String = line.chars().skip(skipped).take(SNIPPET_WIDTH).collect();
        let width = shown.chars().count();
        let (from, to) = (from - skipped, to.saturating_sub(skipped).min(width));
        let marks = "^".repeat(to.saturating_sub(from).max(1));
        // Tabs stay tabs, so that the marks stand below what they mark.
        let lead: String =
            shown.chars().take(from).map(|one| if one == '\t' { '\t' } else { ' ' }).collect();
        let lead = format!("{lead}{}", " ".repeat(from.saturating_sub(lead.chars().count())));
        let number = start.line.to_string();
        let gutter = " ".repeat(number.len());
        format!(
            "{gutter}--> {name}:{start}\n{gutter} |\n{number} | {shown}\n{gutter} | {lead}{marks}\n",
            name = self.source.name,
        )
    }
}

/// `file:line:column: kind namespace/name: field: message; remedy`.
impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}: ", self.source.name, self.source.start(self.span))?;
        if !self.object.is_empty() {
            write!(formatter, "{}: ", self.object)?;
        }
        if !self.field.steps().is_empty() {
            write!(formatter, "{}: ", self.field)?;
        }
        formatter.write_str(&self.message)?;
        match &self.remedy {
            Some(remedy) => write!(formatter, "; {remedy}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Problem {}
