//! Findings as JSON. Fields keep their meaning within a version.

use crate::Fix;
use serde_json::{Value, json};

use super::report::{Located, Report};

const VERSION: u32 = 1;

/// All findings as one JSON object.
pub fn render(report: &Report) -> Value {
    let count = report.count();
    json!({
        "version": VERSION,
        "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
        "summary": {
            "objects": report.objects,
            "files": report.files,
            "errors": count.errors,
            "warnings": count.warnings,
            "infos": count.infos,
            "fixable": count.fixable,
        },
    })
}

fn finding(located: &Located) -> Value {
    let finding = &located.finding;
    json!({
        "code": finding.rule.code,
        "name": finding.rule.name,
        "severity": finding.severity.as_str(),
        "file": located.file,
        "line": located.start.line,
        "column": located.start.column,
        "endLine": located.end.line,
        "endColumn": located.end.column,
        "object": {
            "apiVersion": finding.object.api_version,
            "kind": finding.object.kind,
            "namespace": finding.object.namespace,
            "name": finding.object.name,
        },
        "field": finding.field.to_string(),
        "message": finding.message,
        "remedy": finding.remedy,
        "fix": finding.fix.iter().map(fix).collect::<Vec<_>>(),
    })
}

fn fix(fix: &Fix) -> Value {
    match fix {
        Fix::Set { path, value } => {
            json!({ "op": "set", "path": path.to_string(), "value": value })
        }
        Fix::Append { path, value } => {
            json!({ "op": "append", "path": path.to_string(), "value": value })
        }
        Fix::Remove { path } => json!({ "op": "remove", "path": path.to_string() }),
    }
}
