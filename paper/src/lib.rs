//! What the paper's experiments share with other programs: figures, what studies of networks found, images.

pub mod findings;
pub mod plot;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

/// The folder of a data set in the cache of `afterfit data get`, fetched on first use.
pub fn fetch(name: &str) -> anyhow::Result<PathBuf> {
    // The command sits beside this program, or cargo builds it.
    let own = std::env::current_exe()?.with_file_name("afterfit");
    let mut command = if own.is_file() {
        Command::new(own)
    } else {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["run", "--release", "--quiet", "-p", "afterfit-cli", "--"]);
        cargo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")));
        cargo
    };
    let output = command.args(["data", "get", name]).output();
    let output = output.context("no afterfit command beside this program to fetch images with")?;
    anyhow::ensure!(
        output.status.success(),
        "`afterfit data get {name}` failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}
