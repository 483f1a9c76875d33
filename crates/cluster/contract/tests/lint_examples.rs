//! The examples of this repository: what is marked as wrong is found, where it is marked, and nothing
//! else; what is put right is right.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use berth_contract::Settings;
use berth_contract::lint::{Input, Report, lint, plan};

fn example(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../examples").join(name)
}

fn read(path: PathBuf) -> Input {
    Input::read(&[path], &[], &mut std::io::empty()).unwrap()
}

type Place = (String, usize, String);

fn found(report: &Report) -> BTreeSet<Place> {
    let place = |one: &berth_contract::lint::Located| {
        let file = one.file.rsplit('/').next().unwrap().to_owned();
        (file, one.start.line, one.finding.rule.code.to_owned())
    };
    report.findings.iter().map(place).collect()
}

/// A comment `# CODE: …` marks the next line that is no comment.
fn marked(directory: &str) -> BTreeSet<Place> {
    let mut marks = BTreeSet::new();
    for entry in fs::read_dir(example(directory)).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).unwrap();
        let mut waiting: Vec<String> = Vec::new();
        for (index, line) in text.lines().enumerate().filter(|_| file.ends_with(".yaml")) {
            match line.trim_start().strip_prefix("# ") {
                Some(comment) if comment.starts_with("BERTH-") => {
                    waiting.push(comment.split(':').next().unwrap().to_owned());
                }
                Some(_) => {}
                None => {
                    let here = waiting.drain(..).map(|code| (file.clone(), index + 1, code));
                    marks.extend(here);
                }
            }
        }
    }
    marks
}

#[test]
fn the_mistakes_of_guides_are_found_where_they_are_marked() {
    let input = read(example("seeds"));
    let report = lint(&input, &Settings::default());
    let (found, marked) = (found(&report), marked("seeds"));
    let missed: Vec<_> = marked.difference(&found).collect();
    let surplus: Vec<_> = found.difference(&marked).collect();
    assert!(missed.is_empty() && surplus.is_empty(), "missed {missed:#?}, surplus {surplus:#?}");
    assert!(found.len() > 20, "{found:?}");
}

#[test]
fn a_cluster_that_keeps_the_contract_has_no_findings() {
    let input = read(example("contract"));
    let report = lint(&input, &Settings::default());
    assert_eq!(found(&report), BTreeSet::new());
    assert!(report.objects > 10, "{}", report.objects);
}

/// Fixes are made in a copy. All that was to be mended is, comments stay, and nothing new is wrong.
#[test]
fn the_mistakes_of_guides_are_mended_as_far_as_that_is_safe() {
    let copy = std::env::temp_dir().join(format!("berth-examples-{}", std::process::id()));
    fs::create_dir_all(&copy).unwrap();
    for entry in fs::read_dir(example("seeds")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, copy.join(path.file_name().unwrap())).unwrap();
    }
    let input = read(copy.clone());
    let before = lint(&input, &Settings::default());
    let changes = plan(&before, &input).unwrap();
    let wanted = before.count().fixable;
    assert!(wanted >= 5, "{wanted}");
    assert_eq!(changes.iter().map(|change| change.fixed).sum::<usize>(), wanted);
    berth_contract::lint::write(&changes).unwrap();
    for change in &changes {
        let comments = |text: &str| text.matches("# BERTH-").count();
        assert_eq!(comments(&change.before), comments(&change.after), "{:?}", change.path);
    }
    let after = lint(&read(copy.clone()), &Settings::default());
    fs::remove_dir_all(&copy).unwrap();
    assert_eq!(after.count().fixable, 0);
    let codes = |report: &Report| {
        found(report).into_iter().map(|(file, _, code)| (file, code)).collect::<BTreeSet<_>>()
    };
    let new: Vec<_> = codes(&after).difference(&codes(&before)).cloned().collect();
    assert!(new.is_empty(), "{new:?}");
    // What moved with the pool's version is mended with it.
    let gone: BTreeSet<_> = codes(&before).difference(&codes(&after)).cloned().collect();
    assert!(gone.contains(&("quotas.yaml".to_owned(), "BERTH-504".to_owned())), "{gone:?}");
}

/// The whole form is the schema's to judge; here is what readers trip over.
#[test]
fn results_in_sarif_refer_to_rules_files_and_places_that_exist() {
    let input = read(example("seeds"));
    let report = lint(&input, &Settings::default());
    let log = berth_contract::lint::sarif(&report, "1.2.3");
    let run = &log["runs"][0];
    let rules = run["tool"]["driver"]["rules"].as_array().unwrap();
    let results = run["results"].as_array().unwrap();
    assert_eq!(results.len(), report.findings.len());
    let mut prints = BTreeSet::new();
    for result in results {
        let index = usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap();
        assert_eq!(rules[index]["id"], result["ruleId"]);
        assert!(["error", "warning", "note"].contains(&result["level"].as_str().unwrap()));
        let place = &result["locations"][0]["physicalLocation"];
        assert!(place["artifactLocation"]["uri"].as_str().unwrap().ends_with(".yaml"));
        let region = &place["region"];
        let number = |field: &str| region[field].as_u64().unwrap();
        let start = (number("startLine"), number("startColumn"));
        assert!(start >= (1, 1) && (number("endLine"), number("endColumn")) > start, "{region}");
        let print = result["partialFingerprints"]["objectAndField/v1"].to_string();
        assert!(prints.insert((print, result["ruleId"].to_string())), "{result}");
    }
}
