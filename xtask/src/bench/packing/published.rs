//! Figures of the FGD paper's own runs, where they are at hand.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

/// Allocated GPUs in percent at a demand of 100 and of 130 percent, by list and policy; means over
/// the published seeds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Published {
    means: BTreeMap<(String, String), (f64, f64)>,
}

impl Published {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        parse(&text).with_context(|| path.display().to_string())
    }

    pub(crate) fn get(&self, list: &str, policy: &str) -> Option<(f64, f64)> {
        self.means.get(&(list.to_owned(), policy.to_owned())).copied()
    }
}

fn parse(text: &str) -> Result<Published> {
    let mut lines = text.lines().enumerate();
    let (_, header) = lines.next().context("line 1: the file is empty")?;
    let column = |name: &str| {
        let at = header.split(',').position(|column| column == name);
        at.with_context(|| format!("line 1: the column `{name}` is missing"))
    };
    let (workload, policy) = (column("workload")?, column("sc_policy")?);
    let (at_100, at_130) = (column("100")?, column("130")?);
    let mut sums: BTreeMap<(String, String), (f64, f64, f64)> = BTreeMap::new();
    for (at, line) in lines {
        let fields: Vec<&str> = line.split(',').collect();
        let field = |column: usize| {
            fields.get(column).copied().with_context(|| format!("line {}: too short", at + 1))
        };
        let number = |column: usize| -> Result<f64> {
            let text = field(column)?;
            text.parse().with_context(|| format!("line {}: {text:?} is no number", at + 1))
        };
        let list = field(workload)?.trim_start_matches("openb_pod_list_").to_owned();
        // As in `06-FGD`.
        let policy = field(policy)?.trim_start_matches(|c: char| c.is_ascii_digit() || c == '-');
        let sum = sums.entry((list, policy.to_owned())).or_default();
        sum.0 += number(at_100)?;
        sum.1 += number(at_130)?;
        sum.2 += 1.0;
    }
    let means = sums.into_iter().map(|(key, (a, b, runs))| (key, (a / runs, b / runs))).collect();
    Ok(Published { means })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_over_seeds() {
        let header = "workload,sc_policy,tune,seed,total_gpus,99,100,130";
        let text = format!(
            "{header}\nopenb_pod_list_default,06-FGD,1.3,42,6212,1,95.0,96.0\n\
             openb_pod_list_default,06-FGD,1.3,43,6212,1,96.0,97.0"
        );
        assert_eq!(parse(&text).unwrap().get("default", "FGD"), Some((95.5, 96.5)));
        let error = format!("{:#}", parse(&format!("{header}\nx,y,1.3,1,1,1,z,1")).unwrap_err());
        assert!(error.contains("line 2: \"z\" is no number"), "{error}");
    }
}
