//! Semantic versions, as attributes of devices and expressions have them.
//!
//! Owns how versions are read and ordered, as Kubernetes does it. Must not know CEL.

use std::cmp::Ordering;

/// A semantic version. What was built is not compared, so it is only checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) major: u64,
    pub(super) minor: u64,
    pub(super) patch: u64,
    before: Vec<Part>,
}

/// A part of what says that a version comes before the one without it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Number(u64),
    Text(String),
}

impl Version {
    /// Reads `1.2.3-rc.1+build`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut parts = text.splitn(3, '.');
        let (Some(major), Some(minor), Some(rest)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(format!("version {text:?}: write major.minor.patch"));
        };
        let (rest, build) = match rest.split_once('+') {
            Some((rest, build)) => (rest, Some(build)),
            None => (rest, None),
        };
        let (patch, before) = match rest.split_once('-') {
            Some((patch, before)) => (patch, Some(before)),
            None => (rest, None),
        };
        let before = before.into_iter().flat_map(|before| before.split('.'));
        let wrong = |part: &str| format!("version {text:?}: {part:?} is not valid");
        for part in build.into_iter().flat_map(|build| build.split('.')) {
            if part.is_empty() || !part.bytes().all(is_word) {
                return Err(wrong(part));
            }
        }
        Ok(Self {
            major: number(major).ok_or_else(|| wrong(major))?,
            minor: number(minor).ok_or_else(|| wrong(minor))?,
            patch: number(patch).ok_or_else(|| wrong(patch))?,
            before: before
                .map(|one| part(one).ok_or_else(|| wrong(one)))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Reads also `v1`, `1.2` and `01.2.3`.
    pub(super) fn parse_loosely(text: &str) -> Result<Self, String> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let mut parts: Vec<String> = text.splitn(3, '.').map(without_leading_zeros).collect();
        if parts.len() < 3 {
            if parts.last().is_some_and(|last| last.contains(['+', '-'])) {
                return Err(format!("version {text:?}: a short one cannot say more than numbers"));
            }
            parts.resize(3, "0".to_owned());
        }
        Self::parse(&parts.join("."))
    }

    pub(super) fn compare(&self, other: &Self) -> Ordering {
        let numbers = |one: &Self| (one.major, one.minor, one.patch);
        // Having something before the release comes before having nothing.
        numbers(self)
            .cmp(&numbers(other))
            .then_with(|| self.before.is_empty().cmp(&other.before.is_empty()))
            .then_with(|| self.before.cmp(&other.before))
    }
}

fn without_leading_zeros(part: &str) -> String {
    if part.len() <= 1 {
        return part.to_owned();
    }
    let rest = part.trim_start_matches('0');
    if rest.starts_with(|one: char| one.is_ascii_digit()) {
        rest.to_owned()
    } else {
        format!("0{rest}")
    }
}

fn is_word(one: u8) -> bool {
    one.is_ascii_alphanumeric() || one == b'-'
}

fn number(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|one| one.is_ascii_digit());
    let leading_zero = text.len() > 1 && text.starts_with('0');
    (plain && !leading_zero).then(|| text.parse().ok()).flatten()
}

fn part(text: &str) -> Option<Part> {
    if text.is_empty() {
        return None;
    }
    if text.bytes().all(|one| one.is_ascii_digit()) {
        return number(text).map(Part::Number);
    }
    text.bytes().all(is_word).then(|| Part::Text(text.to_owned()))
}
