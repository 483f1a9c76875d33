//! The page in a real browser: no complaints, no requests, and everything moves as it should.
//!
//! Without chromium these tests do nothing and say so; `BERTH_BROWSER=required` makes that a failure.
//! `BERTH_CHROMIUM` names another browser, `BERTH_SCREENSHOTS` a directory for pictures to look at.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "a test")]

mod chromium;
mod sample;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use berth_sim::report::Report;
use chromium::Tab;
use serde_json::{Value, json};

/// A browser in which the page of a report can be loaded.
struct Visit {
    tab: Tab,
    dir: PathBuf,
}

impl Visit {
    /// None, with a word about it, where there is no browser.
    fn begin(name: &str) -> Option<Self> {
        let Some(program) = chromium::program() else {
            let required = std::env::var("BERTH_BROWSER").is_ok_and(|value| value == "required");
            assert!(!required, "no chromium on this machine; install it (apt install chromium)");
            // Past the test harness, which keeps what passing tests print to itself.
            let said =
                "no chromium on this machine, so the page was not tried (apt install chromium)";
            let _ = writeln!(std::io::stderr(), "SKIPPED {name}: {said}");
            return None;
        };
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        let tab = Tab::open(&program, &dir.join("profile"));
        Some(Self { tab, dir })
    }

    /// Loads the page and holds it to what must be true of every page.
    fn load(&mut self, name: &str, report: &Report) {
        let file = self.dir.join(format!("{name}.html"));
        let json = serde_json::to_string(report).unwrap();
        fs::write(&file, berth_web::sim_page(&report.title, &json)).unwrap();
        self.tab.load(&file);
        self.tab.ask("1");
        self.check(name);
    }

    fn check(&mut self, name: &str) {
        assert_eq!(self.tab.complaints, Vec::<String>::new(), "{name}");
        let elsewhere: Vec<&String> = self
            .tab
            .requests
            .iter()
            .filter(|url| !(url.starts_with("file://") && url.ends_with(".html")))
            .filter(|url| !url.starts_with("data:"))
            .collect();
        assert_eq!(elsewhere, Vec::<&String>::new(), "{name}");
    }

    /// Nothing is wider than the window, in neither scheme; a picture is kept if somebody asked.
    fn measure(&mut self, name: &str, widths: &[u32]) {
        for &width in widths {
            for scheme in ["light", "dark"] {
                self.tab.resize(width, 900, scheme);
                let sizes = self.tab.ask("[document.documentElement.scrollWidth, innerWidth]");
                assert!(sizes[0].as_u64() <= sizes[1].as_u64(), "{name} at {width}: {sizes}");
                self.picture(&format!("{name}-{width}-{scheme}"), width);
            }
        }
    }

    fn picture(&mut self, name: &str, width: u32) {
        let Ok(dir) = std::env::var("BERTH_SCREENSHOTS") else { return };
        let height = self.tab.ask("document.documentElement.scrollHeight");
        let clip = json!({"x": 0, "y": 0, "width": width, "height": height, "scale": 1});
        let about = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let shot = self.tab.call("Page.captureScreenshot", about);
        let data = decode(shot["data"].as_str().unwrap());
        fs::create_dir_all(&dir).unwrap();
        fs::write(Path::new(&dir).join(format!("{name}.png")), data).unwrap();
    }

    fn ask(&mut self, expression: &str) -> Value {
        self.tab.ask(expression)
    }

    /// Moves the slider as a hand would.
    fn slide(&mut self, part: f64) {
        self.ask(&format!(
            "(() => {{ const m = document.getElementById('moment'); m.value = m.max * {part}; \
             m.dispatchEvent(new Event('input', {{ bubbles: true }})); }})()"
        ));
    }

    /// The middle of the first element that matches, in the window.
    fn middle(&mut self, selector: &str) -> (f64, f64) {
        let at = self.ask(&format!(
            "(() => {{ const e = document.querySelector({selector:?}); \
             e.scrollIntoView({{ block: 'center', behavior: 'instant' }}); \
             const r = e.getBoundingClientRect(); \
             return [r.x + r.width / 2, r.y + r.height / 2]; }})()"
        ));
        (at[0].as_f64().unwrap(), at[1].as_f64().unwrap())
    }
}

/// Base64, as the protocol sends pictures.
fn decode(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = Vec::new();
    let (mut bits, mut held) = (0_u32, 0);
    for byte in text.bytes().filter(|byte| *byte != b'=') {
        let digit = DIGITS.iter().position(|d| *d == byte).unwrap() as u32;
        bits = bits << 6 | digit;
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
        }
    }
    out
}

const PARTS: &str = "[...document.querySelectorAll('.part')].map(p => p.ariaLabel).join()";

#[test]
fn a_small_cluster_reads_and_moves() {
    let Some(mut visit) = Visit::begin("small") else { return };
    visit.tab.resize(1280, 900, "light");
    let report = sample::small();
    visit.load("small", &report);
    assert_eq!(visit.ask("document.querySelectorAll('.node').length"), 12, "under both");
    assert_eq!(visit.ask("document.querySelectorAll('.chart').length"), 7);
    let goals = visit.ask("document.getElementById('comparison-table').innerText");
    assert!(goals.as_str().unwrap().contains("32 of 48"), "{goals}");
    assert_eq!(
        visit.ask("document.getElementById('facts').innerText.includes('18446744073709551557')"),
        true
    );

    visit.slide(0.25);
    let early = visit.ask(PARTS);
    visit.slide(0.6);
    let late = visit.ask(PARTS);
    assert_ne!(early, late, "the slider moves the map");
    visit.slide(0.25);
    assert_eq!(visit.ask(PARTS), early, "and back");
    assert_eq!(visit.ask("document.getElementById('moment-text').textContent"), "day 22, 12:00");

    visit.ask("document.getElementById('later').click()");
    assert_ne!(visit.ask(PARTS), early, "a step is a change");
    visit.ask("document.getElementById('play').click()");
    let from = visit.ask("Number(document.getElementById('moment').value)").as_f64();
    visit.ask("new Promise(r => setTimeout(r, 300))");
    let to = visit.ask("Number(document.getElementById('moment').value)").as_f64();
    assert!(to > from, "playing: {from:?} to {to:?}");
    visit.ask("document.getElementById('play').click()");

    visit.measure("small", &[1280, 400]);
    visit.check("small");
}

/// Who is on the map at a moment is who should be by the data.
#[test]
fn the_map_tells_the_truth() {
    let Some(mut visit) = Visit::begin("truth") else { return };
    visit.tab.resize(1280, 900, "light");
    let mut report = sample::small();
    report.runs.truncate(1);
    visit.load("truth", &report);
    for part in [0.999, 0.1, 0.11, 0.5, 0.05, 0.95] {
        visit.slide(part);
        let now = visit.ask("Number(document.getElementById('moment').value)").as_i64().unwrap();
        let mut expected: Vec<String> = report.runs[0]
            .stays
            .iter()
            .filter(|stay| stay.from_ms <= now && now < stay.to_ms)
            .map(|stay| format!("{}.{}", stay.workload, stay.pod))
            .collect();
        expected.sort();
        let shown = visit.ask(
            "[...new Set([...document.querySelectorAll('.part')].map(p => p.dataset.stay))].sort()",
        );
        assert_eq!(shown, json!(expected), "at {now}");
    }
}

#[test]
fn charts_answer_to_pointer_and_keys() {
    let Some(mut visit) = Visit::begin("charts") else { return };
    visit.tab.resize(1280, 900, "dark");
    visit.load("charts", &sample::small());
    let (x, y) = visit.middle(".plot");
    visit.tab.point(x, y);
    let tip = visit.ask("document.getElementById('tip').innerText");
    assert!(tip.as_str().unwrap().contains("kube-scheduler"), "{tip}");
    let before = visit.ask("document.getElementById('moment').value");
    visit.tab.drag(x + 60.0, y, 0.0);
    assert_ne!(
        visit.ask("document.getElementById('moment').value"),
        before,
        "a click sets the map"
    );

    let shown = "document.getElementById('chart-controls').innerText";
    assert!(!visit.ask(shown).as_str().unwrap().contains("Whole time"));
    visit.tab.drag(x - 100.0, y, 60.0);
    let close = visit.ask(shown);
    assert!(close.as_str().unwrap().contains("Whole time"), "dragging looks closer: {close}");

    visit.ask("document.querySelector('.plot').focus()");
    visit.tab.press("Home", 36);
    let first = visit.ask("document.getElementById('tip').innerText");
    visit.tab.press("ArrowRight", 39);
    let second = visit.ask("document.getElementById('tip').innerText");
    assert_ne!(first, second);
    assert!(first.as_str().unwrap().starts_with("day "), "{first}");
    let (x, y) = visit.middle(".part");
    visit.tab.point(x, y);
    let tip = visit.ask("document.getElementById('tip').innerText");
    assert!(tip.as_str().unwrap().contains("Workload"), "{tip}");
    visit.check("charts");
}

#[test]
fn nodes_and_workloads_are_found() {
    let Some(mut visit) = Visit::begin("search") else { return };
    visit.tab.resize(1280, 900, "light");
    let mut report = sample::small();
    report.runs.truncate(1);
    visit.load("search", &report);
    visit.slide(0.5);
    let mut find = |text: &str| {
        visit.ask(&format!(
            "(async () => {{ const i = document.querySelector('[type=search]'); i.value = {text:?}; \
             i.dispatchEvent(new Event('input')); await new Promise(r => setTimeout(r, 250)); }})()"
        ));
        let parts = "p => [...document.querySelectorAll(p)].length";
        visit.ask(&format!("['.node', '.part', '.part.dim'].map({parts})"))
    };
    let all = find("");
    assert_eq!((&all[0], &all[2]), (&json!(6), &json!(0)), "{all}");
    assert_eq!(find("A100-1")[0], 1, "a node, however it is spelt");
    assert_eq!(find("zone-b")[0], 3);
    let workload = find("research");
    assert_eq!(workload[0], 6, "workloads are looked for on all nodes");
    let (parts, dim) = (workload[1].as_u64().unwrap(), workload[2].as_u64().unwrap());
    assert!(0 < dim && dim < parts, "{workload}");
    assert_eq!(find("nobody")[2], 0);
    visit.check("search");
}

#[test]
fn a_big_cluster_stays_quick() {
    let Some(mut visit) = Visit::begin("big") else { return };
    visit.tab.resize(1280, 900, "light");
    let report = sample::big();
    let stays: usize = report.runs.iter().map(|run| run.stays.len()).sum();
    assert!(report.nodes.len() == 1_213 && stays > 150_000, "{stays}");
    visit.load("big", &report);
    let ink = "document.querySelector('canvas').toDataURL()";
    visit.slide(0.3);
    let early = visit.ask(ink);
    visit.slide(0.7);
    assert!(visit.ask(ink) != early, "the slider moves the map");
    visit.slide(0.3);
    assert!(visit.ask(ink) == early, "and back");
    // Jumps across the whole time, each drawn before the next.
    let each_ms = visit.ask(
        "(async () => { const m = document.getElementById('moment'); const t = performance.now(); \
         for (let i = 0; i < 20; i += 1) { m.value = m.max * (i % 2 ? 0.9 : 0.1); \
         m.dispatchEvent(new Event('input')); await new Promise(r => requestAnimationFrame(() => setTimeout(r))); } \
         return (performance.now() - t) / 20; })()",
    );
    eprintln!("a jump across {stays} stays on 1,213 nodes takes {each_ms} ms");
    assert!(each_ms.as_f64().unwrap() < 500.0, "{each_ms} ms for a jump");

    visit.ask("document.querySelector('canvas').focus()");
    visit.tab.press("ArrowRight", 39);
    assert_eq!(visit.ask("document.querySelectorAll('.detail .node').length"), 1);
    visit.measure("big", &[1280, 400]);
    visit.check("big");
}

#[test]
fn names_that_are_markup_stay_names() {
    let Some(mut visit) = Visit::begin("hostile") else { return };
    visit.tab.resize(1280, 900, "light");
    let report = sample::hostile();
    visit.load("hostile", &report);
    assert_eq!(visit.ask("document.title"), json!(report.title));
    assert_eq!(visit.ask("document.querySelectorAll('img, script').length"), 2, "the page's own");
    assert_eq!(
        visit.ask("document.querySelector('.node h3').textContent"),
        json!(report.nodes[0].name)
    );
    visit.measure("hostile", &[1280, 400]);
    visit.check("hostile");
}

#[test]
fn what_is_missing_is_left_out() {
    let Some(mut visit) = Visit::begin("sparse") else { return };
    for (name, report) in sample::sparse() {
        visit.tab.resize(1280, 900, "light");
        visit.load(name, &report);
        visit.measure(name, &[1280, 400]);
        visit.check(name);
        let left = visit.ask("[...document.querySelectorAll('nav a')].filter(a => document.querySelector(a.hash).hidden).length");
        assert_eq!(left, 0, "{name}: contents name only what is there");
    }
    let file = visit.dir.join("broken.html");
    fs::write(&file, berth_web::sim_page("Broken", "{\"title\": ")).unwrap();
    visit.tab.load(&file);
    let text = visit.ask("document.querySelector('h1').textContent");
    assert_eq!(text, "Invalid report");
    visit.check("broken");
}
