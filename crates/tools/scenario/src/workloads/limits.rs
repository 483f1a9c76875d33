//! LimitRanges as the API server's LimitRanger applies them to a new pod.

use std::collections::BTreeMap;

use berth_model::quantity::Quantity;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

type Amounts = BTreeMap<String, Text>;

/// The items of a kind, with the API server's defaulting of LimitRanges.
fn items(ranges: &[&core::LimitRange], of: &str) -> Vec<core::LimitRangeItem> {
    let all = ranges.iter().flat_map(|range| &range.spec).flat_map(|spec| &spec.limits);
    let mut items: Vec<core::LimitRangeItem> =
        all.filter(|item| item.type_ == of).cloned().collect();
    for item in items.iter_mut().filter(|_| of == "Container") {
        let fill = |into: &mut Option<Amounts>, from: &Option<Amounts>| {
            for (name, amount) in from.iter().flatten() {
                into.get_or_insert_default().entry(name.clone()).or_insert_with(|| amount.clone());
            }
        };
        fill(&mut item.default, &item.max.clone());
        fill(&mut item.default_request, &item.default.clone());
        fill(&mut item.default_request, &item.min.clone());
    }
    items
}

/// Adds default requests and limits to containers.
pub(super) fn apply(pod: &mut core::Pod, ranges: &[&core::LimitRange]) {
    let items = items(ranges, "Container");
    let Some(spec) = pod.spec.as_mut().filter(|_| !items.is_empty()) else { return };
    let containers = spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten());
    for container in containers {
        let resources = container.resources.get_or_insert_default();
        // The API server defaults requests to limits first.
        let limits = resources.limits.clone();
        for (name, amount) in limits.iter().flatten() {
            let requests = resources.requests.get_or_insert_default();
            requests.entry(name.clone()).or_insert_with(|| amount.clone());
        }
        for item in &items {
            for (name, amount) in item.default_request.iter().flatten() {
                let requests = resources.requests.get_or_insert_default();
                requests.entry(name.clone()).or_insert_with(|| amount.clone());
            }
            for (name, amount) in item.default.iter().flatten() {
                let limits = resources.limits.get_or_insert_default();
                limits.entry(name.clone()).or_insert_with(|| amount.clone());
            }
        }
    }
}

/// Why the API server would reject the pod.
pub(super) fn refusal(pod: &core::Pod, ranges: &[&core::LimitRange]) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let of_containers = items(ranges, "Container");
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    for container in containers {
        let amounts = |of: fn(&core::ResourceRequirements) -> &Option<Amounts>| {
            container.resources.as_ref().map_or_else(BTreeMap::new, |one| read(of(one)))
        };
        let (requests, limits) = (amounts(|one| &one.requests), amounts(|one| &one.limits));
        let found = of_containers.iter().find_map(|item| beyond(item, &requests, &limits));
        if let Some(found) = found {
            return Some(format!("container {:?}: {found}", container.name));
        }
    }
    let (mut requests, mut limits) = (BTreeMap::new(), BTreeMap::new());
    for resources in spec.containers.iter().filter_map(|container| container.resources.as_ref()) {
        add(&mut requests, &read(&resources.requests));
        add(&mut limits, &read(&resources.limits));
    }
    items(ranges, "Pod").iter().find_map(|item| beyond(item, &requests, &limits))
}

fn read(amounts: &Option<Amounts>) -> BTreeMap<String, Quantity> {
    let parse =
        |(name, Text(text)): (&String, &Text)| Some((name.clone(), Quantity::parse(text).ok()?));
    amounts.iter().flatten().filter_map(parse).collect()
}

fn add(sum: &mut BTreeMap<String, Quantity>, more: &BTreeMap<String, Quantity>) {
    for (name, amount) in more {
        let before = sum.get(name).copied();
        let after = before.map_or(*amount, |before| before.saturating_add(*amount));
        sum.insert(name.clone(), after);
    }
}

fn beyond(
    item: &core::LimitRangeItem,
    requests: &BTreeMap<String, Quantity>,
    limits: &BTreeMap<String, Quantity>,
) -> Option<String> {
    let of = &item.type_;
    for (name, least) in read(&item.min) {
        match requests.get(&name) {
            None => {
                return Some(format!(
                    "minimum {name} usage per {of} is {least}; no request is specified"
                ));
            }
            Some(asked) if *asked < least => {
                return Some(format!(
                    "minimum {name} usage per {of} is {least}, but request is {asked}"
                ));
            }
            Some(_) => {}
        }
    }
    for (name, most) in read(&item.max) {
        match limits.get(&name) {
            None => {
                return Some(format!(
                    "maximum {name} usage per {of} is {most}; no limit is specified"
                ));
            }
            Some(asked) if *asked > most => {
                return Some(format!(
                    "maximum {name} usage per {of} is {most}, but limit is {asked}"
                ));
            }
            Some(_) => {}
        }
    }
    None
}
