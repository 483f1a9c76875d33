//! The subcommand `berth plan`.
//!
//! Owns its arguments and exit codes. Must not know how plans are made.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use berth_contract::lint::{Paint, render_problem};
use berth_engine::Profile;
use berth_manifest::{Document, LoadError, Strictness, is_cluster_wide, load};
use berth_plan::report::Plan as Report;
use berth_plan::{Edit, PlanError, Question, table};
use berth_scenario::cluster::{Objects, Prices};
use berth_scenario::workloads::pods_of;
use clap::{Args, ValueEnum};

use crate::output::{self, Colour};
use crate::source::{ClusterArgs, Seen};

/// Show where work would go in a cluster, what would not fit and why, and what it would cost.
///
/// Pods that wait in the cluster already are placed too. Exit codes: 0 if every pod of the manifests
/// has a place, 1 if one has none or a pod of the cluster has lost its own by a change, 2 if the input
/// cannot be used.
#[derive(Args)]
pub(crate) struct Plan {
    /// Manifests of what is to come: files and directories; `-` is standard input.
    #[arg(short, long, value_name = "FILE|DIR|-", required_unless_present = "what_if")]
    filename: Vec<PathBuf>,

    /// The namespace of manifests that name none; otherwise the context's, or `default`.
    #[arg(short, long)]
    namespace: Option<String>,

    /// Change the cluster before planning, and show what is different: add=NODE_OR_POOL:COUNT,
    /// remove=NODE, drain=NODE, cordon=NODE, lose-zone=ZONE, repartition=NODE/GPU:LAYOUT,
    /// quota=NAMESPACE/NAME:RESOURCE=AMOUNT. Can be given several times.
    #[arg(long, value_name = "CHANGE")]
    what_if: Vec<String>,

    /// Whose rules are followed.
    #[arg(long, value_enum, default_value_t)]
    profile: ProfileName,

    /// Prices: a file with gpuHour, nodeHour, cpuHour, memoryGibHour in dollars.
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,

    /// How the plan is shown.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,

    /// When output is in colour.
    #[arg(long, value_enum, default_value_t)]
    color: Colour,

    #[command(flatten)]
    source: ClusterArgs,
}

/// What the help shows.
pub(crate) const EXAMPLES: &[(&str, &str)] = &[
    ("Where would this go in the current cluster?", "plan -f manifests/"),
    ("What if a zone were lost?", "plan -f manifests/ --context prod --what-if lose-zone=eu-1b"),
    ("From a dump instead of a live cluster", "plan -f manifests/ --cluster dump/ -o json"),
];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    #[default]
    Table,
    Json,
    Yaml,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum ProfileName {
    #[default]
    Berth,
    KubeScheduler,
    KubeSchedulerPacking,
}

impl From<ProfileName> for Profile {
    fn from(name: ProfileName) -> Self {
        match name {
            ProfileName::Berth => Self::Berth,
            ProfileName::KubeScheduler => Self::KubeScheduler,
            ProfileName::KubeSchedulerPacking => Self::KubeSchedulerPacking,
        }
    }
}

impl Plan {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let edits = self.what_if.iter().map(|text| text.parse());
        let edits = edits.collect::<Result<Vec<Edit>, _>>()?;
        let plan = match self.make(&edits) {
            Ok(plan) => plan,
            Err(error) => return self.refuse(error),
        };
        let text = match self.output {
            Format::Table => table::render(&plan, self.color.paint()),
            Format::Json => {
                format!("{}\n", serde_json::to_string_pretty(&plan).context("cannot be shown")?)
            }
            Format::Yaml => {
                berth_manifest::to_yaml(&serde_json::to_value(&plan).context("cannot be shown")?)
            }
        };
        output::say(&text)?;
        Ok(if plan.is_complete() { ExitCode::SUCCESS } else { ExitCode::from(output::FOUND) })
    }

    fn make(&self, edits: &[Edit]) -> anyhow::Result<Report> {
        let mut stdin = io::stdin().lock();
        let Seen { mut cluster, notes, namespace, .. } = self.source.read(&mut stdin)?;
        let mut manifests = load(&self.filename, &mut stdin, Strictness::Manifest)?;
        if let Some(namespace) = self.namespace.as_ref().or(namespace.as_ref()) {
            let placed = |one: Document| {
                if is_cluster_wide(one.kind()) { one } else { one.in_namespace(namespace) }
            };
            manifests = manifests.into_iter().map(placed).collect();
        }
        let manifests = Objects::new(manifests)?;
        cluster.add(&manifests, false)?;
        let workloads = pods_of(&manifests, &cluster)?;
        if workloads.is_empty() && !self.filename.is_empty() {
            bail!("-f names nothing that makes pods; name a Deployment, a Job or the like");
        }
        let prices = match &self.prices {
            None => Prices::default(),
            Some(path) => {
                let documents = load(std::slice::from_ref(path), &mut stdin, Strictness::Manifest)?;
                let document = documents.first().context("the file of prices is empty")?;
                Prices::read(document)?
            }
        };
        let mut plan = berth_plan::plan(&Question {
            cluster: &cluster,
            workloads: &workloads,
            what_if: edits,
            profile: self.profile.into(),
            prices: &prices,
        })?;
        plan.notes.extend(notes);
        Ok(plan)
    }

    /// Problems of a text are shown with their line.
    fn refuse(&self, error: anyhow::Error) -> anyhow::Result<ExitCode> {
        let paint = if self.color.is_on(&io::stderr()) { Paint::Coloured } else { Paint::Plain };
        let error = match error.downcast::<PlanError>() {
            Ok(PlanError::Text(problem)) => anyhow::Error::from(problem),
            Ok(other) => return Err(other.into()),
            Err(other) => other,
        };
        let error = match error.downcast::<LoadError>() {
            Ok(error) => error,
            Err(other) => LoadError::Text(other.downcast()?),
        };
        output::complain(&render_problem(&error, paint));
        Ok(ExitCode::from(output::UNUSABLE))
    }
}
