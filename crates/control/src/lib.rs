//! Live loops: watch, decide, bind, evict; lease; webhook.

pub mod certificates;
pub mod front;
pub mod http;
pub mod install;
pub mod lease;
pub mod metrics;
pub mod webhook;
