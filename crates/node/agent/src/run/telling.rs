//! What is said on pods about how they lie, and when.
//!
//! Owns the annotation, the events and when a verdict has stood long enough to be told. What is said holds
//! nothing that varies while a pod runs, so that the same is never written twice; whether it changed is judged
//! by what stands on the pod, so that a new start of ours is no news. Must not know how it is written.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use berth_model::alignment::Alignment;
use serde::{Deserialize, Serialize};

use super::pods::KnownPod;
use crate::audit::{ContainerAudit, Finding, PodAudit};

/// How a pod lies, as its annotation says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AlignmentAnnotation {
    #[serde(rename = "verdict")]
    pub alignment: Alignment,
    /// NUMA nodes of the CPUs of its containers with GPUs.
    pub cpu_numa_nodes: Vec<u32>,
    /// NUMA nodes of their GPUs.
    pub gpu_numa_nodes: Vec<u32>,
    /// How far they are, in the firmware's measure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distance: Option<u32>,
    /// What would have it aligned for certain.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remedy: Vec<String>,
}

impl AlignmentAnnotation {
    /// What is said of a verdict.
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

/// An event about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) warning: bool,
    pub(super) reason: &'static str,
    pub(super) text: String,
}

fn note(audit: &PodAudit) -> Note {
    let remedy = match audit.advice.first() {
        Some(first) => format!("; {}: {}", first.of, first.set),
        None => String::new(),
    };
    let Finding { alignment, distance, why } = &audit.finding;
    let (reason, text) = match alignment {
        Alignment::Aligned => ("GpuAligned", "its CPUs, memory and GPUs lie together".to_owned()),
        Alignment::Misaligned => {
            let far = distance.map_or_else(String::new, |far| format!(" (distance {far})"));
            ("GpuMisaligned", format!("{why}{far}{remedy}"))
        }
        Alignment::Floating => ("GpuFloating", format!("{why}{remedy}")),
        Alignment::Unknown => ("GpuAlignmentUnknown", why.clone()),
    };
    Note { warning: *alignment == Alignment::Misaligned, reason, text }
}

/// What is to be written on a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) annotation: String,
    pub(super) note: Option<Note>,
}

/// Verdicts that have to stand before they are told.
#[derive(Debug, Default)]
pub(super) struct Patience {
    unknown_since: BTreeMap<String, Instant>,
}

impl Patience {
    /// What is to be said of a pod now, if it is not what stands there. That nothing is known is told only
    /// after a while: a pod that starts holds devices before its containers are to be seen.
    pub(super) fn word(
        &mut self,
        pod: &KnownPod,
        audit: &PodAudit,
        wait: Duration,
        now: Instant,
    ) -> Option<Word> {
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
        Some(Word { annotation, note: (!same).then(|| note(audit)) })
    }

    /// Forgets pods that are no more.
    pub(super) fn keep(&mut self, audits: &[PodAudit]) {
        self.unknown_since.retain(|uid, _| audits.iter().any(|audit| audit.uid == *uid));
    }

    /// Whether something waits to be told.
    pub(super) fn waits(&self, wait: Duration, now: Instant) -> bool {
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
    fn what_varies_is_not_said_and_the_same_is_not_said_twice() {
        let mut patience = Patience::default();
        let mut pod = KnownPod::default();
        let mut say = |pod: &KnownPod, audit: &PodAudit| {
            patience.word(pod, audit, Duration::ZERO, Instant::now())
        };
        let first = say(&pod, &misaligned(60));
        let reason = |word: &Option<Word>| {
            word.as_ref()
                .and_then(|word| word.note.as_ref())
                .map(|note| (note.warning, note.reason))
        };
        assert_eq!(reason(&first), Some((true, "GpuMisaligned")));
        pod.alignment = first.map(|word| word.annotation);
        let text =
            r#"{"verdict":"misaligned","cpuNumaNodes":[1],"gpuNumaNodes":[0],"distance":32}"#;
        assert_eq!(pod.alignment.as_deref(), Some(text));
        assert_eq!(say(&pod, &misaligned(61)), None);
        assert_eq!(reason(&say(&pod, &audit(aligned()))), Some((false, "GpuAligned")));
        // Other NUMA nodes at the same distance are written, and no event is worth it.
        pod.alignment = Some(text.replace("[1]", "[2]"));
        assert_eq!(say(&pod, &misaligned(60)).map(|word| word.note), Some(None));
        pod.alignment = Some("what somebody else wrote".to_owned());
        assert!(reason(&say(&pod, &misaligned(60))).is_some());
    }

    #[test]
    fn that_nothing_is_known_is_told_when_it_stays_so() {
        let mut patience = Patience::default();
        let (pod, wait, start) = (KnownPod::default(), Duration::from_secs(10), Instant::now());
        let unknown = audit(Finding::unknown("nothing is to be seen"));
        assert_eq!(patience.word(&pod, &unknown, wait, start), None);
        assert!(patience.waits(wait, start));
        assert!(patience.word(&pod, &unknown, wait, start + wait).is_some());
        assert!(!patience.waits(wait, start + wait), "it is told");
        // What is known in between begins the wait anew.
        assert!(patience.word(&pod, &audit(aligned()), wait, start).is_some());
        assert_eq!(patience.word(&pod, &unknown, wait, start + wait), None);
        patience.keep(&[]);
        assert!(!patience.waits(wait, start));
    }
}
