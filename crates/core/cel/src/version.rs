//! Semantic versions, parsed and ordered as Kubernetes does.

use std::cmp::Ordering;

use thiserror::Error;

/// Build metadata is validated but not compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) major: u64,
    pub(super) minor: u64,
    pub(super) patch: u64,
    pre_release: Vec<Part>,
}

/// An identifier of the pre-release.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Number(u64),
    Text(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum VersionError {
    #[error("version {text:?}: write major.minor.patch")]
    Incomplete { text: String },
    #[error("version {text:?}: {part:?} is invalid")]
    Part { text: String, part: String },
}

impl Version {
    /// Parses `1.2.3-rc.1+build`.
    pub(super) fn parse(text: &str) -> Result<Self, VersionError> {
        let mut parts = text.splitn(3, '.');
        let (Some(major), Some(minor), Some(rest)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(VersionError::Incomplete { text: text.to_owned() });
        };
        let (rest, build) = match rest.split_once('+') {
            Some((rest, build)) => (rest, Some(build)),
            None => (rest, None),
        };
        let (patch, pre_release) = match rest.split_once('-') {
            Some((patch, pre_release)) => (patch, Some(pre_release)),
            None => (rest, None),
        };
        let pre_release = pre_release.into_iter().flat_map(|pre_release| pre_release.split('.'));
        let invalid =
            |part: &str| VersionError::Part { text: text.to_owned(), part: part.to_owned() };
        for part in build.into_iter().flat_map(|build| build.split('.')) {
            if part.is_empty() || !part.bytes().all(is_word) {
                return Err(invalid(part));
            }
        }
        Ok(Self {
            major: number(major).ok_or_else(|| invalid(major))?,
            minor: number(minor).ok_or_else(|| invalid(minor))?,
            patch: number(patch).ok_or_else(|| invalid(patch))?,
            pre_release: pre_release
                .map(|one| part(one).ok_or_else(|| invalid(one)))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Also parses `v1`, `1.2` and `01.2.3`.
    pub(super) fn parse_loosely(text: &str) -> Result<Self, VersionError> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let mut parts: Vec<String> = text.splitn(3, '.').map(without_leading_zeros).collect();
        if parts.len() < 3 {
            if parts.last().is_some_and(|last| last.contains(['+', '-'])) {
                return Err(VersionError::Incomplete { text: text.to_owned() });
            }
            parts.resize(3, "0".to_owned());
        }
        Self::parse(&parts.join("."))
    }

    pub(super) fn compare(&self, other: &Self) -> Ordering {
        let numbers = |one: &Self| (one.major, one.minor, one.patch);
        // A pre-release comes before the release.
        numbers(self)
            .cmp(&numbers(other))
            .then_with(|| self.pre_release.is_empty().cmp(&other.pre_release.is_empty()))
            .then_with(|| self.pre_release.cmp(&other.pre_release))
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
