//! Rules on probes and the termination of serving pods.

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
    summary: "Probes allow for the time to load a model.",
    why: "A liveness probe kills a server that does not respond yet. In Alibaba's GenAI trace, base \
          models load in 23 s at the median and 52 s at p99, large ones in minutes: the server is \
          killed while it loads, and starts over.",
    remedy: "Add a startupProbe whose failureThreshold × periodSeconds covers the load time. The liveness \
             probe starts after it.",
    safe_fix: None,
};

pub(crate) static NOT_READY_WHEN_READY: Rule = Rule {
    code: "BERTH-307",
    name: "no-readiness",
    topic: Topic::Serving,
    severity: Severity::Warning,
    summary: "Model servers behind a Service have a readiness probe.",
    why: "Without one, a pod is ready as soon as its process runs: it receives traffic while the model \
          loads, and rollouts replace working replicas with ones that cannot serve yet.",
    remedy: "Add a readinessProbe that succeeds once the model is loaded.",
    safe_fix: None,
};

pub(crate) static SHORT_GRACE: Rule = Rule {
    code: "BERTH-308",
    name: "short-grace",
    topic: Topic::Serving,
    severity: Severity::Warning,
    summary: "The termination grace period is longer than the preStop hook.",
    why: "The grace period includes the hook. If the hook takes all of it, the server is killed before \
          it can finish its requests.",
    remedy: "Set terminationGracePeriodSeconds to the hook's time plus the time to finish requests.",
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
            let message = format!(
                "container {:?} has no readinessProbe: it receives traffic while the model loads",
                container.spec.name
            );
            scope.add(Breach::new(&NOT_READY_WHEN_READY, field, message));
        }
    }
}

/// How long a container may fail the probe, in seconds.
fn tolerated_s(probe: &core::Probe) -> i64 {
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
    let patience_s = tolerated_s(probe);
    if patience_s < load_s {
        let message = format!(
            "the {name} kills container {:?} after {patience_s} s, but loading a model may take {load_s} s",
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

/// `None` unless the hook sleeps.
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
