//! Checks of the sources themselves: core is pure, the crates depend in one direction, and every file is tidy.
//!
//! Each rule is a function from text to findings, and a self-test shows that it finds a sample: a check that cannot
//! fail is worse than none. Deliberately absent: what rustfmt and clippy check already.

#[path = "purity/lexer.rs"]
mod lexer;
#[path = "purity/rules.rs"]
mod rules;

use std::fs;
use std::path::{Path, PathBuf};

use rules::{Finding, dependency_findings, impure_findings, manifest_findings, tidy_findings};

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("core lies in the folder of crates").to_owned()
}

/// Every Rust file below a folder, with its text.
fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("the folder can be listed") {
        let path = entry.expect("the folder can be listed").path();
        if path.is_dir() {
            if path.file_name().is_none_or(|name| name != "target") {
                found.extend(sources(&path));
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source is UTF-8");
            found.push((path, text));
        }
    }
    found.sort();
    found
}

fn manifests() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(crates()).expect("the folder can be listed") {
        let folder = entry.expect("the folder can be listed").path();
        if let Ok(text) = fs::read_to_string(folder.join("Cargo.toml")) {
            let name = folder.file_name().expect("a folder has a name").to_string_lossy().into_owned();
            found.push((name, text));
        }
    }
    found.sort();
    found
}

fn assert_none(findings: &[String]) {
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}

fn located(path: &Path, findings: Vec<Finding>) -> Vec<String> {
    let shown = path.strip_prefix(crates()).unwrap_or(path).display();
    findings.into_iter().map(|finding| format!("crates/{shown}:{}: {}", finding.line, finding.problem)).collect()
}

#[test]
fn core_is_pure() {
    let sources = sources(&crates().join("core/src"));
    assert!(sources.len() >= 10, "the sources of core were found");
    let findings: Vec<String> = sources.iter().flat_map(|(path, text)| located(path, impure_findings(text))).collect();
    assert_none(&findings);
    let manifest = fs::read_to_string(crates().join("core/Cargo.toml")).expect("core has a manifest");
    assert_none(&manifest_findings(&manifest));
}

#[test]
fn crates_depend_in_one_direction() {
    let manifests = manifests();
    assert!(manifests.len() >= 5, "the manifests were found");
    let findings: Vec<String> = manifests.iter().flat_map(|(folder, text)| dependency_findings(folder, text)).collect();
    assert_none(&findings);
}

#[test]
fn every_file_is_tidy() {
    let sources = sources(&crates());
    assert!(sources.len() >= 15, "the sources were found");
    let findings: Vec<String> = sources
        .iter()
        .flat_map(|(path, text)| {
            let relative = path.strip_prefix(crates()).unwrap_or(path);
            located(path, tidy_findings(relative, text))
        })
        .collect();
    assert_none(&findings);
}
