//! `berth up`: a cluster in one process, for laptops and tests: the embedded API, virtual nodes, controllers and
//! the scheduler.

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
use berth_emulator::controllers::volumes::register_classes;
use berth_emulator::kubelet::VIRTUAL;
use berth_emulator::nodes::{Registration, register};
use berth_manifest::{Document, Source, Strictness, load, read_as};
use berth_scenario::objects::node_objects;
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::output;
use crate::serve::{LogFormat, Webhook, open, site, start_logging, stop_signal};
use crate::source;

const NAMESPACE: &str = "berth-system";

/// Host names in the API's certificate.
const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

/// The administrator of the cluster, and the manager of fields that this program writes.
const USER: &str = "berth-up";

const READY_POLL: Duration = Duration::from_millis(20);

/// The cluster without `--cluster`: six nodes with 48 GPUs.
const DEFAULT_CLUSTER: &str = include_str!("../../../../examples/48-gpus/scenario.yaml");

/// Run a cluster with virtual GPU nodes in this process, for laptops and tests
///
/// It consists of an embedded Kubernetes API, the usual controllers, virtual kubelets that admit pods as real
/// ones do, and the scheduler of `berth serve`. kubectl and other Kubernetes clients work against it.
///
/// Virtual nodes run no containers: there is no exec, port-forward, top or log. Pods start after 500ms and run
/// until they are deleted; pods of Jobs succeed after 10s. Annotations on a pod change that:
///
///   berth.dev/start-after: 30s   time to pull images and start containers
///   berth.dev/ready-after: 2m    time from start to ready, e.g. to load a model
///   berth.dev/run-for: 1h        time until the containers exit
///   berth.dev/exit-code: "1"     exit code of the containers
///   berth.dev/stop-after: 20s    time to stop after deletion, within the grace period
///
/// StorageClass `standard` provisions volumes that hold no data. HorizontalPodAutoscalers only keep replicas
/// between minReplicas and maxReplicas, because there is no load to measure. RBAC is enforced for tokens of
/// service accounts; the user in the kubeconfig may do everything.
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Up {
    /// Nodes: the pools of a scenario, or a dump of nodes [default: nodes in --data, else six nodes with 48 GPUs]
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
    /// Directory that keeps all objects across restarts [default: none, in memory only]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Port of the API on localhost (0: any free port)
    #[arg(long, value_name = "PORT", default_value_t = 7443)]
    port: u16,
    /// Address to serve health, metrics and the HTTP API of `berth serve` on [default: none]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Run the admission webhook of `berth serve`
    #[arg(long, value_enum, default_value_t)]
    webhook: Webhook,
    /// Settings of the webhook: YAML file with deny, warn, contract and mutations
    #[arg(long, value_name = "FILE")]
    webhook_settings: Option<PathBuf>,
    /// File to write the kubeconfig to; its CA and token are new at every start
    #[arg(long, value_name = "FILE", default_value = "berth-up.kubeconfig")]
    kubeconfig: PathBuf,
    /// Log level: error, warn, info or debug
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    log: String,
}

impl Up {
    /// Runs until SIGINT or SIGTERM.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        start_logging(LogFormat::Text, &self.log);
        let nodes = self.cluster.as_deref().map(nodes_of_file).transpose()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(self.serve(nodes))
    }

    /// Runs the cluster; `nodes` are those of `--cluster`.
    async fn serve(self, nodes: Option<Vec<Registration>>) -> anyhow::Result<ExitCode> {
        let front = self.front()?;
        let webhook_at = front.as_ref().map(|front| front.listen);
        let token = Token::random(USER).map_err(|status| anyhow!(status.message))?;
        let options = ApiOptions {
            tokens: vec![token.clone()],
            authorization: Authorization::RbacWithToken,
            data: self.data.clone(),
            parse_yaml: Some(parse_yaml),
            // There is no cluster network: of all Services only the webhook's is reachable.
            resolve_service: Some(Arc::new(move |namespace: &str, name: &str, _| {
                webhook_at.filter(|_| (namespace, name) == (NAMESPACE, install::NAME))
            })),
            ..ApiOptions::default()
        };
        let api = ApiServer::new(options)?;
        let client = kube::Client::new(api.service(), "default");
        let listener = self.listener().await?;
        let address = listener.local_addr()?;
        let generation = Generation::make(&NAMES.map(str::to_owned), Timestamp::now())?;
        let tls = server_config(generation.certificate.as_bytes(), generation.key.as_bytes())?;
        write_kubeconfig(&self.kubeconfig, address, &generation.ca, &token)?;
        let (stop, stopped) = watch::channel(false);
        let served = tokio::spawn({
            let (api, stopped) = (api.clone(), stopped.clone());
            async move { api.serve_tls(listener, tls, until(stopped)).await }
        });
        prepare(&client).await.context("cannot set up the cluster")?;
        register_nodes(&client, nodes).await?;
        let options = berth_emulator::Options::default();
        let emulator =
            tokio::spawn(berth_emulator::run(client.clone(), options, until(stopped.clone())));
        let (site, questions) = site(&client);
        if let Some(address) = self.listen {
            open(address, &site)?;
        }
        configure_webhook(&client, front.is_some()).await?;
        let mut fronting = front.map(|front| {
            let (shown, stopped) = ((site.metrics.clone(), site.health.clone()), stopped.clone());
            tokio::spawn(front.run(client.clone(), shown, Router::new(), until(stopped)))
        });
        let api_client = client.clone();
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
            tokio::time::sleep(READY_POLL).await;
        }
        // Before the signal to stop, the webhook ends only if it fails.
        if let Some(ended) = fronting.take_if(|front| front.is_finished()) {
            ended.await?.context("cannot serve the webhook")?;
        }
        let nodes = virtual_nodes(&api_client).await?;
        output::print(&greeting(address, &self.kubeconfig, nodes))?;
        stop_signal().await;
        stop.send_replace(true);
        scheduler.await??;
        if let Some(fronting) = fronting {
            fronting.await??;
        }
        emulator.await?;
        served.await??;
        Ok(ExitCode::SUCCESS)
    }
}

/// The nodes of a scenario's pools or of a dump.
fn nodes_of_file(path: &Path) -> anyhow::Result<Vec<Registration>> {
    let paths = [path.to_owned()];
    registrations(load(&paths, &mut std::io::stdin(), Strictness::Dump)?)
}

fn default_nodes() -> anyhow::Result<Vec<Registration>> {
    registrations(read_as(&Source::new("48-gpus", DEFAULT_CLUSTER), Strictness::Dump)?)
}

fn registrations(documents: Vec<Document>) -> anyhow::Result<Vec<Registration>> {
    let (_, cluster) = source::cluster_of(documents)?;
    let registration = |node| {
        let (node, exported) = node_objects(node);
        let topology = exported.map(serde_json::to_value).transpose()?;
        Ok(Registration { node, topology })
    };
    cluster.nodes.iter().map(registration).collect()
}

/// Registers the nodes of `--cluster`, else the default ones if there are none yet.
async fn register_nodes(
    client: &kube::Client,
    given: Option<Vec<Registration>>,
) -> anyhow::Result<()> {
    let nodes = match given {
        Some(nodes) => nodes,
        None if virtual_nodes(client).await? > 0 => Vec::new(),
        None => default_nodes()?,
    };
    register(client, &nodes).await.context("cannot register the nodes")
}

/// How many virtual nodes the cluster has.
async fn virtual_nodes(client: &kube::Client) -> anyhow::Result<usize> {
    let nodes: Api<Node> = Api::all(client.clone());
    let params = ListParams::default().labels(&format!("{VIRTUAL}=true"));
    Ok(nodes.list_metadata(&params).await?.items.len())
}

impl Up {
    async fn listener(&self) -> anyhow::Result<TcpListener> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let listener = TcpListener::bind(address).await;
        listener
            .with_context(|| format!("cannot listen on {address}; choose another port with --port"))
    }

    /// The webhook, on any free port: only the embedded API calls it. `None` without `--webhook`.
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
        // There is no kube-scheduler for pods that do not name a scheduler.
        scheduler_names: Arc::new(["berth".into(), "default-scheduler".into()]),
        identity: lease::incarnation("berth-up")?.into(),
        lease: lease::Settings::default(),
        core: core::Settings::default(),
    })
}

/// Creates the webhook's configurations, as `berth manifests` would, or deletes those of an earlier start.
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

/// Parses the body of a server-side apply, which kubectl sends as YAML.
fn parse_yaml(body: &[u8]) -> Result<Value, String> {
    let text = std::str::from_utf8(body).map_err(|error| error.to_string())?;
    let documents = read_as(&Source::new("body", text), Strictness::Manifest);
    let mut documents = documents.map_err(|problem| problem.to_string())?;
    match (documents.pop(), documents.is_empty()) {
        (Some(document), true) => Ok(document.value()),
        _ => Err("the body must be one YAML document".to_owned()),
    }
}

async fn until(mut stopped: watch::Receiver<bool>) {
    drop(stopped.wait_for(|stop| *stop).await);
}

fn greeting(address: SocketAddr, kubeconfig: &Path, nodes: usize) -> String {
    format!(
        "A cluster with {nodes} virtual nodes is at https://{address}.\n\n  \
         export KUBECONFIG={}\n  kubectl get nodes\n\n\
         Berth schedules all pods, whether they set schedulerName or not. Virtual nodes run no containers: pods \
         of\nJobs succeed after 10s (annotation berth.dev/run-for). The user in the kubeconfig may do everything; \
         RBAC is\nenforced for tokens of service accounts. See berth up --help. Stop with Ctrl-C.\n",
        kubeconfig.display()
    )
}

/// Writes the kubeconfig, readable by its owner only.
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
    output::write_private_file(path, &format!("{kubeconfig:#}\n"))
}

/// Creates what every cluster with Berth has: CRDs, storage classes and the namespace. The Lease of an earlier
/// start is deleted, because its holder ended with that start.
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
    register_classes(client).await?;
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
    let ours: Value = json!({ "metadata": { "name": NAMESPACE } });
    match namespaces.create(&PostParams::default(), &serde_json::from_value(ours)?).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        other => other.map(drop).map_err(Into::into),
    }
}
