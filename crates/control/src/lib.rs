//! Live loops: watch, decide, bind, evict; lease; webhook.
