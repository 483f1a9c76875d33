//! The subcommand `berth nodes`.

use std::io;
use std::process::ExitCode;

use berth_inspect::table::{self, Form};
use berth_plan::Snapshot;
use clap::Args;

use crate::output::{self, Colour, Format};
use crate::source::ClusterArgs;

/// List nodes with their used, free and stranded GPUs, or show the topology of single nodes
///
/// Which pod holds which GPU and CPU comes from the pod's placement annotation; where there is none, it is
/// inferred with the kubelet's rules from the order in which pods started, and marked. Exit codes: 0, or 1
/// if a node does not exist or the cluster cannot be read.
#[derive(Args)]
pub(crate) struct Nodes {
    /// Nodes to show in detail: sockets, GPUs, slices and the pods on them
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Output format; wide shows each node in detail
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,

    /// Omit the header row
    #[arg(long)]
    no_headers: bool,

    /// When to use colours
    #[arg(long, value_enum, default_value_t)]
    color: Colour,

    #[command(flatten)]
    source: ClusterArgs,
}

pub(crate) const EXAMPLES: &[(&str, &str)] = &[
    ("List all nodes, with free GPUs by NUMA node", "nodes"),
    ("Show which pod holds which GPU and CPUs of a node", "nodes h100-a"),
    ("Read a dump instead of a live cluster", "nodes -o wide --cluster dump/"),
];

impl Nodes {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let snapshot = self.source.read(&mut io::stdin().lock())?;
        let mut cluster = Snapshot::new(snapshot.objects, snapshot.cluster, snapshot.now_ms)?;
        let names: Vec<String> = self
            .names
            .iter()
            .map(|name| name.strip_prefix("node/").unwrap_or(name).to_owned())
            .collect();
        let mut nodes = cluster.inspect().nodes(&names).map_err(|missing| {
            let hint = match &missing.near {
                Some(near) => format!("did you mean {near:?}?"),
                None => format!("list them with `{} nodes`", output::program()),
            };
            anyhow::anyhow!("{missing}; {hint}")
        })?;
        nodes.notes.extend(snapshot.notes);
        let style = self.color.style();
        let text = match self.output {
            Format::Json | Format::Yaml => output::data(&nodes, self.output)?,
            Format::Name => nodes.nodes.iter().map(|one| format!("node/{}\n", one.name)).collect(),
            Format::Table if names.is_empty() => {
                let form = Form { no_headers: self.no_headers, style, ..Form::PLAIN };
                table::nodes(&nodes, form)
            }
            Format::Table | Format::Wide => table::pictures(&nodes, style),
        };
        output::print(&text)?;
        if matches!(self.output, Format::Table | Format::Wide) {
            output::print_error(&table::remarks(&nodes.notes, style));
        }
        Ok(ExitCode::SUCCESS)
    }
}
