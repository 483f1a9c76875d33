//! ParvaGPU's scenarios (SC'24): the fewest A100s for eleven models under six loads.
//!
//! The directory holds the files of the authors' repository (MunQ-Lee/ParvaGPU_SC24): measurements per
//! model (`bert.csv`, …), rates and latency objectives per scenario (`SLO_req_rate.csv`,
//! `SLO_latency.csv`, one line per scenario, one column per model in alphabetical order) and the
//! authors' deployments (`SLO1_ParvaGPU_deploy.csv`, …).
//!
//! The constraint is theirs: a batch must take less than 0.45 of the objective, which their program
//! reads as whole milliseconds; the other half is for gathering the batch, and a tenth is spared. All
//! measured points are allowed, of up to five processes, as their deployments use them.
//!
//! Ours and theirs are held against the same check, which shares nothing with the planner.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use berth_capacity::serving::{Point, Service, plan};
use berth_model::mig::{Attribute, Board, Layout, Profile};

const SCENARIOS: usize = 6;

/// Nodes of the search, per scenario.
const NODES_MAX: usize = 4_000;

/// One segment, whoever planned it.
struct Segment {
    service: usize,
    point: Point,
    start: Option<u8>,
}

/// What a deployment comes to.
struct Report {
    gpus: usize,
    slices: u32,
    /// Of the throughput deployed, weighted by compute slices: what no request needs, in per cent.
    slack: f64,
    /// Of the compute slices of all GPUs: those in no segment, in per cent.
    free: f64,
}

pub(super) fn run(dir: &Path) -> Result<bool> {
    let board = Board::by_id("a100-80gb").context("the A100 is in the table")?;
    let models = models(dir)?;
    println!("\nParvaGPU's scenarios on {}; batch latency < 0.45 of the objective", board.id());
    println!(
        "{:<4} {:>5} {:>6} {:>7} | {:>7} {:>8} {:>7} | {:>7} {:>8} {:>7} | {:>6}",
        "",
        "berth",
        "theirs",
        "at least",
        "slices",
        "slack %",
        "free %",
        "theirs",
        "slack %",
        "free %",
        "ms"
    );
    let mut no_more = true;
    for scenario in 0..SCENARIOS {
        let services = services(dir, board, &models, scenario)?;
        let start = Instant::now();
        let deployment = plan(board, &services, NODES_MAX)?;
        let ms = start.elapsed().as_millis();
        let ours: Vec<Vec<Segment>> = deployment
            .gpus
            .iter()
            .map(|gpu| {
                let segment = |s: &berth_capacity::serving::Segment| Segment {
                    service: s.service,
                    point: s.point,
                    start: Some(s.instance.start),
                };
                gpu.iter().map(segment).collect()
            })
            .collect();
        let ours = check(board, &services, &ours)
            .with_context(|| format!("our deployment of S{} is wrong", scenario + 1))?;
        let theirs = deployed(dir, &services, scenario)?;
        let theirs = check(board, &services, &theirs)
            .with_context(|| format!("their deployment of S{}", scenario + 1))?;
        no_more &= ours.gpus <= theirs.gpus;
        println!(
            "S{:<3} {:>5} {:>6} {:>8} | {:>7} {:>8.1} {:>7.1} | {:>7} {:>8.1} {:>7.1} | {ms:>6}",
            scenario + 1,
            ours.gpus,
            theirs.gpus,
            deployment.gpus_min,
            ours.slices,
            ours.slack,
            ours.free,
            theirs.slices,
            theirs.slack,
            theirs.free,
        );
    }
    Ok(no_more)
}

/// The lines of a file, each split at commas.
fn table(path: &Path) -> Result<Vec<Vec<String>>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let split = |line: &str| line.split(',').map(|cell| cell.trim().to_owned()).collect();
    Ok(text.lines().filter(|line| !line.trim().is_empty()).map(split).collect())
}

/// The models, in alphabetical order.
fn models(dir: &Path) -> Result<Vec<String>> {
    let mut models = Vec::new();
    let entries = fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if let Some(model) = name.strip_suffix(".csv").filter(|m| !m.starts_with("SLO")) {
            models.push(model.to_owned());
        }
    }
    ensure!(!models.is_empty(), "{} holds no measurements", dir.display());
    models.sort();
    Ok(models)
}

/// The profile with so many compute slices and no more memory than that takes.
fn by_slices(board: &'static Board, slices: u8) -> Result<&'static Profile> {
    let plain = board.profiles().iter().filter(|p| p.attribute() == Attribute::Plain);
    plain
        .filter(|p| p.compute_slices() == slices)
        .min_by_key(|p| p.memory_units())
        .with_context(|| format!("board {} has no profile of {slices} slices", board.id()))
}

fn number<T: std::str::FromStr>(row: &[String], column: usize, path: &Path) -> Result<T> {
    let cell = row.get(column).map_or("", String::as_str);
    match cell.parse() {
        Ok(value) => Ok(value),
        Err(_) => bail!("{}: {cell:?} in column {column} is no number", path.display()),
    }
}

fn points(dir: &Path, board: &'static Board, model: &str) -> Result<Vec<Point>> {
    let path = dir.join(format!("{model}.csv"));
    let mut points = Vec::new();
    for row in table(&path)?.iter().skip(1) {
        let processes: u32 = number(row, 2, &path)?;
        let per_process: f64 = number(row, 3, &path)?;
        let latency_s: f64 = number(row, 4, &path)?;
        points.push(Point {
            profile: by_slices(board, number(row, 0, &path)?)?,
            batch: number(row, 1, &path)?,
            processes,
            throughput_milli: (per_process * 1_000.0 * f64::from(processes)).floor() as u64,
            latency_us: (latency_s * 1e6).round() as u64,
        });
    }
    // What could not run was recorded as nothing.
    points.retain(|p| p.throughput_milli > 0 && p.latency_us > 0);
    Ok(points)
}

/// The services of one scenario.
fn services(
    dir: &Path,
    board: &'static Board,
    models: &[String],
    scenario: usize,
) -> Result<Vec<Service>> {
    let (rates, limits) = (dir.join("SLO_req_rate.csv"), dir.join("SLO_latency.csv"));
    let rate_rows = table(&rates)?;
    let limit_rows = table(&limits)?;
    let rate_row = rate_rows.get(scenario).context("too few scenarios")?;
    let limit_row = limit_rows.get(scenario).context("too few scenarios")?;
    let mut services = Vec::new();
    for (at, model) in models.iter().enumerate() {
        if rate_row.get(at).is_none_or(|cell| cell == "N/A") {
            continue;
        }
        let objective_ms: f64 = number(limit_row, at, &limits)?;
        services.push(Service {
            name: model.clone(),
            rate_milli: 1_000 * number::<u64>(rate_row, at, &rates)?,
            // Less than 0.45 of whole milliseconds, in microseconds.
            latency_us_max: (objective_ms.floor() as u64 * 450).saturating_sub(1),
            points: points(dir, board, model)?,
        });
    }
    Ok(services)
}

/// The authors' deployment. Their starts are not the driver's and are left out.
fn deployed(dir: &Path, services: &[Service], scenario: usize) -> Result<Vec<Vec<Segment>>> {
    let path = dir.join(format!("SLO{}_ParvaGPU_deploy.csv", scenario + 1));
    let mut gpus: BTreeMap<(u32, u32), Vec<Segment>> = BTreeMap::new();
    for row in table(&path)?.iter().skip(1) {
        let model = row.get(2).map_or("", String::as_str);
        let service = services.iter().position(|s| s.name == model);
        let service = service.with_context(|| format!("{}: {model:?}?", path.display()))?;
        let size: u8 = number(row, 4, &path)?;
        let (batch, processes): (u32, u32) = (number(row, 5, &path)?, number(row, 6, &path)?);
        let measured = services[service].points.iter().find(|p| {
            (p.profile.compute_slices(), p.batch, p.processes) == (size, batch, processes)
        });
        let point = *measured.with_context(|| format!("{}: not measured", path.display()))?;
        let gpu = (number(row, 0, &path)?, number(row, 1, &path)?);
        gpus.entry(gpu).or_default().push(Segment { service, point, start: None });
    }
    Ok(gpus.into_values().collect())
}

/// Checks a deployment from its own words: slices lie where they may, every segment was measured
/// and is fast enough, and every service reaches its rate.
fn check(board: &'static Board, services: &[Service], gpus: &[Vec<Segment>]) -> Result<Report> {
    let mut reached = vec![0_u64; services.len()];
    let mut slices = vec![0_u32; services.len()];
    for (at, gpu) in gpus.iter().enumerate() {
        ensure!(!gpu.is_empty(), "GPU {at} is empty");
        let profiles: Vec<&'static Profile> = gpu.iter().map(|s| s.point.profile).collect();
        let starts: Option<Vec<u8>> = gpu.iter().map(|s| s.start).collect();
        match starts {
            Some(starts) => drop(Layout::from_instances(board, profiles.into_iter().zip(starts))?),
            None => {
                let laid = Layout::empty(board)?.with_all(&profiles);
                ensure!(laid.is_some(), "GPU {at}: {profiles:?} do not fit together");
            }
        }
        for segment in gpu {
            let service = &services[segment.service];
            ensure!(service.points.contains(&segment.point), "GPU {at}: not measured");
            ensure!(
                segment.point.latency_us <= service.latency_us_max,
                "GPU {at}: {} takes {} us",
                service.name,
                segment.point.latency_us
            );
            reached[segment.service] += segment.point.throughput_milli;
            slices[segment.service] += u32::from(segment.point.profile.compute_slices());
        }
    }
    let mut idle = 0.0;
    for ((service, reached), slices) in services.iter().zip(&reached).zip(&slices) {
        let name = &service.name;
        ensure!(*reached >= service.rate_milli, "{name} reaches {reached}/{}", service.rate_milli);
        idle += f64::from(*slices) * (1.0 - service.rate_milli as f64 / *reached as f64);
    }
    let used: u32 = slices.iter().sum();
    let all = f64::from(board.compute_slices()) * gpus.len() as f64;
    Ok(Report {
        gpus: gpus.len(),
        slices: used,
        slack: 100.0 * idle / f64::from(used),
        free: 100.0 * (all - f64::from(used)) / all,
    })
}
