//! A message as a type that says how it is read from JSON.
//!
//! Owns how serde's questions are answered from a message: the type names itself, which gives the numbers of
//! its fields, and says of every field what it wants there. Fields without a number here are passed over, and
//! so is `managedFields`: a tree as large as the object, which nobody reads. Where a field that is no list
//! comes more than once, the last counts. Must not know any type but the few whose messages are not like
//! their JSON.

use jiff::Timestamp;
use serde::de::value::{BorrowedStrDeserializer, StringDeserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, IntoDeserializer as _, MapAccess, SeqAccess,
    Visitor,
};
use serde::forward_to_deserialize_any;

use crate::Malformed;
use crate::numbers::{self, Field, Message};
use crate::values;
use crate::wire::{Fields, Wire};

/// Messages in messages, at most: more than any object needs, and less than a stack can bear.
const DEPTH_MAX: usize = 96;

/// The field that is left out.
const UNREAD: &str = "managedFields";

/// Reads an object's message.
///
/// # Errors
/// When it is damaged, or is not what the type wants. Says in which field.
pub fn from_message<T: DeserializeOwned>(message: &[u8]) -> Result<T, Malformed> {
    T::deserialize(Values { wires: &[(0, "", Wire::Bytes(message))], depth: 0 })
}

/// One occurrence of a field: what orders it among others, its name, and what stands there.
type Found<'a> = (u64, &'static str, Wire<'a>);

/// Collects the fields of a message that have a name, those of one name together.
fn collect<'a>(message: &'static Message, bytes: &'a [u8]) -> Result<Vec<Found<'a>>, Malformed> {
    let mut found = Vec::with_capacity(16);
    collect_into(message, bytes, 0, &mut found)?;
    // Nearly always they are in order: that is how they are written.
    if !found.is_sorted_by_key(|(key, ..)| *key) {
        found.sort_by_key(|(key, ..)| *key);
    }
    Ok(found)
}

fn collect_into<'a>(
    message: &'static Message,
    bytes: &'a [u8],
    outer: u64,
    found: &mut Vec<Found<'a>>,
) -> Result<(), Malformed> {
    let mut fields = Fields::of(bytes);
    while let Some((number, wire)) = fields.next()? {
        match message.fields.get(&number) {
            Some(Field::Named { name, .. }) if name != UNREAD => {
                found.push((outer << 32 | u64::from(number), name, wire));
            }
            // JSON shows the fields of such a message as those of the one around it. None is in another.
            Some(Field::Inline(inner)) if outer == 0 => {
                collect_into(inner, wire.bytes()?, u64::from(number), found)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// All occurrences of one field.
#[derive(Clone, Copy)]
struct Values<'f, 'a> {
    wires: &'f [Found<'a>],
    depth: usize,
}

impl<'a> Values<'_, 'a> {
    fn last(&self) -> Wire<'a> {
        self.wires.last().map_or(Wire::Bytes(&[]), |(.., wire)| *wire)
    }

    fn deeper(&self) -> Result<usize, Malformed> {
        if self.depth < DEPTH_MAX {
            Ok(self.depth + 1)
        } else {
            Err(Malformed::new(format!("it is more than {DEPTH_MAX} levels deep")))
        }
    }

    fn integer(&self) -> Result<i64, Malformed> {
        self.last().varint().map(|number| number as i64)
    }
}

impl<'de> Deserializer<'de> for Values<'_, '_> {
    type Error = Malformed;

    /// Only ports and percentages do not say what they want.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Malformed> {
        let found = values::int_or_text(self.last().bytes()?)?;
        if found.kind == 1 { visitor.visit_str(found.text) } else { visitor.visit_i32(found.int) }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Malformed> {
        visitor.visit_some(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Malformed> {
        let message = numbers::message(name)
            .ok_or_else(|| Malformed::new(format!("the fields of {name} have no known numbers")))?;
        let found = collect(message, self.last().bytes()?)?;
        visitor.visit_map(Entries { rest: &found, next: &[], depth: self.deeper()? })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Malformed> {
        let bytes = self.last().bytes()?;
        let text = match name {
            "Quantity" => values::quantity(bytes)?.to_owned(),
            "Time" | "MicroTime" => time(bytes)?.to_string(),
            _ => return Err(Malformed::new(format!("{name} has no known message"))),
        };
        visitor.visit_newtype_struct(StringDeserializer::new(text))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Malformed> {
        visitor.visit_seq(Items { rest: self.wires, depth: self.deeper()? })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Malformed> {
        let depth = self.deeper()?;
        visitor.visit_map(Pairs { rest: self.wires, value: Wire::Bytes(&[]), depth })
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Malformed> {
        visitor.visit_str(self.last().text()?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Malformed> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Malformed> {
        visitor.visit_bool(self.integer()? != 0)
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Malformed> {
        visitor.visit_i32(self.integer()? as i32)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Malformed> {
        visitor.visit_i64(self.integer()?)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Malformed> {
        match self.last() {
            Wire::Fixed64(bytes) => visitor.visit_f64(f64::from_le_bytes(bytes)),
            _ => Err(Malformed::new("it is not written as eight bytes")),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Malformed> {
        visitor.visit_unit()
    }

    // Nothing in Kubernetes' types asks for these.
    forward_to_deserialize_any! {
        i8 i16 i128 u8 u16 u32 u64 u128 f32 char bytes byte_buf unit unit_struct tuple tuple_struct enum
        identifier
    }
}

/// The fields of a message.
struct Entries<'f, 'a> {
    rest: &'f [Found<'a>],
    /// Those of the name that was given last.
    next: &'f [Found<'a>],
    depth: usize,
}

impl<'de> MapAccess<'de> for Entries<'_, '_> {
    type Error = Malformed;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Malformed> {
        let Some((key, name, _)) = self.rest.first().copied() else { return Ok(None) };
        let same = self.rest.iter().take_while(|(other, ..)| *other == key).count();
        (self.next, self.rest) = self.rest.split_at(same);
        seed.deserialize(BorrowedStrDeserializer::new(name)).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Malformed> {
        let read = seed.deserialize(Values { wires: self.next, depth: self.depth });
        read.map_err(|error| match self.next.first() {
            Some((_, name, _)) => error.within(name),
            None => error,
        })
    }
}

/// The items of a list.
struct Items<'f, 'a> {
    rest: &'f [Found<'a>],
    depth: usize,
}

impl<'de> SeqAccess<'de> for Items<'_, '_> {
    type Error = Malformed;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Malformed> {
        let Some((item, rest)) = self.rest.split_at_checked(1) else { return Ok(None) };
        self.rest = rest;
        seed.deserialize(Values { wires: item, depth: self.depth }).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.rest.len())
    }
}

/// The entries of a map, each a message of its key and its value.
struct Pairs<'f, 'a> {
    rest: &'f [Found<'a>],
    value: Wire<'a>,
    depth: usize,
}

impl<'de> MapAccess<'de> for Pairs<'_, '_> {
    type Error = Malformed;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Malformed> {
        let Some(((_, _, entry), rest)) = self.rest.split_first() else { return Ok(None) };
        self.rest = rest;
        let mut key = "";
        self.value = Wire::Bytes(&[]);
        let mut fields = Fields::of(entry.bytes()?);
        while let Some((number, wire)) = fields.next()? {
            match number {
                1 => key = wire.text()?,
                2 => self.value = wire,
                _ => {}
            }
        }
        let key: serde::de::value::StrDeserializer<'_, Malformed> = key.into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Malformed> {
        seed.deserialize(Values { wires: &[(0, "", self.value)], depth: self.depth })
    }
}

/// A time. An empty message, which is no time at all in Go, reads as 1970. Go knows later times than we do,
/// and a tenant can choose one (a grace period of thousands of years gives a deletion timestamp): they read
/// as the latest, since an object that cannot be read would not be counted.
fn time(bytes: &[u8]) -> Result<Timestamp, Malformed> {
    let (seconds, nanos) = values::seconds_and_nanos(bytes)?;
    Ok(Timestamp::new(seconds, nanos).unwrap_or(match seconds {
        0.. => Timestamp::MAX,
        _ => Timestamp::MIN,
    }))
}
