//! Notifications (inotify) when the kubelet replaces its state files, or creates or removes cgroups of pods.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

/// Names and endings of relevant files; the kubelet's directories contain many others.
const NAMES: [&str; 3] =
    ["cpu_manager_state", "memory_manager_state", "kubelet_internal_checkpoint"];
const ENDINGS: [&str; 3] = [".yaml", ".json", ".conf"];

/// Buffer size for events.
const EVENTS_BYTES: usize = 4096;

/// Watched directories.
pub(super) struct Files {
    events: AsyncFd<OwnedFd>,
    watched: BTreeMap<PathBuf, i32>,
}

fn what() -> WatchFlags {
    WatchFlags::CREATE
        | WatchFlags::CLOSE_WRITE
        | WatchFlags::DELETE
        | WatchFlags::MOVED_TO
        | WatchFlags::ONLYDIR
}

impl Files {
    #[expect(
        deprecated,
        reason = "it is unsound for types that lie about their descriptor; an OwnedFd does not, and the \
                  other way is unsafe code"
    )]
    pub(super) fn new() -> io::Result<Self> {
        let events = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Self { events: AsyncFd::new(events)?, watched: BTreeMap::new() })
    }

    /// Watches exactly these directories, and returns those that cannot be watched.
    pub(super) fn keep(&mut self, wanted: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
        let gone: Vec<PathBuf> =
            self.watched.keys().filter(|path| !wanted.contains(*path)).cloned().collect();
        for path in gone {
            if let Some(number) = self.watched.remove(&path) {
                // Fails for a directory that was removed, which is no longer watched anyway.
                let _ = inotify::remove_watch(self.events.get_ref(), number);
            }
        }
        let mut failed = Vec::new();
        for path in wanted {
            if self.watched.contains_key(path) {
                continue;
            }
            match inotify::add_watch(self.events.get_ref(), path, what()) {
                Ok(number) => drop(self.watched.insert(path.clone(), number)),
                Err(_) => failed.push(path.clone()),
            }
        }
        failed
    }

    /// Waits for a relevant change.
    pub(super) async fn changed(&mut self) -> io::Result<()> {
        loop {
            let mut ready = self.events.readable_mut().await?;
            let counts = drain(ready.get_inner(), &mut self.watched);
            // All events were read; later ones make it ready again.
            ready.clear_ready();
            if counts {
                return Ok(());
            }
        }
    }
}

/// Reads all pending events; returns whether one is relevant.
fn drain(events: &OwnedFd, watched: &mut BTreeMap<PathBuf, i32>) -> bool {
    let mut space = [MaybeUninit::uninit(); EVENTS_BYTES];
    let mut reader = Reader::new(events, &mut space);
    let mut counts = false;
    loop {
        match reader.next() {
            Ok(event) => {
                let (number, flags) = (event.wd(), event.events());
                counts |=
                    is_worth_a_look(flags, event.file_name().and_then(|name| name.to_str().ok()));
                if flags.contains(ReadFlags::IGNORED) {
                    watched.retain(|_, known| *known != number);
                }
            }
            Err(Errno::INTR) => {}
            Err(_) => return counts,
        }
    }
}

fn is_worth_a_look(flags: ReadFlags, name: Option<&str>) -> bool {
    if flags.intersects(ReadFlags::ISDIR | ReadFlags::QUEUE_OVERFLOW | ReadFlags::IGNORED) {
        return true;
    }
    name.is_some_and(|name| {
        !name.starts_with('.')
            && (NAMES.contains(&name) || ENDINGS.iter().any(|ending| name.ends_with(ending)))
    })
}
