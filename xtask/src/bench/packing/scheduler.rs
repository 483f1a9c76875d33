//! What is measured: something that places pods; and the books that check it.
//!
//! Owns the interface between a run and whoever decides in it, and the ledger of who holds what,
//! which shares nothing with them. Must not know how anyone decides.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use berth_packing::fleet::KindIx;
use berth_packing::node::{FreeNode, GpuPositions};
use berth_packing::request::{GpuRequest, Part, Request};

use super::trace::Cluster;

/// A pod of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodIx(pub(crate) u64);

/// Where a pod goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    /// Position in the cluster's nodes.
    pub(crate) node: usize,
    pub(crate) gpus: GpuPositions,
}

/// Places pods one by one as they arrive.
pub(crate) trait Scheduler {
    /// A pod has arrived: its place, or `None` if no node can take it.
    fn arrive(&mut self, pod: PodIx, request: &Request) -> Result<Option<Placement>>;

    /// A pod that had a place has gone.
    fn depart(&mut self, pod: PodIx) -> Result<()>;
}

/// The cluster with nothing on it.
pub(crate) fn empty_nodes(cluster: &Cluster) -> Vec<FreeNode> {
    let empty = |machine| FreeNode::empty(machine, KindIx::default());
    cluster.machines.iter().map(empty).collect()
}

/// Who holds what. Believes nobody.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    pub(crate) nodes: Vec<FreeNode>,
    pub(crate) held: BTreeMap<PodIx, (Request, Placement)>,
    /// By node.
    pub(crate) pods: Vec<Vec<PodIx>>,
    pub(crate) allocated_milli: u64,
}

impl Ledger {
    pub(crate) fn new(cluster: &Cluster) -> Self {
        let nodes = empty_nodes(cluster);
        let pods = vec![Vec::new(); nodes.len()];
        Self { nodes, held: BTreeMap::new(), pods, allocated_milli: 0 }
    }

    /// Writes a decision down, after a look at whether it is possible and owed.
    pub(crate) fn record(
        &mut self,
        pod: PodIx,
        request: &Request,
        placement: Option<&Placement>,
    ) -> Result<()> {
        let Some(placement) = placement else {
            let able = self.nodes.iter().position(|node| node.can_take(request));
            ensure!(able.is_none(), "{request:?} was turned away, but node {able:?} can take it");
            return Ok(());
        };
        let node = self.nodes.get_mut(placement.node).context("a placement on no node")?;
        let part = match request.gpus {
            GpuRequest::Share(part) => part,
            GpuRequest::None | GpuRequest::Whole(_) => Part::WHOLE,
        };
        let mut gpus = placement.gpus.clone();
        gpus.sort_unstable();
        gpus.dedup();
        let room = |at: &u16| node.gpus.get(usize::from(*at)).is_some_and(|free| free.holds(part));
        ensure!(
            node.has_host_room(request)
                && gpus.len() == usize::from(request.gpus.count())
                && gpus.iter().all(room),
            "{request:?} does not fit where it was put: {node:?}"
        );
        node.take(request, &placement.gpus);
        self.allocated_milli += request.gpus.total_milli();
        self.pods.get_mut(placement.node).context("no such node")?.push(pod);
        let before = self.held.insert(pod, (*request, placement.clone()));
        ensure!(before.is_none(), "{pod:?} was placed twice");
        Ok(())
    }

    /// A pod gives back what it holds: what that was, if anything.
    pub(crate) fn release(&mut self, pod: PodIx) -> Option<Request> {
        let (request, placement) = self.held.remove(&pod)?;
        self.nodes.get_mut(placement.node)?.release(&request, &placement.gpus);
        self.pods.get_mut(placement.node)?.retain(|other| *other != pod);
        self.allocated_milli -= request.gpus.total_milli();
        Some(request)
    }
}
