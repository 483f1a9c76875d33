//! A digest of a pod's protobuf message.
//!
//! A pod changes many times in its life: its binding comes back as an event, containers start, probes succeed. Hardly any
//! of these changes concerns a scheduler, and decoding the pod is the most expensive part of an event. Two messages with
//! the same [`Outline::rest`] differ at most in the fields of the outline and in fields that nobody reads. Fields that are
//! not named here count as read, so a new field costs time but is never missed.

use std::hash::{BuildHasher as _, DefaultHasher, Hasher as _, RandomState};
use std::num::NonZeroU64;
use std::sync::{Arc, LazyLock};

use berth_api::keys::{FENCED_CONDITION, PLACEMENT};
use berth_api::placement;
use berth_inspect::Record;
use berth_model::label::Labels;
use berth_model::spec::{PodObject, PodSpec};
use berth_protobuf::Malformed;
use berth_protobuf::wire::{Fields, Wire};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::core::SeenPod;

/// Labels that the API server copies from a node to its pods.
const COPIED_LABELS: [&str; 2] = ["topology.kubernetes.io/region", "topology.kubernetes.io/zone"];

/// Conditions that scheduling does not read.
const UNREAD_CONDITIONS: [&str; 5] =
    ["ContainersReady", "Initialized", "PodReadyToStartContainers", "Ready", FENCED_CONDITION];

/// Field numbers by message.
const POD_METADATA: u32 = 1;
const POD_SPEC: u32 = 2;
const POD_STATUS: u32 = 3;
const META_NAME: u32 = 1;
const META_NAMESPACE: u32 = 3;
const META_UID: u32 = 5;
const META_RESOURCE_VERSION: u32 = 6;
const META_GENERATION: u32 = 7;
const META_LABELS: u32 = 11;
const META_ANNOTATIONS: u32 = 12;
const META_MANAGED_FIELDS: u32 = 17;
const SPEC_NODE_NAME: u32 = 10;
const STATUS_CONDITIONS: u32 = 2;
const STATUS_CONTAINERS: u32 = 8;
const STATUS_INIT_CONTAINERS: u32 = 10;
const STATUS_EPHEMERAL_CONTAINERS: u32 = 13;
/// `hostIP`, `podIP`, `podIPs`, `hostIPs`, `observedGeneration`.
const STATUS_UNREAD: [u32; 5] = [5, 6, 12, 16, 17];
/// `state`, `lastState`, `ready`, `restartCount`, `image`, `imageID`, `containerID`, `started`.
const CONTAINER_UNREAD: [u32; 8] = [2, 3, 4, 5, 6, 7, 8, 9];

/// What names a pod, and its version.
///
/// # Errors
/// When its message is damaged.
pub(super) fn names(message: &[u8]) -> Result<ObjectMeta, Malformed> {
    let mut names = ObjectMeta::default();
    let mut fields = Fields::of(message);
    while let Some((number, wire)) = fields.next()? {
        if number != POD_METADATA {
            continue;
        }
        let mut fields = Fields::of(wire.bytes()?);
        while let Some((number, wire)) = fields.next()? {
            let name = match number {
                META_NAME => &mut names.name,
                META_NAMESPACE => &mut names.namespace,
                META_UID => &mut names.uid,
                META_RESOURCE_VERSION => &mut names.resource_version,
                _ => continue,
            };
            *name = Some(wire.text()?.to_owned());
        }
    }
    Ok(names)
}

#[derive(Debug, Default)]
pub(super) struct Outline<'a> {
    namespace: &'a str,
    name: &'a str,
    pub(super) uid: &'a str,
    version: &'a str,
    node: &'a str,
    placement: Option<&'a str>,
    copied_labels: Vec<(&'a str, &'a str)>,
    /// Hash of all other fields that are read; `None` if it could not be computed.
    pub(super) rest: Option<NonZeroU64>,
}

impl<'a> Outline<'a> {
    /// That of a pod's message.
    ///
    /// # Errors
    /// When the message is damaged. What is further inside is not looked at.
    pub(super) fn of(message: &'a [u8]) -> Result<Self, Malformed> {
        let mut outline = Self::default();
        let mut rest = Rest::new();
        let mut fields = Fields::of(message);
        let mut last = 0;
        while let Some((number, wire)) = fields.next()? {
            // Of a field that comes twice only the last counts, and nobody writes such.
            rest.is_plain &= number > last;
            last = number;
            rest.begin(number);
            match number {
                POD_METADATA => outline.metadata(wire, &mut rest).map_err(within("metadata"))?,
                POD_SPEC => outline.spec(wire, &mut rest).map_err(within("spec"))?,
                POD_STATUS => status(wire, &mut rest).map_err(within("status"))?,
                _ => rest.add(number, wire),
            }
            rest.end();
        }
        outline.rest = rest.finish();
        Ok(outline)
    }

    fn metadata(&mut self, wire: Wire<'a>, rest: &mut Rest) -> Result<(), Malformed> {
        let mut fields = Fields::of(wire.bytes()?);
        while let Some((number, wire)) = fields.next()? {
            match number {
                META_NAME => self.name = wire.text()?,
                META_NAMESPACE => self.namespace = wire.text()?,
                META_UID => self.uid = wire.text()?,
                META_RESOURCE_VERSION => self.version = wire.text()?,
                META_GENERATION | META_MANAGED_FIELDS => {}
                META_LABELS => match pair(wire)? {
                    (key, value) if COPIED_LABELS.contains(&key) => {
                        self.copied_labels.push((key, value));
                    }
                    _ => rest.add(number, wire),
                },
                META_ANNOTATIONS => match pair(wire)? {
                    (PLACEMENT, text) => self.placement = Some(text),
                    _ => rest.add(number, wire),
                },
                _ => rest.add(number, wire),
            }
        }
        let names =
            [(META_NAME, self.name), (META_NAMESPACE, self.namespace), (META_UID, self.uid)];
        for (number, name) in names {
            rest.add(number, Wire::Bytes(name.as_bytes()));
        }
        Ok(())
    }

    fn spec(&mut self, wire: Wire<'a>, rest: &mut Rest) -> Result<(), Malformed> {
        let mut fields = Fields::of(wire.bytes()?);
        while let Some((number, wire)) = fields.next()? {
            match number {
                SPEC_NODE_NAME => self.node = wire.text()?,
                _ => rest.add(number, wire),
            }
        }
        Ok(())
    }

    /// The resource version, as it is compared; 0 if there is none.
    fn version(&self) -> u64 {
        self.version.parse().unwrap_or(0)
    }

    /// The known pod with the fields of this outline, if nothing else differs.
    pub(super) fn onto(&self, known: &SeenPod) -> Option<SeenPod> {
        if self.rest.is_none() || self.rest != known.outline {
            return None;
        }
        let node = Some(self.node).filter(|node| !node.is_empty());
        let object = PodObject {
            node: node.map(Arc::from),
            gpu_grant: node.and(self.placement).and_then(placement::grant),
            spec: self.spec_of(&known.object.spec),
            ..known.object.clone()
        };
        let record = match &known.record {
            _ if object.node.is_none() => None,
            // What the kubelet says goes first, and changes only with what is in `rest`.
            Some(record) if matches!(**record, Record::Kubelet(_)) => Some(record.clone()),
            _ => self.placement.and_then(Record::of_placement).map(Arc::new),
        };
        Some(SeenPod { object, version: self.version(), record, ..known.clone() })
    }

    /// The spec with the current labels.
    fn spec_of(&self, known: &Arc<PodSpec>) -> Arc<PodSpec> {
        let copied = |key: &str| {
            let of_this_key = self.copied_labels.iter().rev().find(|(one, _)| *one == key);
            of_this_key.map(|(_, value)| *value)
        };
        if COPIED_LABELS
            .iter()
            .all(|key| known.labels.get(key).map(|value| &**value) == copied(key))
        {
            return known.clone();
        }
        let others = known.labels.iter().filter(|(key, _)| !COPIED_LABELS.contains(&&***key));
        let others = others.map(|(key, value)| (key.clone(), value.clone()));
        let mut labels: Labels = others.collect();
        for key in COPIED_LABELS {
            if let Some(value) = copied(key) {
                labels.insert(key, value);
            }
        }
        Arc::new(PodSpec { labels, ..(**known).clone() })
    }
}

/// Adds the field to an error.
fn within(field: &'static str) -> impl Fn(Malformed) -> Malformed {
    move |error| error.within(field)
}

fn status(wire: Wire<'_>, rest: &mut Rest) -> Result<(), Malformed> {
    let mut fields = Fields::of(wire.bytes()?);
    while let Some((number, wire)) = fields.next()? {
        match number {
            STATUS_CONDITIONS if is_unread(wire)? => {}
            STATUS_CONTAINERS | STATUS_INIT_CONTAINERS | STATUS_EPHEMERAL_CONTAINERS => {
                rest.begin(number);
                let mut fields = Fields::of(wire.bytes()?);
                while let Some((number, wire)) = fields.next()? {
                    if !CONTAINER_UNREAD.contains(&number) {
                        rest.add(number, wire);
                    }
                }
                rest.end();
            }
            number if STATUS_UNREAD.contains(&number) => {}
            _ => rest.add(number, wire),
        }
    }
    Ok(())
}

/// Whether nobody reads a condition. A bound pod is recognized by its node.
fn is_unread(condition: Wire<'_>) -> Result<bool, Malformed> {
    let (what, value) = pair(condition)?;
    Ok(UNREAD_CONDITIONS.contains(&what) || (what, value) == ("PodScheduled", "True"))
}

/// The texts of fields 1 and 2: a key and its value, or a condition's type and status.
fn pair(wire: Wire<'_>) -> Result<(&str, &str), Malformed> {
    let (mut first, mut second) = ("", "");
    let mut fields = Fields::of(wire.bytes()?);
    while let Some((number, wire)) = fields.next()? {
        match number {
            1 => first = wire.text()?,
            2 => second = wire.text()?,
            _ => {}
        }
    }
    Ok((first, second))
}

/// Random per process, so that collisions cannot be constructed.
static MIXING: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The hash of all fields that are read. Each entry begins with its field, so that different sequences of fields never
/// have the same bytes.
struct Rest {
    mixed: DefaultHasher,
    is_plain: bool,
}

impl Rest {
    const END: u8 = 0;
    const BEGIN: u8 = 1;
    const VARINT: u8 = 2;
    const FIXED: u8 = 3;
    const BYTES: u8 = 4;

    fn new() -> Self {
        Self { mixed: MIXING.build_hasher(), is_plain: true }
    }

    fn begin(&mut self, number: u32) {
        self.what(Self::BEGIN, number);
    }

    fn end(&mut self) {
        self.mixed.write_u8(Self::END);
    }

    fn add(&mut self, number: u32, wire: Wire<'_>) {
        match wire {
            Wire::Varint(value) => {
                self.what(Self::VARINT, number);
                self.mixed.write_u64(value);
            }
            Wire::Fixed64(bytes) => {
                self.what(Self::FIXED, number);
                self.mixed.write(&bytes);
            }
            Wire::Bytes(bytes) => {
                self.what(Self::BYTES, number);
                self.mixed.write_usize(bytes.len());
                self.mixed.write(bytes);
            }
            Wire::Other => self.is_plain = false,
        }
    }

    fn what(&mut self, what: u8, number: u32) {
        self.mixed.write_u8(what);
        self.mixed.write_u32(number);
    }

    fn finish(self) -> Option<NonZeroU64> {
        NonZeroU64::new(self.mixed.finish()).filter(|_| self.is_plain)
    }
}

#[cfg(test)]
mod tests;
