//! Kubernetes objects in protobuf, as Kubernetes' own clients read and write them.
//!
//! The wire format, the envelope around an object, the field numbers of Kubernetes 1.36's types,
//! and reading and writing types that are defined by their JSON form.

mod envelope;
pub mod numbers;
mod object;
pub mod values;
pub mod wire;
mod write;

pub use self::envelope::{ACCEPT, Envelope, Failure, MAGIC, MEDIA_TYPE, WatchEvent};
pub use self::object::from_message;
pub use self::write::Written;

/// Why a message cannot be read, and in which field.
#[derive(Debug)]
pub struct Malformed {
    /// From the innermost to the outermost.
    path: Vec<String>,
    why: String,
}

impl Malformed {
    /// Why.
    pub fn new(why: impl Into<String>) -> Self {
        Self { path: Vec::new(), why: why.into() }
    }

    /// The same, said of the message in which the field is.
    #[must_use]
    pub fn within(mut self, field: &str) -> Self {
        self.path.push(field.to_owned());
        self
    }
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, field) in self.path.iter().rev().enumerate() {
            write!(f, "{}{field}", if at == 0 { "" } else { "." })?;
        }
        write!(f, "{}{}", if self.path.is_empty() { "" } else { ": " }, self.why)
    }
}

impl std::error::Error for Malformed {}

impl serde::de::Error for Malformed {
    fn custom<T: std::fmt::Display>(why: T) -> Self {
        Self::new(why.to_string())
    }
}
