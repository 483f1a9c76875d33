//! Taints and tolerations.

use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

impl Effect {
    /// Whether it keeps pods off the node, rather than only lowering its score.
    pub const fn is_hard(self) -> bool {
        matches!(self, Self::NoSchedule | Self::NoExecute)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Taint {
    pub key: Arc<str>,
    /// Empty if none.
    pub value: Arc<str>,
    pub effect: Effect,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TolerationOperator {
    Equal(Arc<str>),
    Exists,
    /// The taint's value is an integer below this one; `None` if it is written wrongly.
    Lt(Option<i64>),
    /// The taint's value is an integer above this one.
    Gt(Option<i64>),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Toleration {
    /// Empty: any key.
    pub key: Arc<str>,
    pub operator: TolerationOperator,
    /// `None`: any effect.
    pub effect: Option<Effect>,
}

impl Toleration {
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

/// An integer as taints write it: no plus sign, no leading zeros, within 64 bits.
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
