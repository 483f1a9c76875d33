//! Control planes to test against, for tests and tools only.
//!
//! A [`Testbed`] is the embedded API, or a real kube-apiserver with etcd, certificates, RBAC and
//! tokens; tests need not know which. It provides clients for an administrator and for service
//! accounts, and faults: kill, pause, compact, cut or delay connections, repeat watch events.
//! `history` is everything ever written to etcd, in order. What it started ends with it.

mod attack;
mod certificates;
mod history;
mod kubeconfig;
mod process;
mod proxy;
mod real;
mod repeater;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context as _;
use berth_apiserver::ApiServer;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Client;
use kube::api::{
    Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub use self::attack::{Attack, Target};
pub use self::history::{AS_JSON, Change};
pub use self::process::Process;
pub use self::proxy::Proxy;
pub use self::real::{Assets, Real, real_assets};
pub use self::repeater::Repeater;

/// Which API a testbed has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Ours, in this process.
    Embedded,
    /// kube-apiserver and etcd.
    Real,
}

/// A control plane that lives as long as this.
pub struct Testbed {
    // In this order: processes end before their files do.
    plane: Plane,
    dir: TempDir,
    kubeconfigs: AtomicUsize,
}

enum Plane {
    Embedded { server: ApiServer, address: SocketAddr, serving: JoinHandle<()> },
    Real(Box<Real>),
}

/// In memory where that is possible: etcd writes much.
fn scratch() -> anyhow::Result<TempDir> {
    let made = tempfile::Builder::new().prefix("testbed-").tempdir_in("/dev/shm");
    made.or_else(|_| TempDir::with_prefix("testbed-")).context("no place for temporary files")
}

impl Testbed {
    /// Starts a control plane and waits until it is ready.
    ///
    /// # Errors
    /// When it does not become ready, or when there are no programs for the real one.
    pub async fn start(which: Which) -> anyhow::Result<Self> {
        Self::start_with(which, &[]).await
    }

    /// The same, with more arguments for kube-apiserver.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_with(which: Which, options: &[String]) -> anyhow::Result<Self> {
        let dir = scratch()?;
        let plane = match which {
            Which::Embedded => embedded().await?,
            Which::Real => {
                let assets = real_assets().context(
                    "no kube-apiserver and etcd in KUBEBUILDER_ASSETS or /usr/local/kubebuilder/bin",
                )?;
                Plane::Real(Box::new(Real::start(assets, dir.path(), options).await?))
            }
        };
        Ok(Self { plane, dir, kubeconfigs: AtomicUsize::new(0) })
    }

    /// Which API this is.
    pub fn which(&self) -> Which {
        match self.plane {
            Plane::Embedded { .. } => Which::Embedded,
            Plane::Real(_) => Which::Real,
        }
    }

    /// What runs, for people.
    pub fn describe(&self) -> String {
        match &self.plane {
            Plane::Embedded { .. } => "the embedded API".to_owned(),
            Plane::Real(real) => real.versions(),
        }
    }

    /// The real one, to do something to it.
    pub fn real(&mut self) -> Option<&mut Real> {
        match &mut self.plane {
            Plane::Embedded { .. } => None,
            Plane::Real(real) => Some(real),
        }
    }

    /// Where the API listens.
    pub fn address(&self) -> SocketAddr {
        match &self.plane {
            Plane::Embedded { address, .. } => *address,
            Plane::Real(real) => real.address(),
        }
    }

    fn authority(&self) -> Option<&Path> {
        match &self.plane {
            Plane::Embedded { .. } => None,
            Plane::Real(real) => Some(real.authority()),
        }
    }

    /// A client that may do everything. Belongs to the runtime in which it is made.
    ///
    /// # Errors
    /// When it cannot be made.
    pub async fn admin(&self) -> anyhow::Result<Client> {
        match &self.plane {
            Plane::Embedded { server, .. } => Ok(Client::new(server.service(), "default")),
            Plane::Real(_) => self.client_with(real::ADMIN).await,
        }
    }

    /// A client for whoever has this token.
    ///
    /// # Errors
    /// When it cannot be made.
    pub async fn client_with(&self, token: &str) -> anyhow::Result<Client> {
        let config = kubeconfig::kubeconfig(self.address(), self.authority(), token);
        kubeconfig::client_of(config).await
    }

    /// The same, through a proxy.
    ///
    /// # Errors
    /// When it cannot be made.
    pub async fn client_through(&self, proxy: &Proxy, token: &str) -> anyhow::Result<Client> {
        let config = kubeconfig::kubeconfig(proxy.address(), self.authority(), token);
        kubeconfig::client_of(config).await
    }

    /// The administrator's token.
    pub fn admin_token(&self) -> &'static str {
        real::ADMIN
    }

    /// A token of a service account, which is made if there is none.
    ///
    /// # Errors
    /// When the API gives none.
    pub async fn token_of(&self, namespace: &str, account: &str) -> anyhow::Result<String> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin().await?, namespace);
        if accounts.get_opt(account).await?.is_none() {
            let mut made = ServiceAccount::default();
            made.metadata.name = Some(account.to_owned());
            accounts.create(&PostParams::default(), &made).await?;
        }
        let spec = Some(TokenRequestSpec::default());
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let given =
            accounts.create_token_request(account, &PostParams::default(), &request).await?;
        given.status.and_then(|status| status.token).context("the API gave no token")
    }

    /// Applies objects of any kind, as `kubectl apply --server-side` does.
    ///
    /// # Errors
    /// When one of them is no object, or the API does not take it.
    pub async fn apply(&self, objects: impl IntoIterator<Item = Value>) -> anyhow::Result<()> {
        let client = self.admin().await?;
        for object in objects {
            let object: DynamicObject = serde_json::from_value(object)?;
            let types = object.types.clone().context("an object without a kind")?;
            let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types)?);
            let api: Api<DynamicObject> = match &object.metadata.namespace {
                None => Api::all_with(client.clone(), &resource),
                Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            };
            let name = object.metadata.name.clone().context("an object without a name")?;
            let patch = PatchParams::apply("testbed").force();
            let applied = api.patch(&name, &patch, &Patch::Apply(&object)).await;
            applied.with_context(|| format!("{} {name}", types.kind))?;
        }
        Ok(())
    }

    /// A client that is a service account, with its rights and no others.
    ///
    /// # Errors
    /// When the API gives no token.
    pub async fn client_as(&self, namespace: &str, account: &str) -> anyhow::Result<Client> {
        self.client_with(&self.token_of(namespace, account).await?).await
    }

    /// A server before the API that repeats what watches tell.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn repeater(&self) -> anyhow::Result<Repeater> {
        Repeater::start(self.client_with("").await?).await
    }

    /// A file for clients that are processes: who has this token, directly or through a proxy.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn kubeconfig(&self, token: &str, through: Option<&Proxy>) -> anyhow::Result<PathBuf> {
        let address = through.map_or_else(|| self.address(), Proxy::address);
        self.write(&kubeconfig::kubeconfig(address, self.authority(), token))
    }

    /// The same for an address at which a [`Repeater`] is heard.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn in_the_clear(&self, token: &str, address: SocketAddr) -> anyhow::Result<PathBuf> {
        self.write(&kubeconfig::kubeconfig(address, None, token))
    }

    fn write(&self, kubeconfig: &Value) -> anyhow::Result<PathBuf> {
        let number = self.kubeconfigs.fetch_add(1, Ordering::Relaxed);
        let path = self.dir.path().join(format!("kubeconfig-{number}"));
        std::fs::write(&path, kubeconfig.to_string())
            .with_context(|| format!("{} cannot be written", path.display()))?;
        Ok(path)
    }

    /// A directory for files that need not outlive this.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        if let Plane::Embedded { serving, .. } = &self.plane {
            serving.abort();
        }
    }
}

async fn embedded() -> anyhow::Result<Plane> {
    let admin = berth_apiserver::Token {
        token: real::ADMIN.to_owned(),
        user: "admin".to_owned(),
        groups: vec!["system:masters".to_owned()],
    };
    let server = ApiServer::new(berth_apiserver::Options {
        tokens: vec![admin],
        authorization: berth_apiserver::Authorization::Rbac,
        ..berth_apiserver::Options::default()
    })?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    let serves = server.clone();
    let serving =
        tokio::spawn(async move { drop(serves.serve(listener, std::future::pending()).await) });
    Ok(Plane::Embedded { server, address, serving })
}
