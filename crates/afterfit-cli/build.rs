//! How the program is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // At an address of its own choice, the program takes a megabyte more memory, its relocations: a tenth of what averaging takes.
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    if is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu") {
        println!("cargo:rustc-link-arg-bins=-no-pie");
    }
}
