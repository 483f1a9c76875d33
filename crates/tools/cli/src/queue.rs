//! The subcommand `berth queue`.
//!
//! Owns its arguments and exit codes. Must not know who waits, nor why.

use std::io;
use std::process::ExitCode;

use berth_plan::look::queue::QueueFilter;
use berth_plan::look::table::{self, Form};
use berth_plan::look::{Scene, parse_selector};
use clap::Args;

use crate::output::{self, Colour, Format};
use crate::source::ClusterArgs;

/// List the pods that wait, in the order of their turn, and what keeps them.
///
/// Positions count all pods that wait, whichever are shown. Reads the cluster with your own rights;
/// nothing has to be installed there. Exit codes: 0, or 1 if the cluster cannot be read.
#[derive(Args)]
pub(crate) struct Queue {
    /// Of this namespace; otherwise the context's. Of a dump, all are shown.
    #[arg(short, long)]
    namespace: Option<String>,

    /// Of all namespaces.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,

    /// With such labels: app=web,tier!=test,zone in (a, b),!canary.
    #[arg(short = 'l', long)]
    selector: Option<String>,

    /// Of this team (the label berth.dev/team).
    #[arg(long)]
    team: Option<String>,

    /// How it is shown.
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
    ("Who waits in the whole cluster", "queue -A"),
    ("One team's pods, with schedulers and whole reasons", "queue -A --team research -o wide"),
    ("From a dump instead of a live cluster", "queue --cluster dump/"),
];

impl Queue {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let selector = self.selector.as_deref().map(parse_selector).transpose()?;
        let seen = self.source.read(&mut io::stdin().lock())?;
        let of_one = !self.all_namespaces;
        let namespace = self.namespace.or(seen.namespace).filter(|_| of_one);
        let form = Form {
            wide: self.output == Format::Wide,
            namespaces: namespace.is_none(),
            no_headers: self.no_headers,
        };
        let mut scene = Scene::new(&seen.objects, seen.cluster, seen.now_ms)?;
        let filter = QueueFilter { namespace: namespace.clone(), selector, team: self.team };
        let mut queue = scene.queue(&filter);
        queue.notes.extend(seen.notes);
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
                    count => format!("; {count} wait in all (-A shows all namespaces)"),
                };
                output::complain(&format!("No pods such as these wait{place}{others}.\n"));
                String::new()
            }
            Format::Table | Format::Wide => table::queue(&queue, form, self.color.paint()),
        };
        output::say(&text)?;
        if matches!(self.output, Format::Table | Format::Wide) {
            output::complain(&table::remarks(&queue.notes));
        }
        Ok(ExitCode::SUCCESS)
    }
}
