//! How GPUs are to be handed out, as somebody wrote it down: `DeviceOffers` of `berth.dev/v1alpha1`.
//!
//! Owns the form of that text, its defaults and what is wrong with it, field by field. Must not know which GPUs
//! there are.
//!
//! ```yaml
//! apiVersion: berth.dev/v1alpha1
//! kind: DeviceOffers
//! spec:
//!   offers:
//!   - gpus: [0, 1]            # numbers or UUIDs; all if left out
//!     as: whole
//!   - gpus: [2, 3]
//!     as: shares              # under MPS
//!     count: 4
//!     memory: 32Gi            # equal parts if left out
//!     threadPercent: 25       # an equal part, rounded up, if left out; there is always a cap
//!     sharesPerContainer: 2   # one if left out
//!   - as: slices              # MIG instances
//! ```

use std::path::PathBuf;

use berth_api::FieldPath;
use berth_manifest::{Document, Problem, Source};
use berth_model::quantity::Quantity;
use serde::Deserialize;
use serde_json::Value;

use crate::answer::Answers;
use crate::cdi::Common;
use crate::device::ThreadCap;
use crate::offer::{Form, GpuChoice, Offer};
use crate::plugin::PluginConfig;

const API_VERSION: &str = "berth.dev/v1alpha1";
const KIND: &str = "DeviceOffers";

/// Shares or replicas of one GPU: MPS serves no more clients.
const PARTS_MAX: i64 = 48;

/// The longest name of a resource's part after the slash, as Kubernetes has it.
const NAME_BYTES_MAX: usize = 63;

/// How GPUs are handed out.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Where everything is.
    pub plugin: PluginConfig,
    /// What to write for container runtimes; `None`: nothing.
    pub specification: Option<Specification>,
    /// What GPUs are offered as.
    pub offers: Vec<Offer>,
}

/// What to write for container runtimes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Specification {
    /// Where: a directory that they watch.
    pub directory: PathBuf,
    /// What every container with a GPU gets.
    pub common: Common,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self { plugin: PluginConfig::usual(), specification: None, offers: Offer::usual() }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "named so that they are no unknown fields")]
struct Written {
    api_version: Option<String>,
    kind: Option<String>,
    metadata: Option<Value>,
    spec: Option<WrittenSpec>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WrittenSpec {
    kubelet_directory: Option<String>,
    journal: Option<String>,
    mps_directory: Option<String>,
    cdi: Option<WrittenCdi>,
    offers: Option<Vec<WrittenOffer>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WrittenCdi {
    kind: Option<String>,
    directory: Option<String>,
    device_files: Vec<String>,
    mounts: Vec<String>,
    environment: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WrittenOffer {
    gpus: Option<Vec<Value>>,
    #[serde(rename = "as")]
    form: Option<String>,
    resource: Option<String>,
    profile: Option<String>,
    count: Option<i64>,
    memory: Option<Value>,
    thread_percent: Option<i64>,
    shares_per_container: Option<i64>,
}

impl DeviceConfig {
    /// Reads a text, YAML or JSON, with one `DeviceOffers` in it.
    ///
    /// # Errors
    /// Names the field that is wrong, and what to write instead.
    pub fn read(source: &Source) -> Result<Self, Box<Problem>> {
        let documents = berth_manifest::read(source)?;
        let mut wanted = documents.iter().filter(|document| document.kind() == KIND);
        let Some(document) = wanted.next() else {
            let span = berth_manifest::Span::empty_at(0);
            let problem = Problem::of_text(source, span, format!("holds no {KIND}"));
            let remedy = format!("start with apiVersion: {API_VERSION} and kind: {KIND}");
            return Err(Box::new(problem.with_remedy(remedy)));
        };
        if wanted.next().is_some() {
            let problem = document.problem(FieldPath::root(), format!("is one of several {KIND}"));
            return Err(Box::new(problem.with_remedy("put all offers into one")));
        }
        let fields = Fields { document };
        if document.api_version() != API_VERSION {
            let what = format!("{:?} is unknown", document.api_version());
            return Err(fields.wrong("apiVersion", what, format!("write {API_VERSION}")));
        }
        let Written { spec, .. } = document.decode()?;
        fields.config(spec.unwrap_or_default())
    }
}

/// Where to complain.
struct Fields<'a> {
    document: &'a Document,
}

impl Fields<'_> {
    fn wrong(
        &self,
        field: &str,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Box<Problem> {
        let problem = self.document.problem(FieldPath::parse(field), what.into());
        Box::new(problem.with_remedy(remedy))
    }

    fn config(&self, spec: WrittenSpec) -> Result<DeviceConfig, Box<Problem>> {
        let mut config = DeviceConfig::default();
        let absolute = |field: &str, path: Option<String>| match path {
            Some(path) if !path.starts_with('/') => {
                let what = format!("{path:?} is no absolute path");
                Err(self.wrong(field, what, "write it from the root on, as /var/lib/kubelet"))
            }
            path => Ok(path),
        };
        if let Some(path) = absolute("spec.kubeletDirectory", spec.kubelet_directory)? {
            config.plugin.kubelet_directory = path.into();
        }
        if let Some(path) = absolute("spec.journal", spec.journal)? {
            config.plugin.journal = path.into();
        }
        let mut answers = Answers::default();
        if let Some(path) = absolute("spec.mpsDirectory", spec.mps_directory)? {
            answers.mps_directory = path.into();
        }
        if let Some(written) = spec.cdi {
            let directory = absolute("spec.cdi.directory", written.directory.clone())?;
            answers.cdi_kind = Some(self.cdi_kind(&written)?);
            config.specification = self.specification(written, directory)?;
        }
        config.plugin.answers = answers;
        if let Some(offers) = spec.offers {
            let offers = offers.into_iter().enumerate();
            config.offers =
                offers.map(|(at, offer)| self.offer(at, offer)).collect::<Result<_, _>>()?;
        }
        Ok(config)
    }

    fn cdi_kind(&self, written: &WrittenCdi) -> Result<String, Box<Problem>> {
        let remedy = "write vendor and class, as berth.dev/gpu, or nvidia.com/gpu for the specification of \
                      NVIDIA's toolkit";
        match &written.kind {
            Some(kind) if is_resource(kind) => Ok(kind.clone()),
            Some(kind) => {
                let what = format!("{kind:?} is no kind of devices");
                Err(self.wrong("spec.cdi.kind", what, remedy))
            }
            None => Err(self.wrong("spec.cdi.kind", "is missing", remedy)),
        }
    }

    fn specification(
        &self,
        written: WrittenCdi,
        directory: Option<String>,
    ) -> Result<Option<Specification>, Box<Problem>> {
        let WrittenCdi { device_files, mounts, environment, .. } = written;
        let common = Common { device_files, mounts, environment };
        let relative = |paths: &[String]| paths.iter().find(|path| !path.starts_with('/')).cloned();
        for (field, paths) in [("deviceFiles", &common.device_files), ("mounts", &common.mounts)] {
            if let Some(path) = relative(paths) {
                let what = format!("{path:?} is no absolute path");
                let field = format!("spec.cdi.{field}");
                return Err(self.wrong(&field, what, "write it from the root on"));
            }
        }
        match directory {
            Some(directory) => Ok(Some(Specification { directory: directory.into(), common })),
            None if common == Common::default() => Ok(None),
            None => {
                let what = "is missing, and only what is written there can hold these fields";
                let remedy = "write /var/run/cdi, or leave deviceFiles, mounts and environment out";
                Err(self.wrong("spec.cdi.directory", what, remedy))
            }
        }
    }

    fn offer(&self, at: usize, written: WrittenOffer) -> Result<Offer, Box<Problem>> {
        let path = |field: &str| format!("spec.offers[{at}].{field}");
        let form = self.form(at, &written)?;
        if let Some(resource) = &written.resource
            && !is_resource(resource)
        {
            let what = format!("{resource:?} is no name of a resource");
            return Err(self.wrong(&path("resource"), what, "write one as berth.dev/gpu-share"));
        }
        if written.profile.is_some() && form == Form::Whole {
            let remedy = "write as: slices for MIG instances, or leave profile out";
            return Err(self.wrong(&path("profile"), "is not for whole GPUs", remedy));
        }
        let gpus = match &written.gpus {
            None => GpuChoice::All,
            Some(list) if list.is_empty() => {
                let remedy = "name GPUs by number or UUID, or leave gpus out for all of them";
                return Err(self.wrong(&path("gpus"), "names none", remedy));
            }
            Some(list) => {
                let name = |(nth, one): (usize, &Value)| match one {
                    Value::String(name) if !name.is_empty() => Ok(name.clone()),
                    Value::Number(number) if number.is_u64() => Ok(number.to_string()),
                    other => {
                        let field = format!("{}[{nth}]", path("gpus"));
                        let what = format!("{other} is no GPU");
                        Err(self.wrong(&field, what, "write its number or its UUID"))
                    }
                };
                let names: Result<Vec<String>, _> = list.iter().enumerate().map(name).collect();
                GpuChoice::These(names?)
            }
        };
        Ok(Offer { gpus, form, resource: written.resource, profile: written.profile })
    }

    fn form(&self, at: usize, written: &WrittenOffer) -> Result<Form, Box<Problem>> {
        let path = |field: &str| format!("spec.offers[{at}].{field}");
        let Some(form) = &written.form else {
            let remedy = "write whole, slices, shares or replicas";
            return Err(self.wrong(&path("as"), "is missing", remedy));
        };
        let shared = matches!(form.as_str(), "shares" | "replicas");
        let not_for = |field: &str, is: bool, whom: &str| {
            let what = format!("is for {whom} only, and this offer is of {form}");
            if is { Err(self.wrong(&path(field), what, "leave it out")) } else { Ok(()) }
        };
        not_for("count", !shared && written.count.is_some(), "shares and replicas")?;
        let shares = form == "shares";
        not_for("memory", !shares && written.memory.is_some(), "shares")?;
        not_for("threadPercent", !shares && written.thread_percent.is_some(), "shares")?;
        let per_container = written.shares_per_container.is_some();
        not_for("sharesPerContainer", !shares && per_container, "shares")?;
        match form.as_str() {
            "whole" => Ok(Form::Whole),
            "slices" => Ok(Form::Slices),
            "replicas" => Ok(Form::Replicas { count: self.count(at, written)? }),
            "shares" => Ok(Form::Shares {
                count: self.count(at, written)?,
                memory_bytes: self.memory(at, written)?,
                threads: self.threads(at, written)?,
                per_container: self.per_container(at, written)?,
            }),
            other => {
                let what = format!("{other:?} is no form of an offer");
                Err(self.wrong(&path("as"), what, "write whole, slices, shares or replicas"))
            }
        }
    }

    fn count(&self, at: usize, written: &WrittenOffer) -> Result<u8, Box<Problem>> {
        let field = format!("spec.offers[{at}].count");
        let remedy = format!("write into how many parts each GPU goes, 2 to {PARTS_MAX}");
        match written.count {
            Some(count) if (2..=PARTS_MAX).contains(&count) => Ok(u8::try_from(count).unwrap_or(2)),
            Some(count) => Err(self.wrong(&field, format!("{count} parts cannot be"), remedy)),
            None => Err(self.wrong(&field, "is missing", remedy)),
        }
    }

    fn per_container(&self, at: usize, written: &WrittenOffer) -> Result<u8, Box<Problem>> {
        let count = self.count(at, written)?;
        let Some(most) = written.shares_per_container else { return Ok(1) };
        let most_of = u8::try_from(most).ok().filter(|most| (1..=count).contains(most));
        most_of.ok_or_else(|| {
            let field = format!("spec.offers[{at}].sharesPerContainer");
            let remedy = format!("write how many of the {count} a container may have at most");
            self.wrong(&field, format!("{most} of {count} shares cannot be"), remedy)
        })
    }

    fn memory(&self, at: usize, written: &WrittenOffer) -> Result<Option<u64>, Box<Problem>> {
        let field = format!("spec.offers[{at}].memory");
        let text = match &written.memory {
            None => return Ok(None),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        let bytes = Quantity::parse(&text).ok().and_then(Quantity::as_i64);
        match bytes.and_then(|bytes| u64::try_from(bytes).ok()) {
            Some(bytes) if bytes > 0 => Ok(Some(bytes)),
            _ => {
                let remedy = "write a quantity such as 16Gi, or leave it out for equal parts";
                Err(self.wrong(&field, format!("{text:?} is no memory"), remedy))
            }
        }
    }

    /// The cap, if one is written. That there is none cannot be written: beside an uncapped neighbour tail latency
    /// grew twentyfold.
    fn threads(
        &self,
        at: usize,
        written: &WrittenOffer,
    ) -> Result<Option<ThreadCap>, Box<Problem>> {
        let Some(percent) = written.thread_percent else { return Ok(None) };
        let cap = u8::try_from(percent).ok().and_then(|percent| ThreadCap::new(percent).ok());
        cap.map(Some).ok_or_else(|| {
            let field = format!("spec.offers[{at}].threadPercent");
            let remedy = "write 1 to 100, or leave it out for an equal part";
            self.wrong(&field, format!("{percent} % is no cap on threads"), remedy)
        })
    }
}

/// Whether a text is a name with a domain, as resources and kinds of CDI have.
fn is_resource(text: &str) -> bool {
    let Some((domain, name)) = text.split_once('/') else { return false };
    let ends = |text: &str| {
        let alphanumeric = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        alphanumeric(text.bytes().next()) && alphanumeric(text.bytes().next_back())
    };
    let of = |text: &str, more: &[u8]| {
        ends(text) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || more.contains(&byte))
    };
    let lower = !domain.bytes().any(|byte| byte.is_ascii_uppercase());
    lower && of(domain, b"-.") && of(name, b"-._") && name.len() <= NAME_BYTES_MAX
}
