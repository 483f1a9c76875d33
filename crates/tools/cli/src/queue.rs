//! The subcommand `berth queue`.

use std::io;
use std::process::ExitCode;

use berth_inspect::parse_selector;
use berth_inspect::queue::QueueFilter;
use berth_inspect::table::{self, Form};
use berth_plan::Snapshot;
use clap::Args;

use crate::output::{self, Colour, Format};
use crate::source::ClusterArgs;

/// List pending pods in scheduling order, with reasons
///
/// Positions count all pending pods, also those that are filtered out. Reads the cluster with your own
/// rights; Berth need not be installed. Exit codes: 0, or 1 if the cluster cannot be read.
#[derive(Args)]
pub(crate) struct Queue {
    /// Namespace (default: current context; dumps: all)
    #[arg(short, long)]
    namespace: Option<String>,

    /// List pods of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,

    /// Label selector, such as app=web,tier!=test or zone in (a, b),!canary
    #[arg(short = 'l', long)]
    selector: Option<String>,

    /// Only pods of this team
    #[arg(long)]
    team: Option<String>,

    /// Output format
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
    ("List pending pods of all namespaces", "queue -A"),
    (
        "List a team's pods, with schedulers and untruncated reasons",
        "queue -A --team research -o wide",
    ),
    ("Read a dump instead of a live cluster", "queue --cluster dump/"),
];

impl Queue {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let selector = self.selector.as_deref().map(parse_selector).transpose()?;
        let snapshot = self.source.read(&mut io::stdin().lock())?;
        let context = self.namespace.or(snapshot.namespace);
        let namespace = if self.all_namespaces { None } else { context };
        let form = Form {
            wide: self.output == Format::Wide,
            namespaces: namespace.is_none(),
            no_headers: self.no_headers,
            style: self.color.style(),
        };
        let mut cluster = Snapshot::new(snapshot.objects, snapshot.cluster, snapshot.now_ms)?;
        let filter = QueueFilter { namespace: namespace.clone(), selector, team: self.team };
        let mut queue = cluster.inspect().queue(&filter);
        queue.notes.extend(snapshot.notes);
        let text = match self.output {
            Format::Json | Format::Yaml => output::data(&queue, self.output)?,
            Format::Name => {
                queue.pods.iter().map(|one| format!("pod/{}\n", one.pod.name)).collect()
            }
            Format::Table | Format::Wide if queue.pods.is_empty() => {
                let place = match &namespace {
                    Some(namespace) => format!(" in namespace {namespace}"),
                    None => String::new(),
                };
                let others = match queue.waiting {
                    0 => String::new(),
                    count => format!("; {count} in the cluster (-A lists all namespaces)"),
                };
                output::print_error(&format!("No matching pending pods{place}{others}.\n"));
                String::new()
            }
            Format::Table | Format::Wide => table::queue(&queue, form),
        };
        output::print(&text)?;
        if matches!(self.output, Format::Table | Format::Wide) {
            output::print_error(&table::remarks(&queue.notes, form.style));
        }
        Ok(ExitCode::SUCCESS)
    }
}
