//! Strict decoding of bodies: unknown and duplicate fields and wrong types, with the real server's messages.

use std::fmt;

use base64::Engine;
use berth_model::quantity::{Quantity, QuantityError};
use jiff::Timestamp;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::kinds::Kind;
use crate::patch::FieldValidation;
use crate::schema::{Node, Shape, Struct};
use crate::status::Status;

/// Unknown and duplicate fields that are reported.
const REPORTED_MAX: usize = 100;

/// JSON that keeps order and duplicate fields.
#[derive(Clone, Debug)]
pub(crate) enum Document {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Document>),
    Map(Vec<(String, Document)>),
}

impl Document {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(body)
    }

    pub(crate) fn from_value(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(flag) => Self::Bool(*flag),
            Value::Number(number) => Self::Number(number.clone()),
            Value::String(text) => Self::Text(text.clone()),
            Value::Array(items) => Self::List(items.iter().map(Self::from_value).collect()),
            Value::Object(map) => Self::Map(
                map.iter().map(|(key, value)| (key.clone(), Self::from_value(value))).collect(),
            ),
        }
    }

    /// As plain JSON: the last of duplicate fields wins.
    pub(crate) fn into_value(self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(flag) => Value::Bool(flag),
            Self::Number(number) => Value::Number(number),
            Self::Text(text) => Value::String(text),
            Self::List(items) => Value::Array(items.into_iter().map(Self::into_value).collect()),
            Self::Map(entries) => {
                let entries = entries.into_iter().map(|(key, value)| (key, value.into_value()));
                Value::Object(entries.collect::<Map<String, Value>>())
            }
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "bool",
            Self::Number(_) => "number",
            Self::Text(_) => "string",
            Self::List(_) => "array",
            Self::Map(_) => "object",
        }
    }
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DocumentVisitor)
    }
}

struct DocumentVisitor;

impl<'de> Visitor<'de> for DocumentVisitor {
    type Value = Document;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Document, E> {
        Ok(Document::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Document, E> {
        Ok(Document::Bool(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Document, E> {
        Ok(Document::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Document, E> {
        Ok(Document::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Document, E> {
        Ok(Number::from_f64(number).map_or(Document::Null, Document::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Document, E> {
        Ok(Document::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Document, E> {
        Ok(Document::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Document, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Document::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Document, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Document::Map(entries))
    }
}

#[derive(Default)]
pub(crate) struct Findings {
    /// The first value of a wrong type.
    pub(crate) type_error: Option<String>,
    /// Unknown and duplicate fields, in document order.
    pub(crate) strict: Vec<String>,
}

pub(crate) fn inspect(node: &Node, document: &Document) -> Findings {
    let custom = node.structure().is_some_and(|structure| structure.name.is_empty());
    let mut inspector = Inspector { findings: Findings::default(), owner: None, custom };
    inspector.value(node, document, &Path { parent: None, step: Step::Root });
    inspector.findings
}

/// Duplicate fields of a document without a schema.
pub(crate) fn repeated(document: &Document) -> Vec<String> {
    let mut inspector = Inspector { findings: Findings::default(), owner: None, custom: false };
    let root = Path { parent: None, step: Step::Root };
    inspector.value(&crate::schema::ANY, document, &root);
    inspector.findings.strict
}

enum Step<'a> {
    Root,
    /// A field, and the structure in which Go keeps it.
    Field(&'a str, Option<&'a str>),
    Key(&'a str),
    Index(usize),
}

struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

impl Path<'_> {
    fn write(&self, out: &mut String, indexes: bool) {
        if let Some(parent) = self.parent {
            parent.write(out, indexes);
        }
        let mut push = |name: &str| {
            if !out.is_empty() {
                out.push('.');
            }
            out.push_str(name);
        };
        match self.step {
            Step::Root => {}
            Step::Field(name, embedded) => {
                if let (false, Some(embedded)) = (indexes, embedded) {
                    push(embedded);
                }
                push(name);
            }
            Step::Key(name) if indexes => push(name),
            Step::Index(at) if indexes => out.push_str(&format!("[{at}]")),
            Step::Index(_) | Step::Key(_) => {}
        }
    }

    /// Such as `spec.containers[0].image`.
    fn shown(&self) -> String {
        let mut out = String::new();
        self.write(&mut out, true);
        out
    }

    /// Such as `spec.containers.image`, as Go names fields of structures.
    fn fields(&self) -> String {
        let mut out = String::new();
        self.write(&mut out, false);
        out
    }
}

struct Inspector<'n> {
    findings: Findings,
    owner: Option<&'n Struct>,
    /// Whether all of it is a custom resource.
    custom: bool,
}

impl<'n> Inspector<'n> {
    fn strict(&mut self, what: &str, path: &Path<'_>) {
        if self.findings.strict.len() < REPORTED_MAX {
            self.findings.strict.push(format!("{what} field {:?}", path.shown()));
        }
    }

    fn mismatch(&mut self, node: &Node, found: &str, path: &Path<'_>) {
        self.not_of_type(&go_type(node), found, path);
    }

    fn not_of_type(&mut self, wanted: &str, found: &str, path: &Path<'_>) {
        let Some(owner) = self.owner else {
            let message = format!("json: cannot unmarshal {found} into Go value of type {wanted}");
            self.findings.type_error.get_or_insert(message);
            return;
        };
        let field = path.fields();
        // Go keeps custom resources as maps, which are checked against their schema later.
        if owner.name.is_empty() && field != "metadata" {
            return;
        }
        // Their metadata it reads by itself.
        let own = field.strip_prefix("metadata.").filter(|_| self.custom);
        let field = own.unwrap_or(&field);
        let message = format!(
            "json: cannot unmarshal {found} into Go struct field {}.{field} of type {wanted}",
            owner.name
        );
        self.findings.type_error.get_or_insert(message);
    }

    fn value(&mut self, node: &'n Node, document: &Document, path: &Path<'_>) {
        match (&node.shape, document) {
            (_, Document::Null) => {}
            (Shape::Struct(_), Document::Map(entries)) => {
                let before = self.owner;
                self.owner = node.structure();
                self.fields(node, entries, path);
                self.owner = before;
            }
            (Shape::Map(_) | Shape::Any, Document::Map(entries)) => {
                self.fields(node, entries, path);
            }
            (Shape::List(inner), Document::List(items)) => {
                for (at, item) in items.iter().enumerate() {
                    let path = Path { parent: Some(path), step: Step::Index(at) };
                    self.value(inner, item, &path);
                }
            }
            (Shape::Any, Document::List(items)) => {
                for (at, item) in items.iter().enumerate() {
                    let path = Path { parent: Some(path), step: Step::Index(at) };
                    self.value(&crate::schema::ANY, item, &path);
                }
            }
            (Shape::Any, _) => {}
            (Shape::Struct(_) | Shape::Map(_) | Shape::List(_), other) => {
                self.mismatch(node, other.kind(), path);
            }
            _ => self.scalar(node, document, path),
        }
    }

    fn fields(&mut self, node: &'n Node, entries: &[(String, Document)], path: &Path<'_>) {
        let mut seen = std::collections::BTreeSet::new();
        for (name, value) in entries {
            let child = node.child(name);
            let step = match &node.shape {
                Shape::Struct(_) => {
                    Step::Field(name, child.and_then(|child| child.embedded.as_deref()))
                }
                _ => Step::Key(name),
            };
            let here = Path { parent: Some(path), step };
            if !seen.insert(name.as_str()) {
                self.strict("duplicate", &here);
            }
            match child {
                Some(child) => self.value(child, value, &here),
                None => self.strict("unknown", &here),
            }
        }
    }

    fn scalar(&mut self, node: &Node, document: &Document, path: &Path<'_>) {
        match (&node.shape, document) {
            (Shape::Text, Document::Text(_))
            | (Shape::Bool, Document::Bool(_))
            | (Shape::Number, Document::Number(_)) => {}
            (Shape::Int32 | Shape::Int64, Document::Number(number)) => {
                let limit =
                    if matches!(node.shape, Shape::Int32) { i32::MAX.into() } else { i64::MAX };
                let fits = number.as_i64().is_some_and(|n| n <= limit && n >= -limit - 1);
                if !fits {
                    self.mismatch(node, &format!("number {number}"), path);
                }
            }
            (Shape::Quantity, Document::Text(text)) => {
                if let Err(error) = Quantity::parse(text) {
                    self.custom(quantity_error(&error).to_owned());
                }
            }
            (Shape::Quantity | Shape::IntOrText, Document::Number(_)) => {}
            (Shape::IntOrText, Document::Text(_)) => {}
            (Shape::Quantity, _) => self.custom(NOT_A_QUANTITY.to_owned()),
            (Shape::IntOrText, other) => self.not_of_type("int32", other.kind(), path),
            (Shape::Time | Shape::MicroTime, Document::Text(text)) => {
                if text.parse::<Timestamp>().is_err() {
                    self.custom(time_error(text, matches!(node.shape, Shape::MicroTime)));
                }
            }
            (Shape::Time | Shape::MicroTime, other) => {
                self.not_of_type("string", other.kind(), path);
            }
            (Shape::Bytes, Document::Text(text)) => {
                let engine = base64::engine::general_purpose::STANDARD;
                let clean: String = text.chars().filter(|c| !matches!(c, '\n' | '\r')).collect();
                if let Err(error) = engine.decode(clean) {
                    self.custom(base64_error(text, &error));
                }
            }
            (_, other) => self.mismatch(node, other.kind(), path),
        }
    }

    fn custom(&mut self, message: String) {
        self.findings.type_error.get_or_insert(message);
    }
}

const NOT_A_QUANTITY: &str = "quantities must match the regular expression \
     '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

/// The real server's message for an invalid quantity.
pub(crate) fn quantity_error(error: &QuantityError) -> &'static str {
    match error {
        QuantityError::Empty
        | QuantityError::UnexpectedCharacter { .. }
        | QuantityError::Negative { .. }
        | QuantityError::NoDigits { .. } => NOT_A_QUANTITY,
        QuantityError::UnknownSuffix { .. } => "unable to parse quantity's suffix",
        QuantityError::ExponentOutOfRange { .. } => "unable to parse quantity's suffix",
    }
}

fn time_error(text: &str, micro: bool) -> String {
    let layout =
        if micro { "2006-01-02T15:04:05.000000Z07:00" } else { "2006-01-02T15:04:05Z07:00" };
    let year = text.len() >= 4 && text.bytes().take(4).all(|b| b.is_ascii_digit());
    let date = text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok();
    if date {
        return format!("parsing time {text:?} as {layout:?}: cannot parse \"\" as \"T\"");
    }
    let (rest, part) = if year { (text.get(4..).unwrap_or_default(), "-") } else { (text, "2006") };
    format!("parsing time {text:?} as {layout:?}: cannot parse {rest:?} as {part:?}")
}

fn base64_error(text: &str, error: &base64::DecodeError) -> String {
    let at = match error {
        base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => {
            *at
        }
        _ => text.len().saturating_sub(1) / 4 * 4,
    };
    format!("illegal base64 data at input byte {at}")
}

/// The Go type of a field.
fn go_type(node: &Node) -> String {
    match &node.shape {
        Shape::Text => match node.alias.as_deref() {
            None => "string".to_owned(),
            Some("UID") => "types.UID".to_owned(),
            Some(name) => format!("v1.{name}"),
        },
        Shape::Bool => "bool".to_owned(),
        Shape::Int32 => "int32".to_owned(),
        Shape::Int64 => "int64".to_owned(),
        Shape::Number => "float64".to_owned(),
        Shape::Quantity => "resource.Quantity".to_owned(),
        Shape::IntOrText => "intstr.IntOrString".to_owned(),
        Shape::Time => "v1.Time".to_owned(),
        Shape::MicroTime => "v1.MicroTime".to_owned(),
        Shape::Bytes => "[]uint8".to_owned(),
        Shape::Any => "interface {}".to_owned(),
        Shape::Struct(_) => match node.structure() {
            Some(structure) => format!("{}.{}", structure.package, structure.name),
            None => "struct".to_owned(),
        },
        Shape::Map(inner) if matches!(inner.shape, Shape::Quantity) => "v1.ResourceList".to_owned(),
        Shape::Map(inner) => format!("map[string]{}", go_type(inner)),
        Shape::List(inner) => format!("[]{}", go_type(inner)),
    }
}

#[derive(Debug)]
pub struct Decoded {
    pub object: Value,
    pub warnings: Vec<String>,
}

/// Decodes the body of a create or update, and applies defaults.
///
/// # Errors
///
/// 400 with the real server's words if it is none.
pub fn object(
    kind: &Kind,
    body: &[u8],
    field_validation: FieldValidation,
) -> Result<Decoded, Status> {
    let unrecognized = |why: &str| {
        Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): couldn't get version/kind; \
             json parse error: {why} ({})",
            kind.kind,
            summary(body)
        ))
    };
    let document = Document::parse(body)
        .map_err(|error| unrecognized(&crate::patch::json_error(body, &error)))?;
    let Document::Map(entries) = &document else {
        let wanted = "struct { APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; \
                      Kind string \"json:\\\"kind,omitempty\\\"\" }";
        let found = document.kind();
        return Err(unrecognized(&format!(
            "json: cannot unmarshal {found} into Go value of type {wanted}"
        )));
    };
    let mut names = ["", ""];
    for (field, value) in entries {
        let slot = match field.as_str() {
            "apiVersion" => 0,
            "kind" => 1,
            _ => continue,
        };
        match value {
            Document::Text(text) => names[slot] = text.as_str(),
            Document::Null => {}
            other => {
                return Err(unrecognized(&format!(
                    "json: cannot unmarshal {} into Go struct field .{field} of type string",
                    other.kind()
                )));
            }
        }
    }
    let [version, name] = names;
    check_type(kind, version, name)?;
    let node = crate::schema::of(kind);
    let findings = inspect(&node, &document);
    let refuse = |why: &str| {
        let version = kind.version.as_ref();
        Status::bad_request(format!(
            "{0} in version {version:?} cannot be handled as a {0}: {why}",
            kind.kind
        ))
    };
    if let Some(error) = findings.type_error {
        return Err(refuse(&error));
    }
    if field_validation == FieldValidation::Strict && !findings.strict.is_empty() {
        return Err(refuse(&strict_error(&findings.strict)));
    }
    let mut object = document.into_value();
    crate::schema::normalize(&node, &mut object);
    if let Some(map) = object.as_object_mut() {
        map.insert("apiVersion".to_owned(), Value::from(kind.api_version()));
        map.insert("kind".to_owned(), Value::from(&*kind.kind));
    }
    crate::defaults::apply(kind, &mut object);
    let warnings = match field_validation {
        FieldValidation::Ignore => Vec::new(),
        _ => findings.strict,
    };
    Ok(Decoded { object, warnings })
}

/// The start of a body, for messages.
fn summary(body: &[u8]) -> String {
    const SHOWN: usize = 30;
    let head = body.get(..SHOWN.min(body.len())).unwrap_or_default();
    let more = if body.len() > SHOWN { " ..." } else { "" };
    match body.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(head)),
        Some(_) => {
            let hex: String = head.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{hex}{more}")
        }
    }
}

/// Checks `apiVersion` and `kind` of a body; both are optional.
fn check_type(kind: &Kind, version: &str, name: &str) -> Result<(), Status> {
    let expected = kind.api_version();
    let version = if version.is_empty() { expected.as_str() } else { version };
    let name = if name.is_empty() { &*kind.kind } else { name };
    if version == expected && name == &*kind.kind {
        return Ok(());
    }
    let (group, short) = version.rsplit_once('/').unwrap_or(("", version));
    let refuse = |why: String| {
        Status::bad_request(format!(
            "{name} in version {short:?} cannot be handled as a {}: {why}",
            kind.kind
        ))
    };
    if crate::schema::of_built_in(version, name).is_some() {
        let own = if kind.resource.group.is_empty() { "core" } else { &kind.resource.group };
        let own = own.split('.').next().unwrap_or(own);
        return Err(refuse(format!(
            "converting ({short}.{name}) to ({own}.{}): unknown conversion",
            kind.kind
        )));
    }
    if group == &*kind.resource.group && (short.contains("beta") || short.contains("alpha")) {
        return Err(Status::bad_request(format!(
            "the API version in the data ({version}) does not match the expected API version \
             ({expected})"
        )));
    }
    Err(refuse(format!(
        "no kind {name:?} is registered for version {version:?} in scheme \
         \"pkg/runtime/scheme.go:111\""
    )))
}

/// The real server's message for unknown and duplicate fields.
pub(crate) fn strict_error(found: &[String]) -> String {
    format!("strict decoding error: {}", found.join(", "))
}
