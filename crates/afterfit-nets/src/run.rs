//! What a run is made with, and the folder it lives in.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::findings::EpochLine;
use afterfit::files::atomic::Existing;
use afterfit::{Nodes, Optimizer, PathInfo, RateRun, Rates};
use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::checkpoint;
use crate::data::Taken;
use crate::model::Precision;
use crate::net::{Architecture, Kernels};

/// Everything that decides where a run ends. Kept in the folder; a resumed run must have the same.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The network.
    pub net: Architecture,
    /// How its kernels start.
    pub kernels: Kernels,
    /// Channels of its first layer.
    pub width: i64,
    /// The data.
    pub data: Taken,
    /// Epochs.
    pub epochs: u64,
    /// Images in a step. Those that fill no step at the end of an epoch are left out of it.
    pub batch: i64,
    /// The first rate.
    pub rate: f64,
    /// After these epochs the rate is divided by ten.
    pub drops: Vec<u64>,
    /// Weight decay of the training.
    pub weight_decay: f64,
    /// μ, 0 for plain SGD.
    pub momentum: f64,
    /// torch's `nesterov=True`.
    pub nesterov: bool,
    /// Of the first weights, the order of the images and their augmentation.
    pub seed: u64,
    /// What layers compute in.
    pub precision: Precision,
    /// The first epoch whose end is kept.
    pub checkpoints_from: u64,
    /// The dial kept on the side.
    pub dial: Option<DialRange>,
}

/// A dial's range.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DialRange {
    /// The smallest λ.
    pub from: f64,
    /// The largest λ.
    pub to: f64,
    /// Nodes.
    pub nodes: usize,
    /// Epochs done before the dial starts; the weights there are the center of its penalty.
    pub start: u64,
}

impl Settings {
    /// Refuses what cannot be trained, with the value and its limit.
    pub fn validate(&self) -> Result<()> {
        ensure!((1..=1024).contains(&self.width), "a width of {}: it must be from 1 to 1024", self.width);
        ensure!((1..=100_000).contains(&self.epochs), "{} epochs: there must be from 1 to 100000", self.epochs);
        ensure!((2..=65_536).contains(&self.batch), "a batch of {}: it must be from 2 to 65536 images", self.batch);
        ensure!((1e-30..=100.0).contains(&self.rate), "a rate of {:?}: it must be from 1e-30 to 100", self.rate);
        ensure!(
            (0.0..=1.0).contains(&self.weight_decay),
            "a weight decay of {:?}: it must be from 0 to 1",
            self.weight_decay
        );
        ensure!(
            (0.0..1.0).contains(&self.momentum),
            "a momentum of {:?}: it must be at least 0 and below 1",
            self.momentum
        );
        ensure!(!self.nesterov || self.momentum > 0.0, "--nesterov needs a --momentum above 0");
        ensure!(self.drops.is_sorted_by(|a, b| a < b), "the epochs of --drops must rise: {:?}", self.drops);
        ensure!(
            (1..=self.epochs).contains(&self.checkpoints_from),
            "checkpoints from epoch {}: it must be from 1 to {}",
            self.checkpoints_from,
            self.epochs
        );
        if let Some(dial) = &self.dial {
            Nodes::new(dial.from, dial.to, dial.nodes)?;
            ensure!(
                dial.start < self.epochs,
                "a dial that starts after {} epochs: it must be below the {} of the run",
                dial.start,
                self.epochs
            );
        }
        Ok(())
    }

    /// The rate in an epoch, counted from 0.
    #[must_use]
    pub fn rate_in(&self, epoch: u64) -> f64 {
        let drops = self.drops.iter().filter(|&&drop| epoch >= drop).count();
        // Divided once: 0.1 / 10 is 0.01 to the last digit, 0.1 · 0.1 is not.
        self.rate / 10_f64.powi(drops as i32)
    }

    /// What whoever reads a dial of this run should know.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = vec!["batch-norm statistics are those of the last iterate: refresh them".to_owned()];
        if self.weight_decay > 0.0 {
            remarks.push(format!("the training had weight decay {}: λ is in addition to it", self.weight_decay));
        }
        if self.momentum > 0.0 && self.dial.is_some_and(|dial| dial.start > 0) {
            remarks.push("the dial started while momentum carried the weights: an approximation".into());
        }
        remarks
    }

    /// How the path is made, for its weights.
    #[must_use]
    pub fn optimizer(&self) -> Optimizer {
        match (self.momentum > 0.0, self.nesterov) {
            (false, _) => Optimizer::Sgd,
            (true, false) => Optimizer::HeavyBall { momentum: self.momentum, dampening: 0.0 },
            (true, true) => Optimizer::Nesterov { momentum: self.momentum },
        }
    }

    /// The path of some epochs, of so many steps each.
    #[must_use]
    pub fn path(&self, epochs: Range<u64>, steps: u64) -> PathInfo {
        let rates: Rates = epochs.map(|epoch| RateRun { steps, rate: self.rate_in(epoch) }).collect();
        PathInfo::new(self.optimizer(), rates)
    }
}

/// The folder of a run.
#[derive(Debug, Clone)]
pub struct Folder(pub PathBuf);

impl Folder {
    /// One file for each kept epoch.
    #[must_use]
    pub fn checkpoints(&self) -> PathBuf {
        self.0.join("checkpoints")
    }

    /// Everything needed to resume.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.0.join("state.safetensors")
    }

    /// The dial, for `afterfit dial read`.
    #[must_use]
    pub fn dial(&self) -> PathBuf {
        self.0.join("dial.safetensors")
    }

    fn settings_file(&self) -> PathBuf {
        self.0.join("run.json")
    }

    fn log_file(&self) -> PathBuf {
        self.0.join("log.jsonl")
    }

    /// The settings of the run in this folder.
    pub fn settings(&self) -> Result<Settings> {
        let path = self.settings_file();
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("{}: not the folder of a run", path.display()))?;
        let settings: Settings = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        settings.validate().with_context(|| path.display().to_string())?;
        Ok(settings)
    }

    /// Makes the folder, or checks that the run in it is this one. Other processes are kept out of it as long as what it
    /// returns lives.
    pub fn open(&self, settings: &Settings) -> Result<File> {
        std::fs::create_dir_all(&self.0).with_context(|| self.0.display().to_string())?;
        if !self.settings_file().exists() {
            let strangers = std::fs::read_dir(&self.0)?.flatten().any(|entry| {
                entry.file_name().to_str().is_none_or(|name| !name.starts_with('.') && name != "run.json")
            });
            ensure!(!strangers, "{} holds other things: a run requires a folder of its own", self.0.display());
        }
        let lock = self.lock()?;
        // (A run that never got through an epoch is none.)
        if !self.settings_file().exists() || !self.state().exists() && self.log()?.is_empty() {
            self.put(&self.settings_file(), (serde_json::to_string_pretty(settings)? + "\n").as_bytes())?;
        }
        let before = self.settings()?;
        if before == *settings {
            let folder = self.checkpoints();
            std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
            return Ok(lock);
        }
        let (before, now) = (serde_json::to_value(&before)?, serde_json::to_value(settings)?);
        // What a user sets comes before what follows from it.
        const ORDER: [&str; 15] = [
            "net",
            "data",
            "epochs",
            "width",
            "kernels",
            "batch",
            "rate",
            "weight_decay",
            "momentum",
            "nesterov",
            "seed",
            "precision",
            "drops",
            "checkpoints_from",
            "dial",
        ];
        let differing = ORDER.iter().filter(|key| before[**key] != now[**key]);
        let named: Vec<String> =
            differing.map(|key| format!("{key} is {} there, {} here", before[*key], now[*key])).collect();
        bail!(
            "{} holds a run with other settings ({}): give this one a folder of its own",
            self.0.display(),
            named.join("; ")
        )
    }

    /// Keeps other processes out of the folder as long as what it returns lives.
    pub fn lock(&self) -> Result<File> {
        let path = self.0.join(".lock");
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        let taken = rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive);
        taken.with_context(|| format!("{} is in use by another process", self.0.display()))?;
        Ok(file)
    }

    /// Writes a file under another name first.
    pub fn put(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        Ok(afterfit::files::atomic::write(path, bytes, Existing::Replace)?)
    }

    /// The log.
    pub fn log(&self) -> Result<Vec<EpochLine>> {
        let path = self.log_file();
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.with_context(|| path.display().to_string())?,
        };
        // A killed run may leave half a line at the end.
        let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let parsed = lines
            .enumerate()
            .map(|(i, line)| serde_json::from_str(line).with_context(|| format!("{}, line {}", path.display(), i + 1)));
        parsed.collect()
    }

    /// Forgets what a run that resumes at `epoch` will do again: lines of the log, and checkpoints (which on a GPU would
    /// be of another path than those to come).
    pub fn rewind(&self, epoch: u64) -> Result<()> {
        let log = self.log()?;
        let (kept, later): (Vec<&EpochLine>, Vec<&EpochLine>) = log.iter().partition(|line| line.epoch <= epoch);
        let whole = kept.iter().map(|line| line.epoch).eq(1..=epoch);
        ensure!(whole, "{} does not have the epochs 1 to {epoch} one after the other", self.log_file().display());
        let text: Result<String, _> =
            kept.iter().map(|line| serde_json::to_string(line).map(|line| line + "\n")).collect();
        let text = text?;
        if std::fs::read_to_string(self.log_file()).is_ok_and(|there| there != text) {
            self.put(&self.log_file(), text.as_bytes())?;
        }
        let most = later.iter().map(|line| line.epoch).max().unwrap_or(epoch);
        for later in epoch + 1.. {
            let path = checkpoint::path(&self.checkpoints(), later);
            match std::fs::remove_file(&path) {
                // (Either may come first, a checkpoint or its line.)
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    if later > most {
                        return Ok(());
                    }
                }
                other => other.with_context(|| path.display().to_string())?,
            }
        }
        Ok(())
    }

    /// Adds a line to the log.
    pub fn append(&self, line: &EpochLine) -> Result<()> {
        let path = self.log_file();
        let text = serde_json::to_string(line)? + "\n";
        let file = File::options().create(true).append(true).open(&path);
        file.and_then(|mut file| file.write_all(text.as_bytes())).with_context(|| path.display().to_string())
    }
}
