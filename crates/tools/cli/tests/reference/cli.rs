//! The page of the command line, from clap's tree of commands.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::{Arg, Command};

use crate::markdown::{anchor, code, table};

const HEAD: &str = "\
# Command line

Every command has `--help`. Exit codes: 0; 1 for findings or pods without a place; 2 for invalid arguments or
input. `explain`, `queue` and `nodes` return 0 or 1, as kubectl. Called as `kubectl-berth`, the program is a
kubectl plugin.

";

/// Options that several commands have, by heading.
type Shared = BTreeMap<String, String>;

pub(crate) fn page(mut program: Command) -> String {
    program.build();
    let mut text = HEAD.to_owned();
    let commands: Vec<Vec<String>> = visible(&program)
        .map(|one| {
            let name = format!("{} {}", program.get_name(), one.get_name());
            vec![format!("[`{name}`](#{})", anchor(&name)), about(one)]
        })
        .collect();
    text += &table(&["command", ""], &commands);
    let mut shared = Shared::new();
    for command in visible(&program) {
        section(command, program.get_name(), 2, &mut text, &mut shared);
    }
    for (heading, options) in shared {
        let _ = write!(text, "\n## {heading} options\n\n{options}");
    }
    text
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|one| !one.is_hide_set() && one.get_name() != "help")
}

fn about(command: &Command) -> String {
    command.get_about().expect("a command has a help text").to_string()
}

fn section(command: &Command, parent: &str, level: usize, text: &mut String, shared: &mut Shared) {
    let name = format!("{parent} {}", command.get_name());
    let long = command.get_long_about().map_or_else(|| about(command), ToString::to_string);
    let _ = write!(text, "\n{} {name}\n\n{long}\n", "#".repeat(level));
    let usage = command.clone().bin_name(&name).render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim();
    let _ = write!(text, "\n```text\n{}\n```\n", usage.replace("\n       ", "\n"));

    let mut own = Vec::new();
    let mut grouped: BTreeMap<&str, Vec<Vec<String>>> = BTreeMap::new();
    for argument in command.get_arguments() {
        if argument.is_hide_set() || matches!(argument.get_id().as_str(), "help" | "version") {
            continue;
        }
        match argument.get_help_heading() {
            Some(heading) => grouped.entry(heading).or_default().push(row(argument)),
            None => own.push(row(argument)),
        }
    }
    let head = ["argument", "effect"];
    if !own.is_empty() {
        let _ = write!(text, "\n{}", table(&head, &own));
    }
    for (heading, rows) in grouped {
        let title = format!("{heading} options");
        let _ = write!(text, "\nAnd the [{}](#{}).\n", title.to_lowercase(), anchor(&title));
        let options = table(&head, &rows);
        let known = shared.entry(heading.to_owned()).or_insert_with(|| options.clone());
        assert_eq!(*known, options, "{name}: all commands have the same {title}");
    }
    if let Some(examples) = command.get_after_help() {
        let examples = examples.to_string();
        let lines = examples.lines().skip(1).map(|line| line.strip_prefix("  ").unwrap_or(line));
        let _ = write!(text, "\n```sh\n{}\n```\n", lines.collect::<Vec<_>>().join("\n").trim_end());
    }
    for one in visible(command) {
        section(one, &name, level + 1, text, shared);
    }
}

fn row(argument: &Arg) -> Vec<String> {
    let takes_value = argument.get_action().takes_values();
    let value = argument.get_value_names().filter(|_| takes_value).and_then(<[_]>::first);
    let value = value.map_or(String::new(), |name| {
        if argument.is_positional() { name.to_string() } else { format!(" {name}") }
    });
    let short = argument.get_short().map(|short| format!("-{short}"));
    let long = argument.get_long().map(|long| format!("--{long}"));
    let alias = argument.get_visible_aliases().unwrap_or_default();
    let alias = alias.into_iter().map(|alias| format!("--{alias}"));
    let mut names: Vec<String> = short.into_iter().chain(long).chain(alias).collect();
    match names.last_mut() {
        Some(last) => last.push_str(&value),
        None => names.push(value),
    }
    let names: Vec<String> = names.iter().map(|name| code(name)).collect();
    vec![names.join(", "), effect(argument, takes_value)]
}

fn effect(argument: &Arg, takes_value: bool) -> String {
    let id = argument.get_id();
    let help = argument.get_long_help().or(argument.get_help());
    let mut text = help.unwrap_or_else(|| panic!("{id} has no help text")).to_string();
    if !takes_value {
        return text;
    }
    let values = argument.get_possible_values();
    let values: Vec<_> = values.iter().filter(|value| !value.is_hide_set()).collect();
    if !values.is_empty() {
        let described = values.iter().map(|value| match value.get_help() {
            Some(help) => format!("{} ({})", code(value.get_name()), lowercase(&help.to_string())),
            None => code(value.get_name()),
        });
        let _ = write!(text, ". One of {}", described.collect::<Vec<_>>().join(", "));
    }
    let defaults = argument.get_default_values();
    if !defaults.is_empty() && !argument.is_hide_default_value_set() {
        let shown: Vec<String> = defaults.iter().map(|one| code(&one.to_string_lossy())).collect();
        let _ = write!(text, ". Default: {}", shown.join(", "));
    }
    if let Some(variable) = argument.get_env() {
        let _ = write!(text, ". Environment: {}", code(&variable.to_string_lossy()));
    }
    text
}

/// A word such as GPU or NUMA keeps its case.
fn lowercase(text: &str) -> String {
    let mut letters = text.chars();
    match (letters.next(), letters.next()) {
        (Some(first), Some(second)) if second.is_lowercase() => {
            first.to_lowercase().chain(text.chars().skip(1)).collect()
        }
        _ => text.to_owned(),
    }
}
