//! Taints, and the tolerations that answer them.
//!
//! Owns the rule which toleration answers which taint. Must not know what carries them.

use std::sync::Arc;

/// What a taint does to pods that do not tolerate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    /// They are not scheduled.
    NoSchedule,
    /// They are scheduled elsewhere if that is possible.
    PreferNoSchedule,
    /// They are not scheduled, and evicted where they run.
    NoExecute,
}

impl Effect {
    /// Whether it keeps pods off, rather than only making a node less welcome.
    pub const fn is_hard(self) -> bool {
        matches!(self, Self::NoSchedule | Self::NoExecute)
    }
}

/// A mark on a node that keeps pods away.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Taint {
    /// Its key.
    pub key: Arc<str>,
    /// Its value; empty if none.
    pub value: Arc<str>,
    /// What it does.
    pub effect: Effect,
}

/// How a toleration's value relates to the taint's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TolerationOperator {
    /// The values are equal.
    Equal(Arc<str>),
    /// Any value will do.
    Exists,
    /// The taint's value is a whole number below this one; `None` if what is written is no number.
    Lt(Option<i64>),
    /// The taint's value is a whole number above this one.
    Gt(Option<i64>),
}

/// What lets a pod onto a tainted node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Toleration {
    /// The taint's key; empty: any.
    pub key: Arc<str>,
    /// What is asked of its value.
    pub operator: TolerationOperator,
    /// The taint's effect; `None`: any.
    pub effect: Option<Effect>,
}

impl Toleration {
    /// Whether it answers `taint`.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        let number = || whole_number(&taint.value);
        (self.effect.is_none_or(|effect| effect == taint.effect))
            && (self.key.is_empty() || self.key == taint.key)
            && match &self.operator {
                TolerationOperator::Equal(value) => *value == taint.value,
                TolerationOperator::Exists => true,
                TolerationOperator::Lt(bound) => {
                    bound.zip(number()).is_some_and(|(bound, value)| value < bound)
                }
                TolerationOperator::Gt(bound) => {
                    bound.zip(number()).is_some_and(|(bound, value)| value > bound)
                }
            }
    }
}

/// A whole number as taints write it: no plus sign, no leading zeros, within 64 bits.
pub fn whole_number(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let plain = digits == "0" || !digits.starts_with('0') && !digits.starts_with('+');
    (plain && text != "-0").then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_toleration_answers_by_key_value_and_effect() {
        let taint = |value: &str| Taint {
            key: "gpu".into(),
            value: value.into(),
            effect: Effect::NoSchedule,
        };
        let toleration =
            |key: &str, operator, effect| Toleration { key: key.into(), operator, effect };
        let equal = |value: &str| TolerationOperator::Equal(value.into());
        use TolerationOperator::{Exists, Gt, Lt};
        for (given, on, expected) in [
            (toleration("gpu", equal("a"), None), "a", true),
            (toleration("gpu", equal("a"), None), "b", false),
            (toleration("", Exists, None), "b", true),
            (toleration("cpu", Exists, None), "b", false),
            (toleration("gpu", Exists, Some(Effect::NoExecute)), "b", false),
            (toleration("gpu", Lt(Some(5)), None), "4", true),
            (toleration("gpu", Lt(Some(5)), None), "5", false),
            (toleration("gpu", Gt(Some(5)), None), "06", false),
            (toleration("gpu", Gt(None), None), "6", false),
        ] {
            assert_eq!(given.tolerates(&taint(on)), expected, "{given:?} on {on}");
        }
    }
}
