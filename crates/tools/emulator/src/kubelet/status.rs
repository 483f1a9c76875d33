//! Pod statuses in the form that kubelet 1.36 writes: conditions, container states, addresses.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::clock::whole_seconds;
use crate::controllers::pods::condition;
use crate::key::uid;

/// The common state of a pod's containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Activity {
    Creating,
    Running {
        since: Timestamp,
        ready: bool,
    },
    /// Waiting for a restart.
    BackingOff {
        last: Exit,
        delay_s: u64,
    },
    Ended {
        last: Exit,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Exit {
    pub(super) started: Option<Timestamp>,
    pub(super) finished: Timestamp,
    pub(super) code: i32,
}

/// What a kubelet knows about a pod besides its object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodRuntime {
    pub(super) host_ip: String,
    pub(super) pod_ip: Option<String>,
    pub(super) start_time: Timestamp,
    pub(super) restarts: i32,
    /// The exit before the last restart.
    pub(super) before: Option<Exit>,
}

fn time(at: Timestamp) -> Time {
    Time(whole_seconds(at))
}

/// The status of a rejected pod.
pub(super) fn refused(pod: &Pod, reason: &str, message: &str, now: Timestamp) -> PodStatus {
    PodStatus {
        phase: Some("Failed".to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(format!("Pod was rejected: {message}")),
        start_time: Some(time(now)),
        observed_generation: pod.metadata.generation,
        ..PodStatus::default()
    }
}

/// The status of an admitted pod. `end`: reason and message if the pod as a whole was stopped.
pub(super) fn status(
    pod: &Pod,
    runtime: &PodRuntime,
    activity: &Activity,
    end: Option<(&str, &str)>,
    now: Timestamp,
) -> PodStatus {
    let phase = match activity {
        _ if end.is_some() => "Failed",
        Activity::Creating => "Pending",
        Activity::Running { .. } | Activity::BackingOff { .. } => "Running",
        Activity::Ended { last } if last.code == 0 => "Succeeded",
        Activity::Ended { .. } => "Failed",
    };
    let spec = pod.spec.clone().unwrap_or_default();
    let containers = spec.containers.iter();
    let statuses = containers.map(|one| container(pod, one, runtime, activity)).collect();
    let init = spec.init_containers.iter().flatten();
    let init: Vec<_> = init.map(|one| init_container(pod, one, runtime, activity)).collect();
    let host_network = spec.host_network == Some(true);
    let pod_ip = if host_network { Some(runtime.host_ip.clone()) } else { runtime.pod_ip.clone() };
    let pod_ip = pod_ip.filter(|_| host_network || *activity != Activity::Creating);
    PodStatus {
        phase: Some(phase.to_owned()),
        reason: end.map(|(reason, _)| reason.to_owned()),
        message: end.map(|(_, message)| message.to_owned()),
        start_time: Some(time(runtime.start_time)),
        host_ip: Some(runtime.host_ip.clone()),
        host_ips: Some(vec![HostIP { ip: runtime.host_ip.clone() }]),
        pod_ips: pod_ip.clone().map(|ip| vec![PodIP { ip }]),
        pod_ip,
        observed_generation: pod.metadata.generation,
        conditions: Some(conditions(pod, activity, phase, now)),
        init_container_statuses: Some(init).filter(|list| !list.is_empty()),
        container_statuses: Some(statuses),
        ..PodStatus::default()
    }
}

fn conditions(pod: &Pod, activity: &Activity, phase: &str, now: Timestamp) -> Vec<PodCondition> {
    let ended = matches!(activity, Activity::Ended { .. });
    let has_sandbox = !matches!(activity, Activity::Creating) && !ended;
    let inits = pod.spec.as_ref().and_then(|spec| spec.init_containers.as_ref());
    let has_init = inits.is_some_and(|list| !list.is_empty());
    let initialized = !has_init || *activity != Activity::Creating;
    let ready = matches!(activity, Activity::Running { ready: true, .. });
    let names = |list: Option<&Vec<Container>>| {
        let names: Vec<&str> = list.into_iter().flatten().map(|one| one.name.as_str()).collect();
        names.join(" ")
    };
    let unready = match phase {
        "Succeeded" => (Some("PodCompleted"), None),
        "Failed" => (Some("PodFailed"), None),
        _ => {
            let all = names(pod.spec.as_ref().map(|spec| &spec.containers));
            let message = format!("containers with unready status: [{all}]");
            (Some("ContainersNotReady"), Some(message))
        }
    };
    let condition_of =
        |kind: &str, yes: bool, (reason, message): (Option<&str>, Option<String>)| {
            let status = if yes { "True" } else { "False" };
            let (reason, message) = if yes { (None, None) } else { (reason, message) };
            let before = condition(pod, kind).filter(|before| before.status == status);
            let since = before.and_then(|before| before.last_transition_time.clone());
            PodCondition {
                type_: kind.to_owned(),
                status: status.to_owned(),
                reason: reason.map(str::to_owned),
                message,
                last_transition_time: Some(since.unwrap_or_else(|| time(now))),
                observed_generation: pod.metadata.generation,
                ..PodCondition::default()
            }
        };
    let completed = (phase == "Succeeded").then_some("PodCompleted");
    let incomplete = format!("containers with incomplete status: [{}]", names(inits));
    let uninitialized = (Some("ContainersNotInitialized"), Some(incomplete));
    let mut initialization = condition_of("Initialized", initialized, uninitialized);
    initialization.reason = completed.map(str::to_owned).or(initialization.reason);
    vec![
        condition_of("PodReadyToStartContainers", has_sandbox, (None, None)),
        initialization,
        condition_of("Ready", ready, unready.clone()),
        condition_of("ContainersReady", ready, unready),
        condition_of("PodScheduled", true, (None, None)),
    ]
}

fn container(
    pod: &Pod,
    spec: &Container,
    runtime: &PodRuntime,
    activity: &Activity,
) -> ContainerStatus {
    let image = spec.image.clone().unwrap_or_default();
    let id = format!("virtual://{}/{}/{}", uid(&pod.metadata), spec.name, runtime.restarts);
    let waiting = |reason: &str, message: Option<String>| ContainerState {
        waiting: Some(ContainerStateWaiting { reason: Some(reason.to_owned()), message }),
        ..ContainerState::default()
    };
    let exited = |exit: &Exit| ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: exit.code,
            reason: Some(if exit.code == 0 { "Completed" } else { "Error" }.to_owned()),
            started_at: exit.started.map(time),
            finished_at: Some(time(exit.finished)),
            container_id: Some(id.clone()),
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    };
    let (state, last) = match activity {
        Activity::Creating => (waiting("ContainerCreating", None), None),
        Activity::Running { since, .. } => {
            let running = ContainerStateRunning { started_at: Some(time(*since)) };
            let state = ContainerState { running: Some(running), ..ContainerState::default() };
            (state, runtime.before.as_ref().map(exited))
        }
        Activity::BackingOff { last, delay_s } => {
            let message = format!(
                "back-off {delay_s}s restarting failed container={} pod={}_{}({})",
                spec.name,
                crate::key::name(&pod.metadata),
                crate::key::namespace(&pod.metadata),
                uid(&pod.metadata),
            );
            (waiting("CrashLoopBackOff", Some(message)), Some(exited(last)))
        }
        Activity::Ended { last } => (exited(last), runtime.before.as_ref().map(exited)),
    };
    let started = matches!(activity, Activity::Running { .. });
    ContainerStatus {
        name: spec.name.clone(),
        image_id: if *activity == Activity::Creating { String::new() } else { image.clone() },
        image,
        container_id: Some(id.clone()).filter(|_| *activity != Activity::Creating),
        ready: matches!(activity, Activity::Running { ready: true, .. }),
        started: Some(started),
        restart_count: runtime.restarts,
        state: Some(state),
        last_state: last,
        ..ContainerStatus::default()
    }
}

/// Init containers take no time; sidecars behave like other containers.
fn init_container(
    pod: &Pod,
    spec: &Container,
    runtime: &PodRuntime,
    activity: &Activity,
) -> ContainerStatus {
    if spec.restart_policy.as_deref() == Some("Always") || *activity == Activity::Creating {
        let mut status = container(pod, spec, runtime, activity);
        if let Some(waiting) = status.state.as_mut().and_then(|state| state.waiting.as_mut())
            && *activity == Activity::Creating
        {
            waiting.reason = Some("PodInitializing".to_owned());
        }
        return status;
    }
    let at = Exit { started: Some(runtime.start_time), finished: runtime.start_time, code: 0 };
    let still = PodRuntime { restarts: 0, before: None, ..runtime.clone() };
    let ended = container(pod, spec, &still, &Activity::Ended { last: at });
    ContainerStatus { ready: true, ..ended }
}
