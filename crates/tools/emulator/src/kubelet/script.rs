//! The behaviour of a pod's containers, from the annotations `berth.dev/start-after`, `ready-after`, `run-for`,
//! `exit-code` and `stop-after`, and the defaults without them.

use std::time::Duration;

use berth_api::keys::{EXIT_CODE, READY_AFTER, RUN_FOR, START_AFTER, STOP_AFTER};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;

use crate::key::{annotation, controller};

use super::Options;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Script {
    pub(super) start_after: Duration,
    pub(super) ready_after: Duration,
    /// `None`: until the pod is deleted.
    pub(super) run_for: Option<Duration>,
    pub(super) exit_code: i32,
    pub(super) stop_after: Duration,
    pub(super) restart: Restart,
}

/// The pod's restart policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restart {
    Always,
    OnFailure,
    Never,
}

impl Script {
    pub(super) fn of(pod: &Pod, options: &Options) -> Self {
        let meta = &pod.metadata;
        let time = |key: &str| annotation(meta, key).and_then(duration);
        let of_job = controller(meta).is_some_and(|owner| owner.kind == "Job");
        let policy = pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref());
        let exit_code = annotation(meta, EXIT_CODE).and_then(|text| text.trim().parse().ok());
        Self {
            start_after: time(START_AFTER).unwrap_or(options.start_after),
            ready_after: time(READY_AFTER).unwrap_or_default(),
            run_for: time(RUN_FOR).or_else(|| of_job.then_some(options.job_run_for)),
            exit_code: exit_code.unwrap_or(0),
            stop_after: time(STOP_AFTER).unwrap_or(options.stop_after),
            restart: match policy {
                Some("Never") => Restart::Never,
                Some("OnFailure") => Restart::OnFailure,
                _ => Restart::Always,
            },
        }
    }

    /// Whether containers restart after exiting with the script's code.
    pub(super) fn restarts(&self) -> bool {
        match self.restart {
            Restart::Always => true,
            Restart::OnFailure => self.exit_code != 0,
            Restart::Never => false,
        }
    }
}

/// A duration such as `90s`, `1m30s` or `500ms`; `None` if it is negative or invalid.
fn duration(text: &str) -> Option<Duration> {
    let signed: SignedDuration = text.trim().parse().ok()?;
    Duration::try_from(signed).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controllers::fixtures::pod;

    #[test]
    fn annotations_say_what_containers_do() {
        let options = Options::default();
        let plain = Script::of(&pod("p").plain(), &options);
        assert_eq!((plain.run_for, plain.start_after), (None, options.start_after));
        let told = pod("p")
            .annotated(START_AFTER, "1m30s")
            .annotated(RUN_FOR, "500ms")
            .annotated(EXIT_CODE, "3")
            .plain();
        let told = Script::of(&told, &options);
        assert_eq!(told.start_after, Duration::from_secs(90));
        assert_eq!((told.run_for, told.exit_code), (Some(Duration::from_millis(500)), 3));
        for nonsense in ["", "-5s", "soon", "5 parsecs"] {
            let told = pod("p").annotated(RUN_FOR, nonsense).plain();
            assert_eq!(Script::of(&told, &options).run_for, None, "{nonsense:?}");
        }
    }
}
