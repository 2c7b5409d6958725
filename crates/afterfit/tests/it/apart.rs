//! What many processes make together is what one makes alone.

use std::path::{Path, PathBuf};

use afterfit::checkpoint::{Average, Layout, Series};
use afterfit::fit::{ExactRun, Seen, Whole, evaluate_all, exact, exact_apart};
use afterfit::learn::{ModelChoice, Settings, learn_moments};
use afterfit::objective::{Dense, Features, Glm, Loss, Moments, Objective, Rows, Shift};
use rand::RngExt;

use crate::checkpoints::{self, PLAIN};
use crate::common::*;

fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    let name = |path: &PathBuf| PathBuf::from(path.file_name().unwrap());
    found.iter().map(|path| (name(path), std::fs::read(path).unwrap())).collect()
}

#[test]
fn outputs_made_file_by_file_are_those_of_one_run() {
    let here = tempfile::tempdir().unwrap();
    let at = |name: &str| here.path().join(name);
    let series = || Series::open(&checkpoints::files("safetensors"), None, &[]).unwrap();
    let weights = [vec![0.1, 0.2, 0.3, 0.4], vec![0.5, 0.0, 0.25, 0.25]];
    let averages = |folder: &str| -> Vec<Average> {
        let of = |(k, weights): (usize, &Vec<f64>)| Average {
            path: at(folder).join(format!("strength-{k}")),
            weights: vec![weights.clone()],
            record: format!("{{\"kind\":\"test\",\"k\":{k}}}"),
        };
        std::fs::create_dir_all(at(folder)).unwrap();
        weights.iter().enumerate().map(of).collect()
    };
    for shard_bytes in [16, 100] {
        let layout = Layout { shard_bytes: Some(shard_bytes), ..PLAIN };
        let (alone, together) = (averages(&format!("alone-{shard_bytes}")), averages(&format!("many-{shard_bytes}")));
        series().write(&alone, &layout, &|_| {}).unwrap();
        let count = series().files_of_output(&layout).len();
        assert!(count > 2, "{count} files");
        // In any order, some of them twice; nothing is an output before all are there.
        let rest: Vec<usize> = (1..count).rev().collect();
        series().write_files(&together, &rest, &layout, &|_| {}).unwrap();
        let error = series().join_files(&together, &layout).unwrap_err().to_string();
        assert!(error.contains(&format!("1 of {count} files")) && !together[0].path.exists(), "{error}");
        assert!(series().write_files(&together, &[0], &layout, &|_| {}).unwrap().bytes_written > 0);
        // What is there is not made again, unless it is of another run, or not whole.
        assert_eq!(series().write_files(&together, &[0, 1], &layout, &|_| {}).unwrap().bytes_written, 0);
        let mut other = together.clone();
        other[1].record = "{}".into();
        series().join_files(&other, &layout).unwrap_err();
        let gathered = together[1].path.with_file_name("strength-1.afterfit-parts");
        let (name, bytes) = files(&gathered).swap_remove(1);
        std::fs::write(gathered.join(&name), &bytes[..bytes.len() - 1]).unwrap();
        series().join_files(&together, &layout).unwrap_err();
        let all: Vec<usize> = (0..count).collect();
        assert!(series().write_files(&together, &all, &layout, &|_| {}).unwrap().bytes_written > 0);
        series().join_files(&together, &layout).unwrap();
        for (one, other) in alone.iter().zip(&together) {
            assert_eq!(files(&one.path), files(&other.path));
        }
        assert!(!gathered.exists());
        series().write_files(&together, &[count], &layout, &|_| {}).unwrap_err();
    }
    // One file is made as a whole.
    let error = series().write_files(&averages("one"), &[0], &Layout { single: true, ..PLAIN }, &|_| {}).unwrap_err();
    assert!(error.to_string().contains("as a whole"), "{error}");
}

#[test]
fn moments_add_up_whatever_they_are_taken_around() {
    let mut rng = rng(41);
    // Columns far from zero and from each other, and blocks far from the mean of all.
    let (n, d, k) = (300, 5, 2);
    let spread = [1.0, 0.1, 3.0, 1.0, 1.0];
    let value = |rng: &mut _, i: usize| {
        let noise = vector(rng, 1)[0];
        [1e6, 0.0, -300.0, 2.0, 0.0][i % d] + spread[i % d] * (noise + (i / d / 100) as f64)
    };
    let x: Vec<f64> = (0..n * d).map(|i| value(&mut rng, i)).collect();
    let y: Vec<f64> = vector(&mut rng, n * k).iter().map(|y| 50.0 + y).collect();
    let weights: Vec<f64> = (0..n).map(|_| rng.random_range(0.0..3.0)).collect();
    let part = |rows: std::ops::Range<usize>| {
        let features = Features::Dense(Dense::new(rows.len(), d, x[rows.start * d..rows.end * d].to_vec()).unwrap());
        let (y, weights) = (&y[rows.start * k..rows.end * k], &weights[rows]);
        let shift = Shift::at_means(&features, y);
        Moments::of(&features, y, Some(weights), Rows::All, &shift).unwrap()
    };
    let whole = part(0..n);
    let blocks = [part(0..7), part(7..120), part(120..121), part(121..300)];
    let none = Moments::empty(&Shift::at(vec![0.0; d], vec![0.0; k]));
    let stored = |moments: Moments| Moments::from_numbers(&moments.to_numbers()).unwrap();
    let [a, b, c, e] = blocks;
    let joined = stored(a.joined(&b).unwrap()).joined(&none.joined(&c.joined(&e).unwrap()).unwrap()).unwrap();
    let mut settings = Settings::new(ModelChoice::Linear, vec![1e-4, 1e-2, 1.0]);
    for (bias, standardize) in [(true, false), (true, true), (false, false)] {
        (settings.bias, settings.standardize) = (bias, standardize);
        let (one, many) = (learn_moments(&whole, &settings).unwrap(), learn_moments(&joined, &settings).unwrap());
        for at in 0..settings.l2.len() {
            // What is left is the solver's own rounding, cond(Σ+λ)·ε; without an intercept, squares are of 1e6.
            let allowed = if bias { 1e-13 + 1e-15 * 10.0 / settings.l2[at] } else { 1e-6 };
            assert!(relative(&many.weights[at], &one.weights[at]) < allowed, "{bias} {standardize} {at}");
            assert!(relative(&many.biases[at], &one.biases[at]) < allowed || !bias);
        }
    }
    assert!((joined.loss(&[0.0; 10], &[50.0, 50.0]) / whole.loss(&[0.0; 10], &[50.0, 50.0]) - 1.0).abs() < 1e-12);
    // What does not fit is refused.
    joined.joined(&Moments::empty(&Shift::at(vec![0.0; 4], vec![0.0; k]))).unwrap_err();
    let numbers = joined.to_numbers();
    Moments::from_numbers(&numbers[1..]).unwrap_err();
    Moments::from_numbers(&[]).unwrap_err();
    Moments::from_numbers(&[1e300, 1e300, 1.0, 1.0]).unwrap_err();
}

#[test]
fn rows_that_lie_apart_have_the_minimizers_of_all() {
    let mut rng = rng(42);
    let (n, d) = (600, 6);
    for (classes, intercept) in [(2, true), (4, true), (3, false)] {
        let offset = [0.0, 5.0, 0.0, -3.0, 0.0, 100.0];
        let x: Vec<f64> = vector(&mut rng, n * d).iter().enumerate().map(|(i, x)| x + offset[i % d]).collect();
        let score = |row: usize| x[row * d] + 0.5 * x[row * d + 2];
        let labels: Vec<u32> =
            (0..n).map(|row| ((score(row) + vector(&mut rng, 1)[0]).clamp(-1.9, 1.9) + 2.0) as u32 % classes).collect();
        let glm = |rows: &[usize]| {
            let values: Vec<f64> = rows.iter().flat_map(|row| &x[row * d..][..d]).copied().collect();
            let features = Features::Dense(Dense::new(rows.len(), d, values).unwrap());
            let labels = rows.iter().map(|&row| labels[row]).collect();
            Glm::new(features, Loss::classes(labels, classes as usize).unwrap(), 0.0, intercept).unwrap()
        };
        let all: Vec<usize> = (0..n).collect();
        let whole = glm(&all);
        let parts = [glm(&all[..50]), glm(&all[50..51]), glm(&all[51..])];
        let center = whole.center();
        let squares = whole.features().weighted_squares(&vec![1.0; n], &center);
        let null = if intercept { whole.null()[whole.shape()[0] * whole.shape()[1]..].to_vec() } else { Vec::new() };
        let about = Whole { means: center, variance: squares.iter().sum::<f64>() / n as f64, null };
        let l2 = [1e-3, 1.0, 1e-4, 1e-2];
        let mut widest = 0;
        let mut evaluate = |models: &[Vec<f64>]| -> afterfit::Result<Vec<Seen>> {
            widest = widest.max(models.len());
            let mut sum = vec![Seen { loss: 0.0, gradient: vec![0.0; whole.width()] }; models.len()];
            for part in &parts {
                let share = part.rows() as f64 / n as f64;
                for (sum, own) in sum.iter_mut().zip(evaluate_all(part, models)?) {
                    sum.loss += share * own.loss;
                    sum.gradient.iter_mut().zip(own.gradient).for_each(|(sum, own)| *sum += share * own);
                }
            }
            Ok(sum)
        };
        let sample = glm(&all.iter().copied().step_by(5).collect::<Vec<_>>());
        let run = ExactRun { tolerance: Some(1e-12), ..ExactRun::default() };
        let found = exact_apart(&sample, &about, &l2, &run, &mut evaluate).unwrap();
        assert!(widest == l2.len() + 1 && found.passes < 60, "{widest} models at a time, {} passes", found.passes);
        let known = exact(&whole, &l2, &run).unwrap();
        assert!((found.null_loss - known.null_loss).abs() < 1e-12);
        for (at, strength) in l2.iter().enumerate() {
            let matrix = whole.split(&found.weights[at]).0;
            let apart = distance(matrix, whole.split(&known.weights[at]).0);
            let [one, other] = [&found.certified[at], &known.certified[at]];
            let allowed = one.certificate.distance + other.certificate.distance;
            assert!(one.certificate.excess < 1e-12 && apart <= allowed, "λ={strength}: {apart:e} > {allowed:e}");
            assert!((one.loss - other.loss).abs() < 1e-5);
        }
        // An answer that does not fit is refused, and an error of a pass is the path's.
        let mut short = |models: &[Vec<f64>]| -> afterfit::Result<Vec<Seen>> {
            Ok(vec![Seen { loss: 0.0, gradient: Vec::new() }; models.len()])
        };
        exact_apart(&sample, &about, &l2, &run, &mut short).unwrap_err();
    }
}
