//! The subcommand `berth plan`.

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
use crate::source::{ClusterArgs, Snapshot};

/// Show where workloads would go in a cluster, what would not fit and why, and what it would cost
///
/// Pods that are already pending in the cluster are placed, too. Exit codes: 0 if every pod of the
/// manifests has a place, 1 if one has none or a change displaces a pod of the cluster, 2 if the input is
/// invalid.
#[derive(Args)]
pub(crate) struct Plan {
    /// Manifests of the workloads: files or directories; - is standard input
    #[arg(short, long, value_name = "FILE|DIR|-", required_unless_present = "what_if")]
    filename: Vec<PathBuf>,

    /// Namespace for manifests without one (default: current context; dumps: default)
    #[arg(short, long)]
    namespace: Option<String>,

    /// Change the cluster before planning and show the difference: add=NODE_OR_POOL:COUNT,
    /// remove=NODE, drain=NODE, cordon=NODE, lose-zone=ZONE, repartition=NODE/GPU:LAYOUT,
    /// quota=NAMESPACE/NAME:RESOURCE=AMOUNT; repeat for more
    #[arg(long, value_name = "CHANGE")]
    what_if: Vec<String>,

    /// Scheduling profile
    #[arg(long, value_enum, default_value_t)]
    profile: ProfileName,

    /// Prices in dollars: a YAML file with gpuHour, nodeHour, cpuHour and memoryGibHour
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,

    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,

    /// When to use colours
    #[arg(long, value_enum, default_value_t)]
    color: Colour,

    #[command(flatten)]
    source: ClusterArgs,
}

pub(crate) const EXAMPLES: &[(&str, &str)] = &[
    ("Show where workloads would go in the current cluster", "plan -f manifests/"),
    ("Show what losing a zone would change", "plan -f manifests/ --what-if lose-zone=eu-1b"),
    ("Read a dump instead of a live cluster", "plan -f manifests/ --cluster dump/ -o json"),
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
        let plan = match self.plan(&edits) {
            Ok(plan) => plan,
            Err(error) => return self.failed(error),
        };
        let text = match self.output {
            Format::Table => table::render(&plan, self.color.style()),
            Format::Json => output::data(&plan, output::Format::Json)?,
            Format::Yaml => output::data(&plan, output::Format::Yaml)?,
        };
        output::print(&text)?;
        Ok(if plan.is_complete() { ExitCode::SUCCESS } else { ExitCode::from(output::FOUND) })
    }

    fn plan(&self, edits: &[Edit]) -> anyhow::Result<Report> {
        let mut stdin = io::stdin().lock();
        let Snapshot { mut cluster, notes, namespace, .. } = self.source.read(&mut stdin)?;
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
            bail!("-f contains no workload; add a Pod, Deployment, Job or similar");
        }
        let prices = match &self.prices {
            None => Prices::default(),
            Some(path) => {
                let documents = load(std::slice::from_ref(path), &mut stdin, Strictness::Manifest)?;
                let document =
                    documents.first().with_context(|| format!("{} is empty", path.display()))?;
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

    /// Prints an error, with the line if it is about a file.
    fn failed(&self, error: anyhow::Error) -> anyhow::Result<ExitCode> {
        let paint = if self.color.is_on(&io::stderr()) { Paint::Coloured } else { Paint::Plain };
        let error = match error.downcast::<PlanError>() {
            Ok(PlanError::Manifest(problem)) => anyhow::Error::from(problem),
            Ok(other) => return Err(other.into()),
            Err(other) => other,
        };
        let error = match error.downcast::<LoadError>() {
            Ok(error) => error,
            Err(other) => LoadError::Text(other.downcast()?),
        };
        output::print_error(&render_problem(&error, paint));
        Ok(ExitCode::from(output::UNUSABLE))
    }
}
