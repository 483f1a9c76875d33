//! JSON (RFC 8259) with positions, and files of several values, as kubectl reads them.

use serde_json::Number;

use crate::limits::{DEPTH_MAX, VALUES_MAX};
use crate::node::{self, Data, Entry, Node, Text};
use crate::problem::Problem;
use crate::source::{Source, Span};

/// Why a text was not read.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It is not JSON; it may be YAML.
    NotJson(Problem),
    /// It is JSON that Berth refuses.
    Refused(Problem),
}

pub(crate) fn read(source: &Source) -> Result<Vec<Node>, Failure> {
    let start = if source.text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    let mut reader = Reader { source, text: &source.text, at: start, values: 0 };
    let mut values = Vec::new();
    reader.skip_space();
    while reader.at < reader.text.len() {
        values.push(reader.value(1)?);
        reader.skip_space();
    }
    Ok(values)
}

struct Reader<'a> {
    source: &'a Source,
    text: &'a str,
    at: usize,
    values: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    fn not_json(&self, at: usize, message: impl Into<String>) -> Failure {
        let end =
            self.text.get(at..).and_then(|rest| rest.chars().next()).map_or(0, char::len_utf8);
        Failure::NotJson(Problem::of_text(self.source, Span::new(at, at + end), message))
    }

    fn expected(&self, what: &str) -> Failure {
        let found = match self.text.get(self.at..).and_then(|rest| rest.chars().next()) {
            Some(found) => format!("found {found:?}"),
            None => "found the end of the file".to_owned(),
        };
        self.not_json(self.at, format!("expected {what}, {found}"))
    }

    fn refused(&self, span: Span, message: String, remedy: &str) -> Failure {
        Failure::Refused(Problem::of_text(self.source, span, message).with_remedy(remedy))
    }

    fn value(&mut self, depth: usize) -> Result<Node, Failure> {
        let start = self.at;
        self.values += 1;
        if self.values > VALUES_MAX {
            let message = format!("more than {VALUES_MAX} values");
            return Err(self.refused(Span::empty_at(start), message, "split the file"));
        }
        if depth > DEPTH_MAX {
            let message = format!("values are nested more than {DEPTH_MAX} deep");
            return Err(self.refused(Span::empty_at(start), message, "reduce the nesting"));
        }
        let data = match self.peek() {
            Some(b'{') => self.map(depth)?,
            Some(b'[') => self.list(depth)?,
            Some(b'"') => Data::String(self.string()?),
            Some(b'-' | b'0'..=b'9') => Data::Number(self.number()?),
            Some(b't') => self.word("true", Data::Bool(true))?,
            Some(b'f') => self.word("false", Data::Bool(false))?,
            Some(b'n') => self.word("null", Data::Null)?,
            _ => return Err(self.expected("a value")),
        };
        Ok(Node { span: Span::new(start, self.at), data })
    }

    fn word(&mut self, word: &str, data: Data) -> Result<Data, Failure> {
        if !self.text.get(self.at..).is_some_and(|rest| rest.starts_with(word)) {
            return Err(self.expected(word));
        }
        self.at += word.len();
        Ok(data)
    }

    fn map(&mut self, depth: usize) -> Result<Data, Failure> {
        self.at += 1;
        let mut entries = Vec::new();
        self.skip_space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Data::Map(entries));
        }
        loop {
            self.skip_space();
            if self.peek() != Some(b'"') {
                return Err(self.expected("a key in double quotes"));
            }
            let start = self.at;
            let key = self.string()?;
            let key_span = Span::new(start, self.at);
            self.skip_space();
            if self.peek() != Some(b':') {
                return Err(self.expected("':'"));
            }
            self.at += 1;
            self.skip_space();
            let value = self.value(depth + 1)?;
            entries.push(Entry { key, key_span, value });
            self.skip_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => break,
                _ => return Err(self.expected("',' or '}'")),
            }
        }
        self.at += 1;
        match node::duplicate(&entries, self.text) {
            None => Ok(Data::Map(entries)),
            Some((entry, first)) => {
                let key = entry.key.of(self.text);
                let line = self.source.start(first).line;
                let message = format!("duplicate key {key:?}, first on line {line}");
                Err(self.refused(entry.key_span, message, "keep one of them"))
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<Data, Failure> {
        self.at += 1;
        let mut items = Vec::new();
        self.skip_space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Data::List(items));
        }
        loop {
            self.skip_space();
            items.push(self.value(depth + 1)?);
            self.skip_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => break,
                _ => return Err(self.expected("',' or ']'")),
            }
        }
        self.at += 1;
        Ok(Data::List(items))
    }

    /// From the quote on.
    fn string(&mut self) -> Result<Text, Failure> {
        let opened = self.at;
        self.at += 1;
        let start = self.at;
        loop {
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => return self.escaped(opened, start),
                Some(0..0x20) => return Err(self.raw_control()),
                Some(_) => self.at += 1,
                None => return Err(self.not_json(opened, "unclosed quote")),
            }
        }
        let span = Span::new(start, self.at);
        self.at += 1;
        Ok(Text::At(span))
    }

    fn raw_control(&self) -> Failure {
        self.not_json(self.at, "control characters and line breaks in strings must be escaped")
    }

    /// The same from the first escape on.
    fn escaped(&mut self, opened: usize, start: usize) -> Result<Text, Failure> {
        let mut text = self.text.get(start..self.at).unwrap_or_default().to_owned();
        let mut plain = self.at;
        loop {
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => {
                    text.push_str(self.text.get(plain..self.at).unwrap_or_default());
                    text.push(self.escape()?);
                    plain = self.at;
                }
                Some(0..0x20) => return Err(self.raw_control()),
                Some(_) => self.at += 1,
                None => return Err(self.not_json(opened, "unclosed quote")),
            }
        }
        text.push_str(self.text.get(plain..self.at).unwrap_or_default());
        self.at += 1;
        Ok(Text::Own(text.into()))
    }

    fn escape(&mut self) -> Result<char, Failure> {
        let start = self.at;
        self.at += 1;
        let meant = match self.peek() {
            Some(same @ (b'"' | b'\\' | b'/')) => char::from(same),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.at += 1;
                return self.unicode(start);
            }
            _ => return Err(self.not_json(start, "unknown escape sequence")),
        };
        self.at += 1;
        Ok(meant)
    }

    /// Four hexadecimal digits, or eight with `\u` between them. A half without its other half is
    /// the replacement character, as Go reads it.
    fn unicode(&mut self, start: usize) -> Result<char, Failure> {
        let first = self.hex(start)?;
        if (0xD800..0xDC00).contains(&first)
            && self.text.get(self.at..).is_some_and(|rest| rest.starts_with("\\u"))
        {
            let back = self.at;
            self.at += 2;
            let second = self.hex(start)?;
            if (0xDC00..0xE000).contains(&second) {
                let both = 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
                return Ok(char::from_u32(both).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            self.at = back;
        }
        Ok(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn hex(&mut self, start: usize) -> Result<u32, Failure> {
        let digits = self.text.get(self.at..self.at + 4);
        let digits = digits.filter(|digits| digits.bytes().all(|one| one.is_ascii_hexdigit()));
        let value = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let value = value.ok_or_else(|| {
            self.not_json(start, "\\u must be followed by four hexadecimal digits")
        })?;
        self.at += 4;
        Ok(value)
    }

    fn digits(&mut self) -> Result<(), Failure> {
        if !self.peek().is_some_and(|one| one.is_ascii_digit()) {
            return Err(self.expected("a digit"));
        }
        while self.peek().is_some_and(|one| one.is_ascii_digit()) {
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<Number, Failure> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let zero = self.peek() == Some(b'0');
        let first = self.at;
        self.digits()?;
        if zero && self.at > first + 1 {
            return Err(self.not_json(first, "leading zeros are not allowed"));
        }
        let mut whole = true;
        if self.peek() == Some(b'.') {
            whole = false;
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            whole = false;
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        let text = self.text.get(start..self.at).unwrap_or_default();
        let negative = || text.parse::<i64>().map(Number::from).ok();
        let positive = || text.parse::<u64>().map(Number::from).ok();
        let float = || Number::from_f64(text.parse().ok()?);
        let parsed = if whole { negative().or_else(positive).or_else(float) } else { float() };
        parsed.ok_or_else(|| {
            let message = format!("number {text} is too large");
            self.refused(Span::new(start, self.at), message, "use a smaller number")
        })
    }
}
