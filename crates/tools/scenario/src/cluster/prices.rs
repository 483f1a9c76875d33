//! Prices of nodes: from the node's annotation `berth.dev/price-per-hour`, else from the price file by
//! node name, pool or instance type, else from its GPUs by product, else from its CPUs and memory.

use std::collections::BTreeMap;

use berth_manifest::{Document, Problem};
use berth_model::gpu::Gpu;
use berth_model::node::Node;
use berth_model::resource::ResourceName;
use berth_model::workload::pool_of;
use schemars::{JsonSchema, Schema, schema_for};
use serde::Deserialize;

pub use berth_api::keys::PRICE_PER_HOUR as PRICE;

/// Dollars per GPU hour by words of the product name. More specific entries come first.
const ON_DEMAND: [(&[&str], f64); 9] = [
    (&["A10G"], 1.006),
    (&["L40S"], 1.861),
    (&["L4"], 0.805),
    (&["A100", "80GB"], 3.431),
    (&["A100", "40GB"], 2.745),
    (&["H100"], 6.88),
    (&["H200"], 7.912),
    (&["B200"], 14.24),
    (&["RTX", "PRO", "6000"], 3.363),
];

const ON_DEMAND_SOURCE: &str = "AWS on demand in us-east-1 on 2026-07-20, an instance's price \
                                divided by its GPUs (A10G: g5.xlarge, A100: p4d and p4de, H100: p5, \
                                H200: p5en)";

/// Prices in millionths of a dollar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prices {
    pub source: String,
    pub hours_per_month: i64,
    /// By words of the product name. The first entry whose words all occur counts.
    gpu_hour: Vec<(Vec<String>, i64)>,
    /// By node name, pool or instance type.
    node_hour: BTreeMap<String, i64>,
    cpu_hour: Option<i64>,
    memory_gib_hour: Option<i64>,
}

/// Prices in US dollars, for `berth plan --prices`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "Prices")]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Written {
    /// Price of a GPU by product: all words of the key must occur in the product's name. Default: AWS's list
    /// prices.
    gpu_hour: BTreeMap<String, f64>,
    /// Price of a node by its name, pool or instance type. Takes precedence over the parts.
    node_hour: BTreeMap<String, f64>,
    /// Price of a CPU of nodes without GPUs.
    cpu_hour: Option<f64>,
    /// Price of a GiB of memory of nodes without GPUs.
    memory_gib_hour: Option<f64>,
    /// Hours of a month in reports. Default: 730.
    hours_per_month: Option<i64>,
    /// Where the prices come from, for the report.
    source: Option<String>,
}

impl Default for Prices {
    fn default() -> Self {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let known = ON_DEMAND.iter();
        Self {
            source: ON_DEMAND_SOURCE.to_owned(),
            hours_per_month: 730,
            gpu_hour: known.map(|(product, usd)| (words(product), micro(*usd))).collect(),
            node_hour: BTreeMap::new(),
            cpu_hour: None,
            memory_gib_hour: None,
        }
    }
}

#[allow(clippy::cast_possible_truncation, reason = "prices are far below 2^53 millionths")]
fn micro(usd: f64) -> i64 {
    (usd * 1_000_000.0).clamp(0.0, 1e15).round() as i64
}

fn words(product: &str) -> impl Iterator<Item = &str> {
    product.split(|one: char| !one.is_ascii_alphanumeric()).filter(|word| !word.is_empty())
}

impl Prices {
    /// The JSON Schema of a price file.
    pub fn json_schema() -> Schema {
        schema_for!(Written)
    }

    /// Reads a price file. GPUs that it does not list keep their default price.
    pub fn read(document: &Document) -> Result<Self, Problem> {
        let written: Written = document.decode()?;
        let mut prices = Self::default();
        let own = written
            .gpu_hour
            .iter()
            .map(|(product, usd)| (words(product).map(str::to_owned).collect(), micro(*usd)));
        let own: Vec<(Vec<String>, i64)> = own.collect();
        prices.gpu_hour.splice(0..0, own);
        prices.node_hour =
            written.node_hour.into_iter().map(|(name, usd)| (name, micro(usd))).collect();
        prices.cpu_hour = written.cpu_hour.map(micro);
        prices.memory_gib_hour = written.memory_gib_hour.map(micro);
        prices.hours_per_month = written.hours_per_month.unwrap_or(prices.hours_per_month).max(1);
        prices.source = match written.source {
            Some(source) => source,
            None => format!("{}; otherwise {}", document.source().name, prices.source),
        };
        Ok(prices)
    }

    pub fn gpu(&self, product: &str) -> Option<i64> {
        let has = |word: &String| words(product).any(|own| own.eq_ignore_ascii_case(word));
        let fits = |(wanted, _): &&(Vec<String>, i64)| !wanted.is_empty() && wanted.iter().all(has);
        self.gpu_hour.iter().find(fits).map(|(_, price)| *price)
    }

    /// Micro-dollars per hour, if known. `stated` is the price in the node's annotation.
    pub fn node(&self, node: &Node, gpus: &[Gpu], stated: Option<i64>) -> Option<i64> {
        if stated.is_some() {
            return stated;
        }
        let instance = node.labels.get("node.kubernetes.io/instance-type");
        let names = [Some(&node.name), pool_of(&node.labels), instance];
        let named = names.into_iter().flatten().find_map(|name| self.node_hour.get(name.as_ref()));
        if named.is_some() {
            return named.copied();
        }
        if !gpus.is_empty() {
            return gpus.iter().map(|gpu| self.gpu(&gpu.product)).sum();
        }
        let amount = |name: &ResourceName| node.allocatable.get(name);
        let cpu_milli = amount(&ResourceName::cpu()).map_or(0, |cpu| cpu.milli_value());
        let memory_bytes = amount(&ResourceName::memory()).map_or(0, |memory| memory.value());
        let part = |price: i64, amount: i64, unit: i64| {
            let price = i128::from(price) * i128::from(amount) / i128::from(unit);
            i64::try_from(price).unwrap_or(i64::MAX)
        };
        let cpus = part(self.cpu_hour?, cpu_milli, 1000);
        Some(cpus + part(self.memory_gib_hour.unwrap_or(0), memory_bytes, 1 << 30))
    }
}

/// Parses the price of a node's annotation into micro-dollars.
pub(super) fn stated(text: &str) -> Option<i64> {
    let usd: f64 = text.trim_start_matches('$').parse().ok()?;
    (usd.is_finite() && usd >= 0.0).then(|| micro(usd))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(product: &str) -> Gpu {
        Gpu {
            id: "gpu-0".to_owned(),
            product: product.to_owned(),
            memory_bytes: 0,
            numa: berth_model::numa::NumaMask::EMPTY,
            health: berth_model::gpu::Health::Healthy,
            mig: None,
            replicas: None,
        }
    }

    #[test]
    fn gpus_are_known_by_the_words_of_their_product() {
        let prices = Prices::default();
        for (product, usd) in [
            ("NVIDIA-H100-80GB-HBM3", Some(6.88)),
            ("NVIDIA A100-SXM4-80GB", Some(3.431)),
            ("NVIDIA-A100-SXM4-40GB", Some(2.745)),
            ("NVIDIA-L40S", Some(1.861)),
            ("NVIDIA-L4", Some(0.805)),
            ("NVIDIA-A10G", Some(1.006)),
            ("Tesla-T4", None),
        ] {
            assert_eq!(prices.gpu(product), usd.map(micro), "{product}");
        }
    }

    #[test]
    fn what_is_nearer_to_the_node_counts_first() {
        let mut prices = Prices::default();
        let mut node = Node { name: "a".into(), ..Node::default() };
        node.labels.insert("karpenter.sh/nodepool", "gpus");
        let gpus = [gpu("NVIDIA-L4"), gpu("NVIDIA-L4")];
        assert_eq!(prices.node(&node, &gpus, None), Some(1_610_000));
        prices.node_hour.insert("gpus".to_owned(), 2_000_000);
        assert_eq!(prices.node(&node, &gpus, None), Some(2_000_000));
        assert_eq!(prices.node(&node, &gpus, stated("$3.5")), Some(3_500_000));
        node.labels = berth_model::label::Labels::default();
        assert_eq!(prices.node(&node, &[gpu("unheard of")], None), None);
        assert_eq!(prices.node(&node, &[], None), None, "nothing is known of CPUs");
    }
}
