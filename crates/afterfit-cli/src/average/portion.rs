//! `--files` and `--join`: an average made by several processes. They are `afterfit.ray`'s, and hidden from people.

use afterfit::checkpoint::{Average, CheckpointError, Layout, Report, Series};
use serde_json::{Value, json};

#[derive(clap::Args)]
pub(super) struct PortionArgs {
    /// Write these files of every output's folder, by their numbers in --dry-run --json, beside its place.
    #[arg(long, value_name = "N", value_delimiter = ',', hide = true, conflicts_with_all = ["eval", "report", "dial", "dry_run"])]
    files: Vec<usize>,
    /// Make the outputs of the files that --files has written, all of them.
    #[arg(long, hide = true, conflicts_with_all = ["files", "eval", "report", "dial", "dry_run"])]
    join: bool,
}

impl PortionArgs {
    /// Whether this process is one of several, and another has looked at what may be written.
    pub(super) fn is_some(&self) -> bool {
        self.join || !self.files.is_empty()
    }

    /// Everything, some files, or what is left when all files are there.
    pub(super) fn write(
        &self,
        series: &Series,
        averages: &[Average],
        layout: &Layout,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Report, CheckpointError> {
        match (&self.files[..], self.join) {
            ([], false) => series.write(averages, layout, progress),
            ([], true) => series.join_files(averages, layout),
            (files, _) => series.write_files(averages, files, layout, progress),
        }
    }
}

/// The files of an output's folder, where several processes can share them out.
pub(super) fn files_json(series: &Series, layout: &Layout) -> Vec<Value> {
    let files = series.files_of_output(layout);
    files.into_iter().map(|(name, bytes)| json!({ "name": name, "bytes": bytes })).collect()
}
