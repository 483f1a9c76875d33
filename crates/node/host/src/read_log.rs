//! Log of the files, directories and links that a reading asked for; [`crate::record`] writes them down.

use std::collections::BTreeMap;

use crate::root::Fault;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LoggedRead {
    /// The text, as far as it was read.
    File(String),
    Directory,
    Link(String),
    /// It exists, but could not be read.
    Fault(Fault),
}

/// By path.
#[derive(Debug, Default)]
pub(crate) struct ReadLog {
    pub(crate) all: BTreeMap<String, LoggedRead>,
}

impl ReadLog {
    pub(crate) fn file(&mut self, path: &str, found: &Result<(String, bool), Fault>) {
        let logged = match found {
            Ok((text, _)) => LoggedRead::File(text.clone()),
            Err(Fault::Missing | Fault::Gone) => return,
            Err(fault) => LoggedRead::Fault(fault.clone()),
        };
        self.all.insert(path.to_owned(), logged);
    }

    pub(crate) fn directory(&mut self, path: &str, fault: Option<&Fault>) {
        let logged = match fault {
            None => LoggedRead::Directory,
            Some(Fault::Missing | Fault::Gone) => return,
            Some(fault) => LoggedRead::Fault(fault.clone()),
        };
        self.all.entry(path.to_owned()).or_insert(logged);
    }

    pub(crate) fn link(&mut self, path: &str, target: &str) {
        self.all.insert(path.to_owned(), LoggedRead::Link(target.to_owned()));
    }
}
