//! Live loops: watch, decide, bind, evict; lease; webhook.

mod act;
pub mod certificates;
pub mod core;
pub mod front;
pub mod http;
mod insides;
pub mod install;
pub mod kubeconfig;
pub mod lease;
pub mod metrics;
pub mod placement;
pub mod port;
pub mod serve;
pub mod snapshot;
mod standings;
mod tolerant;
mod view;
pub mod watch;
pub mod webhook;
