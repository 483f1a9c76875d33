//! The table cells of a pod, above all its status.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{NONE, age, count, list, text, text_or};
use crate::clock;

pub(super) fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let shown = Shown::of(pod);
    let mut restarts = shown.restarts.to_string();
    if shown.restarts != 0
        && let Some(last) = shown.last_restart
    {
        restarts = format!("{restarts} ({} ago)", age::between(last, now));
    }
    vec![
        json!(text(pod, "/metadata/name")),
        json!(format!("{}/{}", shown.ready, shown.containers)),
        json!(shown.status),
        json!(restarts),
        age::of(pod, now),
        json!(text_or(pod, "/status/podIPs/0/ip", text_or(pod, "/status/podIP", NONE))),
        json!(text_or(pod, "/spec/nodeName", NONE)),
        json!(text_or(pod, "/status/nominatedNodeName", NONE)),
        json!(readiness_gates(pod)),
    ]
}

/// The row condition of finished pods.
pub(super) fn completed(pod: &Value) -> Option<Value> {
    let (reason, message) = match text(pod, "/status/phase") {
        "Succeeded" => ("Succeeded", "The pod has completed successfully."),
        "Failed" => ("Failed", "The pod failed."),
        _ => return None,
    };
    Some(json!({"type": "Completed", "status": "True", "reason": reason, "message": message}))
}

struct Shown {
    status: String,
    ready: usize,
    containers: usize,
    restarts: i64,
    last_restart: Option<Timestamp>,
}

fn condition<'a>(pod: &'a Value, kind: &str) -> Option<&'a Value> {
    list(pod, "/status/conditions").iter().find(|condition| condition["type"] == kind)
}

fn is_sidecar(container: &Value) -> bool {
    container["restartPolicy"] == "Always"
}

impl Shown {
    fn of(pod: &Value) -> Self {
        let phase = text(pod, "/status/phase");
        let mut status = text_or(pod, "/status/reason", phase).to_owned();
        if condition(pod, "PodScheduled").is_some_and(|c| c["reason"] == "SchedulingGated") {
            "SchedulingGated".clone_into(&mut status);
        }
        let init = list(pod, "/spec/initContainers");
        let sidecars = init.iter().filter(|container| is_sidecar(container)).count();
        let containers = list(pod, "/spec/containers").len() + sidecars;
        let mut shown = Self { status, ready: 0, containers, restarts: 0, last_restart: None };
        let sidecar_restarts = shown.look_at_init(pod, init);
        let initialized = condition(pod, "Initialized").is_some_and(|c| c["status"] == "True");
        if !sidecar_restarts.initializing || initialized {
            shown.restarts = sidecar_restarts.count;
            shown.last_restart = sidecar_restarts.last;
            shown.look_at_containers(pod);
        }
        let deleting = pod["metadata"]["deletionTimestamp"].is_string();
        if deleting && text(pod, "/status/reason") == "NodeLost" {
            "Unknown".clone_into(&mut shown.status);
        } else if deleting && !matches!(phase, "Succeeded" | "Failed") {
            "Terminating".clone_into(&mut shown.status);
        }
        shown
    }

    fn count_restarts(&mut self, container: &Value) {
        self.restarts += count(container, "/restartCount");
        self.last_restart = self.last_restart.max(finished(container));
    }

    /// Init containers run one after the other: the first that is not done is what is shown.
    fn look_at_init(&mut self, pod: &Value, init: &[Value]) -> Sidecars {
        let mut sidecars = Sidecars { initializing: false, count: 0, last: None };
        for (at, container) in list(pod, "/status/initContainerStatuses").iter().enumerate() {
            self.count_restarts(container);
            let sidecar =
                init.iter().find(|spec| spec["name"] == container["name"]).is_some_and(is_sidecar);
            if sidecar {
                sidecars.count += count(container, "/restartCount");
                sidecars.last = sidecars.last.max(finished(container));
            }
            let terminated = &container["state"]["terminated"];
            if terminated.is_object() && count(terminated, "/exitCode") == 0 {
                continue;
            }
            if sidecar && container["started"] == true {
                self.ready += usize::from(container["ready"] == true);
                continue;
            }
            let waiting = text(container, "/state/waiting/reason");
            self.status = if terminated.is_object() {
                format!("Init:{}", ended(terminated))
            } else if !matches!(waiting, "" | "PodInitializing") {
                format!("Init:{waiting}")
            } else {
                format!("Init:{at}/{}", init.len())
            };
            sidecars.initializing = true;
            break;
        }
        sidecars
    }

    fn look_at_containers(&mut self, pod: &Value) {
        let mut running = false;
        let mut failed = None;
        for container in list(pod, "/status/containerStatuses").iter().rev() {
            self.count_restarts(container);
            let state = &container["state"];
            let waiting = text(state, "/waiting/reason");
            if !waiting.is_empty() {
                waiting.clone_into(&mut self.status);
            } else if state["terminated"].is_object() {
                self.status = ended(&state["terminated"]);
                if count(state, "/terminated/exitCode") != 0 {
                    failed = Some(self.status.clone());
                }
            } else if container["ready"] == true && state["running"].is_object() {
                running = true;
                self.ready += 1;
            }
        }
        if self.status == "Completed" {
            let ready = condition(pod, "Ready").is_some_and(|c| c["status"] == "True");
            if running && ready {
                "Running".clone_into(&mut self.status);
            } else if let Some(failed) = failed {
                self.status = failed;
            } else if running {
                "NotReady".clone_into(&mut self.status);
            }
        }
    }
}

struct Sidecars {
    initializing: bool,
    count: i64,
    last: Option<Timestamp>,
}

fn finished(container: &Value) -> Option<Timestamp> {
    clock::parse(&container["lastState"]["terminated"]["finishedAt"])
}

fn ended(terminated: &Value) -> String {
    let reason = text(terminated, "/reason");
    if !reason.is_empty() {
        return reason.to_owned();
    }
    match count(terminated, "/signal") {
        0 => format!("ExitCode:{}", count(terminated, "/exitCode")),
        signal => format!("Signal:{signal}"),
    }
}

fn readiness_gates(pod: &Value) -> String {
    let gates = list(pod, "/spec/readinessGates");
    if gates.is_empty() {
        return NONE.to_owned();
    }
    let open = gates
        .iter()
        .filter(|gate| {
            let kind = gate["conditionType"].as_str().unwrap_or_default();
            condition(pod, kind).is_some_and(|condition| condition["status"] == "True")
        })
        .count();
    format!("{open}/{}", gates.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(status: Value) -> String {
        let pod = json!({"spec": {"containers": [{"name": "a"}]}, "status": status});
        Shown::of(&pod).status
    }

    #[test]
    fn the_status_is_what_matters_most() {
        assert_eq!(status(json!({"phase": "Pending"})), "Pending");
        assert_eq!(
            status(json!({"phase": "Failed", "reason": "TopologyAffinityError"})),
            "TopologyAffinityError"
        );
        assert_eq!(
            status(json!({"phase": "Pending", "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"},
            ]})),
            "SchedulingGated"
        );
        assert_eq!(
            status(json!({"phase": "Succeeded", "containerStatuses": [
                {"state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
            ]})),
            "Completed"
        );
        assert_eq!(
            status(json!({"phase": "Failed", "containerStatuses": [
                {"state": {"terminated": {"exitCode": 137, "signal": 9}}},
            ]})),
            "Signal:9"
        );
        assert_eq!(
            status(json!({"phase": "Pending", "initContainerStatuses": [
                {"state": {"waiting": {"reason": "ImagePullBackOff"}}},
            ]})),
            "Init:ImagePullBackOff"
        );
    }

    #[test]
    fn a_pod_that_is_deleted_terminates_until_it_has_ended() {
        let mut pod = json!({
            "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
            "status": {"phase": "Running"},
        });
        assert_eq!(Shown::of(&pod).status, "Terminating");
        pod["status"]["phase"] = json!("Failed");
        assert_eq!(Shown::of(&pod).status, "Failed");
    }
}
