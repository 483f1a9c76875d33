//! Decodes trees into types: every error knows its field, unknown fields are noticed, and null is the zero value, as in
//! Go.

use std::cell::RefCell;
use std::fmt::{self, Display};

use berth_api::{FieldPath, Step};
use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Expected, MapAccess,
    SeqAccess, Unexpected, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use crate::document::Document;
use crate::node::{Data, Entry, Node};
use crate::problem::Problem;
use crate::suggest;

/// What becomes of fields that a type does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnknownFields {
    /// They are told.
    Noted,
    /// Nobody asks; a dump can have one in each of its objects.
    PassedOver,
}

/// A part of an object as a `T`, and what `T` does not know of it.
pub(crate) fn decode<T: DeserializeOwned>(
    document: &Document,
    node: &Node,
    at: &FieldPath,
    unknown: UnknownFields,
) -> Result<(T, Vec<Problem>), Problem> {
    let text = &document.source().text;
    let notes = Notes { text, wanted: unknown, unknown: RefCell::default() };
    let value = Value { node, way: &Way::Start, notes: &notes, siblings: None };
    let decoded = T::deserialize(value);
    let under = |field: FieldPath| at.clone().join(&field);
    let value = decoded.map_err(|error| {
        let field = under(error.field.unwrap_or_default());
        let span = if error.of_key { document.key_span(&field) } else { document.span(&field) };
        Problem { span, remedy: error.remedy, ..document.problem(field, error.message) }
    })?;
    let unknown = notes.unknown.into_inner().into_iter().map(|unknown| {
        let written = unknown.field.steps().last();
        let meant = written.and_then(|step| match step {
            Step::Key(key) => suggest::closest(key, unknown.known),
            Step::At(_) => None,
        });
        let remedy = match meant {
            Some(meant) => format!("did you mean {meant:?}?"),
            None => "remove it, or correct its name or indentation".to_owned(),
        };
        let field = under(unknown.field);
        let span = document.key_span(&field);
        Problem { span, remedy: Some(remedy), ..document.problem(field, "unknown field") }
    });
    Ok((value, unknown.collect()))
}

struct Notes<'a> {
    text: &'a str,
    wanted: UnknownFields,
    unknown: RefCell<Vec<Unknown>>,
}

struct Unknown {
    field: FieldPath,
    known: &'static [&'static str],
}

/// The way to where we are, on the stack: it becomes a path only when somebody wants to know.
enum Way<'w> {
    Start,
    Key(&'w Way<'w>, &'w str),
    At(&'w Way<'w>, usize),
}

impl Way<'_> {
    fn path(&self) -> FieldPath {
        match self {
            Self::Start => FieldPath::root(),
            Self::Key(parent, key) => parent.path().key(*key),
            Self::At(parent, index) => parent.path().at(*index),
        }
    }
}

/// What serde says, and where.
#[derive(Debug)]
struct Error {
    message: String,
    remedy: Option<String>,
    /// A field inside of where it happened.
    inside: Option<String>,
    /// Whether it is the key that is wrong, not the value.
    of_key: bool,
    field: Option<FieldPath>,
}

impl Error {
    fn new(message: String) -> Self {
        Self { message, remedy: None, inside: None, of_key: false, field: None }
    }

    /// Whoever is closest says where it was.
    fn at(mut self, way: &Way<'_>) -> Self {
        if self.field.is_none() {
            let path = way.path();
            self.field = Some(match self.inside.take() {
                Some(inside) => path.key(inside),
                None => path,
            });
        }
        self
    }
}

impl Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl de::Error for Error {
    fn custom<T: Display>(message: T) -> Self {
        Self::new(message.to_string())
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let remedy = match found {
            Unexpected::Bool(_) | Unexpected::Unsigned(_) | Unexpected::Signed(_)
                if expected.to_string().contains("string") =>
            {
                Some("quote it".to_owned())
            }
            _ => None,
        };
        Self { remedy, ..Self::new(format!("expected {expected}, found {}", Found(found))) }
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(format!("expected {expected}, found {}", Found(found)))
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        let remedy = format!("expected {}", expected.join(", "));
        Self { remedy: Some(remedy), ..Self::new(format!("unknown value {variant:?}")) }
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        let remedy = match suggest::closest(field, expected) {
            Some(meant) => format!("did you mean {meant:?}?"),
            None => format!("known fields: {}", expected.join(", ")),
        };
        let error = Self::new("unknown field".to_owned());
        Self { remedy: Some(remedy), inside: Some(field.to_owned()), of_key: true, ..error }
    }

    fn missing_field(field: &'static str) -> Self {
        let error = Self::new("is required".to_owned());
        Self { inside: Some(field.to_owned()), remedy: Some("add it".to_owned()), ..error }
    }
}

/// What was found, in the words of manifests.
struct Found<'a>(Unexpected<'a>);

impl Display for Found<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Unexpected::Str(text) => write!(formatter, "{text:?}"),
            Unexpected::Bool(value) => write!(formatter, "{value}"),
            Unexpected::Unsigned(number) => write!(formatter, "{number}"),
            Unexpected::Signed(number) => write!(formatter, "{number}"),
            Unexpected::Float(number) => write!(formatter, "{number}"),
            Unexpected::Unit | Unexpected::Option => formatter.write_str("null"),
            Unexpected::Seq => formatter.write_str("a list"),
            Unexpected::Map => formatter.write_str("a map"),
            other => write!(formatter, "{other}"),
        }
    }
}

/// A value on its way to serde.
#[derive(Clone, Copy)]
struct Value<'a> {
    node: &'a Node,
    way: &'a Way<'a>,
    notes: &'a Notes<'a>,
    /// The fields that the type around it knows, if that is a struct.
    siblings: Option<&'static [&'static str]>,
}

impl<'a> Value<'a> {
    fn is_null(&self) -> bool {
        matches!(self.node.data, Data::Null)
    }

    fn entries(&self, entries: &'a [Entry], known: Option<&'static [&'static str]>) -> Fields<'a> {
        Fields { rest: entries.iter(), value: None, way: self.way, notes: self.notes, known }
    }

    fn any<'de, V: Visitor<'de>>(&self, visitor: V) -> Result<V::Value, Error> {
        match &self.node.data {
            Data::Null => visitor.visit_unit(),
            Data::Bool(value) => visitor.visit_bool(*value),
            Data::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(number), _) => visitor.visit_u64(number),
                (None, Some(number)) => visitor.visit_i64(number),
                (None, None) => visitor.visit_f64(number.as_f64().unwrap_or_default()),
            },
            Data::String(text) => visitor.visit_str(text.of(self.notes.text)),
            Data::List(items) => visitor.visit_seq(Items {
                rest: items.iter().enumerate(),
                way: self.way,
                notes: self.notes,
            }),
            Data::Map(entries) => visitor.visit_map(self.entries(entries, None)),
        }
    }
}

impl<'de> Deserializer<'de> for Value<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.any(visitor).map_err(|error| error.at(self.way))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let visited = if self.is_null() { visitor.visit_none() } else { visitor.visit_some(self) };
        visited.map_err(|error| error.at(self.way))
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.is_null() {
            return visitor.visit_str("").map_err(|error: Error| error.at(self.way));
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.is_null() {
            let none = Items { rest: [].iter().enumerate(), way: self.way, notes: self.notes };
            return visitor.visit_seq(none).map_err(|error| error.at(self.way));
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.is_null() {
            return visitor.visit_map(self.entries(&[], None)).map_err(|error| error.at(self.way));
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let visited = match &self.node.data {
            Data::Map(entries) => visitor.visit_map(self.entries(entries, Some(fields))),
            Data::Null => visitor.visit_map(self.entries(&[], Some(fields))),
            _ => return self.deserialize_any(visitor),
        };
        visited.map_err(|error| error.at(self.way))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        // Go reads a quantity that is null as zero.
        if name == "Quantity" && self.is_null() {
            let zero = StrDeserializer::new("0");
            return visitor.visit_newtype_struct(zero).map_err(|error: Error| error.at(self.way));
        }
        visitor.visit_newtype_struct(self).map_err(|error| error.at(self.way))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let visited = match &self.node.data {
            Data::String(text) => {
                visitor.visit_enum(StrDeserializer::new(text.of(self.notes.text)))
            }
            Data::Map(entries) => match entries.as_slice() {
                [entry] => visitor.visit_enum(Variant { entry, of: self }),
                _ => Err(Error::new(format!("expected one field, found {}", entries.len()))),
            },
            _ => return self.deserialize_any(visitor),
        };
        visited.map_err(|error| error.at(self.way))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if let Some(known) = self.siblings
            && self.notes.wanted == UnknownFields::Noted
        {
            self.notes.unknown.borrow_mut().push(Unknown { field: self.way.path(), known });
        }
        visitor.visit_unit()
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_any(visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        _len: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_any(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _len: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit
    }
}

struct Items<'a> {
    rest: std::iter::Enumerate<std::slice::Iter<'a, Node>>,
    way: &'a Way<'a>,
    notes: &'a Notes<'a>,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        let Some((index, node)) = self.rest.next() else { return Ok(None) };
        let way = Way::At(self.way, index);
        seed.deserialize(Value { node, way: &way, notes: self.notes, siblings: None }).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.rest.len())
    }
}

struct Fields<'a> {
    rest: std::slice::Iter<'a, Entry>,
    /// The one whose key was asked for last.
    value: Option<&'a Entry>,
    way: &'a Way<'a>,
    notes: &'a Notes<'a>,
    known: Option<&'static [&'static str]>,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let Some(entry) = self.rest.next() else { return Ok(None) };
        self.value = Some(entry);
        let key = entry.key.of(self.notes.text);
        let read = seed.deserialize(MapKey(key)).map_err(|error: Error| {
            // An unknown field names itself.
            if error.inside.is_some() {
                error.at(self.way)
            } else {
                error.at(&Way::Key(self.way, key))
            }
        });
        read.map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let Some(entry) = self.value.take() else {
            return Err(Error::new("a value was asked for before its key".to_owned()));
        };
        let way = Way::Key(self.way, entry.key.of(self.notes.text));
        let value =
            Value { node: &entry.value, way: &way, notes: self.notes, siblings: self.known };
        seed.deserialize(value)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.rest.len())
    }
}

/// A key. Types may want a number where JSON has text.
struct MapKey<'a>(&'a str);

impl<'de> Deserializer<'de> for MapKey<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str(self.0)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0.parse() {
            Ok(number) => visitor.visit_i64(number),
            Err(_) => visitor.visit_str(self.0),
        }
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0.parse() {
            Ok(number) => visitor.visit_u64(number),
            Err(_) => visitor.visit_str(self.0),
        }
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_i64(visitor)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_u64(visitor)
    }

    fn deserialize_u16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_u64(visitor)
    }

    fn deserialize_u8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_u64(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_enum(StrDeserializer::new(self.0))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i128 u128 f32 f64 char str string bytes byte_buf option unit unit_struct seq
        tuple tuple_struct map struct identifier ignored_any
    }
}

/// `kind: {…}`, an enumeration with something inside.
struct Variant<'a> {
    entry: &'a Entry,
    of: Value<'a>,
}

impl<'de, 'a> EnumAccess<'de> for Variant<'a> {
    type Error = Error;
    type Variant = Content<'a>;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Content<'a>), Error> {
        let key = self.entry.key.of(self.of.notes.text);
        let variant = seed.deserialize(MapKey(key))?;
        Ok((variant, Content { key, node: &self.entry.value, of: self.of }))
    }
}

struct Content<'a> {
    key: &'a str,
    node: &'a Node,
    of: Value<'a>,
}

impl<'de> VariantAccess<'de> for Content<'_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        match self.node.data {
            Data::Null => Ok(()),
            _ => Err(Error::new(format!("{:?} has no value: remove the colon", self.key))),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        let way = Way::Key(self.of.way, self.key);
        seed.deserialize(Value { node: self.node, way: &way, ..self.of })
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, Error> {
        let way = Way::Key(self.of.way, self.key);
        Value { node: self.node, way: &way, ..self.of }.deserialize_seq(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let way = Way::Key(self.of.way, self.key);
        Value { node: self.node, way: &way, ..self.of }.deserialize_struct("", fields, visitor)
    }
}
