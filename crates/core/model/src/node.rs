//! Nodes as the cluster describes them.
//!
//! Owns what a Node object says that matters for placement. Must not know what runs there, nor what
//! the machine looks like inside; that is [`machine`](crate::machine).

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::label::Labels;
use crate::resource::ResourceList;
use crate::taint::Taint;

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: Arc<str>,
    /// Its labels.
    pub labels: Labels,
    /// Its taints, in the order in which they are written.
    pub taints: Vec<Taint>,
    /// Whether it is cordoned (`spec.unschedulable`).
    pub unschedulable: bool,
    /// What pods may request in all.
    pub allocatable: ResourceList,
    /// Container images it holds.
    pub images: Vec<Image>,
    /// Models it holds, by name.
    pub models: BTreeSet<Arc<str>>,
}

/// A container image on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// All its names.
    pub names: Vec<Arc<str>>,
    /// Its size.
    pub size_bytes: i64,
}
