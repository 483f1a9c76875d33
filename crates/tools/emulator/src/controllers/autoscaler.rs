//! HorizontalPodAutoscalers. Virtual kubelets measure no load, so replicas only follow `minReplicas` and
//! `maxReplicas`; the conditions say so.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition, HorizontalPodAutoscalerStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::json;

use crate::clock::whole_seconds;
use crate::events::Note;
use crate::key::{Key, error_message, is_conflict};
use crate::queue::{Queue, Requeue};

use super::context::Context;
use super::kinds::Kinds;

const COMPONENT: &str = "horizontal-pod-autoscaler";

/// How often the target's replicas are read again.
const SYNC_PERIOD: Duration = Duration::from_secs(15);

const NO_METRICS: &str = "the HPA cannot compute a replica count: virtual nodes run no containers and measure no \
                          load, so replicas only stay between minReplicas and maxReplicas";

/// A condition: type, status, reason, message.
type Statement<'a> = (&'a str, bool, &'a str, String);

/// Why replicas are changed, if they are.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    replicas: i32,
    why: &'static str,
}

/// How many replicas there should be; `None` if they may stay, or if autoscaling is off at 0 replicas.
fn target(current: i32, min: i32, max: i32) -> Option<Target> {
    let above = "Current number of replicas above Spec.MaxReplicas";
    let below = "Current number of replicas below Spec.MinReplicas";
    match current {
        0 if min != 0 => None,
        current if current > max => Some(Target { replicas: max, why: above }),
        current if current < min => Some(Target { replicas: min, why: below }),
        _ => None,
    }
}

pub(super) fn wire(context: &Context, queue: &Queue) {
    let to = queue.clone();
    context.views.autoscalers.on_change(move |change| to.add(change.key.clone()));
}

/// Keeps the replicas of one autoscaler's target in bounds.
pub(super) async fn reconcile(
    context: &Context,
    kinds: &Arc<Kinds>,
    key: Key,
) -> Result<Requeue, kube::Error> {
    let views = &context.views;
    let Some(autoscaler) = views.autoscalers.get(&key) else { return Ok(None) };
    let spec = &autoscaler.spec;
    let of = &spec.scale_target_ref;
    let api_version = of.api_version.as_deref().unwrap_or_default();
    let unable = |why| [("AbleToScale", false, "FailedGetScale", why)];
    let Some(kind) = kinds.find(api_version, &of.kind) else {
        let why = format!("no matches for kind \"{}\" in group \"{api_version}\"", of.kind);
        return write(context, &autoscaler, None, &unable(why)).await;
    };
    let scales: Api<DynamicObject> = kinds.api(&kind, &key.namespace);
    let scale: Scale = match scales.get_subresource("scale", &of.name).await {
        Ok(scale) => {
            let scale = serde_json::to_value(scale).map_err(kube::Error::SerdeError)?;
            serde_json::from_value(scale).map_err(kube::Error::SerdeError)?
        }
        Err(error @ kube::Error::Api(_)) => {
            let why = format!(
                "the HPA controller was unable to get the target's current scale: {}",
                error_message(&error)
            );
            let note = Note::warning("FailedGetScale", error_message(&error));
            context.events.record(COMPONENT, autoscaler.as_ref(), note);
            return write(context, &autoscaler, None, &unable(why)).await;
        }
        Err(error) => return Err(error),
    };
    let current = scale.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0);
    let min = spec.min_replicas.unwrap_or(1);
    let target = target(current, min, spec.max_replicas);
    let mut conditions = Vec::new();
    match &target {
        Some(Target { replicas, why }) => {
            let change = json!({ "spec": { "replicas": replicas } });
            let patch = Patch::Merge(&change);
            let scaled: Result<DynamicObject, _> =
                scales.patch_subresource("scale", &of.name, &PatchParams::default(), &patch).await;
            conditions.push(rescaled(context, &autoscaler, *replicas, why, scaled)?);
        }
        None => {
            let text = "the HPA controller was able to get the target's current scale";
            conditions.push(("AbleToScale", true, "SucceededGetScale", text.to_owned()));
        }
    }
    let (reason, text) = if current == 0 && min != 0 {
        ("ScalingDisabled", "scaling is disabled since the replica count of the target is zero")
    } else {
        ("FailedGetResourceMetric", NO_METRICS)
    };
    conditions.push(("ScalingActive", false, reason, text.to_owned()));
    let wanted = target.map_or(current, |target| target.replicas);
    let observed = scale.status.as_ref().map_or(0, |status| status.replicas);
    write(context, &autoscaler, Some((observed, wanted)), &conditions).await
}

/// What an attempt to scale the target means for the condition `AbleToScale`.
fn rescaled(
    context: &Context,
    autoscaler: &HorizontalPodAutoscaler,
    replicas: i32,
    why: &str,
    result: Result<DynamicObject, kube::Error>,
) -> Result<Statement<'static>, kube::Error> {
    match result {
        Ok(_) => {
            let text = format!("New size: {replicas}; reason: {why}");
            let note = Note::normal("SuccessfulRescale", text);
            context.events.record(COMPONENT, autoscaler, note);
            let text =
                format!("the HPA controller was able to update the target scale to {replicas}");
            Ok(("AbleToScale", true, "SucceededRescale", text))
        }
        Err(error) if is_conflict(&error) => Err(error),
        Err(error) => {
            let text = format!(
                "the HPA controller was unable to update the target scale: {}",
                error_message(&error)
            );
            Ok(("AbleToScale", false, "FailedUpdateScale", text))
        }
    }
}

/// Writes the status if it changes. `replicas` are those observed and those wanted.
async fn write(
    context: &Context,
    autoscaler: &Arc<HorizontalPodAutoscaler>,
    replicas: Option<(i32, i32)>,
    statements: &[Statement<'_>],
) -> Result<Requeue, kube::Error> {
    let now = context.clock.now();
    let before = autoscaler.status.clone().unwrap_or_default();
    let scaled = replicas.is_some_and(|(_, wanted)| before.desired_replicas != wanted);
    let status = HorizontalPodAutoscalerStatus {
        current_replicas: replicas.map(|(observed, _)| observed).or(before.current_replicas),
        desired_replicas: replicas.map_or(before.desired_replicas, |(_, wanted)| wanted),
        observed_generation: autoscaler.metadata.generation,
        last_scale_time: if scaled && before.desired_replicas != 0 {
            Some(Time(whole_seconds(now)))
        } else {
            before.last_scale_time.clone()
        },
        conditions: Some(conditions(
            before.conditions.as_deref().unwrap_or_default(),
            statements,
            now,
        )),
        current_metrics: None,
    };
    if Some(&status) != autoscaler.status.as_ref() {
        let written = HorizontalPodAutoscaler { status: Some(status), ..(**autoscaler).clone() };
        context.write_status(&context.views.autoscalers, &written).await?;
    }
    Ok(Some(SYNC_PERIOD))
}

fn conditions(
    before: &[HorizontalPodAutoscalerCondition],
    statements: &[Statement<'_>],
    now: Timestamp,
) -> Vec<HorizontalPodAutoscalerCondition> {
    let one = |(kind, yes, reason, message): &Statement<'_>| {
        let status = if *yes { "True" } else { "False" };
        let same = before.iter().find(|one| one.type_ == *kind && one.status == status);
        let since = same.and_then(|same| same.last_transition_time.clone());
        HorizontalPodAutoscalerCondition {
            type_: (*kind).to_owned(),
            status: status.to_owned(),
            reason: Some((*reason).to_owned()),
            message: Some(message.clone()),
            last_transition_time: since.or_else(|| Some(Time(whole_seconds(now)))),
        }
    };
    statements.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_kept_between_the_bounds_and_zero_turns_it_off() {
        let replicas = |current| target(current, 2, 5).map(|target| target.replicas);
        assert_eq!([1, 2, 5, 6, 0].map(replicas), [Some(2), None, None, Some(5), None]);
    }
}
