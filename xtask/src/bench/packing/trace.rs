//! Reads Alibaba's openb cluster: machines and lists of pods, as CSV.
//!
//! Owns the files' columns and what can be wrong with them. The files are not part of this
//! repository; `cluster-trace-gpu-v2023` of alibaba/clusterdata has them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use berth_packing::fleet::Capacity;
use berth_packing::request::{GpuAsk, Models, Part, Request, WHOLE_MILLI};

const NODES: &str = "openb_node_list_gpu_node.csv";
const PODS: &str = "openb_pod_list_";
const MIB: u64 = 1 << 20;

/// A cluster, in the order of its nodes' names.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    pub(crate) machines: Vec<Capacity>,
    models: BTreeMap<String, u8>,
}

/// Pods, in the order of their names.
#[derive(Clone, Debug)]
pub(crate) struct PodList {
    pub(crate) name: String,
    pub(crate) pods: Vec<Request>,
}

/// Where the files are.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    openb: PathBuf,
}

impl Directory {
    /// The directory with the lists, or the one above it.
    pub(crate) fn find(data: &Path) -> Result<Self> {
        for openb in [data.to_owned(), data.join("openb")] {
            if openb.join(NODES).is_file() {
                return Ok(Self { openb });
            }
        }
        bail!(
            "{} does not exist, nor does it under openb/ there; --data takes the directory with \
             the CSV files of openb, or the one above it",
            data.join(NODES).display()
        )
    }

    /// Published runs, where they lie beside the lists.
    pub(crate) fn published(&self) -> Option<PathBuf> {
        let beside = self.openb.join("../fgd-expected/analysis_allo_discrete.csv");
        beside.is_file().then_some(beside)
    }

    pub(crate) fn cluster(&self) -> Result<Cluster> {
        let path = self.openb.join(NODES);
        read_cluster(&text(&path)?).with_context(|| path.display().to_string())
    }

    /// Names of all lists, `default` first.
    pub(crate) fn list_names(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.openb).with_context(|| self.openb.display().to_string())? {
            let name = entry?.file_name();
            let name = name.to_str().and_then(|name| name.strip_prefix(PODS)?.strip_suffix(".csv"));
            names.extend(name.map(str::to_owned));
        }
        ensure!(!names.is_empty(), "{}: no {PODS}*.csv there", self.openb.display());
        names.sort_by_key(|name| (name != "default", name.clone()));
        Ok(names)
    }

    pub(crate) fn list(&self, name: &str, cluster: &Cluster) -> Result<PodList> {
        let path = self.openb.join(format!("{PODS}{name}.csv"));
        let pods = read_pods(&text(&path)?, cluster).with_context(|| path.display().to_string())?;
        Ok(PodList { name: name.to_owned(), pods })
    }
}

fn text(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

impl Cluster {
    #[cfg(test)]
    pub(crate) fn for_test(machines: Vec<Capacity>) -> Self {
        Self { machines, models: BTreeMap::new() }
    }

    /// GPUs in thousandths.
    pub(crate) fn gpu_milli(&self) -> u64 {
        let gpus: u64 = self.machines.iter().map(|machine| u64::from(machine.gpus)).sum();
        gpus * u64::from(WHOLE_MILLI)
    }
}

/// A CSV line by column name.
struct Row<'a> {
    line: usize,
    columns: &'a BTreeMap<&'a str, usize>,
    fields: Vec<&'a str>,
}

impl<'a> Row<'a> {
    fn text(&self, column: &str) -> Result<&'a str> {
        let at = self.columns.get(column);
        let at = at.with_context(|| format!("line 1: the column `{column}` is missing"))?;
        let field = self.fields.get(*at);
        field.copied().with_context(|| format!("line {}: no `{column}`", self.line))
    }

    fn number(&self, column: &str, max: u64) -> Result<u64> {
        let text = self.text(column)?;
        let number: Option<u64> = text.parse().ok().filter(|number| *number <= max);
        let line = self.line;
        number.with_context(|| {
            format!("line {line}: `{column}` is {text:?}, not a whole number up to {max}")
        })
    }
}

/// Reads every line after the first, which names the columns, and sorts by the given one.
fn rows<T>(text: &str, name: &str, mut read: impl FnMut(&Row<'_>) -> Result<T>) -> Result<Vec<T>> {
    let mut lines = text.lines().enumerate();
    let (_, header) = lines.next().context("line 1: the file is empty")?;
    let columns: BTreeMap<&str, usize> = header.split(',').zip(0..).collect();
    let mut read_rows = Vec::new();
    for (at, line) in lines.filter(|(_, line)| !line.is_empty()) {
        let row = Row { line: at + 1, columns: &columns, fields: line.split(',').collect() };
        read_rows.push((row.text(name)?.to_owned(), read(&row)?));
    }
    ensure!(!read_rows.is_empty(), "nothing after line 1");
    read_rows.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(read_rows.into_iter().map(|(_, row)| row).collect())
}

fn read_cluster(text: &str) -> Result<Cluster> {
    let mut models = BTreeMap::new();
    let machines = rows(text, "sn", |row| {
        let model = row.text("model")?;
        let next = u8::try_from(models.len()).ok().filter(|next| *next < 64);
        let next = next.with_context(|| format!("line {}: more than 64 models", row.line))?;
        Ok(Capacity {
            cpu_milli: row.number("cpu_milli", 1 << 32)?,
            memory_bytes: row.number("memory_mib", 1 << 32)? * MIB,
            gpus: u16::try_from(row.number("gpu", 64)?)?,
            model: *models.entry(model.to_owned()).or_insert(next),
        })
    })?;
    Ok(Cluster { machines, models })
}

fn read_pods(text: &str, cluster: &Cluster) -> Result<Vec<Request>> {
    let has_models = text.lines().next().is_some_and(|header| header.contains("gpu_spec"));
    rows(text, "name", |row| {
        let gpus = u16::try_from(row.number("num_gpu", 64)?)?;
        let milli = u16::try_from(row.number("gpu_milli", u64::from(WHOLE_MILLI))?)?;
        ensure!(
            gpus == 0 || milli == WHOLE_MILLI || gpus == 1 && milli > 0,
            "line {}: {gpus} GPUs of {milli} thousandths; a part must be of one GPU",
            row.line
        );
        let gpus = match gpus {
            0 => GpuAsk::None,
            _ if milli == WHOLE_MILLI => GpuAsk::Whole(gpus),
            _ => GpuAsk::Share(Part::even(milli)),
        };
        let spec = if has_models && gpus != GpuAsk::None { row.text("gpu_spec")? } else { "" };
        Ok(Request {
            cpu_milli: row.number("cpu_milli", 1 << 32)?,
            memory_bytes: row.number("memory_mib", 1 << 32)? * MIB,
            gpus,
            models: read_models(spec, cluster),
        })
    })
}

/// Models that no node has are left out, as nothing can run there.
fn read_models(spec: &str, cluster: &Cluster) -> Models {
    if spec.is_empty() {
        return Models::ANY;
    }
    let known = spec.split('|').filter_map(|model| cluster.models.get(model));
    Models(known.fold(0, |models, model| models | 1 << model))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES_CSV: &str =
        "sn,cpu_milli,memory_mib,gpu,model\nb,64000,1024,2,T4\na,8000,10,8,G2\n";

    fn pods(lines: &str) -> Result<Vec<Request>> {
        let header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos";
        read_pods(&format!("{header}\n{lines}"), &read_cluster(NODES_CSV)?)
    }

    #[test]
    fn nodes_come_in_the_order_of_their_names() {
        let cluster = read_cluster(NODES_CSV).unwrap();
        assert_eq!(cluster.machines.iter().map(|node| node.gpus).collect::<Vec<_>>(), [8, 2]);
        assert_eq!(cluster.gpu_milli(), 10_000);
    }

    #[test]
    fn wholes_parts_and_models_are_told_apart() {
        let pods = pods("a,1,2,8,1000,,LS\nb,1,2,1,470,T4|V100,LS\nc,1,2,0,0,T4,BE\n").unwrap();
        assert_eq!(pods[0].gpus, GpuAsk::Whole(8));
        assert_eq!(pods[0].models, Models::ANY);
        assert_eq!(pods[1].gpus, GpuAsk::Share(Part::even(470)));
        assert_eq!(pods[1].models, Models(1));
        assert_eq!(pods[2].gpus, GpuAsk::None);
        assert_eq!(pods[2].models, Models::ANY);
    }

    #[test]
    fn errors_name_the_line_and_the_column() {
        for (lines, told) in [
            ("a,1,2,1,470,,LS\nb,x,2,1,470,,LS", "line 3: `cpu_milli` is \"x\""),
            ("a,1,2", "line 2: no `num_gpu`"),
            ("a,1,2,1,1001,,LS", "`gpu_milli` is \"1001\", not a whole number up to 1000"),
            ("a,1,2,2,500,,LS", "2 GPUs of 500 thousandths"),
            ("", "nothing after line 1"),
        ] {
            let error = format!("{:#}", pods(lines).unwrap_err());
            assert!(error.contains(told), "{error}");
        }
        let error = format!("{:#}", read_cluster("sn,gpu,model\na,1,T4\n").unwrap_err());
        assert!(error.contains("the column `cpu_milli` is missing"), "{error}");
    }

    #[test]
    fn a_missing_directory_is_named() {
        let error = Directory::find(Path::new("/nowhere")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/openb_node_list_gpu_node.csv"), "{error}");
    }
}
