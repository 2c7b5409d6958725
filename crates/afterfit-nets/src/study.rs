//! After training: averages and readings of the dial, refreshed and measured.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::findings::{Findings, RATIOS, Row, Score, Seconds, step_milliseconds};
use crate::plot;
use afterfit::checkpoint::{Average, Layout, Record, Series};
use afterfit::files::atomic::Existing;
use afterfit::weighting::{EmaStart, Window};
use afterfit::{Answer, Standing, Stride, Weighting};
use anyhow::{Context, Result, ensure};
use tch::{Device, Tensor};

use crate::checkpoint;
use crate::data::Data;
use crate::dial::Dial;
use crate::measure::{Refresher, evaluate};
use crate::model::Model;
use crate::run::{Folder, Settings};
use crate::train::Trained;

/// A model to be averaged from checkpoints: what it is called, its strength, how checkpoints are weighted.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// As in [`Row::kind`].
    pub kind: &'static str,
    /// As in [`Row::strength`].
    pub strength: Option<f64>,
    /// The weights.
    pub weighting: Weighting,
}

impl Wanted {
    /// The paper's: ∝ p^j, the first checkpoint heaviest.
    #[must_use]
    pub fn ratio(ratio: f64) -> Self {
        Self { kind: "ratio", strength: Some(ratio), weighting: Weighting::Ratio(ratio) }
    }

    /// The name of its file.
    #[must_use]
    pub fn file(&self) -> String {
        // (A tiny ratio has hundreds of digits.)
        let text = |strength: f64| if strength < 1e-6 { format!("-{strength:e}") } else { format!("-{strength}") };
        let strength = self.strength.map(text).unwrap_or_default();
        format!("{}{strength}.safetensors", self.kind)
    }
}

/// The checkpoints of a run's epochs.
pub fn checkpoints(folder: &Folder, settings: &Settings, epochs: RangeInclusive<u64>) -> Result<Vec<PathBuf>> {
    ensure!(
        *epochs.start() >= settings.checkpoints_from && *epochs.end() <= settings.epochs && !epochs.is_empty(),
        "checkpoints of the epochs {} to {}: this run keeps those of {} to {}",
        epochs.start(),
        epochs.end(),
        settings.checkpoints_from,
        settings.epochs
    );
    let paths: Vec<PathBuf> = epochs.map(|epoch| checkpoint::path(&folder.checkpoints(), epoch)).collect();
    let missing = paths.iter().find(|path| !path.exists());
    ensure!(missing.is_none(), "{} is missing", missing.map_or(String::new(), |path| path.display().to_string()));
    Ok(paths)
}

/// Averages checkpoints through the library's engine: one pass, every strength. Gives the files and the seconds of
/// opening and of the pass.
pub fn average(paths: &[PathBuf], wanted: &[Wanted], out: &Path) -> Result<(Vec<PathBuf>, f64, f64)> {
    let began = Instant::now();
    let series = Series::open(paths, None, &[])?;
    let opening = began.elapsed().as_secs_f64();
    std::fs::create_dir_all(out).with_context(|| out.display().to_string())?;
    let steps: Vec<u64> = series.trainings.iter().map(|training| training.epoch.unwrap_or(0)).collect();
    // No step leaves the last one.
    let mut rates: Vec<Option<f64>> = series.trainings.iter().map(|training| training.rate()).collect();
    rates.iter_mut().last().into_iter().for_each(|rate| *rate = None);
    // (Of the checkpoints, not of the steps between: the paper's way.)
    let numbers: Vec<u64> = (0..paths.len() as u64).collect();
    let averages: Result<Vec<Average>> = wanted
        .iter()
        .map(|wanted| {
            let given = wanted.weighting.weights(&numbers, None, Answer::Normalized, Stride::Linear)?;
            let weights = vec![given.weights];
            let record = Record {
                kind: wanted.kind,
                strength: wanted.strength,
                scheme: wanted.kind,
                status: Standing::Heuristic,
                answer: Answer::Normalized,
                weights: &weights,
                inputs: &series.paths,
                steps: &steps,
                rates: &rates,
                dtype: None,
                made_from: &series.made_from(),
            };
            let record = record.to_json();
            Ok(Average { path: out.join(wanted.file()), weights, record })
        })
        .collect();
    let averages = averages?;
    let layout = Layout { single: true, existing: Existing::Replace, ..Layout::default() };
    series.write(&averages, &layout, &|_| {})?;
    let seconds = began.elapsed().as_secs_f64() - opening;
    Ok((averages.into_iter().map(|average| average.path).collect(), opening, seconds))
}

fn row(kind: &str, strength: Option<f64>, (test, held_out): (Score, Option<Score>)) -> Row {
    Row { kind: kind.into(), strength, answer: None, test, held_out, remaining: None, certificate: None }
}

/// Measures models one after the other.
#[derive(Debug)]
pub struct Study<'a> {
    data: &'a Data,
    refresher: Refresher<'a>,
    /// Overwritten by each model.
    model: Model,
    /// Times so far.
    pub seconds: Seconds,
}

impl<'a> Study<'a> {
    /// For models like `model`; `graphs` as in [`Refresher::new`].
    pub fn new(data: &'a Data, settings: &Settings, model: &Model, graphs: bool) -> Result<Self> {
        let began = Instant::now();
        let refresher = Refresher::new(&data.train, settings.batch, settings.seed, graphs)?;
        synchronize(&model.weights);
        let seconds = Seconds { refreshing: began.elapsed().as_secs_f64(), ..Seconds::default() };
        Ok(Self { data, refresher, model: model.with(model.weights.copy()), seconds })
    }

    fn scores(&mut self) -> Result<(Score, Option<Score>)> {
        let began = Instant::now();
        let test = evaluate(&self.model, &self.data.test)?;
        let held_out =
            (!self.data.held_out.is_empty()).then(|| evaluate(&self.model, &self.data.held_out)).transpose()?;
        self.seconds.evaluating += began.elapsed().as_secs_f64();
        Ok((test, held_out))
    }

    /// A model as it stands, its own statistics included.
    pub fn as_it_is(
        &mut self,
        kind: &str,
        strength: Option<f64>,
        weights: &Tensor,
        statistics: &Tensor,
    ) -> Result<Row> {
        self.model.weights.copy_(weights);
        self.model.statistics.copy_(statistics);
        let (test, held_out) = self.scores()?;
        Ok(row(kind, strength, (test, held_out)))
    }

    /// New weights with fresh statistics.
    pub fn refreshed(&mut self, weights: &Tensor) -> Result<(Score, Option<Score>)> {
        self.model.weights.copy_(weights);
        self.refresh()?;
        self.scores()
    }

    fn refresh(&mut self) -> Result<()> {
        let began = Instant::now();
        self.refresher.refresh(&self.model)?;
        synchronize(&self.model.weights);
        self.seconds.refreshing += began.elapsed().as_secs_f64();
        Ok(())
    }

    /// Averages checkpoints, refreshes and measures each.
    pub fn averages(&mut self, paths: &[PathBuf], wanted: &[Wanted], out: &Path) -> Result<Vec<Row>> {
        let (files, opening, averaging) = average(paths, wanted, out)?;
        self.seconds.opening += opening;
        self.seconds.averaging += averaging;
        let mut rows = Vec::new();
        for (wanted, file) in wanted.iter().zip(files) {
            let began = Instant::now();
            checkpoint::load(&self.model, &file)?;
            self.seconds.loading += began.elapsed().as_secs_f64();
            self.refresh()?;
            let scores = self.scores()?;
            rows.push(row(wanted.kind, wanted.strength, scores));
        }
        Ok(rows)
    }

    /// Reads the dial at `count` strengths of its range, both answers, refreshes and measures each.
    pub fn readings(&mut self, dial: &mut Dial, last: &Tensor, count: usize) -> Result<Vec<Row>> {
        let (from, to) = dial.nodes().range();
        let (first, decades) = (from.log10(), to.log10() - from.log10());
        let place = |at: usize| 10_f64.powf(first + decades * at as f64 / (count - 1) as f64).clamp(from, to);
        let grid: Vec<f64> = (0..count).map(place).collect();
        let mut rows = Vec::new();
        for answer in [Answer::Regularized, Answer::Normalized] {
            for &l2 in &grid {
                let read = dial.read(last, l2, answer)?;
                let scores = self.refreshed(&read.weights)?;
                rows.push(Row {
                    answer: Some(answer),
                    remaining: Some(read.remaining),
                    certificate: Some(read.certificate),
                    ..row("dial", Some(l2), scores)
                });
            }
        }
        Ok(rows)
    }
}

/// Waits until a GPU has done what was asked of it, for times to mean something.
fn synchronize(tensor: &Tensor) {
    if let Device::Cuda(index) = tensor.device() {
        tch::Cuda::synchronize(index as i64);
    }
}

/// What trained: the GPU's name, or the processor.
fn device_name(device: Device) -> String {
    if !device.is_cuda() {
        return "CPU".into();
    }
    let asked = std::process::Command::new("nvidia-smi").args(["--query-gpu=name", "--format=csv,noheader"]).output();
    let name = asked.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    name.and_then(|text| text.lines().next().map(str::to_owned)).unwrap_or_else(|| "CUDA".into())
}

/// Writes what was found as JSON, CSV, and a picture (SVG and PNG), named after the study.
pub fn save(findings: &Findings, folder: &Folder) -> Result<()> {
    let name = &findings.study;
    let svg = findings.figure(name).svg();
    let png = plot::png(&svg)?;
    let json = serde_json::to_string_pretty(findings)? + "\n";
    for (ending, bytes) in
        [("json", json.as_bytes()), ("csv", findings.csv().as_bytes()), ("svg", svg.as_bytes()), ("png", &png)]
    {
        folder.put(&folder.0.join(format!("{name}.{ending}")), bytes)?;
    }
    Ok(())
}

/// Which study.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The paper's averages, and what others do.
    Table1,
    /// Noisy labels.
    Noise,
}

/// Strengths read off a dial, from end to end of its range.
const READINGS: usize = 17;

/// Of the checkpoints of these epochs beside ratios: the plain mean, EMA, SWA over the last quarter.
fn comparators(epochs: &RangeInclusive<u64>) -> [Wanted; 3] {
    let count = (epochs.end() - epochs.start() + 1) as usize;
    let start = count - count.div_ceil(4);
    let swa_epoch = epochs.start() + start as u64;
    [
        Wanted { kind: "uniform", strength: None, weighting: Weighting::Mean(Window::All) },
        Wanted { kind: "ema", strength: Some(0.9), weighting: Weighting::Ema { decay: 0.9, start: EmaStart::First } },
        Wanted { kind: "swa", strength: Some(swa_epoch as f64), weighting: Weighting::Swa { start, every: 1 } },
    ]
}

/// Measures everything there is after a run: the last weights, averages of the checkpoints from an epoch on, the dial.
pub fn measure(
    kind: Kind,
    settings: &Settings,
    from: u64,
    folder: &Folder,
    data: &Data,
    trained: Trained,
    graphs: bool,
) -> Result<Findings> {
    let Trained { model, dial, log, .. } = trained;
    let epochs = from..=settings.epochs;
    let paths = checkpoints(folder, settings, epochs.clone())?;
    let mut study = Study::new(data, settings, &model, graphs)?;
    let out = folder.0.join("averages");
    let mut rows = Vec::new();
    let mut seconds = Seconds::default();
    if kind == Kind::Table1 {
        rows.extend(study.averages(&paths, &RATIOS.map(Wanted::ratio), &out)?);
        seconds = study.seconds;
    }
    seconds.training = log.iter().map(|line| line.seconds).sum();
    rows.insert(0, study.as_it_is("last", None, &model.weights, &model.statistics)?);
    rows.extend(study.averages(&paths, &comparators(&epochs), &out)?);
    rows.push(row("last-refreshed", None, study.refreshed(&model.weights)?));
    // The epoch that does best on the held-out images, as it was then.
    let looked_at = log.iter().filter(|line| epochs.contains(&line.epoch));
    let looked_at = looked_at.filter_map(|line| Some((line.epoch, line.held_out_accuracy?)));
    if let Some((epoch, _)) = looked_at.max_by(|a, b| a.1.total_cmp(&b.1)) {
        let kept = model.with(model.weights.copy());
        checkpoint::load(&kept, &checkpoint::path(&folder.checkpoints(), epoch))?;
        rows.push(study.as_it_is("epoch", Some(epoch as f64), &kept.weights, &kept.statistics)?);
    }
    if let Some(mut dial) = dial {
        rows.extend(study.readings(&mut dial, &model.weights, READINGS)?);
    }
    Ok(Findings {
        study: match kind {
            Kind::Table1 => "table1".into(),
            Kind::Noise => "noise".into(),
        },
        device: device_name(model.weights.device()),
        step_milliseconds: step_milliseconds(&log, settings.dial.map_or(0, |dial| dial.start)),
        wrong_labels: data.wrong,
        settings: serde_json::to_value(settings)?,
        seconds,
        rows,
        log,
    })
}
