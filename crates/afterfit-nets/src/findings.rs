//! What a study of trained networks found: the file `afterfit-nets` writes, and its picture.

use std::fmt::Write;

use afterfit::Answer;
use serde::{Deserialize, Serialize};

use crate::plot::{Figure, Panel, Style, color, linear, log, series};

/// The paper's ratios.
pub const RATIOS: [f64; 4] = [0.9999, 0.999, 0.99, 0.9];

/// How well a model does.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// Percent of the images.
    pub accuracy: f64,
    /// Mean cross-entropy.
    pub loss: f64,
}

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpochLine {
    /// Epochs done.
    pub epoch: u64,
    /// Steps done.
    pub step: u64,
    /// The epoch's rate.
    pub rate: f64,
    /// Mean training loss, as it went.
    pub loss: f64,
    /// Training accuracy in percent, as it went.
    pub accuracy: f64,
    /// On the test images, where they were looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test_accuracy: Option<f64>,
    /// On the held-out images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_out_accuracy: Option<f64>,
    /// Seconds of training alone.
    pub seconds: f64,
    /// Speed of training alone.
    pub images_per_second: f64,
}

/// One measured model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// `last`, `last-refreshed`, `epoch`, `ratio`, `uniform`, `ema`, `swa` or `dial`.
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
    /// Of a dial: mass that no step has spent. Near 1, training was too short for this λ to matter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<f64>,
    /// Of a dial: bound on the error of any weight, relative to the largest move of any weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<f64>,
}

impl Row {
    /// In words.
    #[must_use]
    pub fn label(&self) -> String {
        match (self.kind.as_str(), self.strength) {
            ("last", _) => "last weights, as trained".into(),
            ("last-refreshed", _) => "last weights, refreshed".into(),
            ("epoch", Some(epoch)) => format!("best epoch ({epoch})"),
            ("ratio", Some(ratio)) => format!("ratio {ratio}"),
            ("uniform", _) => "uniform average".into(),
            ("ema", Some(decay)) => format!("EMA {decay} by epoch"),
            ("swa", Some(start)) => format!("SWA from epoch {start}"),
            ("dial", Some(l2)) => {
                let answer = if self.answer == Some(Answer::Normalized) { "normalized" } else { "regularized" };
                format!("dial {l2:.1e}, {answer}")
            }
            (kind, strength) => format!("{kind} {}", strength.map_or(String::new(), |value| value.to_string())),
        }
    }
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
    /// Loading the averages.
    #[serde(default)]
    pub loading: f64,
    /// Batch-norm statistics of all averages, drawing the images for them included.
    pub refreshing: f64,
    /// Their accuracy.
    pub evaluating: f64,
}

impl Seconds {
    /// Everything between training and the table.
    #[must_use]
    pub fn after_training(&self) -> f64 {
        self.opening + self.averaging + self.loading + self.refreshing + self.evaluating
    }
}

/// What a study found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    /// `table1` or `noise`.
    pub study: String,
    /// What was trained.
    pub settings: serde_json::Value,
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

    /// The regularized reading that does best on the held-out images.
    #[must_use]
    pub fn chosen(&self) -> Option<&Row> {
        let readings = self.dial(Answer::Regularized).filter_map(|row| Some((row, row.held_out?.accuracy)));
        readings.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(row, _)| row)
    }

    /// Points the chosen reading is above the last weights, with their own statistics or fresh ones, whichever is better.
    #[must_use]
    pub fn gained(&self) -> Option<f64> {
        let last = ["last", "last-refreshed"].iter().filter_map(|kind| self.row(kind, None));
        let last = last.map(|row| row.test.accuracy).reduce(f64::max)?;
        Some(self.chosen()?.test.accuracy - last)
    }

    /// The table a user sees.
    #[must_use]
    pub fn listing(&self) -> String {
        let with_held_out = self.rows.iter().any(|row| row.held_out.is_some());
        let mut out = String::new();
        let head = if with_held_out { "  held out" } else { "" };
        let _ = writeln!(out, "{:<34}{:>10}{:>10}{head}", "", "test", "loss");
        for row in &self.rows {
            let held = row.held_out.map(|score| format!("{:>8.2} %", score.accuracy)).unwrap_or_default();
            let left = row.remaining.filter(|&left| left > 0.5);
            let left = left.map(|left| format!("  {:.0} % of the mass unspent", 100.0 * left)).unwrap_or_default();
            let _ = writeln!(out, "{:<34}{:>8.2} % {:>9.4}{held}{left}", row.label(), row.test.accuracy, row.test.loss);
        }
        out
    }

    /// Every row as CSV.
    #[must_use]
    pub fn csv(&self) -> String {
        let mut out = String::from(
            "kind,strength,answer,test_accuracy,test_loss,held_out_accuracy,held_out_loss,remaining,certificate\n",
        );
        let text = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
        for row in &self.rows {
            let answer = match row.answer {
                Some(Answer::Regularized) => "regularized",
                Some(Answer::Normalized) => "normalized",
                None => "",
            };
            let held = row.held_out;
            let _ = writeln!(
                out,
                "{},{},{answer},{},{},{},{},{},{}",
                row.kind,
                text(row.strength),
                row.test.accuracy,
                row.test.loss,
                text(held.map(|score| score.accuracy)),
                text(held.map(|score| score.loss)),
                text(row.remaining),
                text(row.certificate)
            );
        }
        out
    }

    /// Accuracy against λ, with everything that has no λ as lines across.
    #[must_use]
    pub fn figure(&self, name: &str) -> Figure {
        let curve = |answer| -> Vec<(f64, f64)> {
            self.dial(answer).filter_map(|row| Some((row.strength?, row.test.accuracy))).collect()
        };
        let (regularized, normalized) = (curve(Answer::Regularized), curve(Answer::Normalized));
        let ends = [regularized.first(), regularized.last()].map(|end| end.map_or(1.0, |&(l2, _)| l2));
        let across = |row: &Row, color, style| {
            let name = match row.kind.as_str() {
                "last" => "final weights".to_owned(),
                _ => row.label(),
            };
            let text = format!("{name}: {:.2} %", row.test.accuracy);
            series(&text, color, style, ends.map(|l2| (l2, row.test.accuracy)))
        };
        let mut lines = vec![
            series("dial, regularized", color::REGULARIZED, Style::Line(2.2), regularized.clone()),
            series("", color::REGULARIZED, Style::Dots(2.6), regularized),
            series("dial, normalized", color::TILDE, Style::Line(1.4), normalized),
        ];
        let best_ratio = self
            .rows
            .iter()
            .filter(|row| row.kind == "ratio")
            .max_by(|a, b| a.test.accuracy.total_cmp(&b.test.accuracy));
        lines.extend(self.row("last", None).map(|row| across(row, color::PATH, Style::Line(1.8))));
        lines.extend(best_ratio.map(|row| across(row, color::HAT, Style::Line(1.2))));
        lines.extend(self.row("uniform", None).map(|row| across(row, color::LADDER[2], Style::Dashed(1.4))));
        lines.extend(self.row("ema", None).map(|row| across(row, color::THEORY, Style::Dashed(1.4))));
        lines.extend(self.row("swa", None).map(|row| across(row, color::SLIP, Style::Dashed(1.4))));
        lines.extend(self.row("epoch", None).map(|row| across(row, color::OUTSIDE, Style::Dotted(2.0))));
        if let Some((row, l2)) = self.chosen().and_then(|row| Some((row, row.strength?))) {
            let text = format!("chosen on held-out images: {:.2} % at λ = {l2:.1e}", row.test.accuracy);
            lines.push(series(&text, color::REGULARIZED, Style::Rings(6.0), [(l2, row.test.accuracy)]));
        }
        let by_epoch = |of: fn(&EpochLine) -> Option<f64>| -> Vec<(f64, f64)> {
            self.log.iter().filter_map(|line| Some((line.epoch as f64, of(line)?))).collect()
        };
        let training = vec![
            series("training images, as it went", color::GUIDE, Style::Line(1.6), by_epoch(|line| Some(line.accuracy))),
            series("test images", color::PATH, Style::Line(1.6), by_epoch(|line| line.test_accuracy)),
        ];
        Figure {
            name: name.into(),
            title: format!("{}, seed {}", self.title(), self.number("/seed").unwrap_or(f64::NAN)),
            panels: vec![
                Panel {
                    title: "the training run".into(),
                    x: linear("epoch"),
                    y: linear("accuracy, %"),
                    series: training,
                },
                Panel {
                    title: "afterwards, every λ".into(),
                    x: log("λ"),
                    y: linear("test accuracy, %"),
                    series: lines,
                },
            ],
            columns: 2,
        }
    }

    /// What was trained, and on what.
    #[must_use]
    pub fn title(&self) -> String {
        let (net, data) = (self.text("/net"), self.text("/data/name"));
        let noise = self.number("/data/label_noise").unwrap_or(0.0);
        let decay = if self.number("/weight_decay") == Some(0.0) { ", no weight decay" } else { "" };
        let width = self.number("/width").filter(|&width| width != 64.0);
        let width = width.map(|width| format!(", width {width}")).unwrap_or_default();
        let kernels = if self.text("/kernels") == "he" { ", He's kernels" } else { "" };
        match noise > 0.0 {
            true => {
                format!("{net} on {data}, {:.0} % of the training labels random{width}{decay}{kernels}", 100.0 * noise)
            }
            false => {
                format!("{net} on {data}, {} epochs{width}{decay}{kernels}", self.number("/epochs").unwrap_or(f64::NAN))
            }
        }
    }

    /// A setting that is a text, by its place in the JSON.
    #[must_use]
    pub fn text(&self, place: &str) -> &str {
        self.settings.pointer(place).and_then(serde_json::Value::as_str).unwrap_or_default()
    }

    /// A setting that is a number, by its place in the JSON.
    #[must_use]
    pub fn number(&self, place: &str) -> Option<f64> {
        self.settings.pointer(place).and_then(serde_json::Value::as_f64)
    }

    /// What the paper has for this network and data: accuracy as trained and after averaging, in percent.
    #[must_use]
    pub fn paper(&self) -> Option<(&'static str, &'static str)> {
        match (self.text("/net"), self.text("/data/name"), self.number("/weight_decay")?) {
            ("vgg-16", "cifar-10", 5e-4) => Some(("92.54 ± 0.22", "93.18 ± 0.06")),
            ("resnet-18", "cifar-10", 5e-4) => Some(("94.54 ± 0.04", "94.72 ± 0.04")),
            ("resnet-18", "cifar-100", 5e-4) => Some(("75.62 ± 0.16", "76.24 ± 0.05")),
            ("resnet-18", "cifar-10", 0.0) => Some(("92.95", "93.21")),
            _ => None,
        }
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
