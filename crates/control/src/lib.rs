//! Live loops: watch, decide, bind, evict; lease; webhook.

pub mod http;
pub mod lease;
pub mod metrics;
pub mod webhook;
