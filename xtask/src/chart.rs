//! Generates the Helm chart from the manifests of `berth manifests`.
//!
//! The manifests are generated with every option on, and once without each option. Lines that differ are put into
//! conditions, and placeholders become values. So the chart cannot disagree with `berth manifests`, and needs no second
//! description of 60 objects. The other way round, `berth` would need an implementation of Helm's template language.
//! Templates use so little of that language that a test can render them and compare.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, ensure};
use berth_control::install::{
    AgentOptions, FailurePolicy, InstallOptions, WebhookMode, manifests, release_image,
};
use serde_json::Value;
use similar::{DiffTag, TextDiff};

const NAMESPACE: &str = "berth-namespace";
const IMAGE: &str = "berth-image";
const REPLICAS: u32 = 4_242;
const EXEMPT: &str = "berth-exempt";
const RUNTIME_CLASS: &str = "berth-runtime-class";
const OFFERS: &str = "berth-offers";

const VALUES: &str = "\
# Replicas of the scheduler, of which one leads.
replicas: 2

# Container image. Releases publish it; the installation guide shows how to build one.
image: IMAGE

webhook:
  # Mode of the admission webhook: off, dry-run, warn or enforce.
  mode: warn
  # What happens to objects while the webhook cannot be reached: open (admitted) or closed (denied).
  fail: open
  # Namespaces that the webhook skips, besides those of the cluster and Berth's own.
  exemptNamespaces: []
  # Further settings: deny, warn, contract, mutations.
  settings: {}

# Use a certificate of cert-manager for the webhook.
certManager: false

# Add a ServiceMonitor for the Prometheus operator.
serviceMonitor: false

# Add PriorityClasses for the classes of work.
priorityClasses: false

agent:
  # Run the node agent on every node.
  enabled: false
  # RuntimeClass that gives containers NVIDIA's driver, if that is not the default.
  runtimeClass: \"\"
  # Inspect the memory placement of other users' processes, which needs SYS_PTRACE.
  memory: false
  # Run the device plugin.
  devices: false
  # Devices to offer: kind DeviceOffers, with the default directories.
  offers:
    apiVersion: berth.dev/v1alpha1
    kind: DeviceOffers
    spec:
      offers:
      - as: whole
      - as: slices
  # Run an MPS daemon for each GPU that is offered in shares.
  shares: false
  # Apply MIG layouts that Nodes request. The agent is privileged then.
  mig: false
";

/// Everything on, with Berth's own certificate, which needs more objects than cert-manager's.
fn full() -> InstallOptions {
    InstallOptions {
        namespace: NAMESPACE.to_owned(),
        image: IMAGE.to_owned(),
        replicas: REPLICAS,
        webhook: WebhookMode::Warn,
        fail: FailurePolicy::Open,
        exempt_namespaces: [EXEMPT.to_owned()].into(),
        cert_manager: false,
        service_monitor: true,
        priority_classes: true,
        agent: Some(AgentOptions {
            runtime_class: Some(RUNTIME_CLASS.to_owned()),
            memory: true,
            offers: Some(OFFERS.to_owned()),
            shares: true,
            mig: true,
        }),
        topology_definition: true,
        ..InstallOptions::default()
    }
}

/// Everything on, with different options of the agent.
fn but(change: impl FnOnce(AgentOptions) -> AgentOptions) -> InstallOptions {
    InstallOptions { agent: full().agent.map(change), ..full() }
}

/// The condition under which each option is on, and the options without it.
fn conditions() -> Vec<(&'static str, InstallOptions)> {
    vec![
        ("ne .Values.webhook.mode \"off\"", InstallOptions { webhook: WebhookMode::Off, ..full() }),
        ("not .Values.certManager", InstallOptions { cert_manager: true, ..full() }),
        (".Values.serviceMonitor", InstallOptions { service_monitor: false, ..full() }),
        (".Values.priorityClasses", InstallOptions { priority_classes: false, ..full() }),
        (".Values.agent.enabled", InstallOptions { agent: None, ..full() }),
        (
            "ne .Values.agent.runtimeClass \"\"",
            but(|agent| AgentOptions { runtime_class: None, ..agent }),
        ),
        (".Values.agent.memory", but(|agent| AgentOptions { memory: false, ..agent })),
        (".Values.agent.devices", but(|agent| AgentOptions { offers: None, ..agent })),
        (".Values.agent.shares", but(|agent| AgentOptions { shares: false, ..agent })),
        (".Values.agent.mig", but(|agent| AgentOptions { mig: false, ..agent })),
    ]
}

fn key(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_lowercase();
    format!("{}-{}", text(&object["kind"]), text(&object["metadata"]["name"]))
}

/// The opposite of a condition.
fn not(condition: &str) -> String {
    match condition.strip_prefix("not ") {
        Some(opposite) => opposite.to_owned(),
        None => format!("not {condition}"),
    }
}

/// The chart's files by path.
pub(crate) fn files() -> anyhow::Result<BTreeMap<String, String>> {
    let version = env!("CARGO_PKG_VERSION");
    let chart = format!(
        "apiVersion: v2\nname: berth\ndescription: GPU-aware scheduling for Kubernetes\n\
         type: application\nversion: {version}\nappVersion: {version}\nkubeVersion: \">=1.33.0-0\"\n"
    );
    let mut files = BTreeMap::from([
        ("Chart.yaml".to_owned(), chart),
        ("values.yaml".to_owned(), VALUES.replace("IMAGE", &release_image())),
    ]);
    let variants: Vec<(&str, Vec<Value>)> =
        conditions().into_iter().map(|(on, off)| (on, manifests(&off))).collect();
    let all = manifests(&full());
    // An object that appears only without an option depends on no other.
    for (condition, without) in &variants {
        for object in without.iter().filter(|one| all.iter().all(|other| key(other) != key(one))) {
            let text = name_values(&berth_manifest::to_yaml(object));
            let text = format!("{{{{- if {} }}}}\n{text}{{{{- end }}}}\n", not(condition));
            files.insert(file_of(object), text);
        }
    }
    for object in all {
        match object["kind"].as_str() {
            // Helm makes the namespace, and installs definitions before everything else.
            Some("Namespace") if object["metadata"]["name"] == NAMESPACE => {}
            Some("CustomResourceDefinition") => {
                let name = object["spec"]["names"]["plural"].as_str().unwrap_or_default();
                files.insert(format!("crds/{name}.yaml"), berth_manifest::to_yaml(&object));
            }
            _ => {
                files.insert(file_of(&object), template(&object, &variants)?);
            }
        }
    }
    Ok(files)
}

fn file_of(object: &Value) -> String {
    format!("templates/{}.yaml", key(object).replace(&format!("{NAMESPACE}-"), ""))
}

fn template(object: &Value, variants: &[(&str, Vec<Value>)]) -> anyhow::Result<String> {
    let on = name_values(&berth_manifest::to_yaml(object));
    let (mut only_if, mut differing) = (Vec::new(), Vec::new());
    for (condition, without) in variants {
        let Some(other) = without.iter().find(|other| key(other) == key(object)) else {
            only_if.push(*condition);
            continue;
        };
        let off = name_values(&berth_manifest::to_yaml(other));
        if off != on {
            differing.push((*condition, off));
        }
    }
    let mut text = weave(&on, &differing).with_context(|| key(object))?;
    for condition in only_if {
        text = format!("{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n");
    }
    Ok(text)
}

/// Merges the text with all options on and the texts without one option each. Differences become conditions.
fn weave(on: &str, without: &[(&str, String)]) -> anyhow::Result<String> {
    let lines: Vec<&str> = on.split_inclusive('\n').collect();
    let mut changes = Vec::new();
    for (condition, off) in without {
        let diff = TextDiff::from_lines(off.as_str(), on);
        let old: Vec<&str> = off.split_inclusive('\n').collect();
        for op in diff.ops().iter().filter(|op| op.tag() != DiffTag::Equal) {
            let removed = old.get(op.old_range()).unwrap_or_default().concat();
            changes.push((op.new_range(), *condition, removed));
        }
    }
    changes.sort_by_key(|(range, ..)| (range.start, std::cmp::Reverse(range.end)));
    woven(&lines, &(0..lines.len()), &changes)
}

/// Lines of the text with everything on, the condition for them, and the text that replaces them otherwise.
type Change<'a> = (std::ops::Range<usize>, &'a str, String);

/// Applies changes to a range of lines. Lines that one option removes can contain, or equal, lines that another
/// removes.
fn woven(
    lines: &[&str],
    range: &std::ops::Range<usize>,
    changes: &[Change<'_>],
) -> anyhow::Result<String> {
    let (mut text, mut at) = (String::new(), range.start);
    let mut changes = changes.iter().peekable();
    while let Some((range, condition, removed)) = changes.next() {
        ensure!(range.start >= at, "{condition} and another option change the same lines; say how");
        text.push_str(&lines.get(at..range.start).unwrap_or_default().concat());
        let mut within = Vec::new();
        while let Some(inner) = changes
            .next_if(|inner| removed.is_empty() && inner.2.is_empty() && inner.0.end <= range.end)
        {
            within.push(inner.clone());
        }
        let added = woven(lines, range, &within)?;
        at = range.end;
        text.push_str(&match (added.is_empty(), removed.is_empty()) {
            (_, true) => format!("{{{{- if {condition} }}}}\n{added}{{{{- end }}}}\n"),
            (true, false) => {
                format!("{{{{- if {} }}}}\n{removed}{{{{- end }}}}\n", not(condition))
            }
            (false, false) => format!(
                "{{{{- if {condition} }}}}\n{added}{{{{- else }}}}\n{removed}{{{{- end }}}}\n"
            ),
        });
    }
    text.push_str(&lines.get(at..range.end).unwrap_or_default().concat());
    Ok(text)
}

/// Replaces placeholders by values of the chart.
fn name_values(text: &str) -> String {
    let mut named = String::new();
    let is_of_webhooks = text.contains("\nwebhooks:\n");
    for line in text.lines() {
        if let Some(indent) = line.strip_suffix(&format!("- {EXEMPT}")) {
            named.push_str(&format!(
                "{{{{- range .Values.webhook.exemptNamespaces }}}}\n{indent}- {{{{ . }}}}\n\
                 {{{{- end }}}}\n"
            ));
            continue;
        }
        let line = line
            .replace(NAMESPACE, "{{ .Release.Namespace }}")
            .replace(IMAGE, "{{ .Values.image }}")
            .replace(RUNTIME_CLASS, "{{ .Values.agent.runtimeClass }}")
            .replace(&REPLICAS.to_string(), "{{ .Values.replicas }}")
            .replace("--webhook=warn", "--webhook={{ .Values.webhook.mode }}")
            .replace("--webhook=off", "--webhook={{ .Values.webhook.mode }}");
        // An admission policy's failurePolicy is fixed.
        let line = match line.strip_suffix("failurePolicy: Ignore") {
            Some(indent) if is_of_webhooks => format!(
                "{indent}failurePolicy: {{{{ if eq .Values.webhook.fail \"closed\" }}}}Fail{{{{ else }}}}Ignore{{{{ end }}}}"
            ),
            _ => line,
        };
        let line = match line.split_once("webhook.yaml: ") {
            Some((indent, text)) if text.contains("{}") => {
                format!("{indent}webhook.yaml: {{{{ toJson (toYaml .Values.webhook.settings) }}}}")
            }
            _ => line.replace(
                &format!("offers.yaml: {OFFERS}"),
                "offers.yaml: {{ toJson (toYaml .Values.agent.offers) }}",
            ),
        };
        named.push_str(&line);
        named.push('\n');
    }
    named
}

/// Writes the chart.
pub(crate) fn write(root: &Path) -> anyhow::Result<()> {
    let chart = root.join("chart");
    for directory in ["crds", "templates"] {
        let path = chart.join(directory);
        if path.exists() {
            std::fs::remove_dir_all(&path)?;
        }
        std::fs::create_dir_all(&path)?;
    }
    for (name, text) in files()? {
        let path = chart.join(name);
        std::fs::write(&path, text)
            .with_context(|| format!("{} cannot be written", path.display()))?;
    }
    println!("wrote {}", chart.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::process::Command;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    #[test]
    fn the_committed_chart_is_what_would_be_written() {
        for (name, text) in files().unwrap() {
            let committed = std::fs::read_to_string(root().join("chart").join(&name));
            assert_eq!(
                committed.ok().as_deref(),
                Some(text.as_str()),
                "{name}: run cargo xtask chart"
            );
        }
    }

    /// Helm's language as far as the chart uses it.
    struct Renderer {
        values: Value,
        namespace: String,
    }

    impl Renderer {
        fn value(&self, path: &str) -> Value {
            let pointer = path.trim_start_matches(".Values").replace('.', "/");
            let found = self.values.pointer(&pointer);
            found.unwrap_or_else(|| panic!("values.yaml has no {path}")).clone()
        }

        fn holds(&self, condition: &str) -> bool {
            let words: Vec<&str> = condition.split_whitespace().collect();
            match words.as_slice() {
                ["eq", path, text] => self.value(path) == text.trim_matches('"'),
                ["ne", path, text] => self.value(path) != text.trim_matches('"'),
                ["not", path] => self.value(path) != true,
                [path] => self.value(path) == true,
                other => panic!("{other:?}"),
            }
        }

        fn inline(&self, line: &str) -> String {
            let mut line = line.to_owned();
            while let Some(start) = line.find("{{") {
                let end = start + line[start..].find("}}").unwrap();
                let expression = line[start + 2..end].trim().to_owned();
                if let Some(condition) = expression.strip_prefix("if ") {
                    let rest = &line[end + 2..];
                    let (yes, rest) = rest.split_once("{{ else }}").unwrap();
                    let (no, after) = rest.split_once("{{ end }}").unwrap();
                    let chosen = if self.holds(condition) { yes } else { no };
                    line = format!("{}{chosen}{after}", &line[..start]);
                    continue;
                }
                let text = match expression.as_str() {
                    ".Release.Namespace" => self.namespace.clone(),
                    "toJson (toYaml .Values.webhook.settings)"
                    | "toJson (toYaml .Values.agent.offers)" => "\"{}\"".to_owned(),
                    path => match self.value(path) {
                        Value::String(text) => text,
                        other => other.to_string(),
                    },
                };
                line.replace_range(start..end + 2, &text);
            }
            line
        }

        fn render(&self, text: &str) -> String {
            let mut out = String::new();
            // Whether each condition around a line holds.
            let mut around: Vec<bool> = Vec::new();
            let mut lines = text.lines();
            while let Some(line) = lines.next() {
                let control = line.strip_prefix("{{- ").and_then(|rest| rest.strip_suffix(" }}"));
                match control {
                    Some("end") => drop(around.pop().unwrap()),
                    Some("else") => {
                        let last = around.last_mut().unwrap();
                        *last = !*last;
                    }
                    Some(other) if other.starts_with("range ") => {
                        let item = lines.next().unwrap();
                        assert_eq!(lines.next(), Some("{{- end }}"));
                        let names = self.value(&other[6..]).as_array().unwrap().clone();
                        let is_shown = around.iter().all(|holds| *holds);
                        for name in names.iter().filter(|_| is_shown) {
                            out += &item.replace("{{ . }}", name.as_str().unwrap());
                            out.push('\n');
                        }
                    }
                    Some(other) => around.push(self.holds(other.strip_prefix("if ").unwrap())),
                    None if around.iter().all(|holds| *holds) => {
                        out += &self.inline(line);
                        out.push('\n');
                    }
                    None => {}
                }
            }
            out
        }
    }

    fn parse(text: &str) -> Vec<Value> {
        let source = berth_manifest::Source::new("chart", text);
        let documents = berth_manifest::read(&source).unwrap();
        documents.iter().map(berth_manifest::Document::value).collect()
    }

    fn sorted(mut all: Vec<Value>) -> Vec<Value> {
        all.retain(|one| {
            !["Namespace", "CustomResourceDefinition"].contains(&one["kind"].as_str().unwrap())
        });
        all.sort_by_key(key);
        all
    }

    #[test]
    fn the_chart_says_what_berth_manifests_says() {
        let files = files().unwrap();
        let defaults = &parse(&VALUES.replace("IMAGE", &release_image()))[0];
        for bits in 0..2_048_u32 {
            let on = |bit: u32| bits & (1 << bit) != 0;
            let modes = ["off", "enforce"];
            let mut values = defaults.clone();
            values["webhook"]["mode"] = modes[usize::from(on(0))].into();
            values["certManager"] = on(1).into();
            values["serviceMonitor"] = on(2).into();
            values["priorityClasses"] = on(3).into();
            values["webhook"]["fail"] = if on(4) { "closed" } else { "open" }.into();
            let exempt: Vec<String> = if on(4) { vec!["a".into(), "z".into()] } else { vec![] };
            values["webhook"]["exemptNamespaces"] = exempt.clone().into();
            values["agent"]["enabled"] = on(5).into();
            values["agent"]["runtimeClass"] = if on(6) { "nvidia" } else { "" }.into();
            values["agent"]["memory"] = on(7).into();
            values["agent"]["devices"] = on(8).into();
            values["agent"]["offers"] = serde_json::json!({});
            values["agent"]["shares"] = on(9).into();
            values["agent"]["mig"] = on(10).into();
            let options = InstallOptions {
                namespace: "ns".to_owned(),
                webhook: if on(0) { WebhookMode::Enforce } else { WebhookMode::Off },
                fail: if on(4) { FailurePolicy::Closed } else { FailurePolicy::Open },
                cert_manager: on(1),
                service_monitor: on(2),
                priority_classes: on(3),
                exempt_namespaces: exempt.into_iter().collect(),
                agent: on(5).then(|| AgentOptions {
                    runtime_class: on(6).then(|| "nvidia".to_owned()),
                    memory: on(7),
                    offers: on(8).then(|| "{}".to_owned()),
                    shares: on(9),
                    mig: on(10),
                }),
                ..InstallOptions::default()
            };
            let renderer = Renderer { values, namespace: "ns".to_owned() };
            let rendered: Vec<Value> = files
                .iter()
                .filter(|(name, _)| name.starts_with("templates/"))
                .flat_map(|(_, text)| parse(&renderer.render(text)))
                .filter(|document| !document.is_null())
                .collect();
            assert_eq!(sorted(rendered), sorted(manifests(&options)), "{bits:#010b}");
        }
    }

    #[test]
    fn helm_renders_the_same_where_it_is_installed() {
        let run = Command::new("helm")
            .args(["template", "berth", "--namespace", "ns", "--set", "webhook.mode=enforce"])
            .arg(root().join("chart"))
            .output();
        let Ok(output) = run else { return };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let options = InstallOptions {
            namespace: "ns".to_owned(),
            webhook: WebhookMode::Enforce,
            ..InstallOptions::default()
        };
        let text = String::from_utf8(output.stdout).unwrap();
        let rendered = parse(&text).into_iter().filter(|one| !one.is_null()).collect();
        assert_eq!(sorted(rendered), sorted(manifests(&options)));
    }
}
