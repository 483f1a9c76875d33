//! What happens when files of the store are removed, cut or exchanged: acknowledged writes are missed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]

use std::fs;
use std::path::{Path, PathBuf};

use berth_apiserver::{ApiServer, Options};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use tower::ServiceExt as _;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn open(directory: &Path) -> Result<ApiServer, String> {
    let options = Options { data: Some(directory.to_owned()), ..Options::default() };
    ApiServer::new(options).map_err(|error| error.to_string())
}

async fn ask(server: &ApiServer, method: &str, path: &str, body: Value) -> Value {
    let request = http::Request::builder().method(method).uri(path);
    let request = request.header("content-type", "application/json");
    let request = request.body(Full::new(Bytes::from(body.to_string()))).unwrap();
    let response = server.service().oneshot(request).await.unwrap();
    assert!(response.status().is_success(), "{}", response.status());
    let body = response.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&body).unwrap()
}

/// Writes an object; returns its revision.
async fn write(server: &ApiServer, name: &str, bytes: usize) -> u64 {
    let map = json!({ "metadata": { "name": name }, "data": { "k": "x".repeat(bytes) } });
    let made = ask(server, "POST", MAPS, map).await;
    made["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

async fn count(server: &ApiServer) -> usize {
    ask(server, "GET", MAPS, json!({})).await["items"].as_array().unwrap().len()
}

/// The newest file of a sort.
fn newest(directory: &Path, prefix: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let named = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(prefix);
    entries.filter(named).max()
}

/// A directory with four small writes at its end, with or without a snapshot before them.
struct Written {
    directory: tempfile::TempDir,
    /// The revisions of those four, and where their frames end.
    ends: Vec<(u64, u64)>,
    objects: usize,
}

async fn written(snapshot: bool) -> Written {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let server = open(at).unwrap();
    let mut objects = 0;
    while snapshot && newest(at, "snapshot-0").is_none() {
        write(&server, &format!("large-{objects}"), 900_000).await;
        objects += 1;
        assert!(objects < 100, "no snapshot");
        // A log of this size is being replaced. What is written meanwhile would be in the next one.
        while newest(at, "log-").is_some_and(|log| fs::metadata(log).unwrap().len() > 32 << 20) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
    let mut ends = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let revision = write(&server, name, 10).await;
        ends.push((revision, fs::metadata(newest(at, "log-").unwrap()).unwrap().len()));
    }
    Written { directory, ends, objects: objects + 4 }
}

#[tokio::test]
async fn a_log_that_is_removed_or_cut_is_refused_and_nothing_is_changed() {
    for snapshot in [false, true] {
        let Written { directory, ends, objects } = written(snapshot).await;
        let at = directory.path();
        let log = newest(at, "log-").unwrap();
        let whole = fs::read(&log).unwrap();
        let boundary = usize::try_from(ends[1].1).unwrap();
        let last = ends[3].0;
        let cuts =
            [(None, ends[0].0), (Some(boundary), ends[2].0), (Some(boundary - 5), ends[1].0)];
        for (cut, first) in cuts {
            match cut {
                None => fs::remove_file(&log).unwrap(),
                Some(length) => fs::write(&log, &whole[..length]).unwrap(),
            }
            // More than once: a refused start must not make the next one succeed.
            for _ in 0..2 {
                let Err(refused) = open(at) else { panic!("{cut:?} was not noticed") };
                let name = log.file_name().unwrap().to_str().unwrap();
                assert!(refused.contains(name) && refused.contains("Restore"), "{refused}");
                // Without a snapshot the first objects of a cluster are in the log, too.
                let first = if cut.is_none() && !snapshot { 2 } else { first };
                let range = format!("acknowledged revisions {first} to {last} are lost");
                assert!(refused.contains(&range), "{range}: {refused}");
                let left = cut.map(|length| length as u64);
                assert_eq!(fs::metadata(&log).ok().map(|found| found.len()), left);
            }
            fs::write(&log, &whole).unwrap();
            assert_eq!(count(&open(at).unwrap()).await, objects);
        }
        // Without the mark the store opens with what is there.
        fs::write(&log, &whole[..boundary]).unwrap();
        fs::remove_file(at.join("acknowledged")).unwrap();
        assert_eq!(count(&open(at).unwrap()).await, objects - 2);
    }
}

#[tokio::test]
async fn files_of_another_cluster_are_refused() {
    let (one, other) = (written(true).await, written(true).await);
    for prefix in ["log-", "snapshot-0"] {
        let [ours, theirs] = [&one, &other].map(|it| newest(it.directory.path(), prefix).unwrap());
        assert_eq!(ours.file_name(), theirs.file_name());
        let whole = fs::read(&ours).unwrap();
        fs::copy(&theirs, &ours).unwrap();
        let refused = open(one.directory.path()).err().unwrap();
        let name = ours.file_name().unwrap().to_str().unwrap();
        assert!(refused.contains(name) && refused.contains("does not match"), "{refused}");
        fs::write(&ours, whole).unwrap();
    }
    let snapshot = newest(one.directory.path(), "snapshot-0").unwrap();
    let whole = fs::read(&snapshot).unwrap();
    fs::remove_file(&snapshot).unwrap();
    let refused = open(one.directory.path()).err().unwrap();
    assert!(refused.contains("missing"), "{refused}");
    fs::write(&snapshot, whole).unwrap();
    let mark = one.directory.path().join("acknowledged");
    fs::write(&mark, b"BERTHAK1 and nothing else").unwrap();
    let refused = open(one.directory.path()).err().unwrap();
    assert!(refused.contains("checksum") && refused.contains("delete"), "{refused}");
}
