//! Bodies in protobuf, as some of kubectl's commands send them, turned into JSON.
//!
//! Only reads: answers are JSON, which every client takes. Knows the numbers of fields from a table;
//! knows no rule beyond types.

use std::collections::HashMap;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value};

/// What such bodies begin with.
const ENVELOPE: &[u8] = b"k8s\0";
/// Messages in messages are followed this deep.
const DEPTH_MAX: usize = 64;

/// A field of a message.
#[derive(Debug)]
struct Field {
    number: u64,
    name: &'static str,
    kind: &'static str,
}

static MESSAGES: LazyLock<HashMap<&'static str, Vec<Field>>> = LazyLock::new(|| {
    let lines = include_str!("fields.txt").lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| {
            let mut words = line.split(' ');
            let name = words.next()?;
            let fields = words
                .filter_map(|word| {
                    let mut parts = word.splitn(3, ':');
                    let number = parts.next()?.parse().ok()?;
                    Some(Field { number, name: parts.next()?, kind: parts.next()? })
                })
                .collect();
            Some((name, fields))
        })
        .collect()
});

/// The object in a body, with its type.
///
/// # Errors
///
/// If it is not an object of a known kind.
pub(crate) fn decode(body: &[u8]) -> Result<Value, String> {
    let envelope = body.strip_prefix(ENVELOPE).ok_or("it does not begin as an object does")?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for part in (Parts { rest: envelope }) {
        match part? {
            (1, Wire::Bytes(meta)) => {
                for part in (Parts { rest: meta }) {
                    match part? {
                        (1, Wire::Bytes(text)) => api_version = utf8(text)?,
                        (2, Wire::Bytes(text)) => kind = utf8(text)?,
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let name = message_name(&api_version, &kind);
    let fields = MESSAGES
        .get(name.as_str())
        .ok_or_else(|| format!("{kind} of {api_version} is not known in protobuf; send JSON"))?;
    let mut object = message(fields, raw, 0)?;
    object.insert("apiVersion".to_owned(), Value::from(api_version));
    object.insert("kind".to_owned(), Value::from(kind));
    Ok(Value::Object(object))
}

/// `rbac.authorization.k8s.io/v1` and `Role` as `rbac.v1.Role`.
fn message_name(api_version: &str, kind: &str) -> String {
    if kind == "DeleteOptions" {
        return "meta.v1.DeleteOptions".to_owned();
    }
    let (group, version) = api_version.split_once('/').unwrap_or(("core", api_version));
    let group = group.split('.').next().unwrap_or_default();
    format!("{group}.{version}.{kind}")
}

/// A value before its field is known.
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Fields of a message, one after the other.
struct Parts<'a> {
    rest: &'a [u8],
}

impl<'a> Parts<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn part(&mut self) -> Option<(u64, Wire<'a>)> {
        let tag = self.varint()?;
        let wire = match tag & 7 {
            0 => Wire::Number(self.varint()?),
            1 => Wire::Number(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Number(u64::from(u32::from_le_bytes(self.take(4)?.try_into().ok()?))),
            _ => return None,
        };
        Some((tag >> 3, wire))
    }
}

impl<'a> Iterator for Parts<'a> {
    type Item = Result<(u64, Wire<'a>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let part = self.part().ok_or_else(|| "it ends in the middle of a field".to_owned());
        if part.is_err() {
            self.rest = &[];
        }
        Some(part)
    }
}

fn utf8(bytes: &[u8]) -> Result<String, String> {
    String::from_utf8(bytes.to_vec()).map_err(|_| "a text is not UTF-8".to_owned())
}

fn message(fields: &[Field], bytes: &[u8], depth: usize) -> Result<Map<String, Value>, String> {
    if depth > DEPTH_MAX {
        return Err("messages are nested too deep".to_owned());
    }
    let mut object = Map::new();
    for part in (Parts { rest: bytes }) {
        let (number, wire) = part?;
        // Fields that are not known are left out, as they are in JSON.
        let Some(field) = fields.iter().find(|field| field.number == number) else { continue };
        if let Some(inner) = field.kind.strip_suffix('*') {
            let item = value(inner, &wire, depth)?.unwrap_or_else(|| zero(inner));
            let list = object.entry(field.name).or_insert_with(|| Value::Array(Vec::new()));
            if let Some(list) = list.as_array_mut() {
                list.push(item);
            }
        } else if let Some(inner) = field.kind.strip_prefix('m') {
            let Wire::Bytes(entry) = wire else { continue };
            let (key, item) = map_entry(inner, entry, depth)?;
            let map = object.entry(field.name).or_insert_with(|| Value::Object(Map::new()));
            map[key] = item;
        } else if let Some(item) = value(field.kind, &wire, depth)? {
            match item {
                // What Go inlines in JSON is a message of its own here.
                Value::Object(mut inlined) if field.name.is_empty() => object.append(&mut inlined),
                item => {
                    object.insert(field.name.to_owned(), item);
                }
            }
        }
    }
    Ok(object)
}

fn map_entry(kind: &str, entry: &[u8], depth: usize) -> Result<(String, Value), String> {
    let (mut key, mut item) = (String::new(), zero(kind));
    for part in (Parts { rest: entry }) {
        match part? {
            (1, Wire::Bytes(text)) => key = utf8(text)?,
            (2, wire) => item = value(kind, &wire, depth)?.unwrap_or_else(|| zero(kind)),
            _ => {}
        }
    }
    Ok((key, item))
}

fn zero(kind: &str) -> Value {
    match kind.as_bytes().first() {
        Some(b's' | b'y' | b'Q') => Value::from(""),
        Some(b'i' | b'd') => Value::from(0),
        Some(b'b') => Value::from(false),
        Some(b'M') => Value::Object(Map::new()),
        Some(b'W') => Value::Array(Vec::new()),
        _ => Value::Null,
    }
}

/// A single value; none where JSON would leave it out.
fn value(kind: &str, wire: &Wire<'_>, depth: usize) -> Result<Option<Value>, String> {
    let (kind, kept) = kind.strip_suffix('^').map_or((kind, false), |kind| (kind, true));
    Ok(match (kind, wire) {
        ("s", Wire::Bytes(bytes)) => {
            Some(Value::from(utf8(bytes)?)).filter(|_| kept || !bytes.is_empty())
        }
        ("y", Wire::Bytes(bytes)) => Some(Value::from(STANDARD.encode(bytes))),
        // Negative numbers are sent in two's complement.
        ("i", Wire::Number(number)) => {
            Some(Value::from(number.cast_signed())).filter(|_| kept || *number != 0)
        }
        ("b", Wire::Number(number)) => {
            Some(Value::from(*number != 0)).filter(|_| kept || *number != 0)
        }
        ("d", Wire::Number(number)) => Some(Value::from(f64::from_bits(*number))),
        ("T" | "U", Wire::Bytes(bytes)) => time(bytes, kind == "U")?,
        ("Q", Wire::Bytes(bytes)) => text_of(bytes)?.map(Value::from),
        ("O", Wire::Bytes(bytes)) => Some(integer_or_text(bytes)?),
        ("R", Wire::Bytes(bytes)) => raw(bytes)?,
        ("D", Wire::Bytes(bytes)) => {
            Some(Value::from(format!("{}ns", first_number(bytes)?.cast_signed())))
        }
        _ => match (kind.split_at_checked(1), wire) {
            (Some(("M", name)), Wire::Bytes(bytes)) => {
                let fields = MESSAGES.get(name).ok_or_else(|| format!("{name} is not known"))?;
                Some(Value::Object(message(fields, bytes, depth + 1)?))
            }
            (Some(("W", _)), Wire::Bytes(bytes)) => {
                let mut items = Vec::new();
                for part in (Parts { rest: bytes }) {
                    if let (1, Wire::Bytes(text)) = part? {
                        items.push(Value::from(utf8(text)?));
                    }
                }
                Some(Value::from(items))
            }
            _ => return Err("a field has another type than it should".to_owned()),
        },
    })
}

fn first_number(bytes: &[u8]) -> Result<u64, String> {
    for part in (Parts { rest: bytes }) {
        if let (1, Wire::Number(number)) = part? {
            return Ok(number);
        }
    }
    Ok(0)
}

fn text_of(bytes: &[u8]) -> Result<Option<String>, String> {
    for part in (Parts { rest: bytes }) {
        if let (1, Wire::Bytes(text)) = part? {
            return utf8(text).map(Some);
        }
    }
    Ok(None)
}

fn raw(bytes: &[u8]) -> Result<Option<Value>, String> {
    match text_of(bytes)? {
        None => Ok(None),
        Some(text) => serde_json::from_str(&text)
            .map(Some)
            .map_err(|error| format!("what is in it is not JSON: {error}")),
    }
}

fn integer_or_text(bytes: &[u8]) -> Result<Value, String> {
    let (mut kind, mut number, mut text) = (0, 0i64, String::new());
    for part in (Parts { rest: bytes }) {
        match part? {
            (1, Wire::Number(given)) => kind = given,
            (2, Wire::Number(given)) => number = given.cast_signed(),
            (3, Wire::Bytes(given)) => text = utf8(given)?,
            _ => {}
        }
    }
    Ok(if kind == 0 { Value::from(number) } else { Value::from(text) })
}

/// An instant; none for the zero of Go, which is sent as nothing.
fn time(bytes: &[u8], micro: bool) -> Result<Option<Value>, String> {
    let (mut seconds, mut nanoseconds) = (0i64, 0i32);
    for part in (Parts { rest: bytes }) {
        match part? {
            (1, Wire::Number(number)) => seconds = number.cast_signed(),
            (2, Wire::Number(number)) => nanoseconds = i32::try_from(number).unwrap_or(0),
            _ => {}
        }
    }
    if bytes.is_empty() {
        return Ok(None);
    }
    let nanoseconds = if micro { nanoseconds } else { 0 };
    let time =
        Timestamp::new(seconds, nanoseconds).map_err(|_| "a time is out of range".to_owned())?;
    let format = if micro { "%Y-%m-%dT%H:%M:%S.%6fZ" } else { "%Y-%m-%dT%H:%M:%SZ" };
    Ok(Some(Value::from(time.strftime(format).to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2, u8::try_from(bytes.len()).unwrap()];
        out.extend_from_slice(bytes);
        out
    }

    fn envelope(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
        [ENVELOPE.to_vec(), field(1, &meta), field(2, raw)].concat()
    }

    #[test]
    fn objects_become_what_their_json_says() {
        let metadata = [field(1, b"team"), field(8, b"")].concat();
        let body = envelope("v1", "Namespace", &field(1, &metadata));
        assert_eq!(
            decode(&body).unwrap(),
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
        );
        let entry = [field(1, b"pods"), field(2, &field(1, b"1"))].concat();
        let spec = field(1, &entry);
        let body = envelope("v1", "ResourceQuota", &field(2, &spec));
        assert_eq!(decode(&body).unwrap()["spec"], json!({"hard": {"pods": "1"}}));
    }

    #[test]
    fn what_is_cut_off_or_unknown_is_refused() {
        let body = envelope("v1", "Namespace", &field(1, &field(1, b"team")));
        for cut in 0..body.len() {
            // Nothing panics; a prefix may be a shorter object.
            let _ = decode(&body[..cut]);
        }
        assert!(decode(&envelope("v1", "Foo", b"")).is_err());
        assert!(decode(b"{}").is_err());
    }
}
