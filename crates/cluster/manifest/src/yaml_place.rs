//! Byte positions in YAML.
//!
//! saphyr-parser counts characters, starts block scalars at their content, and ends quoted ones after the comment that
//! follows. This module turns that into spans that can be marked and replaced.

use saphyr_parser::ScalarStyle;

use crate::node::Text;
use crate::source::Span;

/// Characters from one checkpoint to the next.
const STRIDE: usize = 64;

pub(crate) struct Places<'a> {
    text: &'a str,
    /// The byte of every so manieth character; empty when bytes are characters.
    checkpoints: Vec<u32>,
}

impl<'a> Places<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        let checkpoints = if text.is_ascii() {
            Vec::new()
        } else {
            let starts = text.char_indices().step_by(STRIDE);
            starts.map(|(byte, _)| u32::try_from(byte).unwrap_or(u32::MAX)).collect()
        };
        Self { text, checkpoints }
    }

    pub(crate) fn byte(&self, character: usize) -> usize {
        if self.checkpoints.is_empty() {
            return character.min(self.text.len());
        }
        let Some(base) = self.checkpoints.get(character / STRIDE) else { return self.text.len() };
        let base = *base as usize;
        let rest = self.text.get(base..).unwrap_or_default();
        let inside = rest.char_indices().nth(character % STRIDE);
        inside.map_or(self.text.len(), |(byte, _)| base + byte)
    }

    pub(crate) fn span(&self, span: saphyr_parser::Span) -> Span {
        Span::new(self.byte(span.start.index()), self.byte(span.end.index()))
    }

    /// Text as a part of the source where it is one.
    pub(crate) fn text(&self, text: &str) -> Text {
        let start = (text.as_ptr() as usize).wrapping_sub(self.text.as_ptr() as usize);
        let part = self.text.get(start..start.saturating_add(text.len()));
        if part == Some(text) {
            return Text::At(Span::new(start, start + text.len()));
        }
        Text::Own(text.into())
    }

    /// A list whose items stand under each other starts at its first dash.
    pub(crate) fn block_list(&self, span: Span) -> Span {
        if self.text.as_bytes().get(span.start()) == Some(&b'-') || !span.is_empty() {
            return span;
        }
        dash_before(self.text, span.start()).map_or(span, Span::empty_at)
    }

    /// Where a scalar stands. Nothing of it is before `after`.
    pub(crate) fn scalar(&self, span: Span, style: ScalarStyle, after: usize) -> Span {
        match style {
            ScalarStyle::Plain => span,
            ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => self.quoted(span, style),
            ScalarStyle::Literal | ScalarStyle::Folded => self.block(span, after),
        }
    }

    fn quoted(&self, span: Span, style: ScalarStyle) -> Span {
        let quote = if style == ScalarStyle::SingleQuoted { b'\'' } else { b'"' };
        let bytes = self.text.as_bytes();
        // An anchor or a tag may stand before it.
        let mut at = span.start();
        while at < span.end() && bytes.get(at) != Some(&quote) {
            at += 1;
        }
        at += 1;
        while let Some(byte) = bytes.get(at).filter(|_| at < span.end()) {
            match byte {
                b'\\' if quote == b'"' => at += 1,
                b'\'' if quote == b'\'' && bytes.get(at + 1) == Some(&b'\'') => at += 1,
                _ if *byte == quote => return Span::new(span.start(), at + 1),
                _ => {}
            }
            at += 1;
        }
        span
    }

    /// From `|` or `>` to the end of the last line of content.
    fn block(&self, span: Span, after: usize) -> Span {
        let before = self.text.get(after.min(span.start())..span.start()).unwrap_or_default();
        let header = before.trim_end();
        let line = header.rfind('\n').map_or(0, |at| at + 1);
        let sign = header.get(line..).and_then(|line| line.find(['|', '>']));
        let start = sign.map_or(span.start(), |sign| after + line + sign);
        let content = self.text.get(span.range()).unwrap_or_default();
        // The first line is without its indentation here.
        let line_start = self.text.get(..span.start()).and_then(|text| text.rfind('\n'));
        let indent = span.start() - line_start.map_or(0, |at| at + 1);
        let mut end = 0;
        let mut at = 0;
        for (number, line) in content.split_inclusive('\n').enumerate() {
            let blank = line.trim().is_empty();
            let own = line.len() - line.trim_start_matches(' ').len();
            if !blank && number > 0 && own < indent {
                break;
            }
            at += line.len();
            if !blank {
                end = at - (line.len() - line.trim_end_matches(['\n', '\r']).len());
            }
        }
        Span::new(start, (span.start() + end).max(start + 1))
    }
}

/// The dash of the item that starts here, if nothing but space and comments is between them.
pub(crate) fn dash_before(text: &str, item: usize) -> Option<usize> {
    let mut before = text.get(..item)?;
    loop {
        before = before.trim_end_matches([' ', '\n', '\r', '\t']);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let line = before.get(line_start..)?;
        if let Some(rest) = line.strip_suffix('-') {
            return Some(line_start + rest.len());
        }
        // Only a comment can stand there, after a dash or on a line of its own.
        let comment = line.find(" #").or_else(|| line.starts_with('#').then_some(0))?;
        before = before.get(..line_start + comment)?;
    }
}
