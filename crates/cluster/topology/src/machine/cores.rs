//! Which CPUs are threads of which core: as zones say, or made up from counts in the order of ids.

use berth_model::idset::CpuSet;
use berth_model::machine::CoreSpec;

use super::Part;

pub(super) fn cores(parts: &[Part], threads: usize) -> Vec<CoreSpec> {
    let described = |part: &Part| -> Option<Vec<CoreSpec>> {
        let own = part.detail.cores.as_ref()?;
        let core = |threads: &Vec<usize>| CoreSpec {
            numa: part.id,
            socket: part.socket,
            uncore: threads.first().and_then(|cpu| {
                part.detail.caches.iter().find(|(_, cpus)| cpus.contains(*cpu)).map(|(id, _)| *id)
            }),
            threads: threads.clone(),
        };
        Some(own.iter().map(core).collect())
    };
    let all: Option<Vec<Vec<CoreSpec>>> = parts.iter().map(described).collect();
    all.map_or_else(|| made_up_cores(parts, threads), |all| all.into_iter().flatten().collect())
}

/// NUMA node by NUMA node in the order of ids. All first threads come first, as Linux numbers them.
fn made_up_cores(parts: &[Part], threads: usize) -> Vec<CoreSpec> {
    let mut order: Vec<&Part> = parts.iter().collect();
    order.sort_by_key(|part| part.id);
    let all: usize = order.iter().map(|part| part.cpus / threads).sum();
    let of_part = |part: &&Part| vec![(part.id, part.socket); part.cpus / threads];
    let homes = order.iter().flat_map(of_part).enumerate();
    homes
        .map(|(core, (numa, socket))| CoreSpec {
            numa,
            socket,
            uncore: None,
            threads: (0..threads).map(|thread| thread * all + core).collect(),
        })
        .collect()
}

/// The lowest CPUs of each NUMA node, core by core, as many as are reserved there.
pub(super) fn lowest(parts: &[Part], threads: usize) -> CpuSet {
    let cores = cores(parts, threads);
    let kept = parts.iter().flat_map(|part| {
        let own = cores.iter().filter(|core| core.numa == part.id);
        own.flat_map(|core| core.threads.iter().copied()).take(part.cpus_reserved)
    });
    kept.collect()
}
