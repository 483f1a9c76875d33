//! The subcommand `berth nodes`.
//!
//! Owns its arguments and exit codes. Must not know what nodes hold.

use std::io;
use std::process::ExitCode;

use berth_plan::look::Scene;
use berth_plan::look::table::{self, Form};
use clap::Args;

use crate::output::{self, Colour, Format};
use crate::source::ClusterArgs;

/// Show nodes: GPUs used, free by NUMA node and stranded; of one, sockets, GPUs, slices and who is where.
///
/// Who holds which GPU is worked out by the kubelet's own rules from the order in which pods started; what
/// that leaves open is said. Exit codes: 0, or 1 if there is no such node or the cluster cannot be read.
#[derive(Args)]
pub(crate) struct Nodes {
    /// These nodes, each as a picture of its inside.
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// How they are shown; wide: each as a picture of its inside.
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,

    /// Without the line of names above the columns.
    #[arg(long)]
    no_headers: bool,

    /// When output is in colour.
    #[arg(long, value_enum, default_value_t)]
    color: Colour,

    #[command(flatten)]
    source: ClusterArgs,
}

/// What the help shows.
pub(crate) const EXAMPLES: &[(&str, &str)] = &[
    ("Where GPUs are free, by NUMA node", "nodes"),
    ("Who holds what inside of one", "nodes h100-a"),
    ("From a dump instead of a live cluster", "nodes -o wide --cluster dump/"),
];

impl Nodes {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let seen = self.source.read(&mut io::stdin().lock())?;
        let scene = Scene::new(&seen.objects, seen.cluster, seen.now_ms)?;
        let names: Vec<String> = self
            .names
            .iter()
            .map(|name| name.strip_prefix("node/").unwrap_or(name).to_owned())
            .collect();
        let mut nodes = scene.nodes_report(&names).map_err(|missing| {
            let hint = match &missing.near {
                Some(near) => format!("do you mean {near}?"),
                None => format!("list them with `{} nodes`", output::program()),
            };
            anyhow::anyhow!("{missing}; {hint}")
        })?;
        nodes.notes.extend(seen.notes);
        let paint = self.color.paint();
        let text = match self.output {
            Format::Json | Format::Yaml => output::data(&nodes, self.output)?,
            Format::Name => nodes.nodes.iter().map(|one| format!("node/{}\n", one.name)).collect(),
            Format::Table if names.is_empty() => {
                let form = Form { no_headers: self.no_headers, ..Form::default() };
                table::nodes(&nodes, form, paint)
            }
            Format::Table | Format::Wide => table::pictures(&nodes, paint),
        };
        output::say(&text)?;
        if matches!(self.output, Format::Table | Format::Wide) {
            output::complain(&table::remarks(&nodes.notes));
        }
        Ok(ExitCode::SUCCESS)
    }
}
