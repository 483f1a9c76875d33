//! Which pods are meant: the questions that affinity terms and spread constraints ask about others.
//!
//! Owns the matching of a term against a kind of pod, with kube-scheduler's rules for namespaces.
//! Must not know how many pods there are or where.

use std::sync::Arc;

use berth_model::affinity::PodTerm;
use berth_model::label::{Labels, Operator, Selector};

use crate::table::Lookup;

/// Labels of the namespaces that exist.
pub(crate) type Namespaces = Lookup<Arc<str>, Labels>;

/// Who asks. The rules for namespaces by label differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Asker {
    /// A pod that looks for its place asks about those that have one.
    Newcomer,
    /// A pod that has its place asks about newcomers.
    Resident,
}

/// A question which pods are meant; all of its terms must match.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Query {
    pub(crate) asker: Asker,
    terms: Vec<Term>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Term {
    selector: Option<Selector>,
    namespaces: Vec<Arc<str>>,
    namespace_selector: Option<Selector>,
}

impl Query {
    /// Pods of one namespace.
    pub(crate) fn in_namespace(namespace: &Arc<str>, selector: Option<Selector>) -> Self {
        let namespaces = vec![namespace.clone()];
        let term = Term { selector, namespaces, namespace_selector: None };
        Self { asker: Asker::Newcomer, terms: vec![term] }
    }

    /// Pods that all `terms` of a pod in `namespace` match.
    pub(crate) fn of_terms<'a>(
        asker: Asker,
        namespace: &Arc<str>,
        terms: impl IntoIterator<Item = &'a PodTerm>,
    ) -> Self {
        let lower = |term: &PodTerm| {
            let own = term.namespaces.is_empty() && term.namespace_selector.is_none();
            let mut namespaces =
                if own { vec![namespace.clone()] } else { term.namespaces.clone() };
            namespaces.sort_unstable();
            namespaces.dedup();
            Term {
                selector: term.selector.clone(),
                namespaces,
                namespace_selector: term.namespace_selector.clone(),
            }
        };
        Self { asker, terms: terms.into_iter().map(lower).collect() }
    }

    /// Whether a pod with these labels in this namespace is meant.
    pub(crate) fn matches(&self, namespace: &str, labels: &Labels, all: &Namespaces) -> bool {
        let matches = |term: &Term| {
            term.selector.as_ref().is_some_and(|selector| selector.matches(labels))
                && self.includes(term, namespace, all)
        };
        !self.terms.is_empty() && self.terms.iter().all(matches)
    }

    /// A newcomer's namespace selector is resolved to the names of namespaces that exist, but
    /// kube-scheduler goes on comparing the selector with no labels at all; so one that asks only
    /// for absence matches every namespace.
    fn includes(&self, term: &Term, namespace: &str, all: &Namespaces) -> bool {
        if term.namespaces.iter().any(|one| one.as_ref() == namespace) {
            return true;
        }
        let Some(selector) = &term.namespace_selector else { return false };
        let none = Labels::default();
        let labels = all.get(namespace);
        match self.asker {
            Asker::Newcomer => {
                labels.is_some_and(|labels| selector.matches(labels)) || selector.matches(&none)
            }
            Asker::Resident => selector.matches(labels.unwrap_or(&none)),
        }
    }

    /// Labels that every pod that is meant has, each with the values of which it has one.
    pub(crate) fn required_values(&self) -> impl Iterator<Item = (&Arc<str>, &[Arc<str>])> {
        let selectors = self.terms.iter().filter_map(|term| term.selector.as_ref());
        let requirements = selectors.flat_map(|selector| &selector.0);
        requirements.filter_map(|requirement| match &requirement.operator {
            Operator::In(values) if !values.is_empty() => Some((&requirement.key, &values[..])),
            _ => None,
        })
    }

    /// Whether the pods' labels are not asked about at all. Spreading counts nothing then.
    pub(crate) fn selects_all(&self) -> bool {
        self.terms.iter().all(|term| term.selector.as_ref().is_some_and(Selector::is_empty))
    }

    /// Whether the answer depends on the labels of namespaces.
    pub(crate) fn looks_at_namespaces(&self) -> bool {
        self.terms.iter().any(|term| term.namespace_selector.is_some())
    }
}
