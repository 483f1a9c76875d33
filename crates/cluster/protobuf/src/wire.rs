//! Protobuf's wire format: a message as its numbered fields.
//!
//! Knows no message and no type. Lengths are checked before anything is taken, and nothing is copied.

use crate::Malformed;

/// What stands in a field, as far as the wire tells.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wire<'a> {
    /// An integer.
    Varint(u64),
    /// Eight bytes.
    Fixed64([u8; 8]),
    /// Bytes with a length: text, or a message.
    Bytes(&'a [u8]),
    /// Something that no type here uses: four bytes, or a group.
    Other,
}

impl<'a> Wire<'a> {
    /// The bytes.
    ///
    /// # Errors
    /// When it is something else.
    pub fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(Malformed::new("it is not written as bytes with a length")),
        }
    }

    /// The integer.
    ///
    /// # Errors
    /// When it is something else.
    pub fn varint(self) -> Result<u64, Malformed> {
        match self {
            Self::Varint(number) => Ok(number),
            _ => Err(Malformed::new("it is not written as an integer")),
        }
    }

    /// The bytes as text.
    ///
    /// # Errors
    /// When it is something else, or not UTF-8.
    pub fn text(self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed::new("it is not UTF-8"))
    }
}

/// The fields of a message, one after the other.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Those of a message.
    pub fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    /// The next field and its number; none at the end of the message.
    ///
    /// # Errors
    /// When the message is damaged.
    #[expect(clippy::should_implement_trait, reason = "it can fail, and then there is no next one")]
    pub fn next(&mut self) -> Result<Option<(u32, Wire<'a>)>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (number, kind) = self.tag()?;
        let value = match kind {
            3 => {
                self.skip_group(number)?;
                Wire::Other
            }
            4 => return Err(Malformed::new("a group ends that did not start")),
            kind => self.value(kind)?,
        };
        Ok(Some((number, value)))
    }

    /// A number without a field, as in packed lists; none at the end.
    ///
    /// # Errors
    /// When it is damaged.
    pub fn next_packed(&mut self) -> Result<Option<u64>, Malformed> {
        if self.rest.is_empty() { Ok(None) } else { self.varint().map(Some) }
    }

    fn tag(&mut self) -> Result<(u32, u8), Malformed> {
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok().filter(|number| *number > 0);
        let number = number.ok_or_else(|| Malformed::new("a field has an impossible number"))?;
        Ok((number, (tag & 7) as u8))
    }

    fn value(&mut self, kind: u8) -> Result<Wire<'a>, Malformed> {
        match kind {
            0 => self.varint().map(Wire::Varint),
            1 => {
                let bytes = self.take(8)?;
                let bytes = bytes.try_into().map_err(|_| Malformed::new("it is cut off"))?;
                Ok(Wire::Fixed64(bytes))
            }
            2 => {
                let length = usize::try_from(self.varint()?);
                let length = length.map_err(|_| Malformed::new("a length is impossible"))?;
                self.take(length).map(Wire::Bytes)
            }
            5 => self.take(4).map(|_| Wire::Other),
            kind => Err(Malformed::new(format!("there is no wire type {kind}"))),
        }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let cut_off = || Malformed::new("it is cut off");
        let (taken, rest) = self.rest.split_at_checked(length).ok_or_else(cut_off)?;
        self.rest = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for at in 0..10 {
            let byte = self.take(1)?.first().copied().unwrap_or_default();
            // The tenth byte has room for one bit only; what does not fit is lost, as in Go.
            number |= u64::from(byte & 0x7f) << (7 * at);
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Malformed::new("an integer has more than 64 bits"))
    }

    /// Groups may be in groups: a count of those that are open, so that no depth can hurt.
    fn skip_group(&mut self, number: u32) -> Result<(), Malformed> {
        let mut open = vec![number];
        while let Some(innermost) = open.last().copied() {
            let (number, kind) = self.tag()?;
            match kind {
                3 => open.push(number),
                4 if number == innermost => {
                    open.pop();
                }
                4 => return Err(Malformed::new("a group ends that did not start")),
                kind => {
                    self.value(kind)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(message: &[u8]) -> Result<Vec<(u32, Wire<'_>)>, Malformed> {
        let mut fields = Fields::of(message);
        let mut out = Vec::new();
        while let Some(field) = fields.next()? {
            out.push(field);
        }
        Ok(out)
    }

    #[test]
    fn fields_of_all_wire_types_are_read_in_order() {
        let message = [0x08, 0x96, 0x01, 0x12, 0x02, b'h', b'i', 0x1d, 1, 2, 3, 4];
        let read = all(&message).unwrap();
        assert_eq!(read, [(1, Wire::Varint(150)), (2, Wire::Bytes(b"hi")), (3, Wire::Other)]);
        let message = [0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f];
        assert_eq!(all(&message).unwrap(), [(1, Wire::Fixed64(1f64.to_le_bytes()))]);
    }

    #[test]
    fn groups_are_passed_over_however_deep() {
        let mut message = vec![0x0b; 100_000];
        message.extend(vec![0x0c; 100_000]);
        message.extend([0x10, 7]);
        assert_eq!(all(&message).unwrap(), [(1, Wire::Other), (2, Wire::Varint(7))]);
        message.truncate(150_000);
        assert!(all(&message).is_err());
        assert!(all(&[0x0b, 0x14]).is_err(), "a group ends with its own number");
    }

    #[test]
    fn lengths_beyond_the_end_and_endless_integers_are_refused() {
        assert!(all(&[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]).is_err());
        assert!(all(&[0x12, 3, 1, 2]).is_err());
        assert!(all(&[0xff; 11]).is_err());
        assert!(all(&[0x00]).is_err(), "there is no field 0");
        assert!(all(&[0x0e]).is_err(), "there is no wire type 6");
    }
}
