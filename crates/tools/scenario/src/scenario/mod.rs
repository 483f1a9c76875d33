//! The scenario files of `berth sim` and `berth up`: their format, and how they become an experiment.

mod assemble;
mod file;
mod load;
mod pools;
mod schema;
mod settings;
mod units;

use berth_sim::experiment::NodeSetup;

pub use file::{API_VERSION, KIND};
pub use load::{add_pools, is_scenario, load};
pub use pools::PoolError;
pub use schema::json_schema;

/// Nodes with two sockets and eight H100s, configured as Berth recommends.
pub fn serving_pool(nodes: usize) -> Result<Vec<NodeSetup>, PoolError> {
    let gpus = file::Gpus {
        product: "NVIDIA-H100-80GB-HBM3".to_owned(),
        count: 8,
        ..file::Gpus::default()
    };
    let pool = file::NodePool {
        name: "h100".to_owned(),
        count: nodes,
        zones: ["a", "b", "c"].map(str::to_owned).to_vec(),
        gpus: Some(gpus),
        ..file::NodePool::default()
    };
    pools::build(&pool, &[]).map(|built| built.nodes)
}
