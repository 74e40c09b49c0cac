//! The server's code that runs in the simulation may use only what the simulation controls.
//!
//! Reads the sources, because the compiler cannot: a `select!` that draws its branch from the thread's own randomness,
//! or a timer of the runtime, would make a seed irreproducible now and then, which is worse than always.

use std::fs;
use std::path::{Path, PathBuf};

/// What simulated code may not name, and why.
const FORBIDDEN: &[(&str, &str)] = &[
    ("tokio::spawn", "tasks come from the Spawn seam"),
    ("tokio::task", "tasks come from the Spawn seam"),
    ("tokio::time", "time comes from the Clock seam"),
    ("tokio::net", "simulated code has no sockets"),
    ("std::thread", "threads come from Spawn::spawn_dedicated"),
    ("Instant::now", "time comes from the Clock seam"),
    ("SystemTime", "time comes from the Clock seam"),
    ("rand::", "randomness comes from the Random seam"),
    ("Uuid::new_v", "randomness comes from the Random seam"),
    ("futures_util::select!", "draws its branch at random; use tokio::select! with `biased`"),
];

/// The parts of the server that the simulation runs.
const SIMULATED: &[&str] =
    &["owner", "router", "hub", "cluster", "node", "frame", "turn", "people", "rules", "link/service", "link/notices"];

fn rust_files(at: &Path, found: &mut Vec<PathBuf>) {
    if at.is_dir() {
        for entry in fs::read_dir(at).expect("readable") {
            rust_files(&entry.expect("readable").path(), found);
        }
    } else if at.extension().is_some_and(|extension| extension == "rs") && !is_test(at) {
        found.push(at.to_owned());
    }
}

/// Tests of the server run in real time.
fn is_test(file: &Path) -> bool {
    file.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.ends_with("tests.rs"))
}

/// What comes before a source's own tests.
fn without_tests(source: &str) -> &str {
    source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default()
}

fn simulated_sources() -> Vec<(PathBuf, String)> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/src");
    let mut files = Vec::new();
    for part in SIMULATED {
        for path in [source.join(part), source.join(format!("{part}.rs"))] {
            if path.exists() {
                rust_files(&path, &mut files);
            }
        }
    }
    files.sort();
    files.into_iter().map(|path| (path.clone(), fs::read_to_string(&path).expect("readable"))).collect()
}

/// What is wrong in a source, with line numbers.
fn violations(source: &str) -> Vec<String> {
    let lines: Vec<&str> =
        without_tests(source).lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        for (name, why) in FORBIDDEN {
            if line.contains(name) {
                found.push(format!("{}: {name}: {why}", index + 1));
            }
        }
        if line.contains("select! {") && lines.get(index + 1).is_none_or(|next| next.trim() != "biased;") {
            found.push(format!("{}: select! must begin with `biased;` on the next line", index + 1));
        }
    }
    found
}

#[test]
fn simulated_code_uses_the_seams_alone() {
    let sources = simulated_sources();
    assert!(!sources.is_empty(), "the server's sources are where this test looks");
    let found: Vec<String> = sources
        .iter()
        .flat_map(|(path, source)| {
            violations(source).into_iter().map(move |found| format!("{}:{found}", path.display()))
        })
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_check_can_fail() {
    let cases = [
        ("tokio::select! {\n    x = y => {}\n}", "1: select! must begin"),
        ("fn f() {\n    tokio::spawn(async {});\n}", "2: tokio::spawn"),
        ("let now = Instant::now();", "1: Instant::now"),
        ("rand::x();\n#[cfg(test)]\nmod tests {\n    rand::y();\n}", "1: rand::"),
    ];
    for (source, expected) in cases {
        let found = violations(source);
        assert!(found.len() == 1 && found[0].starts_with(expected), "{found:?}");
    }
    assert!(violations("tokio::select! {\n    biased;\n    x = y => {}\n} // tokio::spawn").is_empty());
}
