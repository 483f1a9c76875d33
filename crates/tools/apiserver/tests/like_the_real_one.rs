//! The same requests to the embedded API and to a real kube-apiserver: code, reason, message and
//! body must be the same.
//!
//! Where there is no kube-apiserver, the answers that one of version 1.36.4 has given are taken from
//! `vectors/`; `BERTH_RECORD=1` writes them anew.
#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

mod common;
mod steps;

use std::path::PathBuf;

use berth_apiserver::{ApiServer, Options};
use common::compare::{Answer, Asked, Step, differences};
use common::real::{ADMIN_TOKEN, RealControlPlane};
use kube::Client;
use serde_json::{Value, json};

fn vectors() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/kube-apiserver-1.36.4.json")
}

/// What the real one answers, asked now or recorded.
enum Real {
    /// The last is only kept so that it runs on.
    Asked {
        asked: Box<Asked>,
        seen: Vec<Value>,
        _plane: RealControlPlane,
    },
    Recorded(Vec<Value>),
}

impl Real {
    async fn start() -> Self {
        if let Some(plane) = RealControlPlane::start().await {
            let asked = Asked::new(plane.client(ADMIN_TOKEN));
            return Self::Asked { asked: Box::new(asked), seen: Vec::new(), _plane: plane };
        }
        let text = std::fs::read_to_string(vectors()).unwrap();
        Self::Recorded(serde_json::from_str(&text).unwrap())
    }

    async fn answer(&mut self, at: usize, step: &Step) -> Answer {
        match self {
            Self::Asked { asked, seen, .. } => {
                let answer = asked.ask(step).await;
                seen.push(json!({
                    "title": step.title,
                    "code": answer.code,
                    "body": answer.body,
                }));
                answer
            }
            Self::Recorded(recorded) => {
                let entry = &recorded[at];
                assert_eq!(entry["title"], step.title, "record the answers anew");
                let code = u16::try_from(entry["code"].as_u64().unwrap()).unwrap();
                Answer { code, body: entry["body"].clone() }
            }
        }
    }

    fn finish(self) {
        if let Self::Asked { seen, .. } = self
            && std::env::var_os("BERTH_RECORD").is_some()
        {
            let lines: Vec<String> = seen.iter().map(Value::to_string).collect();
            std::fs::create_dir_all(vectors().parent().unwrap()).unwrap();
            std::fs::write(vectors(), format!("[\n{}\n]\n", lines.join(",\n"))).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_is_the_real_one() {
    // Namespaces are emptied by a controller, which the real one does not have here.
    let options = Options { empty_namespaces: false, ..Options::default() };
    let server = ApiServer::new(options).unwrap();
    let mut ours = Asked::new(Client::new(server.service(), "default"));
    let mut real = Real::start().await;
    let mut failures = Vec::new();
    let steps = steps::all();
    for (at, step) in steps.iter().enumerate() {
        let mine = ours.ask(step).await;
        let theirs = real.answer(at, step).await;
        let mut found = Vec::new();
        if mine.code != theirs.code {
            found.push(format!("code: ours {}, real {}", mine.code, theirs.code));
        }
        differences("", &mine.body, &theirs.body, &mut found);
        if !found.is_empty() {
            failures.push(format!(
                "{} ({} {})\n    {}",
                step.title,
                step.method,
                step.path,
                found.join("\n    ")
            ));
        }
    }
    real.finish();
    assert!(
        failures.is_empty(),
        "{} of {} answers differ:\n{}",
        failures.len(),
        steps.len(),
        failures.join("\n")
    );
}
