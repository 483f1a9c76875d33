//! The scheduling contract: what manifests must say so that GPU workloads are scheduled well, as
//! rules with reasons and remedies.
//!
//! The linter, which has source text, and the admission webhook, which has not, use the same rules:
//! findings name fields, and fixes change fields. Files, YAML and positions are the caller's.
//!
//! A rule reports something only if everything it depends on is known. It is silent about what a
//! cluster may have that it does not see. A fix is offered only if it cannot make anything worse.
//! Tests check each rule with a case that breaks it and one that does not, and apply every fix.
//!
//! ```
//! use berth_contract::{Context, Object, Settings, check, patch};
//! use serde_json::json;
//!
//! let pod = Object::new(json!({
//!     "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "llm" },
//!     "spec": { "containers": [{ "name": "server", "image": "llm:1.2",
//!         "resources": { "requests": { "nvidia.com/gpu": "1" } } }] },
//! }))?;
//! let context = Context::new([&pod], |_| None);
//! let findings = check(&pod, &context, &Settings::default());
//! let limit = findings.iter().find(|finding| finding.rule.code == "BERTH-101").unwrap();
//! assert_eq!(limit.field.to_string(), "spec.containers[0].resources.limits[nvidia.com/gpu]");
//!
//! let mut fixed = pod.json.clone();
//! patch::apply(&mut fixed, &limit.fix)?;
//! assert_eq!(fixed["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"], 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod context;
mod finding;
pub mod lint;
mod object;
pub mod patch;
mod pool;
mod promql;
mod rule;
mod rules;
mod settings;
mod sharing;
mod suppress;
mod topology;
mod view;

pub use context::{Context, ReadText};
pub use finding::{Finding, Fix, ObjectRef};
pub use object::{Object, ObjectError};
pub use rule::{Rule, Severity, SeverityError, Topic};
pub use rules::RULES;
pub use settings::Settings;

use rules::{Breach, Scope};

/// What breaks the contract in an object, by field and then by rule.
pub fn check(object: &Object, context: &Context, settings: &Settings) -> Vec<Finding> {
    let mut scope = Scope { object, context, settings, found: Vec::new() };
    rules::check(&mut scope);
    let ignored = rules::own::ignored(object);
    let kept = scope.found.into_iter().filter(|breach| !ignored.contains(&breach.rule));
    let mut findings: Vec<Finding> = kept
        .filter_map(|breach| {
            let Breach { rule, field, excerpt, message, remedy, severity_max, fix } = breach;
            let severity = settings.severity_of(rule)?;
            Some(Finding {
                rule,
                severity: severity_max.map_or(severity, |most| severity.min(most)),
                object: object.reference.clone(),
                field,
                excerpt,
                message,
                remedy: remedy.unwrap_or_else(|| rule.remedy.to_owned()),
                fix,
            })
        })
        .collect();
    findings.sort_by(|one, other| {
        (&one.field, one.rule.code, &one.message).cmp(&(
            &other.field,
            other.rule.code,
            &other.message,
        ))
    });
    findings.dedup();
    findings
}
