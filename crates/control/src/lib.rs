//! Live loops: watch, decide, bind, evict; lease; webhook.

mod act;
pub mod certificates;
pub mod core;
pub mod http;
mod insides;
pub mod lease;
pub mod metrics;
pub mod placement;
pub mod serve;
mod view;
pub mod watch;
pub mod webhook;
