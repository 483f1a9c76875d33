//! The settings file `DeviceOffers` of `berth.dev/v1alpha1`: how GPUs are offered.
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
//!     memory: 32Gi            # default: equal parts
//!     threadPercent: 25       # default: an equal part, rounded up
//!     sharesPerContainer: 2   # default: 1
//!   - as: slices              # MIG instances
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;

use berth_api::FieldPath;
use berth_manifest::{Document, Problem, Source};
use berth_model::quantity::Quantity;
use schemars::{JsonSchema, Schema, schema_for};
use serde::Deserialize;
use serde_json::Value;

use crate::cdi::Common;
use crate::device::ThreadCap;
use crate::offer::{Form, GpuChoice, Offer};
use crate::plugin::PluginConfig;
use crate::response::ResponseConfig;

const API_VERSION: &str = "berth.dev/v1alpha1";
const KIND: &str = "DeviceOffers";

/// Maximum number of shares or replicas of one GPU: MPS serves no more clients.
const PARTS_MAX: i64 = 48;

/// Kubernetes' limit for the part of a resource name after the slash.
const NAME_BYTES_MAX: usize = 63;

#[derive(Clone, Debug)]
pub struct DeviceConfig {
    pub plugin: PluginConfig,
    /// CDI specification to write; `None`: write none.
    pub specification: Option<Specification>,
    pub offers: Vec<Offer>,
}

/// A CDI specification to write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Specification {
    /// Directory that runtimes watch.
    pub directory: PathBuf,
    pub common: Common,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self { plugin: PluginConfig::defaults(), specification: None, offers: Offer::defaults() }
    }
}

/// The GPUs that `berth agent --devices` serves as a device plugin, and in which form.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "DeviceOffers", deny_unknown_fields, extend("required" = ["apiVersion", "kind", "spec"]))]
#[allow(dead_code, reason = "named so that they are no unknown fields")]
struct DeviceOffersFile {
    #[schemars(with = "String", extend("const" = API_VERSION))]
    api_version: Option<String>,
    #[schemars(with = "String", extend("const" = KIND))]
    kind: Option<String>,
    #[schemars(with = "Option<BTreeMap<String, Value>>")]
    metadata: Option<Value>,
    spec: Option<WrittenSpec>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(rename = "DeviceOffersSpec", deny_unknown_fields)]
struct WrittenSpec {
    /// The kubelet's directory. Default: `/var/lib/kubelet`.
    kubelet_directory: Option<String>,
    /// File in which the plugin records which devices it gave to pods. Default:
    /// `/var/lib/berth/devices.json`.
    journal: Option<String>,
    /// Directory of the MPS daemons' sockets. Default: `/run/berth/mps`.
    mps_directory: Option<String>,
    cdi: Option<WrittenCdi>,
    /// The offers. Default: whole GPUs, and all MIG instances.
    offers: Option<Vec<WrittenOffer>>,
}

/// How containers get their devices. Without it, NVIDIA's runtime is told by environment variable.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(rename = "Cdi", deny_unknown_fields, extend("required" = ["kind"]))]
struct WrittenCdi {
    /// Vendor and class of the CDI devices: `nvidia.com/gpu` for NVIDIA's specification, or your own
    /// with `directory`.
    kind: Option<String>,
    /// Directory to write a specification to: `/var/run/cdi`.
    directory: Option<String>,
    /// Device files that every container with a GPU gets, in the written specification.
    device_files: Vec<String>,
    /// Files and directories that are mounted into every container with a GPU, such as the driver's
    /// libraries, in the written specification.
    mounts: Vec<String>,
    /// Environment variables, as `NAME=VALUE`, in the written specification.
    environment: Vec<String>,
}

#[derive(Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(rename = "Offer", deny_unknown_fields, extend("required" = ["as"]))]
struct WrittenOffer {
    /// Numbers or UUIDs of the GPUs. Default: all.
    #[schemars(extend("items" = {"type": ["integer", "string"]}))]
    gpus: Option<Vec<Value>>,
    /// Form of the devices: whole GPUs, slices (MIG instances), shares (MPS) or replicas (time-slicing).
    #[serde(rename = "as")]
    #[schemars(with = "String", extend("enum" = ["whole", "slices", "shares", "replicas"]))]
    form: Option<String>,
    /// Extended resource. Default: NVIDIA's name for the form, such as `nvidia.com/gpu`.
    resource: Option<String>,
    /// MIG profile of the instances, such as `1g.18gb`. Default: all. Not for whole GPUs.
    profile: Option<String>,
    /// Shares or replicas of each GPU. Required for them.
    #[schemars(range(min = 2, max = 48))]
    count: Option<i64>,
    /// Memory of each share, such as `32Gi`. Default: equal parts.
    #[schemars(extend("type" = ["integer", "string"]))]
    memory: Option<Value>,
    /// Limit on each share's threads, in per cent. Default: an equal part, rounded up.
    #[schemars(range(min = 1, max = 100))]
    thread_percent: Option<i64>,
    /// How many shares of one GPU a container may have. Default: 1.
    #[schemars(range(min = 1, max = 48))]
    shares_per_container: Option<i64>,
}

impl DeviceConfig {
    /// The JSON Schema of the text that [`Self::read`] reads.
    pub fn json_schema() -> Schema {
        schema_for!(DeviceOffersFile)
    }

    /// Reads YAML or JSON with one `DeviceOffers`.
    ///
    /// # Errors
    /// Names the invalid field and what to write instead.
    pub fn read(source: &Source) -> Result<Self, Box<Problem>> {
        let documents = berth_manifest::read(source)?;
        let mut wanted = documents.iter().filter(|document| document.kind() == KIND);
        let Some(document) = wanted.next() else {
            let span = berth_manifest::Span::empty_at(0);
            let problem = Problem::of_text(source, span, format!("contains no {KIND}"));
            let remedy = format!("start it with apiVersion: {API_VERSION} and kind: {KIND}");
            return Err(Box::new(problem.with_remedy(remedy)));
        };
        if wanted.next().is_some() {
            let problem = document.problem(FieldPath::root(), format!("second {KIND} in the file"));
            return Err(Box::new(problem.with_remedy("put all offers into one object")));
        }
        let fields = Fields { document };
        if document.api_version() != API_VERSION {
            let what = format!("unknown apiVersion {:?}", document.api_version());
            return Err(fields.problem("apiVersion", what, format!("use {API_VERSION}")));
        }
        let DeviceOffersFile { spec, .. } = document.decode()?;
        fields.config(spec.unwrap_or_default())
    }
}

/// Reports problems at the fields of a document.
struct Fields<'a> {
    document: &'a Document,
}

impl Fields<'_> {
    fn problem(
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
                let what = format!("{path:?} is not an absolute path");
                Err(self.problem(field, what, "use an absolute path such as /var/lib/kubelet"))
            }
            path => Ok(path),
        };
        if let Some(path) = absolute("spec.kubeletDirectory", spec.kubelet_directory)? {
            config.plugin.kubelet_directory = path.into();
        }
        if let Some(path) = absolute("spec.journal", spec.journal)? {
            config.plugin.journal = path.into();
        }
        let mut responses = ResponseConfig::default();
        if let Some(path) = absolute("spec.mpsDirectory", spec.mps_directory)? {
            responses.mps_directory = path.into();
        }
        if let Some(written) = spec.cdi {
            let directory = absolute("spec.cdi.directory", written.directory.clone())?;
            responses.cdi_kind = Some(self.cdi_kind(&written)?);
            config.specification = self.specification(written, directory)?;
        }
        config.plugin.responses = responses;
        if let Some(offers) = spec.offers {
            let offers = offers.into_iter().enumerate();
            config.offers =
                offers.map(|(at, offer)| self.offer(at, offer)).collect::<Result<_, _>>()?;
        }
        Ok(config)
    }

    fn cdi_kind(&self, written: &WrittenCdi) -> Result<String, Box<Problem>> {
        let remedy = "use vendor and class, such as berth.dev/gpu, or nvidia.com/gpu for the specification \
                      of NVIDIA's toolkit";
        match &written.kind {
            Some(kind) if is_resource(kind) => Ok(kind.clone()),
            Some(kind) => {
                let what = format!("{kind:?} is not a CDI kind");
                Err(self.problem("spec.cdi.kind", what, remedy))
            }
            None => Err(self.problem("spec.cdi.kind", "is required", remedy)),
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
                let what = format!("{path:?} is not an absolute path");
                let field = format!("spec.cdi.{field}");
                return Err(self.problem(&field, what, "use an absolute path"));
            }
        }
        match directory {
            Some(directory) => Ok(Some(Specification { directory: directory.into(), common })),
            None if common == Common::default() => Ok(None),
            None => {
                let what = "is required with deviceFiles, mounts or environment";
                let remedy = "use /var/run/cdi, or remove deviceFiles, mounts and environment";
                Err(self.problem("spec.cdi.directory", what, remedy))
            }
        }
    }

    fn offer(&self, at: usize, written: WrittenOffer) -> Result<Offer, Box<Problem>> {
        let path = |field: &str| format!("spec.offers[{at}].{field}");
        let form = self.form(at, &written)?;
        if let Some(resource) = &written.resource
            && !is_resource(resource)
        {
            let what = format!("{resource:?} is not a resource name");
            return Err(self.problem(
                &path("resource"),
                what,
                "use a name such as berth.dev/gpu-share",
            ));
        }
        if written.profile.is_some() && form == Form::Whole {
            let remedy = "use as: slices for MIG instances, or remove profile";
            return Err(self.problem(&path("profile"), "does not apply to whole GPUs", remedy));
        }
        let gpus = match &written.gpus {
            None => GpuChoice::All,
            Some(list) if list.is_empty() => {
                let remedy = "list GPUs by number or UUID, or remove gpus to select all";
                return Err(self.problem(&path("gpus"), "is empty", remedy));
            }
            Some(list) => {
                let name = |(nth, one): (usize, &Value)| match one {
                    Value::String(name) if !name.is_empty() => Ok(name.clone()),
                    Value::Number(number) if number.is_u64() => Ok(number.to_string()),
                    other => {
                        let field = format!("{}[{nth}]", path("gpus"));
                        let what = format!("{other} is not a GPU number or UUID");
                        Err(self.problem(&field, what, "use a number or a UUID"))
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
            let remedy = "use whole, slices, shares or replicas";
            return Err(self.problem(&path("as"), "is required", remedy));
        };
        let shared = matches!(form.as_str(), "shares" | "replicas");
        let only_for = |field: &str, is: bool, forms: &str| {
            let what = format!("applies only to {forms}, not to {form}");
            if is { Err(self.problem(&path(field), what, "remove it")) } else { Ok(()) }
        };
        only_for("count", !shared && written.count.is_some(), "shares and replicas")?;
        let shares = form == "shares";
        only_for("memory", !shares && written.memory.is_some(), "shares")?;
        only_for("threadPercent", !shares && written.thread_percent.is_some(), "shares")?;
        let per_container = written.shares_per_container.is_some();
        only_for("sharesPerContainer", !shares && per_container, "shares")?;
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
                let what = format!("unknown form {other:?}");
                Err(self.problem(&path("as"), what, "use whole, slices, shares or replicas"))
            }
        }
    }

    fn count(&self, at: usize, written: &WrittenOffer) -> Result<u8, Box<Problem>> {
        let field = format!("spec.offers[{at}].count");
        let remedy = format!("use the number of parts per GPU, 2 to {PARTS_MAX}");
        match written.count {
            Some(count) if (2..=PARTS_MAX).contains(&count) => Ok(u8::try_from(count).unwrap_or(2)),
            Some(count) => Err(self.problem(&field, format!("{count} is out of range"), remedy)),
            None => Err(self.problem(&field, "is required", remedy)),
        }
    }

    fn per_container(&self, at: usize, written: &WrittenOffer) -> Result<u8, Box<Problem>> {
        let count = self.count(at, written)?;
        let Some(most) = written.shares_per_container else { return Ok(1) };
        let most_of = u8::try_from(most).ok().filter(|most| (1..=count).contains(most));
        most_of.ok_or_else(|| {
            let field = format!("spec.offers[{at}].sharesPerContainer");
            let remedy = format!("use 1 to {count}, the count of this offer");
            self.problem(&field, format!("{most} is out of range"), remedy)
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
                let remedy = "use a quantity such as 16Gi, or remove it for equal parts";
                Err(self.problem(&field, format!("{text:?} is not a memory quantity"), remedy))
            }
        }
    }

    /// There is no way to write "no cap": next to an uncapped neighbour, tail latency grew twentyfold.
    fn threads(
        &self,
        at: usize,
        written: &WrittenOffer,
    ) -> Result<Option<ThreadCap>, Box<Problem>> {
        let Some(percent) = written.thread_percent else { return Ok(None) };
        let cap = u8::try_from(percent).ok().and_then(|percent| ThreadCap::new(percent).ok());
        cap.map(Some).ok_or_else(|| {
            let field = format!("spec.offers[{at}].threadPercent");
            let remedy = "use 1 to 100, or remove it for an equal part";
            self.problem(&field, format!("{percent} is out of range"), remedy)
        })
    }
}

/// Whether a text is a qualified name, as of resources and CDI kinds.
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
