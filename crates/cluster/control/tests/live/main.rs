//! The scheduler against an API: the embedded one, and a real kube-apiserver with etcd where there is one.
//!
//! Owns which scenarios there are and against what they run. Every scenario is a function over a
//! [`World`](world::World) and knows nothing of which API is behind it.
//!
//! `BERTH_LIVE=embedded`, `real` or `both` says against which to run; without it both are used, the real
//! one if its programs are found. Arguments are parts of names of scenarios to run.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a failed expectation is a failed test, and the suite says what it ran"
)]

mod agent;
mod devices;
mod explaining;
mod gangs;
mod hostile;
mod leading;
mod placing;
mod preempting;
mod refusing;
mod replica;
mod seeing;
#[path = "../support/mod.rs"]
mod support;
#[path = "../../../../node/agent/tests/support/mod.rs"]
mod synthetic_node;
mod topology;
mod volumes;
mod world;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use berth_testbed::{Testbed, Which, real_assets};
use futures::future::LocalBoxFuture;
use futures::{StreamExt as _, stream};
use tokio::sync::Mutex;

use world::World;

/// No scenario may take longer.
const LONGEST: Duration = Duration::from_secs(60);

/// So many scenarios run at the same time where each has a server of its own.
const BESIDE: usize = 4;

struct Scenario {
    name: &'static str,
    run: fn(World) -> LocalBoxFuture<'static, ()>,
}

macro_rules! scenarios {
    ($($module:ident: $($name:ident),+;)+) => {
        &[$($(Scenario {
            name: concat!(stringify!($module), "::", stringify!($name)),
            run: |world| Box::pin($module::$name(world)),
        },)+)+]
    };
}

const SCENARIOS: &[Scenario] = scenarios![
    placing:
        pods_that_name_us_are_bound_and_others_are_not_touched,
        where_a_bound_pod_lies_is_written_on_it,
        pods_of_other_schedulers_count_on_nodes,
        pods_deleted_while_they_are_bound_leave_no_ghosts,
        a_restart_knows_everything_again,
        lists_come_in_pages_where_they_are_not_streamed;
    explaining:
        a_pod_without_a_place_is_told_why_and_gets_one_when_a_node_comes,
        a_pod_beyond_its_quota_is_held_and_not_unschedulable;
    preempting:
        a_pod_that_goes_first_gets_its_place,
        a_disruption_budget_blocks_and_nothing_is_lost;
    refusing:
        what_a_kubelet_refuses_is_not_sent_there_again;
    topology:
        insides_exported_before_and_after_we_start_are_known,
        insides_count_when_their_definition_comes_later,
        a_pool_says_what_its_nodes_look_like_inside;
    agent:
        what_the_agent_finds_is_what_the_scheduler_plans_with;
    hostile:
        what_cannot_be_read_is_said_and_the_rest_goes_on,
        what_is_huge_does_no_harm,
        a_pod_that_cannot_grow_does_not_stop_a_new_leader,
        a_pod_that_cannot_be_fenced_waits_alone,
        a_pod_that_etcd_cannot_write_again_waits_alone,
        a_lease_that_another_client_wrote_is_survived,
        a_bound_pod_counts_whatever_its_annotations_say;
    devices:
        claims_are_allocated_and_reserved_before_a_pod_is_bound;
    volumes:
        a_volume_is_made_where_its_pod_goes_before_that_is_bound,
        a_volume_that_exists_is_kept_for_the_claim_of_a_pod;
    gangs:
        a_gang_starts_together_or_not_at_all;
    leading:
        who_ends_cleanly_hands_over_at_once,
        who_is_killed_is_replaced_within_seconds,
        what_is_under_way_is_finished_before_we_end;
    seeing:
        the_view_needs_a_token_with_rights,
        who_does_not_lead_says_who_does,
        metrics_are_what_prometheus_reads;
];

struct Outcome {
    failed: Vec<&'static str>,
    run: usize,
}

fn chosen(filters: &[String]) -> Vec<&'static Scenario> {
    let is_chosen = |scenario: &&Scenario| {
        filters.is_empty() || filters.iter().any(|filter| scenario.name.contains(filter))
    };
    SCENARIOS.iter().filter(is_chosen).collect()
}

/// Runs one scenario, in a runtime of its own. A panic in it is printed where it happens.
async fn one(scenario: &'static Scenario, testbed: Arc<Mutex<Testbed>>) -> bool {
    let began = Instant::now();
    let running = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let ended = runtime.block_on(tokio::time::timeout(LONGEST, async {
            let world = World::prepare(testbed, scenario.name).await;
            (scenario.run)(world).await;
        }));
        runtime.shutdown_background();
        ended.is_ok()
    });
    let (is_fine, word) = match running.await {
        Ok(true) => (true, "ok"),
        Ok(false) => (false, "FAILED: it takes too long"),
        Err(_) => (false, "FAILED"),
    };
    println!("  {} ... {word} ({:.1} s)", scenario.name, began.elapsed().as_secs_f64());
    is_fine
}

async fn on_embedded(scenarios: &[&'static Scenario]) -> Outcome {
    let each = stream::iter(scenarios).map(async |scenario| {
        let testbed = Testbed::start(Which::Embedded).await.unwrap();
        (scenario.name, one(scenario, Arc::new(Mutex::new(testbed))).await)
    });
    let ended: Vec<_> = each.buffer_unordered(BESIDE).collect().await;
    outcome(ended)
}

async fn on_real(scenarios: &[&'static Scenario]) -> Outcome {
    let began = Instant::now();
    let testbed = Testbed::start(Which::Real).await.unwrap();
    println!("  {} is ready ({:.1} s)", testbed.describe(), began.elapsed().as_secs_f64());
    let testbed = Arc::new(Mutex::new(testbed));
    let mut ended = Vec::new();
    for scenario in scenarios {
        ended.push((scenario.name, one(scenario, testbed.clone()).await));
    }
    outcome(ended)
}

fn outcome(ended: Vec<(&'static str, bool)>) -> Outcome {
    let run = ended.len();
    let failed = ended.into_iter().filter(|(_, ok)| !ok).map(|(name, _)| name).collect();
    Outcome { failed, run }
}

fn which() -> Vec<Which> {
    let asked = std::env::var("BERTH_LIVE").unwrap_or_default();
    match asked.as_str() {
        "embedded" => vec![Which::Embedded],
        "real" => vec![Which::Real],
        "both" => vec![Which::Embedded, Which::Real],
        _ if real_assets().is_some() => vec![Which::Embedded, Which::Real],
        _ => {
            println!("no kube-apiserver and etcd found: only the embedded API is tested");
            vec![Which::Embedded]
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // Whoever runs all tests of the workspace may have named some of another crate.
    let is_option =
        |argument: &&String| argument.starts_with('-') || argument.parse::<u32>().is_ok();
    let filters: Vec<String> = arguments.iter().filter(|one| !is_option(one)).cloned().collect();
    let mut scenarios = chosen(&filters);
    if arguments.iter().any(|argument| argument == "--ignored") {
        scenarios.clear();
    }
    if arguments.iter().any(|argument| argument == "--list") {
        scenarios.iter().for_each(|scenario| println!("{}: test", scenario.name));
        return ExitCode::SUCCESS;
    }
    if scenarios.is_empty() {
        return ExitCode::SUCCESS;
    }
    if let Ok(level) = std::env::var("RUST_LOG") {
        let logs = tracing_subscriber::fmt().with_env_filter(level).with_ansi(false);
        logs.with_writer(std::io::stderr).init();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let mut is_fine = true;
    for which in which() {
        let name = match which {
            Which::Embedded => "the embedded API",
            Which::Real => "a real kube-apiserver",
        };
        println!("\nrunning {} scenarios against {name}", scenarios.len());
        let began = Instant::now();
        let Outcome { failed, run } = runtime.block_on(async {
            match which {
                Which::Embedded => on_embedded(&scenarios).await,
                Which::Real => on_real(&scenarios).await,
            }
        });
        let taken = began.elapsed().as_secs_f64();
        println!("{} of {run} passed against {name} in {taken:.1} s", run - failed.len());
        failed.iter().for_each(|scenario| println!("  failed: {scenario}"));
        is_fine &= failed.is_empty();
    }
    if is_fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
