//! Explanations in plain English, short enough for the message of a condition.
//!
//! If there is too much to say, whole clauses are dropped, the least useful first.

use berth_model::alignment::Alignment;
use berth_model::quantity::{Format, Quantity};
use berth_model::workload::WorkloadClass;
use berth_tenancy::quota::Refusal;
use berth_tenancy::share::Hold;

use super::data::{
    Cause, DomainRoom, Explanation, GangReport, Group, Holding, Lack, Miss, Others, PartUse,
    PodName, Preference, Remedy, Shortage, Tenant, Unreserved, Why,
};
use super::relax::Relaxation;
use super::words::{
    amount, bytes, count, devices, label, list, name, need, part, part_kind, pod, pods, port,
    quote, requirement, selector, share, span, sum, taint,
};
use crate::decision::HeldBy;
use crate::slices::GpuLayoutChange;

const LENGTH_MAX_BYTES: usize = 1000;

/// Limits of the nearest nodes and of the remedies; reasons get the rest.
const NEAREST_MAX_BYTES: usize = 220;
const REMEDIES_MAX_BYTES: usize = 400;

const QUOTA_MAX_BYTES: usize = 700;

/// Limit for the gang; its member's explanation gets the rest.
const GANG_MAX_BYTES: usize = 500;

/// In plain English, under 1,000 bytes.
pub fn render(explanation: &Explanation) -> String {
    match explanation {
        Explanation::Gated { gates, .. } => {
            format!(
                "Not scheduled yet: waiting for schedulingGates {}.",
                list(gates, |gate| name(gate))
            )
        }
        Explanation::Held { team, by, .. } => held(team, by),
        Explanation::Leaving { .. } => "It is being deleted.".to_owned(),
        Explanation::AwaitsRoom { node, leaving, overdue, .. } => {
            let (node, leaving) = (name(node), pods(leaving));
            let overdue = still_terminating(overdue);
            format!("Nominated to {node}; waiting for {leaving} to terminate.{overdue}")
        }
        Explanation::Waiting { nodes, fitting, groups, nearest, remedies, overdue, .. } => {
            let overdue = still_terminating(overdue);
            waiting(*nodes, *fitting, &overdue, groups, nearest, remedies)
        }
        Explanation::InGang { gang, next, .. } => {
            let mut sentences = in_gang(gang);
            let left = LENGTH_MAX_BYTES - 2 - GANG_MAX_BYTES;
            let text = fill("", &sentences, " ", "", GANG_MAX_BYTES, |_| String::new());
            sentences = vec![text];
            sentences.extend(next.iter().map(|next| next_member(next, left)));
            sentences.join(" ")
        }
        Explanation::Placed { node, alignment, grant, why, .. } => {
            let mut sentences = vec![format!("Placed on {}.", name(node))];
            if let Some(grant) = grant {
                let resource = name(grant.resource.as_str());
                sentences.push(match grant.gpu {
                    None => format!("Allocated one {resource}."),
                    Some(gpu) => format!("Allocated a share of GPU {gpu} ({resource})."),
                });
            }
            sentences.extend(placed(*alignment, why));
            let rest = |left: usize| format!("And {} more.", count(left, "fact"));
            fill("", &sentences, " ", "", LENGTH_MAX_BYTES - 1, rest)
        }
    }
}

fn still_terminating(overdue: &[PodName]) -> String {
    if overdue.is_empty() {
        return String::new();
    }
    format!(" No longer waiting for {}, preempted but still terminating.", pods(overdue))
}

fn held(team: &str, by: &HeldBy) -> String {
    match by {
        HeldBy::Quota(refusal) => {
            let remedy = match refusal {
                Refusal::Exceeded { quota, .. } => {
                    format!("Raise quota {} or delete pods that it counts.", name(quota))
                }
                Refusal::Unspecified { .. } => "Set it in these containers.".to_owned(),
                Refusal::Negative { .. } => "Request 0 or more.".to_owned(),
            };
            let words = shortened(&refusal.to_string(), QUOTA_MAX_BYTES);
            format!("Held by a quota; more nodes would not help: {words}. {remedy}")
        }
        HeldBy::Share(Hold::BorrowingLimit {
            team: limited,
            dimension,
            asked,
            has,
            guaranteed,
            borrow_max,
        }) => {
            let show = |amount: &i64| dimension.show(*amount);
            let whose = if **limited == *team { "Its team" } else { "The group" };
            format!(
                "Held by its team's share; more nodes would not help: it requests {}. {whose} {} uses \
                 {}, is guaranteed {} and may borrow {}. Raise what it may borrow or delete some of \
                 its pods.",
                show(asked),
                name(limited),
                show(has),
                show(guaranteed),
                show(borrow_max)
            )
        }
        HeldBy::Share(Hold::Withheld { dimension, asked, capacity, kept, by }) => {
            let show = |amount: i64| dimension.show(amount);
            let keepers: Vec<String> =
                by.iter().map(|(team, idle)| format!("{} {}", name(team), show(*idle))).collect();
            let start = format!(
                "Held by its team's share; more nodes would not help: it requests {} beyond its \
                 guarantee. Of {}, {} are in use, or idle and not lent",
                show(*asked),
                show(*capacity),
                show(*kept)
            );
            let rest = |left: usize| format!("{} more", count(left, "team"));
            let end = ". Raise the lend limit of one of them.";
            fill(&format!("{start} by "), &keepers, ", ", end, LENGTH_MAX_BYTES - 1, rest)
        }
    }
}

fn shortened(text: &str, max_bytes: usize) -> String {
    if text.len() <= max_bytes {
        return text.to_owned();
    }
    let end = (0..=max_bytes - 3).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}...", &text[..end])
}

fn in_gang(gang: &GangReport) -> Vec<String> {
    let who = format!("Gang {}", name(&gang.name.name));
    let Some(min) = gang.min else {
        return vec![format!(
            "{who} is pending: its size is unknown, no PodGroup of this name exists."
        )];
    };
    let exist = gang.waiting + gang.served;
    let mut sentences = Vec::new();
    if exist < min {
        sentences.push(format!("{who} is pending: {exist} of {min} members exist."));
    } else {
        let need = min - gang.served.min(min);
        let members = count(need, "member");
        sentences.push(format!("{who} is pending: it needs room for {members} at once."));
        let key = gang.topology_key.as_ref().map(|key| name(key));
        let room = |one: &DomainRoom| match &one.value {
            Some(value) => format!("{} for {} of {need}", name(value), one.room),
            None => format!("all nodes together for {} of {need}", one.room),
        };
        let rooms = list(&gang.rooms, room);
        match (key, gang.rooms.is_empty()) {
            (Some(key), true) => sentences.push(format!("No node has the label {key}.")),
            (Some(key), false) => sentences.push(format!(
                "{} of {key}; there is room in {rooms}.",
                count(gang.domains, "value")
            )),
            (None, _) => sentences.push(format!("There is room on {rooms}.")),
        }
    }
    if gang.disagrees {
        let remedy = "set the same on all; the oldest member's apply";
        sentences.push(format!("Its members have different gang settings: {remedy}."));
    }
    if gang.evicting {
        sentences.push("Pods are terminating to make room for it.".to_owned());
    }
    if let Some(max_ms) = gang.reserved_max_ms {
        let span = span(max_ms);
        sentences.push(format!(
            "Nodes are reserved for it until the pods running there end, {span} at most in total."
        ));
    }
    sentences.extend(gang.unreserved.as_ref().map(unreserved));
    if gang.timeouts > 0 {
        let times = count(gang.timeouts as usize, "time");
        sentences
            .push(format!("Its reservation has expired {times}; other gangs were tried next."));
    }
    sentences
}

fn unreserved(why: &Unreserved) -> String {
    let why = match why {
        Unreserved::BeyondShare { model, needs, allowed, percent } => {
            let of = match model.as_deref() {
                Some("") => "GPUs".to_owned(),
                Some(model) => format!("GPUs ({})", name(model)),
                None => "nodes without GPUs".to_owned(),
            };
            format!("it needs {needs} {of}, and at most {allowed} ({percent}%) may be reserved")
        }
        Unreserved::Resting(Tenant::Team(team)) => {
            format!("team {} has used up its reservation time for now", name(team))
        }
        Unreserved::Resting(Tenant::Namespace(namespace)) => {
            format!("namespace {} has used up its reservation time for now", name(namespace))
        }
        Unreserved::NothingEnds => {
            "it would not fit even after every pod that runs to completion has ended".to_owned()
        }
    };
    format!("No nodes are reserved for it: {why}.")
}

fn next_member(next: &Explanation, room_bytes: usize) -> String {
    shortened(&format!("Next member: {}", render(next)), room_bytes)
}

/// As many clauses as fit, and the number of others.
fn fill(
    start: &str,
    clauses: &[String],
    between: &str,
    end: &str,
    room_bytes: usize,
    rest: impl Fn(usize) -> String,
) -> String {
    if clauses.is_empty() {
        return String::new();
    }
    let text = |shown: usize| {
        let mut all: Vec<&str> = clauses.iter().take(shown).map(String::as_str).collect();
        let left = clauses.len() - shown;
        let rest = if left > 0 { rest(left) } else { String::new() };
        all.extend((left > 0).then_some(rest.as_str()));
        format!("{start}{}{end}", all.join(between))
    };
    // Upper limit of clauses that could fit.
    let lengths = clauses.iter().scan(0, |sum, clause| {
        *sum += clause.len();
        Some(*sum)
    });
    let most = lengths.take_while(|length| *length <= room_bytes).count();
    (0..=most).rev().map(text).find(|text| text.len() <= room_bytes).unwrap_or_default()
}

fn waiting(
    nodes: usize,
    fitting: usize,
    overdue: &str,
    groups: &[Group],
    nearest: &[Miss],
    remedies: &[Remedy],
) -> String {
    let head = match (nodes, fitting) {
        (0, _) => "There are no nodes.".to_owned(),
        (_, 0) => format!("0 of {nodes} nodes fit."),
        _ => format!("{fitting} of {nodes} nodes fit; it waits for its turn."),
    };
    let more = |left: usize| format!("and {left} more");
    let remedies: Vec<String> = remedies.iter().map(remedy).collect();
    let remedies = fill(" Would fit: ", &remedies, "; ", ".", REMEDIES_MAX_BYTES, more);
    let nearest: Vec<String> = nearest.iter().map(miss).collect();
    let nearest = fill(" Nearest: ", &nearest, "; ", ".", NEAREST_MAX_BYTES, more);
    let taken = head.len() + overdue.len() + remedies.len() + nearest.len();
    let reasons: Vec<String> = groups.iter().map(group).collect();
    let rest = |left: usize| {
        let nodes = groups.iter().rev().take(left).map(|group| group.nodes).sum();
        format!("And {} on {}", count(left, "more reason"), count(nodes, "node"))
    };
    let reasons = fill(" ", &reasons, ". ", ".", LENGTH_MAX_BYTES - 1 - taken, rest);
    format!("{head}{overdue}{reasons}{nearest}{remedies}")
}

pub fn group(group: &Group) -> String {
    let who = match (group.nodes, group.examples.first()) {
        (1, Some(node)) => format!("Node {}", name(node)),
        (nodes, _) => count(nodes, "node"),
    };
    format!("{who}: {}", cause(&group.cause))
}

fn cause(cause: &Cause) -> String {
    match cause {
        Cause::OtherNode { wanted } => format!("not the requested node {}", name(wanted)),
        Cause::Cordoned => "cordoned".to_owned(),
        Cause::Taint(one) => format!("untolerated taint {}", taint(one)),
        Cause::NodeLabel { key, value } => {
            format!("node selector requires {}", label(key, value))
        }
        Cause::NodeAffinity { requirement: Some(one) } => {
            format!("node affinity requires {}", requirement(one))
        }
        Cause::NodeAffinity { requirement: None } => {
            "no term of the node affinity matches".to_owned()
        }
        Cause::Port(one) => format!("{} in use", port(one)),
        Cause::TooManyPods => "too many pods".to_owned(),
        Cause::Short(all) => list(all, shortage),
        Cause::NoOffer { need: one, largest: None } => {
            format!("{} of a GPU requested, but the GPUs' memory is unknown", need(one))
        }
        Cause::NoOffer { need: one, largest: Some(largest) } => {
            let (resource, memory) = (name(largest.resource.as_str()), bytes(largest.memory_bytes));
            let share = share(largest.compute_milli);
            let largest = format!("{resource} with {memory} and {share}");
            format!("{} of a GPU requested, but the largest device is {largest}", need(one))
        }
        Cause::OffersTaken { need: one } => {
            format!("{} of a GPU requested, but all devices large enough are allocated", need(one))
        }
        Cause::Spread { key, domain, skew, max_skew } => {
            let domain = domain.as_ref().map_or("it".to_owned(), |domain| name(domain));
            let key = name(key);
            let exceeds = format!("{domain} would exceed the minimum by {skew}");
            format!("topology spread by {key}: {exceeds}, {max_skew} allowed")
        }
        Cause::SpreadLabel { key } => {
            format!("no label {} for topology spread", name(key))
        }
        Cause::Reserved { by } => format!("reserved for nominated pods such as {}", pod(by)),
        Cause::ReservedForGang { gang, max_ms } if gang.name.is_empty() => {
            format!(
                "reserved for a gang in another namespace (for {} at most in total)",
                span(*max_ms)
            )
        }
        Cause::ReservedForGang { gang, max_ms } => format!(
            "reserved for gang {}/{} (for {} at most in total)",
            name(&gang.namespace),
            name(&gang.name),
            span(*max_ms)
        ),
        Cause::OtherClasses { .. } | Cause::Headroom { .. } => by_class(cause),
        Cause::Plugin { reason, .. } => quote(&reason.to_string()),
        Cause::Others { reasons } => count(*reasons, "other reason"),
        Cause::NoNeighbour { .. } | Cause::Unwelcome { .. } | Cause::Refused { .. } => {
            neighbour(cause)
        }
        _ => kubelet(cause),
    }
}

fn by_class(cause: &Cause) -> String {
    match cause {
        Cause::OtherClasses { pool, classes, .. } => {
            let classes: Vec<WorkloadClass> = classes.iter().collect();
            let classes = match classes.as_slice() {
                [] => "no class of work".to_owned(),
                some => list(some, WorkloadClass::to_string),
            };
            format!("pool {} is only for {classes}", name(pool))
        }
        Cause::Headroom { class, room, need: part_of_gpu, on_one, .. } => {
            let mut kept: Vec<String> =
                room.iter().map(|(resource, of_it)| amount(resource, *of_it)).collect();
            kept.extend(part_of_gpu.as_ref().map(|one| format!("{} of a GPU", need(one))));
            let on = on_one.map_or(String::new(), |kind| format!(" on one {}", part_kind(kind)));
            format!("headroom for {class}: {}{on}", list(&kept, String::clone))
        }
        _ => String::new(),
    }
}

fn shortage(one: &Shortage) -> String {
    let Shortage { resource, wanted, most, ever } = one;
    let have = match (ever, most.is_zero()) {
        (true, true) => "none free".to_owned(),
        (true, false) => format!("at most {most} free"),
        (false, true) => "no capacity".to_owned(),
        (false, false) => format!("capacity at most {most}"),
    };
    format!("{}: {wanted} requested, {have}", name(resource.as_str()))
}

fn neighbour(cause: &Cause) -> String {
    let place = |key: &str, domain: Option<&str>| {
        let value = domain.map_or(String::new(), |domain| format!(" ({})", name(domain)));
        format!("in the same {}{value}", name(key))
    };
    match cause {
        Cause::NoNeighbour { key, selector: one } => {
            let place = place(key, None);
            format!("no pod {} {place}, required by pod affinity", selector(one.as_ref()))
        }
        Cause::Unwelcome { key, domain, selector: one } => {
            let place = place(key, domain.as_deref());
            format!("a pod {} {place}, excluded by pod anti-affinity", selector(one.as_ref()))
        }
        Cause::Refused { key, domain, by } => {
            let by = by.as_ref().map_or("a pod".to_owned(), pod);
            format!("{by} {} excludes it by anti-affinity", place(key, domain.as_deref()))
        }
        _ => String::new(),
    }
}

fn kubelet(cause: &Cause) -> String {
    match cause {
        Cause::Split { resource, wanted, free, parts, most } => {
            let units = |count: u64| amount(resource, units(count));
            let kind = part_kind(*parts);
            let all = free.iter().fold(0_u64, |sum, one| sum.saturating_add(*one));
            if free.is_empty() {
                return format!("{} requested on one {kind}, at most {most} free", units(*wanted));
            }
            let also = if all == *wanted { String::new() } else { format!(", {wanted} requested") };
            format!("{} free but split {} over {kind}s{also}", units(all), sum(free))
        }
        Cause::Crowded { resource, wanted, most, parts } => {
            let (wanted, kind) = (amount(resource, *wanted), part_kind(*parts));
            format!("{wanted} requested on one {kind}, at most {most} free")
        }
        Cause::Apart { wanted, parts } => {
            let kind = part_kind(*parts);
            let wanted = list(wanted, |(resource, wanted)| amount(resource, *wanted));
            format!("{wanted} free, but not on the same {kind}")
        }
        Cause::Kubelet { reason, words } if words.is_empty() => {
            format!("the kubelet would reject it ({})", reason.as_str())
        }
        Cause::Kubelet { words, .. } => format!("the kubelet would reject it: {}", quote(words)),
        Cause::Uncertain => {
            "the kubelet may reject it, depending on devices it allocated at random".to_owned()
        }
        Cause::UnknownTopology { doubted: false } => "topology unknown".to_owned(),
        Cause::UnknownTopology { doubted: true } => {
            "topology unknown: the published topology contradicts running pods".to_owned()
        }
        _ => String::new(),
    }
}

fn units(count: u64) -> Quantity {
    Quantity::from_units(i64::try_from(count).unwrap_or(i64::MAX), Format::DecimalSi)
}

fn miss(miss: &Miss) -> String {
    let lack = |lack: &Lack| {
        let on = lack.on.as_ref().map_or(String::new(), |on| format!(" on {}", part(on)));
        format!("{}{on}", amount(&lack.resource, lack.amount))
    };
    format!("{} lacks {}", name(&miss.node), list(&miss.lacks, lack))
}

/// A remedy, worded to follow "would fit".
pub fn remedy(remedy: &Remedy) -> String {
    match remedy {
        Remedy::Evict { node, victims, leaving, .. } if victims.is_empty() => {
            format!("once {} left {}", pods(leaving), name(node))
        }
        Remedy::Evict { node, victims, leaving, budget_violations, by_preemption } => {
            let (victims, node) = (pods(victims), name(node));
            let mut text = if *by_preemption {
                format!("once preemption evicts {victims} from {node}")
            } else {
                format!("if {victims} left {node}")
            };
            if !leaving.is_empty() {
                text += &format!(" and {} left as well", pods(leaving));
            }
            if *budget_violations > 0 {
                let evictions = count(*budget_violations, "eviction");
                text += &format!(", {evictions} violating disruption budgets");
            }
            text
        }
        Remedy::Grow { pool, alignment } => {
            let known = match alignment {
                Alignment::Unknown => ", whose topology is unknown",
                _ => "",
            };
            format!("with one more node of pool {}{known}", name(pool))
        }
        Remedy::Relax { change, node } => format!("on {} {}", name(node), relaxation(change)),
        Remedy::Uncordon { node } => format!("on {} if it were uncordoned", name(node)),
        Remedy::Repartition { node, steps } => {
            let step = |one: &GpuLayoutChange| format!("its GPU {} to {}", one.gpu, one.to);
            format!("on {} after repartitioning {}", name(node), list(steps, step))
        }
        Remedy::Loosen { node } => {
            format!("on {} if its kubelet did not require alignment", name(node))
        }
    }
}

fn relaxation(change: &Relaxation) -> String {
    match change {
        Relaxation::AnyNode => "without a node name".to_owned(),
        Relaxation::Tolerate(one) => format!("if it tolerated taint {}", taint(one)),
        Relaxation::DropNodeLabel { key, value } => {
            format!("without {} in its node selector", label(key, value))
        }
        Relaxation::DropNodeAffinity => "without its required node affinity".to_owned(),
        Relaxation::DropPort(one) => format!("without {}", port(one)),
        Relaxation::SpreadSoftly(one) => {
            format!("with ScheduleAnyway for its spread by {}", name(&one.topology_key))
        }
        Relaxation::DropPodAffinity => "without its required pod affinity".to_owned(),
        Relaxation::DropAntiAffinity(one) => {
            format!("without its pod anti-affinity by {}", name(&one.topology_key))
        }
        Relaxation::Less { resource, from, to } => {
            format!("with {} instead of {from}", amount(resource, *to))
        }
        Relaxation::SmallerNeed { from, to } => {
            format!("with {} of a GPU instead of {}", need(to), need(from))
        }
    }
}

/// Why a pod is on its node, most useful first.
fn placed(alignment: Alignment, why: &Why) -> Vec<String> {
    let mut sentences: Vec<String> = why.holds.iter().filter_map(holding).collect();
    sentences.extend(match alignment {
        Alignment::Aligned => Some("It is aligned.".to_owned()),
        Alignment::Misaligned => Some("It is misaligned.".to_owned()),
        Alignment::Floating => None,
        Alignment::Unknown => Some("Its alignment is unknown.".to_owned()),
    });
    sentences.extend(parts(&why.parts));
    sentences.extend(why.others.iter().map(others));
    sentences.extend(why.preferences.iter().map(preference));
    sentences
}

fn holding(holding: &Holding) -> Option<String> {
    let devices = holding.devices.iter().map(|held| {
        let number = amount(&held.resource, units(held.count as u64));
        let ids = list(&held.ids, |id| name(id));
        if ids.is_empty() { number } else { format!("{number} ({ids})") }
    });
    let cpus = (holding.cpus > 0).then(|| count(holding.cpus, "CPU"));
    let all: Vec<String> = devices.chain(cpus).collect();
    if all.is_empty() {
        return None;
    }
    let on = holding.on.as_ref().map_or(String::new(), |on| format!(" on {}", part(on)));
    Some(format!("It holds {}{on}.", list(&all, String::clone)))
}

fn parts(parts: &[PartUse]) -> Option<String> {
    let first = parts.first()?;
    let word = |one: &&PartUse| {
        let place = one.part.as_ref().map_or("no NUMA node".to_owned(), part);
        format!("{} of {} on {place}", one.free, one.all)
    };
    let same: Vec<&PartUse> = parts.iter().filter(|one| one.resource == first.resource).collect();
    let whole = same.iter().filter(|one| one.free == one.all).filter_map(|one| one.part.as_ref());
    let whole: Vec<String> = whole.map(part).collect();
    let mut text =
        format!("Free {} on the node now: {}", devices(&first.resource), list(&same, word));
    if !whole.is_empty() {
        text += &format!("; {} unused", list(&whole, String::clone));
    }
    Some(text + ".")
}

fn others(others: &Others) -> String {
    let Others { nodes, open, aligned, free } = others;
    let nodes = count(*nodes, "other node");
    let mut text = format!("{open} of {nodes} would take one more such pod now");
    if let Some(aligned) = aligned {
        text += &format!(", {aligned} of them aligned");
    }
    if let Some(free) = free {
        let (least, most) = free.elsewhere;
        let range = if least == most { least.to_string() } else { format!("{least} to {most}") };
        let devices = devices(&free.resource);
        text += &format!("; they have {range} {devices} free, its own node {}", free.here);
    }
    text + "."
}

fn preference(preference: &Preference) -> String {
    match preference {
        Preference::NodeAffinity { here, elsewhere } => {
            format!("Preferred node affinity: {here} here, at most {elsewhere} on those.")
        }
        Preference::Taints { here, elsewhere } => {
            format!("PreferNoSchedule taints: {here} here, at least {elsewhere} on those.")
        }
        Preference::Spread { key, domain, here, elsewhere } => {
            let (key, domain) = (name(key), name(domain));
            format!("Spread by {key}: {here} in {domain}, at least {elsewhere} on those.")
        }
    }
}
