//! Changing text in place.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use berth_api::FieldPath;
use berth_manifest::edit::{Edit, apply, apply_all};
use berth_manifest::{Source, read};
use serde_json::{Value, json};

fn set(path: &str, value: Value) -> Edit {
    Edit::Set { path: FieldPath::parse(path), value }
}

fn remove(path: &str) -> Edit {
    Edit::Remove { path: FieldPath::parse(path) }
}

fn insert(path: &str, value: Value) -> Edit {
    Edit::Insert { path: FieldPath::parse(path), value }
}

fn edited(text: &str, edits: &[Edit]) -> Result<String, String> {
    let document = &read(&Source::new("f.yaml", text)).unwrap()[0];
    apply(document, edits).map_err(|problem| problem.to_string())
}

const POD: &str = "\
# A pod.
kind: Pod   # what it is
metadata:
  name: \"web\"
  labels: {team: 'a', tier: b}
spec:
  # Its containers.
  containers:
  - name: c   # the first
    image: web:1

    resources:
      limits:
        cpu: 500m # half
        nvidia.com/gpu: \"1\"
  - name: d
    args: [a, b]
    env:
    - name: E
      value: |
        one
        two
  tolerations: []
  nodeSelector:
  priority: 7
# The end.
";

/// The lines that differ: `-old` and `+new`.
fn difference(before: &str, after: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let prefix = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let rest = old.len().min(new.len()) - prefix;
    let pairs = old.iter().rev().zip(new.iter().rev());
    let suffix = pairs.take(rest).take_while(|(old, new)| old == new).count();
    let gone = old[prefix..old.len() - suffix].iter().map(|line| format!("-{line}"));
    let come = new[prefix..new.len() - suffix].iter().map(|line| format!("+{line}"));
    gone.chain(come).collect::<Vec<String>>().join("\n")
}

fn check(edit: Edit, wanted: &str) {
    let after = edited(POD, std::slice::from_ref(&edit)).unwrap_or_else(|why| why);
    assert_eq!(difference(POD, &after), wanted, "{edit:?}\n{after}");
}

#[test]
fn only_what_is_meant_changes() {
    for (edit, wanted) in [
        (set("metadata.name", json!("api")), "-  name: \"web\"\n+  name: \"api\""),
        (set("spec.priority", json!(8)), "-  priority: 7\n+  priority: 8"),
        (
            set("spec.containers[0].resources.limits.cpu", json!("1")),
            "-        cpu: 500m # half\n+        cpu: \"1\" # half",
        ),
        (set("spec.containers[0].resources.limits.memory", json!("1Gi")), "+        memory: 1Gi"),
        (
            set("spec.containers[0].resources.requests", json!({"cpu": 1, "a/b": "yes"})),
            "+      requests:\n+        a/b: \"yes\"\n+        cpu: 1",
        ),
        (
            set("spec.containers[1].resources.limits.cpu", json!(2)),
            "+    resources:\n+      limits:\n+        cpu: 2",
        ),
        (
            set("metadata.labels.team", json!("it")),
            "-  labels: {team: 'a', tier: b}\n+  labels: {team: 'it', tier: b}",
        ),
        (
            set("metadata.labels.[berth.dev/class]", json!("batch")),
            "-  labels: {team: 'a', tier: b}\n+  labels: {team: 'a', tier: b, berth.dev/class: batch}",
        ),
        (set("metadata.annotations", json!({"a": "1"})), "+  annotations:\n+    a: \"1\""),
        (set("spec.nodeSelector.pool", json!("gpu")), "+    pool: gpu"),
        (
            set("spec.tolerations", json!([{"key": "g", "operator": "Exists"}])),
            "-  tolerations: []\n+  tolerations:\n+  - key: g\n+    operator: Exists",
        ),
        (
            set("spec.tolerations[0].key", json!("g")),
            "-  tolerations: []\n+  tolerations:\n+  - key: g",
        ),
    ] {
        check(edit, wanted);
    }
}

#[test]
fn items_come_where_they_are_meant_and_what_goes_takes_its_lines_along() {
    for (edit, wanted) in [
        (
            insert("spec.tolerations[0]", json!({"key": "g"})),
            "-  tolerations: []\n+  tolerations:\n+  - key: g",
        ),
        (
            insert("spec.containers[0]", json!({"name": "z", "args": ["x"]})),
            "+  - args:\n+    - x\n+    name: z",
        ),
        (insert("spec.containers[2]", json!({"name": "z"})), "+  - name: z"),
        (
            insert("spec.containers[1].args[1]", json!("x y")),
            "-    args: [a, b]\n+    args: [a, \"x y\", b]",
        ),
        (
            insert("spec.containers[1].args[2]", json!("-x")),
            "-    args: [a, b]\n+    args: [a, b, \"-x\"]",
        ),
        (
            set("spec.containers[1].env[0].value", json!("three")),
            "-      value: |\n-        one\n-        two\n+      value: three",
        ),
        (
            remove("spec.containers[1].env"),
            "-    env:\n-    - name: E\n-      value: |\n-        one\n-        two",
        ),
        (
            remove("spec.containers[1].env[0].name"),
            "-    - name: E\n-      value: |\n+    - value: |",
        ),
        (
            remove("spec.containers[1].env[0]"),
            "-    env:\n-    - name: E\n-      value: |\n-        one\n-        two\n+    env: []",
        ),
        (remove("spec.containers[1].args[0]"), "-    args: [a, b]\n+    args: [b]"),
        (remove("spec.containers[1].args[1]"), "-    args: [a, b]\n+    args: [a]"),
        (remove("metadata.labels.tier"), "-  labels: {team: 'a', tier: b}\n+  labels: {team: 'a'}"),
        (remove("metadata.labels.team"), "-  labels: {team: 'a', tier: b}\n+  labels: {tier: b}"),
        (remove("spec.priority"), "-  priority: 7"),
        (
            set(
                "spec.containers[0].resources",
                json!({"limits": {"cpu": "500m", "nvidia.com/gpu": "2"}}),
            ),
            "-        nvidia.com/gpu: \"1\"\n+        nvidia.com/gpu: \"2\"",
        ),
        (
            set("spec.containers[0].resources.limits.cpu", json!({"a": 1})),
            "-        cpu: 500m # half\n+        cpu: # half\n+          a: 1",
        ),
        (set("spec.priority", json!(7)), ""),
    ] {
        check(edit, wanted);
    }
}

#[test]
fn edits_build_on_each_other() {
    let edits = [
        set("spec.containers[0].resources.requests.cpu", json!(1)),
        set("spec.containers[0].resources.requests.memory", json!("1Gi")),
        remove("spec.containers[0].resources.limits"),
        insert("spec.containers[0].ports[0]", json!({"containerPort": 80})),
    ];
    let document_with_ports =
        POD.replace("    image: web:1\n", "    image: web:1\n    ports: []\n");
    let after = edited(&document_with_ports, &edits).unwrap();
    let wanted = "\
-    ports: []
-
-    resources:
-      limits:
-        cpu: 500m # half
-        nvidia.com/gpu: \"1\"
+    ports:
+    - containerPort: 80
+
+    resources:
+      requests:
+        cpu: 1
+        memory: 1Gi";
    assert_eq!(difference(&document_with_ports, &after), wanted);
}

#[test]
fn habits_of_the_text_are_kept() {
    let wide = "a:\r\n    b: 1\r\nlist:\r\n    - x\r\n";
    let after = edited(wide, &[set("a.c.d", json!(["z"]))]).unwrap();
    assert_eq!(
        after,
        "a:\r\n    b: 1\r\n    c:\r\n        d:\r\n            - z\r\nlist:\r\n    - x\r\n"
    );
    let no_end = "a: 1\nb: 2";
    assert_eq!(edited(no_end, &[set("c", json!(3))]).unwrap(), "a: 1\nb: 2\nc: 3");
    assert_eq!(edited(no_end, &[remove("b")]).unwrap(), "a: 1");
    let json = "{\n  \"a\": {\n    \"b\": 1\n  },\n  \"c\": [1]\n}\n";
    assert_eq!(
        edited(json, &[set("a.x", json!("y")), set("c[1]", json!({"d": null}))]).unwrap(),
        "{\n  \"a\": {\n    \"b\": 1,\n    \"x\": \"y\"\n  },\n  \"c\": [1, {\"d\":null}]\n}\n"
    );
}

#[test]
fn several_objects_of_one_text_change_at_once() {
    let text = "a: 1 # one\n---\nkind: List\nitems:\n- a: 2\n- a: 3\n---\na: 4\n";
    let edits: Vec<(usize, Edit)> = (0..4).map(|at| (at, set("a", json!(at)))).collect();
    let after = apply_all(&Source::new("f", text), &edits).unwrap();
    assert_eq!(after, "a: 0 # one\n---\nkind: List\nitems:\n- a: 1\n- a: 2\n---\na: 3\n");
    let document = &read(&Source::new("f", text)).unwrap()[2];
    let after = apply(document, &[set("b", json!(9))]).unwrap();
    assert_eq!(after, "a: 1 # one\n---\nkind: List\nitems:\n- a: 2\n- a: 3\n  b: 9\n---\na: 4\n");
}

#[test]
fn what_cannot_be_done_is_refused_with_a_place() {
    for (text, edit, says) in [
        (
            "a: &x {b: 1}\nc: *x\n",
            set("a.b", json!(2)),
            "f.yaml:1:11: object: a.b: cannot be changed in place",
        ),
        ("a: &x {b: 1}\nc: *x\n", set("c.b", json!(2)), "cannot be changed in place"),
        ("a: 1\n", remove("b"), "b: there is no such field"),
        ("a: 1\n", set("a.b", json!(2)), "is no map"),
        ("a: [1]\n", set("a[3]", json!(2)), "there is no item 3"),
        ("a: [1]\n", insert("a[3]", json!(2)), "nothing of this kind"),
        ("a: 1\n", remove(""), "the object itself stays"),
    ] {
        let why = edited(text, &[edit]).unwrap_err();
        assert!(why.contains(says), "{text}: {why}");
    }
}
