//! Label selectors, node selectors and topology selectors.

use std::sync::Arc;

use berth_model::affinity::NodeTerm;
use berth_model::label::{Operator, Requirement, Selector};
use k8s_openapi::api::core::v1::{
    NodeSelectorRequirement, NodeSelectorTerm, TopologySelectorLabelRequirement,
    TopologySelectorTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use crate::error::{Problem, each};

pub(crate) const NODE_NAME_FIELD: &str = "metadata.name";
const LONGEST_LABEL_VALUE: usize = 63;

/// How to treat conditions on node names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeNames {
    Matched,
    /// For volumes kube-scheduler evaluates nodes without names, and such conditions hold.
    Ignored,
}

pub(crate) fn label_selector(selector: &LabelSelector) -> Result<Selector, Problem> {
    let of_labels = selector.match_labels.iter().flatten().map(|(key, value)| Requirement {
        key: key.as_str().into(),
        operator: Operator::In(vec![value.as_str().into()]),
    });
    let expressions =
        each("matchExpressions", selector.match_expressions.as_ref(), label_requirement)?;
    Ok(Selector(of_labels.chain(expressions).collect()))
}

/// `None` if the API server would reject the selector.
pub fn read_selector(selector: &LabelSelector) -> Option<Selector> {
    label_selector(selector).ok()
}

/// An absent selector differs from an empty one.
pub(crate) fn optional_selector(
    field: &str,
    selector: Option<&LabelSelector>,
) -> Result<Option<Selector>, Problem> {
    let lowered = selector.map(label_selector).transpose();
    lowered.map_err(|problem| problem.under(field))
}

fn label_requirement(requirement: &LabelSelectorRequirement) -> Result<Requirement, Problem> {
    let operator = requirement.operator.as_str();
    let values = requirement.values.as_ref();
    let operator = set_operator(operator, values)?.ok_or_else(|| {
        Problem::unknown("operator", operator, "In, NotIn, Exists or DoesNotExist")
    })?;
    Ok(Requirement { key: requirement.key.as_str().into(), operator })
}

/// Operators that label and node selectors share.
fn set_operator(operator: &str, values: Option<&Vec<String>>) -> Result<Option<Operator>, Problem> {
    let values = || -> Vec<Arc<str>> {
        values.into_iter().flatten().map(|value| value.as_str().into()).collect()
    };
    let listed = || match values() {
        values if values.is_empty() => {
            Err(Problem::new("values", format!("is empty; {operator} needs at least one")))
        }
        values => Ok(values),
    };
    let unlisted = |wanted: Operator| match values() {
        values if values.is_empty() => Ok(Some(wanted)),
        _ => Err(Problem::new("values", format!("is not empty; {operator} takes none"))),
    };
    match operator {
        "In" => Ok(Some(Operator::In(listed()?))),
        "NotIn" => Ok(Some(Operator::NotIn(listed()?))),
        "Exists" => unlisted(Operator::Exists),
        "DoesNotExist" => unlisted(Operator::DoesNotExist),
        _ => Ok(None),
    }
}

pub(crate) fn node_term(term: &NodeSelectorTerm, names: NodeNames) -> Result<NodeTerm, Problem> {
    let labels = each("matchExpressions", term.match_expressions.as_ref(), node_requirement)?;
    let name =
        each("matchFields", term.match_fields.as_ref(), |field| name_operator(field, names))?;
    Ok(NodeTerm { labels, name })
}

fn node_requirement(requirement: &NodeSelectorRequirement) -> Result<Requirement, Problem> {
    let operator = requirement.operator.as_str();
    let values = requirement.values.as_ref();
    let operator = match set_operator(operator, values)? {
        Some(operator) => operator,
        None => number_operator(operator, values)?,
    };
    // The API server stores such conditions, but the scheduler cannot make sense of them.
    let understood = values.into_iter().flatten().all(|value| is_label_value(value));
    let operator = if understood { operator } else { Operator::Never };
    Ok(Requirement { key: requirement.key.as_str().into(), operator })
}

fn number_operator(operator: &str, values: Option<&Vec<String>>) -> Result<Operator, Problem> {
    let bounded = |wanted: fn(i64) -> Operator| match values.map_or(&[][..], Vec::as_slice) {
        [value] => Ok(value.parse().map_or(Operator::Never, wanted)),
        _ => Err(Problem::new("values", format!("{operator} needs exactly one value"))),
    };
    match operator {
        "Gt" => bounded(Operator::Gt),
        "Lt" => bounded(Operator::Lt),
        _ => {
            let known = "In, NotIn, Exists, DoesNotExist, Gt or Lt";
            Err(Problem::unknown("operator", operator, known))
        }
    }
}

fn name_operator(
    requirement: &NodeSelectorRequirement,
    names: NodeNames,
) -> Result<Operator, Problem> {
    if requirement.key != NODE_NAME_FIELD {
        return Err(Problem::unknown("key", &requirement.key, NODE_NAME_FIELD));
    }
    let [value] = requirement.values.as_deref().unwrap_or_default() else {
        return Err(Problem::new("values", "a condition on a field has exactly one value"));
    };
    let operator = match requirement.operator.as_str() {
        "In" => Operator::In(vec![value.as_str().into()]),
        "NotIn" => Operator::NotIn(vec![value.as_str().into()]),
        other => return Err(Problem::unknown("operator", other, "In or NotIn")),
    };
    Ok(if names == NodeNames::Matched { operator } else { Operator::Exists })
}

pub(crate) fn topology_term(term: &TopologySelectorTerm) -> Result<NodeTerm, Problem> {
    let requirement = |requirement: &TopologySelectorLabelRequirement| {
        let operator = set_operator("In", Some(&requirement.values))?.unwrap_or(Operator::Never);
        Ok(Requirement { key: requirement.key.as_str().into(), operator })
    };
    let labels = each("matchLabelExpressions", term.match_label_expressions.as_ref(), requirement)?;
    Ok(NodeTerm { labels, name: Vec::new() })
}

/// Whether this is a valid label value.
fn is_label_value(value: &str) -> bool {
    let ends = [value.chars().next(), value.chars().next_back()];
    value.len() <= LONGEST_LABEL_VALUE
        && ends.into_iter().flatten().all(|end| end.is_ascii_alphanumeric())
        && value.chars().all(|one| one.is_ascii_alphanumeric() || matches!(one, '-' | '_' | '.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};

    fn requirement(operator: &str, values: &[&str]) -> Result<Operator, String> {
        let json = json!({ "key": "k", "operator": operator, "values": values });
        let lowered = node_requirement(&from_value(json).unwrap());
        lowered.map(|requirement| requirement.operator).map_err(|problem| format!("{problem:?}"))
    }

    #[test]
    fn node_conditions_are_read_as_the_scheduler_reads_them() {
        let values = |values: &[&str]| values.iter().map(|value| Arc::from(*value)).collect();
        for (operator, given, expected) in [
            ("In", &["a", ""][..], Operator::In(values(&["a", ""]))),
            ("NotIn", &["a"], Operator::NotIn(values(&["a"]))),
            ("NotIn", &["no label has this"], Operator::Never),
            ("Exists", &[], Operator::Exists),
            ("DoesNotExist", &[], Operator::DoesNotExist),
            ("Gt", &["08"], Operator::Gt(8)),
            ("Lt", &["9"], Operator::Lt(9)),
            ("Lt", &["-9"], Operator::Never),
            ("Gt", &["many"], Operator::Never),
            ("Gt", &["99999999999999999999"], Operator::Never),
        ] {
            assert_eq!(requirement(operator, given), Ok(expected), "{operator} {given:?}");
        }
        for (operator, given, field) in [
            ("In", &[][..], "values"),
            ("Exists", &["a"], "values"),
            ("Gt", &["1", "2"], "values"),
            ("Near", &["a"], "operator"),
        ] {
            let problem = requirement(operator, given).unwrap_err();
            assert!(problem.contains(field), "{operator} {given:?}: {problem}");
        }
    }

    #[test]
    fn volumes_are_asked_about_as_if_nodes_had_no_names() {
        let field = json!({ "key": "metadata.name", "operator": "In", "values": ["n1"] });
        let term = from_value(json!({ "matchFields": [field] })).unwrap();
        let node = berth_model::node::Node { name: "n2".into(), ..Default::default() };
        assert!(!node_term(&term, NodeNames::Matched).unwrap().matches(&node));
        assert!(node_term(&term, NodeNames::Ignored).unwrap().matches(&node));
    }

    #[test]
    fn label_selectors_join_labels_and_expressions() {
        let selector = from_value(json!({
            "matchLabels": { "app": "web" },
            "matchExpressions": [{ "key": "tier", "operator": "DoesNotExist" }],
        }));
        let selector = label_selector(&selector.unwrap()).unwrap();
        assert!(selector.matches(&[("app", "web")].into_iter().collect()));
        assert!(!selector.matches(&[("app", "web"), ("tier", "back")].into_iter().collect()));
        assert!(!selector.matches(&[("app", "db")].into_iter().collect()));
    }
}
