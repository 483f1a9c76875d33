//! Input that does not fit a transcript: very long, empty or missing.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn directory(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    drop(fs::remove_dir_all(&path));
    fs::create_dir_all(&path).unwrap();
    path
}

fn berth(arguments: &[&str], from: &PathBuf) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.args(arguments).current_dir(from).stdin(Stdio::null()).output().unwrap()
}

fn result_of(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn pods(count: usize, quota_of_last: &str) -> String {
    let mut text = String::new();
    for index in 0..count {
        let memory = if index + 1 == count { quota_of_last } else { "1Gi" };
        let _ = write!(
            text,
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: pod-{index}}}\nspec:\n  containers:\n  \
             - name: c\n    image: web:v1\n    resources: {{limits: {{memory: {memory}}}}}\n"
        );
    }
    text
}

#[test]
fn ten_thousand_documents_are_read_and_the_last_is_checked_too() {
    let directory = directory("many");
    fs::write(directory.join("pods.yaml"), pods(10_000, "1Gi")).unwrap();
    let (code, out, _) = result_of(&berth(&["lint", "pods.yaml"], &directory));
    assert_eq!((code, out.as_str()), (Some(0), "no findings in 10000 objects of 1 file\n"));

    fs::write(directory.join("pods.yaml"), pods(10_000, "1Gib")).unwrap();
    let (code, out, error) = result_of(&berth(&["lint", "pods.yaml"], &directory));
    assert_eq!((code, out.as_str()), (Some(2), ""));
    let place = "pods.yaml:90000:34: Pod pod-9999: spec.containers[0].resources.limits.memory: ";
    assert!(error.contains(place), "{error}");
}

#[test]
fn a_directory_without_manifests_is_an_error() {
    let directory = directory("empty");
    fs::create_dir(directory.join("nothing")).unwrap();
    let (code, out, error) = result_of(&berth(&["lint", "nothing"], &directory));
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(error.starts_with("error: nothing: no .yaml"), "{error}");
}

#[test]
fn nothing_is_fixed_if_one_file_is_invalid() {
    let directory = directory("half");
    let quota = "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: q}\nspec:\n  hard:\n    \
                 requests.nvidia.com/gpu: 1\n    limits.nvidia.com/gpu: 1\n";
    fs::write(directory.join("a.yaml"), quota).unwrap();
    fs::write(directory.join("b.yaml"), "apiVersion: v1\nkind: [\n").unwrap();
    let (code, ..) = result_of(&berth(&["lint", "--fix", "."], &directory));
    assert_eq!(code, Some(2));
    assert_eq!(fs::read_to_string(directory.join("a.yaml")).unwrap(), quota);
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 2);
}

fn piped(arguments: &[&str], text: &str) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    result_of(&child.wait_with_output().unwrap())
}

#[test]
fn standard_input_is_read_but_not_fixed() {
    let text =
        pods(1, "1Gi").replace("limits", "requests").replace("memory: 1Gi", "nvidia.com/gpu: 1");
    let (code, out, _) = piped(&["lint", "-"], &text);
    assert_eq!(code, Some(1));
    assert!(out.contains("--> <stdin>:9:5\n"), "{out}");
    let (code, out, error) = piped(&["lint", "--fix", "-"], &text);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(error.contains("standard input cannot be fixed in place"), "{error}");
}

#[test]
fn a_file_that_is_named_twice_is_checked_and_fixed_once() {
    let directory = directory("twice");
    let quota = "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: q}\nspec:\n  hard:\n    \
                 requests.nvidia.com/gpu: 1\n    limits.nvidia.com/gpu: 1\n";
    fs::write(directory.join("a.yaml"), quota).unwrap();
    let (code, out, _) = result_of(&berth(&["lint", "--fix", "a.yaml", "a.yaml"], &directory));
    assert_eq!((code, out.as_str()), (Some(0), "no findings in 1 object of 1 file\n"));
}

#[test]
fn colours_are_used_only_on_request() {
    let directory = directory("colours");
    fs::write(directory.join("pod.yaml"), pods(1, "1Gi").replace("web:v1", "web")).unwrap();
    let (_, plain, _) = result_of(&berth(&["lint", "pod.yaml"], &directory));
    let (_, coloured, _) =
        result_of(&berth(&["lint", "--color", "always", "pod.yaml"], &directory));
    assert!(!plain.contains('\u{1b}') && coloured.contains("\u{1b}[1;33m"), "{plain}");
}
