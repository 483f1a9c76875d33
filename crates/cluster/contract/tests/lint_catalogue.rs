//! The settings that the page of rules shows are the defaults.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a helper of a test fails the test")]

use berth_contract::Settings;
use berth_contract::lint::settings;
use berth_manifest::Source;

const PAGE: &str = include_str!("../../../../docs/reference/rules.md");

#[test]
fn the_settings_on_the_page_are_the_defaults() {
    let written = PAGE.split("```yaml\n").nth(2).unwrap().split("```").next().unwrap();
    assert_eq!(settings(&Source::new("page", written)).unwrap(), Settings::default());
}

#[test]
fn a_mistake_in_the_settings_has_a_place() {
    let problem = settings(&Source::new("s.yaml", "gpuTaints: [a]\nteamLabel: [b]\n")).unwrap_err();
    let text = problem.to_string();
    assert!(text.starts_with("s.yaml:2:"), "{text}");
    assert!(text.contains("teamLabel"), "{text}");
}
