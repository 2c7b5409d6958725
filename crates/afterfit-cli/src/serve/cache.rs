//! Scores that were measured, in a file beside the dial.

use std::path::{Path, PathBuf};

use afterfit::dial::DialFile;
use afterfit::files::atomic::Existing;
use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::output::{Advice, write_file};

/// What was measured of one dial.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Kept {
    /// What the dial was when it was measured: another run's scores say nothing of this one.
    steps: u64,
    reach: Vec<f64>,
    scores: Vec<Score>,
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Score {
    eval: String,
    l2: f64,
    score: f64,
}

/// The scores of one command.
pub(super) struct Cache {
    pub(super) file: PathBuf,
    /// λ and its score, in the order they were measured.
    pub(super) scores: Vec<(f64, f64)>,
    eval: String,
    of: Kept,
}

impl Cache {
    /// What is known already; nothing where the dial is another one than it was.
    pub(super) fn open(dial: &Path, opened: &DialFile, eval: &str) -> Result<Self> {
        let mut name = dial.file_name().unwrap_or_default().to_owned();
        name.push(".scores.json");
        let of = Kept { steps: opened.tracker.steps(), reach: opened.reach.clone(), scores: Vec::new() };
        let mut cache = Self { file: dial.with_file_name(name), scores: Vec::new(), eval: eval.to_owned(), of };
        let own = |score: &&Score| score.eval == eval;
        cache.scores = cache.read()?.scores.iter().filter(own).map(|score| (score.l2, score.score)).collect();
        Ok(cache)
    }

    pub(super) fn score(&self, l2: f64) -> Option<f64> {
        self.scores.iter().find(|(known, _)| *known == l2).map(|(_, score)| *score)
    }

    /// What the file holds of this dial.
    fn read(&self) -> Result<Kept> {
        let text = match std::fs::read(&self.file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(self.of.clone()),
            Err(error) => return Err(Advice::error(format!("{}: {error}", self.file.display()), "make it readable")),
        };
        let kept: Kept = serde_json::from_slice(&text).map_err(|error| {
            let what = format!("{} does not hold scores: {error}", self.file.display());
            Advice::error(what, "it would be replaced: move it away")
        })?;
        Ok(if kept.steps == self.of.steps && kept.reach == self.of.reach { kept } else { self.of.clone() })
    }

    /// Keeps a score, beside those that others have written in the meantime.
    pub(super) fn add(&mut self, l2: f64, score: f64) -> Result<()> {
        self.scores.push((l2, score));
        let mut kept = self.read()?;
        kept.scores.retain(|other| other.eval != self.eval || other.l2 != l2);
        kept.scores.push(Score { eval: self.eval.clone(), l2, score });
        let mut text = serde_json::to_vec_pretty(&kept)?;
        text.push(b'\n');
        write_file(&self.file, &text, Existing::Replace)
    }
}
