//! The class of work and the model of a pod, from Berth's labels.

use std::sync::Arc;

use berth_model::workload::WorkloadClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::keys::{CLASS, MODEL};
use crate::meta::annotation;

/// `None` for unknown values: the API server accepts any label, and a running pod must be counted whatever its labels.
/// The class then follows from the priority.
pub(super) fn class(meta: &ObjectMeta) -> Option<WorkloadClass> {
    WorkloadClass::parse(meta.labels.as_ref()?.get(CLASS)?)
}

pub(super) fn model(meta: &ObjectMeta) -> Option<Arc<str>> {
    let label = || meta.labels.as_ref()?.get(MODEL).map(String::as_str);
    let name = annotation(meta, MODEL).or_else(label)?;
    (!name.is_empty()).then(|| name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(labels: &[(&str, &str)], annotations: &[(&str, &str)]) -> ObjectMeta {
        let map = |pairs: &[(&str, &str)]| {
            let owned = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            Some(owned.collect())
        };
        ObjectMeta { labels: map(labels), annotations: map(annotations), ..ObjectMeta::default() }
    }

    #[test]
    fn a_class_is_known_by_its_label_and_other_values_say_nothing() {
        let of = |value| class(&meta(&[(CLASS, value)], &[]));
        assert_eq!(of("interactive"), Some(WorkloadClass::Interactive));
        assert_eq!(of("experimentation"), Some(WorkloadClass::Experimentation));
        assert_eq!(of("realtime"), None);
        assert_eq!(class(&ObjectMeta::default()), None);
    }

    #[test]
    fn a_model_is_named_by_an_annotation_or_else_by_a_label() {
        let both = meta(&[(MODEL, "small")], &[(MODEL, "org/large-70b")]);
        assert_eq!(model(&both).as_deref(), Some("org/large-70b"));
        assert_eq!(model(&meta(&[(MODEL, "small")], &[])).as_deref(), Some("small"));
        assert_eq!(model(&meta(&[], &[(MODEL, "")])), None);
    }
}
