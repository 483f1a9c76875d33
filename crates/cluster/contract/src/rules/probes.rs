//! Probes and the end of pods that serve.
//!
//! Owns the rules on how long a server may take to start and to stop. Must not know what it serves.

use berth_model::pod::ContainerKind;
use k8s_openapi::api::core::v1 as core;

use super::{Breach, Scope};
use crate::context::{Context, labels_of};
use crate::rule::{Rule, Severity, Topic};
use crate::view::{ContainerView, PodView};

pub(crate) static KILLED_WHILE_LOADING: Rule = Rule {
    code: "BERTH-306",
    name: "killed-while-loading",
    topic: Topic::Serving,
    severity: Severity::Warning,
    summary: "Probes give a model server the time to load its model.",
    why: "A liveness probe kills a server that does not answer yet. Base models take 23 s to load at \
          the median and 52 s at p99 in Alibaba's GenAI trace, large ones minutes: the server is \
          killed while it loads, and starts again from nothing.",
    remedy: "Add a startupProbe whose failureThreshold × periodSeconds covers loading; the liveness \
             probe starts only after it.",
    safe_fix: None,
};

pub(crate) static NOT_READY_WHEN_READY: Rule = Rule {
    code: "BERTH-307",
    name: "no-readiness",
    topic: Topic::Serving,
    severity: Severity::Warning,
    summary: "A model server behind a Service has a readiness probe.",
    why: "Without one a pod counts as ready as soon as its process runs. Requests then go to a server \
          that is still loading its model, and rollouts replace good replicas with ones that cannot \
          answer yet.",
    remedy: "Add a readinessProbe that succeeds once the model is loaded.",
    safe_fix: None,
};

pub(crate) static SHORT_GRACE: Rule = Rule {
    code: "BERTH-308",
    name: "short-grace",
    topic: Topic::Serving,
    severity: Severity::Warning,
    summary: "The termination grace period is longer than the preStop hook.",
    why: "The grace period runs while the hook runs. If the hook takes all of it, the server is killed \
          before it can finish what is in flight.",
    remedy: "Raise terminationGracePeriodSeconds above the hook's time by what requests take to finish.",
    safe_fix: None,
};

const DEFAULT_GRACE_S: i64 = 30;

pub(crate) fn check(view: &PodView<'_>, scope: &mut Scope<'_>) {
    for container in &view.containers {
        check_grace(container, view, scope);
    }
    if !view.serves_on_gpus() {
        return;
    }
    let labels = labels_of(&view.template.metadata);
    let services = Context::in_namespace(&scope.context.services, view.namespace);
    let served = services.iter().any(|one| !one.is_empty() && one.matches(&labels));
    for ask in &view.gpus {
        let container = &ask.container;
        if container.kind == ContainerKind::Init {
            continue;
        }
        check_start(container, scope);
        let listens = container.spec.ports.as_ref().is_some_and(|ports| !ports.is_empty());
        if served && listens && container.spec.readiness_probe.is_none() {
            let field = container.path.clone().key("readinessProbe");
            let message = format!("container {:?} is ready before it is", container.spec.name);
            scope.add(Breach::new(&NOT_READY_WHEN_READY, field, message));
        }
    }
}

/// For how long a probe lets a container be before it gives up, in seconds.
fn patience_s(probe: &core::Probe) -> i64 {
    let delay = i64::from(probe.initial_delay_seconds.unwrap_or(0));
    let period = i64::from(probe.period_seconds.unwrap_or(10));
    let failures = i64::from(probe.failure_threshold.unwrap_or(3));
    delay.saturating_add(period.saturating_mul(failures))
}

fn check_start(container: &ContainerView<'_>, scope: &mut Scope<'_>) {
    let load_s = i64::from(scope.settings.model_load_seconds);
    let (probe, name) = match (&container.spec.startup_probe, &container.spec.liveness_probe) {
        (Some(probe), _) => (probe, "startupProbe"),
        (None, Some(probe)) => (probe, "livenessProbe"),
        (None, None) => return,
    };
    let patience_s = patience_s(probe);
    if patience_s < load_s {
        let message = format!(
            "the {name} kills container {:?} after {patience_s} s, but models may load for {load_s} s",
            container.spec.name
        );
        let field = container.path.clone().key(name);
        scope.add(Breach::new(&KILLED_WHILE_LOADING, field, message));
    }
}

fn check_grace(container: &ContainerView<'_>, view: &PodView<'_>, scope: &mut Scope<'_>) {
    let hook = container.spec.lifecycle.as_ref().and_then(|cycle| cycle.pre_stop.as_ref());
    let Some(hook_s) = hook.and_then(sleep_s) else { return };
    let grace_s = view.template.spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_S);
    if grace_s <= hook_s {
        let message = format!(
            "the preStop hook of container {:?} sleeps {hook_s} s, but the grace period is {grace_s} s",
            container.spec.name
        );
        let field = view.spec_field("terminationGracePeriodSeconds");
        scope.add(Breach::new(&SHORT_GRACE, field, message));
    }
}

/// For how long a hook sleeps, if that is what it does.
fn sleep_s(hook: &core::LifecycleHandler) -> Option<i64> {
    if let Some(sleep) = &hook.sleep {
        return Some(sleep.seconds);
    }
    let command = hook.exec.as_ref()?.command.as_ref()?;
    let words = command.iter().flat_map(|part| part.split([' ', ';', '&']));
    let mut words = words.filter(|word| !word.is_empty());
    words.find(|word| *word == "sleep" || word.ends_with("/sleep"))?;
    words.next()?.trim_end_matches('s').parse().ok()
}
