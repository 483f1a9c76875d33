//! The list of rules, and explanations of single ones.

use std::fmt::Write as _;

use crate::{RULES, Rule};
use serde_json::{Value, json};

use super::text::{Paint, wrapped};

/// A test compares the settings with the defaults.
const HEAD: &str = "\
# Rules of the scheduling contract

`berth lint` and the admission webhook check these rules. This page is the output of
`berth lint --rules -o markdown`.

An annotation with a reason exempts an object from rules:

```yaml
metadata:
  annotations:
    berth.dev/lint-ignore: \"BERTH-304: a demo, an outage is acceptable\"
```

`--config` names a settings file. The defaults are:

```yaml
teamLabels: [berth.dev/team, team]
costCenterLabels: [berth.dev/cost-center, cost-center]
gpuTaints: [nvidia.com/gpu, amd.com/gpu]
gpuResources: [nvidia.com/gpu, nvidia.com/gpu.shared, nvidia.com/mig-*, amd.com/gpu]
schedulers: [berth, default-scheduler, hami-scheduler, kai-scheduler, koord-scheduler, volcano, yunikorn]
modelLoadSeconds: 60
severity: {}   # e.g. BERTH-303: warning
disabled: []   # e.g. BERTH-503
```
";

#[derive(Clone, Copy, Debug)]
pub struct Catalogue;

impl Catalogue {
    /// One line per rule.
    pub fn text(self) -> String {
        let width = RULES.iter().map(|rule| rule.name.len()).max().unwrap_or(0);
        let mut text = String::new();
        for rule in RULES {
            let fix = if rule.safe_fix.is_some() { "fix" } else { "" };
            let _ = writeln!(
                text,
                "{}  {:<7}  {fix:<3}  {:<width$}  {}",
                rule.code, rule.severity, rule.name, rule.summary
            );
        }
        text
    }

    pub fn json(self) -> Value {
        let rule = |rule: &&Rule| {
            json!({
                "code": rule.code,
                "name": rule.name,
                "topic": rule.topic,
                "severity": rule.severity,
                "summary": rule.summary,
                "why": rule.why,
                "remedy": rule.remedy,
                "safeFix": rule.safe_fix,
            })
        };
        RULES.iter().map(rule).collect()
    }

    /// `docs/reference/rules.md`.
    pub fn markdown(self) -> String {
        let mut text = String::from(HEAD);
        let mut topic = None;
        for rule in RULES {
            let title = rule.topic.title();
            if topic != Some(title) {
                let _ = write!(text, "\n## {title}\n");
                topic = Some(title);
            }
            let Rule { code, name, severity, summary, why, remedy, .. } = rule;
            let _ = write!(
                text,
                "\n### {code} {name} ({severity})\n\n{summary}\n\n*Why:* {why}\n\n*Remedy:* {remedy}\n"
            );
            if let Some(fix) = rule.safe_fix {
                let _ = write!(text, "\n*`--fix`:* {fix}\n");
            }
        }
        text
    }
}

pub fn explain(rule: &Rule, paint: Paint) -> String {
    let heading = paint.heading(&format!("{} {} ({})", rule.code, rule.name, rule.severity));
    let mut text = format!("{heading}\n\n{}\n", wrapped(rule.summary, 0));
    let mut part = |name: &str, body: &str| {
        let _ = write!(text, "\n{} {}\n", paint.heading(name), wrapped(body, name.len() + 1));
    };
    part("Why:   ", rule.why);
    part("Remedy:", rule.remedy);
    part("--fix: ", rule.safe_fix.unwrap_or("No automatic fix."));
    text
}
