//! What stands around an object: its kind, and what has happened to it.
//!
//! Owns the two envelopes: that of every object, and that of an event of a watch. Must not know any kind.

use crate::Malformed;
use crate::wire::Fields;

/// The media type of objects in protobuf.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// What is asked for where protobuf is welcome: that, or JSON where there is none.
pub const ACCEPT: &str = "application/vnd.kubernetes.protobuf, application/json";

/// How every object starts.
pub const MAGIC: &[u8] = b"k8s\0";

/// How the length of an event is written before it.
const PREFIX_BYTES: usize = 4;

/// More than any object has that etcd takes.
const EVENT_MAX_BYTES: usize = 64 << 20;

/// What an object is outside of its message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// Its version, if it says so.
    pub api_version: &'a str,
    /// Its kind, if it says so.
    pub kind: &'a str,
    /// The message.
    pub raw: &'a [u8],
    /// How the message is packed; empty for not at all.
    pub encoding: &'a str,
    /// What the message is; empty for protobuf.
    pub content_type: &'a str,
}

impl<'a> Envelope<'a> {
    /// Opens what follows [`MAGIC`].
    ///
    /// # Errors
    /// When it is damaged.
    pub fn open(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut envelope = Self::default();
        let mut fields = Fields::of(bytes);
        while let Some((number, wire)) = fields.next()? {
            match number {
                1 => {
                    let mut fields = Fields::of(wire.bytes()?);
                    while let Some((number, wire)) = fields.next()? {
                        match number {
                            1 => envelope.api_version = wire.text()?,
                            2 => envelope.kind = wire.text()?,
                            _ => {}
                        }
                    }
                }
                2 => envelope.raw = wire.bytes()?,
                3 => envelope.encoding = wire.text()?,
                4 => envelope.content_type = wire.text()?,
                _ => {}
            }
        }
        Ok(envelope)
    }

    /// Whether what is in it is a message as it is.
    pub fn is_plain(&self) -> bool {
        self.encoding.is_empty() && matches!(self.content_type, "" | MEDIA_TYPE)
    }
}

/// What a `Status` says of something that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure<'a> {
    /// As HTTP has it; 0 if it does not say.
    pub code: u64,
    /// One word.
    pub reason: &'a str,
    /// For people.
    pub message: &'a str,
}

impl<'a> Failure<'a> {
    /// Reads the message of a `Status`.
    ///
    /// # Errors
    /// When it is damaged.
    pub fn read(message: &'a [u8]) -> Result<Self, Malformed> {
        let mut failure = Self::default();
        let mut fields = Fields::of(message);
        while let Some((number, wire)) = fields.next()? {
            match number {
                3 => failure.message = wire.text()?,
                4 => failure.reason = wire.text()?,
                6 => failure.code = wire.varint()?,
                _ => {}
            }
        }
        Ok(failure)
    }
}

/// An event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent<'a> {
    /// `ADDED` and the like.
    pub what: &'a str,
    /// The object, or the status of an error.
    pub object: Envelope<'a>,
}

impl<'a> WatchEvent<'a> {
    /// The first event of what has come of a watch, if it has come whole, and where the next begins.
    ///
    /// # Errors
    /// When it says that it is larger than an event can be.
    pub fn first(came: &'a [u8]) -> Result<Option<(&'a [u8], usize)>, Malformed> {
        let Some(prefix) = came.first_chunk::<PREFIX_BYTES>() else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes(*prefix)).unwrap_or(usize::MAX);
        if length > EVENT_MAX_BYTES {
            return Err(Malformed::new(format!("an event of {length} bytes is refused")));
        }
        let end = PREFIX_BYTES + length;
        Ok(came.get(PREFIX_BYTES..end).map(|event| (event, end)))
    }

    /// Reads one.
    ///
    /// # Errors
    /// When it is damaged.
    pub fn read(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (mut what, mut object): (&str, &[u8]) = ("", &[]);
        let mut fields = Fields::of(bytes);
        while let Some((number, wire)) = fields.next()? {
            match number {
                1 => what = wire.text()?,
                // The object is bytes in a message of its own.
                2 => {
                    let mut fields = Fields::of(wire.bytes()?);
                    while let Some((number, wire)) = fields.next()? {
                        if number == 1 {
                            object = wire.bytes()?;
                        }
                    }
                }
                _ => {}
            }
        }
        let rest = object.strip_prefix(MAGIC).ok_or_else(|| {
            Malformed::new("the object of a watch does not start as protobuf of Kubernetes does")
        })?;
        let object = Envelope::open(rest)?;
        if object.is_plain() {
            Ok(Self { what, object })
        } else {
            Err(Malformed::new("the object of a watch is not plain protobuf"))
        }
    }
}
