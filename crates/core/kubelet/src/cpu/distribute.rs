//! Distribution of CPUs: an even share from each of several NUMA nodes, chosen so that the free
//! CPUs stay balanced.
//!
//! Two defects of the kubelet are modelled:
//!
//! - A combination it remembers as the best shares memory with combinations tried later, which
//!   overwrite its last elements; see [`Combinations`].
//! - Its loops that distribute a remainder never end when the nodes have no whole group of CPUs
//!   left; here that is a [`Failure::Fault`].

use std::collections::BTreeSet;

use berth_model::idset::CpuSet;
use berth_model::machine::Machine;
use smallvec::SmallVec;

use super::StaticCpus;
use super::take::{CpuSelection, Order};
use crate::config::CpuOption;
use crate::outcome::Failure;

const ENDLESS: &str = "the kubelet would loop for ever distributing CPUs across NUMA nodes";

/// A number of CPUs for each of [`Search::nodes`].
type PerNode = SmallVec<[i64; 16]>;

/// Indexes into [`Search::nodes`].
type Combination = SmallVec<[u8; 16]>;

struct Search<'a> {
    machine: &'a Machine,
    policy: &'a StaticCpus,
    /// Positions of the NUMA nodes with free CPUs, each once.
    nodes: Order,
    free: PerNode,
    /// The nodes in the order in which they are visited: a node that spans sockets can occur once
    /// for each of them, and is then counted as often.
    visits: Combination,
    need: i64,
    /// CPUs are allocated in groups of this size.
    group: i64,
}

/// The best distribution found so far.
struct Best {
    /// Balance of what is left, in thousandths; lower is better.
    balance: Option<i64>,
    nodes: Combination,
    remainder_nodes: Combination,
    in_one_socket: bool,
}

impl StaticCpus {
    pub(super) fn take_distributed(
        &self,
        machine: &Machine,
        free: CpuSet,
        need: i64,
    ) -> Result<CpuSet, Failure> {
        let group =
            if self.has(CpuOption::FullPcpusOnly) { self.threads_per_core as i64 } else { 1 };
        if need < 1 {
            return Ok(CpuSet::EMPTY);
        }
        if need % group == 0 && need <= free.len() as i64 {
            let cpus = CpuSelection::new(machine, self, free, need);
            let search = Search::new(&cpus, need, group);
            if let Some(best) = search.best()? {
                return search.hand_out(cpus, &best);
            }
        }
        self.take_packed(machine, free, need, false)
    }

    /// The fewest and the most NUMA nodes to spread `need` CPUs over.
    fn nodes_needed(&self, machine: &Machine, search: &Search<'_>) -> (usize, usize) {
        let groups = divide_up(machine.cpus().len() as i64, search.group);
        let groups_per_node = divide_up(groups, self.domain.count() as i64);
        let groups_needed = divide_up(search.need, search.group);
        let fewest = divide_up(groups_needed, groups_per_node) as usize;
        (fewest, (groups_needed as usize).min(search.nodes.len()))
    }
}

/// Rounded up, for positive numbers.
fn divide_up(number: i64, by: i64) -> i64 {
    (number - 1) / by + 1
}

impl<'a> Search<'a> {
    fn new(cpus: &CpuSelection<'a>, need: i64, group: i64) -> Self {
        let (machine, policy) = (cpus.machine, cpus.policy);
        let mut nodes = Order::new();
        let mut visits = Combination::new();
        for at in cpus.numa_in_order() {
            let known = nodes.iter().position(|node| *node == at);
            visits.push(known.unwrap_or(nodes.len()) as u8);
            if known.is_none() {
                nodes.push(at);
            }
        }
        let free_cpus = |at: &u16| cpus.free.count_in(&machine.numa()[usize::from(*at)].cpus);
        let free = nodes.iter().map(|at| free_cpus(at) as i64).collect();
        Self { machine, policy, nodes, free, visits, need, group }
    }

    fn best(&self) -> Result<Option<Best>, Failure> {
        let by_socket = self.policy.has(CpuOption::AlignBySocket)
            && self.policy.version.distributes_within_sockets();
        let (fewest, most) = self.policy.nodes_needed(self.machine, self);
        for size in fewest..=most {
            let mut best = Best {
                balance: None,
                nodes: Combination::new(),
                remainder_nodes: Combination::new(),
                in_one_socket: false,
            };
            let mut found = false;
            let mut judged = BTreeSet::new();
            let mut combinations = Combinations::new(&self.visits, size);
            while let Some(nodes) = combinations.next() {
                if best.balance == Some(0) && (!by_socket || best.in_one_socket) {
                    break;
                }
                let in_one_socket = by_socket && self.in_one_socket(nodes);
                if self.each_once() && !judged.insert((in_one_socket, amounts(&self.free, nodes))) {
                    continue; // no better than the one just like it
                }
                let Some(share) = self.even_share(nodes, by_socket) else { continue };
                let (balance, remainder_nodes) = self.balance(nodes, share)?;
                let better = if in_one_socket == best.in_one_socket {
                    is_less(balance, best.balance)
                } else {
                    in_one_socket
                };
                if better {
                    found = true;
                    best.balance = balance;
                    best.remainder_nodes = remainder_nodes;
                    best.in_one_socket = in_one_socket;
                    combinations.retain();
                }
            }
            if found {
                best.nodes = combinations.retained();
                return Ok(Some(best));
            }
        }
        Ok(None)
    }

    /// Whether no NUMA node occurs twice. Then combinations whose nodes have the same numbers of
    /// CPUs, one by one, leave the same behind; only the first of them can be the best.
    fn each_once(&self) -> bool {
        self.visits.len() == self.nodes.len()
    }

    /// CPUs to take from each of `nodes` alike, in whole groups; `None` if they do not suffice.
    fn even_share(&self, nodes: &[u8], by_socket: bool) -> Option<i64> {
        let free = || nodes.iter().map(|node| self.free[usize::from(*node)]);
        let distinct = nodes.iter().fold(0u64, |seen, node| seen | 1 << node);
        let together: i64 =
            (0..self.free.len()).filter(|at| distinct >> at & 1 == 1).map(|at| self.free[at]).sum();
        if together < self.need {
            return None;
        }
        let whole_groups: i64 = free().map(|free| free / self.group).sum();
        if whole_groups * self.group < self.need {
            return None;
        }
        let mut share = self.share(nodes.len());
        if by_socket {
            share = self.capped(share, nodes);
        }
        free().all(|free| free >= share).then_some(share)
    }

    fn share(&self, nodes: usize) -> i64 {
        self.need / nodes as i64 / self.group * self.group
    }

    fn capped(&self, share: i64, nodes: &[u8]) -> i64 {
        let whole = |node: &u8| self.free[usize::from(*node)] / self.group * self.group;
        nodes.iter().map(whole).min().unwrap_or(share).min(share)
    }

    /// The balance after `share` from each of `nodes`, with the remainder from the best of their
    /// subsets; no balance if no subset has the remainder.
    fn balance(&self, nodes: &[u8], share: i64) -> Result<(Option<i64>, Combination), Failure> {
        let mut left = self.free.clone();
        nodes.iter().for_each(|node| left[usize::from(*node)] -= share);
        let remainder = self.need - share * nodes.len() as i64;
        if remainder == 0 {
            return Ok((Some(deviation_thousandths(&left)), Combination::new()));
        }
        let with_a_group: Combination =
            nodes.iter().copied().filter(|node| left[usize::from(*node)] >= self.group).collect();
        let mut best = (None, Combination::new());
        for size in (1..=with_a_group.len()).rev() {
            let mut subsets = Combinations::new(&with_a_group, size);
            let mut found = false;
            let mut judged = BTreeSet::new();
            while let Some(subset) = subsets.next() {
                if self.each_once() && !judged.insert(amounts(&left, subset)) {
                    continue; // no better than the one just like it
                }
                if subset.iter().map(|node| left[usize::from(*node)]).sum::<i64>() < remainder {
                    continue;
                }
                let mut left = left.clone();
                self.remove_in_turns(&mut left, subset, remainder)?;
                let balance = Some(deviation_thousandths(&left));
                if is_less(balance, best.0) {
                    best.0 = balance;
                    found = true;
                    subsets.retain();
                }
            }
            if found {
                best.1 = subsets.retained();
            }
        }
        Ok(best)
    }

    /// Takes `remainder` CPUs from `subset`, a group from each node in turn.
    fn remove_in_turns(
        &self,
        left: &mut PerNode,
        subset: &[u8],
        mut remainder: i64,
    ) -> Result<(), Failure> {
        while remainder > 0 {
            let before = remainder;
            for node in subset.iter().map(|node| usize::from(*node)) {
                if remainder > 0 && left[node] >= self.group {
                    left[node] -= self.group;
                    remainder -= self.group;
                }
            }
            if remainder == before {
                return Err(Failure::Fault(ENDLESS));
            }
        }
        Ok(())
    }

    fn in_one_socket(&self, nodes: &[u8]) -> bool {
        let cpus = |node: &u8| {
            let at = self.nodes[usize::from(*node)];
            self.machine.numa()[usize::from(at)].cpus
        };
        let all = nodes.iter().map(cpus).fold(CpuSet::EMPTY, |all, cpus| all | cpus);
        let sockets = self.machine.sockets().iter();
        sockets.filter(|socket| socket.cpus.intersects(&all)).count() == 1
    }

    fn hand_out(&self, mut cpus: CpuSelection<'_>, best: &Best) -> Result<CpuSet, Failure> {
        let mut share = self.share(best.nodes.len());
        if self.policy.version.distributes_within_sockets() {
            share = self.capped(share, &best.nodes);
        }
        let node_cpus =
            |node: &u8| self.machine.numa()[usize::from(self.nodes[usize::from(*node)])].cpus;
        for node in &best.nodes {
            let free = cpus.free & node_cpus(node);
            // A node that has less than its share gives nothing; the sum is checked at the end.
            let taken = self.policy.take_packed(self.machine, free, share, false);
            cpus.take(taken.unwrap_or_default());
        }
        let mut remainder = self.need - share * best.nodes.len() as i64;
        while remainder > 0 {
            let before = remainder;
            for node in &best.remainder_nodes {
                let free = cpus.free & node_cpus(node);
                if remainder > 0 && free.len() as i64 >= self.group {
                    let taken = self.policy.take_packed(self.machine, free, self.group, false);
                    cpus.take(taken.unwrap_or_default());
                    remainder -= self.group;
                }
            }
            if remainder == before {
                return Err(Failure::Fault(ENDLESS));
            }
        }
        match cpus.missing {
            0 => Ok(cpus.taken),
            missing => Err(Failure::CpuAccounting { missing }),
        }
    }
}

fn amounts(per_node: &PerNode, nodes: &[u8]) -> PerNode {
    nodes.iter().map(|node| per_node[usize::from(*node)]).collect()
}

/// No balance is worse than any.
fn is_less(one: Option<i64>, other: Option<i64>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one < other,
        (one, _) => one.is_some(),
    }
}

/// Standard deviation in thousandths; the mean is rounded to thousandths first.
fn deviation_thousandths(values: &[i64]) -> i64 {
    let count = values.len() as f64;
    let round = |value: f64| (value * 1000.0).round() / 1000.0;
    let mean = round(values.iter().map(|value| *value as f64).sum::<f64>() / count);
    let squares: f64 = values.iter().map(|value| (*value as f64 - mean).powi(2)).sum();
    ((squares / count).sqrt() * 1000.0).round() as i64
}

/// The combinations of `size` items, in lexicographic order, each in a buffer that behaves as a Go
/// slice grown by `append`: it is replaced when its capacity (1, 2, 4, 8, …) is exhausted, and
/// shared with the combinations that differ only after that point. The buffer is retained, not its
/// contents, so its tail changes as the walk continues.
struct Combinations<'a> {
    items: &'a [u8],
    /// Indexes into `items` of the current combination; empty before the first.
    current: SmallVec<[u8; 16]>,
    size: usize,
    started: bool,
    /// The current combination, and the number of its buffer.
    buffer: Combination,
    buffers: usize,
    /// The retained buffer's contents now, and its number.
    kept: Option<(Combination, usize)>,
}

impl<'a> Combinations<'a> {
    fn new(items: &'a [u8], size: usize) -> Self {
        Self {
            items,
            current: (0..size as u8).collect(),
            size,
            started: false,
            buffer: Combination::new(),
            buffers: 0,
            kept: None,
        }
    }

    fn next(&mut self) -> Option<&[u8]> {
        if self.size == 0 || self.size > self.items.len() {
            return None;
        }
        let changed_from = if self.started { self.advance()? } else { 0 };
        self.started = true;
        self.buffer = self.current.iter().map(|index| self.items[usize::from(*index)]).collect();
        if changed_from < self.own_elements() {
            self.buffers += 1;
        } else if let Some((kept, buffer)) = &mut self.kept
            && *buffer == self.buffers
        {
            // The walk also writes into the retained buffer, from the first changed element on.
            kept[changed_from..].copy_from_slice(&self.buffer[changed_from..]);
        }
        Some(&self.buffer)
    }

    /// Retains the current combination's buffer.
    fn retain(&mut self) {
        self.kept = Some((self.buffer.clone(), self.buffers));
    }

    /// The retained buffer's contents now.
    fn retained(self) -> Combination {
        self.kept.map(|(kept, _)| kept).unwrap_or_default()
    }

    /// Steps to the next combination; returns the first element that differs.
    fn advance(&mut self) -> Option<usize> {
        let last = self.items.len() as u8;
        let size = self.size;
        let at = (0..size).rev().find(|at| self.current[*at] < last - (size - at) as u8)?;
        let start = self.current[at] + 1;
        for (offset, slot) in self.current[at..].iter_mut().enumerate() {
            *slot = start + offset as u8;
        }
        Some(at)
    }

    /// Elements up to and including the one whose append allocated the buffer: 1, 2, 3, 5, 9, …
    fn own_elements(&self) -> usize {
        match self.size {
            0..=2 => self.size,
            size => (1 << (size - 1).ilog2()) + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kubelet's walk, with explicit buffers.
    fn retained_by_recursion(items: &[u8], size: usize, stop_after: usize, keep: usize) -> Vec<u8> {
        use std::cell::RefCell;
        use std::rc::Rc;
        type Buffer = Rc<RefCell<Vec<u8>>>;
        struct Walk<'a> {
            items: &'a [u8],
            seen: usize,
            keep: usize,
            stop_after: usize,
            kept: Option<Buffer>,
        }
        fn append(buffer: &Buffer, len: usize, cap: usize, item: u8) -> (Buffer, usize) {
            let (target, cap) = if len < cap {
                (buffer.clone(), cap)
            } else {
                let grown = (cap * 2).max(1);
                let mut copy = buffer.borrow()[..len].to_vec();
                copy.resize(grown, 0);
                (Rc::new(RefCell::new(copy)), grown)
            };
            target.borrow_mut()[len] = item;
            (target, cap)
        }
        fn walk(
            w: &mut Walk<'_>,
            left: usize,
            start: usize,
            b: &Buffer,
            len: usize,
            cap: usize,
        ) -> bool {
            if left == 0 {
                if w.seen == w.stop_after {
                    return true;
                }
                if w.seen == w.keep {
                    w.kept = Some(b.clone());
                }
                w.seen += 1;
                return false;
            }
            for i in start..=w.items.len() - left {
                let (next, cap) = append(b, len, cap, w.items[i]);
                if walk(w, left - 1, i + 1, &next, len + 1, cap) {
                    return true;
                }
            }
            false
        }
        let mut w = Walk { items, seen: 0, keep, stop_after, kept: None };
        walk(&mut w, size, 0, &Rc::new(RefCell::new(Vec::new())), 0, 0);
        w.kept.unwrap().borrow()[..size].to_vec()
    }

    #[test]
    fn retained_combinations_change_as_go_slices_do() {
        for count in 1..=9u8 {
            // Some items occur twice.
            let items: Vec<u8> = (0..count).map(|item| item / 3 * 2).collect();
            for size in 1..=usize::from(count) {
                let total = {
                    let mut all = Combinations::new(&items, size);
                    std::iter::from_fn(|| all.next().map(|_| ())).count()
                };
                for keep in 0..total {
                    for stop_after in [keep + 1, keep + 2, keep + 5, total].map(|n| n.min(total)) {
                        let mut walk = Combinations::new(&items, size);
                        let mut seen = 0;
                        while walk.next().is_some() {
                            if seen == stop_after {
                                break;
                            }
                            if seen == keep {
                                walk.retain();
                            }
                            seen += 1;
                        }
                        let request = retained_by_recursion(&items, size, stop_after, keep);
                        assert_eq!(walk.retained().as_slice(), request, "{count} {size} {keep}");
                    }
                }
            }
        }
    }
}
