//! Throwaway debugging of one seed.
use berth_engine::Config;
use berth_engine::Engine;
use berth_testkit::world::{Size, play, run};
#[test]
fn debug() {
    let size = Size { nodes: 12, rounds: 25 };
    for seed in std::env::var("SEEDS").unwrap().split(',') {
        let seed: u64 = seed.parse().unwrap();
        let run = run(seed, size, Config::default()).unwrap();
        let Some((round, violation)) = &run.broken else {
            println!("seed {seed} fine");
            continue;
        };
        let text = violation.to_string();
        println!("SEED {seed} round {round}: {text}");
        let uid = text.split_whitespace().find(|w| w.starts_with("uid-")).unwrap();
        let mut engine = Engine::new(Config::default());
        for r in &run.rounds[..run.rounds.len()] {
            play(&mut engine, r);
        }
        let e = engine.explain(uid, run.rounds.last().unwrap().now_ms);
        if let Some(e) = e {
            println!("  {}", berth_engine::explain::render(&e));
        }
        let mut spec = None;
        for r in &run.rounds {
            for a in &r.acts {
                let t = format!("{a:?}");
                if t.contains(uid) {
                    spec = Some(t);
                }
            }
        }
        println!("  {}", spec.unwrap_or_default().chars().take(1800).collect::<String>());
    }
}
