//! Writes the page of a made-up experiment, to look at while working on it:
//! `cargo run -p berth-web --example sample -- small > page.html`.

#![allow(clippy::print_stdout, reason = "the page is what it prints")]
#![allow(dead_code, reason = "it shares the samples with the tests and needs some of them")]

#[path = "../tests/sample/mod.rs"]
mod sample;

fn main() {
    let which = std::env::args().nth(1).unwrap_or_else(|| "small".into());
    let report = match which.as_str() {
        "big" => sample::big(),
        "hostile" => sample::hostile(),
        "small" => sample::small(),
        other => {
            sample::sparse().into_iter().find(|(name, _)| *name == other).unwrap_or_default().1
        }
    };
    let json = serde_json::to_string(&report).unwrap_or_default();
    println!("{}", berth_web::sim_page(&report.title, &json));
}
