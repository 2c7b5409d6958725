//! After training: averages and readings of the dial, refreshed and measured; tables and pictures of them.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use afterfit::checkpoint::{Average, Format, Layout, Series};
use afterfit::dial::certificates;
use afterfit::scheme::{Answer, Standing, Weighting, comparator_weights};
use anyhow::{Context, Result, ensure};
use paper::plot::{self, Figure, Panel, Style, color};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tch::{Device, Tensor};

use crate::checkpoint;
use crate::data::Data;
use crate::dial::Dial;
use crate::measure::{Refresher, Score, evaluate};
use crate::model::Model;
use crate::run::{EpochLine, Folder, Settings};

/// One measured model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// `last`, `epoch`, `ratio`, `uniform`, `ema`, `swa` or `dial`.
    pub kind: String,
    /// Ratio, λ, EMA's decay, the first epoch of SWA, or the epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strength: Option<f64>,
    /// Of a dial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
    /// On the test images.
    pub test: Score,
    /// On the held-out images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_out: Option<Score>,
    /// Of a dial: no weight is off by more than this share of the farthest any weight moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<f64>,
}

/// How long the parts of a study took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Seconds {
    /// Training, over all sessions.
    pub training: f64,
    /// Opening and matching the checkpoints.
    pub opening: f64,
    /// Reading and averaging them, all ratios in one pass.
    pub averaging: f64,
    /// Batch-norm statistics of all averages.
    pub refreshing: f64,
    /// Their accuracy.
    pub evaluating: f64,
}

/// What a study found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    /// `table1` or `noise`.
    pub study: String,
    /// What was trained.
    pub settings: Settings,
    /// Where.
    pub device: String,
    /// Median milliseconds of a training step, the dial included, over the epochs it was on.
    pub step_milliseconds: f64,
    /// Training labels that were wrong.
    pub wrong_labels: i64,
    /// How long it took.
    pub seconds: Seconds,
    /// Every measured model.
    pub rows: Vec<Row>,
    /// The log of the training.
    pub log: Vec<EpochLine>,
}

impl Findings {
    /// The first row of a kind (and strength).
    #[must_use]
    pub fn row(&self, kind: &str, strength: Option<f64>) -> Option<&Row> {
        self.rows.iter().find(|row| row.kind == kind && (strength.is_none() || row.strength == strength))
    }

    /// Readings of the dial, by λ.
    pub fn dial(&self, answer: Answer) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.kind == "dial" && row.answer == Some(answer))
    }

    /// The row of a kind that does best on the held-out images.
    #[must_use]
    pub fn chosen<'a>(&self, rows: impl Iterator<Item = &'a Row>) -> Option<&'a Row> {
        let score = |row: &Row| row.held_out.map_or(f64::NEG_INFINITY, |score| score.accuracy);
        rows.max_by(|a, b| score(a).total_cmp(&score(b)))
    }
}

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

/// Milliseconds of a step: the median over the epochs from `from` on.
#[must_use]
pub fn step_milliseconds(log: &[EpochLine], from: u64) -> f64 {
    let steps = |line: &EpochLine| line.step as f64 / line.epoch as f64;
    let mut all: Vec<f64> =
        log.iter().filter(|line| line.epoch > from).map(|line| 1e3 * line.seconds / steps(line)).collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
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

/// The paper's numbers for a network and a data set: before, after averaging, with their ±.
#[must_use]
pub fn paper_says(settings: &Settings) -> Option<&'static str> {
    use crate::data::Name::{Cifar10, Cifar100};
    use crate::net::Architecture::{ResNet18, Vgg16};
    match (settings.net, settings.data.name, settings.weight_decay) {
        (Vgg16, Cifar10, 5e-4) => Some("92.54 ± 0.22 → 93.18 ± 0.06"),
        (ResNet18, Cifar10, 5e-4) => Some("94.54 ± 0.04 → 94.72 ± 0.04"),
        (ResNet18, Cifar100, 5e-4) => Some("75.62 ± 0.16 → 76.24 ± 0.05"),
        (ResNet18, Cifar10, 0.0) => Some("92.95 → 93.21"),
        _ => None,
    }
}

/// A row in words.
#[must_use]
pub fn label(row: &Row) -> String {
    match (row.kind.as_str(), row.strength) {
        ("last", _) => "last weights, as trained".into(),
        ("last-refreshed", _) => "last weights, refreshed".into(),
        ("epoch", Some(epoch)) => format!("best epoch ({epoch})"),
        ("ratio", Some(ratio)) => format!("ratio {ratio}"),
        ("uniform", _) => "uniform average".into(),
        ("ema", Some(decay)) => format!("EMA {decay} by epoch"),
        ("swa", Some(start)) => format!("SWA from epoch {start}"),
        ("dial", Some(l2)) => {
            let answer = if row.answer == Some(Answer::Normalized) { "normalized" } else { "regularized" };
            format!("dial {l2:.1e}, {answer}")
        }
        (kind, strength) => format!("{kind} {}", strength.map_or(String::new(), |value| value.to_string())),
    }
}

/// The table a user sees.
#[must_use]
pub fn listing(findings: &Findings) -> String {
    let with_held_out = findings.rows.iter().any(|row| row.held_out.is_some());
    let mut out = String::new();
    let head = if with_held_out { "  held out" } else { "" };
    let _ = writeln!(out, "{:<34}{:>10}{:>10}{head}", "", "test", "loss");
    for row in &findings.rows {
        let held = row.held_out.map(|score| format!("{:>8.2} %", score.accuracy)).unwrap_or_default();
        let _ = writeln!(out, "{:<34}{:>8.2} %{:>10.4}{held}", label(row), row.test.accuracy, row.test.loss);
    }
    out
}

fn csv(findings: &Findings) -> String {
    let mut out =
        String::from("kind,strength,answer,test_accuracy,test_loss,held_out_accuracy,held_out_loss,certificate\n");
    let text = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
    for row in &findings.rows {
        let answer = match row.answer {
            Some(Answer::Regularized) => "regularized",
            Some(Answer::Normalized) => "normalized",
            None => "",
        };
        let held = row.held_out;
        let _ = writeln!(
            out,
            "{},{},{answer},{},{},{},{},{}",
            row.kind,
            text(row.strength),
            row.test.accuracy,
            row.test.loss,
            text(held.map(|score| score.accuracy)),
            text(held.map(|score| score.loss)),
            text(row.certificate)
        );
    }
    out
}

/// Accuracy against λ, with everything that has no λ as lines across.
#[must_use]
pub fn figure(findings: &Findings, title: &str) -> Figure {
    let curve = |answer| -> Vec<(f64, f64)> {
        findings.dial(answer).filter_map(|row| Some((row.strength?, row.test.accuracy))).collect()
    };
    let (regularized, normalized) = (curve(Answer::Regularized), curve(Answer::Normalized));
    let ends = [regularized.first(), regularized.last()].map(|end| end.map_or(1.0, |&(l2, _)| l2));
    let across = |row: &Row, color, style| {
        let name = match row.kind.as_str() {
            "last" => "final weights".to_owned(),
            _ => label(row),
        };
        let text = format!("{name}: {:.2} %", row.test.accuracy);
        plot::series(&text, color, style, ends.map(|l2| (l2, row.test.accuracy)))
    };
    let mut series = vec![
        plot::series("dial, regularized", color::REGULARIZED, Style::Line(2.2), regularized.clone()),
        plot::series("", color::REGULARIZED, Style::Dots(2.6), regularized),
        plot::series("dial, normalized", color::TILDE, Style::Line(1.4), normalized),
    ];
    let best_ratio = findings
        .rows
        .iter()
        .filter(|row| row.kind == "ratio")
        .max_by(|a, b| a.test.accuracy.total_cmp(&b.test.accuracy));
    series.extend(findings.row("last", None).map(|row| across(row, color::PATH, Style::Line(1.8))));
    series.extend(best_ratio.map(|row| across(row, color::HAT, Style::Line(1.2))));
    series.extend(findings.row("uniform", None).map(|row| across(row, color::LADDER[2], Style::Dashed(1.4))));
    series.extend(findings.row("ema", None).map(|row| across(row, color::THEORY, Style::Dashed(1.4))));
    series.extend(findings.row("swa", None).map(|row| across(row, color::SLIP, Style::Dashed(1.4))));
    series.extend(findings.row("epoch", None).map(|row| across(row, color::OUTSIDE, Style::Dotted(2.0))));
    let chosen = findings.chosen(findings.dial(Answer::Regularized)).filter(|row| row.held_out.is_some());
    if let Some((row, l2)) = chosen.and_then(|row| Some((row, row.strength?))) {
        let text = format!("chosen on held-out images: {:.2} % at λ = {l2:.1e}", row.test.accuracy);
        series.push(plot::series(&text, color::REGULARIZED, Style::Rings(6.0), [(l2, row.test.accuracy)]));
    }
    let by_epoch = |of: fn(&EpochLine) -> Option<f64>| -> Vec<(f64, f64)> {
        findings.log.iter().filter_map(|line| Some((line.epoch as f64, of(line)?))).collect()
    };
    let training = vec![
        plot::series(
            "training images, as it went",
            color::GUIDE,
            Style::Line(1.6),
            by_epoch(|line| Some(line.accuracy)),
        ),
        plot::series("test images", color::PATH, Style::Line(1.6), by_epoch(|line| line.test_accuracy)),
    ];
    Figure {
        name: findings.study.clone(),
        title: title.into(),
        panels: vec![
            Panel {
                title: "the training run".into(),
                x: plot::linear("epoch"),
                y: plot::linear("accuracy, %"),
                series: training,
            },
            Panel {
                title: "afterwards, every λ".into(),
                x: plot::log("λ"),
                y: plot::linear("test accuracy, %"),
                series,
            },
        ],
        columns: 2,
    }
}

/// Writes `findings.json`, `table.csv`, and the picture as SVG and PNG.
pub fn save(findings: &Findings, figure: &Figure, folder: &Folder) -> Result<()> {
    let svg = figure.svg();
    let png = plot::png(&svg)?;
    let json = serde_json::to_string_pretty(findings)? + "\n";
    let name = &findings.study;
    for (file, bytes) in [
        (format!("{name}.json"), json.as_bytes()),
        (format!("{name}.csv"), csv(findings).as_bytes()),
        (format!("{name}.svg"), svg.as_bytes()),
        (format!("{name}.png"), &png[..]),
    ] {
        folder.put(&folder.0.join(file), bytes)?;
    }
    Ok(())
}
