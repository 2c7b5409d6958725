//! Outputs that several processes make together, each some of the files of every output folder.
//!
//! Which tensor is in which file depends on the checkpoints and the layout alone, and sums are elementwise: whoever makes a
//! file, however often, its bytes are the same. Files gather in a folder beside the output's place, where each appears once it
//! is complete; when all are there, they become the output. A process that is killed costs what it was at, and a run that is
//! stopped finds the files it has again. In an object store, where nothing can be renamed, files appear in their place at
//! once, and what makes a checkpoint of them, the index, comes last.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

use afterfit_core::error::require;

use super::output::{Average, Format, Layout, Report};
use super::series::Series;
use super::shards::Shard;
use super::steps::is_shard;
use super::stream::Row;
use super::{CheckpointError, Result};
use crate::files::atomic::{Draft, Existing, FolderDraft, make_folders_of, write};
use crate::files::source::{Input, open_plain};
use crate::files::{FileError, is_in_store};

/// Where the files of an output folder gather.
fn gathering(path: &Path) -> PathBuf {
    if is_in_store(path) {
        return path.into();
    }
    let mut name = path.file_name().map_or_else(OsString::new, ToOwned::to_owned);
    name.push(".afterfit-parts");
    path.with_file_name(name)
}

impl Series {
    /// The files of an output that is a folder of safetensors files: their names, and the bytes of their tensors. Nothing where
    /// outputs of this layout are something else.
    #[must_use]
    pub fn files_of_output(&self, layout: &Layout) -> Vec<(String, u64)> {
        if layout.format != Format::Safetensors || !self.writes_folders(layout) {
            return Vec::new();
        }
        let bytes = |shard: &Shard| shard.tensors.iter().map(|&at| self.output_bytes(at, layout)).sum();
        self.shards_of(layout).into_iter().map(|shard| (shard.name.clone(), bytes(&shard))).collect()
    }

    /// Whether what is at an output's place is files of it that workers have sent, and no list that makes a checkpoint of them.
    #[must_use]
    pub fn is_gathering(&self, path: &Path, layout: &Layout) -> bool {
        let files = self.files_of_output(layout);
        // (One file has no list: it is all there is.)
        if !is_in_store(path) || files.len() < 2 {
            return false;
        }
        let is_file = |name: &String| files.iter().any(|(file, _)| file == name);
        names_below(path, "").is_ok_and(|names| names.iter().all(is_file))
    }

    /// Writes some files of every average, by their numbers in [`files_of_output`](Self::files_of_output), in one pass over
    /// what the checkpoints have of them. Those that are complete already, for every average, stay as they are.
    pub fn write_files(
        &self,
        averages: &[Average],
        files: &[usize],
        layout: &Layout,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Report> {
        let start = Instant::now();
        let shards = self.shards_to_divide(layout)?;
        for &file in files {
            require(file < shards.len(), "number of a file", file as f64, format!("below {}", shards.len()))?;
        }
        let is_done = |&&file: &&usize| averages.iter().all(|average| self.is_complete(average, &shards[file], layout));
        let open: Vec<usize> = files.iter().filter(|file| !is_done(file)).copied().collect();
        if open.is_empty() {
            return Ok(Report::default());
        }
        // (A list of files that are about to be others would make a checkpoint of both.)
        for average in averages.iter().filter(|average| is_in_store(&average.path)) {
            let names = names_below(&average.path, "").unwrap_or_default();
            for list in names.iter().filter(|name| name.ends_with(".index.json")) {
                std::fs::remove_file(average.path.join(list)).map_err(FileError::io(&average.path))?;
            }
        }
        let rows: Vec<Row> = averages.iter().map(Average::row).collect();
        let mut report = self.write_rows(averages, &rows, self.files.len(), Some(&open), layout, progress)?;
        report.finish_seconds = start.elapsed().as_secs_f64() - report.pass_seconds;
        Ok(report)
    }

    /// Makes the outputs of the files that have gathered. An error if one is missing, or was made from anything else.
    pub fn join_files(&self, averages: &[Average], layout: &Layout) -> Result<Report> {
        let start = Instant::now();
        let shards = self.shards_to_divide(layout)?;
        for average in averages {
            let missing = shards.iter().filter(|shard| !self.is_complete(average, shard, layout));
            let missing: Vec<&str> = missing.map(|shard| &*shard.name).collect();
            if let Some(first) = missing.first() {
                return Err(CheckpointError::Setting(format!(
                    "{} of {} files, {first} for one, are not in {}, or are not those of this run: outputs must lie where \
                     every worker sees them, and inputs must not change",
                    missing.len(),
                    shards.len(),
                    gathering(&average.path).display()
                )));
            }
        }
        let mut report = Report::default();
        let (stored, here): (Vec<&Average>, Vec<&Average>) =
            averages.iter().partition(|average| is_in_store(&average.path));
        for average in stored {
            report.bytes_written += self.complete_in_place(&average.path, &shards, layout)?;
        }
        let mut drafts = Vec::new();
        for average in &here {
            let folder = FolderDraft::create(&average.path, layout.existing)?;
            self.furnish(folder.folder(), &average.path, &shards, layout)?;
            folder.require_free()?;
            drafts.push(folder);
        }
        for (average, folder) in here.into_iter().zip(drafts) {
            let (from, io) = (gathering(&average.path), FileError::io(&average.path));
            for shard in &shards {
                make_folders_of(&shard.name, folder.folder()).map_err(&io)?;
                std::fs::rename(from.join(&shard.name), folder.folder().join(&shard.name)).map_err(&io)?;
            }
            report.bytes_written += folder.finish()?;
            std::fs::remove_dir_all(from).map_err(&io)?;
        }
        report.finish_seconds = start.elapsed().as_secs_f64();
        Ok(report)
    }

    /// Adds what an output has besides its shards to those that lie in their place already, the indexes last; returns its bytes.
    fn complete_in_place(&self, path: &Path, shards: &[Shard], layout: &Layout) -> Result<u64> {
        let io = FileError::io(path);
        let besides = tempfile::tempdir().map_err(&io)?;
        self.furnish(besides.path(), path, shards, layout)?;
        let mut names = names_below(besides.path(), "").map_err(&io)?;
        names.sort_by_key(|name| name.ends_with(".index.json"));
        // (Of an output that was replaced there may be more.)
        let is_ours = |name: &String| names.contains(name) || shards.iter().any(|shard| shard.name == *name);
        for old in names_below(path, "").map_err(&io)?.iter().filter(|name| is_shard(name) && !is_ours(name)) {
            std::fs::remove_file(path.join(old)).map_err(&io)?;
        }
        let mut bytes = shards.iter().flat_map(|shard| &shard.tensors).map(|&at| self.output_bytes(at, layout)).sum();
        for name in names {
            let content = std::fs::read(besides.path().join(&name)).map_err(&io)?;
            bytes += content.len() as u64;
            make_folders_of(&name, path).map_err(&io)?;
            write(&path.join(&name), &content, Existing::Replace)?;
        }
        Ok(bytes)
    }

    /// The files that workers share out among them.
    fn shards_to_divide(&self, layout: &Layout) -> Result<Vec<Shard>> {
        if layout.format != Format::Safetensors || !self.writes_folders(layout) {
            return Err(CheckpointError::Setting(
                "an output that is one file, or a distributed checkpoint, is made as a whole".into(),
            ));
        }
        if self.products.is_some() {
            return Err(CheckpointError::Setting(
                "the two factors of an adapter's product may be in different files: it is made as a whole".into(),
            ));
        }
        Ok(self.shards_of(layout))
    }

    /// A file of an output on its way. (What is there of the name is of another run, or the same bytes.)
    pub(super) fn portion_draft(&self, average: &Average, shard: &Shard) -> Result<Draft> {
        let folder = gathering(&average.path);
        let io = FileError::io(&folder);
        std::fs::create_dir_all(&folder).map_err(&io)?;
        make_folders_of(&shard.name, &folder).map_err(&io)?;
        Ok(Draft::create(&folder.join(&shard.name), Existing::Replace)?)
    }

    /// Whether a file has gathered: its header names the checkpoints as they are now and the weights, and its length is right.
    fn is_complete(&self, average: &Average, shard: &Shard, layout: &Layout) -> bool {
        let Ok((header, _)) = self.header(average, shard, layout) else { return false };
        let bytes: u64 = shard.tensors.iter().map(|&at| self.output_bytes(at, layout)).sum();
        let compare = |mut file: Input| -> std::io::Result<bool> {
            let mut found = vec![0; header.len()];
            file.read_exact(&mut found)?;
            Ok(file.length()? == header.len() as u64 + bytes && found == header)
        };
        open_plain(&gathering(&average.path).join(&shard.name)).is_ok_and(|file| compare(file).unwrap_or(false))
    }
}

/// The files in a folder and in those within it.
fn names_below(folder: &Path, prefix: &str) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        match entry.file_type()?.is_dir() {
            true => names.extend(names_below(&entry.path(), &format!("{name}/"))?),
            false => names.push(name),
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A store's way, in a folder.
    #[test]
    fn shards_in_their_place_become_a_checkpoint_by_their_index() {
        let here = tempfile::tempdir().unwrap();
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/safetensors");
        let paths = [0, 10, 20, 30].map(|step| fixtures.join(format!("step-{step}.safetensors")));
        let series = Series::open(&paths, None, &[]).unwrap();
        let layout = Layout { shard_bytes: Some(100), ..Layout::default() };
        let average = |name: &str| Average {
            path: here.path().join(name),
            weights: vec![vec![0.25; 4]],
            record: "{\"kind\":\"average\"}".into(),
        };
        series.write(&[average("alone")], &layout, &|_| {}).unwrap();
        let files: Vec<usize> = (0..series.files_of_output(&layout).len()).collect();
        series.write_files(&[average("place")], &files, &layout, &|_| {}).unwrap();
        let (alone, place) = (here.path().join("alone"), here.path().join("place"));
        std::fs::rename(gathering(&place), &place).unwrap();
        let shards = series.shards_to_divide(&layout).unwrap();
        let names = |folder: &Path| {
            let mut names = names_below(folder, "").unwrap();
            names.sort();
            names
        };
        assert!(!names(&place).iter().any(|name| name.ends_with(".json")));
        let bytes = series.complete_in_place(&place, &shards, &layout).unwrap();
        assert_eq!(names(&alone), names(&place));
        let read = |folder: &Path, name: &String| std::fs::read(folder.join(name)).unwrap();
        assert!(names(&alone).iter().all(|name| read(&alone, name) == read(&place, name)));
        assert!(bytes > 0);
    }
}
