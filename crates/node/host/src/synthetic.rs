//! Synthetic machines for tests: the files that a machine of a given shape would have.
//!
//! The shapes are those of real machines; the files are generated from them, not copied.

mod devices;
mod kubelet;
mod machine;
mod pods;
mod shapes;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

pub use devices::SyntheticDevice;
pub use kubelet::add_kubelet;
pub use machine::{SyntheticMachine, SyntheticNode};
pub use pods::{
    CgroupVersion, Driver, Layout, Runtime, SyntheticContainer, SyntheticPod, SyntheticProcess,
};
pub use shapes::{
    bare_gpu_vm, epyc_7763, epyc_9654, hbm_xeon, no_gpu, with_holes, without_numa_of_devices,
    xeon_8480_snc2,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    File(Vec<u8>),
    /// With this target.
    Link(String),
    Directory,
}

/// Files, links and directories, by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    entries: BTreeMap<String, Entry>,
}

impl Tree {
    /// Replaces what is at the path.
    pub fn file(&mut self, path: impl Into<String>, text: impl AsRef<[u8]>) -> &mut Self {
        self.entries.insert(path.into(), Entry::File(text.as_ref().to_vec()));
        self
    }

    pub fn line(&mut self, path: impl Into<String>, text: impl std::fmt::Display) -> &mut Self {
        self.file(path, format!("{text}\n"))
    }

    pub fn link(&mut self, path: impl Into<String>, target: impl Into<String>) -> &mut Self {
        self.entries.insert(path.into(), Entry::Link(target.into()));
        self
    }

    pub fn directory(&mut self, path: impl Into<String>) -> &mut Self {
        self.entries.insert(path.into(), Entry::Directory);
        self
    }

    pub fn remove(&mut self, path: &str) -> &mut Self {
        let below = format!("{path}/");
        self.entries.retain(|at, _| at != path && !at.starts_with(&below));
        self
    }

    pub fn get(&self, path: &str) -> Option<&Entry> {
        self.entries.get(path)
    }

    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Writes all entries over existing ones. Replaces files by renaming, as kubelets do.
    pub fn write_over(&self, to: &Path) -> io::Result<()> {
        for (path, entry) in &self.entries {
            let at = to.join(path);
            if let Some(parent) = at.parent() {
                fs::create_dir_all(parent)?;
            }
            match entry {
                Entry::File(bytes) if fs::read(&at).ok().as_ref() != Some(bytes) => {
                    let beside = at.with_file_name(".beside");
                    fs::write(&beside, bytes)?;
                    fs::rename(&beside, &at)?;
                }
                Entry::Link(target) if fs::read_link(&at).is_err() => {
                    std::os::unix::fs::symlink(target, &at)?;
                }
                Entry::Directory => fs::create_dir_all(&at)?,
                Entry::File(_) | Entry::Link(_) => {}
            }
        }
        Ok(())
    }

    /// Writes all entries into a new directory.
    pub fn write(&self, to: &Path) -> io::Result<()> {
        let mut made = std::collections::BTreeSet::new();
        for (path, entry) in &self.entries {
            let at = to.join(path);
            if let Some(parent) = at.parent()
                && made.insert(parent.to_owned())
            {
                fs::create_dir_all(parent)?;
            }
            match entry {
                Entry::File(bytes) => fs::write(&at, bytes)?,
                Entry::Link(target) => std::os::unix::fs::symlink(target, &at)?,
                Entry::Directory => fs::create_dir_all(&at)?,
            }
        }
        Ok(())
    }
}
