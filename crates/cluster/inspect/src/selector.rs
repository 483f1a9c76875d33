//! Label selectors in kubectl's syntax: `app=web,tier!=test,zone in (a, b),!canary`.

use std::sync::Arc;

use berth_model::label::{Operator, Requirement, Selector};
use thiserror::Error;

#[derive(Debug, PartialEq, Eq, Error)]
#[error("invalid selector {text:?}: {problem} (e.g. app=web,tier!=test,zone in (a, b),!canary)")]
pub struct SelectorError {
    pub text: String,
    pub problem: SelectorProblem,
}

#[derive(Debug, PartialEq, Eq, Error)]
pub enum SelectorProblem {
    #[error("unclosed parenthesis")]
    Unclosed,
    #[error("expected `KEY in (…)` or `KEY notin (…)`, found {0:?}")]
    Operator(String),
    #[error("invalid label key {0:?}")]
    Key(String),
}

pub fn parse_selector(text: &str) -> Result<Selector, SelectorError> {
    let parts = parts(text).into_iter().filter(|part| !part.trim().is_empty());
    let all: Result<Vec<Requirement>, SelectorProblem> =
        parts.map(|part| requirement(part.trim())).collect();
    all.map(Selector).map_err(|problem| SelectorError { text: text.to_owned(), problem })
}

/// Splits at commas outside of parentheses.
fn parts(text: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    let mut parts = Vec::new();
    let mut from = 0;
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth <= 0 => {
                parts.extend(text.get(from..at));
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.extend(text.get(from..));
    parts
}

fn requirement(part: &str) -> Result<Requirement, SelectorProblem> {
    let one = |value: &str| vec![Arc::from(value.trim())];
    if let Some((key, value)) = part.split_once("!=") {
        return checked(key, Operator::NotIn(one(value)));
    }
    if let Some((key, value)) = part.split_once('=') {
        return checked(key, Operator::In(one(value.trim_start_matches('='))));
    }
    if let Some((head, values)) = part.split_once('(') {
        let values = values.strip_suffix(')').ok_or(SelectorProblem::Unclosed)?;
        let values: Vec<Arc<str>> = values.split(',').map(|value| value.trim().into()).collect();
        let words: Vec<&str> = head.split_whitespace().collect();
        return match words.as_slice() {
            [key, "in"] => checked(key, Operator::In(values)),
            [key, "notin"] => checked(key, Operator::NotIn(values)),
            _ => Err(SelectorProblem::Operator(part.to_owned())),
        };
    }
    match part.strip_prefix('!') {
        Some(key) => checked(key, Operator::DoesNotExist),
        None => checked(part, Operator::Exists),
    }
}

fn checked(key: &str, operator: Operator) -> Result<Requirement, SelectorProblem> {
    let key = key.trim();
    let fits = |one: char| one.is_ascii_alphanumeric() || matches!(one, '-' | '_' | '.' | '/');
    if key.is_empty() || !key.chars().all(fits) {
        return Err(SelectorProblem::Key(key.to_owned()));
    }
    Ok(Requirement { key: key.into(), operator })
}

#[cfg(test)]
mod tests {
    use berth_model::label::Labels;

    use super::*;

    #[test]
    fn selectors_mean_what_they_mean_to_kubectl() {
        let labels: Labels =
            [("app", "web"), ("tier", "prod"), ("zone", "b")].into_iter().collect();
        for (text, expected) in [
            ("app=web", true),
            ("app==web,tier!=test", true),
            ("app = web , zone in (a, b)", true),
            ("zone notin (a,b)", false),
            ("canary", false),
            ("!canary", true),
            ("app,!tier", false),
            ("missing!=x", true),
            ("", true),
        ] {
            assert_eq!(parse_selector(text).unwrap().matches(&labels), expected, "{text}");
        }
    }

    #[test]
    fn malformed_selectors_are_errors() {
        for text in ["=web", "zone in (a", "a b (c)", "app!", "(x)", "a in b"] {
            let error = parse_selector(text).unwrap_err();
            assert!(error.to_string().contains("e.g. app=web"), "{text}");
        }
    }
}
