//! Any text is read or refused with a place, and what is read can be decoded and edited or refused.
#![no_main]

use berth_api::FieldPath;
use berth_manifest::edit::{Edit, apply};
use berth_manifest::{Source, object, read};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let documents = match read(&Source::new("fuzz", text)) {
        Ok(documents) => documents,
        Err(problem) => {
            assert!(problem.span.end() <= text.len());
            let _ = (problem.to_string(), problem.snippet());
            return;
        }
    };
    for document in &documents {
        if let Err(problem) = object(document) {
            assert!(problem.span.end() <= text.len());
            let _ = (problem.to_string(), problem.snippet());
        }
        let path = FieldPath::root().key("metadata").key("labels").key("a");
        let _ = apply(document, &[Edit::Set { path, value: "b".into() }]);
    }
});
