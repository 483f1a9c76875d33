//! Serving: which slices models need for their load, on how few GPUs.
//!
//! Owns the choice of segments and their packing: a segment is an instance of a profile that serves
//! one model with a batch size and a number of processes, as measured. It must not know requests one
//! by one, queues, or what runs now. Whatever a latency limit has to leave for waiting, the caller
//! takes off before.
//!
//! The problem is an integer program: for each service, how many segments of each profile, so that
//! their throughput reaches the rate; for the GPUs, how many of each full set of slices, so that
//! there are slices enough; the fewest GPUs, then the fewest compute slices, so that the least is
//! provisioned in vain. Of the points of a profile within the latency limit only the one with the
//! highest throughput matters.
//!
//! Demands are whole, so few ways to meet one come near its least number of slices, and where GPUs
//! are nearly full no others matter: those are added up service by service (`tight`). What that does
//! not settle is left to branch and bound over the linear relaxation, with the cuts that rounding
//! each service's demand by itself gives (`search`), which stops after a number of nodes that the
//! caller states. What is found is returned with the proven lower bound.

mod lp;
mod pack;
mod search;
mod tight;

#[cfg(test)]
mod tests;

use berth_model::mig::{Board, Instance, Layout, LayoutError, Profile};

use search::Problem;

/// The most GPUs a plan may need.
pub const GPUS_MAX: u64 = 2_000;

/// The most services for which the integer program is solved; above, slices are chosen for each
/// service by itself.
pub const EXACT_SERVICES_MAX: usize = 48;

/// One way to run a model on one instance, as measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// The instance.
    pub profile: &'static Profile,
    /// Requests per batch.
    pub batch: u32,
    /// Processes that share the instance.
    pub processes: u32,
    /// Requests per 1,000 seconds of all processes together.
    pub throughput_milli: u64,
    /// Time per batch, in microseconds.
    pub latency_us: u64,
}

/// A model and its load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// For people.
    pub name: String,
    /// Requests per 1,000 seconds.
    pub rate_milli: u64,
    /// The longest time a batch may take, in microseconds.
    pub latency_us_max: u64,
    /// The ways to run it.
    pub points: Vec<Point>,
}

/// An instance that serves a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Where on its GPU.
    pub instance: Instance,
    /// Which service, as a position in what was given.
    pub service: usize,
    /// How it runs.
    pub point: Point,
}

/// GPUs and what runs on them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deployment {
    /// For each GPU its segments, ascending by start.
    pub gpus: Vec<Vec<Segment>>,
    /// No deployment has fewer GPUs than this.
    pub gpus_min: usize,
}

/// Why there is no deployment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServingError {
    /// The board's placements are not known.
    #[error(transparent)]
    Board(#[from] LayoutError),
    /// A point on a profile that the board does not have.
    #[error(
        "service {service:?}: a point is on {profile}, which board {board} lacks; measure on this \
         board's profiles"
    )]
    ForeignProfile {
        /// The service.
        service: String,
        /// The profile.
        profile: berth_model::mig::ProfileName,
        /// The board's id.
        board: &'static str,
    },
    /// Nothing measured is fast enough.
    #[error(
        "service {service:?}: no point takes at most {latency_us_max} us and serves anything; raise \
         the limit or measure smaller batches"
    )]
    TooSlow {
        /// The service.
        service: String,
        /// The limit.
        latency_us_max: u64,
    },
    /// More than can be planned.
    #[error("service {service:?} needs more than {GPUS_MAX} GPUs; lower rate_milli or divide it")]
    TooMuch {
        /// The service.
        service: String,
    },
    /// All services together are more than can be planned.
    #[error("the services need more than {GPUS_MAX} GPUs together; plan them in parts")]
    TooMuchTogether,
}

/// Plans for the fewest GPUs of a board, then the fewest compute slices. Looks at `nodes_max` nodes
/// of the search at most, half a millisecond each for a dozen services; 0 gives a plan, too.
///
/// # Errors
/// When a service cannot be served at all, or more GPUs are needed than can be planned.
pub fn plan(
    board: &'static Board,
    services: &[Service],
    nodes_max: usize,
) -> Result<Deployment, ServingError> {
    Layout::empty(board)?;
    let problem = Problem::new(board, services)?;
    let found = problem.solve(nodes_max)?;
    let layouts = pack::pack(board, &problem.profiles, &found.counts())?;
    let mut left = found.chosen.clone();
    let mut gpus = Vec::with_capacity(layouts.len());
    for layout in &layouts {
        let mut segments: Vec<Segment> = Vec::with_capacity(layout.len());
        for instance in layout.instances() {
            let at = problem.profiles.iter().position(|p| *p == instance.profile);
            let taker = at.and_then(|at| {
                // A neighbour of the same service first, so that services stay together.
                let here = segments.iter().map(|s| s.service).chain(0..services.len());
                here.into_iter().find(|s| left[*s][at] > 0).map(|service| (service, at))
            });
            let Some((service, at)) = taker else { continue };
            if let Some(point) = problem.best[service][at] {
                left[service][at] -= 1;
                segments.push(Segment { instance, service, point });
            }
        }
        gpus.push(segments);
    }
    Ok(Deployment { gpus, gpus_min: found.gpus_min })
}
