//! Kubernetes manifests and dumps as text: YAML and JSON with the position of every field.
//!
//! Reads text into trees with positions ([`read`]), trees into types ([`Document::decode`],
//! [`object`]), and files and directories ([`load()`]); changes YAML in place ([`edit`]). The only
//! crate that knows YAML.
//!
//! A text means here what it means to kubectl; [`Strictness`] decides about unknown fields. Scalars
//! follow go-yaml 2, which kubectl uses: `yes` is true and `010` is eight. The result of every edit
//! is read again and compared with what was wanted. No input panics and everything has a limit
//! ([`limits`]).

mod decode;
mod document;
pub mod edit;
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
mod yaml;
mod yaml_place;

pub use document::{Document, Strictness};
pub use edit::to_yaml;
pub use load::{LoadError, load, read_file, sources};
pub use object::{Object, is_cluster_wide, object};
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
        let message = format!("{bytes} bytes exceed the limit of {}", limits::SOURCE_BYTES_MAX);
        let problem = Problem::of_text(source, Span::empty_at(0), message);
        return Err(problem.with_remedy("split the file"));
    }
    document::documents(source, values(source)?, strictness)
}

/// JSON is YAML too, but an order of magnitude faster to read as itself. What starts with a bracket
/// and is no JSON may still be YAML; if it is neither, it was meant to be what it starts like, and for
/// longer.
fn values(source: &Source) -> Result<Vec<node::Node>, Problem> {
    let text = source.text.trim_start_matches('\u{feff}').trim_start();
    let Some(inside) = text.strip_prefix(['{', '[']) else { return yaml::read(source) };
    let not_json = match json::read(source) {
        Ok(values) => return Ok(values),
        Err(Failure::Refused(problem)) => return Err(problem),
        Err(Failure::NotJson(problem)) => problem,
    };
    yaml::read(source).map_err(|not_yaml| {
        let like_json = inside.trim_start().starts_with(['"', '{', '}', '[', ']']);
        let longer = not_json.span.start() >= not_yaml.span.start();
        if like_json && longer { not_json } else { not_yaml }
    })
}
