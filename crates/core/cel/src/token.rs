//! The tokenizer: literals, names and signs.

use std::sync::Arc;

use thiserror::Error;

use crate::CompileError;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Name(Arc<str>),
    Int(u64),
    Uint(u64),
    Double(f64),
    Text(Arc<str>),
    Bytes(Arc<[u8]>),
    Sign(&'static str),
    End,
}

/// Longest first, so that `<=` is not read as `<`.
const SIGNS: [&str; 26] = [
    "&&", "||", "==", "!=", "<=", ">=", "(", ")", "[", "]", "{", "}", ".", ",", ":", "?", "+", "-",
    "*", "/", "%", "!", "<", ">", "=", "@",
];

/// Tokens with their byte offsets.
pub(super) fn tokens(text: &str) -> Result<Vec<(usize, Token)>, CompileError> {
    let mut scanner = Scanner { text, at: 0 };
    let mut found = Vec::new();
    loop {
        scanner.skip_blank();
        let start = scanner.at;
        let token = scanner
            .next()
            .map_err(|error| CompileError { at: start, problem: error.to_string() })?;
        let end = token == Token::End;
        found.push((start, token));
        if end {
            return Ok(found);
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
enum TokenError {
    #[error("unexpected character {0:?}")]
    UnexpectedCharacter(char),
    #[error("number does not fit 64 bits")]
    NumberOutOfRange,
    #[error("invalid number")]
    InvalidNumber,
    #[error("string is not valid UTF-8; write it as bytes, b\"…\"")]
    NotUtf8,
    #[error("unterminated string")]
    UnterminatedString,
    #[error("line break in a string; use triple quotes or \\n")]
    LineBreakInString,
    #[error("unknown escape sequence")]
    UnknownEscape,
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or("")
    }

    fn skip_blank(&mut self) {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start_matches([' ', '\t', '\n', '\r', '\u{c}']);
            self.at += rest.len() - trimmed.len();
            match trimmed.strip_prefix("//") {
                Some(comment) => self.at += 2 + comment.find('\n').unwrap_or(comment.len()),
                None => return,
            }
        }
    }

    fn next(&mut self) -> Result<Token, TokenError> {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return Ok(Token::End) };
        if let Some(literal) = self.quoted() {
            return literal;
        }
        if first.is_ascii_alphabetic() || first == '_' {
            let length = rest.find(|one: char| !one.is_ascii_alphanumeric() && one != '_');
            let (name, _) = rest.split_at(length.unwrap_or(rest.len()));
            self.at += name.len();
            return Ok(Token::Name(name.into()));
        }
        let digit_follows = rest.get(1..2).is_some_and(|one| one.as_bytes()[0].is_ascii_digit());
        if first.is_ascii_digit() || first == '.' && digit_follows {
            return self.number();
        }
        let sign = SIGNS.iter().find(|sign| rest.starts_with(**sign));
        let sign = sign.ok_or(TokenError::UnexpectedCharacter(first))?;
        self.at += sign.len();
        Ok(Token::Sign(sign))
    }

    fn number(&mut self) -> Result<Token, TokenError> {
        let rest = self.rest();
        if let Some(hex) = rest.strip_prefix("0x").or_else(|| rest.strip_prefix("0X")) {
            let length = hex.find(|one: char| !one.is_ascii_hexdigit()).unwrap_or(hex.len());
            let value = u64::from_str_radix(&hex[..length], 16);
            self.at += 2 + length;
            return self.whole(value.map_err(|_| TokenError::NumberOutOfRange)?);
        }
        let digits =
            |text: &str| text.find(|one: char| !one.is_ascii_digit()).unwrap_or(text.len());
        let mut length = digits(rest);
        let mut whole = true;
        if let Some(fraction) = rest[length..].strip_prefix('.') {
            let places = digits(fraction);
            if places > 0 {
                length += 1 + places;
                whole = false;
            }
        }
        if let Some(exponent) = rest[length..].strip_prefix(['e', 'E']) {
            let signed = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            let places = digits(signed);
            if places > 0 {
                length += 1 + (exponent.len() - signed.len()) + places;
                whole = false;
            }
        }
        let written = &rest[..length];
        self.at += length;
        if whole {
            let value = written.parse().map_err(|_| TokenError::NumberOutOfRange)?;
            return self.whole(value);
        }
        let value = written.parse().map_err(|_| TokenError::InvalidNumber)?;
        Ok(Token::Double(value))
    }

    fn whole(&mut self, value: u64) -> Result<Token, TokenError> {
        if self.rest().starts_with(['u', 'U']) {
            self.at += 1;
            return Ok(Token::Uint(value));
        }
        Ok(Token::Int(value))
    }

    /// A string or bytes literal, if one starts here.
    fn quoted(&mut self) -> Option<Result<Token, TokenError>> {
        let rest = self.rest();
        let prefix = rest.find(['"', '\'']).filter(|at| *at <= 2)?;
        let (marks, from_quote) = rest.split_at(prefix);
        let (raw, bytes) = match marks.to_ascii_lowercase().as_str() {
            "" => (false, false),
            "r" => (true, false),
            "b" => (false, true),
            "rb" | "br" => (true, true),
            _ => return None,
        };
        let quote = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|q| from_quote.starts_with(q))?;
        self.at += prefix + quote.len();
        let content = match self.content(quote, raw, bytes) {
            Ok(content) => content,
            Err(error) => return Some(Err(error)),
        };
        Some(match (bytes, String::from_utf8(content)) {
            (true, Ok(text)) => Ok(Token::Bytes(text.into_bytes().into())),
            (true, Err(error)) => Ok(Token::Bytes(error.into_bytes().into())),
            (false, Ok(text)) => Ok(Token::Text(text.into())),
            (false, Err(_)) => Err(TokenError::NotUtf8),
        })
    }

    fn content(&mut self, quote: &str, raw: bool, bytes: bool) -> Result<Vec<u8>, TokenError> {
        let mut content = Vec::new();
        loop {
            let rest = self.rest();
            if rest.starts_with(quote) {
                self.at += quote.len();
                return Ok(content);
            }
            let Some(one) = rest.chars().next() else {
                return Err(TokenError::UnterminatedString);
            };
            if one == '\n' && quote.len() == 1 {
                return Err(TokenError::LineBreakInString);
            }
            self.at += one.len_utf8();
            if one == '\\' && !raw {
                self.escape(bytes, &mut content)?;
            } else {
                content.extend(one.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
    }

    fn escape(&mut self, bytes: bool, content: &mut Vec<u8>) -> Result<(), TokenError> {
        let one = self.rest().chars().next().ok_or(TokenError::UnknownEscape)?;
        self.at += one.len_utf8();
        let plain = match one {
            'a' => 0x07,
            'b' => 0x08,
            'f' => 0x0c,
            'n' => b'\n',
            'r' => b'\r',
            't' => b'\t',
            'v' => 0x0b,
            '\\' | '\'' | '"' | '`' | '?' => one as u8,
            _ => {
                let (digits, radix) = match one {
                    'x' | 'X' => (2, 16),
                    'u' if !bytes => (4, 16),
                    'U' if !bytes => (8, 16),
                    '0'..='3' => {
                        self.at -= 1;
                        (3, 8)
                    }
                    _ => return Err(TokenError::UnknownEscape),
                };
                let written = self.rest().get(..digits).ok_or(TokenError::UnknownEscape)?;
                let code =
                    u32::from_str_radix(written, radix).map_err(|_| TokenError::UnknownEscape)?;
                self.at += digits;
                if bytes {
                    content.push(u8::try_from(code).map_err(|_| TokenError::UnknownEscape)?);
                } else {
                    let one = char::from_u32(code).ok_or(TokenError::UnknownEscape)?;
                    content.extend(one.encode_utf8(&mut [0; 4]).as_bytes());
                }
                return Ok(());
            }
        };
        content.push(plain);
        Ok(())
    }
}
