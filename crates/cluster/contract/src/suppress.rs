//! The annotation that exempts an object from rules.

use crate::rule::Rule;

/// What an object's annotation says.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Suppressed {
    pub(crate) rules: Vec<&'static Rule>,
    /// What is wrong with the annotation.
    pub(crate) problems: Vec<String>,
}

pub(crate) fn read(text: &str) -> Suppressed {
    let mut found = Suppressed::default();
    for entry in text.split([';', '\n']).map(str::trim).filter(|entry| !entry.is_empty()) {
        let (codes, reason) = entry.split_once(':').unwrap_or((entry, ""));
        if reason.trim().is_empty() {
            found.problems.push(format!("{entry:?} has no reason"));
            continue;
        }
        for code in codes.split(',').map(str::trim) {
            match Rule::find(code) {
                Some(rule) => found.rules.push(rule),
                None => found.problems.push(format!("unknown rule {code:?}")),
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_spared_by_code_or_name_and_only_for_a_reason() {
        let found = read("BERTH-301, gpu-fraction: a demo; BERTH-401\n berth-402: nightly");
        let codes: Vec<&str> = found.rules.iter().map(|rule| rule.code).collect();
        assert_eq!(codes, ["BERTH-301", "BERTH-102", "BERTH-402"]);
        assert_eq!(found.problems, ["\"BERTH-401\" has no reason"]);
        assert_eq!(read("BERTH-999: why").problems, ["unknown rule \"BERTH-999\""]);
    }
}
