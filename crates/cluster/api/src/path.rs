//! Paths of fields, such as `spec.containers[0].resources.limits[nvidia.com/gpu]`.

use std::fmt;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// Of a map.
    Key(Arc<str>),
    /// Of a list, from 0.
    At(usize),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldPath(Vec<Step>);

impl FieldPath {
    pub fn root() -> Self {
        Self::default()
    }

    /// What [`LowerError::field`](crate::LowerError::field) says. Brackets that hold nothing but
    /// digits mean an item of a list; what cannot be read as a path is one key.
    pub fn parse(text: &str) -> Self {
        let mut steps = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (step, after) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
                Some((inside, after)) => (bracketed(inside), after),
                None => {
                    let end = rest.find(['.', '[']).filter(|end| *end > 0).unwrap_or(rest.len());
                    let (key, after) = rest.split_at(end);
                    (Step::Key(key.into()), after)
                }
            };
            steps.push(step);
            rest = after.strip_prefix('.').unwrap_or(after);
        }
        Self(steps)
    }

    #[must_use]
    pub fn key(mut self, key: impl Into<Arc<str>>) -> Self {
        self.0.push(Step::Key(key.into()));
        self
    }

    #[must_use]
    pub fn at(mut self, index: usize) -> Self {
        self.0.push(Step::At(index));
        self
    }

    #[must_use]
    pub fn join(mut self, inner: &Self) -> Self {
        self.0.extend_from_slice(&inner.0);
        self
    }

    pub fn steps(&self) -> &[Step] {
        &self.0
    }
}

fn bracketed(inside: &str) -> Step {
    match inside.parse() {
        Ok(index) => Step::At(index),
        Err(_) => Step::Key(inside.trim_matches('"').into()),
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, step) in self.0.iter().enumerate() {
            match step {
                Step::At(index) => write!(formatter, "[{index}]")?,
                Step::Key(key) if key.bytes().all(|byte| byte.is_ascii_digit()) => {
                    write!(formatter, "[{key:?}]")?;
                }
                Step::Key(key) if key.contains(['.', '/', '[', ']']) => {
                    write!(formatter, "[{key}]")?;
                }
                Step::Key(key) if position == 0 => formatter.write_str(key)?,
                Step::Key(key) => write!(formatter, ".{key}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_read_as_it_is_written() {
        for text in [
            "",
            "spec.containers[0].resources.limits[nvidia.com/gpu]",
            "metadata.labels[\"7\"]",
            "[3].name",
        ] {
            assert_eq!(FieldPath::parse(text).to_string(), text);
        }
        let limits = FieldPath::root().key("spec").key("containers").at(0).key("resources");
        let gpu = limits.key("limits").key("nvidia.com/gpu");
        assert_eq!(FieldPath::parse("spec.containers[0].resources.limits[nvidia.com/gpu]"), gpu);
    }

    #[test]
    fn what_is_no_path_is_a_key() {
        assert_eq!(FieldPath::parse("[open").steps(), [Step::Key("[open".into())]);
        assert_eq!(FieldPath::parse("a..b").to_string(), "a[.b]");
    }
}
