//! Resolves `priorityClassName` as the API server does when a pod is created.

use std::sync::Arc;

use berth_model::policy::PriorityClass;
use berth_model::spec::PreemptionPolicy;
use k8s_openapi::api::core::v1::Pod;

use crate::error::{self, LowerError, Problem};

/// Classes that exist in every cluster.
const BUILT_IN: [(&str, i32); 2] =
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];

/// Gives a pod that has no priority yet the one of its class, or of the default class if it names
/// none, and the class's preemption policy unless the pod has its own. Pods from an API server need
/// none of this.
pub fn resolve_priority<'a>(
    pod: &mut Pod,
    classes: impl IntoIterator<Item = &'a PriorityClass>,
) -> Result<(), LowerError> {
    let Some(spec) = pod.spec.as_mut().filter(|spec| spec.priority.is_none()) else {
        return Ok(());
    };
    let name = spec.priority_class_name.clone().unwrap_or_default();
    let mut classes = classes.into_iter();
    let class = if name.is_empty() {
        classes.filter(|class| class.is_default).min_by_key(|class| class.value).cloned()
    } else {
        classes.find(|class| *class.name == *name).cloned().or_else(|| built_in(&name))
    };
    let Some(class) = class else {
        if name.is_empty() {
            spec.priority = Some(0);
            return Ok(());
        }
        let problem = format!("no PriorityClass {name:?} is known; create it or name another");
        return error::of(pod, Err(Problem::new("spec.priorityClassName", problem)));
    };
    spec.priority = Some(class.value);
    spec.priority_class_name = Some(class.name.to_string());
    if class.preemption == PreemptionPolicy::Never {
        spec.preemption_policy.get_or_insert_with(|| "Never".to_owned());
    }
    Ok(())
}

fn built_in(name: &str) -> Option<PriorityClass> {
    let (name, value) = BUILT_IN.into_iter().find(|(built_in, _)| *built_in == name)?;
    Some(PriorityClass { name: Arc::from(name), value, ..PriorityClass::default() })
}
