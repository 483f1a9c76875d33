//! Gangs: Berth's labels and annotations, and the PodGroups of Kubernetes 1.36 (`scheduling.k8s.io/v1alpha2`) and 1.37
//! (`v1beta1`).
//!
//! Workloads are templates from which controllers create PodGroups; schedulers do not read them.

use berth_model::gang::{
    DEFAULT_TIMEOUT_MS, Disruption, Gang, GangMembership, GangTerms, GangTopology,
};
use k8s_openapi::api::core::v1::PodSchedulingGroup;
use k8s_openapi::api::scheduling::v1alpha2;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{Metadata, NamespaceResourceScope, Resource};
use serde::Deserialize;

use crate::Lower;
use crate::error::{self, LowerError, Problem};
use crate::keys::{GANG, GANG_SIZE, GANG_TIMEOUT, GANG_TOPOLOGY};
use crate::meta;

const SIZES: std::ops::RangeInclusive<u32> = 1..=10_000;

/// Timeouts, in seconds.
const TIMEOUT_S: std::ops::RangeInclusive<i64> = 1..=7 * 24 * 3600;

/// The gang a pod belongs to: the PodGroup it names, or the gang its labels describe.
pub(crate) fn membership(
    meta: &ObjectMeta,
    group: Option<&PodSchedulingGroup>,
) -> Result<Option<GangMembership>, Problem> {
    let named = group.and_then(|group| meta::filled(group.pod_group_name.as_ref()));
    let label = |key: &str| meta.labels.as_ref().and_then(|labels| labels.get(key));
    let Some(name) = meta::filled(label(GANG)) else {
        let alone = [GANG_SIZE].into_iter().find(|key| label(key).is_some());
        return match (named, alone) {
            (Some(name), _) => Ok(Some(GangMembership { name, terms: None })),
            (None, Some(key)) => Err(Problem::new(
                label_field(key),
                format!("requires the label {GANG}, the name of the gang"),
            )),
            (None, None) => Ok(None),
        };
    };
    if let Some(named) = named {
        let text = format!(
            "conflicts with spec.schedulingGroup, which names PodGroup {named:?}; remove one of them"
        );
        return Err(Problem::new(label_field(GANG), text));
    }
    let field = label_field(GANG_SIZE);
    let Some(text) = label(GANG_SIZE) else {
        return Err(Problem::new(field, "is required: the number of pods that start together"));
    };
    let min = text.parse().map_err(|_| invalid_size(&field, text))?;
    let min = size(&field, min)?;
    let terms = terms(meta, min, None, Disruption::Whole)?;
    Ok(Some(GangMembership { name, terms: Some(terms) }))
}

fn label_field(key: &str) -> String {
    format!("metadata.labels[{key}]")
}

fn size(field: &str, size: i64) -> Result<u32, Problem> {
    let valid = u32::try_from(size).ok().filter(|size| SIZES.contains(size));
    valid.ok_or_else(|| invalid_size(field, &size.to_string()))
}

fn invalid_size(field: &str, text: &str) -> Problem {
    let (least, most) = (SIZES.start(), SIZES.end());
    Problem::new(field, format!("must be an integer from {least} to {most} (got {text:?})"))
}

/// The terms of a gang, including annotations.
fn terms(
    meta: &ObjectMeta,
    min: u32,
    topology: Option<GangTopology>,
    disruption: Disruption,
) -> Result<GangTerms, Problem> {
    let field = |key: &str| format!("metadata.annotations[{key}]");
    let annotated = meta::annotation(meta, GANG_TOPOLOGY);
    let annotated =
        annotated.map(|text| self::topology(&field(GANG_TOPOLOGY), text)).transpose()?;
    let timeout_ms = meta::annotation(meta, GANG_TIMEOUT);
    let timeout_ms =
        timeout_ms.map(|text| self::timeout_ms(&field(GANG_TIMEOUT), text)).transpose()?;
    if let (Some(one), Some(other)) = (&topology, &annotated)
        && one != other
    {
        let text = format!("conflicts with the spec, which has {:?}; remove one of them", one.key);
        return Err(Problem::new(field(GANG_TOPOLOGY), text));
    }
    Ok(GangTerms {
        min,
        topology: topology.or(annotated),
        timeout_ms: timeout_ms.unwrap_or(DEFAULT_TIMEOUT_MS),
        disruption,
    })
}

/// `KEY` or `KEY,preferred`.
fn topology(field: &str, text: &str) -> Result<GangTopology, Problem> {
    let (key, how) = text.split_once(',').unwrap_or((text, "required"));
    let required = match how {
        "required" => true,
        "preferred" => false,
        other => return Err(Problem::unknown(field, other, "required or preferred")),
    };
    if key.is_empty() || key.contains(char::is_whitespace) {
        let text = format!("invalid node label key {key:?} (e.g. topology.kubernetes.io/zone)");
        return Err(Problem::new(field, text));
    }
    Ok(GangTopology { key: key.into(), required })
}

/// `90s`, `10m`, `1h30m`.
fn timeout_ms(field: &str, text: &str) -> Result<i64, Problem> {
    let parse = || {
        let mut seconds: i64 = 0;
        let mut number = String::new();
        for one in text.chars() {
            if one.is_ascii_digit() {
                number.push(one);
                continue;
            }
            let unit = match one {
                'h' => 3600,
                'm' => 60,
                's' => 1,
                _ => return None,
            };
            let part = number.parse::<i64>().ok()?.checked_mul(unit)?;
            seconds = seconds.checked_add(part)?;
            number.clear();
        }
        (number.is_empty() && TIMEOUT_S.contains(&seconds)).then_some(seconds * 1000)
    };
    let invalid = || format!("invalid duration {text:?}; use 1s to 168h (e.g. 10m or 1h30m)");
    parse().ok_or_else(|| Problem::new(field, invalid()))
}

/// The fields that both versions of PodGroup have.
struct Group<'a> {
    gang: Option<i32>,
    basic: bool,
    topology: Vec<&'a str>,
    disruption: Option<Disruption>,
}

fn lower<K>(object: &K, group: Group<'_>) -> Result<Gang, Problem>
where
    K: Resource + Metadata<Ty = ObjectMeta>,
{
    let meta = object.metadata();
    let min = match (group.gang, group.basic) {
        (Some(min), false) => size("spec.schedulingPolicy.gang.minCount", min.into())?,
        // Its pods do not wait for each other, but they may still want to be near.
        (None, true) => 1,
        _ => {
            return Err(Problem::new(
                "spec.schedulingPolicy",
                "must have exactly one of basic and gang",
            ));
        }
    };
    let topology = match group.topology.as_slice() {
        [] => None,
        [key] => {
            let field = "spec.schedulingConstraints.topology[0].key";
            Some(self::topology(field, key)?)
        }
        _ => {
            let text = "must have at most one key";
            return Err(Problem::new("spec.schedulingConstraints.topology", text));
        }
    };
    let terms = terms(meta, min, topology, group.disruption.unwrap_or_default())?;
    Ok(Gang { namespace: meta::namespace(meta), name: meta::name(meta)?, terms })
}

impl Lower for v1alpha2::PodGroup {
    type Model = Gang;

    fn lower(&self) -> Result<Gang, LowerError> {
        let spec = &self.spec;
        let disruption = match spec.disruption_mode.as_deref() {
            None | Some("") => Ok(None),
            Some("Pod") => Ok(Some(Disruption::Single)),
            Some("PodGroup") => Ok(Some(Disruption::Whole)),
            Some(other) => Err(Problem::unknown("spec.disruptionMode", other, "Pod or PodGroup")),
        };
        let topology = spec.scheduling_constraints.iter().flat_map(|one| &one.topology).flatten();
        let lowered = disruption.and_then(|disruption| {
            let gang = spec.scheduling_policy.gang.as_ref().map(|gang| gang.min_count);
            let basic = spec.scheduling_policy.basic.is_some();
            let topology = topology.map(|one| one.key.as_str()).collect();
            lower(self, Group { gang, basic, topology, disruption })
        });
        error::of(self, lowered)
    }
}

/// A PodGroup of Kubernetes 1.37 (`scheduling.k8s.io/v1beta1`), with the fields that scheduling reads.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodGroup {
    pub metadata: ObjectMeta,
    pub spec: PodGroupSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodGroupSpec {
    /// `basic` or `gang`.
    pub scheduling_policy: SchedulingPolicy,
    #[serde(default)]
    pub scheduling_constraints: Option<SchedulingConstraints>,
    /// `single` or `all`.
    #[serde(default)]
    pub disruption_mode: Option<DisruptionMode>,
}

/// Whether members wait for each other.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct SchedulingPolicy {
    pub basic: Option<Empty>,
    pub gang: Option<GangPolicy>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GangPolicy {
    pub min_count: i32,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct SchedulingConstraints {
    /// All members go to nodes with the same value of each of these labels.
    #[serde(default)]
    pub topology: Vec<v1alpha2::TopologyConstraint>,
}

/// What happens to the other members when one is evicted.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct DisruptionMode {
    pub single: Option<Empty>,
    pub all: Option<Empty>,
}

/// An empty object whose presence is the value.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Empty {}

impl Resource for PodGroup {
    const API_VERSION: &'static str = "scheduling.k8s.io/v1beta1";
    const GROUP: &'static str = "scheduling.k8s.io";
    const KIND: &'static str = "PodGroup";
    const VERSION: &'static str = "v1beta1";
    const URL_PATH_SEGMENT: &'static str = "podgroups";
    type Scope = NamespaceResourceScope;
}

impl Metadata for PodGroup {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl Lower for PodGroup {
    type Model = Gang;

    fn lower(&self) -> Result<Gang, LowerError> {
        let spec = &self.spec;
        let disruption = match &spec.disruption_mode {
            None => Ok(None),
            Some(DisruptionMode { single: Some(_), all: None }) => Ok(Some(Disruption::Single)),
            Some(DisruptionMode { single: None, all: Some(_) }) => Ok(Some(Disruption::Whole)),
            Some(_) => {
                Err(Problem::new("spec.disruptionMode", "must have exactly one of single and all"))
            }
        };
        let topology = spec.scheduling_constraints.iter().flat_map(|one| &one.topology);
        let lowered = disruption.and_then(|disruption| {
            let gang = spec.scheduling_policy.gang.as_ref().map(|gang| gang.min_count);
            let basic = spec.scheduling_policy.basic.is_some();
            let topology = topology.map(|one| one.key.as_str()).collect();
            lower(self, Group { gang, basic, topology, disruption })
        });
        error::of(self, lowered)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, from_value, json};

    use super::*;

    fn pod(
        labels: Value,
        annotations: Value,
        group: Value,
    ) -> Result<Option<GangMembership>, String> {
        let pod: Pod = from_value(json!({
            "metadata": { "name": "p", "namespace": "team", "labels": labels,
                          "annotations": annotations },
            "spec": { "containers": [{ "name": "c" }], "schedulingGroup": group },
        }))
        .unwrap();
        pod.lower().map(|pod| pod.spec.gang.clone()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_pod_joins_a_gang_by_label() {
        let labels = json!({ GANG: "train", GANG_SIZE: "8" });
        let annotations =
            json!({ GANG_TOPOLOGY: "nvidia.com/gpu.clique,preferred", GANG_TIMEOUT: "1h30m" });
        let gang = pod(labels, annotations, Value::Null).unwrap().unwrap();
        let terms = gang.terms.unwrap();
        assert_eq!((&*gang.name, terms.min, terms.timeout_ms), ("train", 8, 5_400_000));
        let topology = terms.topology.unwrap();
        assert_eq!((&*topology.key, topology.required), ("nvidia.com/gpu.clique", false));
        assert_eq!(pod(json!({}), json!({}), Value::Null), Ok(None));
    }

    #[test]
    fn a_pod_joins_a_gang_by_pod_group() {
        let gang = pod(json!({}), json!({}), json!({ "podGroupName": "train" })).unwrap().unwrap();
        assert_eq!((&*gang.name, gang.terms), ("train", None));
    }

    #[test]
    fn what_is_no_gang_is_an_error_with_the_remedy() {
        let size = |text: &str| json!({ GANG: "train", GANG_SIZE: text });
        for text in ["", "0", "-1", "many", "10001", "2.0"] {
            let error = pod(size(text), json!({}), Value::Null).unwrap_err();
            assert!(
                error.contains(GANG_SIZE) && error.contains("must be an integer from 1 to 10000"),
                "{error}"
            );
        }
        for text in ["", "10", "m", "0s", "169h", "1d", "-5m", "99999999999999999999h"] {
            let error = pod(size("2"), json!({ GANG_TIMEOUT: text }), Value::Null).unwrap_err();
            assert!(error.contains(GANG_TIMEOUT) && error.contains("invalid duration"), "{error}");
        }
        for (text, remedy) in [("", "e.g."), ("a b", "e.g."), ("zone,maybe", "preferred")] {
            let error = pod(size("2"), json!({ GANG_TOPOLOGY: text }), Value::Null).unwrap_err();
            assert!(error.contains(GANG_TOPOLOGY) && error.contains(remedy), "{error}");
        }
        let error = pod(json!({ GANG: "train" }), json!({}), Value::Null).unwrap_err();
        assert!(error.contains("is required"), "{error}");
        let error = pod(json!({ GANG_SIZE: "2" }), json!({}), Value::Null).unwrap_err();
        assert!(error.contains(&format!("requires the label {GANG}")), "{error}");
        let both = pod(size("2"), json!({}), json!({ "podGroupName": "g" })).unwrap_err();
        assert!(both.contains("remove one of them"), "{both}");
    }

    fn of_1_36(spec: Value) -> Result<GangTerms, String> {
        let metadata = json!({ "name": "g", "namespace": "team",
                               "annotations": { GANG_TIMEOUT: "90s" } });
        let group: v1alpha2::PodGroup =
            from_value(json!({ "metadata": metadata, "spec": spec })).unwrap();
        group.lower().map(|gang| gang.terms).map_err(|error| error.to_string())
    }

    fn of_1_37(spec: Value) -> Result<GangTerms, String> {
        let metadata = json!({ "name": "g", "namespace": "team",
                               "annotations": { GANG_TIMEOUT: "90s" } });
        let group: PodGroup = from_value(json!({ "metadata": metadata, "spec": spec })).unwrap();
        group.lower().map(|gang| gang.terms).map_err(|error| error.to_string())
    }

    #[test]
    fn pod_groups_of_both_versions_say_the_same() {
        let policy = json!({ "gang": { "minCount": 4 } });
        let constraints = json!({ "topology": [{ "key": "rack" }] });
        let expected = GangTerms {
            min: 4,
            topology: Some(GangTopology { key: "rack".into(), required: true }),
            timeout_ms: 90_000,
            disruption: Disruption::Single,
        };
        let old = of_1_36(json!({ "schedulingPolicy": policy, "disruptionMode": "Pod",
                                  "schedulingConstraints": constraints }));
        assert_eq!(old, Ok(expected.clone()));
        let new = of_1_37(json!({ "schedulingPolicy": policy, "disruptionMode": { "single": {} },
                                  "schedulingConstraints": constraints,
                                  "workloadRef": { "workloadName": "w", "templateName": "t" } }));
        assert_eq!(new, Ok(expected));
        let basic = of_1_37(json!({ "schedulingPolicy": { "basic": {} } })).unwrap();
        assert_eq!((basic.min, basic.disruption), (1, Disruption::Whole));
    }

    #[test]
    fn pod_groups_that_make_no_sense_name_the_field() {
        let gang = |min: i32| json!({ "gang": { "minCount": min } });
        let two = json!({ "topology": [{ "key": "zone" }, { "key": "rack" }] });
        for (spec, field) in [
            (json!({ "schedulingPolicy": {} }), "spec.schedulingPolicy"),
            (json!({ "schedulingPolicy": gang(0) }), "spec.schedulingPolicy.gang.minCount"),
            (
                json!({ "schedulingPolicy": gang(2), "schedulingConstraints": two }),
                "spec.schedulingConstraints.topology",
            ),
        ] {
            for error in [of_1_36(spec.clone()).unwrap_err(), of_1_37(spec).unwrap_err()] {
                assert!(error.starts_with(&format!("PodGroup team/g: {field}: ")), "{error}");
            }
        }
        let error = of_1_36(json!({ "schedulingPolicy": gang(2), "disruptionMode": "Half" }));
        assert!(error.unwrap_err().contains("use Pod or PodGroup"));
    }
}
