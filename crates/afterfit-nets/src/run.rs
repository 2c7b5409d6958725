//! What a run is made with, and the folder it lives in.

use std::io::Write;
use std::path::{Path, PathBuf};

use afterfit::dial::Nodes;
use afterfit::scheme::Recurrence;
use anyhow::{Context, Result, bail, ensure};
use paper::findings::EpochLine;
use serde::{Deserialize, Serialize};

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
    /// Images in a step. Those that fill no step at the end of an epoch wait for the next.
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
    /// Epochs done before the dial starts; the weights there are the centre of its penalty.
    pub start: u64,
}

impl Settings {
    /// Refuses what cannot be trained, with the value and its limit.
    pub fn validate(&self) -> Result<()> {
        ensure!((1..=1024).contains(&self.width), "a width of {}: it must be from 1 to 1024", self.width);
        ensure!((1..=100_000).contains(&self.epochs), "{} epochs: there must be from 1 to 100000", self.epochs);
        ensure!((2..=65_536).contains(&self.batch), "a batch of {}: it must be from 2 to 65536 images", self.batch);
        ensure!(self.rate > 0.0 && self.rate <= 100.0, "a rate of {}: it must be above 0 and at most 100", self.rate);
        ensure!(
            (0.0..=1.0).contains(&self.weight_decay),
            "a weight decay of {}: it must be from 0 to 1",
            self.weight_decay
        );
        ensure!(
            (0.0..1.0).contains(&self.momentum),
            "a momentum of {}: it must be at least 0 and below 1",
            self.momentum
        );
        ensure!(!self.nesterov || self.momentum > 0.0, "--nesterov needs a --momentum above 0");
        ensure!(self.drops.is_sorted(), "the epochs of --drops must rise: {:?}", self.drops);
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

    /// How the path is made, for its weights.
    #[must_use]
    pub fn recurrence(&self) -> Recurrence {
        match (self.momentum > 0.0, self.nesterov) {
            (false, _) => Recurrence::Descent,
            (true, false) => Recurrence::HeavyBall { momentum: self.momentum },
            (true, true) => Recurrence::Nesterov { momentum: self.momentum },
        }
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

    /// Everything to go on from.
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
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    }

    /// Makes the folder, or checks that the run in it is this one.
    pub fn open(&self, settings: &Settings) -> Result<()> {
        if !self.settings_file().exists() {
            std::fs::create_dir_all(&self.0).with_context(|| self.0.display().to_string())?;
            let strangers = std::fs::read_dir(&self.0)?.flatten().any(|entry| {
                entry.file_name().to_str().is_none_or(|name| !name.starts_with('.') && name != "run.json")
            });
            ensure!(!strangers, "{} holds other things: a run wants a folder of its own", self.0.display());
            std::fs::create_dir_all(self.checkpoints())?;
            return self.put(&self.settings_file(), (serde_json::to_string_pretty(settings)? + "\n").as_bytes());
        }
        std::fs::create_dir_all(self.checkpoints())?;
        let before = self.settings()?;
        if before == *settings {
            return Ok(());
        }
        let (serde_json::Value::Object(before), serde_json::Value::Object(now)) =
            (serde_json::to_value(&before)?, serde_json::to_value(settings)?)
        else {
            bail!("settings are objects");
        };
        let differing = now.iter().find(|(key, value)| before.get(*key) != Some(value));
        let (key, value) = differing.map_or(("", "".into()), |(key, value)| (key.as_str(), value.to_string()));
        let there = before.get(key).map(ToString::to_string).unwrap_or_default();
        bail!("{} holds a run with other settings: {key} is {there} there, {value} here", self.0.display())
    }

    /// Writes a file under another name first.
    pub fn put(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(&self.0).with_context(|| self.0.display().to_string())?;
        file.write_all(bytes)?;
        // (A temporary file is private to its owner.)
        #[cfg(unix)]
        file.as_file().set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
        file.persist(path).with_context(|| path.display().to_string())?;
        Ok(())
    }

    /// The log.
    pub fn log(&self) -> Result<Vec<EpochLine>> {
        let path = self.log_file();
        let Ok(text) = std::fs::read_to_string(&path) else { return Ok(Vec::new()) };
        // A killed run may leave half a line at the end.
        let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        lines.map(|line| serde_json::from_str(line).with_context(|| path.display().to_string())).collect()
    }

    /// Forgets what a run that goes on from `epoch` will do again.
    pub fn rewind(&self, epoch: u64) -> Result<()> {
        let kept: Result<Vec<String>, _> =
            self.log()?.iter().filter(|line| line.epoch <= epoch).map(serde_json::to_string).collect();
        let text: String = kept?.into_iter().map(|line| line + "\n").collect();
        self.put(&self.log_file(), text.as_bytes())
    }

    /// Adds a line to the log.
    pub fn append(&self, line: &EpochLine) -> Result<()> {
        let mut file = std::fs::File::options().create(true).append(true).open(self.log_file())?;
        Ok(file.write_all((serde_json::to_string(line)? + "\n").as_bytes())?)
    }
}
