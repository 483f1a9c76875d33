//! Reads Alibaba's openb cluster: machines and lists of pods, as CSV.
//!
//! Owns which files there are, and what packing makes of them. The files are not part of this
//! repository; `cluster-trace-gpu-v2023` of alibaba/clusterdata has them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use berth_packing::fleet::Capacity;
use berth_packing::request::{GpuRequest, Models, Part, Request, WHOLE_MILLI};
use berth_scenario::traces::openb::{self, OpenbNode, OpenbPod};

const NODES: &str = "openb_node_list_gpu_node.csv";
const PODS: &str = "openb_pod_list_";

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
        read_cluster(&path.display().to_string(), &text(&path)?)
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
        let pods = read_pods(&path.display().to_string(), &text(&path)?, cluster)?;
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

fn read_cluster(file: &str, text: &str) -> Result<Cluster> {
    let mut nodes = openb::read_nodes(file, text)?;
    ensure!(!nodes.is_empty(), "{file}: nothing after line 1");
    let mut models = BTreeMap::new();
    for node in &nodes {
        let next = u8::try_from(models.len()).ok().filter(|next| *next < 64);
        let next = next.with_context(|| format!("{file}: more than 64 models"))?;
        models.entry(node.model.clone()).or_insert(next);
    }
    nodes.sort_by(|one, other| one.name.cmp(&other.name));
    let machine = |node: OpenbNode| {
        Ok(Capacity {
            cpu_milli: u64::try_from(node.cpu_milli)?,
            memory_bytes: u64::try_from(node.memory_bytes)?,
            gpus: u16::try_from(node.gpus)?,
            model: models.get(&node.model).copied().unwrap_or_default(),
        })
    };
    let machines = nodes.into_iter().map(machine).collect::<Result<_>>()?;
    Ok(Cluster { machines, models })
}

fn read_pods(file: &str, text: &str, cluster: &Cluster) -> Result<Vec<Request>> {
    let mut pods = openb::read_pods(file, text)?;
    ensure!(!pods.is_empty(), "{file}: nothing after line 1");
    pods.sort_by(|one, other| one.name.cmp(&other.name));
    let request = |pod: OpenbPod| {
        let gpus = match pod.gpus {
            0 => GpuRequest::None,
            gpus if pod.gpu_milli == WHOLE_MILLI => GpuRequest::Whole(u16::try_from(gpus)?),
            _ => GpuRequest::Share(Part::even(pod.gpu_milli)),
        };
        let models = if gpus == GpuRequest::None { &[] } else { pod.models.as_slice() };
        Ok(Request {
            cpu_milli: u64::try_from(pod.cpu_milli)?,
            memory_bytes: u64::try_from(pod.memory_bytes)?,
            gpus,
            models: known_models(models, cluster),
        })
    };
    pods.into_iter().map(request).collect()
}

/// Models that no node has are left out, as nothing can run there.
fn known_models(models: &[String], cluster: &Cluster) -> Models {
    if models.is_empty() {
        return Models::ANY;
    }
    let known = models.iter().filter_map(|model| cluster.models.get(model));
    Models(known.fold(0, |models, model| models | 1 << model))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES_CSV: &str =
        "sn,cpu_milli,memory_mib,gpu,model\nb,64000,1024,2,T4\na,8000,10,8,G2\n";

    fn pods(lines: &str) -> Result<Vec<Request>> {
        let header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos";
        read_pods("pods.csv", &format!("{header}\n{lines}"), &read_cluster("nodes.csv", NODES_CSV)?)
    }

    #[test]
    fn nodes_come_in_the_order_of_their_names() {
        let cluster = read_cluster("nodes.csv", NODES_CSV).unwrap();
        assert_eq!(cluster.machines.iter().map(|node| node.gpus).collect::<Vec<_>>(), [8, 2]);
        assert_eq!(cluster.gpu_milli(), 10_000);
    }

    #[test]
    fn wholes_parts_and_models_are_expected_apart() {
        let pods = pods("a,1,2,8,1000,,LS\nb,1,2,1,470,T4|V100,LS\nc,1,2,0,0,T4,BE\n").unwrap();
        assert_eq!(pods[0].gpus, GpuRequest::Whole(8));
        assert_eq!(pods[0].models, Models::ANY);
        assert_eq!(pods[1].gpus, GpuRequest::Share(Part::even(470)));
        assert_eq!(pods[1].models, Models(1));
        assert_eq!(pods[2].gpus, GpuRequest::None);
        assert_eq!(pods[2].models, Models::ANY);
    }

    #[test]
    fn errors_name_the_line_and_the_column() {
        for (lines, expected) in [
            ("a,1,2,1,470,,LS\nb,x,2,1,470,,LS", "pods.csv:3: cpu_milli must be an integer"),
            ("a,1,2", "pods.csv:2: the line ends before column num_gpu"),
            ("a,1,2,1,1001,,LS", "gpu_milli must be an integer from 0 to 1000"),
            ("a,1,2,2,500,,LS", "gpu_milli 500 of 2 GPUs"),
            ("", "nothing after line 1"),
        ] {
            let error = format!("{:#}", pods(lines).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
        let error =
            format!("{:#}", read_cluster("nodes.csv", "sn,gpu,model\na,1,T4\n").unwrap_err());
        assert!(error.contains("column cpu_milli is missing"), "{error}");
    }

    #[test]
    fn a_missing_directory_is_named() {
        let error = Directory::find(Path::new("/nowhere")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/openb_node_list_gpu_node.csv"), "{error}");
    }
}
