//! Labels and the selectors that match them.
//!
//! Owns Kubernetes' matching rules for label selectors and for node selector terms. Must not know
//! what carries the labels.

use std::sync::Arc;

/// Labels by key, in key order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Labels(Vec<(Arc<str>, Arc<str>)>);

impl Labels {
    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Arc<str>> {
        let at = self.0.binary_search_by(|(one, _)| one.as_ref().cmp(key)).ok()?;
        self.0.get(at).map(|(_, value)| value)
    }

    /// Sets `key` to `value`.
    pub fn insert(&mut self, key: impl Into<Arc<str>>, value: impl Into<Arc<str>>) {
        let (key, value) = (key.into(), value.into());
        match self.0.binary_search_by(|(one, _)| one.cmp(&key)) {
            Ok(at) => self.0[at].1 = value,
            Err(at) => self.0.insert(at, (key, value)),
        }
    }

    /// All of them, in key order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Arc<str>, &Arc<str>)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether every label of `wanted` is here with the same value.
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

/// What a requirement says about the value of its key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operator {
    /// It is there and one of these.
    In(Vec<Arc<str>>),
    /// It is not there, or none of these.
    NotIn(Vec<Arc<str>>),
    /// It is there.
    Exists,
    /// It is not there.
    DoesNotExist,
    /// It is there, a whole number, and above this one.
    Gt(i64),
    /// It is there, a whole number, and below this one.
    Lt(i64),
    /// The requirement is written wrongly (`Gt` without a number, say): Kubernetes never matches it.
    Never,
}

impl Operator {
    /// Whether a value, or the absence of one, satisfies it.
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

/// One condition on one key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Requirement {
    /// The key.
    pub key: Arc<str>,
    /// What its value must be.
    pub operator: Operator,
}

impl Requirement {
    /// Whether `labels` satisfy it.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.operator.accepts(labels.get(&self.key).map(AsRef::as_ref))
    }
}

/// All of its requirements must hold; without any, it matches everything. An absent selector, which
/// matches nothing, is an `Option` of this.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Selector(pub Vec<Requirement>);

impl Selector {
    /// One that wants exactly these labels.
    pub fn of_labels(labels: &Labels) -> Self {
        let wanted = |(key, value): (&Arc<str>, &Arc<str>)| Requirement {
            key: key.clone(),
            operator: Operator::In(vec![value.clone()]),
        };
        Self(labels.iter().map(wanted).collect())
    }

    /// Whether `labels` satisfy it.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| requirement.matches(labels))
    }

    /// Whether it matches everything because it asks for nothing.
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
