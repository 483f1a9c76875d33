//! Kubernetes manifests and dumps as text: YAML and JSON, with the place of every field.
//!
//! Owns reading: text → trees with places ([`read`]) → types ([`Document::decode`], [`object`]), files
//! and directories ([`load()`]). The only crate that knows YAML.
//! Must not know what objects are for: what they mean to Berth is lowered by `berth-api`, and what is
//! wrong with them beyond their form is somebody else's to find.
//!
//! A text means here what it means to kubectl; [`Strictness`] says what becomes of unknown fields.
//! Whatever is read, nothing panics and everything has a bound ([`limits`]).

mod decode;
mod document;
mod json;
pub mod karpenter;
pub mod limits;
mod load;
mod node;
mod object;
mod problem;
mod scalar;
mod source;
mod suggest;
pub mod topology;
mod yaml;
mod yaml_place;

pub use document::{Document, Strictness};
pub use load::{LoadError, load, read_file, sources};
pub use object::{Object, object};
pub use problem::Problem;
pub use source::{Position, Source, SourceText, Span};
pub use suggest::closest;

use json::Failure;

/// The objects of a text that people wrote: YAML or JSON, several documents, lists. Items of lists
/// are objects of their own; empty documents are none.
pub fn read(source: &Source) -> Result<Vec<Document>, Problem> {
    read_as(source, Strictness::Manifest)
}

/// The same, with a say on unknown fields.
pub fn read_as(source: &Source, strictness: Strictness) -> Result<Vec<Document>, Problem> {
    let bytes = source.text.len();
    if bytes > limits::SOURCE_BYTES_MAX {
        let message = format!("{bytes} bytes are more than {}", limits::SOURCE_BYTES_MAX);
        let problem = Problem::of_text(source, Span::empty_at(0), message);
        return Err(problem.with_remedy("divide the text"));
    }
    document::documents(source, values(source)?, strictness)
}

/// JSON is YAML too, but an order of magnitude faster to read as itself. What starts with a brace and
/// is no JSON may still be YAML.
fn values(source: &Source) -> Result<Vec<node::Node>, Problem> {
    let text = source.text.trim_start_matches('\u{feff}').trim_start();
    let Some(inside) = text.strip_prefix(['{', '[']) else { return yaml::read(source) };
    let problem = match json::read(source) {
        Ok(values) => return Ok(values),
        Err(refused @ Failure::Refused(_)) => return Err(refused.into_problem()),
        Err(not_json) => not_json.into_problem(),
    };
    yaml::read(source).map_err(|not_yaml| {
        let meant_json = inside.trim_start().starts_with(['"', '{', '}', '[', ']']);
        if meant_json { problem } else { not_yaml }
    })
}
