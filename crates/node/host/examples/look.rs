//! What is read of a machine, and how long it takes; given a directory too, it is recorded there:
//! `cargo run -p berth-host --example look -- ROOT DIR`.

use std::io::Write as _;
use std::time::Instant;

use berth_host::cgroup::Process;
use berth_host::{Cgroups, KubeletFiles, KubeletPaths, Machine, Pci, Root, record};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Root::new(std::env::args().nth(1).unwrap_or_else(|| "/".to_owned()));
    let mut times = Vec::new();
    let mut since = Instant::now();
    let mut lap = |name: &'static str| {
        times.push((name, since.elapsed()));
        since = Instant::now();
    };
    let (machine, mut diagnoses) = Machine::read(&root);
    lap("machine");
    let (pci, more) = Pci::read(&root, &machine);
    diagnoses.extend(more);
    lap("pci");
    let (kubelet, more) = KubeletFiles::read(&root);
    diagnoses.extend(more);
    lap("kubelet");
    let (cgroups, more) = Cgroups::read(&root);
    diagnoses.extend(more);
    lap("cgroups");
    let (_, more) = KubeletPaths::of_running(&root);
    diagnoses.extend(more);
    lap("running kubelet");
    let (process, more) = Process::read(&root, std::process::id(), 1 << 20);
    diagnoses.extend(more);
    lap("process");
    if let Some(to) = std::env::args().nth(2) {
        let recording = record(&root, &KubeletPaths::detect(&root), to.as_ref())?;
        diagnoses.extend(recording.diagnoses);
        lap("recording");
    }
    let mut out = std::io::stdout().lock();
    let found = serde_json::json!({
        "machine": machine,
        "pci": pci,
        "kubelet": kubelet,
        "cgroups": cgroups,
        "process": process,
        "diagnoses": diagnoses,
    });
    writeln!(out, "{found:#}")?;
    for (name, time) in times {
        writeln!(out, "{name}: {:.2} ms", time.as_secs_f64() * 1000.0)?;
    }
    Ok(())
}
