//! Rules on Berth's own labels and annotations.

use berth_api::FieldPath;
use berth_api::keys::{
    CLASS, GANG, GANG_SIZE, GANG_TIMEOUT, GANG_TOPOLOGY, GPU_COMPUTE, GPU_MEMORY, LINT_IGNORE,
    MODEL, MOVABLE, TEAM,
};
use berth_api::workload::WorkloadKind;
use berth_model::workload::WorkloadClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::{Breach, Scope};
use crate::context::label_of;
use crate::object::Object;
use crate::rule::{Rule, Severity, Topic};
use crate::suppress;
use crate::view::PodView;

pub(crate) static MALFORMED: Rule = Rule {
    code: "BERTH-801",
    name: "malformed-annotation",
    topic: Topic::Berth,
    severity: Severity::Error,
    summary: "Values of berth.dev/ labels and annotations are valid.",
    why: "Berth does not schedule a pod with an invalid request, and derives an invalid class from the \
          pod's priority instead.",
    remedy: "Correct the value as the message says.",
    safe_fix: None,
};

pub(crate) static UNKNOWN_KEY: Rule = Rule {
    code: "BERTH-802",
    name: "unread-key",
    topic: Topic::Berth,
    severity: Severity::Warning,
    summary: "Keys under berth.dev/ are known, and set where Berth reads them.",
    why: "Berth ignores a label that should be an annotation, an annotation on the Deployment instead of \
          its pods, and a misspelt key.",
    remedy: "Set the key as the message says.",
    safe_fix: None,
};

pub(crate) static BROKEN_GANG: Rule = Rule {
    code: "BERTH-803",
    name: "broken-gang",
    topic: Topic::Berth,
    severity: Severity::Error,
    summary: "The pods of a gang have the same berth.dev/gang-size, and there are that many.",
    why: "A gang starts when it has as many pods as its size says. With fewer pods, or with different \
          sizes, it never starts.",
    remedy: "Set berth.dev/gang-size to the number of pods that start together.",
    safe_fix: None,
};

pub(crate) static BAD_IGNORE: Rule = Rule {
    code: "BERTH-804",
    name: "bad-ignore",
    topic: Topic::Berth,
    severity: Severity::Warning,
    summary: "berth.dev/lint-ignore names known rules and a reason.",
    why: "Without a reason nobody knows when the exception can be removed.",
    remedy: "Set berth.dev/lint-ignore to CODE[,CODE…]: reason.",
    safe_fix: None,
};

const PREFIX: &str = "berth.dev/";

/// Keys of pods that are labels.
const LABELS: [&str; 5] = [CLASS, GANG, GANG_SIZE, MODEL, TEAM];
/// Keys of pods that are annotations.
const ANNOTATIONS: [&str; 6] =
    [GPU_MEMORY, GPU_COMPUTE, GANG_TOPOLOGY, GANG_TIMEOUT, MODEL, MOVABLE];
/// Keys that are read from pods only.
const OF_PODS: [&str; 7] =
    [CLASS, GANG, GANG_SIZE, GPU_MEMORY, GPU_COMPUTE, GANG_TOPOLOGY, GANG_TIMEOUT];
/// Largest distance at which a key counts as misspelt.
const MISSPELT: usize = 2;

fn metadata(json: &Value) -> Option<ObjectMeta> {
    serde_json::from_value(json.get("metadata")?.clone()).ok()
}

fn ignore_text(object: &Object) -> Option<&str> {
    object.json.get("metadata")?.get("annotations")?.get(LINT_IGNORE)?.as_str()
}

/// Rules that the object's annotation exempts it from.
pub(crate) fn ignored(object: &Object) -> Vec<&'static Rule> {
    ignore_text(object).map(|text| suppress::read(text).rules).unwrap_or_default()
}

pub(crate) fn check(scope: &mut Scope<'_>) {
    let field = FieldPath::root().key("metadata").key("annotations").key(LINT_IGNORE);
    let ignored = ignore_text(scope.object).map(suppress::read).unwrap_or_default();
    for problem in ignored.problems {
        scope.add(Breach::new(&BAD_IGNORE, field.clone(), problem));
    }
}

pub(crate) fn check_pod(view: &PodView<'_>, scope: &mut Scope<'_>) {
    if let Err(error) = &view.lowered
        && error.field.contains(PREFIX)
    {
        let field = view.template.path.clone().join(&FieldPath::parse(&error.field));
        scope.add(Breach::new(&MALFORMED, field, error.problem.clone()));
    }
    let class = label_of(&view.template.metadata, CLASS);
    if let Some(text) = class.filter(|text| WorkloadClass::parse(text).is_none()) {
        let known: Vec<&str> = WorkloadClass::ALL.iter().map(|class| class.as_str()).collect();
        let message = format!("unknown class {text:?} (expected {})", known.join(", "));
        scope.add(Breach::new(&MALFORMED, view.label_field(CLASS), message));
    }
    check_keys(&view.template.metadata, &view.template.path, scope);
    if view.workload.kind != WorkloadKind::Pod {
        check_level(view, scope);
    }
    check_gang(view, scope);
}

fn check_keys(metadata: &ObjectMeta, path: &FieldPath, scope: &mut Scope<'_>) {
    let at = |list: &str, key: &str| path.clone().key("metadata").key(list).key(key);
    let lists = [
        ("labels", "an annotation", &metadata.labels, &LABELS[..], &ANNOTATIONS[..]),
        ("annotations", "a label", &metadata.annotations, &ANNOTATIONS[..], &LABELS[..]),
    ];
    for (list, other_list, given, read_here, read_there) in lists {
        let keys = given.iter().flatten().map(|(key, _)| key.as_str());
        for key in keys.filter(|key| key.starts_with(PREFIX)) {
            if read_here.contains(&key) {
                continue;
            }
            let near = |known: &&&str| distance(key, known) <= MISSPELT;
            let message = if read_there.contains(&key) {
                format!("{key} is ignored here: it must be {other_list}")
            } else if let Some(meant) = read_here.iter().chain(read_there).find(near) {
                format!("unknown key {key}; did you mean {meant}?")
            } else {
                continue;
            };
            scope.add(Breach::new(&UNKNOWN_KEY, at(list, key), message));
        }
    }
}

/// Reports keys on the workload that its pods lack.
fn check_level(view: &PodView<'_>, scope: &mut Scope<'_>) {
    let Some(own) = metadata(&scope.object.json) else { return };
    let pods = &view.template.metadata;
    for (list, given, of_pods) in [
        ("labels", &own.labels, &pods.labels),
        ("annotations", &own.annotations, &pods.annotations),
    ] {
        for key in given.iter().flatten().map(|(key, _)| key.as_str()) {
            let has = of_pods.as_ref().is_some_and(|of_pods| of_pods.contains_key(key));
            if OF_PODS.contains(&key) && !has {
                let field = FieldPath::root().key("metadata").key(list).key(key);
                let message = format!("{key} is read from pods: set it in the pod template");
                scope.add(Breach::new(&UNKNOWN_KEY, field, message));
            }
        }
    }
}

fn check_gang(view: &PodView<'_>, scope: &mut Scope<'_>) {
    let label = |key: &str| label_of(&view.template.metadata, key);
    let Some((name, size)) = label(GANG).zip(label(GANG_SIZE)) else { return };
    let Some(gang) = scope.context.gang(view.namespace, name) else { return };
    let field = view.label_field(GANG_SIZE);
    if gang.sizes.len() > 1 {
        let sizes: Vec<&str> = gang.sizes.iter().map(String::as_str).collect();
        let message =
            format!("the pods of gang {name:?} have different sizes: {}", sizes.join(", "));
        scope.add(Breach::new(&BROKEN_GANG, field, message));
        return;
    }
    // Other pods of its gang may be in other manifests.
    let lone = view.workload.kind == WorkloadKind::Pod;
    let (Ok(size), Some(pods)) = (size.parse::<u32>(), gang.pods) else { return };
    if pods < size && !lone && !scope.context.is_scaled(view.namespace, view.workload) {
        let message = format!("gang {name:?} has size {size}, but only {pods} pods");
        scope.add(Breach::new(&BROKEN_GANG, field, message));
    }
}

/// Edit distance.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, from) in one.bytes().enumerate() {
        let mut corner = row[0];
        row[0] = at + 1;
        for (index, to) in other.bytes().enumerate() {
            let kept = corner + usize::from(from != to);
            corner = row[index + 1];
            row[index + 1] = kept.min(corner + 1).min(row[index] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_letters() {
        for (one, other, expected) in
            [("gang", "gang", 0), ("gnag", "gang", 2), ("gangs", "gang", 1), ("", "abc", 3)]
        {
            assert_eq!(distance(one, other), expected, "{one} {other}");
        }
    }
}
