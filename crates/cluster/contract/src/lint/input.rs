//! The documents to check, and those to check them against.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::PathBuf;

use crate::{Object, Settings};
use berth_api::FieldPath;
use berth_manifest::{Document, LoadError, Problem, Source, Strictness, object, read_as, sources};
use serde_json::Value;
use thiserror::Error;

/// Reading stops after this many problems.
const PROBLEMS_MAX: usize = 20;

#[derive(Debug, Default)]
pub struct Input {
    /// To check, in order.
    pub documents: Vec<Document>,
    pub objects: Vec<Object>,
    /// Context only.
    pub cluster: Vec<Object>,
}

#[derive(Debug, Error)]
#[error("{} errors in the input", .0.len())]
pub struct InputError(pub Vec<LoadError>);

impl Input {
    /// Reads documents to check from `paths`, and context from `cluster`: files, directories, and `-` for `stdin`.
    pub fn read(
        paths: &[PathBuf],
        cluster: &[PathBuf],
        stdin: &mut dyn Read,
    ) -> Result<Self, InputError> {
        let mut input = Self::default();
        let mut problems = Vec::new();
        for (paths, strictness) in [(paths, Strictness::Manifest), (cluster, Strictness::Dump)] {
            let texts = sources(paths, stdin).map_err(|error| InputError(vec![error]))?;
            let mut seen = BTreeSet::new();
            // A file may be named twice, or be in a directory that is named as well.
            for source in texts.into_iter().filter(|source| seen.insert(source.name.clone())) {
                match read_source(&source, strictness) {
                    Ok(pairs) => input.add(pairs, strictness),
                    Err(error) => problems.push(LoadError::Text(error)),
                }
                if problems.len() >= PROBLEMS_MAX {
                    return Err(InputError(problems));
                }
            }
        }
        if problems.is_empty() { Ok(input) } else { Err(InputError(problems)) }
    }

    fn add(&mut self, pairs: Vec<(Document, Object)>, strictness: Strictness) {
        for (document, object) in pairs {
            match strictness {
                Strictness::Manifest => {
                    self.documents.push(document);
                    self.objects.push(object);
                }
                Strictness::Dump => self.cluster.push(object),
            }
        }
    }
}

fn read_source(
    source: &Source,
    strictness: Strictness,
) -> Result<Vec<(Document, Object)>, Problem> {
    let documents = read_as(source, strictness)?;
    documents.into_iter().map(|document| Ok((document.clone(), object_of(&document)?))).collect()
}

/// Objects of kinds that Berth knows must be valid.
fn object_of(document: &Document) -> Result<Object, Problem> {
    // Prometheus rule files, Helm charts and the like are not objects, but may contain queries. A rule reports
    // Karpenter's old versions.
    let has = |key: &str| document.has(&FieldPath::root().key(key));
    let bare = document.kind().is_empty() && !has("metadata") && !has("spec");
    if !bare && !document.group().starts_with("karpenter.") {
        object(document)?;
    }
    Object::new(document.value()).map_err(|error| document.problem(error.field, error.problem))
}

/// Parses a document in a string.
pub(crate) fn read_text(text: &str) -> Option<Value> {
    let source = Source::new("text", text);
    read_as(&source, Strictness::Dump).ok()?.first().map(Document::value)
}

/// Settings of the contract from a file.
pub fn settings(source: &Source) -> Result<Settings, Problem> {
    let documents = read_as(source, Strictness::Manifest)?;
    let Some(document) = documents.first() else { return Ok(Settings::default()) };
    document.decode()
}
