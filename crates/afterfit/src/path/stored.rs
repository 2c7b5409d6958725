//! A path on disk: one safetensors file, written and read an iterate at a time.
//!
//! Tensors: `iterates` (kept × width, f64), `center` (width), `rates` (one for each step, kept or not). The metadata
//! says how the path was made and which steps were kept.

use std::path::{Path as FilePath, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Iterate, Path, PathError};
use crate::error::{Result, require};
use crate::scheme::{PathInfo, Recurrence, Scheme};
use crate::store::{Reader, Writer};

/// Which iterates to keep. The first and the last always are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Recording {
    /// Every n-th.
    Every(u64),
    /// All of the first `dense`, then after step t a gap of t/density: large λ live on the first iterates, and a gap
    /// stays small beside the time 1/(λη) of the λ that lives there.
    LogSpaced {
        /// How many to keep in a row at the start.
        dense: u64,
        /// About 2.3 × this many are kept for each tenfold of steps.
        density: u64,
    },
}

impl Recording {
    /// The steps kept of a path with `steps` steps.
    pub fn kept(&self, steps: u64) -> Result<Vec<u64>> {
        let mut kept = vec![0];
        match *self {
            Self::Every(n) => {
                require(n >= 1, "recording interval", n as f64, "at least 1")?;
                kept.extend((n..steps).step_by(n as usize));
            }
            Self::LogSpaced { dense, density } => {
                require(density >= 1, "recording density", density as f64, "at least 1")?;
                let mut next = 1;
                while next < steps {
                    kept.push(next);
                    next += if next < dense { 1 } else { (next / density).max(1) };
                }
            }
        }
        if steps > 0 {
            kept.push(steps);
        }
        Ok(kept)
    }
}

/// Visible in the file's header under `afterfit`.
#[derive(Serialize, Deserialize)]
struct Header {
    kind: String,
    version: u32,
    recurrence: Recurrence,
    quadratic: bool,
    stochastic: bool,
    shape: [usize; 2],
    factors: Option<Vec<f64>>,
    kept: Vec<u64>,
}

const KIND: &str = "path";

/// Runs `path` and writes the iterates that `recording` keeps. Memory: one iterate.
pub fn record(path: &mut dyn Path, recording: Recording, file: &FilePath) -> Result<()> {
    let info = path.info().clone();
    let available = path.kept();
    let kept = recording.kept(info.steps())?;
    if let Some(missing) = kept.iter().find(|step| available.binary_search(step).is_err()) {
        return Err(PathError::Inconsistent {
            path: file.into(),
            what: "recording",
            found: format!("step {missing} is to be kept"),
            expected: "the path to be recorded does not have it".into(),
        }
        .into());
    }
    let width = path.center().len();
    let header = Header {
        kind: KIND.into(),
        version: 1,
        recurrence: info.recurrence,
        quadratic: info.quadratic,
        stochastic: info.stochastic,
        shape: info.shape,
        factors: info.factors.clone(),
        kept: kept.clone(),
    };
    let tensors = [
        ("center".to_owned(), vec![width]),
        ("rates".to_owned(), vec![info.rates.len()]),
        ("iterates".to_owned(), vec![kept.len(), width]),
    ];
    let mut writer = Writer::create(file, &tensors, &header)?;
    writer.write(path.center())?;
    writer.write(&info.rates)?;
    path.for_each(&mut |Iterate { weights, step, .. }| {
        if kept.binary_search(&step).is_ok() {
            writer.write(weights)?;
        }
        Ok(())
    })?;
    writer.finish()?;
    Ok(())
}

/// A path read from a file, an iterate at a time.
pub struct StoredPath {
    file: PathBuf,
    reader: Reader,
    info: PathInfo,
    center: Vec<f64>,
    kept: Vec<u64>,
}

impl StoredPath {
    /// Opens a file that [`record`] wrote, and checks that it is whole and consistent.
    pub fn open(file: &FilePath) -> Result<Self> {
        let mut reader = Reader::open(file)?;
        let header: Header = reader.metadata(KIND)?;
        let inconsistent = |what, found: String, expected: String| PathError::Inconsistent {
            path: file.into(),
            what,
            found,
            expected,
        };
        if header.kind != KIND || header.version != 1 {
            let found = format!("kind {} version {}", header.kind, header.version);
            return Err(inconsistent("format", found, "this program reads path version 1".into()).into());
        }
        let width: usize = reader.shape("center")?.iter().product();
        let steps = match *reader.shape("rates")? {
            [steps] => steps,
            ref other => return Err(inconsistent("rates", format!("shape {other:?}"), "one dimension".into()).into()),
        };
        let expected = vec![header.kept.len(), width];
        let found = reader.shape("iterates")?.to_vec();
        if found != expected {
            return Err(
                inconsistent("iterates", format!("shape {found:?}"), format!("{expected:?} is announced")).into()
            );
        }
        let rising = header.kept.windows(2).all(|pair| pair[0] < pair[1]);
        if !rising || header.kept.last().is_none_or(|&last| last > steps as u64) {
            let last = header.kept.last();
            return Err(
                inconsistent("kept steps", format!("last {last:?}"), format!("they rise to at most {steps}")).into()
            );
        }
        let info = PathInfo {
            recurrence: header.recurrence,
            rates: reader.read_all("rates", steps)?,
            quadratic: header.quadratic,
            stochastic: header.stochastic,
            shape: header.shape,
            factors: header.factors,
        };
        Scheme::new(&info)?;
        let matrix = info.shape[0].checked_mul(info.shape[1]);
        if matrix.is_none_or(|matrix| matrix == 0 || matrix > width) {
            return Err(
                inconsistent("shape", format!("{:?}", info.shape), format!("iterates have {width} numbers")).into()
            );
        }
        let center = reader.read_all("center", width)?;
        if let Some(position) = center.iter().position(|value| !value.is_finite()) {
            return Err(PathError::NotFinite { path: file.into(), step: 0, value: center[position], position }.into());
        }
        Ok(Self { file: file.into(), center, reader, info, kept: header.kept })
    }
}

impl Path for StoredPath {
    fn info(&self) -> &PathInfo {
        &self.info
    }

    fn center(&self) -> &[f64] {
        &self.center
    }

    fn kept(&self) -> Vec<u64> {
        self.kept.clone()
    }

    fn for_each(&mut self, visit: &mut dyn FnMut(Iterate<'_>) -> Result<()>) -> Result<()> {
        let width = self.center.len();
        for (position, &step) in self.kept.iter().enumerate() {
            let weights = self.reader.read("iterates", position * width, width)?;
            if let Some(at) = weights.iter().position(|value| !value.is_finite()) {
                return Err(
                    PathError::NotFinite { path: self.file.clone(), step, value: weights[at], position: at }.into()
                );
            }
            visit(Iterate { weights: &weights, rate: self.info.rates.get(step as usize).copied(), step })?;
        }
        Ok(())
    }
}
