//! The rules themselves, listed and explained.
//!
//! Owns how rules are shown. Must not know findings.

use std::fmt::Write as _;

use crate::{RULES, Rule};
use serde_json::{Value, json};

use super::text::{Paint, wrapped};

/// How the page of rules starts. The settings in it are the defaults.
const HEAD: &str = "\
# Rules of the scheduling contract

`berth lint` checks them on files. This page is what `berth lint --rules -o markdown` prints; a test keeps it
so.

An object is spared from a rule by an annotation, with the reason:

```yaml
metadata:
  annotations:
    berth.dev/lint-ignore: \"BERTH-304: a demo, nobody waits for it\"
```

What is usual in a cluster is said in a file of settings (`--config`). Without one it is as if this were
written:

```yaml
teamLabels: [berth.dev/team, team]
costCenterLabels: [berth.dev/cost-center, cost-center]
gpuTaints: [nvidia.com/gpu, amd.com/gpu]
gpuResources: [nvidia.com/gpu, nvidia.com/gpu.shared, nvidia.com/mig-*, amd.com/gpu]
schedulers: [berth, default-scheduler, hami-scheduler, kai-scheduler, koord-scheduler, volcano, yunikorn]
modelLoadSeconds: 60
severity: {}   # such as BERTH-303: warning
disabled: []   # such as BERTH-503
```
";

/// All rules, in one form or another.
#[derive(Clone, Copy, Debug)]
pub struct Catalogue;

impl Catalogue {
    /// A line for each rule.
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

    /// Everything, for scripts.
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

    /// A page for readers.
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
                "\n### {code} {name} ({severity})\n\n{summary}\n\n*Why:* {why}\n\n*What to do:* {remedy}\n"
            );
            if let Some(fix) = rule.safe_fix {
                let _ = write!(text, "\n*Mended by `--fix`:* {fix}\n");
            }
        }
        text
    }
}

/// Everything about one rule.
pub fn explain(rule: &Rule, paint: Paint) -> String {
    let heading = paint.heading(&format!("{} {} ({})", rule.code, rule.name, rule.severity));
    let mut text = format!("{heading}\n\n{}\n", wrapped(rule.summary, 0));
    let mut part = |name: &str, body: &str| {
        let _ = write!(text, "\n{} {}\n", paint.heading(name), wrapped(body, name.len() + 1));
    };
    part("Why:       ", rule.why);
    part("What to do:", rule.remedy);
    part("--fix:     ", rule.safe_fix.unwrap_or("Changes nothing: somebody must decide."));
    text
}
