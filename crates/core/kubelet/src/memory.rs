//! The static memory manager policy.
//!
//! NUMA nodes that serve one container together form a group; a node is either in one group or
//! serves alone. Free bytes move between the nodes of a group as in the kubelet: taken from and
//! returned to the lowest node first.

use berth_model::machine::Machine;
use berth_model::numa::NumaMask;
use berth_model::pod::ContainerKind;
use berth_model::resource::MemoryKind;
use smallvec::SmallVec;

use crate::config::{ConfigError, KubeletVersion, ReservedMemory};
use crate::demand::MemoryDemand;
use crate::hint::{Hint, HintSource, Hints, most_of_nodes};
use crate::outcome::{Failure, MemoryBlock};

const UNLISTED: &str = "the kubelet would crash: a NUMA node does not list the requested page size";

const WITHOUT_ORDINARY: &str =
    "the kubelet would crash: a container of a Guaranteed pod requests hugepages but no memory";

/// The static policy on one machine.
#[derive(Clone, Debug)]
pub(crate) struct StaticMemory {
    kinds: Vec<MemoryKind>,
    nodes: usize,
    /// By node, then kind: bytes for pods; `None` if the node does not list the kind.
    allocatable: Vec<Option<u64>>,
    /// By kind, then number of NUMA nodes: the most bytes that many nodes have.
    most: Vec<Vec<u64>>,
    /// Containers without memory requests are ignored.
    skips_empty: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemoryLedger {
    groups: SmallVec<[Group; 8]>,
    /// By node, then kind.
    cells: SmallVec<[Cell; 24]>,
    /// A NUMA node has served in two different groups at once.
    pub(crate) groups_overlapped: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    /// Blocks on this node.
    blocks: u32,
    /// The nodes it serves together with; itself if it serves alone.
    members: NumaMask,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    free: u64,
    taken: u64,
}

/// Memory of the pod's init containers that later containers may reuse, by exact group.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReusableMemory(SmallVec<[MemoryBlock; 2]>);

type Request = SmallVec<[(usize, u64); 2]>;

impl StaticMemory {
    pub(crate) fn new(
        machine: &Machine,
        version: KubeletVersion,
        reserved: &[ReservedMemory],
    ) -> Result<Self, ConfigError> {
        for ReservedMemory { numa, kind, .. } in reserved {
            let field = format!("memory_manager.reserved[{numa}][{kind}]");
            let Some(position) = machine.numa_position(*numa) else {
                return Err(ConfigError::new(field, "there is no such NUMA node; correct the id"));
            };
            if total_bytes(machine, position, *kind).is_none() {
                let problem = "the NUMA node does not list this kind of memory; remove the entry";
                return Err(ConfigError::new(field, problem));
            }
        }
        let ordinary = reserved.iter().filter(|amount| amount.kind == MemoryKind::Ordinary);
        if ordinary.map(|amount| amount.bytes).max().unwrap_or(0) == 0 {
            let problem = "is empty; the Static policy needs some memory reserved for the system";
            return Err(ConfigError::new("memory_manager.reserved", problem));
        }
        let kinds = machine.memory_kinds().to_vec();
        let mut allocatable: Vec<Option<u64>> = Vec::new();
        for position in 0..machine.numa().len() {
            for kind in &kinds {
                allocatable.push(allocatable_bytes(machine, position, *kind, reserved)?);
            }
        }
        let nodes = machine.numa().len();
        let of_kind = |kind: usize| allocatable.iter().skip(kind).step_by(kinds.len());
        let most = (0..kinds.len())
            .map(|kind| most_of_nodes(of_kind(kind).map(|bytes| bytes.unwrap_or(0))))
            .collect();
        Ok(Self {
            kinds,
            nodes,
            allocatable,
            most,
            skips_empty: version.skips_containers_without_memory(),
        })
    }

    pub(crate) fn empty_ledger(&self) -> MemoryLedger {
        MemoryLedger {
            groups: (0..self.nodes)
                .map(|node| Group { blocks: 0, members: NumaMask::single(node) })
                .collect(),
            cells: self
                .allocatable
                .iter()
                .map(|bytes| Cell { free: bytes.unwrap_or(0), taken: 0 })
                .collect(),
            groups_overlapped: false,
        }
    }

    /// In the order in which [`Self::free_bytes`] lists them.
    pub(crate) fn kinds(&self) -> &[MemoryKind] {
        &self.kinds
    }

    /// Index of the cell of a NUMA node and kind.
    fn at(&self, node: usize, kind: usize) -> usize {
        node * self.kinds.len() + kind
    }

    /// By node; `None` if a node does not list the kind.
    pub(crate) fn free_bytes(&self, ledger: &MemoryLedger, kind: usize) -> Vec<Option<u64>> {
        let cells = (0..self.nodes).map(|node| self.at(node, kind));
        cells.map(|at| self.allocatable[at].map(|_| ledger.cells[at].free)).collect()
    }

    /// Amounts by index of kind.
    fn request(&self, bytes: &[(MemoryKind, u64)]) -> Result<Request, Failure> {
        let index = |(kind, bytes): &(MemoryKind, u64)| {
            self.kinds.iter().position(|known| known == kind).map(|at| (at, *bytes))
        };
        bytes.iter().map(index).collect::<Option<_>>().ok_or(Failure::Fault(UNLISTED))
    }

    /// The kubelet crashes when it looks up a kind on a NUMA node that does not list it.
    fn look_up(&self, request: &Request, nodes: NumaMask) -> Result<(), Failure> {
        let listed = |(kind, _): &(usize, u64)| {
            nodes.iter().all(|node| self.allocatable[self.at(node, *kind)].is_some())
        };
        if request.iter().all(listed) { Ok(()) } else { Err(Failure::Fault(UNLISTED)) }
    }

    /// The hints for a request.
    pub(crate) fn hint_source<'a>(
        &'a self,
        ledger: &'a MemoryLedger,
        reusable: &'a ReusableMemory,
        demand: &MemoryDemand,
    ) -> Result<HintSource<'a>, Failure> {
        let MemoryDemand::Bytes(bytes) = demand else { return Ok(HintSource::Indifferent) };
        let hints = self.hints_for(ledger, reusable, self.request(bytes)?);
        self.look_up(&hints.request, hints.domain())?;
        // Without a feasible mask there is no preference: the failure comes later, when allocating.
        Ok(if !hints.request.is_empty() && hints.best(NumaMask::EMPTY).is_some() {
            HintSource::Memory(hints)
        } else {
            HintSource::Indifferent
        })
    }

    fn hints_for<'a>(
        &'a self,
        ledger: &'a MemoryLedger,
        reusable: &'a ReusableMemory,
        request: Request,
    ) -> MemoryHints<'a> {
        let narrowest = self.narrowest(&request);
        MemoryHints { policy: self, ledger, reusable, request, narrowest }
    }

    /// Size of the narrowest masks that have enough of every kind on an empty machine.
    fn narrowest(&self, request: &Request) -> usize {
        let least = |(kind, bytes): &(usize, u64)| {
            self.most[*kind].iter().position(|most| most >= bytes).unwrap_or(self.nodes)
        };
        let least = request.iter().map(least).max().unwrap_or(0).max(1);
        let all = NumaMask::first(self.nodes);
        let enough = |size: &usize| all.subsets(*size).any(|mask| self.could_hold(mask, request));
        (least..self.nodes).find(enough).unwrap_or(self.nodes)
    }

    fn could_hold(&self, mask: NumaMask, request: &Request) -> bool {
        request.iter().all(|(kind, bytes)| {
            let of_node = |node: usize| self.allocatable[self.at(node, *kind)];
            let held = mask.iter().filter_map(of_node).fold(0u64, u64::saturating_add);
            held >= *bytes
        })
    }

    /// The group of NUMA nodes for a container's memory.
    pub(crate) fn choose(
        &self,
        ledger: &MemoryLedger,
        reusable: &ReusableMemory,
        demand: &MemoryDemand,
        hint: Hint,
    ) -> Result<Option<NumaMask>, Failure> {
        let bytes = match demand {
            MemoryDemand::Unpinned => return Ok(None),
            MemoryDemand::NotWhole => return Err(Failure::MemoryNotWhole),
            MemoryDemand::Bytes(bytes) if bytes.is_empty() && self.skips_empty => return Ok(None),
            MemoryDemand::Bytes(bytes) => bytes,
        };
        let hints = self.hints_for(ledger, reusable, self.request(bytes)?);
        let best = |within: NumaMask, none: Failure| {
            self.look_up(&hints.request, hints.domain())?;
            hints.best(within).ok_or(none)
        };
        // The kubelet looks only at the hints for ordinary memory, which are missing without it.
        let ordinary = bytes.first().is_some_and(|(kind, _)| *kind == MemoryKind::Ordinary);
        let (mut mask, preferred) = match hint.numa {
            Some(mask) => (mask, hint.preferred),
            None => {
                if bytes.is_empty() {
                    return Err(Failure::MemoryNoDefault);
                }
                let best = best(NumaMask::EMPTY, Failure::MemoryNoDefault)?;
                if !ordinary {
                    return Err(Failure::Fault(WITHOUT_ORDINARY));
                }
                if hint.preferred && !hints.preferred(best) {
                    return Err(Failure::MemoryDefaultNotPreferred);
                }
                (best, hints.preferred(best))
            }
        };
        self.look_up(&hints.request, mask)?;
        if !hints.has_free(mask) {
            let wider = best(mask, Failure::MemoryNoExtension)?;
            if !ordinary {
                return Err(Failure::MemoryNoExtension);
            }
            if preferred && !hints.preferred(wider) {
                return Err(Failure::MemoryExtensionNotPreferred);
            }
            mask = wider;
        }
        if mask.count() > 1 && ledger.conflicts(mask) {
            Err(Failure::MemoryGroupConflict)
        } else {
            Ok(Some(mask))
        }
    }

    /// Allocates a container's memory on the group `mask`.
    pub(crate) fn take(
        &self,
        ledger: &mut MemoryLedger,
        reusable: &mut ReusableMemory,
        demand: &MemoryDemand,
        mask: NumaMask,
        container: ContainerKind,
    ) -> SmallVec<[MemoryBlock; 2]> {
        let MemoryDemand::Bytes(bytes) = demand else { return SmallVec::new() };
        let mut blocks = SmallVec::new();
        for (kind, bytes) in bytes {
            let block = MemoryBlock { kind: *kind, numa: mask, bytes: *bytes };
            let fresh = bytes.saturating_sub(reusable.bytes(*kind, mask));
            self.claim(ledger, MemoryBlock { bytes: fresh, ..block });
            blocks.push(block);
        }
        for block in &blocks {
            reusable.update(*block, container);
        }
        blocks
    }

    /// Takes a block from the nodes of its group, from the lowest first.
    pub(crate) fn claim(&self, ledger: &mut MemoryLedger, block: MemoryBlock) {
        let mut missing = block.bytes;
        for node in block.numa.iter() {
            let group = &mut ledger.groups[node];
            ledger.groups_overlapped |= group.blocks > 0 && group.members != block.numa;
            group.blocks += 1;
            group.members = block.numa;
            if let Some(cell) = self.cell(ledger, node, block.kind) {
                let part = missing.min(cell.free);
                cell.free -= part;
                cell.taken += part;
                missing -= part;
            }
        }
    }

    /// Returns a block, to the lowest node of its group first.
    pub(crate) fn release(&self, ledger: &mut MemoryLedger, block: MemoryBlock) {
        let mut returned = block.bytes;
        for node in block.numa.iter() {
            let group = &mut ledger.groups[node];
            group.blocks = group.blocks.saturating_sub(1);
            if group.blocks == 0 {
                group.members = NumaMask::single(node);
            }
            if let Some(cell) = self.cell(ledger, node, block.kind) {
                let part = returned.min(cell.taken);
                cell.free += part;
                cell.taken -= part;
                returned -= part;
            }
        }
    }

    fn cell<'l>(
        &self,
        ledger: &'l mut MemoryLedger,
        node: usize,
        kind: MemoryKind,
    ) -> Option<&'l mut Cell> {
        let kind = self.kinds.iter().position(|known| *known == kind)?;
        ledger.cells.get_mut(self.at(node, kind))
    }
}

fn total_bytes(machine: &Machine, position: usize, kind: MemoryKind) -> Option<u64> {
    let node = machine.numa().get(position)?;
    match kind {
        MemoryKind::Ordinary => Some(node.memory_bytes),
        MemoryKind::Hugepages { page_bytes } => {
            node.hugepages.get(&page_bytes).map(|pages| page_bytes.saturating_mul(*pages))
        }
    }
}

/// What remains of a kind after the system's reservation and, for ordinary memory, hugepages.
fn allocatable_bytes(
    machine: &Machine,
    position: usize,
    kind: MemoryKind,
    reserved: &[ReservedMemory],
) -> Result<Option<u64>, ConfigError> {
    let Some(total) = total_bytes(machine, position, kind) else { return Ok(None) };
    let node = &machine.numa()[position];
    let for_system = reserved
        .iter()
        .filter(|amount| amount.numa == node.id && amount.kind == kind)
        .fold(0u64, |sum, amount| sum.saturating_add(amount.bytes));
    let in_hugepages = match kind {
        // That these fit was checked with the machine.
        MemoryKind::Ordinary => node.hugepages.iter().map(|(size, pages)| size * pages).sum(),
        MemoryKind::Hugepages { .. } => 0u64,
    };
    let left = total.checked_sub(in_hugepages).and_then(|rest| rest.checked_sub(for_system));
    left.map(Some).ok_or_else(|| {
        let field = format!("memory_manager.reserved[{}][{kind}]", node.id);
        let problem = format!(
            "{for_system} bytes exceed the {} bytes the NUMA node has; reserve less",
            total - in_hugepages
        );
        ConfigError::new(field, problem)
    })
}

impl MemoryLedger {
    /// Whether some node of `mask` serves alone or in another group.
    fn conflicts(&self, mask: NumaMask) -> bool {
        mask.iter()
            .map(|node| self.groups[node])
            .any(|group| group.blocks > 0 && (group.members.count() == 1 || group.members != mask))
    }
}

impl ReusableMemory {
    fn bytes(&self, kind: MemoryKind, mask: NumaMask) -> u64 {
        let same = |block: &&MemoryBlock| block.kind == kind && block.numa == mask;
        self.0.iter().find(same).map_or(0, |block| block.bytes)
    }

    /// Memory of an init container becomes reusable; later containers use it up.
    fn update(&mut self, used: MemoryBlock, by: ContainerKind) {
        let entry = self.0.iter_mut().find(|left| left.kind == used.kind && left.numa == used.numa);
        match (entry, by) {
            (Some(left), ContainerKind::Init) => left.bytes = left.bytes.max(used.bytes),
            (None, ContainerKind::Init) => self.0.push(used),
            (Some(left), _) => left.bytes = left.bytes.saturating_sub(used.bytes),
            (None, _) => {}
        }
    }
}

pub(crate) struct MemoryHints<'a> {
    policy: &'a StaticMemory,
    ledger: &'a MemoryLedger,
    reusable: &'a ReusableMemory,
    request: Request,
    narrowest: usize,
}

impl MemoryHints<'_> {
    fn free(&self, mask: NumaMask, kind: usize) -> u64 {
        let cells = mask.iter().map(|node| self.ledger.cells[self.policy.at(node, kind)].free);
        cells.fold(0, u64::saturating_add)
    }

    /// Whether `mask` has the bytes, without those reusable from init containers.
    fn has_free(&self, mask: NumaMask) -> bool {
        self.request.iter().all(|(kind, bytes)| self.free(mask, *kind) >= *bytes)
    }

    /// The narrowest feasible mask that contains `within`; the preferred ones are the narrowest.
    fn best(&self, within: NumaMask) -> Option<NumaMask> {
        let domain = self.domain();
        let least = self.narrowest.max(within.count());
        (least..=domain.count()).find_map(|size| {
            let mut masks = domain.subsets(size);
            masks.find(|mask| within.is_subset(*mask) && self.feasible(*mask))
        })
    }
}

impl Hints for MemoryHints<'_> {
    fn domain(&self) -> NumaMask {
        NumaMask::first(self.policy.nodes)
    }

    fn narrowest(&self) -> usize {
        self.narrowest
    }

    fn feasible(&self, mask: NumaMask) -> bool {
        let apart = match mask.count() {
            1 => mask.iter().all(|node| self.ledger.groups[node].members.count() == 1),
            _ => !self.ledger.conflicts(mask),
        };
        let enough = |(kind, bytes): &(usize, u64)| {
            let reusable = self.reusable.bytes(self.policy.kinds[*kind], mask);
            self.free(mask, *kind).saturating_add(reusable) >= *bytes
        };
        apart && self.policy.could_hold(mask, &self.request) && self.request.iter().all(enough)
    }

    fn resources(&self) -> usize {
        self.request.len()
    }
}
