//! Pools of devices: generations, completeness and consistency of their slices, and which pools
//! matter for a node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use berth_model::dra::DeviceId;
use berth_model::dra::slice::NodeScope;
use berth_model::node::Node;
use berth_model::quantity::Quantity;

use crate::Lookup;
use crate::published::{PublishedSlice, SliceError};

/// Pools are tried in this order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PoolKey {
    pub(crate) driver: Arc<str>,
    pub(crate) pool: Arc<str>,
}

impl PoolKey {
    pub(crate) fn of(id: &DeviceId) -> Self {
        Self { driver: id.driver.clone(), pool: id.pool.clone() }
    }

    fn of_slice(published: &PublishedSlice) -> Self {
        let slice = &published.slice;
        Self { driver: slice.driver.clone(), pool: slice.pool.name.clone() }
    }
}

/// A pool as one node sees it.
#[derive(Debug)]
pub(crate) struct PoolView {
    pub(crate) key: PoolKey,
    pub(crate) state: PoolState,
    /// Slices with devices for the node, by name.
    pub(crate) here: Vec<Arc<PublishedSlice>>,
    /// The other slices of the pool.
    pub(crate) elsewhere: Vec<Arc<PublishedSlice>>,
    pub(crate) counters: CounterTable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolState {
    Usable,
    /// Not all of its slices have been published yet.
    Incomplete,
    /// Its slices contradict each other.
    Invalid,
}

impl PoolView {
    fn without_devices(key: &PoolKey, state: PoolState) -> Self {
        let (here, elsewhere) = (Vec::new(), Vec::new());
        Self { key: key.clone(), state, here, elsewhere, counters: CounterTable::default() }
    }

    pub(crate) fn has_binding_conditions(&self) -> bool {
        let devices = self.here.iter().flat_map(|published| &published.slice.devices);
        devices.into_iter().any(|device| !device.binding_conditions.is_empty())
    }
}

/// The counters of a pool, numbered.
#[derive(Debug, Default)]
pub(crate) struct CounterTable {
    numbers: BTreeMap<Arc<str>, BTreeMap<Arc<str>, usize>>,
    /// Available amounts.
    pub(crate) values: Vec<Quantity>,
}

impl CounterTable {
    /// `None` if a set occurs twice.
    fn of(slices: &[&Arc<PublishedSlice>]) -> Option<Self> {
        let mut table = Self::default();
        for set in slices.iter().flat_map(|published| &published.slice.shared_counters) {
            let mut numbers = BTreeMap::new();
            for (name, value) in &set.counters {
                numbers.insert(name.clone(), table.values.len());
                table.values.push(*value);
            }
            if table.numbers.insert(set.name.clone(), numbers).is_some() {
                return None;
            }
        }
        Some(table)
    }

    pub(crate) fn number(&self, set: &str, counter: &str) -> Option<usize> {
        self.numbers.get(set)?.get(counter).copied()
    }

    /// Whether all counters exist that devices of `slices` consume.
    fn knows_all_of<'a>(&self, slices: impl IntoIterator<Item = &'a Arc<PublishedSlice>>) -> bool {
        let devices = slices.into_iter().flat_map(|published| &published.slice.devices);
        let mut used = devices.flat_map(|device| &device.consumes);
        used.all(|set| {
            let known = self.numbers.get(&set.name);
            known.is_some_and(|known| set.counters.keys().all(|name| known.contains_key(name)))
        })
    }
}

/// All slices of a pool, with cached views.
#[derive(Clone, Debug, Default)]
struct Slices {
    by_name: BTreeMap<Arc<str>, Arc<PublishedSlice>>,
    /// The view of nodes that all current slices are for.
    whole: OnceLock<Option<Arc<PoolView>>>,
    /// The view of nodes that only the counters are for.
    counters_alone: OnceLock<Option<Arc<PoolView>>>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Pools {
    pools: BTreeMap<PoolKey, Slices>,
    slices: BTreeMap<Arc<str>, PoolKey>,
    /// Pools with devices for one node, by node, with the number of such slices.
    local: Lookup<Arc<str>, BTreeMap<PoolKey, usize>>,
    /// Pools with devices for several nodes, with the number of such slices.
    wide: BTreeMap<PoolKey, usize>,
    /// Unusable pools with counters: they matter on every node.
    troubled: BTreeSet<PoolKey>,
}

impl Pools {
    pub(crate) fn insert(&mut self, published: Arc<PublishedSlice>) {
        self.remove(&published.slice.name);
        let key = PoolKey::of_slice(&published);
        self.count(&key, &published, true);
        let name = published.slice.name.clone();
        self.slices.insert(name.clone(), key.clone());
        let pool = self.pools.entry(key.clone()).or_default();
        pool.by_name.insert(name, published);
        self.changed(&key);
    }

    pub(crate) fn remove(&mut self, name: &str) {
        let Some(key) = self.slices.remove(name) else { return };
        let pool = self.pools.get_mut(&key);
        if let Some(published) = pool.and_then(|pool| pool.by_name.remove(name)) {
            self.count(&key, &published, false);
        }
        self.changed(&key);
    }

    pub(crate) fn slices(&self) -> impl Iterator<Item = &Arc<PublishedSlice>> {
        self.pools.values().flat_map(|pool| pool.by_name.values())
    }

    /// The slice of this device, of the newest generation.
    pub(crate) fn find(&self, id: &DeviceId) -> Option<(&Arc<PublishedSlice>, usize)> {
        let slices = self.pools.get(&PoolKey::of(id))?.by_name.values();
        let found = slices.filter_map(|published| {
            let devices = &published.slice.devices;
            let at = devices.iter().position(|device| device.name == id.device)?;
            Some((published, at))
        });
        found.max_by_key(|(published, _)| published.slice.pool.generation)
    }

    fn count(&mut self, key: &PoolKey, published: &PublishedSlice, more: bool) {
        if published.has_counters() {
            return;
        }
        let counts = match &published.slice.scope {
            NodeScope::Node(node) => self.local.entry(node.clone()).or_default(),
            NodeScope::Nowhere => return,
            NodeScope::Nodes(_) | NodeScope::AllNodes | NodeScope::PerDevice => &mut self.wide,
        };
        let count = counts.entry(key.clone()).or_default();
        *count = if more { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            counts.remove(key);
        }
        if let NodeScope::Node(node) = &published.slice.scope
            && self.local.get(node).is_some_and(BTreeMap::is_empty)
        {
            self.local.remove(node);
        }
    }

    fn changed(&mut self, key: &PoolKey) {
        let Some(pool) = self.pools.get_mut(key) else { return };
        pool.whole = OnceLock::new();
        pool.counters_alone = OnceLock::new();
        if pool.by_name.is_empty() {
            self.pools.remove(key);
            self.troubled.remove(key);
            return;
        }
        let alone = pool.counters_alone(key);
        if alone.is_some_and(|pool| pool.state != PoolState::Usable) {
            self.troubled.insert(key.clone());
        } else {
            self.troubled.remove(key);
        }
    }

    /// The pools that matter for `node`, in the order in which they are tried: those whose devices
    /// have binding conditions come last.
    pub(crate) fn gather(&self, node: &Node) -> Result<Vec<Arc<PoolView>>, SliceError> {
        let local = self.local.get(&node.name).into_iter().flat_map(BTreeMap::keys);
        let mut keys: Vec<&PoolKey> = local.chain(self.wide.keys()).chain(&self.troubled).collect();
        keys.sort_unstable();
        keys.dedup();
        let (mut first, mut last) = (Vec::with_capacity(keys.len()), Vec::new());
        for key in keys {
            let Some(slices) = self.pools.get(key) else { continue };
            if let Some(pool) = slices.for_node(key, node)? {
                if pool.has_binding_conditions() { &mut last } else { &mut first }.push(pool);
            }
        }
        first.append(&mut last);
        Ok(first)
    }
}

impl Slices {
    fn counters_alone(&self, key: &PoolKey) -> Option<&Arc<PoolView>> {
        let alone = self.counters_alone.get_or_init(|| {
            let counters = self.by_name.values().filter(|published| published.has_counters());
            self.view(key, counters.collect()).map(Arc::new)
        });
        alone.as_ref()
    }

    /// `None` if no slice concerns the node.
    fn for_node(&self, key: &PoolKey, node: &Node) -> Result<Option<Arc<PoolView>>, SliceError> {
        let mut concerned = Vec::with_capacity(self.by_name.len());
        for published in self.by_name.values() {
            if published.concerns(node)? {
                concerned.push(published);
            }
        }
        if concerned.len() == self.by_name.len() {
            let whole = self.whole.get_or_init(|| self.view(key, concerned).map(Arc::new));
            return Ok(whole.clone());
        }
        Ok(self.view(key, concerned).map(Arc::new))
    }

    /// The view of a node that these slices concern.
    fn view(&self, key: &PoolKey, mut concerned: Vec<&Arc<PublishedSlice>>) -> Option<PoolView> {
        let generation = concerned.iter().map(|published| published.slice.pool.generation).max()?;
        concerned.retain(|published| published.slice.pool.generation == generation);
        // A slice for one node is preferred.
        let local = |published: &&&Arc<PublishedSlice>| {
            matches!(published.slice.scope, NodeScope::Node(_)) && !published.has_counters()
        };
        let first = concerned.iter().find(local).or(concerned.first())?;
        let wanted = first.slice.pool.slice_count;
        let is_all = |count: usize| i64::try_from(count) == Ok(wanted);
        let mut elsewhere = Vec::new();
        if !is_all(concerned.len()) {
            let all = || self.by_name.values();
            // The driver is replacing these slices by others that are not for this node.
            if all().any(|published| published.slice.pool.generation > generation) {
                return None;
            }
            let current =
                |published: &&Arc<PublishedSlice>| published.slice.pool.generation == generation;
            if !is_all(all().filter(current).count()) {
                return Some(PoolView::without_devices(key, PoolState::Incomplete));
            }
            let here = |published: &&Arc<PublishedSlice>| {
                concerned.iter().any(|one| one.slice.name == published.slice.name)
            };
            elsewhere = all().filter(current).filter(|one| !here(one)).cloned().collect();
        }
        Some(checked(key, &concerned, elsewhere))
    }
}

/// A complete pool; invalid if it contradicts itself.
fn checked(
    key: &PoolKey,
    concerned: &[&Arc<PublishedSlice>],
    elsewhere: Vec<Arc<PublishedSlice>>,
) -> PoolView {
    let invalid = || PoolView::without_devices(key, PoolState::Invalid);
    let (counting, here): (Vec<&Arc<PublishedSlice>>, Vec<&Arc<PublishedSlice>>) =
        concerned.iter().partition(|published| published.has_counters());
    let devices = || here.iter().flat_map(|published| &published.slice.devices);
    let mut names: Vec<&Arc<str>> = devices().map(|device| &device.name).collect();
    names.sort_unstable();
    if names.windows(2).any(|pair| pair[0] == pair[1]) {
        return invalid();
    }
    let Some(counters) = CounterTable::of(&counting) else { return invalid() };
    if !counters.knows_all_of(concerned.iter().copied()) || !counters.knows_all_of(&elsewhere) {
        return invalid();
    }
    let here = here.into_iter().cloned().collect();
    PoolView { key: key.clone(), state: PoolState::Usable, here, elsewhere, counters }
}
