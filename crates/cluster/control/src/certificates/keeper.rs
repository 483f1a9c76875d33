//! Keeps the served certificate up to date: reads the Secret or files, rotates Berth's own certificates, and writes
//! the authorities into webhook configurations.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum_server::tls_rustls::RustlsConfig;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, Patch, PatchParams, PostParams};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use thiserror::Error;

use super::generation::{MakeError, Stored};

/// How often the Secret and the configurations are read. Files are read more often, because that is cheap.
const PERIOD: Duration = Duration::from_secs(60);
const FILES_PERIOD: Duration = Duration::from_secs(10);
/// Delay after a failure.
const RETRY: Duration = Duration::from_secs(5);
/// Timeout of a request.
const REQUEST: Duration = Duration::from_secs(10);
/// Conflicts in a row before trying again later.
const CONFLICTS_MAX: usize = 5;

/// Key in the Secret.
const GENERATIONS: &str = "generations.json";

/// The wall clock, which tests replace.
pub type Wall = Arc<dyn Fn() -> Timestamp + Send + Sync>;

#[derive(Debug, Error)]
pub enum TlsError {
    #[error("{what} cannot be used: {problem}")]
    Unusable { what: String, problem: String },
    #[error(transparent)]
    Make(#[from] MakeError),
    /// The Secret is part of the installation: Berth has no right to create it.
    #[error(
        "secret {namespace}/{name} does not exist: apply the output of `berth manifests`, or the chart, again"
    )]
    NoSecret {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    #[error("{what}: {problem}")]
    Request { what: String, problem: String },
}

/// TLS server configuration for a certificate and key in PEM.
pub fn server_config(certificate: &[u8], key: &[u8]) -> Result<Arc<ServerConfig>, TlsError> {
    let unusable =
        |what: &str, problem: String| TlsError::Unusable { what: what.to_owned(), problem };
    let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|error| unusable("the certificate", error.to_string()))?;
    let key = PrivateKeyDer::from_pem_slice(key);
    let key = key.map_err(|error| unusable("the key", error.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider);
    let builder = builder
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable("TLS", error.to_string()))?;
    let config = builder.with_no_client_auth().with_single_cert(chain, key);
    let mut config = config.map_err(|error| unusable("the certificate", error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Where the certificate comes from.
pub enum Source {
    /// Berth's own.
    Managed(Managed),
    /// Somebody else's, such as cert-manager's.
    Files(Files),
}

/// Berth's own certificate, which replicas share in a Secret.
pub struct Managed {
    pub client: kube::Client,
    /// The namespace of the Secret.
    pub namespace: String,
    /// Its name.
    pub secret: String,
    /// DNS names of the certificate.
    pub names: Vec<String>,
    /// Names of validating and mutating webhook configurations that get the CA bundle.
    pub configurations: Vec<String>,
    pub wall: Wall,
}

/// A certificate in files, as a Secret is mounted.
pub struct Files {
    /// The directory with `tls.crt` and `tls.key`.
    pub directory: PathBuf,
}

pub struct Keeper {
    source: Source,
    served: Option<(Vec<u8>, Vec<u8>)>,
    tls: RustlsConfig,
}

impl Keeper {
    /// Waits for the first certificate. Failures are retried.
    pub async fn start(source: Source) -> Self {
        loop {
            let found = source.current().await;
            match found.and_then(|pair| Ok((server_config(&pair.0, &pair.1)?, pair))) {
                Ok((config, pair)) => {
                    let tls = RustlsConfig::from_config(config);
                    return Self { source, served: Some(pair), tls };
                }
                Err(error) => tracing::warn!(%error, "there is no certificate yet"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Changes take effect with the next connection.
    pub fn tls(&self) -> RustlsConfig {
        self.tls.clone()
    }

    pub async fn run(mut self) {
        loop {
            let rest = match self.look().await {
                Ok(()) => self.source.period(),
                Err(error) => {
                    tracing::warn!(%error, "could not check or renew the certificate; retrying");
                    RETRY
                }
            };
            tokio::time::sleep(rest).await;
        }
    }

    #[cfg(test)]
    pub(super) fn served(&self) -> Option<&(Vec<u8>, Vec<u8>)> {
        self.served.as_ref()
    }

    /// Checks once whether to serve another certificate.
    pub(super) async fn look(&mut self) -> Result<(), TlsError> {
        let pair = self.source.current().await?;
        if self.served.as_ref() != Some(&pair) {
            self.tls.reload_from_config(server_config(&pair.0, &pair.1)?);
            self.served = Some(pair);
            tracing::info!("serving another certificate");
        }
        Ok(())
    }
}

impl Source {
    /// The certificate and key to serve now, both PEM.
    pub(super) async fn current(&self) -> Result<(Vec<u8>, Vec<u8>), TlsError> {
        match self {
            Self::Managed(managed) => managed.current().await,
            Self::Files(files) => files.current().await,
        }
    }

    fn period(&self) -> Duration {
        match self {
            Self::Managed(_) => PERIOD,
            Self::Files(_) => FILES_PERIOD,
        }
    }
}

impl Files {
    async fn current(&self) -> Result<(Vec<u8>, Vec<u8>), TlsError> {
        let [certificate, key] = ["tls.crt", "tls.key"].map(|name| self.directory.join(name));
        let read = async |path: PathBuf| {
            let unusable = |error: std::io::Error| TlsError::Unusable {
                what: path.display().to_string(),
                problem: error.to_string(),
            };
            tokio::fs::read(&path).await.map_err(unusable)
        };
        Ok((read(certificate).await?, read(key).await?))
    }
}

impl Managed {
    async fn current(&self) -> Result<(Vec<u8>, Vec<u8>), TlsError> {
        let stored = self.share().await?;
        let bundle = stored.bundle();
        for name in &self.configurations {
            self.publish::<ValidatingWebhookConfiguration>(name, &bundle).await?;
            self.publish::<MutatingWebhookConfiguration>(name, &bundle).await?;
        }
        let served = stored.served((self.wall)()).ok_or_else(|| TlsError::Unusable {
            what: format!("secret {}/{}", self.namespace, self.secret),
            problem: "it has no certificate that is valid now".to_owned(),
        })?;
        Ok((served.certificate.clone().into_bytes(), served.key.clone().into_bytes()))
    }

    /// The shared generations. The first replica to notice rotates them.
    async fn share(&self) -> Result<Stored, TlsError> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let what = format!("secret {}/{}", self.namespace, self.secret);
        for _ in 0..CONFLICTS_MAX {
            let found = ask(&what, api.get_opt(&self.secret)).await?;
            let found = found.ok_or_else(|| TlsError::NoSecret {
                namespace: self.namespace.clone(),
                name: self.secret.clone(),
            })?;
            let stored = read(&found);
            let Some(next) = stored.next(&self.names, (self.wall)())? else { return Ok(stored) };
            let secret = with(found, &next)?;
            let post = PostParams::default();
            match timed(api.replace(&self.secret, &post, &secret)).await {
                Ok(_) => {
                    tracing::info!(generations = next.generations.len(), "a certificate was made");
                    return Ok(next);
                }
                // Another replica was faster: its certificate is as good.
                Err(Failure::Refused(kube::Error::Api(status))) if status.code == 409 => {}
                Err(failure) => return Err(request_error(&what, &failure)),
            }
        }
        Err(TlsError::Request { what, problem: "it keeps changing".to_owned() })
    }

    /// Writes the CA bundle into a configuration, unless it has it.
    async fn publish<K>(&self, name: &str, bundle: &str) -> Result<(), TlsError>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>
            + Clone
            + DeserializeOwned
            + serde::Serialize
            + std::fmt::Debug,
    {
        let api: Api<K> = Api::all(self.client.clone());
        let what = format!("{} {name}", K::kind(&()));
        // Whoever does not want webhooks of a kind has none.
        let Some(found) = ask(&what, api.get_opt(name)).await? else { return Ok(()) };
        let found = serde_json::to_value(&found).unwrap_or_default();
        let Some(patch) = bundle_patch(&found, bundle) else { return Ok(()) };
        ask(&what, api.patch(name, &PatchParams::default(), &Patch::Merge(patch))).await.map(|_| ())
    }
}

/// The Secret with other data.
fn with(mut secret: Secret, stored: &Stored) -> Result<Secret, TlsError> {
    let json = serde_json::to_vec(stored).map_err(|error| TlsError::Unusable {
        what: "the certificate".to_owned(),
        problem: error.to_string(),
    })?;
    // The bundle is for people who want to look at it.
    let bundle = ByteString(stored.bundle().into_bytes());
    secret.data = Some(BTreeMap::from([
        (GENERATIONS.to_owned(), ByteString(json)),
        ("ca.crt".to_owned(), bundle),
    ]));
    Ok(secret)
}

/// The patch that gives every webhook of a configuration the CA bundle; `None` if all have it. It applies to this
/// version of the configuration only.
fn bundle_patch(configuration: &Value, bundle: &str) -> Option<Value> {
    use base64::Engine as _;
    let encoded = json!(base64::engine::general_purpose::STANDARD.encode(bundle));
    let mut webhooks = configuration["webhooks"].as_array()?.clone();
    let mut is_stale = false;
    for client in webhooks.iter_mut().filter_map(|webhook| webhook.get_mut("clientConfig")) {
        is_stale |= client["caBundle"] != encoded;
        client["caBundle"] = encoded.clone();
    }
    let version = &configuration["metadata"]["resourceVersion"];
    is_stale.then(|| json!({ "metadata": { "resourceVersion": version }, "webhooks": webhooks }))
}

/// The generations in the Secret. Unreadable ones are created again.
fn read(secret: &Secret) -> Stored {
    let entry = secret.data.as_ref().and_then(|data| data.get(GENERATIONS));
    let stored = entry.map(|ByteString(json)| serde_json::from_slice(json));
    match stored {
        Some(Ok(stored)) => stored,
        Some(Err(error)) => {
            tracing::warn!(%error, "the certificates in the secret cannot be read; making new ones");
            Stored::default()
        }
        None => Stored::default(),
    }
}

#[derive(Debug, Error)]
enum Failure {
    #[error("no answer in time")]
    Late,
    #[error("{0}")]
    Refused(kube::Error),
}

async fn timed<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Failure> {
    let answered = tokio::time::timeout(REQUEST, request).await.map_err(|_| Failure::Late)?;
    answered.map_err(Failure::Refused)
}

async fn ask<T>(
    what: &str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, TlsError> {
    timed(request).await.map_err(|failure| request_error(what, &failure))
}

fn request_error(what: &str, failure: &Failure) -> TlsError {
    TlsError::Request { what: what.to_owned(), problem: failure.to_string() }
}
