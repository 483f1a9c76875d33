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

/// Breaks virtual nodes. Clones break the same ones.
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
    /// The node's kubelet stops: no heartbeats, and nothing happens to its pods any more.
    pub fn stop(&self, node: &str) {
        self.send(Fault::Stop(node.to_owned()));
    }

    /// The node's kubelet goes on with what it knew.
    pub fn start(&self, node: &str) {
        self.send(Fault::Start(node.to_owned()));
    }

    /// The node's kubelet forgets everything and finds its books again in its pods.
    pub fn restart_kubelet(&self, node: &str) {
        self.send(Fault::Restart(node.to_owned()));
    }

    /// The next pod that comes to the node is refused.
    pub fn reject_next(&self, node: &str) {
        self.send(Fault::RejectNext(node.to_owned()));
    }

    fn send(&self, fault: Fault) {
        // Without kubelets there is nothing to break.
        let _ = self.sender.send(fault);
    }

    /// What has been asked for; only the first kubelets that ask get it.
    pub(super) fn take(&self) -> Option<mpsc::UnboundedReceiver<Fault>> {
        self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
