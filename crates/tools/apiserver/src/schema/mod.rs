//! Types of fields, how lists merge, and how Go writes values: Kubernetes 1.36's types as a compact table
//! (`types.txt`), and schemas of custom resources in the same form.
//!
//! A line of the table that starts with `=` names a kind and its type. Every other line is a type: its name, `!`
//! if it is atomic, `@` and its Go package if that is not `v1`, and its fields as `name:type`:
//!
//! | written | meaning |
//! |---|---|
//! | `s b i l n` | text, boolean, 32 and 64 bit integers, number |
//! | `s'Name` | text that has a type of its own in Go |
//! | `name/Inner:` | a field that Go keeps in a structure inside of this one |
//! | `q x t T B *` | quantity, integer or text, time, time with microseconds, bytes, anything |
//! | `[type]` `{type}` | a list, a map by text |
//! | `!` | merged as a whole by server-side apply |
//! | `~` `~a,b` | a list that is a set, or a map by these keys |
//! | `+` `+key` `%` | strategic merge patches merge it (by this key), retain its keys |
//! | `?value` | the default of a key |
//! | `^` `^p` | written always, also when empty (as null where it is a pointer) |
//! | `-` | not written when empty or zero |

mod custom;
mod normal;
pub(crate) mod openapi;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use serde_json::Value;

pub use custom::of_custom_resource;
pub use normal::{empty, format_time, normalize};

use crate::kinds::{Kind, Origin};

#[derive(Clone, Debug)]
pub enum Shape {
    Text,
    Bool,
    /// An integer of 32 bits.
    Int32,
    /// An integer of 64 bits.
    Int64,
    Number,
    /// An amount such as `500m`.
    Quantity,
    IntOrText,
    Time,
    MicroTime,
    /// Bytes in base64.
    Bytes,
    Any,
    Struct(StructRef),
    Map(Box<Node>),
    List(Box<Node>),
}

#[derive(Clone, Debug)]
pub enum StructRef {
    BuiltIn(usize),
    Own(Arc<Struct>),
}

/// How server-side apply sees the items of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListKind {
    Atomic,
    /// A set of values.
    Set,
    Map(Vec<String>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strategy {
    /// Lists are merged, not replaced.
    pub merge: bool,
    /// The field that names items of a merged list; empty for lists of plain values.
    pub merge_key: String,
    /// Keys that the patch does not name are dropped if it says `$retainKeys`.
    pub retain_keys: bool,
}

/// When Go writes a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// When it has been given.
    WhenGiven,
    /// When it is not empty, zero or false.
    WhenFilled,
    /// Always; empty if not given.
    Always,
    /// Always; null if not given.
    AlwaysOrNull,
}

/// The type of a field or item, with merge and output rules.
#[derive(Clone, Debug)]
pub struct Node {
    pub shape: Shape,
    /// How its items are merged, if it is a list.
    pub list: ListKind,
    /// Whether it is applied as a whole, if it is a map or a structure.
    pub atomic: bool,
    pub strategy: Strategy,
    /// Its value as a key where none is given.
    pub key_default: Option<Value>,
    pub presence: Presence,
    /// The name of its string type in Go.
    pub alias: Option<String>,
    /// The embedded structure in Go that has the field.
    pub embedded: Option<String>,
}

impl Node {
    pub fn plain(shape: Shape) -> Self {
        Self {
            shape,
            list: ListKind::Atomic,
            atomic: false,
            strategy: Strategy::default(),
            key_default: None,
            presence: Presence::WhenGiven,
            alias: None,
            embedded: None,
        }
    }

    /// The structure, if it is one.
    pub fn structure(&self) -> Option<&Struct> {
        match &self.shape {
            Shape::Struct(StructRef::BuiltIn(at)) => TABLE.structs.get(*at),
            Shape::Struct(StructRef::Own(own)) => Some(own),
            _ => None,
        }
    }

    pub fn is_atomic(&self) -> bool {
        self.atomic || self.structure().is_some_and(|structure| structure.atomic)
    }

    /// The type of a key; `None` if the key is unknown.
    pub fn child(&self, key: &str) -> Option<&Node> {
        match &self.shape {
            Shape::Map(inner) => Some(inner),
            Shape::Any => Some(&ANY),
            Shape::Struct(_) => {
                let structure = self.structure()?;
                structure.fields.get(key).or(structure.rest.as_deref())
            }
            _ => None,
        }
    }

    pub fn item(&self) -> &Node {
        match &self.shape {
            Shape::List(inner) => inner,
            _ => &ANY,
        }
    }
}

pub static ANY: LazyLock<Node> = LazyLock::new(|| Node::plain(Shape::Any));

/// A structure: a type with named fields.
#[derive(Clone, Debug, Default)]
pub struct Struct {
    /// Its name in Go.
    pub name: String,
    /// Its name in the table, which is unique; empty for a custom resource's.
    pub table_name: String,
    /// Its package in Go, such as `v1`.
    pub package: String,
    pub atomic: bool,
    pub fields: BTreeMap<String, Node>,
    /// The type of unlisted fields; `None` if they are not allowed.
    pub rest: Option<Box<Node>>,
}

struct Table {
    structs: Vec<Struct>,
    /// By table name.
    places: BTreeMap<String, usize>,
    kinds: BTreeMap<(String, String), Node>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| Table::read(include_str!("types.txt")));

impl Table {
    fn read(text: &str) -> Self {
        let types = || text.lines().filter(|line| !line.starts_with('='));
        let name_of = |line: &str| -> String {
            let head = line.split(' ').next().unwrap_or_default();
            head.split(['!', '@']).next().unwrap_or_default().to_owned()
        };
        let index: BTreeMap<String, usize> =
            types().enumerate().map(|(at, line)| (name_of(line), at)).collect();
        let structs = types().map(|line| read_struct(line, &index)).collect();
        let kinds = text.lines().filter_map(|line| line.strip_prefix('='));
        let kinds = kinds.filter_map(|line| {
            let mut words = line.split(' ');
            let (version, kind, name) = (words.next()?, words.next()?, words.next()?);
            let shape = Shape::Struct(StructRef::BuiltIn(*index.get(name)?));
            Some(((version.to_owned(), kind.to_owned()), Node::plain(shape)))
        });
        let kinds = kinds.collect();
        Self { structs, places: index, kinds }
    }
}

fn read_struct(line: &str, index: &BTreeMap<String, usize>) -> Struct {
    let mut words = line.split(' ');
    let head = words.next().unwrap_or_default();
    let (head, package) = head.split_once('@').unwrap_or((head, "v1"));
    let name = head.trim_end_matches('!');
    let fields = words.filter_map(|word| {
        let (field, text) = word.split_once(':')?;
        let mut node = TypeReader { rest: text, index }.node();
        let (field, embedded) = match field.split_once('/') {
            Some((field, embedded)) => (field, Some(embedded.to_owned())),
            None => (field, None),
        };
        node.embedded = embedded;
        Some((field.to_owned(), node))
    });
    Struct {
        name: name.rsplit('.').next().unwrap_or(name).to_owned(),
        table_name: name.to_owned(),
        package: package.to_owned(),
        atomic: head.ends_with('!'),
        fields: fields.collect(),
        rest: None,
    }
}

struct TypeReader<'a> {
    rest: &'a str,
    index: &'a BTreeMap<String, usize>,
}

impl<'a> TypeReader<'a> {
    fn eat(&mut self, c: char) -> bool {
        match self.rest.strip_prefix(c) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn word(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !belongs(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn shape(&mut self) -> Shape {
        for (open, close) in [('[', ']'), ('{', '}')] {
            if self.eat(open) {
                let inner = Box::new(self.node());
                self.eat(close);
                return if open == '[' { Shape::List(inner) } else { Shape::Map(inner) };
            }
        }
        match self.word(|c| c.is_ascii_alphanumeric() || c == '.' || c == '*') {
            "s" => Shape::Text,
            "b" => Shape::Bool,
            "i" => Shape::Int32,
            "l" => Shape::Int64,
            "n" => Shape::Number,
            "q" => Shape::Quantity,
            "x" => Shape::IntOrText,
            "t" => Shape::Time,
            "T" => Shape::MicroTime,
            "B" => Shape::Bytes,
            name => match self.index.get(name) {
                Some(at) => Shape::Struct(StructRef::BuiltIn(*at)),
                None => Shape::Any,
            },
        }
    }

    fn node(&mut self) -> Node {
        let mut node = Node::plain(self.shape());
        if self.eat('\'') {
            node.alias = Some(self.word(|c| c.is_ascii_alphanumeric()).to_owned());
        }
        node.atomic = self.eat('!');
        if self.eat('~') {
            let keys = self.word(|c| c.is_ascii_alphanumeric() || c == ',');
            node.list = match keys {
                "" => ListKind::Set,
                keys => ListKind::Map(keys.split(',').map(str::to_owned).collect()),
            };
        }
        if self.eat('+') {
            node.strategy.merge = true;
            node.strategy.merge_key = self.word(|c| c.is_ascii_alphanumeric()).to_owned();
        }
        node.strategy.retain_keys = self.eat('%');
        if self.eat('?') {
            let text = self.word(|c| c.is_ascii_alphanumeric());
            let number = text.parse::<i64>().map(Value::from);
            node.key_default = Some(number.unwrap_or_else(|_| Value::from(text)));
        }
        if self.eat('-') {
            node.presence = Presence::WhenFilled;
        } else if self.eat('^') {
            node.presence = if self.eat('p') { Presence::AlwaysOrNull } else { Presence::Always };
        }
        node
    }
}

pub fn of_built_in(api_version: &str, kind: &str) -> Option<&'static Node> {
    TABLE.kinds.get(&(api_version.to_owned(), kind.to_owned()))
}

/// The schema of a structure of the table, such as `ObjectMeta`.
pub fn named(name: &str) -> Node {
    let at = TABLE.structs.iter().position(|structure| structure.name == name);
    match at {
        Some(at) => Node::plain(Shape::Struct(StructRef::BuiltIn(at))),
        None => Node::plain(Shape::Any),
    }
}

/// The position of a structure, by table name.
pub(crate) fn place_of(name: &str) -> Option<usize> {
    TABLE.places.get(name).copied()
}

/// All structures of the table and where they stand.
#[cfg(test)]
pub(crate) fn built_in_structs() -> impl Iterator<Item = (usize, &'static Struct)> {
    TABLE.structs.iter().enumerate()
}

/// The schema of a built-in or custom kind.
pub fn of(kind: &Kind) -> std::borrow::Cow<'static, Node> {
    use std::borrow::Cow;
    match &kind.origin {
        Origin::BuiltIn => match of_built_in(&kind.api_version(), &kind.kind) {
            Some(node) => Cow::Borrowed(node),
            None => Cow::Owned(of_custom_resource(&Value::Null, true)),
        },
        Origin::Custom(row) => {
            Cow::Owned(of_custom_resource(&row.schema, row.preserve_unknown_fields))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_a_map_by_name_and_merged_by_it() {
        let pod = of_built_in("v1", "Pod").unwrap();
        let containers = pod.child("spec").unwrap().child("containers").unwrap();
        assert_eq!(containers.list, ListKind::Map(vec!["name".to_owned()]));
        assert!(containers.strategy.merge);
        assert_eq!(containers.strategy.merge_key, "name");
        assert_eq!(containers.presence, Presence::Always);
    }

    #[test]
    fn ports_have_a_default_for_their_second_key() {
        let pod = of_built_in("v1", "Pod").unwrap();
        let containers = pod.child("spec").unwrap().child("containers").unwrap();
        let ports = containers.item().child("ports").unwrap();
        assert_eq!(ports.item().child("protocol").unwrap().key_default, Some("TCP".into()));
    }

    #[test]
    fn every_type_that_a_field_names_is_in_the_table() {
        let known: Vec<&str> = include_str!("types.txt").lines().collect();
        assert!(known.len() > 500);
        for structure in &TABLE.structs {
            for (name, node) in &structure.fields {
                let mut node = node;
                while let Shape::List(inner) | Shape::Map(inner) = &node.shape {
                    node = inner;
                }
                let text = known.iter().any(|line| {
                    line.split(' ').any(|word| {
                        word.strip_prefix(name.as_str()).is_some_and(|rest| {
                            let rest = rest.trim_start_matches(|c| c != ':');
                            rest.starts_with(":*")
                                || rest.starts_with(":[*")
                                || rest.starts_with(":{*")
                        })
                    })
                });
                assert!(
                    !matches!(node.shape, Shape::Any) || text,
                    "{}.{name} has no type",
                    structure.name
                );
            }
        }
    }
}
