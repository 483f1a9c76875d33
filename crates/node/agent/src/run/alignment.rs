//! The alignment annotation and Events of pods, and when to write them. They contain nothing that varies while a pod
//! runs. Whether alignment changed is judged by the annotation on the pod, so a restart of the agent causes no Event.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use berth_model::alignment::Alignment;
use serde::{Deserialize, Serialize};

use super::pods::KnownPod;
use crate::audit::{ContainerAudit, Finding, PodAudit};

/// The content of the annotation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AlignmentAnnotation {
    #[serde(rename = "verdict")]
    pub alignment: Alignment,
    /// Of the CPUs of its containers with GPUs.
    pub cpu_numa_nodes: Vec<u32>,
    /// Of the GPUs of these containers.
    pub gpu_numa_nodes: Vec<u32>,
    /// In the firmware's unit; 10 is local.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distance: Option<u32>,
    /// What to change so that the pod is reliably aligned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remedy: Vec<String>,
}

impl AlignmentAnnotation {
    pub fn of(audit: &PodAudit) -> Self {
        let union = |nodes: fn(&ContainerAudit) -> &Vec<u32>| {
            let mut all: Vec<u32> = audit.containers.iter().flat_map(nodes).copied().collect();
            all.sort_unstable();
            all.dedup();
            all
        };
        Self {
            alignment: audit.finding.alignment,
            cpu_numa_nodes: union(|one| &one.cpu_numa),
            gpu_numa_nodes: union(|one| &one.gpu_numa),
            distance: audit.finding.distance,
            remedy: audit.advice.iter().map(|one| format!("{}: {}", one.of, one.set)).collect(),
        }
    }
}

/// An Event about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodEvent {
    pub(super) warning: bool,
    pub(super) reason: &'static str,
    pub(super) text: String,
}

fn pod_event(audit: &PodAudit) -> PodEvent {
    let remedy = match audit.advice.first() {
        Some(first) => format!("; {}: {}", first.of, first.set),
        None => String::new(),
    };
    let Finding { alignment, distance, why } = &audit.finding;
    let (reason, text) = match alignment {
        Alignment::Aligned => {
            ("GpuAligned", "CPUs, memory and GPUs are on the same NUMA nodes".to_owned())
        }
        Alignment::Misaligned => {
            let far = distance.map_or_else(String::new, |far| format!(" (distance {far})"));
            ("GpuMisaligned", format!("{why}{far}{remedy}"))
        }
        Alignment::Floating => ("GpuFloating", format!("{why}{remedy}")),
        Alignment::Unknown => ("GpuAlignmentUnknown", why.clone()),
    };
    PodEvent { warning: *alignment == Alignment::Misaligned, reason, text }
}

/// Changes to write for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodUpdate {
    pub(super) annotation: String,
    pub(super) event: Option<PodEvent>,
}

/// Delays unknown alignment, which is normal while a pod starts: it holds devices before its containers exist.
#[derive(Debug, Default)]
pub(super) struct Debounce {
    unknown_since: BTreeMap<String, Instant>,
}

impl Debounce {
    /// What to write for a pod now, if anything.
    pub(super) fn update(
        &mut self,
        pod: &KnownPod,
        audit: &PodAudit,
        wait: Duration,
        now: Instant,
    ) -> Option<PodUpdate> {
        if audit.finding.alignment == Alignment::Unknown {
            let since = *self.unknown_since.entry(audit.uid.clone()).or_insert(now);
            if now.duration_since(since) < wait {
                return None;
            }
        } else {
            self.unknown_since.remove(&audit.uid);
        }
        let alignment = AlignmentAnnotation::of(audit);
        let annotation = serde_json::to_string(&alignment).ok()?;
        if pod.alignment.as_ref() == Some(&annotation) {
            return None;
        }
        let before: Option<AlignmentAnnotation> =
            pod.alignment.as_ref().and_then(|text| serde_json::from_str(text).ok());
        let same = before.is_some_and(|before| {
            (before.alignment, before.distance) == (alignment.alignment, alignment.distance)
        });
        Some(PodUpdate { annotation, event: (!same).then(|| pod_event(audit)) })
    }

    /// Forgets pods that no longer exist.
    pub(super) fn retain(&mut self, audits: &[PodAudit]) {
        self.unknown_since.retain(|uid, _| audits.iter().any(|audit| audit.uid == *uid));
    }

    /// Whether an unknown alignment is being delayed.
    pub(super) fn is_waiting(&self, wait: Duration, now: Instant) -> bool {
        self.unknown_since.values().any(|since| now.duration_since(*since) < wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_host::cgroup::Qos;

    fn audit(finding: Finding) -> PodAudit {
        let container = ContainerAudit {
            container: "server".to_owned(),
            cpus: Some("4-7".to_owned()),
            exclusive: Some(true),
            cpu_numa: vec![1],
            mems: None,
            memory: Vec::new(),
            gpu_numa: vec![0],
            finding: finding.clone(),
        };
        PodAudit {
            uid: "u".to_owned(),
            qos: Qos::Guaranteed,
            finding,
            containers: vec![container],
            advice: Vec::new(),
        }
    }

    fn aligned() -> Finding {
        Finding { alignment: Alignment::Aligned, distance: None, why: String::new() }
    }

    fn misaligned(percent: u32) -> PodAudit {
        let why = format!("{percent} % of its memory is on NUMA node 1");
        audit(Finding { alignment: Alignment::Misaligned, distance: Some(32), why })
    }

    #[test]
    fn only_changes_of_alignment_are_events() {
        let mut debounce = Debounce::default();
        let mut pod = KnownPod::default();
        let mut update = |pod: &KnownPod, audit: &PodAudit| {
            debounce.update(pod, audit, Duration::ZERO, Instant::now())
        };
        let first = update(&pod, &misaligned(60));
        let reason = |update: &Option<PodUpdate>| {
            let event = update.as_ref().and_then(|update| update.event.as_ref());
            event.map(|event| (event.warning, event.reason))
        };
        assert_eq!(reason(&first), Some((true, "GpuMisaligned")));
        pod.alignment = first.map(|update| update.annotation);
        let text =
            r#"{"verdict":"misaligned","cpuNumaNodes":[1],"gpuNumaNodes":[0],"distance":32}"#;
        assert_eq!(pod.alignment.as_deref(), Some(text));
        assert_eq!(update(&pod, &misaligned(61)), None);
        assert_eq!(reason(&update(&pod, &audit(aligned()))), Some((false, "GpuAligned")));
        // Other NUMA nodes at the same distance change the annotation, without an Event.
        pod.alignment = Some(text.replace("[1]", "[2]"));
        assert_eq!(update(&pod, &misaligned(60)).map(|update| update.event), Some(None));
        pod.alignment = Some("written by another client".to_owned());
        assert!(reason(&update(&pod, &misaligned(60))).is_some());
    }

    #[test]
    fn unknown_alignment_is_written_if_it_persists() {
        let mut debounce = Debounce::default();
        let (pod, wait, start) = (KnownPod::default(), Duration::from_secs(10), Instant::now());
        let unknown = audit(Finding::unknown("its CPUs are unknown"));
        assert_eq!(debounce.update(&pod, &unknown, wait, start), None);
        assert!(debounce.is_waiting(wait, start));
        assert!(debounce.update(&pod, &unknown, wait, start + wait).is_some());
        assert!(!debounce.is_waiting(wait, start + wait), "the delay is over");
        // A known alignment in between restarts the delay.
        assert!(debounce.update(&pod, &audit(aligned()), wait, start).is_some());
        assert_eq!(debounce.update(&pod, &unknown, wait, start + wait), None);
        debounce.retain(&[]);
        assert!(!debounce.is_waiting(wait, start));
    }
}
