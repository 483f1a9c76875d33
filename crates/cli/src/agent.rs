//! The subcommand `berth agent`.
//!
//! Owns its arguments and exit codes. Must not know what is on a node.

mod mig;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use berth_agent::{GpuReading, GpuSource, NodeReport};
use berth_hardware::Root;
use clap::{Args, Subcommand, ValueEnum};

use crate::output::{self, Format};

/// Show what is really on this machine, and whether each pod with a GPU is really aligned.
///
/// Needs no Kubernetes. What cannot be read is said, with what to do about it, and the rest is shown. To
/// see all, run it as root: pods' memory and others' GPU processes are not for everybody. Exit codes: 0, or
/// 2 if the arguments or a directory cannot be used.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Agent {
    #[command(subcommand)]
    command: Option<Command>,

    /// Look once, and print what was found.
    #[arg(long)]
    once: bool,

    /// How it is shown.
    #[arg(short, long, value_enum, default_value_t)]
    output: Shown,

    #[command(flatten)]
    from: From,
}

#[derive(Subcommand)]
enum Command {
    Record(Record),
    Mig(mig::Mig),
}

/// Record this machine into a directory, with nothing private in it; `--root` reads it again.
#[derive(Args)]
struct Record {
    /// Where to: a directory that is empty or not there yet.
    #[arg(value_name = "DIR")]
    to: PathBuf,

    #[command(flatten)]
    from: From,
}

/// Which machine.
#[derive(Args)]
struct From {
    /// Read this directory as if it were the machine's `/`: a recording, or a mounted root.
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

/// How a node is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Shown {
    /// For people.
    #[default]
    Table,
    /// As JSON.
    Json,
    /// As YAML.
    Yaml,
}

/// What the help shows.
pub(crate) const EXAMPLES: &[(&str, &str)] = &[
    ("What is on this machine, and how its pods lie", "agent --once"),
    ("The same for programs", "agent --once -o json"),
    ("Record a machine, to look at it elsewhere", "agent record node-a/"),
    ("Look at a recording", "agent --once --root node-a/"),
    (
        "Say what dividing a GPU would change",
        "agent mig --layout 4g.71gb,3g.71gb --gpu 0 --dry-run",
    ),
    ("Divide all GPUs into as many small slices as fit", "agent mig --layout all-1g.18gb"),
];

impl Agent {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Some(Command::Record(record)) => return record.run(),
            Some(Command::Mig(mig)) => return mig.run(),
            None => {}
        }
        if !self.once {
            bail!(
                "the agent does not run as a service yet; add --once to look once, or use `{} agent \
                 record DIR`",
                output::program()
            );
        }
        let (root, gpus) = self.from.read()?;
        let report = NodeReport::read(&root, gpus);
        let text = match self.output {
            Shown::Table => berth_agent::table::render(&report),
            Shown::Json => output::data(&report, Format::Json)?,
            Shown::Yaml => output::data(&report, Format::Yaml)?,
        };
        output::say(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Record {
    fn run(self) -> anyhow::Result<ExitCode> {
        let (root, gpus) = self.from.read()?;
        let recording = berth_agent::record::record(&root, &gpus, &self.to)?;
        for diagnosis in gpus.diagnoses.iter().chain(&recording.diagnoses) {
            output::complain(&format!("note: {diagnosis}\n"));
        }
        output::say(&format!(
            "{} entries, {} KiB in {}\n",
            recording.entries,
            recording.bytes.div_ceil(1024),
            self.to.display()
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl From {
    /// The driver of this machine is asked for this machine only.
    fn read(&self) -> anyhow::Result<(Root, GpuReading)> {
        if !self.root.is_dir() {
            bail!(
                "{}: is no directory; give --root the directory of a recording",
                self.root.display()
            );
        }
        let here = self.root == Path::new("/");
        let source = if here { GpuSource::Nvml } else { GpuSource::Recorded(self.root.clone()) };
        Ok((Root::new(&self.root), GpuReading::read(&source)))
    }
}
