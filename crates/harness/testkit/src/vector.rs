//! Recorded cases, each one line of JSON.
//!
//! Owns how such a line is read, and how an error says which case and field it is about. Must not
//! know what was recorded.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// A case that cannot be run.
#[derive(Debug, Error)]
#[error("case {id:?}: {field}: {problem}")]
pub struct CaseError {
    /// Id of the case, as far as it could be read.
    pub id: String,
    /// The field that is wrong.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
}

/// A problem in a field; the id is added at the end.
pub(crate) type FieldResult<T> = Result<T, (String, String)>;

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct IdJson {
    id: String,
}

pub(crate) fn read<J: DeserializeOwned>(line: &str) -> Result<J, CaseError> {
    let mut reader = serde_json::Deserializer::from_str(line);
    serde_path_to_error::deserialize(&mut reader).map_err(|error| CaseError {
        id: id_of(line),
        field: error.path().to_string(),
        problem: error.inner().to_string(),
    })
}

/// The id in a line that is no case, to say which it was.
fn id_of(line: &str) -> String {
    serde_json::from_str(line).map_or("?".to_owned(), |IdJson { id }| id)
}
