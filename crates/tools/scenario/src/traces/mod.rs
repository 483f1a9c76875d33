//! Public traces: clusters with their pods, and requests to language models. The files are not part of
//! this repository.

pub mod openb;
pub mod requests;
pub mod serving;

use std::collections::BTreeMap;

use thiserror::Error;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{file}:{line}: {problem}")]
pub struct TraceError {
    pub file: String,
    /// From 1.
    pub line: usize,
    /// The problem and its remedy.
    pub problem: String,
}

/// A table of comma-separated values whose first line names the columns.
pub struct Table<'a> {
    file: &'a str,
    columns: BTreeMap<&'a str, usize>,
    text: &'a str,
}

impl<'a> Table<'a> {
    /// `file` is the name for errors.
    pub fn new(file: &'a str, text: &'a str) -> Result<Self, TraceError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let header = text.lines().next().unwrap_or_default();
        if header.trim().is_empty() {
            let problem = "the file is empty; the first line must name the columns".to_owned();
            return Err(TraceError { file: file.to_owned(), line: 1, problem });
        }
        let columns = header.split(',').map(str::trim).zip(0..).collect();
        Ok(Self { file, columns, text })
    }

    /// An error of the table as a whole.
    pub fn error(&self, problem: impl Into<String>) -> TraceError {
        TraceError { file: self.file.to_owned(), line: 1, problem: problem.into() }
    }

    pub fn has(&self, column: &str) -> bool {
        self.columns.contains_key(column)
    }

    /// Non-empty lines after the first.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        let lines = self.text.lines().enumerate().skip(1);
        lines.filter(|(_, line)| !line.trim().is_empty()).map(|(at, line)| Row {
            table: self,
            line: at + 1,
            fields: line.split(',').map(str::trim).collect(),
        })
    }
}

pub struct Row<'a> {
    table: &'a Table<'a>,
    line: usize,
    fields: Vec<&'a str>,
}

impl<'a> Row<'a> {
    pub fn error(&self, problem: impl Into<String>) -> TraceError {
        let file = self.table.file.to_owned();
        TraceError { file, line: self.line, problem: problem.into() }
    }

    pub fn text(&self, column: &str) -> Result<&'a str, TraceError> {
        let Some(at) = self.table.columns.get(column) else {
            let file = self.table.file.to_owned();
            let problem = format!("column {column} is missing");
            return Err(TraceError { file, line: 1, problem });
        };
        let field = self.fields.get(*at).copied();
        field.ok_or_else(|| self.error(format!("the line ends before column {column}")))
    }

    pub fn number(&self, column: &str, max: f64) -> Result<f64, TraceError> {
        let text = self.text(column)?;
        let number = text.parse::<f64>().ok().filter(|number| (0.0..=max).contains(number));
        number.ok_or_else(|| {
            self.error(format!("{column} must be a number from 0 to {max} (got {text:?})"))
        })
    }

    pub fn count(&self, column: &str, max: u64) -> Result<u64, TraceError> {
        let text = self.text(column)?;
        let number = text.parse::<u64>().ok().filter(|number| *number <= max);
        number.ok_or_else(|| {
            self.error(format!("{column} must be an integer from 0 to {max} (got {text:?})"))
        })
    }
}
