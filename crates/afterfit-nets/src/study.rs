//! After training: averages and readings of the dial, refreshed and measured; tables and pictures of them.

use std::path::{Path, PathBuf};
use std::time::Instant;

use afterfit::checkpoint::{Average, Format, Layout, Series};
use afterfit::dial::certificates;
use afterfit::scheme::{Answer, Standing, Weighting, comparator_weights};
use anyhow::{Context, Result, ensure};
use paper::findings::{Findings, Row, Score, Seconds};
use paper::plot;
use serde_json::json;
use tch::{Device, Tensor};

use crate::checkpoint;
use crate::data::Data;
use crate::dial::Dial;
use crate::measure::{Refresher, evaluate};
use crate::model::Model;
use crate::run::{Folder, Settings};

/// A model to be averaged from checkpoints: what it is called, its strength, how checkpoints are weighted.
#[derive(Debug, Clone, Copy)]
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

    fn file(&self) -> String {
        let strength = self.strength.map(|strength| format!("-{strength}")).unwrap_or_default();
        format!("{}{strength}.safetensors", self.kind)
    }
}

/// The paper's ratios.
pub const RATIOS: [f64; 4] = [0.9999, 0.999, 0.99, 0.9];

/// The checkpoints of a run from an epoch on.
pub fn checkpoints(folder: &Folder, settings: &Settings, from: u64) -> Result<Vec<PathBuf>> {
    let paths: Vec<PathBuf> =
        (from..=settings.epochs).map(|epoch| checkpoint::path(&folder.checkpoints(), epoch)).collect();
    ensure!(
        from >= settings.checkpoints_from && !paths.is_empty(),
        "checkpoints from epoch {from} on: this run keeps those from {} to {}",
        settings.checkpoints_from,
        settings.epochs
    );
    let missing = paths.iter().find(|path| !path.exists());
    ensure!(
        missing.is_none(),
        "{} is missing: has the run ended?",
        missing.map_or(String::new(), |path| path.display().to_string())
    );
    Ok(paths)
}

/// Averages checkpoints through the library's engine: one pass, every strength. Gives the files and the seconds of
/// opening and of the pass.
pub fn average(paths: &[PathBuf], wanted: &[Wanted], out: &Path) -> Result<(Vec<PathBuf>, f64, f64)> {
    let began = Instant::now();
    let series = Series::open(paths, None, &[])?;
    let opening = began.elapsed().as_secs_f64();
    std::fs::create_dir_all(out).with_context(|| out.display().to_string())?;
    let steps: Vec<Option<u64>> = series.trainings.iter().map(|training| training.epoch).collect();
    let rates: Vec<Option<f64>> = series.trainings.iter().map(|training| training.rate).collect();
    let averages: Result<Vec<Average>> = wanted
        .iter()
        .map(|wanted| {
            let weights = comparator_weights(wanted.weighting, paths.len())?;
            let record = json!({
                "kind": "average",
                "version": env!("CARGO_PKG_VERSION"),
                "strength": { wanted.kind: wanted.strength },
                "scheme": wanted.kind,
                "status": Standing::Heuristic,
                "answer": Answer::Normalized,
                "weights": weights,
                "inputs": series.paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>(),
                "steps": steps,
                "rates": rates,
                "dtype": "as the inputs",
            });
            Ok(Average { path: out.join(wanted.file()), weights, record: record.to_string() })
        })
        .collect();
    let averages = averages?;
    let layout = Layout { format: Format::Safetensors, dtype: None, shard_bytes: None, single: true, memory: None };
    series.write(&averages, &layout, &|_| {})?;
    let seconds = began.elapsed().as_secs_f64() - opening;
    Ok((averages.into_iter().map(|average| average.path).collect(), opening, seconds))
}

/// Measures models one after the other.
#[derive(Debug)]
pub struct Study<'a> {
    data: &'a Data,
    refresher: Refresher<'a>,
    graphs: bool,
    /// Overwritten by each model.
    model: Model,
    /// Times so far.
    pub seconds: Seconds,
}

impl<'a> Study<'a> {
    /// For models like `model`; `graphs` as in [`Refresher::refresh`].
    #[must_use]
    pub fn new(data: &'a Data, settings: &Settings, model: &Model, graphs: bool) -> Self {
        let refresher = Refresher::new(&data.train, settings.batch, settings.seed);
        Self { data, refresher, graphs, model: model.with(model.weights.copy()), seconds: Seconds::default() }
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
        Ok(Row { kind: kind.into(), strength, answer: None, test, held_out, certificate: None })
    }

    /// New weights with fresh statistics.
    pub fn refreshed(&mut self, weights: &Tensor) -> Result<(Score, Option<Score>)> {
        self.model.weights.copy_(weights);
        self.refresh()?;
        self.scores()
    }

    fn refresh(&mut self) -> Result<()> {
        let began = Instant::now();
        self.refresher.refresh(&self.model, self.graphs)?;
        if let Device::Cuda(index) = self.model.weights.device() {
            tch::Cuda::synchronize(index as i64);
        }
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
            checkpoint::load(&self.model, &file)?;
            self.refresh()?;
            let (test, held_out) = self.scores()?;
            rows.push(Row {
                kind: wanted.kind.into(),
                strength: wanted.strength,
                answer: None,
                test,
                held_out,
                certificate: None,
            });
        }
        Ok(rows)
    }

    /// Reads the dial at `count` strengths of its range, both answers, refreshes and measures each.
    pub fn readings(&mut self, dial: &mut Dial, last: &Tensor, count: usize) -> Result<Vec<Row>> {
        let (from, to) = dial.nodes().range();
        let place = |at: usize| (from * (to / from).powf(at as f64 / (count - 1) as f64)).clamp(from, to);
        let grid: Vec<f64> = (0..count).map(place).collect();
        let epsilons = certificates(dial.nodes(), &dial.path_info(), &grid)?;
        let mut rows = Vec::new();
        for answer in [Answer::Regularized, Answer::Normalized] {
            for (&l2, &epsilon) in grid.iter().zip(&epsilons) {
                let weights = dial.read(last, l2, answer)?;
                let (test, held_out) = self.refreshed(&weights)?;
                let certificate = match answer {
                    Answer::Regularized => epsilon,
                    Answer::Normalized => epsilon / dial.spent(l2)?,
                };
                rows.push(Row {
                    kind: "dial".into(),
                    strength: Some(l2),
                    answer: Some(answer),
                    test,
                    held_out,
                    certificate: Some(certificate),
                });
            }
        }
        Ok(rows)
    }
}

/// What trained: the GPU's name, or the processor.
#[must_use]
pub fn device_name(device: Device) -> String {
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
