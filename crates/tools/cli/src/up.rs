//! `berth up`: a whole cluster in one process, for laptops and tests.
//!
//! Owns its arguments, and what is started with what: the embedded API, virtual nodes, controllers and the
//! scheduler, each as it is elsewhere. Must not know how any of them works.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use axum::Router;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use berth_apiserver::{ApiServer, Authorization, Options as ApiOptions, Token};
use berth_control::certificates::{Generation, server_config};
use berth_control::core;
use berth_control::front::Front;
use berth_control::install;
use berth_control::lease;
use berth_control::serve::{Options, Scheduler};
use berth_emulator::nodes::{Registration, register};
use berth_manifest::{Source, Strictness, load, read_as};
use berth_scenario::objects::node_objects;
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::output;
use crate::serve::{LogFormat, Webhook, log, open, shown, told_to_stop};
use crate::source;

/// The namespace that Berth is in, as elsewhere.
const NAMESPACE: &str = "berth-system";

/// What clients call the API.
const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

/// Who may do everything.
const USER: &str = "berth-up";

/// How often it is looked whether everything is there.
const READY_LOOK: Duration = Duration::from_millis(20);

/// The cluster of the example: six nodes with 48 GPUs.
const DEFAULT_CLUSTER: &str = include_str!("../../../../examples/48-gpus/scenario.yaml");

/// Run a cluster with virtual GPU nodes in this process, for laptops and tests
///
/// An embedded Kubernetes API, controllers, virtual kubelets that admit pods as real ones do, and the
/// scheduler and, with --webhook, the admission webhook of `berth serve`. kubectl and everything else that speaks
/// to Kubernetes works against it.
#[derive(Args)]
pub(crate) struct Up {
    /// The nodes: a scenario's pools, or a dump of nodes; otherwise 48 GPUs on six nodes
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
    /// Where objects are kept, so that the next start finds them; otherwise only in memory
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The port of the API, on this machine only; 0: any that is free
    #[arg(long, value_name = "PORT", default_value_t = 7443)]
    port: u16,
    /// Where health, metrics and the engine's view are served, as `berth serve` does; nowhere if it is not given
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// What the admission webhook of `berth serve` does here
    #[arg(long, value_enum, default_value_t)]
    webhook: Webhook,
    /// More settings of the webhook: a YAML file with deny, warn, contract and mutations
    #[arg(long, value_name = "FILE")]
    webhook_settings: Option<PathBuf>,
    /// Where to write the kubeconfig (new CA and token at every start)
    #[arg(long, value_name = "FILE", default_value = "berth-up.kubeconfig")]
    kubeconfig: PathBuf,
    /// How much is logged: error, warn, info or debug
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    log: String,
}

impl Up {
    /// Runs until it is told to stop.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        log(LogFormat::Text, &self.log);
        let nodes = self.nodes()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(self.serve(nodes))
    }

    fn nodes(&self) -> anyhow::Result<Vec<Registration>> {
        let documents = match &self.cluster {
            Some(path) => {
                load(std::slice::from_ref(path), &mut std::io::stdin(), Strictness::Dump)?
            }
            None => read_as(&Source::new("48-gpus", DEFAULT_CLUSTER), Strictness::Dump)?,
        };
        let (_, cluster) = source::written(documents)?;
        let registration = |node| {
            let (node, exported) = node_objects(node);
            let topology = exported.map(serde_json::to_value).transpose()?;
            Ok(Registration { node, topology })
        };
        cluster.nodes.iter().map(registration).collect()
    }

    async fn serve(self, nodes: Vec<Registration>) -> anyhow::Result<ExitCode> {
        let front = self.front()?;
        let webhook_at = front.as_ref().map(|front| front.listen);
        let token = Token::random(USER).map_err(|status| anyhow!(status.message))?;
        let options = ApiOptions {
            tokens: vec![token.clone()],
            authorization: Authorization::Authenticated,
            data: self.data.clone(),
            parse_yaml: Some(parse_yaml),
            // There is no network of a cluster, and one service that is asked.
            resolve_service: Some(Arc::new(move |namespace: &str, name: &str, _| {
                webhook_at.filter(|_| (namespace, name) == (NAMESPACE, install::NAME))
            })),
            ..ApiOptions::default()
        };
        let api = ApiServer::new(options)?;
        let client = kube::Client::new(api.service(), "default");
        let listener = self.listener().await?;
        let address = listener.local_addr()?;
        let made = Generation::make(&NAMES.map(str::to_owned), Timestamp::now())?;
        let tls = server_config(made.certificate.as_bytes(), made.key.as_bytes())?;
        write_kubeconfig(&self.kubeconfig, address, &made.ca, &token)?;
        let (stop, stopped) = watch::channel(false);
        let served = tokio::spawn({
            let (api, stopped) = (api.clone(), stopped.clone());
            async move { api.serve_tls(listener, tls, until(stopped)).await }
        });
        prepare(&client).await.context("the cluster could not be set up")?;
        register(&client, &nodes).await.context("the nodes could not be registered")?;
        let local = berth_emulator::run(
            client.clone(),
            berth_emulator::Options::default(),
            until(stopped.clone()),
        );
        let local = tokio::spawn(local);
        let (site, questions) = shown(&client);
        if let Some(address) = self.listen {
            open(address, &site)?;
        }
        configure_webhook(&client, front.is_some()).await?;
        let mut fronting = front.map(|front| {
            let (shown, stopped) = ((site.metrics.clone(), site.health.clone()), stopped.clone());
            tokio::spawn(front.run(client.clone(), shown, Router::new(), until(stopped)))
        });
        let scheduler = Scheduler::new(
            client,
            options_of_scheduler()?,
            (site.metrics, site.health.clone()),
            questions,
            stopped.clone(),
        );
        let scheduler = tokio::spawn(scheduler.run());
        while fronting.as_ref().is_some_and(|front| !front.is_finished()) && !site.health.is_ready()
        {
            tokio::time::sleep(READY_LOOK).await;
        }
        // It ends before it is told to only if it cannot be served.
        if let Some(ended) = fronting.take_if(|front| front.is_finished()) {
            ended.await?.context("the webhook cannot be served")?;
        }
        output::say(&greeting(address, &self.kubeconfig, nodes.len()))?;
        told_to_stop().await;
        stop.send_replace(true);
        scheduler.await??;
        if let Some(fronting) = fronting {
            fronting.await??;
        }
        local.await?;
        served.await??;
        Ok(ExitCode::SUCCESS)
    }
}

impl Up {
    /// The API's port.
    async fn listener(&self) -> anyhow::Result<TcpListener> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let listener = TcpListener::bind(address).await;
        listener.with_context(|| {
            format!("{address} cannot be listened on; choose another port with --port")
        })
    }

    /// The webhook's port, if there is to be one: any that is free, since nobody else asks there.
    fn front(&self) -> anyhow::Result<Option<Front>> {
        let Some(settings) = self.webhook.settings(self.webhook_settings.as_deref())? else {
            return Ok(None);
        };
        let free = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        Ok(Some(Front {
            listen: free.local_addr()?,
            namespace: NAMESPACE.to_owned(),
            certificates: None,
            webhook: Some(settings),
        }))
    }
}

fn options_of_scheduler() -> anyhow::Result<Options> {
    Ok(Options {
        // There is nobody else who would place pods that do not name a scheduler.
        scheduler_names: Arc::new(["berth".into(), "default-scheduler".into()]),
        identity: lease::incarnation("berth-up")?.into(),
        lease: lease::Settings::default(),
        core: core::Settings::default(),
    })
}

/// Has the webhook asked, as `berth manifests` would; or no more, if an earlier start had it.
async fn configure_webhook(client: &kube::Client, wanted: bool) -> anyhow::Result<()> {
    let options = install::InstallOptions::default();
    if wanted {
        let secret = install::certificates_secret(&options);
        let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
        let how = PatchParams::apply("berth-up").force();
        secrets.patch(install::CERTIFICATES_SECRET, &how, &Patch::Apply(&secret)).await?;
    }
    for object in install::manifests(&options) {
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        if !kind.ends_with("WebhookConfiguration") {
            continue;
        }
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(
            "admissionregistration.k8s.io",
            "v1",
            &kind,
        ));
        let all: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let done = if wanted {
            let how = PatchParams::apply("berth-up").force();
            all.patch(install::NAME, &how, &Patch::Apply(&object)).await.map(drop)
        } else {
            all.delete(install::NAME, &DeleteParams::default()).await.map(drop)
        };
        match done {
            Err(kube::Error::Api(status)) if !wanted && status.code == 404 => {}
            done => done?,
        }
    }
    Ok(())
}

/// A body in YAML, as kubectl sends what is applied on the server's side.
fn parse_yaml(body: &[u8]) -> Result<Value, String> {
    let text = std::str::from_utf8(body).map_err(|error| error.to_string())?;
    let documents = read_as(&Source::new("body", text), Strictness::Manifest);
    let mut documents = documents.map_err(|problem| problem.to_string())?;
    match (documents.pop(), documents.is_empty()) {
        (Some(document), true) => Ok(document.value()),
        _ => Err("a body holds one object".to_owned()),
    }
}

/// Waits until it is time to stop.
async fn until(mut stopped: watch::Receiver<bool>) {
    drop(stopped.wait_for(|stop| *stop).await);
}

fn greeting(address: SocketAddr, kubeconfig: &Path, nodes: usize) -> String {
    format!(
        "A cluster with {nodes} virtual nodes is at https://{address}.\n\n  \
         export KUBECONFIG={}\n  kubectl get nodes\n\n\
         Pods are placed by Berth, whether they name it or no scheduler. Stop with Ctrl-C.\n",
        kubeconfig.display()
    )
}

/// Only its owner may read it.
fn write_kubeconfig(
    path: &Path,
    address: SocketAddr,
    authority: &str,
    token: &Token,
) -> anyhow::Result<()> {
    let cluster = json!({
        "server": format!("https://{address}"),
        "certificate-authority-data": BASE64_STANDARD.encode(authority),
    });
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "berth-up", "cluster": cluster }],
        "users": [{ "name": USER, "user": { "token": token.token } }],
        "contexts": [{
            "name": "berth-up",
            "context": { "cluster": "berth-up", "user": USER, "namespace": "default" },
        }],
        "current-context": "berth-up",
    });
    output::write_file(path, &format!("{kubeconfig:#}\n"))
}

/// What every cluster with Berth has: our kinds, that of exporters, our namespace. Whoever led when the
/// cluster ended has ended with it, and is not waited for.
async fn prepare(client: &kube::Client) -> anyhow::Result<()> {
    let settings = lease::Settings::default();
    let leases: Api<Lease> = Api::namespaced(client.clone(), &settings.namespace);
    match leases.delete(&settings.name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        other => drop(other?),
    }
    let resource = ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
        "customresourcedefinitions",
    );
    let definitions: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let own = berth_api::crd::definitions().into_iter();
    for definition in own.chain([berth_api::topology::definition()]) {
        let name = definition["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let how = PatchParams::apply("berth-up").force();
        definitions.patch(&name, &how, &Patch::Apply(&definition)).await?;
    }
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
    let ours: Value = json!({ "metadata": { "name": NAMESPACE } });
    match namespaces.create(&PostParams::default(), &serde_json::from_value(ours)?).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        other => other.map(drop).map_err(Into::into),
    }
}
