//! What was read, in the order of paths.
//!
//! Owns the list of files, directories and links that a reading asked for. Must not know what becomes
//! of it: `record` writes it down, without what is private.

use std::collections::BTreeMap;

use crate::root::Fault;

/// Something that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Taped {
    /// A text, as far as it was read.
    File(String),
    Directory,
    Link(String),
    /// It is there, and could not be read.
    Fault(Fault),
}

/// All that was read.
#[derive(Debug, Default)]
pub(crate) struct Tape {
    pub(crate) all: BTreeMap<String, Taped>,
}

impl Tape {
    pub(crate) fn file(&mut self, path: &str, found: &Result<(String, bool), Fault>) {
        let taped = match found {
            Ok((text, _)) => Taped::File(text.clone()),
            Err(Fault::Missing | Fault::Gone) => return,
            Err(fault) => Taped::Fault(fault.clone()),
        };
        self.all.insert(path.to_owned(), taped);
    }

    pub(crate) fn directory(&mut self, path: &str, fault: Option<&Fault>) {
        let taped = match fault {
            None => Taped::Directory,
            Some(Fault::Missing | Fault::Gone) => return,
            Some(fault) => Taped::Fault(fault.clone()),
        };
        self.all.entry(path.to_owned()).or_insert(taped);
    }

    pub(crate) fn link(&mut self, path: &str, target: &str) {
        self.all.insert(path.to_owned(), Taped::Link(target.to_owned()));
    }
}
