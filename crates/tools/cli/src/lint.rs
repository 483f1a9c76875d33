//! The subcommand `berth lint`.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use berth_contract::lint::{Catalogue, Input, InputError, Paint, Report};
use berth_contract::{Rule, Settings, Severity};
use clap::{Args, ValueEnum};

use crate::output::{self, Colour};

/// Check manifests against the scheduling contract
///
/// Exit codes: 0 for no findings, 1 for findings of at least the severity of --fail-on, 2 if the input is
/// invalid.
#[derive(Args)]
pub(crate) struct Lint {
    /// Files and directories to check; - is standard input
    #[arg(value_name = "FILE|DIR|-", required_unless_present_any = ["rules", "explain"])]
    paths: Vec<PathBuf>,

    /// Cluster objects to check against, such as nodes, node pools and priority classes from
    /// `kubectl get -o yaml`; they are not checked themselves
    #[arg(long, value_name = "FILE|DIR")]
    cluster: Vec<PathBuf>,

    /// Settings file: names of labels, taints, resources and schedulers, severities of rules
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Do not check this rule; repeat for more
    #[arg(long, value_name = "CODE", value_delimiter = ',')]
    disable: Vec<String>,

    /// Apply safe fixes in place, to all files or none
    #[arg(long)]
    fix: bool,

    /// With --fix: show the changes without applying them
    #[arg(long, visible_alias = "dry-run", requires = "fix")]
    diff: bool,

    /// Output format; markdown is for --rules only
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,

    /// Minimum severity for exit code 1
    #[arg(long, value_enum, default_value_t = Threshold::Warning)]
    fail_on: Threshold,

    /// When to use colours
    #[arg(long, value_enum, default_value_t)]
    color: Colour,

    /// List all rules
    #[arg(long, conflicts_with_all = ["paths", "fix"])]
    rules: bool,

    /// Explain a rule
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
            return self.list_rules();
        }
        if let Some(code) = &self.explain {
            let rule = Rule::find(code).with_context(|| unknown_rule(code))?;
            output::print(&berth_contract::lint::explain(rule, self.paint()))?;
            return Ok(ExitCode::SUCCESS);
        }
        if self.output == Format::Markdown {
            bail!("-o markdown is for --rules only; use text, json or sarif");
        }
        let input = match Input::read(&self.paths, &self.cluster, &mut io::stdin().lock()) {
            Ok(input) => input,
            Err(InputError(problems)) => {
                let colour = self.color.is_on(&io::stderr());
                let paint = if colour { Paint::Coloured } else { Paint::Plain };
                for problem in &problems {
                    output::print_error(&berth_contract::lint::render_problem(problem, paint));
                }
                return Ok(ExitCode::from(output::UNUSABLE));
            }
        };
        let report = berth_contract::lint::lint(&input, &settings);
        if self.fix {
            return self.fix(&report, &input, &settings);
        }
        self.print(&report, &input)
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
            bail!(unknown_rule(code));
        }
        Ok(settings)
    }

    fn list_rules(&self) -> anyhow::Result<ExitCode> {
        let text = match self.output {
            Format::Text => Catalogue.text(),
            Format::Json => format!("{:#}\n", Catalogue.json()),
            Format::Markdown => Catalogue.markdown(),
            Format::Sarif => bail!("-o sarif is for findings only; use text, json or markdown"),
        };
        output::print(&text)?;
        Ok(ExitCode::SUCCESS)
    }

    fn print(&self, report: &Report, input: &Input) -> anyhow::Result<ExitCode> {
        let text = match self.output {
            Format::Text | Format::Markdown => {
                berth_contract::lint::text(report, input, self.paint())
            }
            Format::Json => format!("{:#}\n", berth_contract::lint::json(report)),
            Format::Sarif => {
                format!("{:#}\n", berth_contract::lint::sarif(report, env!("CARGO_PKG_VERSION")))
            }
        };
        output::print(&text)?;
        let fails = self.fail_on.severity().is_some_and(|least| report.reaches(least));
        Ok(if fails { ExitCode::from(output::FOUND) } else { ExitCode::SUCCESS })
    }

    /// Applies safe fixes, and prints the findings that remain.
    fn fix(&self, report: &Report, input: &Input, settings: &Settings) -> anyhow::Result<ExitCode> {
        let changes = berth_contract::lint::plan(report, input)?;
        if self.diff {
            output::print(&berth_contract::lint::diff(&changes))?;
            return Ok(if !changes.is_empty() {
                ExitCode::from(output::FOUND)
            } else {
                ExitCode::SUCCESS
            });
        }
        berth_contract::lint::write(&changes)?;
        for change in &changes {
            output::print_error(&format!("{}: {} fixed\n", change.path.display(), change.fixed));
        }
        let after = Input::read(&self.paths, &self.cluster, &mut io::empty())?;
        self.print(&berth_contract::lint::lint(&after, settings), &after)
    }

    fn paint(&self) -> Paint {
        if self.color.is_on(&io::stdout()) { Paint::Coloured } else { Paint::Plain }
    }
}

fn unknown_rule(code: &str) -> String {
    format!("unknown rule {code:?}; `berth lint --rules` lists all rules")
}
