//! Source text with lines and columns.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::{Arc, OnceLock};

/// A text with a name: a file, or what came through a pipe. Clones are cheap.
#[derive(Clone)]
pub struct Source(Arc<SourceText>);

/// What a [`Source`] consists of.
pub struct SourceText {
    /// Its path as it was given, or `<stdin>`.
    pub name: Arc<str>,
    pub text: Arc<str>,
    /// Where lines start, once somebody has asked.
    lines: OnceLock<Vec<usize>>,
}

/// From one byte of a text to before another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    // Texts are shorter than 4 GiB (`SOURCE_BYTES_MAX`), and dumps have millions of these.
    start: u32,
    end: u32,
}

/// A place as people and editors count, from 1; columns are characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

impl Source {
    /// This text under this name.
    pub fn new(name: impl Into<Arc<str>>, text: impl Into<Arc<str>>) -> Self {
        Self(Arc::new(SourceText { name: name.into(), text: text.into(), lines: OnceLock::new() }))
    }
}

impl Deref for Source {
    type Target = SourceText;

    fn deref(&self) -> &SourceText {
        &self.0
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Source({:?}, {} bytes)", self.name, self.text.len())
    }
}

/// By content.
impl PartialEq for Source {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || (self.name == other.name && self.text == other.text)
    }
}

impl Eq for Source {}

impl SourceText {
    /// Line and column of a byte; of the last one there is for bytes beyond the end.
    pub fn position(&self, byte: usize) -> Position {
        let byte = byte.min(self.text.len());
        let line = self.lines().partition_point(|start| *start <= byte).max(1);
        let before = self.text.get(self.line_start(line)..byte).unwrap_or_default();
        // A byte order mark is no character to editors.
        let column = before.trim_start_matches('\u{feff}').chars().count() + 1;
        Position { line, column }
    }

    pub fn start(&self, span: Span) -> Position {
        self.position(span.start())
    }

    /// Where the span ends: just after its last character.
    pub fn end(&self, span: Span) -> Position {
        self.position(span.end())
    }

    /// The line of this number, from 1, without its end.
    pub fn line(&self, number: usize) -> &str {
        let next = self.lines().get(number).copied().unwrap_or(self.text.len());
        let line = self.text.get(self.line_start(number)..next).unwrap_or_default();
        line.trim_end_matches(['\n', '\r'])
    }

    pub fn slice(&self, span: Span) -> &str {
        self.text.get(span.range()).unwrap_or_default()
    }

    fn line_start(&self, number: usize) -> usize {
        let position = number.saturating_sub(1);
        self.lines().get(position).copied().unwrap_or(self.text.len())
    }

    fn lines(&self) -> &[usize] {
        self.lines.get_or_init(|| {
            let ends = self.text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
            std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect()
        })
    }
}

impl Span {
    /// From `start` to before `end`.
    pub fn new(start: usize, end: usize) -> Self {
        let narrow = |byte: usize| u32::try_from(byte).unwrap_or(u32::MAX);
        Self { start: narrow(start), end: narrow(end.max(start)) }
    }

    /// Nothing, just before a byte.
    pub fn empty_at(byte: usize) -> Self {
        Self::new(byte, byte)
    }

    pub fn start(self) -> usize {
        self.start as usize
    }

    pub fn end(self) -> usize {
        self.end as usize
    }

    pub fn range(self) -> Range<usize> {
        self.start()..self.end()
    }

    pub fn is_empty(self) -> bool {
        self.start == self.end
    }
}

impl fmt::Display for Position {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.line, self.column)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_characters_and_lines_end_in_either_way() {
        let source = Source::new("a", "\u{feff}é: ü\r\nb\n");
        for (find, line, column) in [("é", 1, 1), ("ü", 1, 4), ("b", 2, 1)] {
            let byte = source.text.find(find).unwrap();
            assert_eq!(source.position(byte), Position { line, column }, "{find}");
        }
        assert_eq!(source.position(1_000), Position { line: 3, column: 1 });
        assert_eq!((source.line(1), source.line(2), source.line(3)), ("\u{feff}é: ü", "b", ""));
        assert_eq!(source.line(9), "");
    }

    #[test]
    fn an_empty_text_has_one_line() {
        let source = Source::new("a", "");
        assert_eq!(source.position(0), Position { line: 1, column: 1 });
        assert_eq!(source.line(1), "");
    }
}
