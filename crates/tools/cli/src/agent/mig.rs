//! The subcommand `berth agent mig`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use berth_agent::mig::journal::PLACE;
use berth_agent::mig::{FileJournal, LayoutRequest, MigReport, NvmlDriver, Reach, Workloads};
use berth_agent::{GpuReading, GpuSource};
use berth_host::Root;
use clap::Args;

use super::Shown;
use crate::output::{self, FOUND, Format};

/// Repartition this machine's GPUs into slices (MIG), all of them or none
///
/// GPUs that run a process or that the kubelet has given to a pod are not changed. If a step fails, the
/// previous layout is restored. If NVIDIA's mig-manager runs on the node, set its label instead, because the
/// two would undo each other's changes. Needs root. Exit codes: 0, 1 if the GPUs do not have the layout, 2 if
/// the layout is impossible.
#[derive(Args)]
pub(super) struct Mig {
    /// Slices such as 7x1g.18gb or 4g.71gb@0,3g.71gb; by GPU as in `0=off; 1-7=all-balanced`; or a file
    /// with configurations of mig-parted
    #[arg(long, value_name = "LAYOUT|FILE")]
    layout: String,

    /// Configuration to use, if the file has several
    #[arg(long, value_name = "NAME")]
    config: Option<String>,

    /// Repartition only these GPUs: 0, 0-3 or a UUID
    #[arg(long, value_name = "GPU")]
    gpu: Option<String>,

    /// Show what would change, without changing it
    #[arg(long)]
    dry_run: bool,

    /// Also repartition GPUs in use, and keep the slices that are in use
    #[arg(long)]
    around_work: bool,

    /// Journal of the change in progress, for recovery after a crash
    #[arg(long, value_name = "FILE", default_value_os_t = Path::new("/").join(PLACE))]
    journal: PathBuf,

    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Shown,
}

impl Mig {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let request = self.request()?;
        let mut driver = NvmlDriver::open().map_err(|diagnosis| anyhow!("{diagnosis}"))?;
        let workloads = Workloads::on_machine(&Root::new("/"), &GpuReading::read(&GpuSource::Nvml));
        let reach = if self.around_work { Reach::AroundWork } else { Reach::IdleGpus };
        let mut journal = FileJournal::new(&self.journal);
        let report = if self.dry_run {
            MigReport::plan_only(&mut driver, &request, &workloads, reach)?
        } else {
            MigReport::apply(&mut driver, &mut journal, &request, &workloads, reach)?
        };
        let text = match self.output {
            Shown::Table => report.table(),
            Shown::Json => output::data(&report, Format::Json)?,
            Shown::Yaml => output::data(&report, Format::Yaml)?,
        };
        output::print(&text)?;
        Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
    }

    /// A layout that is also the name of a file is read as the file.
    fn request(&self) -> anyhow::Result<LayoutRequest> {
        let path = Path::new(&self.layout);
        let request = if path.is_file() {
            LayoutRequest::from_file(&berth_manifest::read_file(path)?, self.config.as_deref())?
        } else if self.config.is_some() {
            bail!("--config requires --layout to be a file; {} is not one", self.layout);
        } else {
            LayoutRequest::parse(&self.layout)?
        };
        Ok(match &self.gpu {
            Some(gpu) => request.only(gpu)?,
            None => request,
        })
    }
}
