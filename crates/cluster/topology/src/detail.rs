//! Attributes of ours in the zones of a NodeResourceTopology. Without them the machine is made up from counts.
//!
//! - `berth.dev/cores`: `0-3/8-11` are four cores, of which the first has the CPUs 0 and 8; cores that
//!   differ in their threads follow after a semicolon.
//! - `berth.dev/l3`: `0=0-1,8-9;1=2-3,10-11`, ids and CPUs.
//! - `berth.dev/socket`, `berth.dev/memory` (bytes), `berth.dev/hugepages` (`2097152=1024`, bytes of a page
//!   and how many).

use std::collections::BTreeMap;

use berth_api::topology::{Attribute, Zone};
use berth_model::idset::CpuSet;
use berth_model::machine::{Core, MAX_THREADS_PER_CORE, Machine};

use berth_api::keys::{ZONE_CACHES, ZONE_CORES, ZONE_HUGEPAGES, ZONE_MEMORY, ZONE_SOCKET};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Detail {
    /// The threads of each core.
    pub(crate) cores: Option<Vec<Vec<usize>>>,
    /// Ids of caches, and CPUs that share them.
    pub(crate) caches: Vec<(u32, CpuSet)>,
    pub(crate) socket: Option<u32>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) hugepages: Option<BTreeMap<u64, u64>>,
}

/// The attributes of the NUMA node at a position.
pub fn attributes(machine: &Machine, position: usize) -> Vec<Attribute> {
    let Some(numa) = machine.numa().get(position) else { return Vec::new() };
    let own: Vec<&Core> =
        machine.cores().iter().filter(|core| usize::from(core.numa) == position).collect();
    let mut attributes = vec![(ZONE_CORES, cores(&own))];
    let mut sockets: Vec<u16> = own.iter().map(|core| core.socket).collect();
    sockets.dedup();
    if let [only] = sockets.as_slice()
        && let Some(socket) = machine.sockets().get(usize::from(*only))
    {
        attributes.push((ZONE_SOCKET, socket.id.to_string()));
    }
    // Without known caches, the model has one per socket.
    let is_cache = |core: &Core| {
        let cache = machine.uncores().get(usize::from(core.uncore));
        cache != machine.sockets().get(usize::from(core.socket))
    };
    if own.iter().any(|core| is_cache(core)) {
        attributes.push((ZONE_CACHES, caches(machine, &own)));
    }
    attributes.push((ZONE_MEMORY, numa.memory_bytes.to_string()));
    if !numa.hugepages.is_empty() {
        let pages = numa.hugepages.iter().map(|(bytes, pages)| format!("{bytes}={pages}"));
        attributes.push((ZONE_HUGEPAGES, pages.collect::<Vec<_>>().join(",")));
    }
    let attribute = |(name, value): (&str, String)| Attribute { name: name.to_owned(), value };
    attributes.into_iter().map(attribute).collect()
}

/// Cores with the same number of threads are grouped as sets of first threads, second threads and so on, if
/// that is unambiguous.
fn cores(own: &[&Core]) -> String {
    let mut by_count: BTreeMap<usize, Vec<Vec<usize>>> = BTreeMap::new();
    for core in own {
        let threads: Vec<usize> = core.threads().collect();
        by_count.entry(threads.len()).or_default().push(threads);
    }
    let mut groups = Vec::new();
    for (count, cores) in by_count.into_iter().rev() {
        let text = group_text(&cores, count);
        if group(&text).is_ok_and(|read| read == cores) {
            groups.push(text);
        } else {
            groups.extend(cores.iter().map(|core| group_text(std::slice::from_ref(core), count)));
        }
    }
    groups.join(";")
}

fn group_text(cores: &[Vec<usize>], count: usize) -> String {
    let nth = |thread: usize| -> CpuSet {
        cores.iter().filter_map(|core| core.get(thread)).copied().collect()
    };
    (0..count).map(|thread| nth(thread).to_string()).collect::<Vec<_>>().join("/")
}

fn caches(machine: &Machine, own: &[&Core]) -> String {
    let mut groups: BTreeMap<u32, CpuSet> = BTreeMap::new();
    for core in own {
        if let Some(cache) = machine.uncores().get(usize::from(core.uncore)) {
            *groups.entry(cache.id).or_default() |= core.threads().collect();
        }
    }
    groups.iter().map(|(id, cpus)| format!("{id}={cpus}")).collect::<Vec<_>>().join(";")
}

/// The error has the position of the invalid attribute.
pub(crate) fn read(zone: &Zone) -> Result<Detail, (usize, String)> {
    let mut detail = Detail::default();
    for (index, attribute) in zone.attributes.iter().enumerate() {
        let text = attribute.value.as_str();
        let at = |problem: String| (index, problem);
        match attribute.name.as_str() {
            ZONE_CORES => detail.cores = Some(all_cores(text).map_err(at)?),
            ZONE_CACHES => detail.caches = pairs(text, ';', set).map_err(at)?,
            ZONE_SOCKET => detail.socket = Some(number(text).map_err(at)?),
            ZONE_MEMORY => detail.memory_bytes = Some(number(text).map_err(at)?),
            ZONE_HUGEPAGES => {
                let pages = pairs(text, ',', number).map_err(at)?;
                detail.hugepages = Some(pages.into_iter().collect());
            }
            _ => {}
        }
    }
    Ok(detail)
}

fn all_cores(text: &str) -> Result<Vec<Vec<usize>>, String> {
    let mut cores = Vec::new();
    for text in text.split(';').filter(|text| !text.is_empty()) {
        cores.extend(group(text)?);
        if cores.len() > CpuSet::CAPACITY {
            return Err(format!("more than {} cores", CpuSet::CAPACITY));
        }
    }
    Ok(cores)
}

fn group(text: &str) -> Result<Vec<Vec<usize>>, String> {
    let sets: Vec<CpuSet> =
        text.split('/').take(MAX_THREADS_PER_CORE + 1).map(set).collect::<Result<_, _>>()?;
    let count = sets.first().map_or(0, CpuSet::len);
    if sets.len() > MAX_THREADS_PER_CORE || sets.iter().any(|one| one.len() != count) {
        return Err(format!("{text:?} has different numbers of CPUs per thread"));
    }
    let mut cores = vec![Vec::with_capacity(sets.len()); count];
    for set in &sets {
        for (core, cpu) in cores.iter_mut().zip(set.iter()) {
            core.push(cpu);
        }
    }
    Ok(cores)
}

fn set(text: &str) -> Result<CpuSet, String> {
    text.parse().map_err(|error: berth_model::idset::IdSetError| error.to_string())
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.trim().parse().map_err(|_| format!("{text:?} is not an integer"))
}

fn pairs<K: std::str::FromStr, V>(
    text: &str,
    between: char,
    value: fn(&str) -> Result<V, String>,
) -> Result<Vec<(K, V)>, String> {
    let all = text.split(between).filter(|text| !text.is_empty()).take(CpuSet::CAPACITY);
    all.map(|pair| {
        let Some((key, text)) = pair.split_once('=') else {
            return Err(format!("{pair:?} has no \"=\""));
        };
        Ok((number(key)?, value(text)?))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_model::machine::{CoreSpec, MachineSpec, NumaSpec};

    fn machine(cores: &[(u32, u32, Option<u32>, &[usize])]) -> Result<Machine, String> {
        let core = |(numa, socket, uncore, threads): &(u32, u32, Option<u32>, &[usize])| CoreSpec {
            numa: *numa,
            socket: *socket,
            uncore: *uncore,
            threads: threads.to_vec(),
        };
        let numa = |id: u32| NumaSpec { id, memory_bytes: 1 << 30, ..NumaSpec::default() };
        let spec = MachineSpec {
            sockets: None,
            numa: vec![numa(0), numa(2)],
            cores: cores.iter().map(core).collect(),
        };
        Machine::new(spec).map_err(|error| error.to_string())
    }

    fn attribute(machine: &Machine, position: usize, name: &str) -> Option<String> {
        let all = attributes(machine, position);
        all.into_iter().find(|one| one.name == name).map(|one| one.value)
    }

    #[test]
    fn cores_with_different_threads_are_kept_apart() -> Result<(), String> {
        let machine = machine(&[
            (0, 0, Some(4), &[0, 8]),
            (0, 0, Some(4), &[1, 9]),
            (0, 0, Some(5), &[2]),
            (2, 1, Some(9), &[4, 13]),
            (2, 1, Some(9), &[5, 12]),
        ])?;
        assert_eq!(attribute(&machine, 0, ZONE_CORES).as_deref(), Some("0-1/8-9;2"));
        assert_eq!(attribute(&machine, 0, ZONE_CACHES).as_deref(), Some("4=0-1,8-9;5=2"));
        assert_eq!(
            attribute(&machine, 1, ZONE_CORES).as_deref(),
            Some("4/13;5/12"),
            "threads cross"
        );
        assert_eq!(attribute(&machine, 1, ZONE_SOCKET).as_deref(), Some("1"));
        let zone = Zone { attributes: attributes(&machine, 1), ..Zone::default() };
        let read = read(&zone).map_err(|(_, why)| why)?;
        assert_eq!(read.cores, Some(vec![vec![4, 13], vec![5, 12]]));
        assert_eq!((read.socket, read.memory_bytes), (Some(1), Some(1 << 30)));
        Ok(())
    }

    #[test]
    fn a_socket_is_not_exported_as_a_cache() -> Result<(), String> {
        let machine = machine(&[(0, 0, None, &[0]), (2, 1, None, &[1])])?;
        assert_eq!(attribute(&machine, 0, ZONE_CACHES), None);
        Ok(())
    }

    #[test]
    fn invalid_attributes_are_errors_with_their_position() {
        for (name, text) in [
            (ZONE_CORES, "0-3/8-9"),
            (ZONE_CORES, "0/1/2/3/4/5/6/7/8"),
            (ZONE_CORES, "x"),
            (ZONE_CORES, "0-99999999"),
            (ZONE_CACHES, "0"),
            (ZONE_CACHES, "a=0"),
            (ZONE_SOCKET, "-1"),
            (ZONE_MEMORY, "1Gi"),
            (ZONE_HUGEPAGES, "2Mi=1"),
        ] {
            let attribute = Attribute { name: name.to_owned(), value: text.to_owned() };
            let zone =
                Zone { attributes: vec![Attribute::default(), attribute], ..Zone::default() };
            assert_eq!(read(&zone).map_err(|(index, _)| index), Err(1), "{name}: {text}");
        }
    }
}
