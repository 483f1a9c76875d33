//! Field management: `metadata.managedFields`, ownership after updates, and server-side apply with its conflicts.

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::fieldset::{Element, FieldSet, of_fields, shown};
use super::typed::{compare, fields_of, merge, problems, without};
use crate::kinds::{Kind, Origin};
use crate::schema::{self, Node};
use crate::status::{Cause, Status, quoted};

/// Beyond this number, the oldest update managers are merged.
const MAX_UPDATERS: usize = 10;
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Fields without managers.
const STRIPPED: [&str; 12] = [
    "apiVersion",
    "kind",
    "metadata",
    "metadata.name",
    "metadata.namespace",
    "metadata.creationTimestamp",
    "metadata.selfLink",
    "metadata.uid",
    "metadata.clusterName",
    "metadata.generation",
    "metadata.managedFields",
    "metadata.resourceVersion",
];

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Manager {
    name: String,
    applies: bool,
    /// Empty for apply, which is the same manager in every version.
    version: String,
    subresource: String,
}

#[derive(Clone, Debug)]
struct Managed {
    set: FieldSet,
    version: String,
    time: Option<String>,
}

type Managers = BTreeMap<Manager, Managed>;

pub(super) struct Write<'a> {
    pub(super) kind: &'a Kind,
    pub(super) node: &'a Node,
    pub(super) subresource: &'a str,
    pub(super) manager: &'a str,
    pub(super) now: Timestamp,
}

impl Write<'_> {
    fn version(&self) -> String {
        self.kind.api_version()
    }

    fn who(&self, applies: bool) -> Manager {
        let name = if self.manager.is_empty() { "unknown" } else { self.manager };
        Manager {
            name: name.to_owned(),
            applies,
            version: if applies { String::new() } else { self.version() },
            subresource: self.subresource.to_owned(),
        }
    }

    fn time(&self) -> Option<String> {
        Some(self.now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
    }

    /// Fields that this write cannot change.
    fn ignored(&self) -> FieldSet {
        let custom = matches!(self.kind.origin, Origin::Custom(_));
        match self.subresource {
            "" if self.kind.subresources.status => of_fields(&["status"]),
            "status" if custom => of_fields(&["spec", "metadata"]),
            "status" => of_fields(&["spec"]),
            _ => FieldSet::default(),
        }
    }

    /// An empty object of this kind.
    fn empty(&self) -> Value {
        match self.kind.origin {
            Origin::BuiltIn => schema::empty(self.node),
            Origin::Custom(_) => {
                json!({"apiVersion": self.kind.api_version(), "kind": &*self.kind.kind})
            }
        }
    }
}

fn decode(object: &Value) -> Option<Managers> {
    let mut managers = Managers::new();
    let Some(entries) = object.pointer("/metadata/managedFields") else { return Some(managers) };
    for entry in entries.as_array()? {
        let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
        let applies = match text("operation") {
            "Apply" => true,
            "Update" => false,
            _ => return None,
        };
        let version = text("apiVersion").to_owned();
        if version.is_empty() || text("fieldsType") != "FieldsV1" {
            return None;
        }
        let set = match entry.get("fieldsV1") {
            None | Some(Value::Null) => FieldSet::default(),
            Some(fields) => FieldSet::from_json(fields)?,
        };
        let manager = Manager {
            name: text("manager").to_owned(),
            applies,
            version: if applies { String::new() } else { version.clone() },
            subresource: text("subresource").to_owned(),
        };
        let time = entry.get("time").and_then(Value::as_str).map(str::to_owned);
        managers.insert(manager, Managed { set, version, time });
    }
    Some(managers)
}

fn encode(managers: &Managers, object: &mut Value) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    metadata.remove("managedFields");
    if managers.is_empty() {
        return;
    }
    let mut entries: Vec<(&Manager, &Managed)> = managers.iter().collect();
    entries.sort_by(|(p, left), (q, right)| {
        (q.applies, &left.time, &p.name, &left.version, &p.subresource).cmp(&(
            p.applies,
            &right.time,
            &q.name,
            &right.version,
            &q.subresource,
        ))
    });
    let entries = entries.into_iter().map(|(manager, managed)| {
        let mut entry = Map::new();
        let mut put = |name: &str, value: Value| entry.insert(name.to_owned(), value);
        put("manager", Value::from(manager.name.as_str()));
        put("operation", Value::from(if manager.applies { "Apply" } else { "Update" }));
        put("apiVersion", Value::from(managed.version.as_str()));
        if let Some(time) = &managed.time {
            put("time", Value::from(time.as_str()));
        }
        put("fieldsType", Value::from("FieldsV1"));
        put("fieldsV1", managed.set.to_json());
        if !manager.subresource.is_empty() {
            put("subresource", Value::from(manager.subresource.as_str()));
        }
        Value::Object(entry)
    });
    metadata.insert("managedFields".to_owned(), Value::Array(entries.collect()));
}

fn without_managers(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    object
}

fn strip(managers: &mut Managers, who: &Manager) {
    if let Some(managed) = managers.get_mut(who) {
        managed.set = managed.set.difference(&of_fields(&STRIPPED));
        if managed.set.is_empty() {
            managers.remove(who);
        }
    }
}

/// Whether a request clears `managedFields`.
fn resets(object: &Value) -> bool {
    let entries = object.pointer("/metadata/managedFields").and_then(Value::as_array);
    let bare = |entry: &Value| entry.as_object().is_some_and(Map::is_empty);
    entries.is_some_and(|entries| match entries.as_slice() {
        [] => true,
        [one] => bare(one),
        _ => false,
    })
}

/// Records the managers of a created, updated or patched object.
pub(super) fn record(write: &Write<'_>, live: Option<&Value>, new: &mut Value) {
    let own = || decode(new).filter(|managers| !managers.is_empty());
    let of_live = || live.and_then(decode).unwrap_or_default();
    let mut managers = match () {
        () if !write.subresource.is_empty() => of_live(),
        () if resets(new) => Managers::new(),
        () => own().unwrap_or_else(of_live),
    };
    let tracked = live.is_none() || !managers.is_empty();
    let before = match live {
        Some(live) => without_managers(live),
        None => write.empty(),
    };
    let after = without_managers(new);
    if tracked {
        update(write, &before, &after, &mut managers);
        cap(&mut managers);
    }
    encode(&managers, new);
    if let Some(live) = live {
        keep_times(live, new);
    }
}

/// Changed fields go to the writer and are taken from others.
fn update(write: &Write<'_>, before: &Value, after: &Value, managers: &mut Managers) {
    let changes = compare(write.node, before, after).outside(&write.ignored());
    let taken = changes.modified.union(&changes.added);
    let lost = taken.union(&changes.removed);
    for managed in managers.values_mut() {
        managed.set = managed.set.difference(&lost);
    }
    managers.retain(|_, managed| !managed.set.is_empty());
    let taken = taken.difference(&of_fields(&STRIPPED));
    if taken.is_empty() {
        return;
    }
    let who = write.who(false);
    let set = match managers.get(&who) {
        Some(previous) => taken.union(&previous.set),
        None => taken,
    };
    let managed = Managed { set, version: write.version(), time: write.time() };
    managers.insert(who, managed);
}

fn cap(managers: &mut Managers) {
    let mut updaters: Vec<(Option<String>, Manager)> = managers
        .iter()
        .filter(|(manager, _)| !manager.applies)
        .map(|(manager, managed)| (managed.time.clone(), manager.clone()))
        .collect();
    let Some(mut excess) = updaters.len().checked_sub(MAX_UPDATERS) else { return };
    updaters.sort();
    let mut first_of: BTreeMap<String, Manager> = BTreeMap::new();
    for (time, manager) in updaters {
        if excess == 0 {
            return;
        }
        let Some(version) = managers.get(&manager).map(|managed| managed.version.clone()) else {
            continue;
        };
        let Some(first) = first_of.get(&version).cloned() else {
            first_of.insert(version, manager);
            continue;
        };
        let bucket = Manager {
            name: "ancient-changes".to_owned(),
            applies: false,
            version: version.clone(),
            subresource: String::new(),
        };
        if !managers.contains_key(&bucket)
            && let Some(managed) = managers.remove(&first)
        {
            managers.insert(bucket.clone(), managed);
        }
        if let Some(managed) = managers.remove(&manager)
            && let Some(merged) = managers.get_mut(&bucket)
        {
            merged.set = merged.set.union(&managed.set);
            merged.time = time;
        }
        excess -= 1;
    }
}

/// Keeps the old times if nothing else changes.
pub(super) fn keep_times(live: &Value, new: &mut Value) {
    let timeless = |object: &Value| -> Value {
        let mut entries = object.pointer("/metadata/managedFields").cloned().unwrap_or(Value::Null);
        for entry in entries.as_array_mut().into_iter().flatten() {
            if let Some(entry) = entry.as_object_mut() {
                entry.remove("time");
            }
        }
        entries
    };
    let same = timeless(live) == timeless(new) && without_managers(live) == without_managers(new);
    if same && let Some(entries) = live.pointer("/metadata/managedFields") {
        new["metadata"]["managedFields"] = entries.clone();
    }
}

/// A field of another manager.
struct Conflict {
    manager: Manager,
    version: String,
    path: Vec<Element>,
}

impl Conflict {
    fn with(&self) -> String {
        let mut text = quoted(&self.manager.name);
        if !self.manager.subresource.is_empty() {
            text.push_str(&format!(" with subresource {}", quoted(&self.manager.subresource)));
        }
        if !self.manager.applies {
            text.push_str(&format!(" using {}", self.version));
        }
        text
    }
}

/// Server-side apply: the object and its managers.
pub(super) fn apply(
    write: &Write<'_>,
    live: Option<&Value>,
    applied: &Value,
    force: bool,
) -> Result<Value, Status> {
    let mut managers = match live {
        Some(live) => decode(live)
            .ok_or_else(|| super::unknown("failed to decode managed fields".to_owned()))?,
        None => Managers::new(),
    };
    let before = match live {
        Some(live) => without_managers(live),
        None => write.empty(),
    };
    check_typed(write, applied)?;
    if managers.is_empty() && live.is_some() {
        let first = Write { manager: "before-first-apply", ..*write };
        update(&first, &write.empty(), &before, &mut managers);
    }
    let attempt = attempt(write, &before, applied, managers.clone(), force);
    let (object, managers) = match attempt {
        Ok(done) => done,
        Err(conflicts) => {
            let left = unexplained(write, &before, conflicts);
            if !left.is_empty() {
                return Err(conflict_status(&left));
            }
            attempt_forced(write, &before, applied, managers)?
        }
    };
    let mut object = object.unwrap_or(before);
    if write.manager == "kubectl" {
        renew_last_applied(&mut object, applied);
    }
    if !object.get("metadata").is_some_and(Value::is_object) {
        object["metadata"] = json!({});
    }
    encode(&managers, &mut object);
    Ok(object)
}

fn check_typed(write: &Write<'_>, applied: &Value) -> Result<(), Status> {
    let found = problems(write.node, applied);
    let text = match found.as_slice() {
        [] => return Ok(()),
        [one] => one.clone(),
        many => {
            let lines: Vec<String> = many.iter().map(|line| format!("  {line}")).collect();
            format!("errors:\n{}", lines.join("\n"))
        }
    };
    let metadata = |name: &str| {
        let path = format!("/metadata/{name}");
        applied.pointer(&path).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    Err(super::unknown(format!(
        "failed to create typed patch object ({}/{}; {}, Kind={}): {text}",
        metadata("namespace"),
        metadata("name"),
        write.version(),
        write.kind.kind
    )))
}

type Applied = (Option<Value>, Managers);

fn attempt_forced(
    write: &Write<'_>,
    before: &Value,
    applied: &Value,
    managers: Managers,
) -> Result<Applied, Status> {
    attempt(write, before, applied, managers, true).map_err(|left| conflict_status(&left))
}

/// Applies once; the object is `None` if nothing changes.
fn attempt(
    write: &Write<'_>,
    before: &Value,
    applied: &Value,
    mut managers: Managers,
    force: bool,
) -> Result<Applied, Vec<Conflict>> {
    let who = write.who(true);
    let ignored = write.ignored();
    let merged = merge(write.node, Some(before), Some(applied)).unwrap_or_else(|| json!({}));
    let last = managers.get(&who).cloned();
    let set = fields_of(write.node, applied).outside(&ignored);
    let time = last.as_ref().and_then(|last| last.time.clone());
    managers.insert(who.clone(), Managed { set, version: write.version(), time });
    let mut object = match &last {
        Some(last) if !last.set.is_empty() => prune(write.node, &merged, &managers, &last.set),
        _ => merged,
    };
    let changes = compare(write.node, before, &object).outside(&ignored);
    let taken = changes.modified.union(&changes.added);
    let mut conflicts = Vec::new();
    for (manager, managed) in &mut managers {
        if *manager == who {
            continue;
        }
        let contested = managed.set.intersection(&taken);
        conflicts.extend(contested.paths().into_iter().map(|path| Conflict {
            manager: manager.clone(),
            version: managed.version.clone(),
            path,
        }));
        managed.set = managed.set.difference(&contested).difference(&changes.removed);
    }
    if !force && !conflicts.is_empty() {
        return Err(conflicts);
    }
    managers.retain(|_, managed| !managed.set.is_empty());
    strip(&mut managers, &who);
    if object == *before {
        return Ok((None, managers));
    }
    if let Some(managed) = managers.get_mut(&who) {
        managed.time = write.time();
    }
    if object.get("metadata").is_none_or(Value::is_null) {
        object["metadata"] = json!({});
    }
    Ok((Some(object), managers))
}

/// Removes fields that this manager no longer applies and no other manages.
fn prune(node: &Node, merged: &Value, managers: &Managers, last: &FieldSet) -> Value {
    let named = |set: &FieldSet| set.with_named_fields(node);
    let last = named(last);
    let pruned = without(node, merged, &last);
    let everyone =
        managers.values().fold(FieldSet::default(), |all, managed| all.union(&managed.set));
    let all = named(&fields_of(node, merged));
    let kept = named(&fields_of(node, &pruned)).union(&named(&everyone));
    let pruned = without(node, merged, &all.difference(&kept));
    let kept = named(&fields_of(node, &pruned));
    without(node, merged, &all.difference(&kept).intersection(&last))
}

/// Conflicts, except those with client-side apply.
fn unexplained(write: &Write<'_>, live: &Value, conflicts: Vec<Conflict>) -> Vec<Conflict> {
    if write.manager != "kubectl" {
        return conflicts;
    }
    let annotations = live.pointer("/metadata/annotations");
    let last = annotations.and_then(|all| all.get(LAST_APPLIED)).and_then(Value::as_str);
    let last: Option<Value> = last.and_then(|text| serde_json::from_str(text).ok());
    let version = write.version();
    let Some(last) = last.filter(|last| {
        last.get("apiVersion").and_then(Value::as_str) == Some(version.as_str())
            && problems(write.node, last).is_empty()
    }) else {
        return conflicts;
    };
    let changes = compare(write.node, &last, live);
    let explained = fields_of(write.node, &last)
        .difference(&changes.modified)
        .difference(&changes.added)
        .difference(&changes.removed);
    conflicts.into_iter().filter(|conflict| !explained.has_path(&conflict.path)).collect()
}

fn renew_last_applied(object: &mut Value, applied: &Value) {
    let Some(annotations) = object.pointer_mut("/metadata/annotations") else { return };
    let given = annotations.get(LAST_APPLIED).and_then(Value::as_str);
    if given.is_none_or(str::is_empty) {
        return;
    }
    let mut applied = applied.clone();
    if let Some(own) = applied.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        own.remove(LAST_APPLIED);
    }
    annotations[LAST_APPLIED] = Value::from(format!("{applied}\n"));
}

fn conflict_status(conflicts: &[Conflict]) -> Status {
    let causes = conflicts.iter().map(|conflict| Cause {
        reason: Cow::Borrowed("FieldManagerConflict"),
        message: format!("conflict with {}", conflict.with()),
        field: shown(&conflict.path),
    });
    let message = match conflicts {
        [one] => {
            let path = shown(&one.path);
            format!("Apply failed with 1 conflict: conflict with {}: {path}", one.with())
        }
        many => {
            let mut lines = Vec::new();
            let mut current: Option<&Manager> = None;
            for conflict in many {
                if current != Some(&conflict.manager) {
                    lines.push(format!("conflicts with {}:", conflict.with()));
                    current = Some(&conflict.manager);
                }
                lines.push(format!("- {}", shown(&conflict.path)));
            }
            format!("Apply failed with {} conflicts: {}", many.len(), lines.join("\n"))
        }
    };
    Status::apply_conflict(causes.collect(), message)
}
