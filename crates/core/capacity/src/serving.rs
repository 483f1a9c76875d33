//! Which slices models need for their load, on how few GPUs.
//!
//! A segment is an instance of a profile that serves one model with a batch size and a number of
//! processes, as measured. The caller subtracts waiting time from latency limits.
//!
//! The problem is an integer program: for each service, how many segments of each profile, so that
//! their throughput reaches the rate; for the GPUs, how many of each full set of slices, so that
//! there are enough slices; the fewest GPUs, then the fewest compute slices. Of the points of a
//! profile within the latency limit only the one with the highest throughput matters.
//!
//! Demands are integers, so few ways to meet one come near its least number of slices, and if GPUs
//! are nearly full no others matter: those are added up service by service (`tight`). What that
//! does not settle is left to branch and bound over the linear relaxation, with the cuts that
//! rounding each service's demand by itself gives (`search`), which stops after a number of nodes
//! that the caller sets. The result includes the proven lower bound.

mod lp;
mod pack;
mod search;
mod tight;

#[cfg(test)]
mod tests;

use berth_model::mig::{Board, Instance, Layout, LayoutError, Profile};

use search::Problem;

/// Limit of GPUs in a plan.
pub const GPUS_MAX: u64 = 2_000;

/// Limit of services for which the integer program is solved; above it, slices are chosen for each
/// service by itself.
pub const EXACT_SERVICES_MAX: usize = 48;

/// One measured way to run a model on one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    pub profile: &'static Profile,
    /// Requests per batch.
    pub batch: u32,
    /// Processes that share the instance.
    pub processes: u32,
    /// Requests per 1,000 seconds of all processes together.
    pub throughput_milli: u64,
    /// Time per batch.
    pub latency_us: u64,
}

/// A model and its load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// For messages.
    pub name: String,
    /// Requests per 1,000 seconds.
    pub rate_milli: u64,
    /// Limit of the time per batch.
    pub latency_us_max: u64,
    pub points: Vec<Point>,
}

/// An instance that serves a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    pub instance: Instance,
    /// Position in the input.
    pub service: usize,
    pub point: Point,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deployment {
    /// Per GPU, ascending by start.
    pub gpus: Vec<Vec<Segment>>,
    /// A proven lower bound of the number of GPUs.
    pub gpus_min: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServingError {
    #[error(transparent)]
    Board(#[from] LayoutError),
    /// A point on a profile that the board does not have.
    #[error(
        "service {service:?}: a point is on {profile}, which board {board} lacks; measure on this \
         board's profiles"
    )]
    ForeignProfile { service: String, profile: berth_model::mig::ProfileName, board: &'static str },
    /// No point is fast enough.
    #[error(
        "service {service:?}: no point takes at most {latency_us_max} us and serves anything; raise \
         the limit or measure smaller batches"
    )]
    TooSlow { service: String, latency_us_max: u64 },
    /// More than [`GPUS_MAX`].
    #[error("service {service:?} needs more than {GPUS_MAX} GPUs; lower rate_milli or divide it")]
    TooMuch { service: String },
    /// All services together need more than [`GPUS_MAX`].
    #[error("the services need more than {GPUS_MAX} GPUs together; plan them in parts")]
    TooMuchTogether,
}

/// Plans for the fewest GPUs of a board, then the fewest compute slices. Explores at most
/// `nodes_max` nodes of the search, about half a millisecond each for a dozen services; 0 gives a
/// plan, too. Fails if a service cannot be served at all, or more GPUs are needed than the limit.
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
                // Neighbours of one service first, so that services stay together.
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
