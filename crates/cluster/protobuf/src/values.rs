//! Values whose messages are not like their JSON: amounts, times, and what is a number or text.
//!
//! Owns what stands in which of their fields. Must not know how anybody writes them.

use crate::Malformed;
use crate::wire::Fields;

/// An amount, which is text in field 1.
///
/// # Errors
/// When the message is damaged.
pub fn quantity(bytes: &[u8]) -> Result<&str, Malformed> {
    let mut text = "0";
    let mut fields = Fields::of(bytes);
    while let Some((number, wire)) = fields.next()? {
        if number == 1 {
            text = wire.text()?;
        }
    }
    Ok(text)
}

/// Seconds since 1970 and nanoseconds. An empty message is no time at all in Go.
///
/// # Errors
/// When the message is damaged.
pub fn seconds_and_nanos(bytes: &[u8]) -> Result<(i64, i32), Malformed> {
    let (mut seconds, mut nanos) = (0, 0);
    let mut fields = Fields::of(bytes);
    while let Some((number, wire)) = fields.next()? {
        match number {
            1 => seconds = wire.varint()? as i64,
            2 => nanos = wire.varint()? as u32 as i32,
            _ => {}
        }
    }
    Ok((seconds, nanos))
}

/// A port or a percentage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IntOrText<'a> {
    /// 0: a number, 1: text. Nothing else has a meaning.
    pub kind: u64,
    /// The number. Negative ones are written with 64 bits; what is beyond 32 is lost, as in Go.
    pub int: i32,
    /// The text.
    pub text: &'a str,
}

/// What is a number or text.
///
/// # Errors
/// When the message is damaged.
pub fn int_or_text(bytes: &[u8]) -> Result<IntOrText<'_>, Malformed> {
    let mut found = IntOrText::default();
    let mut fields = Fields::of(bytes);
    while let Some((number, wire)) = fields.next()? {
        match number {
            1 => found.kind = wire.varint()?,
            2 => found.int = wire.varint()? as u32 as i32,
            3 => found.text = wire.text()?,
            _ => {}
        }
    }
    Ok(found)
}
