//! Tells cargo that the console's files are in the binary: a new one must lead to a new build.

fn main() {
    println!("cargo:rerun-if-changed=../../console");
    println!("cargo:rerun-if-changed=../../clients/typescript/core");
}
