//! Reads a scenario with the files that it names. Other objects in the scenario's own file are
//! manifests, too.

use std::io;
use std::path::{Path, PathBuf};

use berth_api::FieldPath;
use berth_api::Lower as _;
use berth_engine::event::Event;
use berth_manifest::{Document, LoadError, Object, Strictness, read_file};
use berth_sim::experiment as sim;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::assemble::{FieldError, Inputs, Lifecycle, ManifestWorkload, assemble};
use super::file::{self, API_VERSION, KIND, Scenario};
use super::pools;
use crate::cluster::{Cluster, ClusterNode, Objects, Prices};
use crate::traces::openb;
use crate::traces::requests::{self, TokenSpeed, Trace};
use crate::workloads::{WorkloadPods, pods_of};

/// Growth of a NodePool object without limits.
const GROWTH_MAX: u32 = 1_000;

/// Time until a new node of a NodePool object is ready.
const PROVISION_MS: i64 = 5 * 60_000;

/// Reads a scenario. `seed` overrides its own.
pub fn load(path: &Path, seed: Option<u64>) -> Result<sim::Experiment, LoadError> {
    let source = read_file(path)?;
    let documents = berth_manifest::read(&source)?;
    let (mut scenarios, mut manifests): (Vec<Document>, Vec<Document>) =
        documents.into_iter().partition(is_scenario);
    let Some(document) = scenarios.pop() else {
        let message =
            format!("contains no scenario; write `apiVersion: {API_VERSION}`, `kind: {KIND}`");
        return Err(LoadError::File { path: path.to_owned(), message });
    };
    if let Some(other) = scenarios.pop() {
        let problem = document.problem(FieldPath::root(), "is the second scenario in this file");
        let remedy = format!("remove one; the first is {}", other.label());
        return Err(problem.with_remedy(remedy).into());
    }
    if document.api_version() != API_VERSION {
        let field = FieldPath::root().key("apiVersion");
        let problem =
            document.problem(field, format!("unknown version {:?}", document.api_version()));
        return Err(problem.with_remedy(format!("write {API_VERSION}")).into());
    }
    let Scenario { metadata, mut spec, .. } = document.decode()?;
    spec.seed = seed.unwrap_or(spec.seed);
    let base = path.parent().unwrap_or(Path::new("")).to_owned();
    for (field, files) in
        [("manifests", &spec.manifests), ("cluster.manifests", &spec.cluster.manifests)]
    {
        let field = FieldPath::parse(&format!("spec.{field}"));
        manifests.append(&mut read_manifests(&document, &field, &base, files)?);
    }
    let mut inputs = read_inputs(manifests)?;
    inputs.workloads.sort_by_key(|one| {
        (one.outline.namespace.clone(), one.outline.name.clone(), one.outline.kind.clone())
    });
    inputs.traced = trace_workloads(&document, &spec, &base)?;
    let mut read_trace = |load: &file::Load, latency: Option<&file::Latency>| {
        request_trace(&base, load, latency).map_err(|error| error.to_string())
    };
    let assembled = assemble(&metadata.name, &spec, inputs, &mut read_trace);
    assembled.map_err(|FieldError { field, message }| document.problem(field, message).into())
}

/// Workloads of the pod traces that arrivals name.
fn trace_workloads(
    document: &Document,
    spec: &file::Spec,
    base: &Path,
) -> Result<Vec<sim::Workload>, LoadError> {
    let mut workloads = Vec::new();
    for (at, arrivals) in spec.arrivals.iter().enumerate() {
        let Some(name) = &arrivals.trace else { continue };
        let field = FieldPath::root().key("spec").key("arrivals").at(at).key("trace");
        let problem = |message: String| LoadError::Text(document.problem(field.clone(), message));
        let source = read_file(&base.join(name)).map_err(|error| problem(error.to_string()))?;
        let pods =
            openb::read_pods(name, &source.text).map_err(|error| problem(error.to_string()))?;
        if pods.iter().all(|pod| pod.life_ms.is_none()) {
            return Err(problem(format!("{name} has no columns creation_time and deletion_time")));
        }
        workloads.push(openb::workload(name, &pods, arrivals.copies.unwrap_or(1), spec.seed));
    }
    Ok(workloads)
}

/// Whether a document is a scenario.
pub fn is_scenario(document: &Document) -> bool {
    document.kind() == KIND && document.group() == "berth.dev"
}

/// Adds the pools of a scenario to a cluster: their nodes, empty, and how much they can grow.
pub fn add_pools(document: &Document, cluster: &mut Cluster) -> Result<(), LoadError> {
    let Scenario { spec, .. } = document.decode()?;
    for (at, pool) in spec.cluster.pools.iter().enumerate() {
        let built = pools::build(pool, &cluster.pools).map_err(|problem| {
            let field = FieldPath::parse(&format!("spec.cluster.pools[{at}].{}", problem.field));
            document.problem(field, problem.message)
        })?;
        for setup in built.nodes {
            let name = setup.node.name.clone();
            let mut node = ClusterNode::from(setup);
            node.update_devices().map_err(|problem| {
                let path = PathBuf::from(format!("Node {name}"));
                LoadError::File { path, message: problem.to_string() }
            })?;
            cluster.nodes.push(node);
        }
        cluster.put_pool(built.pool);
    }
    Ok(())
}

/// The objects in the files that a field lists.
fn read_manifests(
    document: &Document,
    field: &FieldPath,
    base: &Path,
    files: &[String],
) -> Result<Vec<Document>, LoadError> {
    let mut documents = Vec::new();
    for (at, file) in files.iter().enumerate() {
        let paths: [PathBuf; 1] = [base.join(file)];
        let loaded = berth_manifest::load(&paths, &mut io::empty(), Strictness::Manifest);
        documents.append(&mut loaded.map_err(|error| match error {
            LoadError::File { message, .. } => {
                let problem = document.problem(field.clone().at(at), format!("{file}: {message}"));
                LoadError::Text(problem)
            }
            other => other,
        })?);
    }
    Ok(documents)
}

fn read_inputs(documents: Vec<Document>) -> Result<Inputs, LoadError> {
    let objects = Objects::new(documents)?;
    let mut cluster = Cluster::default();
    cluster.add(&objects, false)?;
    let prices = Prices::default();
    let mut inputs = Inputs::default();
    for node in &cluster.nodes {
        let setup = node.setup(&prices).map_err(|problem| {
            let path = PathBuf::from(format!("Node {}", node.node.name));
            LoadError::File { path, message: problem }
        })?;
        inputs.nodes.push(setup);
    }
    for pool in &cluster.pools {
        // New nodes are like the existing ones.
        let like = cluster.nodes.iter().find(|node| node.pool() == pool.name.as_ref());
        let template = like.and_then(|node| node.setup(&prices).ok());
        inputs.growth.extend(template.map(|template| sim::PoolSetup {
            name: pool.name.clone(),
            template,
            growth: pool.growth.unwrap_or(GROWTH_MAX),
            provision_ms: PROVISION_MS,
            idle_ms: None,
        }));
    }
    for workload in pods_of(&objects, &cluster)? {
        inputs.objects.extend(workload.groupings.iter().cloned().map(Event::Grouping));
        inputs.workloads.append(&mut manifest_workloads(&workload)?);
    }
    inputs.objects.extend(cluster.priority_classes.iter().cloned().map(Event::PriorityClass));
    inputs.objects.extend(cluster.quotas.iter().cloned().map(Event::Quota));
    inputs.pools = cluster.pools;
    // The simulation computes the state of budgets itself.
    let others = cluster.others.into_iter().filter(|event| !matches!(event, Event::Budget(_)));
    inputs.objects.extend(others);
    for read in &objects.0 {
        if let Object::PodDisruptionBudget(budget) = &read.object {
            inputs.budgets.extend(budget_of(&read.document, budget)?);
        }
    }
    Ok(inputs)
}

fn manifest_workloads(workload: &WorkloadPods) -> Result<Vec<ManifestWorkload>, LoadError> {
    let several = workload.templates.len() > 1;
    let mut all = Vec::new();
    for (at, template) in workload.templates.iter().enumerate() {
        if let Some(refused) = &template.refused {
            let problem = workload.document.problem(FieldPath::root(), refused.clone());
            return Err(problem.into());
        }
        let lifecycle = match (template.job, template.copies) {
            (Some(job), _) => Lifecycle::Job(job),
            (None, None) => Lifecycle::Daemon,
            (None, Some(_)) if workload.kind == berth_api::workload::WorkloadKind::Pod => {
                Lifecycle::Pod
            }
            (None, Some(copies)) => Lifecycle::Replicas(copies),
        };
        let mut outline = workload.outline.clone();
        if several {
            outline.name = format!("{}-{at}", outline.name);
        }
        if outline.team.is_empty() {
            outline.team.clone_from(&outline.namespace);
        }
        all.push(ManifestWorkload { outline, template: template.spec.clone(), lifecycle });
    }
    Ok(all)
}

fn budget_of(
    document: &Document,
    budget: &PodDisruptionBudget,
) -> Result<Option<sim::Budget>, LoadError> {
    let lowered =
        budget.lower().map_err(|error| document.lower_problem(&FieldPath::root(), &error))?;
    let Some(selector) = lowered.selector else { return Ok(None) };
    let Some(spec) = &budget.spec else { return Ok(None) };
    let amount = |field: &str, value: &IntOrString| match value {
        IntOrString::Int(count) => Ok(sim::Amount::Count(u32::try_from(*count).unwrap_or(0))),
        IntOrString::String(text) => {
            let percent = text.strip_suffix('%').and_then(|number| number.parse().ok());
            percent.map(sim::Amount::Percent).ok_or_else(|| {
                let field = FieldPath::root().key("spec").key(field);
                let problem = document.problem(field, format!("invalid number {text:?}"));
                LoadError::Text(problem.with_remedy("write a number, or a percentage such as 50%"))
            })
        }
    };
    let bound = match (&spec.min_available, &spec.max_unavailable) {
        (Some(least), _) => sim::BudgetBound::MinAvailable(amount("minAvailable", least)?),
        (None, Some(most)) => sim::BudgetBound::MaxUnavailable(amount("maxUnavailable", most)?),
        (None, None) => return Ok(None),
    };
    let (namespace, name) = (lowered.namespace, lowered.name);
    Ok(Some(sim::Budget { namespace, name, selector, bound }))
}

/// The request trace that a load names.
fn request_trace(
    base: &Path,
    load: &file::Load,
    latency: Option<&file::Latency>,
) -> Result<Trace, String> {
    let name = load.trace.as_deref().unwrap_or_default();
    let source = read_file(&base.join(name)).map_err(|error| error.to_string())?;
    let assumed = TokenSpeed::default();
    let latency = latency.copied().unwrap_or_default();
    let us = |time: Option<super::units::Time>, otherwise: f64| {
        time.map_or(otherwise, |time| time.us() as f64)
    };
    let tokens = TokenSpeed {
        input_us: us(latency.per_input_token, assumed.input_us),
        output_us: us(latency.per_output_token, assumed.output_us),
        slots: latency.slots.unwrap_or(assumed.slots),
    };
    let scale = load.scale.unwrap_or(1.0);
    requests::read(name, &source.text, tokens, scale).map_err(|error| error.to_string())
}
