//! Which crate may depend on which: the rings of the workspace, and what the pure crates must never
//! reach.
//!
//! Dev-dependencies are exempt from both rules: a test may use whatever it needs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::Problem;

/// The rings of the workspace, innermost first: `crates/RING/NAME`. A crate may depend on its own
/// ring and on those before it. `core` is pure: no I/O, no clock, no randomness of its own. `harness`
/// is for tests and xtask only, so no product crate can list it.
const RINGS: &[&str] = &[CORE, "cluster", "node", "tools", "harness"];

const CORE: &str = "core";

/// Crates that call C, and so may use `unsafe`. They write the workspace's other lints out.
pub(crate) const UNSAFE: &[&str] = &["berth-nvml"];

/// Crates that no pure crate may reach, each with all that share its name as a prefix (`kube` is
/// also `kube-client`), and what they would bring in.
const IMPURE: &[(&str, &str)] = &[
    ("async-std", "an async runtime"),
    ("fastrand", "randomness"),
    ("getrandom", "randomness"),
    ("hyper", "network I/O"),
    ("k8s-openapi", "Kubernetes API types"),
    ("kube", "Kubernetes API types"),
    ("mio", "network I/O"),
    ("rand", "randomness"),
    ("reqwest", "network I/O"),
    ("saphyr", "YAML"),
    ("serde-norway", "YAML"),
    ("serde-saphyr", "YAML"),
    ("serde-yaml", "YAML"),
    ("serde-yml", "YAML"),
    ("smol", "an async runtime"),
    ("tokio", "an async runtime"),
    ("tracing", "logging"),
    ("yaml-rust", "YAML"),
    ("yaml-rust2", "YAML"),
];

/// A crate of this workspace.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) name: String,
    /// Its directory, relative to the workspace.
    pub(crate) dir: PathBuf,
    /// The crates of this workspace it declares as normal or build dependencies, optional or not.
    declared: Vec<String>,
}

impl Member {
    #[cfg(test)]
    pub(crate) fn for_test(name: &str, dir: &str) -> Self {
        Self { name: name.to_owned(), dir: PathBuf::from(dir), declared: Vec::new() }
    }

    /// The ring by its place in [`RINGS`]; `None` for a crate outside of them.
    fn ring(&self) -> Option<usize> {
        let mut parts = self.dir.components().map(|part| part.as_os_str());
        if parts.next()? != "crates" {
            return None;
        }
        let ring = parts.next()?;
        RINGS.iter().position(|name| *name == ring)
    }

    /// Whether the crate does no I/O and has no clock and no randomness of its own.
    pub(crate) fn is_pure(&self) -> bool {
        self.ring().is_some_and(|ring| RINGS[ring] == CORE)
    }
}

/// The resolved graph over normal and build dependencies.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    pub(crate) members: Vec<Member>,
    /// Package id to crate name.
    names: BTreeMap<String, String>,
    /// Package id to the ids it depends on.
    edges: BTreeMap<String, Vec<String>>,
}

impl Graph {
    /// Asks cargo, without touching the lock file; without the network when that is enough.
    pub(crate) fn load(root: &Path) -> anyhow::Result<Self> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let metadata = |extra: &[&str]| {
            Command::new(&cargo)
                .args(["metadata", "--format-version", "1", "--locked"])
                .args(extra)
                .current_dir(root)
                .output()
                .context("cannot start cargo; install it, or point CARGO at it")
        };
        let mut output = metadata(&["--offline"])?;
        if !output.status.success() {
            output = metadata(&[])?;
        }
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            bail!(
                "`cargo metadata --locked` failed; if Cargo.lock is out of date, run `cargo check` \
                 and commit it:\n{}",
                stderr.trim_end()
            );
        }
        let value = serde_json::from_slice(&output.stdout)
            .context("`cargo metadata` did not print JSON; update cargo")?;
        Self::read(&value, root)
    }

    /// Reads the output of `cargo metadata --format-version 1`.
    fn read(metadata: &Value, root: &Path) -> anyhow::Result<Self> {
        let mut graph = Self::default();
        let member_ids: BTreeSet<&str> =
            list(metadata, "workspace_members")?.iter().filter_map(Value::as_str).collect();
        let packages = list(metadata, "packages")?;
        let is_member =
            |package: &Value| package["id"].as_str().is_some_and(|id| member_ids.contains(id));
        let member_names: BTreeSet<&str> = packages
            .iter()
            .filter(|package| is_member(package))
            .filter_map(|package| package["name"].as_str())
            .collect();

        for package in packages {
            let name = text(package, "name")?;
            graph.names.insert(text(package, "id")?.to_owned(), name.to_owned());
            if !is_member(package) {
                continue;
            }
            let manifest = Path::new(text(package, "manifest_path")?);
            let dir = manifest.parent().unwrap_or(manifest);
            let declared = list(package, "dependencies")?
                .iter()
                .filter(|dependency| ships(dependency) && dependency["path"].is_string())
                .filter_map(|dependency| dependency["name"].as_str())
                .filter(|name| member_names.contains(name))
                .map(str::to_owned)
                .collect();
            graph.members.push(Member {
                name: name.to_owned(),
                dir: dir.strip_prefix(root).unwrap_or(dir).to_owned(),
                declared,
            });
        }

        for node in list(&metadata["resolve"], "nodes")? {
            let targets = list(node, "deps")?
                .iter()
                .filter(|dep| dep["dep_kinds"].as_array().is_some_and(|k| k.iter().any(ships)))
                .filter_map(|dep| dep["pkg"].as_str())
                .map(str::to_owned)
                .collect();
            graph.edges.insert(text(node, "id")?.to_owned(), targets);
        }
        Ok(graph)
    }

    /// The shortest way from a pure crate to each banned crate it reaches, as names. What it
    /// reaches through another pure crate is reported there.
    fn ways_to_impure(&self, from: &str) -> Vec<(Vec<&str>, &'static str)> {
        let Some(start) = self.names.iter().find(|(_, name)| *name == from).map(|(id, _)| id)
        else {
            return Vec::new();
        };
        let mut found = Vec::new();
        let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
        let mut queue = VecDeque::from([start.as_str()]);
        while let Some(id) = queue.pop_front() {
            let name = self.name(id);
            if let Some(what) = impure(name) {
                let mut way = vec![name];
                let mut at = id;
                while let Some(previous) = came_from.get(at) {
                    way.push(self.name(previous));
                    at = previous;
                }
                way.reverse();
                found.push((way, what));
                continue;
            }
            let is_pure = |name| self.members.iter().any(|one| one.name == name && one.is_pure());
            if id != start && is_pure(name) {
                continue;
            }
            for next in self.edges.get(id).into_iter().flatten() {
                if next != start && !came_from.contains_key(next.as_str()) {
                    came_from.insert(next, id);
                    queue.push_back(next);
                }
            }
        }
        found
    }

    fn name<'a>(&'a self, id: &'a str) -> &'a str {
        self.names.get(id).map_or(id, String::as_str)
    }
}

/// Whether a declared dependency, or a kind of a resolved one, is a normal or a build dependency.
fn ships(dependency: &Value) -> bool {
    dependency["kind"].as_str().is_none_or(|kind| kind == "build")
}

fn list<'a>(value: &'a Value, key: &str) -> anyhow::Result<&'a [Value]> {
    let array = value[key].as_array();
    array
        .map(Vec::as_slice)
        .with_context(|| format!("`cargo metadata` has no list `{key}`; update cargo"))
}

fn text<'a>(value: &'a Value, key: &str) -> anyhow::Result<&'a str> {
    value[key]
        .as_str()
        .with_context(|| format!("`cargo metadata` has no string `{key}`; update cargo"))
}

/// What a crate of this name would bring into a pure crate.
fn impure(name: &str) -> Option<&'static str> {
    let name = name.replace('_', "-");
    let (_, what) = IMPURE.iter().find(|(banned, _)| {
        name.strip_prefix(banned).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    })?;
    Some(what)
}

/// The rules `deps-order` and `deps-pure`.
pub(crate) fn check(graph: &Graph) -> Vec<Problem> {
    let mut problems = Vec::new();
    let ring_of = |name: &str| graph.members.iter().find(|one| one.name == name)?.ring();
    for member in &graph.members {
        let manifest = member.dir.join("Cargo.toml");
        let mut report = |rule, message: String| {
            problems.push(Problem::new(&manifest, 1, rule, message));
        };
        let ring = member.ring();
        if ring.is_none() && member.name != "xtask" {
            report(
                "deps-order",
                format!(
                    "the crate `{}` is in no ring; move it to crates/RING/NAME, where RING is one \
                     of {}",
                    member.name,
                    RINGS.join(", ")
                ),
            );
            continue;
        }
        for dependency in &member.declared {
            // xtask is outermost: it may use everything, and nothing may use it.
            let is_inward = match (ring, ring_of(dependency)) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(from), Some(to)) => to <= from,
            };
            if !is_inward {
                report(
                    "deps-order",
                    format!(
                        "`{}` must not depend on `{dependency}`, which is in an outer ring; move \
                         what it needs inwards, or make it a dev-dependency if only tests use it",
                        member.name
                    ),
                );
            }
        }
        if member.is_pure() {
            for (way, what) in graph.ways_to_impure(&member.name) {
                report(
                    "deps-pure",
                    format!(
                        "a pure crate must not bring in {what}: {}; drop the dependency or turn \
                         off the feature that pulls it in",
                        way.join(" → ")
                    ),
                );
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A workspace in which `edges` are (from, to, kind); every `berth-*` and xtask is a member.
    fn graph(edges: &[(&str, &str, &str)]) -> Graph {
        let names: BTreeSet<&str> = edges.iter().flat_map(|(from, to, _)| [*from, *to]).collect();
        let member = |name: &str| name.starts_with("berth-") || name == "xtask";
        let kind = |kind: &str| if kind == "normal" { Value::Null } else { json!(kind) };
        let out = |name: &str| {
            let name = name.to_owned();
            edges.iter().filter(move |(from, _, _)| *from == name)
        };
        let packages: Vec<Value> = names
            .iter()
            .map(|name| {
                let dependencies: Vec<Value> = out(name)
                    .map(|(_, to, k)| json!({"name": to, "kind": kind(k), "path": format!("/r/{to}")}))
                    .collect();
                json!({
                    "id": format!("{name} 1.0.0"),
                    "name": name,
                    "manifest_path": format!("/r/{}/Cargo.toml", dir(name)),
                    "dependencies": dependencies,
                })
            })
            .collect();
        let nodes: Vec<Value> = names
            .iter()
            .map(|name| {
                let deps: Vec<Value> = out(name)
                    .map(|(_, to, k)| json!({"pkg": format!("{to} 1.0.0"), "dep_kinds": [{"kind": kind(k)}]}))
                    .collect();
                json!({"id": format!("{name} 1.0.0"), "deps": deps})
            })
            .collect();
        let members: Vec<String> =
            names.iter().filter(|name| member(name)).map(|name| format!("{name} 1.0.0")).collect();
        let metadata = json!({
            "workspace_members": members,
            "packages": packages,
            "resolve": {"nodes": nodes},
        });
        Graph::read(&metadata, Path::new("/r")).unwrap()
    }

    fn dir(name: &str) -> String {
        let ring = match name {
            "berth-model" | "berth-kubelet" | "berth-engine" => "core",
            "berth-api" | "berth-manifest" | "berth-control" => "cluster",
            "berth-sim" => "tools",
            "berth-testkit" => "harness",
            _ => return name.to_owned(),
        };
        format!("crates/{ring}/{}", name.trim_start_matches("berth-"))
    }

    fn rendered(edges: &[(&str, &str, &str)]) -> Vec<String> {
        check(&graph(edges)).iter().map(Problem::to_string).collect()
    }

    #[test]
    fn the_intended_order_passes() {
        let edges = [
            ("berth-kubelet", "berth-model", "normal"),
            ("berth-engine", "berth-kubelet", "normal"),
            ("berth-sim", "berth-engine", "normal"),
            ("berth-sim", "rand", "normal"),
            ("berth-control", "berth-api", "normal"),
            ("berth-control", "tokio", "normal"),
            ("xtask", "berth-testkit", "normal"),
        ];
        assert_eq!(rendered(&edges), Vec::<String>::new());
    }

    #[test]
    fn an_edge_against_the_order_fails() {
        let found = rendered(&[("berth-model", "berth-api", "normal")]);
        assert_eq!(found.len(), 1, "{found:?}");
        let start = "crates/core/model/Cargo.toml:1: [deps-order] `berth-model` must";
        assert!(found[0].starts_with(start), "{found:?}");
        assert_eq!(rendered(&[("berth-manifest", "berth-sim", "build")]).len(), 1);
    }

    #[test]
    fn test_crates_are_for_dev_dependencies_only() {
        assert_eq!(rendered(&[("berth-kubelet", "berth-testkit", "normal")]).len(), 1);
        assert_eq!(rendered(&[("berth-control", "xtask", "build")]).len(), 1);
        assert!(rendered(&[("berth-kubelet", "berth-testkit", "dev")]).is_empty());
    }

    #[test]
    fn an_unknown_crate_fails() {
        let found = rendered(&[("berth-nowhere", "berth-model", "normal")]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("`berth-nowhere` is in no ring"));
    }

    #[test]
    fn a_pure_crate_fails_on_what_it_reaches_and_says_how() {
        let found = rendered(&[
            ("berth-kubelet", "berth-model", "normal"),
            ("berth-model", "quiet", "normal"),
            ("quiet", "rand_core", "build"),
            ("rand_core", "getrandom", "normal"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/core/model/Cargo.toml:1: [deps-pure]"), "{found:?}");
        assert!(found[0].contains("randomness: berth-model → quiet → rand_core;"), "{found:?}");
    }

    #[test]
    fn dev_dependencies_of_a_pure_crate_are_free() {
        assert!(rendered(&[("berth-model", "rand", "dev")]).is_empty());
    }

    #[test]
    fn banned_names_are_whole_words() {
        for name in ["kube", "kube-client", "k8s-openapi", "rand_core", "serde_yaml", "tokio-util"]
        {
            assert!(impure(name).is_some(), "{name}");
        }
        for name in ["kubelet", "random-access", "tokiort", "hyperloglog", "serde"] {
            assert!(impure(name).is_none(), "{name}");
        }
    }

    #[test]
    fn metadata_without_its_lists_is_an_error() {
        let error = Graph::read(&json!({}), Path::new("/r")).unwrap_err();
        assert!(error.to_string().contains("workspace_members"), "{error}");
    }
}
