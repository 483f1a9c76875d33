//! Rules on Karpenter's older APIs: changes from v1alpha5 and v1beta1 to v1.

use berth_api::FieldPath;
use serde_json::{Value, json};

use super::{Breach, Scope};
use crate::finding::Fix;
use crate::object::{Object, What};
use crate::rule::{Rule, Severity, Topic};

pub(crate) static OLD_API: Rule = Rule {
    code: "BERTH-602",
    name: "old-karpenter-api",
    topic: Topic::Platform,
    severity: Severity::Error,
    summary: "Karpenter's objects have API version v1.",
    why: "Karpenter 1.1 and later do not serve v1beta1, and 0.33 removed Provisioners: the object is \
          rejected or has no effect, and no node is created.",
    remedy: "Migrate the object to API version v1.",
    safe_fix: Some(
        "Migrates v1beta1 NodePools: the version, nodeClassRef, and renamed and moved fields. Does not \
         migrate kubelet settings, which move to another object, and node classes, whose defaults \
         changed.",
    ),
};

pub(crate) static MOVED_FIELD: Rule = Rule {
    code: "BERTH-603",
    name: "moved-karpenter-field",
    topic: Topic::Platform,
    severity: Severity::Error,
    summary: "Karpenter's objects have the fields of v1.",
    why: "An unknown field is rejected, or dropped silently if validation is off. An old annotation has \
          no effect.",
    remedy: "Move the field as the message says.",
    safe_fix: Some("Renames and moves fields and annotations in v1 objects."),
};

const GROUPS: [&str; 3] = ["karpenter.sh", "karpenter.k8s.aws", "karpenter.azure.com"];
const AWS: &str = "karpenter.k8s.aws";
const OLD_ANNOTATION: &str = "karpenter.sh/do-not-evict";
const ANNOTATION: &str = "karpenter.sh/do-not-disrupt";

pub(crate) fn check(scope: &mut Scope<'_>) {
    let object = scope.object;
    if let What::Workload(workload) = &object.what {
        for template in &workload.templates {
            let annotations = template.metadata.annotations.as_ref();
            if let Some(value) = annotations.and_then(|all| all.get(OLD_ANNOTATION)) {
                let path = template.path.clone().key("metadata").key("annotations");
                let (old, new) = (path.clone().key(OLD_ANNOTATION), path.key(ANNOTATION));
                let breach = Breach::new(
                    &MOVED_FIELD,
                    old.clone(),
                    format!("Karpenter ignores it; use {ANNOTATION}"),
                );
                let set = Fix::Set { path: new, value: json!(value) };
                scope.add(breach.fix([set, Fix::Remove { path: old }]));
            }
        }
        return;
    }
    let Some((group, version)) = object.reference.api_version.split_once('/') else { return };
    if !GROUPS.contains(&group) {
        return;
    }
    let old = version != "v1" && !is_still_alpha(&object.reference.kind);
    let moves = moves(scope);
    if old {
        let breach = Breach::new(
            &OLD_API,
            FieldPath::root().key("apiVersion"),
            format!(
                "{} {} is no longer served",
                object.reference.api_version, object.reference.kind
            ),
        );
        let (remedy, fix) = upgrade(object, group, version, &moves);
        scope.add(breach.remedy(remedy).fix(fix));
    }
    for one in moves {
        let breach = Breach::new(&MOVED_FIELD, one.field, one.message);
        // The fix of OLD_API migrates the whole object.
        scope.add(if old { breach } else { breach.fix(one.fix) });
    }
}

/// Kinds without a v1.
fn is_still_alpha(kind: &str) -> bool {
    !matches!(
        kind,
        "NodePool" | "NodeClaim" | "EC2NodeClass" | "Provisioner" | "AWSNodeTemplate" | "Machine"
    )
}

/// A field that v1 renamed or moved.
struct Move {
    field: FieldPath,
    message: String,
    /// Empty if it needs a decision.
    fix: Vec<Fix>,
}

fn upgrade(object: &Object, group: &str, version: &str, moves: &[Move]) -> (String, Vec<Fix>) {
    let path = FieldPath::root().key("apiVersion");
    match object.reference.kind.as_str() {
        "NodePool" if version == "v1beta1" => {
            let fix = if moves.iter().all(|one| !one.fix.is_empty()) {
                let set = Fix::Set { path, value: json!(format!("{group}/v1")) };
                let rest = moves.iter().flat_map(|one| one.fix.iter().cloned());
                std::iter::once(set).chain(rest).collect()
            } else {
                Vec::new()
            };
            (format!("Set apiVersion: {group}/v1 and migrate the fields."), fix)
        }
        "Provisioner" => ("Create a NodePool of karpenter.sh/v1 instead.".to_owned(), Vec::new()),
        "AWSNodeTemplate" => (format!("Create an EC2NodeClass of {AWS}/v1 instead."), Vec::new()),
        "Machine" => ("Use NodeClaims of karpenter.sh/v1 instead.".to_owned(), Vec::new()),
        _ => (
            format!(
                "Set apiVersion: {group}/v1. Some defaults changed, such as \
                 metadataOptions.httpPutResponseHopLimit (from 2 to 1)."
            ),
            Vec::new(),
        ),
    }
}

fn moves(scope: &Scope<'_>) -> Vec<Move> {
    match scope.object.reference.kind.as_str() {
        "NodePool" => moves_of_pool(scope),
        "EC2NodeClass" => moves_of_class(&scope.object.json).into_iter().collect(),
        _ => Vec::new(),
    }
}

fn moves_of_pool(scope: &Scope<'_>) -> Vec<Move> {
    let json = &scope.object.json;
    let spec = FieldPath::root().key("spec");
    let inner = spec.clone().key("template").key("spec");
    let disruption = spec.key("disruption");
    let mut found = Vec::new();
    found.extend(class_reference(scope, inner.clone().key("nodeClassRef")));
    if let Some(value) = json.pointer("/spec/disruption/expireAfter") {
        let field = disruption.clone().key("expireAfter");
        let set = Fix::Set { path: inner.clone().key("expireAfter"), value: value.clone() };
        found.push(Move {
            message: "moved to spec.template.spec.expireAfter".to_owned(),
            fix: vec![set, Fix::Remove { path: field.clone() }],
            field,
        });
    }
    if json.pointer("/spec/template/spec/kubelet").is_some() {
        found.push(Move {
            field: inner.key("kubelet"),
            message: "moved to the node class".to_owned(),
            fix: Vec::new(),
        });
    }
    let policy = json.pointer("/spec/disruption/consolidationPolicy").and_then(Value::as_str);
    if policy == Some("WhenUnderutilized") {
        let field = disruption.clone().key("consolidationPolicy");
        let value = json!("WhenEmptyOrUnderutilized");
        let mut fix = vec![Fix::Set { path: field.clone(), value }];
        if json.pointer("/spec/disruption/consolidateAfter").is_none() {
            let path = disruption.key("consolidateAfter");
            fix.push(Fix::Set { path, value: json!("0s") });
        }
        let message = "renamed to WhenEmptyOrUnderutilized".to_owned();
        found.push(Move { field, message, fix });
    }
    found
}

fn class_reference(scope: &Scope<'_>, field: FieldPath) -> Option<Move> {
    let reference = scope.object.json.pointer("/spec/template/spec/nodeClassRef")?;
    let text = |key: &str| reference.get(key).and_then(Value::as_str);
    let version = text("apiVersion");
    if version.is_none() && text("group").is_some() && text("kind").is_some() {
        return None;
    }
    // A known node class tells its kind.
    let class =
        text("name").and_then(|name| scope.context.node_classes.get(name)).map(String::as_str);
    let kind = text("kind").or(class);
    let of_version = version.and_then(|version| Some(version.split_once('/')?.0));
    let of_kind = kind.filter(|kind| *kind == "EC2NodeClass").map(|_| AWS);
    let group = text("group").or(of_version).or(of_kind);
    let mut fix = Vec::new();
    if let (Some(group), Some(kind)) = (group, kind) {
        let set =
            |key: &str, value: &str| Fix::Set { path: field.clone().key(key), value: json!(value) };
        fix.extend([set("group", group), set("kind", kind)]);
        if version.is_some() {
            fix.push(Fix::Remove { path: field.clone().key("apiVersion") });
        }
    }
    let message = "v1 requires group, kind and name of the node class".to_owned();
    Some(Move { field, message, fix })
}

fn moves_of_class(json: &Value) -> Option<Move> {
    if json.get("spec")?.get("amiSelectorTerms").is_some() {
        return None;
    }
    Some(Move {
        field: FieldPath::root().key("spec").key("amiSelectorTerms"),
        message:
            "is required since v1, such as [{alias: al2023@latest}] or, better, a fixed version"
                .to_owned(),
        fix: Vec::new(),
    })
}
