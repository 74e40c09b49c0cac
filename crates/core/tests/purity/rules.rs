//! The rules, each a function from text to what it finds.

use std::path::Path as FilePath;

use crate::lexer::{Path, Token, paths, tokens, without_tests};

/// Longest file, in lines.
const FILE_MAX_LINES: usize = 600;

/// Something against a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) line: usize,
    pub(crate) problem: String,
}

/// Names that core does not speak, wherever they come from, and what each would bring in.
const WORDS: &[(&str, &[&str])] = &[
    ("an async runtime", &["tokio", "async_std", "smol", "mio"]),
    (
        "a socket",
        &["TcpStream", "TcpListener", "UdpSocket", "UnixStream", "UnixListener", "UnixDatagram", "socket2", "hyper"],
    ),
    ("a clock", &["Instant", "SystemTime", "Condvar", "chrono"]),
    ("randomness", &["rand", "getrandom", "fastrand", "RandomState", "new_v4", "now_v7"]),
    ("an order that differs from run to run", &["HashMap", "HashSet", "hash_map", "hash_set"]),
];

/// Modules of the standard library that core does not use.
const MODULES: &[(&str, &str)] = &[
    ("net", "a socket"),
    ("fs", "files"),
    ("io", "input and output"),
    ("thread", "threads"),
    ("process", "processes"),
    ("env", "the environment"),
    ("os", "the operating system"),
];

/// Where core's source is not pure. Its tests count too: they run under the model checker's rules.
pub(crate) fn impure_findings(source: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let tokens = tokens(source);
    for path in paths(&tokens) {
        if let Some(what) = impurity(&path) {
            let problem = format!("core must not use {what}: {}", path.parts.join("::"));
            findings.push(Finding { line: path.line, problem });
        }
    }
    for pair in tokens.windows(2) {
        if pair[0].text == "extern" && pair[1].text == "crate" {
            let problem = "core must not name crates by extern crate, past these rules".to_owned();
            findings.push(Finding { line: pair[0].line, problem });
        }
    }
    findings
}

fn impurity(path: &Path) -> Option<&'static str> {
    let parts: Vec<&str> = path.parts.iter().map(String::as_str).collect();
    let word = WORDS.iter().find(|(_, words)| parts.iter().any(|part| words.contains(part)));
    if let Some((what, _)) = word {
        return Some(what);
    }
    match parts[..] {
        ["std", module, ..] if path.is_use && module == "*" => Some("the whole standard library, past these rules"),
        ["std", "time", "*"] => Some("a clock"),
        ["std", "collections", "*"] => Some("an order that differs from run to run"),
        ["std"] if path.is_use => Some("the whole standard library, past these rules"),
        ["std", module, ..] => MODULES.iter().find(|(name, _)| *name == module).map(|(_, what)| *what),
        [_, .., "now"] => Some("a clock"),
        _ => None,
    }
}

/// What core may depend on: each looked at, none reads a clock, a socket or randomness with the features in use.
const PURE_DEPENDENCIES: &[&str] = &["bytes", "jiff", "serde", "serde_json", "sha2", "thiserror"];

/// Where core's manifest is not pure. Development dependencies are free: they never run in a node.
pub(crate) fn manifest_findings(manifest: &str) -> Vec<String> {
    let manifest: toml::Table = manifest.parse().expect("a manifest is TOML");
    let mut findings = Vec::new();
    for (kind, name, value) in dependencies(&manifest) {
        if kind == "dev-dependencies" {
            continue;
        }
        if !PURE_DEPENDENCIES.contains(&name.as_str()) {
            findings.push(format!("core must not depend on {name}, which is not known to be pure"));
        }
        // jiff reads the calendar clock only with its feature std.
        let features = value.get("features").and_then(toml::Value::as_array);
        let has_std = features.is_some_and(|features| features.iter().any(|name| name.as_str() != Some("alloc")));
        let default_features = value.get("default-features").and_then(toml::Value::as_bool);
        if name == "jiff" && (has_std || default_features != Some(false)) {
            findings.push("core's jiff must have no feature but alloc: with std it reads a clock".to_owned());
        }
    }
    findings
}

/// Every dependency: its kind, the package's name and what is said of it.
fn dependencies(manifest: &toml::Table) -> Vec<(&'static str, String, toml::Value)> {
    const KINDS: [&str; 3] = ["dependencies", "dev-dependencies", "build-dependencies"];
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let tables = targets.into_iter().flatten().filter_map(|(_, target)| target.as_table()).chain([manifest]);
    let mut found = Vec::new();
    for table in tables {
        for kind in KINDS {
            for (name, value) in table.get(kind).and_then(toml::Value::as_table).into_iter().flatten() {
                let package = value.get("package").and_then(toml::Value::as_str).unwrap_or(name);
                found.push((kind, package.to_owned(), value.clone()));
            }
        }
    }
    found
}

/// Each crate, and those of ours that it may see.
const DIRECTION: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("store", &["conch-core"]),
    ("server", &["conch-core", "conch-store"]),
    ("cli", &["conch-core", "conch-store", "conch-server"]),
    ("sim", &["conch-core", "conch-store", "conch-server"]),
];

/// Where a crate looks the wrong way: core ← store ← server ← cli; sim sees core, store and server.
pub(crate) fn dependency_findings(folder: &str, manifest: &str) -> Vec<String> {
    let Some((_, allowed)) = DIRECTION.iter().find(|(name, _)| *name == folder) else {
        return vec![format!("crates/{folder}: say in DIRECTION what it may depend on")];
    };
    let manifest: toml::Table = manifest.parse().expect("a manifest is TOML");
    let mut findings = Vec::new();
    let name = manifest.get("package").and_then(|package| package.get("name")).and_then(toml::Value::as_str);
    if name != Some(&format!("conch-{folder}")) {
        findings.push(format!("crates/{folder}: its package must be called conch-{folder}"));
    }
    for (kind, package, _) in dependencies(&manifest) {
        // With the features of its own tests.
        let is_itself = kind == "dev-dependencies" && name == Some(package.as_str());
        if package.starts_with("conch-") && !is_itself && !allowed.contains(&package.as_str()) {
            findings.push(format!("crates/{folder}: must not have {package} among its {kind}"));
        }
    }
    findings
}

/// Where a file is untidy. `path` is relative to the folder of crates.
pub(crate) fn tidy_findings(path: &FilePath, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |line: usize, problem: String| findings.push(Finding { line, problem });
    let lines = text.lines().count();
    if lines > FILE_MAX_LINES {
        find(lines, format!("{lines} lines; a file has at most {FILE_MAX_LINES}"));
    }
    if !text.starts_with("//!") {
        find(1, "a module starts with //! and what it is".to_owned());
    }
    // Spelled in two halves, so that this file passes its own rule.
    for mark in [concat!("TO", "DO"), concat!("FIX", "ME")] {
        for (index, line) in text.lines().enumerate() {
            if line.contains(mark) {
                find(index + 1, format!("{mark}: do it, or file an issue"));
            }
        }
    }
    if !is_test_file(path) {
        for token in unwraps(&without_tests(&tokens(text))) {
            find(token.line, "unwrap outside tests: expect(\"why it cannot happen\")".to_owned());
        }
    }
    findings
}

fn is_test_file(path: &FilePath) -> bool {
    path.components()
        .filter_map(|part| part.as_os_str().to_str())
        .any(|part| matches!(part, "tests" | "tests.rs" | "benches") || part.ends_with("_tests.rs"))
}

fn unwraps(tokens: &[Token]) -> impl Iterator<Item = &Token> {
    let is_unwrap = |pair: &&[Token]| matches!(pair[0].text.as_str(), "." | "::") && pair[1].text == "unwrap";
    tokens.windows(2).filter(is_unwrap).map(|pair| &pair[1])
}

#[test]
fn impure_samples_are_found() {
    for (sample, what) in [
        ("use tokio::sync::mpsc;", "an async runtime"),
        ("let socket = std::net::TcpStream::connect(a);", "a socket"),
        ("use std::net::IpAddr;", "a socket"),
        ("use std::{fmt, net::{self}};", "a socket"),
        ("let now = std::time::Instant::now();", "a clock"),
        ("use std::time::{Duration, SystemTime};", "a clock"),
        ("use std::time::*;", "a clock"),
        ("let now = jiff::Timestamp::now();", "a clock"),
        ("let now = jiff :: Zoned ::\n now();", "a clock"),
        ("use rand::Rng;", "randomness"),
        ("let id = uuid::Uuid::new_v4();", "randomness"),
        ("let seed = RandomState::new();", "randomness"),
        ("use std::collections::HashMap;", "an order that differs from run to run"),
        ("fn f(set: &std::collections::HashSet<u8>) {}", "an order that differs from run to run"),
        ("use std::collections::*;", "an order that differs from run to run"),
        ("std::fs::read(path)", "files"),
        ("use ::std::io::Write as _;", "input and output"),
        ("std::thread::yield_now()", "threads"),
        ("use std::{process};", "processes"),
        ("std::env::var(name)", "the environment"),
        ("use std::os::fd::AsRawFd;", "the operating system"),
        ("use std as s;", "the whole standard library, past these rules"),
        ("use std::*;", "the whole standard library, past these rules"),
        ("extern crate tokio as t;", "an async runtime"),
        ("extern crate std as s;", "crates by extern crate, past these rules"),
        ("#[cfg(test)] mod tests { use std::io; }", "input and output"),
    ] {
        let findings = impure_findings(sample);
        assert!(findings.iter().any(|finding| finding.problem.contains(what)), "{sample}: {findings:?}");
    }
    let pure = "//! No tokio, no Instant::now, no std::fs.\n\
        use std::collections::{BTreeMap, VecDeque};\nuse std::time::Duration;\nuse std::{fmt, str::FromStr};\n\
        /// HashMap\nfn f(now: Monotonic, random: u64) -> &'static str { /* std::io */ \"rand::random() 'std::env'\" }\n\
        let later = self.now + now.since(self.now); let r = '\"'; std::mem::take(&mut x);";
    assert_eq!(impure_findings(pure), []);
}

#[test]
fn impure_manifests_are_found() {
    let jiff = "core's jiff must have no feature but alloc: with std it reads a clock";
    let unknown = |name: &str| format!("core must not depend on {name}, which is not known to be pure");
    for (sample, expected) in [
        ("[dependencies]\ntokio = \"1\"", unknown("tokio")),
        ("[dependencies.rand]\nversion = \"1\"", unknown("rand")),
        ("[dependencies]\nbytes = { package = \"getrandom\", version = \"1\" }", unknown("getrandom")),
        ("[target.'cfg(unix)'.dependencies]\nsocket2 = \"1\"", unknown("socket2")),
        ("[build-dependencies]\ncc = \"1\"", unknown("cc")),
        ("[dependencies]\njiff = \"1\"", jiff.to_owned()),
        ("[dependencies]\njiff = { version = \"1\", default-features = false, features = [\"std\"] }", jiff.to_owned()),
    ] {
        assert_eq!(manifest_findings(sample), [expected], "{sample}");
    }
    let pure = "[dependencies]\nserde = \"1\"\njiff = { version = \"1\", default-features = false }\n\
        [dev-dependencies]\nproptest = \"1\"";
    assert_eq!(manifest_findings(pure), [""; 0]);
}

#[test]
fn wrong_directions_are_found() {
    for (folder, dependency) in [
        ("core", "conch-store"),
        ("store", "conch-server"),
        ("server", "conch-sim"),
        ("server", "conch-cli"),
        ("cli", "conch-sim"),
        ("sim", "conch-cli"),
    ] {
        for kind in ["dependencies", "dev-dependencies"] {
            let manifest =
                format!("[package]\nname = \"conch-{folder}\"\n[{kind}]\n{dependency} = {{ path = \"../x\" }}");
            let expected = format!("crates/{folder}: must not have {dependency} among its {kind}");
            assert_eq!(dependency_findings(folder, &manifest), [expected]);
        }
    }
    let right = "[package]\nname = \"conch-server\"\n[dependencies]\nconch-core = \"1\"\nconch-store = \"1\"";
    assert_eq!(dependency_findings("server", right), [""; 0]);
    assert_eq!(dependency_findings("sim", right), ["crates/sim: its package must be called conch-sim"]);
    assert_eq!(dependency_findings("new", right), ["crates/new: say in DIRECTION what it may depend on"]);
}

#[test]
fn untidy_samples_are_found() {
    let path = FilePath::new("core/src/a.rs");
    let long = "//! A.\n".repeat(FILE_MAX_LINES + 1);
    let later = format!("//! A.\n// {}: later\n", concat!("TO", "DO"));
    let mend = format!("//! A.\n// {} later\n", concat!("FIX", "ME"));
    for (text, line, problem) in [
        (long.as_str(), 601, "601 lines; a file has at most 600"),
        ("use a::b;\n", 1, "a module starts with //! and what it is"),
        (&later, 2, concat!("TO", "DO: do it, or file an issue")),
        (&mend, 2, concat!("FIX", "ME: do it, or file an issue")),
        ("//! A.\nfn f() {\n  x\n    .unwrap();\n}", 4, "unwrap outside tests: expect(\"why it cannot happen\")"),
        ("//! A.\nx.map(Option::unwrap);", 2, "unwrap outside tests: expect(\"why it cannot happen\")"),
    ] {
        assert_eq!(tidy_findings(path, text), [Finding { line, problem: problem.to_owned() }], "{text:.40}");
    }
    let tidy = "//! A.\n// .unwrap()\nfn f() { x.unwrap_or(0); }\n#[cfg(test)]\nmod tests { fn g() { x.unwrap(); } }\n";
    assert_eq!(tidy_findings(path, tidy), []);
    for test in ["core/tests/a.rs", "core/src/a/tests.rs", "core/src/a_tests.rs"] {
        assert_eq!(tidy_findings(FilePath::new(test), "//! A.\nfn f() { x.unwrap(); }"), []);
    }
    assert_eq!(tidy_findings(path, &"//! A.\n".repeat(FILE_MAX_LINES)), []);
}
