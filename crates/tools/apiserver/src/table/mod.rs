//! Server-side tables for kubectl: columns and cells of each kind.

mod age;
mod cells;
mod pod;
mod printer_columns;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::kinds::{Kind, Origin};
use printer_columns::Columns;

/// What of each object goes into its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Include {
    None,
    Metadata,
    /// All of it.
    Object,
}

impl Include {
    /// By the query parameter `includeObject`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "Metadata" => Some(Self::Metadata),
            "None" => Some(Self::None),
            "Object" => Some(Self::Object),
            _ => None,
        }
    }
}

pub(crate) struct Layout {
    columns: Vec<Value>,
    source: Source,
}

enum Source {
    BuiltIn(cells::Cells),
    Custom(Columns),
}

const NAME_DESCRIPTION: &str = "Name must be unique within a namespace. Is required when creating resources, although some resources may allow a client to request the generation of an appropriate name automatically. Name is primarily intended for creation idempotence and configuration definition. Cannot be updated. More info: https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names";

/// A column of the answer. Columns with priority 1 are printed by `-o wide` alone.
fn column(name: &str, kind: &str, format: &str, description: &str, priority: i64) -> Value {
    json!({
        "name": name,
        "type": kind,
        "format": format,
        "description": description,
        "priority": priority,
    })
}

impl Layout {
    pub(crate) fn of(kind: &Kind) -> Self {
        if let Origin::Custom(row) = &kind.origin {
            let columns = Columns::of(row);
            return Self { columns: columns.definitions(), source: Source::Custom(columns) };
        }
        let layout = cells::of(&kind.resource.group, &kind.resource.plural);
        let columns = layout
            .columns()
            .map(|(name, kind, priority)| {
                let is_name = name == "Name";
                let format = if is_name { "name" } else { "" };
                let description = if is_name { NAME_DESCRIPTION } else { "" };
                column(name, kind, format, description, priority)
            })
            .collect();
        Self { columns, source: Source::BuiltIn(layout.cells) }
    }

    /// A table of some objects. `metadata` is that of the list, or of the one object.
    pub(crate) fn table<'a>(
        &self,
        kind: &Kind,
        metadata: Value,
        objects: impl Iterator<Item = &'a Value>,
        include: Include,
        with_columns: bool,
    ) -> Value {
        let now = Timestamp::now();
        let rows: Vec<Value> = objects.map(|object| self.row(kind, object, include, now)).collect();
        let columns = if with_columns { Value::from(self.columns.clone()) } else { Value::Null };
        json!({
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": metadata,
            "columnDefinitions": columns,
            "rows": rows,
        })
    }

    fn row(&self, kind: &Kind, object: &Value, include: Include, now: Timestamp) -> Value {
        let cells = match &self.source {
            Source::BuiltIn(cells) => cells(object, now),
            Source::Custom(columns) => columns.cells(object, now),
        };
        let mut row = Map::from_iter([("cells".to_owned(), Value::from(cells))]);
        if kind.is("", "pods")
            && let Some(condition) = pod::completed(object)
        {
            row.insert("conditions".to_owned(), json!([condition]));
        }
        let shown = match include {
            Include::None => Value::Null,
            Include::Metadata => json!({
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": object["metadata"],
            }),
            Include::Object => object.clone(),
        };
        row.insert("object".to_owned(), shown);
        Value::Object(row)
    }
}

/// What is printed where there is nothing.
const NONE: &str = "<none>";
const UNKNOWN: &str = "<unknown>";

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn text_or<'a>(object: &'a Value, pointer: &str, otherwise: &'a str) -> &'a str {
    match text(object, pointer) {
        "" => otherwise,
        text => text,
    }
}

fn count(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
}

fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
