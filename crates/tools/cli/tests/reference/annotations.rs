//! The page of labels and annotations, from the table in `berth-api`.

use std::fmt::Write as _;

use berth_api::keys::{KEYS, Section};

use crate::markdown::{code, table};

const HEAD: &str = "\
# Labels and annotations

Everything that Berth reads from or writes to objects besides their specifications. All of it is optional. An
invalid value on a pod gives the pod the condition `PodScheduled=False` with the reason `InvalidRequest`.
";

pub(crate) fn page() -> String {
    let mut text = HEAD.to_owned();
    for section in Section::ALL {
        let keys = KEYS.iter().filter(|key| key.section == section);
        let rows: Vec<Vec<String>> = keys
            .map(|key| {
                let writers: Vec<&str> = key.writers.iter().map(|writer| writer.as_str()).collect();
                vec![
                    code(key.name),
                    format!("{} of {}", key.kind.as_str(), key.objects.join(", ")),
                    key.value.to_owned(),
                    key.meaning.to_owned(),
                    writers.join(", "),
                ]
            })
            .collect();
        let head = ["key", "on", "value", "meaning", "written by"];
        let _ = write!(text, "\n## {}\n\n{}", section.title(), table(&head, &rows));
    }
    text
}
