//! GPU sharing, from the ConfigMaps of NVIDIA's device plugin.

use berth_api::FieldPath;
use serde_json::Value;

use crate::context::ReadText;
use crate::object::Object;

/// One way to share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// Processes take turns.
    TimeSlicing,
    /// Processes run side by side; the plugin caps each at its part.
    Mps,
}

/// A resource that is shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SharedResource {
    pub(crate) field: FieldPath,
    pub(crate) method: Method,
    /// Under which name shares are offered.
    pub(crate) offered_as: String,
    pub(crate) replicas: u64,
    /// Whether shares have a name of their own.
    pub(crate) renamed: bool,
    /// Whether a container that asks for several is turned away.
    pub(crate) one_each: bool,
    /// Whether it is the only configuration there is, rather than one that some nodes pick.
    pub(crate) everywhere: bool,
}

/// What the texts of a ConfigMap say.
pub(crate) fn of_config_map(object: &Object, read: ReadText) -> Vec<SharedResource> {
    let data = object.json.get("data").and_then(Value::as_object).into_iter().flatten();
    let texts = data.filter_map(|(key, value)| Some((key, value.as_str()?)));
    let configs = texts.filter(|(_, text)| text.contains("version"));
    let configs: Vec<(&String, Value)> =
        configs.filter_map(|(key, text)| Some((key, read(text)?))).collect();
    let everywhere = configs.len() == 1;
    let each = configs.iter().flat_map(|(key, config)| {
        of_config(config, &FieldPath::root().key("data").key(key.as_str()))
    });
    each.map(|sharing| SharedResource { everywhere, ..sharing }).collect()
}

fn of_config(config: &Value, field: &FieldPath) -> Vec<SharedResource> {
    let Some(sharing) = config.get("sharing") else { return Vec::new() };
    let methods = [("timeSlicing", Method::TimeSlicing), ("mps", Method::Mps)];
    let mut found = Vec::new();
    for (key, method) in methods {
        let Some(terms) = sharing.get(key) else { continue };
        let says = |flag: &str| terms.get(flag).and_then(Value::as_bool).unwrap_or(false);
        let resources = terms.get("resources").and_then(Value::as_array).into_iter().flatten();
        for resource in resources {
            let text = |field: &str| resource.get(field).and_then(Value::as_str);
            let Some(name) = text("name") else { continue };
            let offered_as = match text("rename") {
                Some(other) => other.to_owned(),
                None if says("renameByDefault") => format!("{name}.shared"),
                None => name.to_owned(),
            };
            found.push(SharedResource {
                field: field.clone(),
                method,
                renamed: offered_as != name,
                offered_as,
                replicas: resource.get("replicas").and_then(Value::as_u64).unwrap_or(1),
                // Under MPS the plugin never gives one container several.
                one_each: says("failRequestsGreaterThanOne") || method == Method::Mps,
                everywhere: false,
            });
        }
    }
    found
}
