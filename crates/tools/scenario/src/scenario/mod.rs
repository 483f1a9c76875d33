//! Scenarios: what `berth sim` plays.
//!
//! Owns the file's fields, what its pools become, and how behaviour, arrivals and failures are tied to
//! the workloads of manifests. Must not know what comes of it.

mod assemble;
mod file;
mod load;
mod pools;
mod units;

use berth_sim::experiment::NodeSetup;

pub use file::{API_VERSION, KIND};
pub use load::{add_pools, is_scenario, load};
pub use pools::Wrong as PoolError;

/// So many nodes of two sockets and eight H100s, as Berth recommends to set them up.
pub fn serving_pool(nodes: usize) -> Result<Vec<NodeSetup>, PoolError> {
    let gpus = file::Gpus {
        product: "NVIDIA-H100-80GB-HBM3".to_owned(),
        count: 8,
        ..file::Gpus::default()
    };
    let pool = file::Pool {
        name: "h100".to_owned(),
        count: nodes,
        zones: ["a", "b", "c"].map(str::to_owned).to_vec(),
        gpus: Some(gpus),
        ..file::Pool::default()
    };
    pools::build(&pool).map(|built| built.nodes)
}
