//! JSON Schemas of the files that users write, and the pages that describe them.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use berth_contract::Settings as ContractSettings;
use berth_control::webhook::Settings as WebhookSettings;
use berth_devices::DeviceConfig;
use berth_scenario::cluster::Prices;
use serde_json::{Value, json};

use crate::markdown::{anchor, code, table};

/// A file that users write.
struct Format {
    /// The schema's file.
    file: &'static str,
    title: &'static str,
    /// Which commands read it.
    usage: &'static str,
    schema: Value,
}

fn settings() -> Vec<Format> {
    vec![
        Format {
            file: "schemas/device-offers.json",
            title: "Device offers",
            usage: "Read by `berth agent --devices`, `berth agent mps --devices` and `berth manifests \
                    --agent-devices`; in the chart `agent.offers`. Example: \
                    [examples/device-offers.yaml](../../examples/device-offers.yaml).",
            schema: DeviceConfig::json_schema().to_value(),
        },
        Format {
            file: "schemas/webhook.json",
            title: "Webhook settings",
            usage: "Read by `--webhook-settings` of `berth serve`, `berth up` and `berth manifests`; in the \
                    chart `webhook.settings`. Example: [install.md](../operations/install.md#the-webhook).",
            schema: WebhookSettings::json_schema().to_value(),
        },
        Format {
            file: "schemas/contract.json",
            title: "Contract settings",
            usage: "Read by `berth lint --config`, and as `contract` of the webhook settings.",
            schema: ContractSettings::json_schema().to_value(),
        },
        Format {
            file: "schemas/prices.json",
            title: "Prices",
            usage: "Read by `berth plan --prices`.",
            schema: Prices::json_schema().to_value(),
        },
    ]
}

fn scenario() -> Format {
    Format {
        file: "schemas/scenario.json",
        title: "Scenarios",
        usage: "Read by `berth sim`, and for their pools by `berth up --cluster` and the `--cluster` of other \
                commands. Examples: [48-gpus](../../examples/48-gpus/scenario.yaml), \
                [failure modes](../../examples/failure-modes).",
        schema: berth_scenario::json_schema(),
    }
}

/// The schema files.
pub(crate) fn schemas() -> Vec<(&'static str, String)> {
    let formats = settings().into_iter().chain([scenario()]);
    formats.map(|one| (one.file, format!("{:#}\n", one.schema))).collect()
}

const EDITORS: &str = "\
Editors with the YAML language server (VS Code, Neovim, Helix, IntelliJ) complete and check the file if its first \
line names the schema, as a path or a URL:
";

pub(crate) fn scenario_page() -> String {
    let format = scenario();
    let mut text = format!("# {}\n\n{}\n\n{EDITORS}", format.title, format.usage);
    let _ = write!(
        text,
        "\n```yaml\n# yaml-language-server: $schema=../../docs/reference/{}\n```\n",
        format.file
    );
    let root = &format.schema["$defs"]["Scenario"];
    describe("Scenario", root, &format.schema, 2, &mut text, &mut BTreeSet::new());
    text
}

pub(crate) fn settings_page() -> String {
    let formats = settings();
    let mut text = format!("# Settings files\n\n{EDITORS}");
    let _ = write!(
        text,
        "\n```yaml\n# yaml-language-server: $schema=docs/reference/{}\n```\n",
        formats[0].file
    );
    for format in &formats {
        let title = format.title;
        let _ = write!(text, "\n## {title}\n\n{} Schema: [{1}]({1}).\n", format.usage, format.file);
        let mut described = BTreeSet::new();
        fields(&format.schema, &format.schema, 3, &mut text, &mut described);
    }
    text
}

/// A section on a type, and on the types of its fields.
fn describe(
    name: &str,
    schema: &Value,
    root: &Value,
    level: usize,
    text: &mut String,
    described: &mut BTreeSet<String>,
) {
    let _ = write!(text, "\n{} {name}\n", "#".repeat(level));
    fields(schema, root, level, text, described);
}

fn fields(
    schema: &Value,
    root: &Value,
    level: usize,
    text: &mut String,
    described: &mut BTreeSet<String>,
) {
    if let Some(description) = schema["description"].as_str() {
        let _ = write!(text, "\n{}\n", flow(description));
    }
    let mut rows = Vec::new();
    let mut names = Vec::new();
    rows_of(schema, root, &mut rows, &mut names);
    for variant in schema["oneOf"].as_array().into_iter().flatten() {
        // Each variant has one field, which only that variant requires and describes.
        let mut properties = variant["properties"].clone();
        for field in properties.as_object_mut().into_iter().flatten().map(|(_, field)| field) {
            field["description"] = variant["description"].clone();
        }
        rows_of(&json!({ "properties": properties }), root, &mut rows, &mut names);
    }
    if !rows.is_empty() {
        let _ = write!(text, "\n{}", table(&["field", "type", "description"], &rows));
    }
    for name in names {
        if described.insert(name.clone()) {
            describe(&name, &root["$defs"][&name], root, level.max(3), text, described);
        }
    }
}

fn rows_of(schema: &Value, root: &Value, rows: &mut Vec<Vec<String>>, names: &mut Vec<String>) {
    let required = schema["required"].as_array();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let is_required =
            required.is_some_and(|names| names.iter().any(|required| required == name.as_str()));
        let mut description = field["description"].as_str().map_or(String::new(), flow);
        let mut add = |sentence: String| {
            if !description.is_empty() {
                description.push(' ');
            }
            description.push_str(&sentence);
        };
        if is_required && !field["const"].is_string() {
            add("Required.".to_owned());
        }
        if let Some(values) = field["enum"].as_array() {
            let values: Vec<String> = values.iter().map(plain).collect();
            add(format!("One of {}.", values.join(", ")));
        }
        let is_stated =
            field["description"].as_str().is_some_and(|text| text.contains("Default: "));
        if is_scalar(&field["default"]) && !is_stated {
            add(format!("Default: {}.", plain(&field["default"])));
        }
        rows.push(vec![code(name), type_of(field, root, names), description]);
    }
}

fn is_scalar(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.is_empty()) || value.is_number() || value.is_boolean()
}

fn plain(value: &Value) -> String {
    code(&value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

/// A description without the line breaks of the source.
fn flow(description: &str) -> String {
    description.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn type_of(field: &Value, root: &Value, names: &mut Vec<String>) -> String {
    if let Some(path) = field["$ref"].as_str() {
        return reference(path.trim_start_matches("#/$defs/"), root, names);
    }
    let any = field["anyOf"].as_array().or(field["oneOf"].as_array());
    if let Some(any) = any {
        let any = any.iter().filter(|one| one["type"] != "null");
        return any.map(|one| type_of(one, root, names)).collect::<Vec<_>>().join(" or ");
    }
    if let Some(value) = field["const"].as_str() {
        return code(value);
    }
    let types = match &field["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
        Value::String(one) => vec![one.as_str()],
        _ => return "any".to_owned(),
    };
    let types = types.into_iter().filter(|one| *one != "null");
    let types = types.map(|one| match one {
        "array" => format!("list of {}", plural(type_of(&field["items"], root, names))),
        "object" if field["additionalProperties"].is_object() => {
            format!("map to {}", plural(type_of(&field["additionalProperties"], root, names)))
        }
        one => one.to_owned(),
    });
    types.collect::<Vec<_>>().join(" or ")
}

/// A type with fields has a section; of any other, the name says enough.
fn reference(name: &str, root: &Value, names: &mut Vec<String>) -> String {
    let target = &root["$defs"][name];
    let has_fields = |schema: &Value| schema["properties"].is_object();
    let variants = target["oneOf"].as_array();
    if has_fields(target) || variants.is_some_and(|variants| variants.iter().any(has_fields)) {
        names.push(name.to_owned());
        return format!("[{name}](#{})", anchor(name));
    }
    let values: Vec<String> = match (target["enum"].as_array(), variants) {
        (Some(values), _) => values.iter().map(plain).collect(),
        (None, Some(variants)) => variants
            .iter()
            .filter(|one| one["const"].is_string())
            .map(|one| plain(&one["const"]))
            .collect(),
        (None, None) => Vec::new(),
    };
    if values.is_empty() { name.to_lowercase() } else { values.join(", ") }
}

fn plural(noun: String) -> String {
    let is_word = noun.bytes().all(|byte| byte.is_ascii_lowercase());
    if is_word { format!("{noun}s") } else { noun }
}
