//! The subcommand `berth agent mig`.
//!
//! Owns its arguments and exit codes. Must not know how GPUs are divided.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use berth_agent::mig::journal::PLACE;
use berth_agent::mig::{Busy, FileJournal, MigReport, NvmlDriver, Reach, Wish};
use berth_agent::{GpuReading, GpuSource};
use berth_host::Root;
use clap::Args;

use super::Shown;
use crate::output::{self, FOUND, Format};

/// Divide the GPUs of this machine into slices (MIG), all as wanted or none.
///
/// GPUs that a process runs on, or that the kubelet has given to a pod, are not touched. Whatever fails on
/// the way, what was there is made again. Where NVIDIA's mig-manager runs, set its label instead: two who
/// divide the same GPUs undo each other's work. Needs root. Exit codes: 0; 1 if GPUs are not as wanted; 2 if
/// that cannot be had.
#[derive(Args)]
pub(super) struct Mig {
    /// What is wanted: slices such as `7x1g.18gb` or `4g.71gb@0,3g.71gb`, for some GPUs as
    /// `0=off; 1-7=all-balanced`; or a file with mig-parted's configurations.
    #[arg(long, value_name = "SLICES|FILE")]
    layout: String,

    /// Which configuration of the file, if it has several.
    #[arg(long, value_name = "NAME")]
    config: Option<String>,

    /// Only for this GPU, or these: `0`, `0-3` or a UUID.
    #[arg(long, value_name = "GPU")]
    gpu: Option<String>,

    /// Say what would be done, and do nothing.
    #[arg(long)]
    dry_run: bool,

    /// Also divide GPUs with work, around the slices that have it.
    #[arg(long)]
    around_work: bool,

    /// Where to keep what is being done, for the case of a crash.
    #[arg(long, value_name = "FILE", default_value_os_t = Path::new("/").join(PLACE))]
    journal: PathBuf,

    /// How it is shown.
    #[arg(short, long, value_enum, default_value_t)]
    output: Shown,
}

impl Mig {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let wish = self.wish()?;
        let mut driver = NvmlDriver::open().map_err(|diagnosis| anyhow!("{diagnosis}"))?;
        let busy = Busy::on_machine(&Root::new("/"), &GpuReading::read(&GpuSource::Nvml));
        let reach = if self.around_work { Reach::AroundWork } else { Reach::IdleGpus };
        let mut journal = FileJournal::new(&self.journal);
        let report = if self.dry_run {
            MigReport::plan_only(&mut driver, &wish, &busy, reach)?
        } else {
            MigReport::make(&mut driver, &mut journal, &wish, &busy, reach)?
        };
        let text = match self.output {
            Shown::Table => report.table(),
            Shown::Json => output::data(&report, Format::Json)?,
            Shown::Yaml => output::data(&report, Format::Yaml)?,
        };
        output::say(&text)?;
        Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
    }

    /// What names a file is one, whatever else it could mean.
    fn wish(&self) -> anyhow::Result<Wish> {
        let path = Path::new(&self.layout);
        let wish = if path.is_file() {
            Wish::from_file(&berth_manifest::read_file(path)?, self.config.as_deref())?
        } else if self.config.is_some() {
            bail!("{}: is no file; --config chooses among a file's configurations", self.layout);
        } else {
            Wish::parse(&self.layout)?
        };
        Ok(match &self.gpu {
            Some(gpu) => wish.only(gpu)?,
            None => wish,
        })
    }
}
