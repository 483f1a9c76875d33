//! Defaults of kinds with a pod template.

use serde_json::{Map, Value};

use super::{default, default_text, each, has, pod, text, with, within};

pub(super) const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

pub(super) fn apply(plural: &str, object: &mut Map<String, Value>) {
    match plural {
        "deployments" => spec(object, deployment),
        "statefulsets" => spec(object, stateful_set),
        "daemonsets" => {
            within(object, "metadata", |metadata| {
                within(metadata, "annotations", |all| default(all, TEMPLATE_GENERATION, "0"));
            });
            spec(object, daemon_set);
        }
        "replicasets" => spec(object, |spec| default(spec, "replicas", 1)),
        "replicationcontrollers" => {
            labels_of_template(object);
            let labels = object
                .get("spec")
                .and_then(|spec| spec.pointer("/template/metadata/labels"))
                .cloned();
            spec(object, |spec| {
                default(spec, "replicas", 1);
                if let Some(labels) = labels {
                    default(spec, "selector", labels);
                }
            });
        }
        "jobs" => {
            labels_of_template(object);
            spec(object, job);
        }
        "cronjobs" => {
            with(object, "spec", |spec| {
                default_text(spec, "concurrencyPolicy", "Allow");
                default(spec, "suspend", false);
                default(spec, "successfulJobsHistoryLimit", 3);
                default(spec, "failedJobsHistoryLimit", 1);
                with(spec, "jobTemplate", |template| {
                    with(template, "spec", template_of);
                });
            });
        }
        _ => {}
    }
}

fn template_of(spec: &mut Map<String, Value>) {
    with(spec, "template", |template| with(template, "spec", pod::apply_spec));
}

fn spec(object: &mut Map<String, Value>, f: impl FnOnce(&mut Map<String, Value>)) {
    with(object, "spec", |spec| {
        f(spec);
        template_of(spec);
    });
}

/// Jobs and ReplicationControllers without labels take those of their template.
fn labels_of_template(object: &mut Map<String, Value>) {
    let labels = object.get("spec").and_then(|spec| spec.pointer("/template/metadata/labels"));
    let Some(labels) = labels.filter(|labels| labels.is_object()).cloned() else { return };
    within(object, "metadata", |metadata| default(metadata, "labels", labels));
}

fn deployment(spec: &mut Map<String, Value>) {
    default(spec, "replicas", 1);
    default(spec, "revisionHistoryLimit", 10);
    default(spec, "progressDeadlineSeconds", 600);
    within(spec, "strategy", |strategy| {
        default_text(strategy, "type", "RollingUpdate");
        if text(strategy, "type") == "RollingUpdate" {
            within(strategy, "rollingUpdate", |rolling| {
                default(rolling, "maxUnavailable", "25%");
                default(rolling, "maxSurge", "25%");
            });
        }
    });
}

fn stateful_set(spec: &mut Map<String, Value>) {
    default_text(spec, "podManagementPolicy", "OrderedReady");
    within(spec, "updateStrategy", |strategy| {
        if text(strategy, "type").is_empty() {
            strategy.insert("type".to_owned(), Value::from("RollingUpdate"));
        }
        if text(strategy, "type") == "RollingUpdate" {
            within(strategy, "rollingUpdate", |rolling| default(rolling, "partition", 0));
        }
        // Its feature gate is off by default.
        with(strategy, "rollingUpdate", |rolling| {
            rolling.remove("maxUnavailable");
        });
    });
    within(spec, "persistentVolumeClaimRetentionPolicy", |policy| {
        default_text(policy, "whenDeleted", "Retain");
        default_text(policy, "whenScaled", "Retain");
    });
    default(spec, "replicas", 1);
    default(spec, "revisionHistoryLimit", 10);
    each(spec, "volumeClaimTemplates", |claim| {
        default_text(claim, "kind", "PersistentVolumeClaim");
        default_text(claim, "apiVersion", "v1");
        super::cluster::claim(claim);
    });
}

fn daemon_set(spec: &mut Map<String, Value>) {
    default(spec, "revisionHistoryLimit", 10);
    within(spec, "updateStrategy", |strategy| {
        default_text(strategy, "type", "RollingUpdate");
        if text(strategy, "type") == "RollingUpdate" {
            within(strategy, "rollingUpdate", |rolling| {
                default(rolling, "maxUnavailable", 1);
                default(rolling, "maxSurge", 0);
            });
        }
    });
}

fn job(spec: &mut Map<String, Value>) {
    if !has(spec, "completions") && !has(spec, "parallelism") {
        default(spec, "completions", 1);
    }
    default(spec, "parallelism", 1);
    let limit = if has(spec, "backoffLimitPerIndex") { i32::MAX } else { 6 };
    default(spec, "backoffLimit", limit);
    default(spec, "completionMode", "NonIndexed");
    default(spec, "suspend", false);
    default(spec, "manualSelector", false);
    let policy = if has(spec, "podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
    default(spec, "podReplacementPolicy", policy);
    with(spec, "podFailurePolicy", |policy| {
        each(policy, "rules", |rule| {
            each(rule, "onPodConditions", |condition| default_text(condition, "status", "True"));
        });
    });
}
