//! What pods cost: a pod pays for its parts of a node's GPUs, and on nodes without GPUs for the larger of
//! its shares of CPU and memory.

use std::collections::BTreeMap;

use berth_inspect::usage::{GpuUse, Usage, WHOLE_MILLI, cpu_and_memory, requests};
use berth_model::spec::PodSpec;
use berth_scenario::cluster::{Cluster, ClusterNode, Prices};

use crate::report::PoolUse;

/// The assumptions behind the figures, in words.
pub(crate) fn basis(prices: &Prices) -> Vec<String> {
    vec![
        format!("prices: {}", prices.source),
        format!("a month has {} hours; jobs cost this while they run", prices.hours_per_month),
        "a pod pays for its parts of the node's GPUs; on nodes without GPUs for the larger of its \
         shares of CPU and memory; without a GPU on a node with GPUs nothing, since the GPUs bear the \
         node's price"
            .to_owned(),
    ]
}

/// A node's usage and price.
pub(crate) struct Account {
    pub(crate) usage: Usage,
    /// Per hour; `None` if unknown.
    pub(crate) price: Option<i64>,
    pool: String,
    product: String,
}

impl Account {
    fn new(node: &ClusterNode, prices: &Prices) -> Self {
        let gpus = &node.inside.gpus;
        Self {
            usage: Usage::new(&node.node, &node.inside),
            price: prices.node(&node.node, gpus, node.stated_microusd_per_hour),
            pool: node.pool().to_owned(),
            product: gpus.first().map_or_else(String::new, |gpu| gpu.product.clone()),
        }
    }

    /// What a pod's part of the node costs a month.
    pub(crate) fn monthly(&self, spec: &PodSpec, gpu_milli: u64, prices: &Prices) -> Option<i64> {
        let month = i128::from(self.price?) * i128::from(prices.hours_per_month);
        let share = |part: i128, all: i128| month.checked_mul(part)?.checked_div(all);
        let usage = &self.usage;
        let amount = if usage.gpus > 0 {
            share(i128::from(gpu_milli), usage.gpus as i128 * i128::from(WHOLE_MILLI))?
        } else {
            let (cpu, memory) = cpu_and_memory(&requests(spec));
            let of_cpu = share(i128::from(cpu), i128::from(usage.cpu_milli)).unwrap_or(0);
            let of_memory = share(i128::from(memory), i128::from(usage.memory_bytes));
            of_cpu.max(of_memory.unwrap_or(0))
        };
        i64::try_from(amount).ok()
    }
}

/// By name of node.
pub(crate) type Accounts = BTreeMap<String, Account>;

pub(crate) fn accounts(cluster: &Cluster, prices: &Prices) -> Accounts {
    let nodes = cluster.nodes.iter();
    nodes.map(|node| (node.node.name.to_string(), Account::new(node, prices))).collect()
}

/// GPUs by pool.
pub(crate) fn uses(accounts: &Accounts) -> BTreeMap<String, (PoolUse, GpuUse)> {
    let mut pools: BTreeMap<String, (PoolUse, GpuUse)> = BTreeMap::new();
    for account in accounts.values().filter(|account| account.usage.gpus > 0) {
        let (pool, sum) = pools.entry(account.pool.clone()).or_default();
        pool.pool.clone_from(&account.pool);
        *pool.products.entry(account.product.clone()).or_default() += 1;
        pool.nodes += 1;
        pool.gpus += account.usage.gpus;
        *sum += account.usage.gpu_use();
    }
    pools
}
