//! The openb trace as arrivals and nodes: Alibaba's GPU cluster, with real creation times and lives.
//!
//! Owns the reading of its tables. Rows that were never scheduled have no lifetime and are left out,
//! and so are the few pods from before the trace is dense.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, ensure};
use berth_model::affinity::NodeTerm;
use berth_model::label::{Operator, Requirement};
use berth_model::node::Node;
use berth_model::spec::{GpuNeed, PodSpec, PreemptionPolicy};
use berth_testkit::cluster::{GPU, resources, template};

/// From this day on pods come every day.
const FIRST_DAY: i64 = 115;
const DAY_MS: i64 = 86_400_000;

/// GPU models, as a label.
const MODEL: &str = "nvidia.com/gpu.product";

/// A pod that came.
#[derive(Clone)]
pub(crate) struct Arrival {
    pub(crate) spec: Arc<PodSpec>,
    pub(crate) at_ms: i64,
    pub(crate) life_ms: i64,
    pub(crate) gpu_milli: i64,
}

/// The trace.
pub(crate) struct Trace {
    pub(crate) arrivals: Vec<Arrival>,
    pub(crate) nodes: Vec<(Node, i64)>,
    pub(crate) span_ms: i64,
}

/// The rows of a table, by the names of their columns.
fn table(path: &Path) -> Result<Vec<Vec<String>>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("reading {}; --data names the openb folder", path.display()))?;
    let rows = text.lines().skip(1).map(|line| line.split(',').map(str::to_owned).collect());
    Ok(rows.collect())
}

impl Trace {
    /// With `classes`, latency-sensitive pods come before the others in the queue.
    pub(crate) fn read(data: &Path, classes: bool) -> Result<Self> {
        let mut arrivals = Vec::new();
        let mut specs: Vec<Arc<PodSpec>> = Vec::new();
        for row in table(&data.join("openb_pod_list_default.csv"))? {
            ensure!(row.len() >= 11, "a pod list has 11 columns, this one {}", row.len());
            let number = |column: usize| row[column].parse::<i64>().ok();
            let (Some(created), Some(deleted), Some(scheduled)) =
                (number(8), number(9), number(10))
            else {
                continue;
            };
            let at_ms = created * 1000 - FIRST_DAY * DAY_MS;
            if at_ms < 0 {
                continue;
            }
            let spec = spec(&row, classes)?;
            let known = specs.iter().find(|known| ***known == spec).cloned();
            let spec = known.unwrap_or_else(|| {
                specs.push(Arc::new(spec));
                specs[specs.len() - 1].clone()
            });
            let gpu_milli = number(3).unwrap_or(0) * number(4).unwrap_or(0);
            let life_ms = (deleted - scheduled) * 1000;
            arrivals.push(Arrival { spec, at_ms, life_ms, gpu_milli });
        }
        let mut nodes = Vec::new();
        for row in table(&data.join("openb_node_list_gpu_node.csv"))? {
            ensure!(row.len() >= 5, "a node list has 5 columns, this one {}", row.len());
            nodes.push((node(&row)?, row[3].parse().context("the number of GPUs")?));
        }
        let span_ms = arrivals.iter().map(|one| one.at_ms).max().context("no pods")? + 1;
        Ok(Self { arrivals, nodes, span_ms })
    }
}

fn spec(row: &[String], classes: bool) -> Result<PodSpec> {
    let (cpu, memory) = (format!("{}m", row[1]), format!("{}Mi", row[2]));
    let part_milli: u16 = row[4].parse().context("gpu_milli")?;
    let whole = row[3] != "0" && part_milli == 1000;
    let mut limits = vec![("cpu", cpu.as_str()), ("memory", memory.as_str())];
    if whole {
        limits.push((GPU, &row[3]));
    }
    let sensitive = row[6] != "BE";
    let priority = if classes && sensitive { 100 } else { 0 };
    let mut spec = template("openb", priority, &limits).map_err(|error| anyhow!("{error}"))?;
    spec.namespace = if sensitive { "sensitive".into() } else { "batch".into() };
    spec.preemption = PreemptionPolicy::Never;
    if row[3] != "0" && !whole {
        spec.gpu = Some(GpuNeed { memory_bytes: 0, compute_milli: part_milli });
    }
    if !row[5].is_empty() {
        let models = row[5].split('|').map(Into::into).collect();
        let model = Requirement { key: MODEL.into(), operator: Operator::In(models) };
        spec.node_affinity.required =
            Some(vec![NodeTerm { labels: vec![model], name: Vec::new() }]);
    }
    Ok(spec)
}

fn node(row: &[String]) -> Result<Node> {
    let (cpu, memory) = (format!("{}m", row[1]), format!("{}Mi", row[2]));
    let allocatable = [("cpu", cpu.as_str()), ("memory", &memory), ("pods", "256"), (GPU, &row[3])];
    let labels = [
        (MODEL, row[4].as_str()),
        ("nvidia.com/gpu.memory", "16384"),
        ("berth.dev/gpu-division", "shares"),
    ];
    Ok(Node {
        name: row[0].as_str().into(),
        labels: labels.into_iter().collect(),
        allocatable: resources(&allocatable).map_err(|error| anyhow!("{error}"))?,
        ..Node::default()
    })
}
