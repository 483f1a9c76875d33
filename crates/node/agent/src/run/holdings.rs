//! Where it is known from what the kubelet has given to whom.
//!
//! Owns the place at which another source is put in: the kubelet's files are read in any case, and whoever
//! knows better (its API for pods' resources) corrects what they say. Must not know what follows from it.

use berth_host::Diagnosis;
use futures::future::BoxFuture;

use crate::publish::{Offered, Resident, offered};
use crate::report::Reading;

/// What a source has to say.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// Devices that the kubelet can give.
    pub offered: Vec<Offered>,
    /// What it could not find out.
    pub diagnoses: Vec<Diagnosis>,
}

/// A source.
pub trait Holdings: Send {
    /// Corrects what the kubelet's files say of who holds what, and tells which devices there are. Pods
    /// come with the names by which some sources know them.
    fn tell<'a>(
        &'a mut self,
        reading: &'a mut Reading,
        residents: &'a [Resident],
    ) -> BoxFuture<'a, Told>;
}

/// The kubelet's files, as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checkpoints;

impl Holdings for Checkpoints {
    fn tell<'a>(
        &'a mut self,
        reading: &'a mut Reading,
        _residents: &'a [Resident],
    ) -> BoxFuture<'a, Told> {
        let told = Told { offered: offered(reading), diagnoses: Vec::new() };
        Box::pin(std::future::ready(told))
    }
}
