//! Rules on PromQL in alert rules, in dashboards in ConfigMaps, and in triggers of autoscalers.

use berth_api::FieldPath;
use serde_json::Value;

use super::{Breach, Scope};
use crate::context::ReadText;
use crate::promql::{self, Expr, Node};
use crate::rule::{Rule, Severity, Topic};

pub(crate) static RATE_OF_GAUGE: Rule = Rule {
    code: "BERTH-701",
    name: "rate-of-gauge",
    topic: Topic::Metrics,
    severity: Severity::Error,
    summary: "increase and rate are not applied to gauges, such as resource requests.",
    why: "The increase of a constant is 0: a pod that holds 8 GPUs for an hour counts as no GPU-hours, and \
          teams with the most constant usage are billed least.",
    remedy: "Sum samples over time and divide by samples per hour.",
    safe_fix: None,
};

pub(crate) static USED_OVER_FREE: Rule = Rule {
    code: "BERTH-702",
    name: "memory-used-over-free",
    topic: Topic::Metrics,
    severity: Severity::Error,
    summary: "GPU memory utilisation is used / (used + free + reserved).",
    why: "used / free is not a utilisation: it exceeds 0.9 at 47 % and 1 at 50 %. Alerts fire all day and \
          are ignored.",
    remedy: "Divide by the sum of used, free and reserved memory.",
    safe_fix: None,
};

pub(crate) static RESOURCE_SPELLING: Rule = Rule {
    code: "BERTH-703",
    name: "resource-spelling",
    topic: Topic::Metrics,
    severity: Severity::Error,
    summary: "Queries of kube-state-metrics name GPUs nvidia_com_gpu.",
    why: "kube-state-metrics writes resource names with underscores. A query for nvidia.com/gpu matches \
          nothing: an empty panel, or an alert that never fires.",
    remedy: "Use resource=\"nvidia_com_gpu\".",
    safe_fix: None,
};

/// Deepest nesting of documents in strings.
const DEEPEST: usize = 4;

/// Every query of interest contains one of these.
const SIGNS: [&str; 2] = ["DCGM_FI_", "kube_pod_container_resource_"];

const REQUESTS: &str = "kube_pod_container_resource_requests";
const USED: &str = "DCGM_FI_DEV_FB_USED";
const FREE: &str = "DCGM_FI_DEV_FB_FREE";
const RESERVED: &str = "DCGM_FI_DEV_FB_RESERVED";

/// Metrics that go up and down.
const GAUGES: [&str; 14] = [
    REQUESTS,
    "kube_pod_container_resource_limits",
    USED,
    FREE,
    RESERVED,
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_MEM_COPY_UTIL",
    "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_MEMORY_TEMP",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_SM_CLOCK",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "DCGM_FI_PROF_DRAM_ACTIVE",
];

pub(crate) fn check(scope: &mut Scope<'_>) {
    let mut found = Vec::new();
    walk(&scope.object.json, FieldPath::root(), scope.context.read, &mut found);
    scope.found.extend(found);
}

fn walk(value: &Value, path: FieldPath, read: ReadText, found: &mut Vec<Breach>) {
    match value {
        Value::String(text) => look(text, &path, read, 0, found),
        Value::Array(list) => {
            for (index, item) in list.iter().enumerate() {
                walk(item, path.clone().at(index), read, found);
            }
        }
        Value::Object(map) => {
            for (key, item) in map {
                walk(item, path.clone().key(key.as_str()), read, found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A text may be a query, or a document with queries inside.
fn look(text: &str, field: &FieldPath, read: ReadText, depth: usize, found: &mut Vec<Breach>) {
    if depth > DEEPEST || !SIGNS.iter().any(|sign| text.contains(sign)) {
        return;
    }
    let is_json = text.trim_start().starts_with(['{', '[']);
    if let Some(query) = promql::parse(text).filter(|_| !is_json) {
        check_query(text, &query, field, found);
        return;
    }
    let json = || serde_json::from_str(text).ok().filter(|_| is_json);
    if let Some(document) = json().or_else(|| read(text)) {
        each_text(&document, &mut |inner| look(inner, field, read, depth + 1, found));
    }
}

fn each_text(value: &Value, see: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => see(text),
        Value::Array(list) => list.iter().for_each(|item| each_text(item, see)),
        Value::Object(map) => map.values().for_each(|item| each_text(item, see)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn check_query(text: &str, query: &Expr, field: &FieldPath, found: &mut Vec<Breach>) {
    let source = |part: &Expr| text.get(part.at.clone()).unwrap_or_default().to_owned();
    for part in query.parts() {
        let breach = match &part.what {
            Node::Call { name, arguments } => rate_of_gauge(name, arguments, field),
            Node::Binary { operator, left, right } if operator == "/" => {
                used_over_free(query, part, left, right, field, &source)
            }
            Node::Metric { name, matchers } => spelling(name, matchers, field),
            _ => None,
        };
        found.extend(breach.map(|breach| breach.about(source(part))));
    }
}

fn rate_of_gauge(function: &str, arguments: &[Expr], field: &FieldPath) -> Option<Breach> {
    if !matches!(function, "increase" | "rate" | "irate") {
        return None;
    }
    let Node::Metric { name, matchers } = &arguments.first()?.what else { return None };
    let gauge = GAUGES.iter().find(|gauge| *gauge == name)?;
    let message = format!("{function} of {gauge}, which is a gauge");
    let breach = Breach::new(&RATE_OF_GAUGE, field.clone(), message);
    Some(if *gauge == REQUESTS {
        let matchers = if matchers.is_empty() { "{resource=\"nvidia_com_gpu\"}" } else { matchers };
        let matchers: String = matchers.split_whitespace().collect();
        breach.remedy(format!(
            "GPU-hours of running pods in the last hour: sum by (namespace) \
             (sum_over_time(({REQUESTS}{matchers} * on (namespace, pod) group_left () \
             (kube_pod_status_phase{{phase=\"Running\"}} == 1))[1h:1m])) / 60. Labels of pods such \
             as team come from kube_pod_labels."
        ))
    } else {
        breach.remedy(format!("Use avg_over_time({gauge}[…]) or max_over_time({gauge}[…])."))
    })
}

fn used_over_free(
    query: &Expr,
    part: &Expr,
    left: &Expr,
    right: &Expr,
    field: &FieldPath,
    source: &impl Fn(&Expr) -> String,
) -> Option<Breach> {
    let wrong = left.mentions(USED) && !left.mentions(FREE) && right.mentions(FREE);
    if !wrong || right.mentions(USED) {
        return None;
    }
    let bound = threshold(query, part);
    let message = match bound {
        Some(bound) if bound > 0.0 => {
            let real = 100.0 * bound / (1.0 + bound);
            format!("used / free exceeds {bound} when {real:.1} % of the memory is used")
        }
        _ => "used / free is not the utilisation".to_owned(),
    };
    let breach = Breach::new(&USED_OVER_FREE, field.clone(), message);
    let (used, free) = (source(left), source(right));
    Some(match (&left.what, &right.what) {
        (Node::Metric { .. }, Node::Metric { .. }) => {
            let reserved = free.replacen(FREE, RESERVED, 1);
            breach.remedy(format!("Use {used} / ({used} + {free} + {reserved})."))
        }
        _ => breach,
    })
}

/// The number that a part of the query is compared with.
fn threshold(query: &Expr, part: &Expr) -> Option<f64> {
    query.parts().into_iter().find_map(|one| match &one.what {
        Node::Binary { operator, left, right }
            if left.at == part.at && matches!(operator.as_str(), ">" | ">=" | "<" | "<=") =>
        {
            match right.what {
                Node::Number(bound) => Some(bound),
                _ => None,
            }
        }
        _ => None,
    })
}

fn spelling(name: &str, matchers: &str, field: &FieldPath) -> Option<Breach> {
    if !name.starts_with("kube_pod_container_resource_") {
        return None;
    }
    let (_, rest) = matchers.split_once("resource")?;
    let value = rest.trim_start_matches([' ', '=', '~']).strip_prefix('"')?;
    let (value, _) = value.split_once('"')?;
    let right = value.replace(['.', '/', '-'], "_");
    let is_resource = value.split_once('/').is_some_and(|(domain, _)| domain.contains('.'));
    is_resource.then(|| {
        let message = format!("kube-state-metrics writes {value:?} as {right:?}");
        let remedy = format!("Use resource=\"{right}\".");
        Breach::new(&RESOURCE_SPELLING, field.clone(), message).remedy(remedy)
    })
}
