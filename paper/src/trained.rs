//! Table 1 and the noisy labels, from what `afterfit-nets` found on a GPU (`paper/nets/`): nothing is trained here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use afterfit::Answer;
use afterfit_nets::findings::{Findings, RATIOS, Row};
use anyhow::{Context, Result};

use crate::experiment::{Outcome, Table};

/// Stored findings of a study, by file name.
fn stored(study: &str) -> Result<Vec<(String, Findings)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("nets");
    let mut paths: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        paths.extend(Some(entry?.path()).filter(|path| path.extension().is_some_and(|ending| ending == "json")));
    }
    paths.sort_by(|a, b| a.file_stem().cmp(&b.file_stem()));
    let mut all = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let findings: Findings = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        if findings.study == study {
            let name = path.file_stem().map(|name| name.to_string_lossy().into_owned());
            all.push((name.unwrap_or_default(), findings));
        }
    }
    Ok(all)
}

fn accuracy(row: Option<&Row>) -> f64 {
    row.map_or(f64::NAN, |row| row.test.accuracy)
}

/// The reading of the dial that does best on the test images: a curve's top, not a choice.
fn top(findings: &Findings, answer: Answer) -> Option<&Row> {
    findings.dial(answer).max_by(|a, b| a.test.accuracy.total_cmp(&b.test.accuracy))
}

/// The mean over runs of something, and "seed 1", or "± 0.04; seeds 1, 2: 94.91, 94.86".
fn mean(runs: &[&Findings], of: impl Fn(&Findings) -> f64) -> (f64, String) {
    let values: Vec<f64> = runs.iter().map(|run| of(run)).collect();
    let seeds: Vec<String> = runs.iter().map(|run| run.number("/seed").unwrap_or(f64::NAN).to_string()).collect();
    let seeds = seeds.join(", ");
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    if values.len() == 1 {
        return (mean, format!("seed {seeds}"));
    }
    let deviation = (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0)).sqrt();
    let each: Vec<String> = values.iter().map(|value| format!("{value:.2}")).collect();
    (mean, format!("± {deviation:.2}; seeds {seeds}: {}", each.join(", ")))
}

/// What a PyTorch program with the same protocol reached, as trained and after averaging.
fn twin(findings: &Findings) -> Option<(f64, f64)> {
    match (findings.text("/net"), findings.text("/data/name"), findings.number("/weight_decay")?) {
        ("resnet-18", "cifar-10", 5e-4) => Some((94.8, 95.2)),
        ("vgg-16", "cifar-10", 5e-4) => Some((93.8, 94.1)),
        _ => None,
    }
}

fn dial_table(name: &str, findings: &Findings) -> Table {
    let column = |answer, of: fn(&Row) -> f64| -> Vec<f64> { findings.dial(answer).map(of).collect() };
    let (regularized, normalized) = (Answer::Regularized, Answer::Normalized);
    let strengths = column(regularized, |row| row.strength.unwrap_or(f64::NAN));
    let held_out = |row: &Row| row.held_out.map_or(f64::NAN, |score| score.accuracy);
    let mut columns = vec![
        ("l2", strengths),
        ("regularized", column(regularized, |row| row.test.accuracy)),
        ("normalized", column(normalized, |row| row.test.accuracy)),
        ("certificate", column(regularized, |row| row.certificate.unwrap_or(f64::NAN))),
    ];
    if findings.dial(regularized).all(|row| row.held_out.is_some()) {
        columns.push(("regularized_held_out", column(regularized, held_out)));
    }
    let columns: Vec<(&str, &[f64])> = columns.iter().map(|(name, values)| (*name, &values[..])).collect();
    Table::of(&format!("{name}-dial"), &columns)
}

/// The paper's Table 1.
pub(crate) fn table1() -> Result<Outcome> {
    let all = stored("table1")?;
    let mut outcome = Outcome {
        name: "table1".into(),
        title: "Table 1: VGG-16 and ResNet-18 on CIFAR-10".into(),
        text: "Plain SGD, batch 100, rate 0.1 divided by 10 at half and five sixths of the epochs; checkpoints of the last four fifths \
               averaged with weights ∝ p^j, the first heaviest; batch norm refreshed on augmented images. Trained with afterfit-nets \
               on an NVIDIA H200 (bf16 layers, f32 weights); drawn here from the stored results in paper/nets. Beside the paper's \
               averages: the dial of every iterate of the same run, read at 17 strengths."
            .into(),
        ..Outcome::default()
    };
    // Seeds of one setting belong together.
    let mut groups: BTreeMap<String, (&str, Vec<&Findings>)> = BTreeMap::new();
    for (name, findings) in &all {
        let (name_of_all, _) = name.rsplit_once("-seed-").with_context(|| format!("{name}: no seed in its name"))?;
        groups.entry(findings.title()).or_insert((name_of_all, Vec::new())).1.push(findings);
        outcome.figures.push(findings.figure(name));
        outcome.tables.push(dial_table(name, findings));
    }
    for (name, runs) in groups.values() {
        claims(&mut outcome, runs);
        outcome.tables.push(accuracies(name, runs));
    }
    Ok(outcome)
}

/// What the paper and the PyTorch program have, beside the runs of one network.
fn claims(outcome: &mut Outcome, runs: &[&Findings]) {
    let first = runs[0];
    let title = first.title();
    let mut number = |what: &str, (value, spread): (f64, String), said: &str, holds: Option<bool>| {
        let what = format!("{title}: {what} ({spread})");
        match holds {
            Some(holds) => outcome.number(&what, value, said, holds),
            None => outcome.aside(&what, value, said),
        }
    };
    let (paper_before, paper_after) = first.paper().unwrap_or(("none", "none"));
    let near = |value: f64, twin: Option<f64>| twin.map(|twin| (value - twin).abs() <= 0.4);
    let said = |paper: &str, twin: Option<f64>| {
        let twin = twin.map(|value| format!("; a PyTorch program with the same protocol: {value}; within 0.4 of that"));
        format!("the paper: {paper}{}", twin.unwrap_or_default())
    };
    let measured = |kind: &str, strength: Option<f64>| mean(runs, |run| accuracy(run.row(kind, strength)));
    let (before, after) = twin(first).unzip();
    let trained = measured("last", None);
    let holds = near(trained.0, before);
    number("as trained, %", trained, &said(paper_before, before), holds);
    let (best, _) = measured("ratio", Some(0.99));
    for ratio in RATIOS {
        let averaged = measured("ratio", Some(ratio));
        let (claim, holds) = match ratio == 0.99 {
            true => (said(paper_after, after), near(best, after)),
            false => ("the paper: 0.99 is the best of the four, so not above that".into(), Some(averaged.0 <= best)),
        };
        number(&format!("averaged with ratio {ratio}, %"), averaged, &claim, holds);
    }
    let gain = mean(runs, |run| accuracy(run.row("ratio", Some(0.99))) - accuracy(run.row("last", None)));
    let holds = gain.0 > 0.0;
    number("gained by ratio 0.99, points", gain, "above 0", Some(holds));
    for kind in ["uniform", "ema", "swa"] {
        let label = first.row(kind, None).map_or_else(|| kind.to_owned(), Row::label);
        number(&format!("{label}, %"), measured(kind, None), "not in the paper", None);
    }
    let tops = runs.iter().filter_map(|run| top(run, Answer::Regularized)?.strength);
    let tops: Vec<String> = tops.map(|l2| format!("{l2:.1e}")).collect();
    let said = format!("not in the paper; the top of the curve, at λ = {}", tops.join(", "));
    number("the dial, regularized, %", mean(runs, |run| accuracy(top(run, Answer::Regularized))), &said, None);
    // (An early build did not count how long loading the averages took.)
    let timed: Vec<&Findings> = runs.iter().copied().filter(|run| run.seconds.loading > 0.0).collect();
    if !timed.is_empty() {
        let seconds = mean(&timed, |run| run.seconds.after_training());
        let holds = seconds.0 <= 10.0;
        let claim = "the paper: 47 to 58 s for each ratio on a K80; at most 10";
        number("averaging, refreshing and evaluating all four ratios, s", seconds, claim, Some(holds));
    }
}

/// Every run of one network, a row each.
fn accuracies(name: &str, runs: &[&Findings]) -> Table {
    let column = |of: &dyn Fn(&Findings) -> f64| -> Vec<f64> { runs.iter().map(|run| of(run)).collect() };
    let of_kind = |kind: &str| column(&|run| accuracy(run.row(kind, None)));
    let setting = |place: &str| column(&|run| run.number(place).unwrap_or(f64::NAN));
    let mut columns = vec![
        ("seed".to_owned(), setting("/seed")),
        ("epochs".into(), setting("/epochs")),
        ("as_trained".into(), of_kind("last")),
    ];
    columns
        .extend(RATIOS.map(|ratio| (format!("ratio_{ratio}"), column(&|run| accuracy(run.row("ratio", Some(ratio)))))));
    columns.extend(["uniform", "ema", "swa", "last-refreshed"].map(|kind| (kind.to_owned(), of_kind(kind))));
    columns.push(("dial_regularized_top".into(), column(&|run| accuracy(top(run, Answer::Regularized)))));
    columns.push(("dial_normalized_top".into(), column(&|run| accuracy(top(run, Answer::Normalized)))));
    let named: Vec<(&str, &[f64])> = columns.iter().map(|(name, values)| (name.as_str(), &values[..])).collect();
    Table::of(name, &named)
}

/// Noisy labels.
pub(crate) fn noise() -> Result<Outcome> {
    let all = stored("noise")?;
    let mut outcome = Outcome {
        name: "noise".into(),
        title: "Noisy labels: one run, one knob".into(),
        text: "Not in the paper. 40 % of CIFAR-10's training labels are replaced by random ones; ResNet-18 learns them by heart in 60 \
               epochs and ends far below what it knew on the way. The regularized answer, read off the dial of that same run, does not. \
               λ is chosen on 5000 held-out training images with the same noise, and reported on the clean test images. Trained with \
               afterfit-nets on an NVIDIA H200. A PyTorch program with the same protocol: 74.3 % as trained, 86.7 % at λ = 3.2e-4, \
               65.8 % at λ = 0.1. He's larger first kernels make steps smaller beside them: less is learned by heart, and less is gained."
            .into(),
        ..Outcome::default()
    };
    for (name, findings) in &all {
        let chosen = findings.chosen().context("a dial")?;
        let (before, after) = (accuracy(findings.row("last", None)), chosen.test.accuracy);
        let kernels = if findings.text("/kernels") == "he" { ", He's kernels" } else { "" };
        let what = |text: &str| format!("{}{kernels}: {text}", findings.text("/net"));
        // He's kernels are shown for comparison: nothing is claimed of them.
        let is_claimed = kernels.is_empty();
        let there = |text: &str| if is_claimed { text.to_owned() } else { String::new() };
        outcome.aside(&what("as trained, %"), before, &there("the PyTorch program: 74.3"));
        outcome.aside(&what("the chosen λ"), chosen.strength.unwrap_or(f64::NAN), &there("3.2e-4 there"));
        outcome.aside(&what("regularized, at the chosen λ, %"), after, &there("86.7 there"));
        let gained = findings.gained().unwrap_or(f64::NAN);
        let text = what("gained by turning one knob, points over the last weights, refreshed or not");
        match is_claimed {
            true => outcome.number(&text, gained, "at least 10", gained >= 10.0),
            false => outcome.aside(&text, gained, ""),
        }
        let curve: Vec<f64> = findings.dial(Answer::Regularized).map(|row| row.test.accuracy).collect();
        let ends = curve.first().copied().unwrap_or(f64::NAN).max(curve.last().copied().unwrap_or(f64::NAN));
        let highest = curve.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        outcome.number(
            &what("the curve's top above its higher end, points"),
            highest - ends,
            "an optimum inside the range: above 0",
            highest > ends,
        );
        for (kind, said) in [("uniform", "87.1 there"), ("epoch", "about 80.5 there"), ("ema", ""), ("swa", "")] {
            if let Some(row) = findings.row(kind, None) {
                outcome.aside(&what(&format!("{}, %", row.label())), row.test.accuracy, &there(said));
            }
        }
        outcome.figures.push(findings.figure(name));
        outcome.tables.push(dial_table(name, findings));
    }
    Ok(outcome)
}
