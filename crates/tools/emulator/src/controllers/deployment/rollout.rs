//! The next steps of a Deployment: rolling update, recreation, scaling, revisions, and cleanup of old sets. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::controllers::hash::{self, HASH};
use crate::controllers::pods::is_finished;
use crate::key::{annotation, controller_reference, is_controlled_by, name, uid};

pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
const MAXIMAL: &str = "deployment.kubernetes.io/max-replicas";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Annotations of a Deployment that its sets do not get.
const NOT_COPIED: [&str; 5] =
    [LAST_APPLIED, REVISION, "deployment.kubernetes.io/revision-history", DESIRED, MAXIMAL];

#[derive(Debug, PartialEq)]
pub(super) enum Step {
    Create(Box<ReplicaSet>),
    Replace(Box<ReplicaSet>),
    Delete(Arc<ReplicaSet>),
    Annotate(BTreeMap<String, String>),
}

/// The set with the Deployment's template, and the others, oldest first.
#[derive(Debug, Default)]
pub(super) struct Sets {
    pub(super) new: Option<Arc<ReplicaSet>>,
    pub(super) old: Vec<Arc<ReplicaSet>>,
}

impl Sets {
    pub(super) fn of(spec: &DeploymentSpec, mut all: Vec<Arc<ReplicaSet>>) -> Self {
        let age = |set: &Arc<ReplicaSet>| {
            let created = set.metadata.creation_timestamp.as_ref().map(|time| time.0);
            (created, name(&set.metadata).to_owned())
        };
        all.sort_by_key(age);
        let new = all.iter().position(|set| is_of_template(set, &spec.template));
        let new = new.map(|at| all.remove(at));
        Self { new, old: all }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<ReplicaSet>> {
        self.old.iter().chain(&self.new)
    }
}

/// Whether a set has this template, apart from the hash label.
pub(super) fn is_of_template(set: &ReplicaSet, template: &PodTemplateSpec) -> bool {
    let Some(own) = set.spec.as_ref().and_then(|spec| spec.template.as_ref()) else { return false };
    let bare = |template: &PodTemplateSpec| {
        let mut bare = template.clone();
        let meta = bare.metadata.get_or_insert_default();
        if let Some(labels) = &mut meta.labels {
            labels.remove(HASH);
        }
        meta.labels = meta.labels.take().filter(|labels| !labels.is_empty());
        meta.creation_timestamp = None;
        bare
    };
    bare(own) == bare(template)
}

pub(super) fn replicas(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1).max(0)
}

fn available(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0)
}

fn revision(meta: &ObjectMeta) -> i64 {
    annotation(meta, REVISION).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// `maxSurge` and `maxUnavailable` in pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slack {
    pub(super) surge: i32,
    pub(super) unavailable: i32,
}

pub(super) fn slack(spec: &DeploymentSpec) -> Slack {
    let wanted = wanted(spec);
    let strategy = spec.strategy.as_ref();
    if strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("Recreate") {
        return Slack { surge: 0, unavailable: 0 };
    }
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let quarter = IntOrString::String("25%".to_owned());
    let surge = rolling.and_then(|rolling| rolling.max_surge.as_ref()).unwrap_or(&quarter);
    let unavailable = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
    let surge = scaled(surge, wanted, true);
    let unavailable = scaled(unavailable.unwrap_or(&quarter), wanted, false);
    // With both zero a rollout could not proceed.
    let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
    Slack { surge, unavailable: unavailable.min(wanted) }
}

/// A number, or a percentage of `total`.
pub(in crate::controllers) fn scaled(value: &IntOrString, total: i32, up: bool) -> i32 {
    match value {
        IntOrString::Int(number) => (*number).max(0),
        IntOrString::String(text) => {
            let percent = text.strip_suffix('%').and_then(|text| text.parse::<i64>().ok());
            let parts = percent.unwrap_or(0).max(0).saturating_mul(i64::from(total.max(0)));
            let whole = if up { parts.saturating_add(99) / 100 } else { parts / 100 };
            i32::try_from(whole).unwrap_or(i32::MAX)
        }
    }
}

pub(super) fn wanted(spec: &DeploymentSpec) -> i32 {
    spec.replicas.unwrap_or(1).max(0)
}

/// The next steps, in order.
pub(super) fn steps(
    deployment: &Deployment,
    spec: &DeploymentSpec,
    sets: &Sets,
    pods: &[Arc<Pod>],
) -> Vec<Step> {
    let rollout = Rollout { deployment, spec, sets, slack: slack(spec), wanted: wanted(spec) };
    if spec.paused == Some(true) {
        let mut steps = rollout.scale();
        steps.extend(rollout.clean_up());
        return steps;
    }
    if rollout.is_scaled() {
        let steps = rollout.scale();
        if !steps.is_empty() {
            return steps;
        }
    }
    let recreates = spec.strategy.as_ref().and_then(|one| one.type_.as_deref()) == Some("Recreate");
    let mut steps = if recreates { rollout.recreate(pods) } else { rollout.roll() };
    if steps.is_empty() {
        steps.extend(rollout.clean_up());
    }
    steps.extend(rollout.annotate());
    steps
}

struct Rollout<'a> {
    deployment: &'a Deployment,
    spec: &'a DeploymentSpec,
    sets: &'a Sets,
    slack: Slack,
    wanted: i32,
}

impl Rollout<'_> {
    fn total(&self) -> i32 {
        self.sets.all().map(|set| replicas(set)).fold(0, i32::saturating_add)
    }

    fn maximum(&self) -> i32 {
        self.wanted.saturating_add(self.slack.surge)
    }

    /// The new set's revision: above those of all others.
    fn next_revision(&self) -> i64 {
        let old = self.sets.old.iter().map(|set| revision(&set.metadata)).max().unwrap_or(0);
        let own = self.sets.new.as_ref().map_or(0, |set| revision(&set.metadata));
        own.max(old.saturating_add(1))
    }

    fn annotations(&self, of_set: Option<&BTreeMap<String, String>>) -> BTreeMap<String, String> {
        let mut annotations = of_set.cloned().unwrap_or_default();
        let own = self.deployment.metadata.annotations.iter().flatten();
        for (key, value) in own.filter(|(key, _)| !NOT_COPIED.contains(&key.as_str())) {
            annotations.insert(key.clone(), value.clone());
        }
        annotations.insert(REVISION.to_owned(), self.next_revision().to_string());
        self.mark(&mut annotations);
        annotations
    }

    fn mark(&self, annotations: &mut BTreeMap<String, String>) {
        annotations.insert(DESIRED.to_owned(), self.wanted.to_string());
        annotations.insert(MAXIMAL.to_owned(), self.maximum().to_string());
    }

    fn resized(&self, set: &ReplicaSet, replicas: i32) -> Step {
        let mut set = set.clone();
        set.spec.get_or_insert_default().replicas = Some(replicas);
        self.mark(set.metadata.annotations.get_or_insert_default());
        Step::Replace(Box::new(set))
    }

    fn new_set(&self, replicas: i32) -> ReplicaSet {
        let status = self.deployment.status.as_ref();
        let collisions = status.and_then(|status| status.collision_count).unwrap_or(0);
        let hash = hash::of(&self.spec.template, collisions);
        let mut template = self.spec.template.clone();
        let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
        labels.insert(HASH.to_owned(), hash.clone());
        let labels = labels.clone();
        let mut selector = self.spec.selector.clone();
        selector.match_labels.get_or_insert_default().insert(HASH.to_owned(), hash.clone());
        let meta = &self.deployment.metadata;
        ReplicaSet {
            metadata: ObjectMeta {
                name: Some(format!("{}-{hash}", name(meta))),
                namespace: meta.namespace.clone(),
                labels: Some(labels),
                annotations: Some(self.annotations(None)),
                owner_references: Some(vec![controller_reference::<Deployment>(meta)]),
                ..ObjectMeta::default()
            },
            spec: Some(ReplicaSetSpec {
                replicas: Some(replicas),
                min_ready_seconds: self.spec.min_ready_seconds,
                selector,
                template: Some(template),
            }),
            status: None,
        }
    }

    /// The size to which the new set may grow now.
    fn size_of_new(&self, current: i32) -> i32 {
        let room = self.maximum().saturating_sub(self.total());
        if room <= 0 {
            current
        } else {
            current.saturating_add(room.min(self.wanted.saturating_sub(current)))
        }
    }

    /// Creates or updates the set of the current template.
    fn ensure_new(&self, replicas: i32) -> Option<Step> {
        let Some(set) = &self.sets.new else {
            return Some(Step::Create(Box::new(self.new_set(replicas))));
        };
        let mut annotations = self.annotations(set.metadata.annotations.as_ref());
        for key in [DESIRED, MAXIMAL] {
            match annotation(&set.metadata, key) {
                Some(value) => annotations.insert(key.to_owned(), value.to_owned()),
                None => annotations.remove(key),
            };
        }
        let min_ready = self.spec.min_ready_seconds;
        let same = set.metadata.annotations.as_ref() == Some(&annotations)
            && set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
                == min_ready.unwrap_or(0);
        if same {
            return None;
        }
        let mut set = (**set).clone();
        set.metadata.annotations = Some(annotations);
        set.spec.get_or_insert_default().min_ready_seconds = min_ready;
        Some(Step::Replace(Box::new(set)))
    }

    fn roll(&self) -> Vec<Step> {
        let size = self.size_of_new(0).min(self.wanted);
        if let Some(step) = self.ensure_new(size) {
            return vec![step];
        }
        let Some(new) = &self.sets.new else { return Vec::new() };
        let now = replicas(new);
        if now > self.wanted {
            return vec![self.resized(new, self.wanted)];
        }
        let size = if now < self.wanted { self.size_of_new(now) } else { now };
        if size != now {
            return vec![self.resized(new, size)];
        }
        self.shrink_old(new)
    }

    /// Scales down old sets: unavailable pods first, then as `maxUnavailable` allows.
    fn shrink_old(&self, new: &ReplicaSet) -> Vec<Step> {
        let least = self.wanted - self.slack.unavailable;
        let new_unavailable = replicas(new) - available(new);
        let mut may_go = self.total() - least - new_unavailable;
        let mut sizes: Vec<i32> = self.sets.old.iter().map(|set| replicas(set)).collect();
        if may_go <= 0 {
            return Vec::new();
        }
        for (set, size) in self.sets.old.iter().zip(&mut sizes) {
            let gone = (*size - available(set)).max(0).min(may_go);
            *size -= gone;
            may_go -= gone;
        }
        let all_available: i32 = self.sets.all().map(|set| available(set)).sum();
        let mut can_be_missed = (all_available - least).max(0);
        for size in &mut sizes {
            let gone = (*size).min(can_be_missed);
            *size -= gone;
            can_be_missed -= gone;
        }
        let changed = self.sets.old.iter().zip(sizes).filter(|(set, size)| replicas(set) != *size);
        changed.map(|(set, size)| self.resized(set, size)).collect()
    }

    fn recreate(&self, pods: &[Arc<Pod>]) -> Vec<Step> {
        let old = self.sets.old.iter().filter(|set| replicas(set) > 0);
        let down: Vec<Step> = old.map(|set| self.resized(set, 0)).collect();
        if !down.is_empty() {
            return down;
        }
        let of_new = |pod: &Arc<Pod>| {
            self.sets.new.as_ref().is_some_and(|set| is_controlled_by(&pod.metadata, &set.metadata))
        };
        if pods.iter().any(|pod| !is_finished(pod) && !of_new(pod)) {
            return Vec::new();
        }
        if let Some(step) = self.ensure_new(self.wanted) {
            return vec![step];
        }
        let new = self.sets.new.iter().filter(|set| replicas(set) != self.wanted);
        new.map(|set| self.resized(set, self.wanted)).collect()
    }

    /// Whether the Deployment was scaled since its sets were sized.
    fn is_scaled(&self) -> bool {
        let active = self.sets.all().filter(|set| replicas(set) > 0);
        let mut desired = active.filter_map(|set| {
            annotation(&set.metadata, DESIRED).and_then(|text| text.parse::<i32>().ok())
        });
        desired.any(|desired| desired != self.wanted)
    }

    /// Distributes a new size among the sets in proportion to their sizes.
    fn scale(&self) -> Vec<Step> {
        let active: Vec<&Arc<ReplicaSet>> =
            self.sets.all().filter(|set| replicas(set) > 0).collect();
        let latest = match active.as_slice() {
            [] => self.sets.new.as_ref().or(self.sets.old.last()),
            [only] => Some(*only),
            _ => None,
        };
        if let Some(latest) = latest {
            let stale = annotation(&latest.metadata, DESIRED) != Some(&self.wanted.to_string());
            let changed = replicas(latest) != self.wanted || stale && !active.is_empty();
            return Vec::from_iter(changed.then(|| self.resized(latest, self.wanted)));
        }
        let saturated = self.sets.new.as_ref().filter(|set| {
            let says = annotation(&set.metadata, DESIRED).and_then(|text| text.parse().ok());
            replicas(set) == self.wanted
                && says == Some(self.wanted)
                && available(set) == self.wanted
        });
        if saturated.is_some() {
            let old = self.sets.old.iter().filter(|set| replicas(set) > 0);
            return old.map(|set| self.resized(set, 0)).collect();
        }
        if self.slack.surge + self.slack.unavailable > 0 {
            self.scale_in_proportion(active)
        } else {
            Vec::new()
        }
    }

    fn scale_in_proportion(&self, mut active: Vec<&Arc<ReplicaSet>>) -> Vec<Step> {
        let allowed = if self.wanted > 0 { self.maximum() } else { 0 };
        let to_add = allowed - self.total();
        // Largest first; of equal ones the newer when growing, the older when shrinking.
        active.sort_by(|one, other| {
            let by_size = replicas(other).cmp(&replicas(one));
            let age = |set: &ReplicaSet| set.metadata.creation_timestamp.clone().map(|time| time.0);
            let by_age = age(one).cmp(&age(other));
            by_size.then(if to_add > 0 { by_age.reverse() } else { by_age })
        });
        let mut left = to_add;
        let mut sizes: Vec<i32> = Vec::with_capacity(active.len());
        for set in &active {
            let share = if to_add == 0 { 0 } else { self.share(set, to_add, left) };
            sizes.push((replicas(set) + share).max(0));
            left -= share;
        }
        if let Some(first) = sizes.first_mut() {
            *first = (*first + left).max(0);
        }
        let sized = active.iter().zip(sizes);
        let stale =
            |set: &ReplicaSet| annotation(&set.metadata, DESIRED) != Some(&self.wanted.to_string());
        let changed = sized.filter(|(set, size)| replicas(set) != *size || stale(set));
        changed.map(|(set, size)| self.resized(set, size)).collect()
    }

    fn share(&self, set: &ReplicaSet, to_add: i32, left: i32) -> i32 {
        let before = annotation(&set.metadata, MAXIMAL).and_then(|text| text.parse::<f64>().ok());
        let before = before.filter(|before| *before > 0.0);
        let size = f64::from(replicas(set));
        let before = before.unwrap_or_else(|| f64::from(self.deployment_replicas().max(1)));
        let fraction = (size * f64::from(self.maximum()) / before).round() - size;
        let fraction = fraction as i32;
        if to_add > 0 { fraction.min(left) } else { fraction.max(left) }
    }

    fn deployment_replicas(&self) -> i32 {
        let status = self.deployment.status.as_ref();
        status.and_then(|status| status.replicas).unwrap_or(self.wanted)
    }

    /// Deletes empty old sets beyond `revisionHistoryLimit`.
    fn clean_up(&self) -> Vec<Step> {
        let Some(kept) = self.spec.revision_history_limit else { return Vec::new() };
        if !super::status::is_complete(self.spec, self.sets, self.deployment) {
            return Vec::new();
        }
        let mut old: Vec<&Arc<ReplicaSet>> =
            self.sets.old.iter().filter(|set| set.metadata.deletion_timestamp.is_none()).collect();
        let excess = old.len().saturating_sub(usize::try_from(kept).unwrap_or(0));
        old.sort_by_key(|set| (revision(&set.metadata), uid(&set.metadata)));
        let emptied = old.into_iter().take(excess).filter(|set| {
            let status = set.status.as_ref();
            let observed = status.and_then(|status| status.observed_generation).unwrap_or(0);
            status.is_none_or(|status| status.replicas == 0)
                && replicas(set) == 0
                && set.metadata.generation.unwrap_or(0) <= observed
        });
        emptied.map(|set| Step::Delete(Arc::clone(set))).collect()
    }

    /// Copies the new set's revision to the Deployment.
    fn annotate(&self) -> Option<Step> {
        self.sets.new.as_ref()?;
        let revision = self.next_revision().to_string();
        if annotation(&self.deployment.metadata, REVISION) == Some(&revision) {
            return None;
        }
        let mut annotations = self.deployment.metadata.annotations.clone().unwrap_or_default();
        annotations.insert(REVISION.to_owned(), revision);
        Some(Step::Annotate(annotations))
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
