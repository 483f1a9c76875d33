//! Index of queries and classes by label, so that a new one is matched with few of the others.
//!
//! A query that requires one of some values of a label is filed under hashes of these labels, so
//! candidates must still be matched. A query that requires no value is matched with every class.

use std::collections::BTreeSet;
use std::sync::Arc;

use berth_model::label::Labels;
use smallvec::SmallVec;

use crate::query::Query;
use crate::table::{ClassIx, Index, Lookup, QueryIx, fingerprint};

/// Hashes of the labels under which a query is filed.
type Filed = SmallVec<[u64; 1]>;

#[derive(Clone, Debug, Default)]
pub(crate) struct LabelIndex {
    classes: Lookup<u64, BTreeSet<ClassIx>>,
    queries: Lookup<u64, BTreeSet<QueryIx>>,
    loose: BTreeSet<QueryIx>,
    filed: Vec<Filed>,
}

impl LabelIndex {
    pub(crate) fn add_class(&mut self, class: ClassIx, labels: &Labels) {
        for label in hashes(labels) {
            self.classes.entry(label).or_default().insert(class);
        }
    }

    pub(crate) fn remove_class(&mut self, class: ClassIx, labels: &Labels) {
        for label in hashes(labels) {
            unfile(&mut self.classes, label, class);
        }
    }

    /// Files a query under the label that the fewest others have.
    pub(crate) fn add_query(&mut self, at: QueryIx, query: &Query) {
        let crowd = |label: &u64| {
            let classes = self.classes.get(label).map_or(0, BTreeSet::len);
            classes + self.queries.get(label).map_or(0, BTreeSet::len)
        };
        let required = query.required_values();
        let required =
            required.map(|(key, values)| values.iter().map(|value| hash(key, value)).collect());
        let filed: Option<Filed> =
            required.min_by_key(|labels: &Filed| labels.iter().map(crowd).sum::<usize>());
        let filed = filed.unwrap_or_default();
        for label in &filed {
            self.queries.entry(*label).or_default().insert(at);
        }
        if filed.is_empty() {
            self.loose.insert(at);
        }
        if at.at() >= self.filed.len() {
            self.filed.resize_with(at.at() + 1, Filed::default);
        }
        self.filed[at.at()] = filed;
    }

    pub(crate) fn remove_query(&mut self, at: QueryIx) {
        self.loose.remove(&at);
        for label in std::mem::take(&mut self.filed[at.at()]) {
            unfile(&mut self.queries, label, at);
        }
    }

    /// Candidate queries for pods with these labels, sorted.
    pub(crate) fn queries_for(&self, labels: &Labels) -> Vec<QueryIx> {
        let labelled = hashes(labels).filter_map(|label| self.queries.get(&label)).flatten();
        let mut queries: Vec<QueryIx> = labelled.chain(&self.loose).copied().collect();
        queries.sort_unstable();
        queries.dedup();
        queries
    }

    /// Candidate classes for a query; `None`: all.
    pub(crate) fn classes_for(&self, at: QueryIx) -> Option<impl Iterator<Item = ClassIx>> {
        let filed = self.filed.get(at.at()).filter(|filed| !filed.is_empty())?;
        let classes = filed.iter().filter_map(|label| self.classes.get(label));
        Some(classes.flatten().copied())
    }
}

fn hashes(labels: &Labels) -> impl Iterator<Item = u64> {
    labels.iter().map(|(key, value)| hash(key, value))
}

fn hash(key: &Arc<str>, value: &Arc<str>) -> u64 {
    fingerprint(&(key, value))
}

fn unfile<I: Ord>(filed: &mut Lookup<u64, BTreeSet<I>>, label: u64, one: I) {
    if let Some(all) = filed.get_mut(&label) {
        all.remove(&one);
        if all.is_empty() {
            filed.remove(&label);
        }
    }
}
