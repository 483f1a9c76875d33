//! Labels, and Kubernetes' matching rules for label selectors and node selector terms.

use std::sync::Arc;

/// Sorted by key.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Labels(Vec<(Arc<str>, Arc<str>)>);

impl Labels {
    pub fn get(&self, key: &str) -> Option<&Arc<str>> {
        let at = self.0.binary_search_by(|(one, _)| one.as_ref().cmp(key)).ok()?;
        self.0.get(at).map(|(_, value)| value)
    }

    pub fn insert(&mut self, key: impl Into<Arc<str>>, value: impl Into<Arc<str>>) {
        let (key, value) = (key.into(), value.into());
        match self.0.binary_search_by(|(one, _)| one.cmp(&key)) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => self.0.insert(at, (key, value)),
        }
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Arc<str>, &Arc<str>)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether every label of `wanted` is present with the same value.
    pub fn contains_all(&self, wanted: &Labels) -> bool {
        wanted.iter().all(|(key, value)| self.get(key) == Some(value))
    }
}

impl<K: Into<Arc<str>>, V: Into<Arc<str>>> FromIterator<(K, V)> for Labels {
    /// A key that occurs twice keeps its last value.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut labels: Vec<(Arc<str>, Arc<str>)> =
            pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        labels.reverse();
        labels.sort_by(|one, other| one.0.cmp(&other.0));
        labels.dedup_by(|one, other| one.0 == other.0);
        Self(labels)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operator {
    /// Present, and one of these.
    In(Vec<Arc<str>>),
    /// Absent, or none of these.
    NotIn(Vec<Arc<str>>),
    Exists,
    DoesNotExist,
    /// Present, an integer, and above this one.
    Gt(i64),
    /// Present, an integer, and below this one.
    Lt(i64),
    /// Invalid (`Gt` without a number, say): Kubernetes never matches it.
    Never,
}

impl Operator {
    /// `None`: the label is absent.
    pub fn accepts(&self, value: Option<&str>) -> bool {
        let listed = |values: &[Arc<str>]| {
            value.is_some_and(|value| values.iter().any(|one| one.as_ref() == value))
        };
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match self {
            Self::In(values) => listed(values),
            Self::NotIn(values) => !listed(values),
            Self::Exists => value.is_some(),
            Self::DoesNotExist => value.is_none(),
            Self::Gt(bound) => number().is_some_and(|number| number > *bound),
            Self::Lt(bound) => number().is_some_and(|number| number < *bound),
            Self::Never => false,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Requirement {
    pub key: Arc<str>,
    pub operator: Operator,
}

impl Requirement {
    pub fn matches(&self, labels: &Labels) -> bool {
        self.operator.accepts(labels.get(&self.key).map(AsRef::as_ref))
    }
}

/// All requirements must hold; without requirements it matches everything. A selector that matches
/// nothing is an absent one, `Option::None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selector(pub Vec<Requirement>);

impl Selector {
    /// Matches exactly these labels.
    pub fn of_labels(labels: &Labels) -> Self {
        let wanted = |(key, value): (&Arc<str>, &Arc<str>)| Requirement {
            key: key.clone(),
            operator: Operator::In(vec![value.clone()]),
        };
        Self(labels.iter().map(wanted).collect())
    }

    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| requirement.matches(labels))
    }

    /// An empty selector matches everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requirement(key: &str, operator: Operator) -> Selector {
        Selector(vec![Requirement { key: key.into(), operator }])
    }

    #[test]
    fn absent_keys_satisfy_only_what_is_negated() {
        let labels: Labels = [("app", "web"), ("cores", "16")].into_iter().collect();
        let values = || vec!["web".into(), "db".into()];
        for (key, operator, expected) in [
            ("app", Operator::In(values()), true),
            ("app", Operator::NotIn(values()), false),
            ("tier", Operator::In(values()), false),
            ("tier", Operator::NotIn(values()), true),
            ("tier", Operator::DoesNotExist, true),
            ("app", Operator::Exists, true),
            ("cores", Operator::Gt(15), true),
            ("cores", Operator::Gt(16), false),
            ("cores", Operator::Lt(17), true),
            ("app", Operator::Gt(1), false),
            ("tier", Operator::Lt(1), false),
        ] {
            assert_eq!(
                requirement(key, operator.clone()).matches(&labels),
                expected,
                "{operator:?}"
            );
        }
        assert!(Selector::default().matches(&labels));
    }

    #[test]
    fn the_last_of_two_equal_keys_counts() {
        let labels: Labels = [("b", "1"), ("a", "1"), ("b", "2")].into_iter().collect();
        assert_eq!(labels.get("b").map(AsRef::as_ref), Some("2"));
        assert_eq!(labels.iter().len(), 2);
    }
}
