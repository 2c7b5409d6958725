//! How the program is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=AFTERFIT_PIE");
    // At an address of its own choice, the program takes a megabyte more memory, its relocations: a tenth of what averaging takes.
    // (What that costs in hardening, and how to have it back: SECURITY.md.)
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    if is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu") && !is("AFTERFIT_PIE", "1") {
        println!("cargo:rustc-link-arg-bins=-no-pie");
    }
}
