use conch_sim::trace::TraceMode;
use conch_sim::world::{Sabotage, run};
use conch_store::memory::Mutant;
fn main() {
    for &m in Mutant::ALL {
        let mut first = None;
        for seed in 1..=100 {
            let o = run(seed, Sabotage::Store(m), TraceMode::Digest);
            if let Some(f) = o.failures.first() {
                first = Some((seed, f.clone()));
                break;
            }
        }
        println!(
            "{m:?}: {}",
            first.map_or("-".into(), |(s, f)| format!("{s}: {}", f.chars().take(200).collect::<String>()))
        );
    }
}
