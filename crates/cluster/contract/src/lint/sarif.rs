//! Findings as SARIF 2.1.0, for code scanners.

use crate::{RULES, Rule, Severity};
use serde_json::{Value, json};

use super::report::{Located, Report};

const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";

/// All findings as one SARIF log with one run.
pub fn render(report: &Report, version: &str) -> Value {
    json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "berth lint",
                "semanticVersion": version,
                "rules": RULES.iter().map(|rule| descriptor(rule)).collect::<Vec<_>>(),
            } },
            // Columns are counted in characters, not in UTF-16 units, which is the default.
            "columnKind": "unicodeCodePoints",
            "results": report.findings.iter().map(result).collect::<Vec<_>>(),
        }],
    })
}

fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Info => "note",
    }
}

fn descriptor(rule: &Rule) -> Value {
    json!({
        "id": rule.code,
        "name": rule.name,
        "shortDescription": { "text": rule.summary },
        "fullDescription": { "text": rule.why },
        "help": { "text": rule.remedy },
        "defaultConfiguration": { "level": level(rule.severity) },
        "properties": { "topic": rule.topic },
    })
}

fn result(located: &Located) -> Value {
    let finding = &located.finding;
    let index = RULES.iter().position(|rule| rule.code == finding.rule.code);
    let message = format!("{}: {}. {}", finding.object, finding.message, finding.remedy);
    let mut region = json!({
        "startLine": located.start.line,
        "startColumn": located.start.column,
    });
    // A region that ends before it starts, or is empty, is marked as a whole line.
    if (located.end.line, located.end.column) > (located.start.line, located.start.column) {
        region["endLine"] = json!(located.end.line);
        region["endColumn"] = json!(located.end.column);
    }
    let object = &finding.object;
    let identity = format!(
        "{}/{}/{}/{}",
        object.kind,
        object.namespace.as_deref().unwrap_or_default(),
        object.name,
        finding.field
    );
    json!({
        "ruleId": finding.rule.code,
        "ruleIndex": index,
        "level": level(finding.severity),
        "message": { "text": message },
        "locations": [{
            "physicalLocation": {
                "artifactLocation": { "uri": uri(&located.file) },
                "region": region,
            },
            "logicalLocations": [{ "fullyQualifiedName": identity, "kind": "object" }],
        }],
        // The same finding keeps its identity when lines move.
        "partialFingerprints": { "objectAndField/v1": identity },
    })
}

/// A path as a relative reference: everything but what may stand there is escaped.
fn uri(path: &str) -> String {
    let mut text = String::new();
    for byte in path.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
        match byte {
            b'\\' => text.push('/'),
            byte if plain => text.push(char::from(byte)),
            byte => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_references() {
        assert_eq!(uri("a b/ü.yaml"), "a%20b/%C3%BC.yaml");
        assert_eq!(uri("<stdin>"), "%3Cstdin%3E");
    }
}
