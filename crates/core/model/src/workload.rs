//! Classes of work, node pools for them, and headroom.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::label::Labels;
use crate::spec::PodSpec;

/// The kind of work a pod does. Ordered by claim: a greater class may use headroom of the lesser
/// ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkloadClass {
    /// Experiments that nothing waits for.
    Experimentation,
    /// Work with a deadline at best: training, evaluation, offline inference.
    Batch,
    /// Serving that other services wait for: embeddings, rerankers.
    Embedding,
    /// Serving that people wait for.
    Interactive,
}

impl WorkloadClass {
    /// Ascending.
    pub const ALL: [Self; 4] =
        [Self::Experimentation, Self::Batch, Self::Embedding, Self::Interactive];

    /// As in labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Experimentation => "experimentation",
            Self::Batch => "batch",
            Self::Embedding => "embedding",
            Self::Interactive => "interactive",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.as_str() == text)
    }

    /// Whether each request is waited for, so that losing a node at short notice hurts.
    pub const fn is_serving(self) -> bool {
        matches!(self, Self::Interactive | Self::Embedding)
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for WorkloadClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClassSet(u8);

impl ClassSet {
    pub const fn contains(self, class: WorkloadClass) -> bool {
        self.0 & class.bit() != 0
    }

    /// Descending.
    pub fn iter(self) -> impl Iterator<Item = WorkloadClass> {
        WorkloadClass::ALL.into_iter().rev().filter(move |class| self.contains(*class))
    }
}

impl FromIterator<WorkloadClass> for ClassSet {
    fn from_iter<I: IntoIterator<Item = WorkloadClass>>(classes: I) -> Self {
        Self(classes.into_iter().fold(0, |bits, class| bits | class.bit()))
    }
}

/// How pods without the label `berth.dev/class` get a class: from the operator's table of
/// PriorityClasses, then from the words in the name of the PriorityClass, then from the priority.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClassRules {
    /// The operator's table, by PriorityClass name.
    pub by_priority_class: BTreeMap<Arc<str>, WorkloadClass>,
    pub interactive_priority_min: i32,
    /// Without effect from `interactive_priority_min` on.
    pub embedding_priority_min: i32,
    /// Below it is experimentation.
    pub batch_priority_min: i32,
}

impl Default for ClassRules {
    fn default() -> Self {
        Self {
            by_priority_class: BTreeMap::new(),
            interactive_priority_min: 1_000_000,
            embedding_priority_min: 100_000,
            batch_priority_min: 0,
        }
    }
}

/// Words in names of PriorityClasses. The first row with a word of the name counts, so
/// `batch-inference` is batch.
const WORDS: [(WorkloadClass, &[&str]); 4] = [
    (
        WorkloadClass::Batch,
        &[
            "backfill",
            "batch",
            "finetune",
            "finetuning",
            "job",
            "jobs",
            "offline",
            "train",
            "training",
        ],
    ),
    (
        WorkloadClass::Experimentation,
        &[
            "dev",
            "experiment",
            "experimentation",
            "experiments",
            "notebook",
            "notebooks",
            "sandbox",
        ],
    ),
    (WorkloadClass::Embedding, &["embed", "embedding", "embeddings", "rerank", "reranker"]),
    (
        WorkloadClass::Interactive,
        &["inference", "interactive", "online", "realtime", "serve", "serving"],
    ),
];

impl ClassRules {
    pub fn class_of(&self, pod: &PodSpec) -> WorkloadClass {
        let by_name = || self.by_name(pod.priority_class.as_ref()?);
        let by_priority = || match pod.priority {
            one if one >= self.interactive_priority_min => WorkloadClass::Interactive,
            one if one >= self.embedding_priority_min => WorkloadClass::Embedding,
            one if one >= self.batch_priority_min => WorkloadClass::Batch,
            _ => WorkloadClass::Experimentation,
        };
        pod.class.or_else(by_name).unwrap_or_else(by_priority)
    }

    /// By the operator's table, else by the words in the name.
    pub fn by_name(&self, priority_class: &str) -> Option<WorkloadClass> {
        let by_words = || {
            let has =
                |words: &[&str]| priority_class.split(['-', '.']).any(|word| words.contains(&word));
            WORDS.iter().find(|(_, words)| has(words)).map(|(class, _)| *class)
        };
        self.by_priority_class.get(priority_class).copied().or_else(by_words)
    }
}

/// Which classes a pool of nodes is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PoolClasses {
    #[default]
    Any,
    /// Preferably these; others may use what is left.
    Preferred(ClassSet),
    /// These only.
    Only(ClassSet),
}

impl PoolClasses {
    pub const fn admits(self, class: WorkloadClass) -> bool {
        match self {
            Self::Any | Self::Preferred(_) => true,
            Self::Only(classes) => classes.contains(class),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CapacityType {
    OnDemand,
    /// The provider may take the node back at short notice.
    Spot,
}

/// Labels that name a node's pool. The first that a node has counts.
pub const POOL_LABELS: [&str; 5] = [
    "berth.dev/pool",
    "karpenter.sh/nodepool",
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
];

/// Labels of spot nodes, with the value for spot and, if any, the value for on-demand. The first
/// that a node has counts.
pub const CAPACITY_LABELS: [(&str, &str, &str); 6] = [
    ("karpenter.sh/capacity-type", "spot", "on-demand"),
    ("eks.amazonaws.com/capacityType", "SPOT", "ON_DEMAND"),
    ("cloud.google.com/gke-spot", "true", "false"),
    ("cloud.google.com/gke-preemptible", "true", "false"),
    ("kubernetes.azure.com/scalesetpriority", "spot", "regular"),
    ("node.kubernetes.io/lifecycle", "spot", "normal"),
];

pub fn pool_of(labels: &Labels) -> Option<&Arc<str>> {
    POOL_LABELS.iter().find_map(|key| labels.get(key))
}

pub fn capacity_of(labels: &Labels) -> Option<CapacityType> {
    CAPACITY_LABELS.iter().find_map(|(key, spot, on_demand)| match labels.get(key)?.as_ref() {
        value if value == *spot => Some(CapacityType::Spot),
        value if value == *on_demand => Some(CapacityType::OnDemand),
        _ => None,
    })
}

/// Room that is kept free for a class, so that its next pods start at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headroom {
    pub name: Arc<str>,
    /// The pod that must fit `count` times: four GPUs with their CPUs, one MIG slice, a part of a
    /// GPU. Its selectors, tolerations and node affinity count; its pod affinity and volumes do
    /// not.
    pub template: Arc<PodSpec>,
    pub count: u32,
    /// Pods of this class and of greater ones may use it.
    pub class: WorkloadClass,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(class: Option<WorkloadClass>, priority: i32) -> PodSpec {
        PodSpec { class, priority, ..PodSpec::default() }
    }

    #[test]
    fn a_pods_label_counts_before_its_priority() {
        let rules = ClassRules::default();
        let of = |class, priority| rules.class_of(&pod(class, priority));
        assert_eq!(of(Some(WorkloadClass::Batch), 2_000_000), WorkloadClass::Batch);
        assert_eq!(of(None, 1_000_000), WorkloadClass::Interactive);
        assert_eq!(of(None, 999_999), WorkloadClass::Embedding);
        assert_eq!(of(None, 0), WorkloadClass::Batch);
        assert_eq!(of(None, -1), WorkloadClass::Experimentation);
    }

    #[test]
    fn the_name_of_a_priority_class_counts_before_its_number_and_the_table_before_the_name() {
        let of = |rules: &ClassRules, name: &str, priority| {
            let priority_class = Some(name.into());
            rules.class_of(&PodSpec { priority_class, priority, ..PodSpec::default() })
        };
        let rules = ClassRules::default();
        assert_eq!(of(&rules, "batch-inference", 100_000), WorkloadClass::Batch);
        assert_eq!(of(&rules, "inference-critical", 10), WorkloadClass::Interactive);
        assert_eq!(of(&rules, "embedding.high", 10), WorkloadClass::Embedding);
        assert_eq!(of(&rules, "dev", 2_000_000), WorkloadClass::Experimentation);
        assert_eq!(of(&rules, "gold", 100_000), WorkloadClass::Embedding);
        assert_eq!(of(&rules, "trainings", 1_000_000), WorkloadClass::Interactive);
        let table = [("batch-inference".into(), WorkloadClass::Embedding)].into_iter().collect();
        let rules = ClassRules { by_priority_class: table, ..rules };
        assert_eq!(of(&rules, "batch-inference", 100_000), WorkloadClass::Embedding);
        assert_eq!(of(&rules, "batch-other", 100_000), WorkloadClass::Batch);
    }

    #[test]
    fn classes_are_ordered_by_claim_and_known_by_name() {
        assert!(WorkloadClass::ALL.is_sorted());
        for class in WorkloadClass::ALL {
            assert_eq!(WorkloadClass::parse(class.as_str()), Some(class));
        }
        assert_eq!(WorkloadClass::parse("Interactive"), None);
    }

    #[test]
    fn the_first_label_that_names_a_pool_counts() {
        let labels: Labels =
            [("cloud.google.com/gke-nodepool", "gke"), ("karpenter.sh/nodepool", "karpenter")]
                .into_iter()
                .collect();
        assert_eq!(pool_of(&labels).map(AsRef::as_ref), Some("karpenter"));
        let spot: Labels = [("eks.amazonaws.com/capacityType", "SPOT")].into_iter().collect();
        assert_eq!(capacity_of(&spot), Some(CapacityType::Spot));
        let strange: Labels = [("karpenter.sh/capacity-type", "reserved")].into_iter().collect();
        assert_eq!(capacity_of(&strange), None);
    }

    #[test]
    fn a_pool_for_some_classes_only_admits_no_others() {
        let serving: ClassSet =
            WorkloadClass::ALL.into_iter().filter(|class| class.is_serving()).collect();
        assert!(PoolClasses::Only(serving).admits(WorkloadClass::Embedding));
        assert!(!PoolClasses::Only(serving).admits(WorkloadClass::Batch));
        assert!(PoolClasses::Preferred(serving).admits(WorkloadClass::Batch));
        assert_eq!(serving.iter().next(), Some(WorkloadClass::Interactive));
    }
}
