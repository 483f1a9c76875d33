//! Serves watch requests.
//!
//! A watch has no queue. It remembers the revision it has sent and reads later changes from the history when the
//! client can receive: a slow client costs nothing, and one that falls behind the history gets an error and lists
//! again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::Response;
use serde_json::json;
use tokio::sync::watch::Receiver;
use tokio::time::Instant;

use super::path::Place;
use super::respond::{self, Body};
use super::{Call, read};
use crate::kinds::Kind;
use crate::select::Selector;
use crate::server::Server;
use crate::status::Status;
use crate::store::{Change, Stored};
use crate::table::{Include, Layout};

/// Changes that are taken from the history at once.
const CHANGES_MAX: usize = 256;
/// A piece of the stream is sent when it has this many bytes.
const PIECE_BYTES: usize = 64 * 1024;
/// Default timeout of watches.
const LASTS: Duration = Duration::from_secs(45 * 60);

pub(crate) fn watch(
    server: &Arc<Server>,
    place: &Place,
    call: &Call,
) -> Result<Response<Body>, Status> {
    let query = &call.query;
    read::check_match(query, true)?;
    let selector =
        Selector::parse(&place.kind, query.text("labelSelector"), query.text("fieldSelector"))?;
    let revision = read::revision(query)?;
    let seconds = query.number("timeoutSeconds")?.and_then(|s| u64::try_from(s).ok());
    let lasts = seconds.filter(|s| *s > 0).map_or(LASTS, Duration::from_secs);
    let bookmarks = query.flag("allowWatchBookmarks");
    let initial_events = query.flag("sendInitialEvents");
    // Subscribe first, so that later changes wake the watch.
    let changed = server.store.subscribe(&place.kind.stored_as);
    let mut watch = Watch {
        server: server.clone(),
        kind: place.kind.clone(),
        namespace: place.namespace.clone(),
        selector,
        changed,
        sent_through: revision,
        initial: Vec::new(),
        ends_initial: false,
        bookmarks,
        next_bookmark: Instant::now() + server.options.bookmark_interval,
        until: Instant::now() + lasts,
        over: false,
        table: call.table()?.map(|include| Table {
            layout: Layout::of(&place.kind),
            include,
            with_columns: true,
        }),
    };
    let starts_with_state =
        if query.has("sendInitialEvents") { initial_events } else { revision == 0 };
    if starts_with_state {
        watch.start_with_state(initial_events);
    } else if revision == 0 {
        watch.sent_through = server.store.revision();
    }
    Ok(respond::streaming(stream::unfold(watch, |mut watch| async move {
        watch.next_piece().await.map(|piece| (piece, watch))
    })))
}

struct Watch {
    server: Arc<Server>,
    kind: Arc<Kind>,
    namespace: String,
    selector: Selector,
    changed: Receiver<u64>,
    sent_through: u64,
    /// Objects that are still to be sent as added, last first.
    initial: Vec<Arc<Stored>>,
    /// Whether a bookmark follows the last of them.
    ends_initial: bool,
    bookmarks: bool,
    next_bookmark: Instant,
    until: Instant,
    over: bool,
    table: Option<Table>,
}

/// How a watch of tables writes its rows. Only the first has the columns.
struct Table {
    layout: Layout,
    include: Include,
    with_columns: bool,
}

impl Table {
    fn write(&mut self, out: &mut Vec<u8>, event: &str, kind: &Kind, object: &Stored) {
        let value = super::shape::served(kind, &object.value);
        let metadata = json!({"resourceVersion": object.revision.to_string()});
        let one = std::iter::once(&value);
        let table = self.layout.table(kind, metadata, one, self.include, self.with_columns);
        self.with_columns = false;
        let event = json!({"type": event, "object": table});
        out.extend_from_slice(event.to_string().as_bytes());
        out.push(b'\n');
    }
}

impl Watch {
    fn start_with_state(&mut self, ends_initial: bool) {
        let namespace = Some(self.namespace.as_str()).filter(|namespace| !namespace.is_empty());
        let listed = self.server.store.list(&self.kind.stored_as, namespace);
        self.sent_through = listed.revision;
        self.initial = listed.items;
        self.initial.retain(|item| self.selector.matches(&item.value));
        self.initial.reverse();
        self.ends_initial = ends_initial;
    }

    async fn next_piece(&mut self) -> Option<Bytes> {
        if self.over {
            return None;
        }
        let mut out = Vec::new();
        loop {
            self.write_initial(&mut out);
            if out.is_empty() && self.initial.is_empty() {
                self.write_changes(&mut out);
            }
            if !out.is_empty() {
                return Some(Bytes::from(out));
            }
            tokio::select! {
                changed = self.changed.changed() => changed.ok()?,
                () = tokio::time::sleep_until(self.next_bookmark) => {
                    self.next_bookmark =
                        Instant::now() + self.server.options.bookmark_interval;
                    if self.bookmarks {
                        write_bookmark(&mut out, &self.kind, self.sent_through, false);
                        return Some(Bytes::from(out));
                    }
                }
                () = tokio::time::sleep_until(self.until) => return None,
            }
        }
    }

    fn write_initial(&mut self, out: &mut Vec<u8>) {
        while out.len() < PIECE_BYTES {
            let Some(object) = self.initial.pop() else { break };
            self.write_event(out, "ADDED", &object);
        }
        if self.ends_initial && self.initial.is_empty() {
            self.ends_initial = false;
            write_bookmark(out, &self.kind, self.sent_through, true);
        }
    }

    fn write_changes(&mut self, out: &mut Vec<u8>) {
        while out.len() < PIECE_BYTES {
            // Mark as seen before reading, so that no change in between is missed.
            self.changed.borrow_and_update();
            let taken = self.server.store.changes_after(
                &self.kind.stored_as,
                self.sent_through,
                CHANGES_MAX,
            );
            match taken {
                Ok(taken) => {
                    for change in &taken.changes {
                        self.write_change(out, change);
                    }
                    self.sent_through = taken.through;
                    if taken.changes.len() < CHANGES_MAX {
                        return;
                    }
                }
                Err(too_old) => {
                    let status = Status::expired(format!(
                        "too old resource version: {} ({})",
                        self.sent_through, too_old.oldest
                    ));
                    let event = json!({"type": "ERROR", "object": status.to_json()});
                    out.extend_from_slice(event.to_string().as_bytes());
                    out.push(b'\n');
                    self.over = true;
                    return;
                }
            }
        }
    }

    /// An object that comes into the selection is added, one that leaves it deleted.
    fn write_change(&mut self, out: &mut Vec<u8>, change: &Change) {
        if !self.namespace.is_empty() && change.after.namespace() != self.namespace {
            return;
        }
        let was = change.before.as_ref().is_some_and(|old| self.selector.matches(&old.value));
        let is = !change.deleted && self.selector.matches(&change.after.value);
        let event = match (was, is) {
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
            (false, false) => return,
        };
        if event == "DELETED" && !change.deleted {
            // It left the selection: clients get the old object with the revision of the change.
            if let Some(before) = &change.before {
                let last = before.at_revision(change.revision);
                self.write_event(out, event, &last);
                return;
            }
        }
        self.write_event(out, event, &change.after);
    }

    fn write_event(&mut self, out: &mut Vec<u8>, event: &str, object: &Stored) {
        match &mut self.table {
            Some(table) => table.write(out, event, &self.kind, object),
            None => write_event(out, event, &self.kind, object),
        }
    }
}

fn write_event(out: &mut Vec<u8>, event: &str, kind: &Kind, object: &Stored) {
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(event.as_bytes());
    out.extend_from_slice(b"\",\"object\":");
    super::shape::write_object(out, kind, object);
    out.extend_from_slice(b"}\n");
}

fn write_bookmark(out: &mut Vec<u8>, kind: &Kind, revision: u64, ends_initial: bool) {
    let mut object = json!({
        "kind": &*kind.kind,
        "apiVersion": kind.api_version(),
        "metadata": {"resourceVersion": revision.to_string()},
    });
    if ends_initial {
        object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    let event = json!({"type": "BOOKMARK", "object": object});
    out.extend_from_slice(event.to_string().as_bytes());
    out.push(b'\n');
}
