//! What fails, and when.
//!
//! Owns the kinds of faults and their order. Must not know what is expected to survive them.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use anyhow::Context as _;
use berth_testbed::{Real, Testbed};
use berth_testkit::cluster::Dice;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use super::NAMESPACE;
use super::replicas::Replicas;

/// Something that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// All is well for a moment.
    Nothing,
    /// `kill -9` of the leader.
    Kill,
    /// `kill -9` of the API server, which comes back; all watches are lost, and their place in history.
    ApiServer,
    /// All connections are cut.
    Cut,
    /// Nothing the leader sends arrives for longer than its Lease lasts; then all of it does.
    Stall,
    /// The leader is stopped for longer than its Lease lasts, and goes on without knowing.
    Freeze,
    /// Everything arrives late, so that replicas know different things.
    Delay,
    /// etcd answers nobody for a while.
    Etcd,
    /// etcd forgets its past.
    Compact,
    /// The clock of every replica jumps, by an hour at most, and by another amount; somebody else whose clock
    /// is wrong has written the Lease.
    Clock,
}

/// How often what has failed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    steps: usize,
    /// The leader was killed.
    pub(crate) kills: usize,
    api_servers: usize,
    cuts: usize,
    stalls: usize,
    freezes: usize,
    delays: usize,
    etcds: usize,
    compactions: usize,
    clocks: usize,
    /// The last leader that is known.
    leader: Option<String>,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} kills, {} API server restarts, {} cuts, {} stalls, {} freezes, {} delays, {} etcd pauses, \
             {} compactions, {} jumps of all clocks",
            self.kills,
            self.api_servers,
            self.cuts,
            self.stalls,
            self.freezes,
            self.delays,
            self.etcds,
            self.compactions,
            self.clocks,
        )
    }
}

impl Fault {
    /// Every fault in turn, with a kill between two others.
    pub(crate) fn next(counts: &Counts, kills_only: bool) -> Self {
        const ROUND: &[Fault] = &[
            Fault::Cut,
            Fault::Stall,
            Fault::Compact,
            Fault::Freeze,
            Fault::Delay,
            Fault::Etcd,
            Fault::Clock,
            Fault::ApiServer,
        ];
        match counts.steps {
            _ if kills_only => Self::Kill,
            step if step % 3 != 2 => Self::Kill,
            step => ROUND.get(step / 3 % ROUND.len()).copied().unwrap_or(Self::Kill),
        }
    }
}

fn real(testbed: &mut Testbed) -> anyhow::Result<&mut Real> {
    testbed.real().context("this is not the real one")
}

fn between(dice: &mut Dice, ms: &Range<u64>) -> Duration {
    let over = dice.below(usize::try_from(ms.end - ms.start).unwrap_or(0));
    Duration::from_millis(ms.start + over as u64)
}

async fn pause(dice: &mut Dice, ms: Range<u64>) {
    tokio::time::sleep(between(dice, &ms)).await;
}

/// Lets something fail, and come back.
pub(crate) async fn inflict(
    fault: Fault,
    testbed: &mut Testbed,
    replicas: &mut Replicas,
    counts: &mut Counts,
    dice: &mut Dice,
) -> anyhow::Result<()> {
    counts.steps += 1;
    if let Some(end) = replicas.ended().into_iter().next() {
        anyhow::bail!(end);
    }
    if matches!(fault, Fault::Kill | Fault::Stall | Fault::Freeze) {
        return strike_leader(fault, replicas, counts, dice).await;
    }
    match fault {
        Fault::ApiServer => {
            real(testbed)?.kill_api_server();
            pause(dice, 0..1_000).await;
            real(testbed)?.start_api_server().await?;
            counts.api_servers += 1;
        }
        Fault::Cut => {
            replicas.all().iter().for_each(|replica| replica.proxy.cut());
            counts.cuts += 1;
        }
        Fault::Delay => {
            for replica in replicas.all() {
                replica.proxy.delay(between(dice, &(0..200)));
            }
            pause(dice, 1_500..2_500).await;
            replicas.all().iter().for_each(|replica| replica.proxy.heal());
            counts.delays += 1;
        }
        Fault::Etcd => {
            real(testbed)?.pause_etcd()?;
            pause(dice, 500..4_000).await;
            real(testbed)?.resume_etcd()?;
            counts.etcds += 1;
        }
        Fault::Compact => {
            real(testbed)?.compact().await?;
            // Those who come back now find that their place in history is gone.
            replicas.all().iter().for_each(|replica| replica.proxy.cut());
            counts.compactions += 1;
        }
        Fault::Clock => {
            let mut wrong_s = || dice.below(7_200) as i64 - 3_600;
            for replica in replicas.all() {
                replica.set_clock(wrong_s())?;
            }
            write_times(testbed, wrong_s()).await;
            counts.clocks += 1;
        }
        Fault::Nothing | Fault::Kill | Fault::Stall | Fault::Freeze => {}
    }
    pause(dice, 300..1_000).await;
    Ok(())
}

/// What concerns the leader only.
async fn strike_leader(
    fault: Fault,
    replicas: &mut Replicas,
    counts: &mut Counts,
    dice: &mut Dice,
) -> anyhow::Result<()> {
    let Some((number, name)) = replicas.leader(counts.leader.as_deref()).await else {
        // Nobody new within fifteen seconds: whoever leads is struck.
        counts.leader = None;
        return Ok(());
    };
    // It has had some time to begin something, or none.
    pause(dice, 0..2_500).await;
    match fault {
        Fault::Kill => {
            replicas.kill(number).await?;
            counts.kills += 1;
        }
        Fault::Stall => {
            let replica = replicas.all().get(number).context("there is no such replica")?;
            replica.proxy.stall();
            pause(dice, 3_500..6_000).await;
            replica.proxy.heal();
            counts.stalls += 1;
        }
        _ => {
            let replica = replicas.all().get(number).context("there is no such replica")?;
            replica.process.signal("STOP")?;
            pause(dice, 3_500..6_000).await;
            replica.process.signal("CONT")?;
            counts.freezes += 1;
        }
    }
    counts.leader = Some(name);
    Ok(())
}

/// Writes times into the Lease that are wrong by so much.
async fn write_times(testbed: &Testbed, by_s: i64) {
    let Ok(client) = testbed.admin().await else { return };
    let leases: Api<Lease> = Api::namespaced(client, NAMESPACE);
    let wrong = jiff::Timestamp::now().saturating_add(jiff::SignedDuration::from_secs(by_s));
    let Ok(wrong) = wrong else { return };
    let times = json!({ "spec": {
        "renewTime": format!("{wrong:.6}"), "acquireTime": format!("{wrong:.6}"),
    }});
    // It may be a bad moment for that; then it is left.
    drop(leases.patch("berth", &PatchParams::default(), &Patch::Merge(&times)).await);
}
