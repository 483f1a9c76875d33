//! Nodes: what a Node object says that matters for placement. Topology is in
//! [`machine`](crate::machine).

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::label::Labels;
use crate::resource::ResourceList;
use crate::taint::Taint;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub name: Arc<str>,
    pub labels: Labels,
    /// In the order in which they are written.
    pub taints: Vec<Taint>,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
    /// What pods may request in total.
    pub allocatable: ResourceList,
    pub images: Vec<Image>,
    /// Names of models on its disk.
    pub models: BTreeSet<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub names: Vec<Arc<str>>,
    pub size_bytes: i64,
}
