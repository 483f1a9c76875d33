//! Queries for pods: affinity terms and spread constraints, matched against classes with
//! kube-scheduler's rules for namespaces.

use std::sync::Arc;

use berth_model::affinity::PodTerm;
use berth_model::label::{Labels, Operator, Selector};

use crate::table::Lookup;

pub(crate) type Namespaces = Lookup<Arc<str>, Labels>;

/// The side of a query. The rules for namespace selectors differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum QuerySide {
    /// A term of an incoming pod about existing ones.
    Incoming,
    /// A term of an existing pod about incoming ones.
    Existing,
}

/// A query for pods; all terms must match.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Query {
    pub(crate) side: QuerySide,
    terms: Vec<Term>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Term {
    selector: Option<Selector>,
    namespaces: Vec<Arc<str>>,
    namespace_selector: Option<Selector>,
}

impl Query {
    pub(crate) fn in_namespace(namespace: &Arc<str>, selector: Option<Selector>) -> Self {
        let namespaces = vec![namespace.clone()];
        let term = Term { selector, namespaces, namespace_selector: None };
        Self { side: QuerySide::Incoming, terms: vec![term] }
    }

    /// Pods that match all `terms` of a pod in `namespace`.
    pub(crate) fn of_terms<'a>(
        side: QuerySide,
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
        Self { side, terms: terms.into_iter().map(lower).collect() }
    }

    pub(crate) fn matches(&self, namespace: &str, labels: &Labels, all: &Namespaces) -> bool {
        let matches = |term: &Term| {
            term.selector.as_ref().is_some_and(|selector| selector.matches(labels))
                && self.includes(term, namespace, all)
        };
        !self.terms.is_empty() && self.terms.iter().all(matches)
    }

    /// An incoming pod's namespace selector is resolved to existing namespaces, but kube-scheduler
    /// also compares it with an empty label set; a selector that only requires absence matches
    /// every namespace.
    fn includes(&self, term: &Term, namespace: &str, all: &Namespaces) -> bool {
        if term.namespaces.iter().any(|one| one.as_ref() == namespace) {
            return true;
        }
        let Some(selector) = &term.namespace_selector else { return false };
        let none = Labels::default();
        let labels = all.get(namespace);
        match self.side {
            QuerySide::Incoming => {
                labels.is_some_and(|labels| selector.matches(labels)) || selector.matches(&none)
            }
            QuerySide::Existing => selector.matches(labels.unwrap_or(&none)),
        }
    }

    /// Labels that every matching pod has, each with the possible values.
    pub(crate) fn required_values(&self) -> impl Iterator<Item = (&Arc<str>, &[Arc<str>])> {
        let selectors = self.terms.iter().filter_map(|term| term.selector.as_ref());
        let requirements = selectors.flat_map(|selector| &selector.0);
        requirements.filter_map(|requirement| match &requirement.operator {
            Operator::In(values) if !values.is_empty() => Some((&requirement.key, &values[..])),
            _ => None,
        })
    }

    /// Whether labels are not restricted at all. Spreading counts nothing then.
    pub(crate) fn selects_all(&self) -> bool {
        self.terms.iter().all(|term| term.selector.as_ref().is_some_and(Selector::is_empty))
    }

    /// Whether the answer depends on labels of namespaces.
    pub(crate) fn uses_namespace_labels(&self) -> bool {
        self.terms.iter().any(|term| term.namespace_selector.is_some())
    }
}
