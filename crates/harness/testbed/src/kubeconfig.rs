//! How clients find an API server and show who they are.
//!
//! Owns the form of kubeconfigs. Must not know what is behind an address.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

/// A kubeconfig for somebody with a token, or nobody if it is empty. Without an authority the API is served in the clear.
pub(crate) fn kubeconfig(address: SocketAddr, authority: Option<&Path>, token: &str) -> Value {
    let cluster = match authority {
        Some(authority) => {
            json!({ "server": format!("https://{address}"), "certificate-authority": authority })
        }
        None => json!({ "server": format!("http://{address}") }),
    };
    let user = if token.is_empty() { json!({}) } else { json!({ "token": token }) };
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "testbed", "cluster": cluster }],
        "users": [{ "name": "user", "user": user }],
        "contexts": [{ "name": "testbed", "context": { "cluster": "testbed", "user": "user" } }],
        "current-context": "testbed",
    })
}

/// A client for somebody with a token.
pub(crate) async fn client(
    address: SocketAddr,
    authority: &Path,
    token: &str,
) -> anyhow::Result<kube::Client> {
    client_of(kubeconfig(address, Some(authority), token)).await
}

/// A client as a kubeconfig says.
pub(crate) async fn client_of(kubeconfig: Value) -> anyhow::Result<kube::Client> {
    let read: Kubeconfig = serde_json::from_value(kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
    let config = config.context("the testbed's own kubeconfig cannot be used")?;
    Ok(kube::Client::try_from(config)?)
}
