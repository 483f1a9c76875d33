//! Reads messages into JSON, with types from the schema. Fields with unknown numbers are skipped.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_model::quantity::Quantity;
use berth_protobuf::wire::{Fields, Wire};
use berth_protobuf::{Malformed, values};
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::numbers::{self, Field, Form, Message};
use crate::schema::{self, Node, Shape, Struct, StructRef};

/// Nesting limit of messages: more than any object needs, and safe for the stack.
const DEPTH_MAX: usize = 96;

/// Limit of values in one body: an empty message takes two bytes of a body, and much more memory.
const VALUES_MAX: usize = 400_000;

pub(super) struct Reader {
    depth: usize,
    values: usize,
}

impl Reader {
    pub(super) fn new() -> Self {
        Self { depth: 0, values: 0 }
    }

    pub(super) fn structure(&mut self, node: &Node, bytes: &[u8]) -> Result<Value, Malformed> {
        let mut value = Value::Null;
        self.single(node, Form::Plain, Wire::Bytes(bytes), &mut value)?;
        Ok(value)
    }

    /// Merges the fields of a message: protobuf allows messages in pieces.
    fn fields(
        &mut self,
        structure: &Struct,
        message: &Message,
        bytes: &[u8],
        into: &mut Map<String, Value>,
    ) -> Result<(), Malformed> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Malformed::new(format!("it is more than {DEPTH_MAX} levels deep")));
        }
        let mut fields = Fields::of(bytes);
        while let Some((number, wire)) = fields.next()? {
            match message.fields.get(&number) {
                None => {}
                Some(Field::Inline(inner)) => {
                    self.fields(structure, inner, wire.bytes()?, into)?;
                }
                Some(Field::Named { name, form }) => {
                    let Some(node) = structure.fields.get(name) else { continue };
                    let slot = into.entry(name.as_str()).or_insert(Value::Null);
                    self.add(node, *form, wire, slot).map_err(|error| error.within(name))?;
                }
            }
        }
        self.depth -= 1;
        Ok(())
    }

    /// One more occurrence of a field.
    fn add(
        &mut self,
        node: &Node,
        form: Form,
        wire: Wire<'_>,
        slot: &mut Value,
    ) -> Result<(), Malformed> {
        match &node.shape {
            Shape::List(inner) => {
                if !slot.is_array() {
                    *slot = Value::Array(Vec::new());
                }
                let Value::Array(items) = slot else { return Ok(()) };
                match (&inner.shape, wire) {
                    (Shape::Int32 | Shape::Int64 | Shape::Bool, Wire::Bytes(packed)) => {
                        let mut packed = Fields::of(packed);
                        while let Some(number) = packed.next_packed()? {
                            items.push(self.item(inner, form, Wire::Varint(number))?);
                        }
                    }
                    _ => items.push(self.item(inner, form, wire)?),
                }
                Ok(())
            }
            Shape::Map(inner) => {
                if !slot.is_object() {
                    *slot = Value::Object(Map::new());
                }
                let Value::Object(map) = slot else { return Ok(()) };
                let (key, value) = self.entry(inner, form, wire.bytes()?)?;
                map.insert(key, value);
                Ok(())
            }
            _ => self.single(node, form, wire, slot),
        }
    }

    fn item(&mut self, node: &Node, form: Form, wire: Wire<'_>) -> Result<Value, Malformed> {
        let mut value = Value::Null;
        self.single(node, form, wire, &mut value)?;
        Ok(value)
    }

    /// An entry of a map: its key in field 1, its value in field 2.
    fn entry(
        &mut self,
        node: &Node,
        form: Form,
        bytes: &[u8],
    ) -> Result<(String, Value), Malformed> {
        let mut key = String::new();
        // Missing fields are empty.
        let mut value = Wire::Bytes(&[]);
        let mut fields = Fields::of(bytes);
        while let Some((number, wire)) = fields.next()? {
            match number {
                1 => key = wire.text()?.to_owned(),
                2 => value = wire,
                _ => {}
            }
        }
        let value = self.item(node, form, value).map_err(|error| error.within(&key))?;
        Ok((key, value))
    }

    /// One value that is neither a list nor a map.
    fn single(
        &mut self,
        node: &Node,
        form: Form,
        wire: Wire<'_>,
        slot: &mut Value,
    ) -> Result<(), Malformed> {
        self.values += 1;
        if self.values > VALUES_MAX {
            return Err(Malformed::new(format!("it has more than {VALUES_MAX} values")));
        }
        *slot = match &node.shape {
            Shape::Struct(StructRef::BuiltIn(at)) => {
                let unknown = || Malformed::new("its type is not known");
                let structure = node.structure().ok_or_else(unknown)?;
                let message = numbers::message(*at).ok_or_else(unknown)?;
                let mut map = match slot.take() {
                    Value::Object(map) => map,
                    _ => Map::new(),
                };
                self.fields(structure, message, wire.bytes()?, &mut map)?;
                Value::Object(map)
            }
            Shape::Any => self.special(form, wire.bytes()?)?,
            Shape::List(inner) if form == Form::ListMessage => {
                let mut items = Vec::new();
                let mut fields = Fields::of(wire.bytes()?);
                while let Some((number, wire)) = fields.next()? {
                    if number == 1 {
                        items.push(self.item(inner, Form::Plain, wire)?);
                    }
                }
                Value::Array(items)
            }
            shape => scalar(shape, wire)?,
        };
        Ok(())
    }

    /// A value that may be of several types.
    fn special(&mut self, form: Form, bytes: &[u8]) -> Result<Value, Malformed> {
        let (schema_in, other_in) = match form {
            Form::Plain | Form::ListMessage => return raw(bytes),
            Form::SchemaOrSchemas | Form::SchemaOrTexts => (1, 2),
            Form::SchemaOrBool => (2, 1),
        };
        let node = schema::named("JSONSchemaProps");
        let (mut schema, mut allows, mut others) = (None, false, Vec::new());
        let mut fields = Fields::of(bytes);
        while let Some((number, wire)) = fields.next()? {
            if number == schema_in {
                let slot = schema.get_or_insert(Value::Null);
                self.single(&node, Form::Plain, wire, slot)?;
            } else if number == other_in {
                match form {
                    Form::SchemaOrBool => allows = wire.varint()? != 0,
                    Form::SchemaOrTexts => others.push(Value::from(wire.text()?)),
                    _ => others.push(self.item(&node, Form::Plain, wire)?),
                }
            }
        }
        if !others.is_empty() {
            return Ok(Value::Array(others));
        }
        let mut value = match schema {
            Some(schema) => schema,
            None if form == Form::SchemaOrBool => Value::Bool(allows),
            None => Value::Null,
        };
        schema::normalize(&node, &mut value);
        Ok(value)
    }
}

fn scalar(shape: &Shape, wire: Wire<'_>) -> Result<Value, Malformed> {
    Ok(match shape {
        Shape::Text => Value::from(wire.text()?),
        Shape::Bytes => Value::from(STANDARD.encode(wire.bytes()?)),
        Shape::Bool => Value::from(wire.varint()? != 0),
        // Negative numbers are written with 64 bits; what is beyond 32 is lost, as in Go.
        Shape::Int32 => Value::from(wire.varint()? as u32 as i32),
        Shape::Int64 => Value::from(wire.varint()? as i64),
        Shape::Number => match wire {
            Wire::Fixed64(bytes) => number(f64::from_le_bytes(bytes))?,
            _ => return Err(Malformed::new("it is not written as eight bytes")),
        },
        Shape::Quantity => quantity(wire.bytes()?)?,
        Shape::IntOrText => int_or_text(wire.bytes()?)?,
        Shape::Time => time(wire.bytes()?, false)?,
        Shape::MicroTime => time(wire.bytes()?, true)?,
        Shape::Any | Shape::Struct(_) | Shape::Map(_) | Shape::List(_) => {
            return Err(Malformed::new("its type has no message"));
        }
    })
}

/// JSON as it is, in field 1.
fn raw(bytes: &[u8]) -> Result<Value, Malformed> {
    let mut json: &[u8] = &[];
    let mut fields = Fields::of(bytes);
    while let Some((number, wire)) = fields.next()? {
        if number == 1 {
            json = wire.bytes()?;
        }
    }
    if json.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(json).map_err(|error| Malformed::new(format!("it is not JSON: {error}")))
}

/// Go writes numbers without a fraction as integers.
fn number(given: f64) -> Result<Value, Malformed> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if given.fract() == 0.0 && given.abs() <= EXACT {
        return Ok(Value::from(given as i64));
    }
    let number = serde_json::Number::from_f64(given);
    number.map(Value::Number).ok_or_else(|| Malformed::new("it is not a finite number"))
}

fn quantity(bytes: &[u8]) -> Result<Value, Malformed> {
    let text = values::quantity(bytes)?;
    match Quantity::parse(text) {
        Ok(_) => Ok(Value::from(text)),
        Err(_) => Err(Malformed::new(format!("{text:?} is not a quantity"))),
    }
}

fn int_or_text(bytes: &[u8]) -> Result<Value, Malformed> {
    let found = values::int_or_text(bytes)?;
    match found.kind {
        0 => Ok(Value::from(found.int)),
        1 => Ok(Value::from(found.text)),
        kind => Err(Malformed::new(format!("it is neither number nor text but {kind}"))),
    }
}

/// An empty message is no time at all.
fn time(bytes: &[u8], micro: bool) -> Result<Value, Malformed> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let (seconds, nanos) = values::seconds_and_nanos(bytes)?;
    // Plain times have no fractions in JSON, so the real server drops them here too.
    let nanos = if micro { nanos } else { 0 };
    let time = Timestamp::new(seconds, nanos);
    let time = time.map_err(|_| Malformed::new(format!("{seconds} is no time in seconds")))?;
    Ok(Value::from(schema::format_time(time, micro)))
}
