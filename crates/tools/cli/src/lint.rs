//! The subcommand `berth lint`.
//!
//! Owns its arguments and exit codes. Must not know rules, nor how files are read and changed.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use berth_contract::lint::{Catalogue, Input, InputError, Paint, Report};
use berth_contract::{Rule, Settings, Severity};
use clap::{Args, ValueEnum};

use crate::output::{self, Colour};

/// Check manifests against the scheduling contract.
///
/// Exit codes: 0 if nothing was found, 1 if something as grave as --fail-on was, 2 if the input cannot
/// be used.
#[derive(Args)]
pub(crate) struct Lint {
    /// Files and directories to check; `-` is standard input.
    #[arg(value_name = "FILE|DIR|-", required_unless_present_any = ["rules", "explain"])]
    paths: Vec<PathBuf>,

    /// Nodes, node pools, priority classes and the like to check against, such as from `kubectl get
    /// -o yaml`; they are not checked themselves.
    #[arg(long, value_name = "FILE|DIR")]
    cluster: Vec<PathBuf>,

    /// Settings: names of labels, taints, resources and schedulers, and how much each rule weighs.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Do not check this rule.
    #[arg(long, value_name = "CODE", value_delimiter = ',')]
    disable: Vec<String>,

    /// Mend in place what can be mended without risk: all files, or none.
    #[arg(long)]
    fix: bool,

    /// With --fix: show what would change, and change nothing.
    #[arg(long, visible_alias = "dry-run", requires = "fix")]
    diff: bool,

    /// How findings are shown; markdown is for --rules.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,

    /// The least that makes the exit code 1.
    #[arg(long, value_enum, default_value_t = Threshold::Warning)]
    fail_on: Threshold,

    /// When output is in colour.
    #[arg(long, value_enum, default_value_t)]
    color: Colour,

    /// List all rules.
    #[arg(long, conflicts_with_all = ["paths", "fix"])]
    rules: bool,

    /// Say everything about one rule.
    #[arg(long, value_name = "CODE", conflicts_with_all = ["paths", "fix", "rules"])]
    explain: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    #[default]
    Text,
    Json,
    Sarif,
    Markdown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Threshold {
    Info,
    Warning,
    Error,
    Never,
}

impl Threshold {
    fn severity(self) -> Option<Severity> {
        match self {
            Self::Info => Some(Severity::Info),
            Self::Warning => Some(Severity::Warning),
            Self::Error => Some(Severity::Error),
            Self::Never => None,
        }
    }
}

impl Lint {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let settings = self.settings()?;
        if self.rules {
            return self.list();
        }
        if let Some(code) = &self.explain {
            let rule = Rule::find(code).with_context(|| no_rule(code))?;
            output::say(&berth_contract::lint::explain(rule, self.paint()))?;
            return Ok(ExitCode::SUCCESS);
        }
        if self.output == Format::Markdown {
            bail!("findings are shown as text, json or sarif; markdown is for --rules");
        }
        let input = match Input::read(&self.paths, &self.cluster, &mut io::stdin().lock()) {
            Ok(input) => input,
            Err(InputError(problems)) => {
                let colour = self.color.is_on(&io::stderr());
                let paint = if colour { Paint::Coloured } else { Paint::Plain };
                for problem in &problems {
                    output::complain(&berth_contract::lint::render_problem(problem, paint));
                }
                return Ok(ExitCode::from(output::UNUSABLE));
            }
        };
        let report = berth_contract::lint::lint(&input, &settings);
        if self.fix {
            return self.mend(&report, &input, &settings);
        }
        self.show(&report, &input)
    }

    fn settings(&self) -> anyhow::Result<Settings> {
        let mut settings = match &self.config {
            Some(path) => {
                let source = berth_manifest::read_file(path)?;
                berth_contract::lint::settings(&source)?
            }
            None => Settings::default(),
        };
        settings.disabled.extend(self.disable.iter().cloned());
        if let Some(code) = settings.unknown_codes().first() {
            bail!(no_rule(code));
        }
        Ok(settings)
    }

    fn list(&self) -> anyhow::Result<ExitCode> {
        let text = match self.output {
            Format::Text => Catalogue.text(),
            Format::Json => format!("{:#}\n", Catalogue.json()),
            Format::Markdown => Catalogue.markdown(),
            Format::Sarif => bail!("rules are listed as text, json or markdown"),
        };
        output::say(&text)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Shows findings, and says by the exit code whether some are grave.
    fn show(&self, report: &Report, input: &Input) -> anyhow::Result<ExitCode> {
        let text = match self.output {
            Format::Text | Format::Markdown => {
                berth_contract::lint::text(report, input, self.paint())
            }
            Format::Json => format!("{:#}\n", berth_contract::lint::json(report)),
            Format::Sarif => {
                format!("{:#}\n", berth_contract::lint::sarif(report, env!("CARGO_PKG_VERSION")))
            }
        };
        output::say(&text)?;
        let grave = self.fail_on.severity().is_some_and(|least| report.reaches(least));
        Ok(if grave { ExitCode::from(output::FOUND) } else { ExitCode::SUCCESS })
    }

    /// Mends what can be mended, and shows what is left.
    fn mend(
        &self,
        report: &Report,
        input: &Input,
        settings: &Settings,
    ) -> anyhow::Result<ExitCode> {
        let changes = berth_contract::lint::plan(report, input)?;
        if self.diff {
            output::say(&berth_contract::lint::diff(&changes))?;
            let left = !changes.is_empty();
            return Ok(if left { ExitCode::from(output::FOUND) } else { ExitCode::SUCCESS });
        }
        berth_contract::lint::write(&changes)?;
        for change in &changes {
            output::complain(&format!("{}: {} mended\n", change.path.display(), change.fixed));
        }
        let after = Input::read(&self.paths, &self.cluster, &mut io::empty())?;
        self.show(&berth_contract::lint::lint(&after, settings), &after)
    }

    fn paint(&self) -> Paint {
        if self.color.is_on(&io::stdout()) { Paint::Coloured } else { Paint::Plain }
    }
}

fn no_rule(code: &str) -> String {
    format!("there is no rule {code:?}; `berth lint --rules` lists them")
}
