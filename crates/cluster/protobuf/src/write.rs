//! Writing messages, for the few objects that are written so often that it matters.
//!
//! Owns the wire format as it is written, and the envelope of an object. Must not know any kind.

use crate::MAGIC;

/// A message that is being written, field by field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written(Vec<u8>);

impl Written {
    /// One without any field.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds text, unless it is empty.
    #[must_use]
    pub fn text(mut self, number: u32, text: &str) -> Self {
        if !text.is_empty() {
            self.bytes(number, text.as_bytes());
        }
        self
    }

    /// Adds a message.
    #[must_use]
    pub fn message(mut self, number: u32, message: Self) -> Self {
        self.bytes(number, &message.0);
        self
    }

    /// Adds an entry to a map of texts.
    #[must_use]
    pub fn entry(self, number: u32, key: &str, value: &str) -> Self {
        self.message(number, Self::new().text(1, key).text(2, value))
    }

    /// The object of this message, as it is sent.
    pub fn into_object(self, api_version: &str, kind: &str) -> Vec<u8> {
        let types = Self::new().text(1, api_version).text(2, kind);
        let mut object = Self(MAGIC.to_vec());
        object = object.message(1, types).message(2, self);
        object.0
    }

    fn bytes(&mut self, number: u32, bytes: &[u8]) {
        const WITH_LENGTH: u64 = 2;
        self.varint(u64::from(number) << 3 | WITH_LENGTH);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn varint(&mut self, mut number: u64) {
        while number > 0x7f {
            self.0.push((number & 0x7f) as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Fields, Wire};
    use crate::{Envelope, Malformed};

    #[test]
    fn what_is_written_is_read() -> Result<(), Malformed> {
        let long = "x".repeat(300);
        let written = Written::new().text(1, "a").text(2, "").text(17, &long).entry(12, "k", "v");
        let object = written.into_object("v1", "Pod");
        let envelope = Envelope::open(object.strip_prefix(MAGIC).unwrap_or_default())?;
        assert_eq!((envelope.api_version, envelope.kind), ("v1", "Pod"));
        let mut fields = Fields::of(envelope.raw);
        assert_eq!(fields.next()?, Some((1, Wire::Bytes(b"a"))));
        assert_eq!(fields.next()?, Some((17, Wire::Bytes(long.as_bytes()))));
        assert_eq!(fields.next()?, Some((12, Wire::Bytes(b"\x0a\x01k\x12\x01v"))));
        assert_eq!(fields.next()?, None);
        Ok(())
    }
}
