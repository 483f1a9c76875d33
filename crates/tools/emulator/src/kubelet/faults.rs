//! Faults of virtual nodes, injected by tests.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Stop(String),
    Start(String),
    Restart(String),
    RejectNext(String),
}

/// Injects faults. Clones affect the same nodes.
#[derive(Clone, Debug)]
pub struct Faults {
    sender: mpsc::UnboundedSender<Fault>,
    receiver: Arc<Mutex<Option<mpsc::UnboundedReceiver<Fault>>>>,
}

impl Default for Faults {
    fn default() -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        Self { sender, receiver: Arc::new(Mutex::new(Some(receiver))) }
    }
}

impl Faults {
    /// Stops the node's kubelet: no heartbeats, and its pods freeze.
    pub fn stop(&self, node: &str) {
        self.send(Fault::Stop(node.to_owned()));
    }

    /// Starts the kubelet again, with its memory.
    pub fn start(&self, node: &str) {
        self.send(Fault::Start(node.to_owned()));
    }

    /// Restarts the kubelet: it recovers its assignments from its pods.
    pub fn restart_kubelet(&self, node: &str) {
        self.send(Fault::Restart(node.to_owned()));
    }

    /// Rejects the next pod on the node.
    pub fn reject_next(&self, node: &str) {
        self.send(Fault::RejectNext(node.to_owned()));
    }

    fn send(&self, fault: Fault) {
        // Without kubelets there is nothing to break.
        let _ = self.sender.send(fault);
    }

    /// The receiver of faults; only the first caller gets it.
    pub(super) fn take(&self) -> Option<mpsc::UnboundedReceiver<Fault>> {
        self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
