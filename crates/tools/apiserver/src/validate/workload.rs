//! Validation of kinds with a pod template.

use serde_json::{Value, json};

use super::report::{Report, flag, has, int, list, text};
use super::{meta, pod, text};

pub(super) fn check(plural: &str, object: &Value, spec: &Value, report: &mut Report) {
    match plural {
        "deployments" => deployment(spec, report),
        "replicasets" => replica_set(spec, report),
        "statefulsets" => stateful_set(spec, report),
        "daemonsets" => daemon_set(spec, report),
        "jobs" => {
            generated_selector(object, spec, report);
            job(spec, report);
        }
        "cronjobs" => cron_job(object, spec, report),
        _ => {}
    }
}

fn not_negative(spec: &Value, names: &[&str], report: &mut Report) {
    for name in names {
        report.not_negative(&format!("spec.{name}"), int(spec, name));
    }
}

/// How kinds report an invalid selector.
enum BadSelector {
    WithMessage,
    /// Without words.
    WithoutMessage,
    /// Only by the errors inside it.
    Nested,
}

/// Validates a selector and that it matches the template. Returns false if the template is not validated.
fn selector(
    spec: &Value,
    named: &str,
    required: bool,
    bad: &BadSelector,
    report: &mut Report,
) -> bool {
    let labels = spec.pointer("/template/metadata/labels");
    let mut usable = true;
    match spec.get("selector").filter(|selector| !selector.is_null()) {
        None if required => report.required("spec.selector", ""),
        None => {}
        Some(given) => {
            usable = meta::selector("spec.selector", given, report);
            if meta::selects_everything(given) {
                let detail = format!("empty selector is invalid for {named}");
                report.invalid("spec.selector", given, &detail);
            }
        }
    }
    let given = spec.get("selector").unwrap_or(&Value::Null);
    match (usable, bad) {
        (false, BadSelector::WithMessage) => {
            report.invalid("spec.selector", given, "invalid label selector");
            return false;
        }
        (false, BadSelector::WithoutMessage) => report.invalid("spec.selector", given, ""),
        _ => {}
    }
    let everything = given.is_object() && meta::selects_everything(given);
    if usable && !everything && !meta::selects(spec.get("selector"), labels) {
        let labels = labels.cloned().unwrap_or(Value::Null);
        let detail = "`selector` does not match template `labels`";
        report.invalid("spec.template.metadata.labels", &labels, detail);
    }
    true
}

/// Validates the template of a controller of long-running pods.
fn template(spec: &Value, kind: &str, report: &mut Report) {
    pod_template("spec.template", spec, report);
    let pods = spec.pointer("/template/spec").unwrap_or(&Value::Null);
    let restart = text(pods, "restartPolicy");
    if restart != "Always" {
        report.unsupported("spec.template.spec.restartPolicy", restart, &["Always"]);
    }
    if has(pods, "activeDeadlineSeconds") {
        let detail = format!("activeDeadlineSeconds in {kind} is not Supported");
        report.forbidden("spec.template.spec.activeDeadlineSeconds", &detail);
    }
}

fn pod_template(path: &str, spec: &Value, report: &mut Report) {
    let metadata = spec.pointer("/template/metadata").unwrap_or(&Value::Null);
    meta::labels(&format!("{path}.labels"), metadata, "labels", report);
    meta::annotations(&format!("{path}.annotations"), metadata, report);
    let pods = spec.pointer("/template/spec").unwrap_or(&Value::Null);
    let claims = list(spec, "volumeClaimTemplates").iter();
    let claimed: Vec<&str> =
        claims.filter_map(|claim| claim.pointer("/metadata/name")?.as_str()).collect();
    pod::check(&format!("{path}.spec"), pods, &claimed, report);
}

pub(super) fn amount(path: &str, value: Option<&Value>, report: &mut Report) {
    match value {
        Some(Value::String(percent)) => report.text(path, percent, text::percent(percent)),
        Some(number) => report.not_negative(path, number.as_i64()),
        None => {}
    }
}

/// A percentage of more than all.
pub(super) fn at_most_all(path: &str, value: Option<&Value>, report: &mut Report) {
    let percent = value.and_then(Value::as_str).and_then(|text| text.strip_suffix('%'));
    if let (Some(number), Some(value)) = (percent.and_then(|text| text.parse::<i64>().ok()), value)
        && number > 100
    {
        report.invalid(path, value, "must not be greater than 100%");
    }
}

fn is_none(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.trim_end_matches('%').parse::<i64>() == Ok(0),
        Some(number) => number.as_i64() == Some(0),
    }
}

fn deployment(spec: &Value, report: &mut Report) {
    not_negative(spec, &["replicas"], report);
    let goes_on = selector(spec, "deployment", true, &BadSelector::WithMessage, report);
    if goes_on {
        template(spec, "ReplicaSet", report);
    }
    let strategy = spec.get("strategy").unwrap_or(&Value::Null);
    let rolling = strategy.get("rollingUpdate");
    match text(strategy, "type") {
        "Recreate" if rolling.is_some() => report.forbidden(
            "spec.strategy.rollingUpdate",
            "may not be specified when strategy `type` is 'Recreate'",
        ),
        "Recreate" => {}
        "RollingUpdate" => rolling_update(rolling, report),
        other => {
            let shown = format!("{{\"Type\":{},\"RollingUpdate\":null}}", json!(other));
            report.unsupported_as("spec.strategy", shown, &["Recreate", "RollingUpdate"]);
        }
    }
    not_negative(spec, &["minReadySeconds", "revisionHistoryLimit"], report);
    if let Some(deadline) = int(spec, "progressDeadlineSeconds") {
        not_negative(spec, &["progressDeadlineSeconds"], report);
        if deadline <= int(spec, "minReadySeconds").unwrap_or(0) {
            let detail = "must be greater than minReadySeconds";
            report.invalid("spec.progressDeadlineSeconds", &json!(deadline), detail);
        }
    }
}

fn rolling_update(rolling: Option<&Value>, report: &mut Report) {
    let [unavailable, surge] =
        ["maxUnavailable", "maxSurge"].map(|name| rolling.and_then(|rolling| rolling.get(name)));
    let path = "spec.strategy.rollingUpdate";
    amount(&format!("{path}.maxUnavailable"), unavailable, report);
    amount(&format!("{path}.maxSurge"), surge, report);
    if is_none(unavailable) && is_none(surge) {
        let value = unavailable.cloned().unwrap_or(json!(0));
        let detail = "may not be 0 when `maxSurge` is 0";
        report.invalid(&format!("{path}.maxUnavailable"), &value, detail);
    }
    at_most_all(&format!("{path}.maxUnavailable"), unavailable, report);
}

fn replica_set(spec: &Value, report: &mut Report) {
    not_negative(spec, &["replicas", "minReadySeconds"], report);
    if selector(spec, "deployment", true, &BadSelector::WithMessage, report) {
        template(spec, "ReplicaSet", report);
    }
}

fn stateful_set(spec: &Value, report: &mut Report) {
    let policy = text(spec, "podManagementPolicy");
    if !matches!(policy, "OrderedReady" | "Parallel") {
        let detail = "must be 'OrderedReady' or 'Parallel'";
        report.invalid("spec.podManagementPolicy", &json!(policy), detail);
    }
    let strategy = spec.get("updateStrategy").unwrap_or(&Value::Null);
    let partition = strategy.pointer("/rollingUpdate/partition").and_then(Value::as_i64);
    match text(strategy, "type") {
        "RollingUpdate" | "OnDelete" => {
            report.not_negative("spec.updateStrategy.rollingUpdate.partition", partition);
        }
        other => {
            let rolling = match strategy.get("rollingUpdate") {
                Some(rolling) => format!(
                    "{{\"Partition\":{},\"MaxUnavailable\":{}}}",
                    partition.unwrap_or(0),
                    rolling.get("maxUnavailable").unwrap_or(&Value::Null)
                ),
                None => "null".to_owned(),
            };
            let shown = format!("{{\"Type\":{},\"RollingUpdate\":{rolling}}}", json!(other));
            let detail = "must be 'RollingUpdate' or 'OnDelete'";
            report.invalid_as("spec.updateStrategy", shown, detail);
        }
    }
    let retention = spec.get("persistentVolumeClaimRetentionPolicy").unwrap_or(&Value::Null);
    for name in ["whenDeleted", "whenScaled"] {
        let policy = text(retention, name);
        if !policy.is_empty() {
            let path = format!("spec.persistentVolumeClaimRetentionPolicy.{name}");
            report.one_of(&path, policy, &["Retain", "Delete"]);
        }
    }
    not_negative(spec, &["replicas", "minReadySeconds"], report);
    let start = spec.pointer("/ordinals/start").and_then(Value::as_i64);
    report.not_negative("spec.ordinals.start", start);
    let service = text(spec, "serviceName");
    if !service.is_empty() {
        report.text("spec.serviceName", service, text::label(service));
    }
    if selector(spec, "statefulset", true, &BadSelector::WithoutMessage, report) {
        let metadata = spec.pointer("/template/metadata").unwrap_or(&Value::Null);
        meta::labels("spec.template.labels", metadata, "labels", report);
        template(spec, "StatefulSet", report);
    }
}

fn daemon_set(spec: &Value, report: &mut Report) {
    selector(spec, "daemonset", false, &BadSelector::Nested, report);
    template(spec, "DaemonSet", report);
    not_negative(spec, &["minReadySeconds"], report);
    daemon_strategy(spec.get("updateStrategy").unwrap_or(&Value::Null), report);
    not_negative(spec, &["revisionHistoryLimit"], report);
}

fn daemon_strategy(strategy: &Value, report: &mut Report) {
    let rolling = strategy.get("rollingUpdate");
    let [unavailable, surge] =
        ["maxUnavailable", "maxSurge"].map(|name| rolling.and_then(|rolling| rolling.get(name)));
    match text(strategy, "type") {
        "OnDelete" => {}
        "RollingUpdate" => {
            let path = "spec.updateStrategy.rollingUpdate";
            amount(&format!("{path}.maxUnavailable"), unavailable, report);
            at_most_all(&format!("{path}.maxUnavailable"), unavailable, report);
            amount(&format!("{path}.maxSurge"), surge, report);
            at_most_all(&format!("{path}.maxSurge"), surge, report);
            let malformed =
                surge.and_then(Value::as_str).is_some_and(|s| !text::percent(s).is_empty());
            if !is_none(unavailable) && !is_none(surge) && !malformed {
                let value = surge.cloned().unwrap_or(Value::Null);
                let detail = "may not be set when maxUnavailable is non-zero";
                report.invalid(&format!("{path}.maxSurge"), &value, detail);
            } else if is_none(unavailable) && is_none(surge) {
                let detail = "cannot be 0 when maxSurge is 0";
                report.required(&format!("{path}.maxUnavailable"), detail);
            }
        }
        other => {
            let of = |value: Option<&Value>| value.cloned().unwrap_or(json!(0));
            let rolling = match rolling {
                Some(_) => {
                    format!("{{\"MaxUnavailable\":{},\"MaxSurge\":{}}}", of(unavailable), of(surge))
                }
                None => "null".to_owned(),
            };
            let shown = format!("{{\"Type\":{},\"RollingUpdate\":{rolling}}}", json!(other));
            report.unsupported_as("spec.updateStrategy", shown, &["RollingUpdate", "OnDelete"]);
        }
    }
}

/// Validates the generated selector of a Job.
fn generated_selector(object: &Value, spec: &Value, report: &mut Report) {
    if flag(spec, "manualSelector") {
        return;
    }
    let uid = object.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
    let Some(selector) = spec.get("selector") else { return };
    let own = json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}});
    let old = json!({"matchLabels": {"controller-uid": uid}});
    if selector != &own && selector != &old {
        report.invalid("spec.selector", selector, "`selector` not auto-generated");
    }
}

/// Validates a Job; called again when it changes.
pub(super) fn job(spec: &Value, report: &mut Report) {
    job_spec("spec", spec, report);
    let labels = spec.pointer("/template/metadata/labels");
    let selector = spec.get("selector");
    if selector.is_none() {
        report.required("spec.selector", "");
    }
    if !meta::selects(selector, labels) {
        let labels = labels.cloned().unwrap_or(Value::Null);
        let detail = "`selector` does not match template `labels`";
        report.invalid("spec.template.metadata.labels", &labels, detail);
    }
}

fn job_spec(path: &str, spec: &Value, report: &mut Report) {
    let counts = [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "maxFailedIndexes",
    ];
    for name in counts {
        report.not_negative(&format!("{path}.{name}"), int(spec, name));
    }
    let mode = text(spec, "completionMode");
    if !mode.is_empty() {
        report.one_of(&format!("{path}.completionMode"), mode, &["NonIndexed", "Indexed"]);
    }
    if let Some(limit) = int(spec, "backoffLimitPerIndex")
        && mode != "Indexed"
    {
        let path = format!("{path}.backoffLimitPerIndex");
        report.invalid(&path, &json!(limit), "requires indexed completion mode");
    }
    let replacement = text(spec, "podReplacementPolicy");
    if !replacement.is_empty() {
        let known = ["Failed", "TerminatingOrFailed"];
        report.one_of(&format!("{path}.podReplacementPolicy"), replacement, &known);
    }
    pod_template(&format!("{path}.template"), spec, report);
    let restart = spec.pointer("/template/spec/restartPolicy").and_then(Value::as_str);
    if !matches!(restart, Some("OnFailure" | "Never")) {
        let path = format!("{path}.template.spec.restartPolicy");
        report.required(&path, "valid values: \"OnFailure\", \"Never\"");
    }
}

fn cron_job(object: &Value, spec: &Value, report: &mut Report) {
    let schedule = text(spec, "schedule");
    if schedule.is_empty() {
        report.required("spec.schedule", "");
    } else if !schedule.starts_with('@') {
        let fields: Vec<&str> = schedule.split_whitespace().collect();
        if fields.len() != 5 {
            let detail = format!(
                "expected exactly 5 fields, found {}: [{}]",
                fields.len(),
                fields.join(" ")
            );
            report.invalid("spec.schedule", &json!(schedule), &detail);
        }
    }
    not_negative(spec, &["startingDeadlineSeconds"], report);
    let zone = text(spec, "timeZone");
    if !zone.is_empty() && jiff::tz::TimeZone::get(zone).is_err() {
        let detail = format!("unknown time zone {zone}");
        report.invalid("spec.timeZone", &json!(zone), &detail);
    }
    let policy = text(spec, "concurrencyPolicy");
    report.one_of("spec.concurrencyPolicy", policy, &["Allow", "Forbid", "Replace"]);
    let inner = spec.pointer("/jobTemplate/spec").unwrap_or(&Value::Null);
    job_spec("spec.jobTemplate.spec", inner, report);
    not_negative(spec, &["successfulJobsHistoryLimit", "failedJobsHistoryLimit"], report);
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    if name.len() > 52 {
        report.invalid("metadata.name", &json!(name), "must be no more than 52 characters");
    }
}
