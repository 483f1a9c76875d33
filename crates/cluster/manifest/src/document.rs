//! One object of a file: its identity and the position of its fields.

use std::fmt;
use std::sync::Arc;

use berth_api::{FieldPath, LowerError};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::decode::{self, UnknownFields};
use crate::limits::DOCUMENTS_MAX;
use crate::node::{Data, Entry, Node, Text};
use crate::problem::Problem;
use crate::source::{Source, Span};

/// How fields are taken that nobody knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strictness {
    /// People wrote the text: an unknown field is a mistake.
    #[default]
    Manifest,
    /// A cluster wrote it, perhaps a newer one: unknown fields are passed over.
    Dump,
}

/// One object, with the place of every field. Clones are cheap.
#[derive(Clone)]
pub struct Document {
    source: Source,
    strictness: Strictness,
    root: Arc<Node>,
    /// The way from the document of the text to this object: `items[3]` in a list.
    base: FieldPath,
    api_version: Arc<str>,
    kind: Arc<str>,
}

/// Divides values into objects.
pub(crate) fn documents(
    source: &Source,
    values: Vec<Node>,
    strictness: Strictness,
) -> Result<Vec<Document>, Problem> {
    let mut documents = Vec::with_capacity(values.len());
    for value in values {
        add(source, strictness, value, FieldPath::root(), None, &mut documents)?;
    }
    Ok(documents)
}

/// Adds an object, or those of a list. Items of typed lists do not say what they are: the list does.
fn add(
    source: &Source,
    strictness: Strictness,
    value: Node,
    base: FieldPath,
    inherited: Option<(&str, &str)>,
    documents: &mut Vec<Document>,
) -> Result<(), Problem> {
    if !matches!(value.data, Data::Map(_)) {
        let message = format!("expected an object, found {}", value.what());
        let problem = Problem::of_text(source, value.span, message);
        return Err(Problem {
            field: base,
            ..problem.with_remedy("add apiVersion, kind and metadata")
        });
    }
    let header = |key: &str| value.get(key, &source.text).and_then(|node| node.text(&source.text));
    let kind = header("kind").or(inherited.map(|(_, kind)| kind)).unwrap_or_default();
    let api_version = header("apiVersion").or(inherited.map(|(version, _)| version));
    let api_version = api_version.unwrap_or_default();
    let items = value.get("items", &source.text);
    if let Some(item_kind) = kind.strip_suffix("List")
        && items.is_some_and(|items| matches!(items.data, Data::List(_) | Data::Null))
    {
        let item = (!item_kind.is_empty()).then(|| (api_version.to_owned(), item_kind.to_owned()));
        let inherited = item.as_ref().map(|(version, kind)| (version.as_str(), kind.as_str()));
        let base = base.key("items");
        for (index, item) in into_items(value, source).into_iter().enumerate() {
            add(source, strictness, item, base.clone().at(index), inherited, documents)?;
        }
        return Ok(());
    }
    if documents.len() >= DOCUMENTS_MAX {
        let message = format!("more than {DOCUMENTS_MAX} objects");
        let problem = Problem::of_text(source, value.span, message);
        return Err(problem.with_remedy("split the file"));
    }
    // A dump has thousands of objects of the same kind.
    let shared =
        documents.last().filter(|last| *last.kind == *kind && *last.api_version == *api_version);
    let (api_version, kind) = match shared {
        Some(last) => (last.api_version.clone(), last.kind.clone()),
        None => (api_version.into(), kind.into()),
    };
    let source = source.clone();
    documents.push(Document { source, strictness, root: Arc::new(value), base, api_version, kind });
    Ok(())
}

fn into_items(list: Node, source: &Source) -> Vec<Node> {
    let Data::Map(entries) = list.data else { return Vec::new() };
    let items = entries.into_iter().find(|entry| entry.key.of(&source.text) == "items");
    match items.map(|entry| entry.value.data) {
        Some(Data::List(items)) => items,
        _ => Vec::new(),
    }
}

impl Document {
    pub fn source(&self) -> &Source {
        &self.source
    }

    pub fn strictness(&self) -> Strictness {
        self.strictness
    }

    /// The same, decoded otherwise.
    #[must_use]
    pub fn with_strictness(mut self, strictness: Strictness) -> Self {
        self.strictness = strictness;
        self
    }

    /// The same in a namespace, if it does not say in which, as kubectl puts it there. Whoever asks
    /// knows that its kind has namespaces.
    #[must_use]
    pub fn in_namespace(mut self, namespace: &str) -> Self {
        let text = &self.source.text;
        let metadata = self.root.get("metadata", text);
        if metadata.is_none_or(|metadata| metadata.get("namespace", text).is_some()) {
            return self;
        }
        let mut root = (*self.root).clone();
        if let Data::Map(fields) = &mut root.data {
            let metadata = fields.iter_mut().find(|field| field.key.of(text) == "metadata");
            if let Some(Data::Map(entries)) = metadata.map(|field| &mut field.value.data) {
                let own = |text: &str| Text::Own(text.into());
                // It stands nowhere; what is wrong with it is shown where the object starts.
                let span = Span::empty_at(self.root.span.start());
                let value = Node { span, data: Data::String(own(namespace)) };
                entries.push(Entry { key: own("namespace"), key_span: span, value });
            }
        }
        self.root = Arc::new(root);
        self
    }

    /// Such as `apps/v1`; empty if it is missing.
    pub fn api_version(&self) -> &str {
        &self.api_version
    }

    /// Such as `Deployment`; empty if it is missing.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The group of the version: empty for the core.
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    /// `metadata.name`.
    pub fn name(&self) -> Option<&str> {
        self.metadata("name")
    }

    /// `metadata.namespace`.
    pub fn namespace(&self) -> Option<&str> {
        self.metadata("namespace")
    }

    fn metadata(&self, field: &str) -> Option<&str> {
        let metadata = self.root.get("metadata", &self.source.text)?;
        metadata.get(field, &self.source.text)?.text(&self.source.text)
    }

    /// `Pod team-a/web`, as far as it is known.
    pub fn label(&self) -> String {
        let kind = if self.kind.is_empty() { "object" } else { &self.kind };
        match (self.namespace(), self.name().or_else(|| self.metadata("generateName"))) {
            (Some(namespace), Some(name)) => format!("{kind} {namespace}/{name}"),
            (None, Some(name)) => format!("{kind} {name}"),
            (_, None) => kind.to_owned(),
        }
    }

    /// Where it is inside of what the text holds: the root, or `items[3]` in a list.
    pub fn base(&self) -> &FieldPath {
        &self.base
    }

    pub fn whole(&self) -> Span {
        self.root.span
    }

    pub fn has(&self, path: &FieldPath) -> bool {
        self.root.find(path, &self.source.text).is_some()
    }

    /// Where the value of a field stands; if there is no such field, the key of the nearest parent
    /// that there is.
    pub fn span(&self, path: &FieldPath) -> Span {
        let (node, key, steps) = self.root.nearest(path, &self.source.text);
        if steps == path.steps().len() { node.span } else { self.heading(node, key) }
    }

    /// Where the key of a field stands, or of its nearest parent; for items of lists, the item.
    pub fn key_span(&self, path: &FieldPath) -> Span {
        let (node, key, _) = self.root.nearest(path, &self.source.text);
        self.heading(node, key)
    }

    /// What to mark when something large is meant: its key, else its first line.
    fn heading(&self, node: &Node, key: Option<Span>) -> Span {
        key.unwrap_or_else(|| {
            let text = self.source.slice(node.span);
            let first = text.find(['\n', '\r']).unwrap_or(text.len());
            Span::new(node.span.start(), node.span.start() + first)
        })
    }

    pub fn value(&self) -> Value {
        let mut value = self.root.value(&self.source.text);
        if let Value::Object(fields) = &mut value {
            for (key, text) in [("apiVersion", &self.api_version), ("kind", &self.kind)] {
                if !text.is_empty() && !fields.contains_key(key) {
                    fields.insert(key.to_owned(), Value::String(text.to_string()));
                }
            }
        }
        value
    }

    /// One field without places.
    pub fn value_at(&self, path: &FieldPath) -> Option<Value> {
        Some(self.root.find(path, &self.source.text)?.value(&self.source.text))
    }

    /// The object as a `T`. In a manifest the first unknown field is a problem.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        self.decode_strictly(&self.root, &FieldPath::root())
    }

    /// The object as a `T`, and every field that `T` does not know.
    pub fn decode_noting<T: DeserializeOwned>(&self) -> Result<(T, Vec<Problem>), Problem> {
        decode::decode(self, &self.root, &FieldPath::root(), UnknownFields::Noted)
    }

    /// One field as a `T`, as strictly as the object; `None` if it is missing.
    pub fn decode_at<T: DeserializeOwned>(&self, path: &FieldPath) -> Result<Option<T>, Problem> {
        let node = self.root.find(path, &self.source.text);
        node.map(|node| self.decode_strictly(node, path)).transpose()
    }

    fn decode_strictly<T: DeserializeOwned>(
        &self,
        node: &Node,
        at: &FieldPath,
    ) -> Result<T, Problem> {
        let unknown = match self.strictness {
            Strictness::Manifest => UnknownFields::Noted,
            Strictness::Dump => UnknownFields::PassedOver,
        };
        let (value, unknown) = decode::decode(self, node, at, unknown)?;
        unknown.into_iter().next().map_or(Ok(value), Err)
    }

    /// Something wrong with a field.
    pub fn problem(&self, field: FieldPath, message: impl Into<String>) -> Problem {
        Problem {
            source: self.source.clone(),
            span: self.span(&field),
            object: self.label(),
            field,
            message: message.into(),
            remedy: None,
        }
    }

    /// What lowering found. `parent` is where the lowered part stands: the root for the object
    /// itself, `spec.template` for the pod of a Deployment.
    pub fn lower_problem(&self, parent: &FieldPath, error: &LowerError) -> Problem {
        let field = parent.clone().join(&FieldPath::parse(&error.field));
        self.problem(field, error.problem.clone())
    }

    pub(crate) fn root(&self) -> &Node {
        &self.root
    }
}

impl fmt::Debug for Document {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let position = self.source.start(self.root.span);
        write!(formatter, "{} at {}:{position}", self.label(), self.source.name)
    }
}
