//! Berth's own labels and annotations.
//!
//! Owns the rules on keys under `berth.dev/`: that they are read, that their values are, and that
//! gangs agree with themselves. Must not know what follows from them.

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
    summary: "Values under berth.dev/ are ones that Berth can read.",
    why: "A pod whose need cannot be read is not scheduled; one whose class cannot be read is taken for \
          another by its priority.",
    remedy: "Correct the value as the message says.",
    safe_fix: None,
};

pub(crate) static UNKNOWN_KEY: Rule = Rule {
    code: "BERTH-802",
    name: "unread-key",
    topic: Topic::Berth,
    severity: Severity::Warning,
    summary: "Keys under berth.dev/ are spelt as Berth knows them, and stand where it looks.",
    why: "A key that nobody reads is a wish that nobody hears: a label in place of an annotation, an \
          annotation on the Deployment in place of its pods, a letter too many.",
    remedy: "Write the key where the message says.",
    safe_fix: None,
};

pub(crate) static BROKEN_GANG: Rule = Rule {
    code: "BERTH-803",
    name: "broken-gang",
    topic: Topic::Berth,
    severity: Severity::Error,
    summary: "All pods of a gang state the same size, and there are as many of them.",
    why: "A gang starts when as many pods are there as it says. With fewer it never starts; if its pods \
          disagree it is not known when it could.",
    remedy: "Make berth.dev/gang-size the number of pods that start together.",
    safe_fix: None,
};

pub(crate) static BAD_IGNORE: Rule = Rule {
    code: "BERTH-804",
    name: "bad-ignore",
    topic: Topic::Berth,
    severity: Severity::Warning,
    summary: "An exception from the contract names rules that exist, and a reason.",
    why: "An exception without a reason outlives whoever knew it.",
    remedy: "Write berth.dev/lint-ignore as CODE[,CODE…]: reason.",
    safe_fix: None,
};

const PREFIX: &str = "berth.dev/";

/// Keys of pods that are labels.
const LABELS: [&str; 5] = [CLASS, GANG, GANG_SIZE, MODEL, TEAM];
/// Keys of pods that are annotations.
const ANNOTATIONS: [&str; 6] =
    [GPU_MEMORY, GPU_COMPUTE, GANG_TOPOLOGY, GANG_TIMEOUT, MODEL, MOVABLE];
/// Keys that mean nothing on a workload unless its pods have them too.
const OF_PODS: [&str; 7] =
    [CLASS, GANG, GANG_SIZE, GPU_MEMORY, GPU_COMPUTE, GANG_TOPOLOGY, GANG_TIMEOUT];
/// So many letters away, a key is taken for another one misspelt.
const MISSPELT: usize = 2;

fn metadata(json: &Value) -> Option<ObjectMeta> {
    serde_json::from_value(json.get("metadata")?.clone()).ok()
}

fn ignore_text(object: &Object) -> Option<&str> {
    object.json.get("metadata")?.get("annotations")?.get(LINT_IGNORE)?.as_str()
}

/// Rules that the object asks to be spared.
pub(crate) fn spared(object: &Object) -> Vec<&'static Rule> {
    ignore_text(object).map(|text| suppress::read(text).rules).unwrap_or_default()
}

pub(crate) fn check(scope: &mut Scope<'_>) {
    let field = FieldPath::root().key("metadata").key("annotations").key(LINT_IGNORE);
    let said = ignore_text(scope.object).map(suppress::read).unwrap_or_default();
    for problem in said.problems {
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
        let message = format!("{text:?} is no class; write one of {}", known.join(", "));
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
        ("labels", "annotation", &metadata.labels, &LABELS[..], &ANNOTATIONS[..]),
        ("annotations", "label", &metadata.annotations, &ANNOTATIONS[..], &LABELS[..]),
    ];
    for (list, other_list, given, read_here, read_there) in lists {
        let keys = given.iter().flatten().map(|(key, _)| key.as_str());
        for key in keys.filter(|key| key.starts_with(PREFIX)) {
            if read_here.contains(&key) {
                continue;
            }
            let near = |known: &&&str| distance(key, known) <= MISSPELT;
            let message = if read_there.contains(&key) {
                format!("{key} says nothing here: it is an {other_list}")
                    .replace("an label", "a label")
            } else if let Some(meant) = read_here.iter().chain(read_there).find(near) {
                format!("{key} is not known; {meant} is")
            } else {
                continue;
            };
            scope.add(Breach::new(&UNKNOWN_KEY, at(list, key), message));
        }
    }
}

/// Keys that stand on the workload and not on its pods.
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
                let message = format!("{key} is read from pods; write it into the pod template");
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
        let message = format!("the pods of gang {name:?} state sizes {}", sizes.join(" and "));
        scope.add(Breach::new(&BROKEN_GANG, field, message));
        return;
    }
    // A single pod is one of several that are made elsewhere.
    let lone = view.workload.kind == WorkloadKind::Pod;
    let (Ok(size), Some(pods)) = (size.parse::<u32>(), gang.pods) else { return };
    if pods < size && !lone && !scope.context.is_scaled(view.namespace, view.workload) {
        let message = format!("gang {name:?} waits for {size} pods, but only {pods} are made");
        scope.add(Breach::new(&BROKEN_GANG, field, message));
    }
}

/// How many letters must be changed, added or left out.
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
