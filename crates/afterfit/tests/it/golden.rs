//! Bytes of a model, a dial and averages, as they have been: whatever moves inside, what is written stays as it is, or a reader of
//! the change sees that it does not. `AFTERFIT_GOLDEN=write` writes them anew.

use std::path::Path;

use afterfit::dial::Dial;
use afterfit::model::{About, Kind, Model, ModelPath};
use afterfit::{Answer, Nodes, Optimizer, PathInfo, RateRun, Rates, Weighting};

use crate::checkpoints::{PLAIN, files, fixtures, write};

/// Compares a file that was made just now with the one that is kept.
fn same(made: &Path) {
    let kept = fixtures().join("golden").join(made.file_name().unwrap());
    if std::env::var_os("AFTERFIT_GOLDEN").is_some_and(|what| what == "write") {
        std::fs::copy(made, &kept).unwrap();
    }
    let (made_bytes, kept_bytes) = (std::fs::read(made).unwrap(), std::fs::read(&kept).unwrap());
    let differs = made_bytes.iter().zip(&kept_bytes).position(|(made, kept)| made != kept);
    assert!(made_bytes == kept_bytes, "{}: differs from the one kept at byte {differs:?}", kept.display());
}

/// A path of 21 iterates in fractions of two, whose every operation is the same on any machine.
fn iterate(step: u64) -> [f64; 3] {
    let step = step as f64;
    [1.0 - 0.5_f64.powf(step.min(20.0)), step / 32.0, (step - 10.0) * (step - 10.0) / 128.0]
}

#[test]
fn a_model_is_written_as_ever() {
    let folder = tempfile::tempdir().unwrap();
    let mut about = About::new(Kind::Linear, 0.25, 3, 2);
    about.chosen = Some(afterfit::model::Chosen { best: 0.25, one_se: 0.5 });
    let nodes = Nodes::new(0.125, 2.0, 4).unwrap();
    let numbers = |count: u64| (0..count).map(|at| iterate(at % 21)[2] - 0.25).collect();
    let path = ModelPath { nodes, weights: numbers(24), biases: numbers(8), error: 0.5_f64.powi(20), certified: None };
    let model = Model { about, weights: numbers(6), bias: numbers(2), support: Vec::new(), path: Some(path) };
    let file = folder.path().join("model.safetensors");
    model.save(&file).unwrap();
    assert_eq!(Model::load(&file).unwrap().weights, model.weights);
    same(&file);
}

#[test]
fn a_dial_is_written_as_ever() {
    let folder = tempfile::tempdir().unwrap();
    let mut rates = Rates::new();
    for (steps, rate) in [(10, 0.25), (1, 0.0), (9, 0.125)] {
        rates.append(RateRun { rate, steps });
    }
    for (name, optimizer) in
        [("sgd.dial", Optimizer::Sgd), ("heavy-ball.dial", Optimizer::HeavyBall { momentum: 0.5, dampening: 0.0 })]
    {
        let info = PathInfo::new(optimizer, rates.clone());
        let mut dial = Dial::new(vec![Nodes::new(0.0625, 4.0, 5).unwrap()], &info, &iterate(0)).unwrap();
        for step in 0..20 {
            dial.push(&iterate(step), rates.at(step).unwrap()).unwrap();
        }
        dial.finish(&iterate(20)).unwrap();
        let file = folder.path().join(name);
        dial.save(&file).unwrap();
        same(&file);
    }
}

#[test]
fn averages_are_written_as_ever() {
    let folder = tempfile::tempdir().unwrap();
    let series = afterfit::checkpoint::Series::open(&files("safetensors"), None, &[]).unwrap();
    let info = PathInfo::new(Optimizer::Sgd, Rates::constant(0.25, 30));
    for (name, weighting) in [("l2", Weighting::L2(0.125)), ("ratio", Weighting::Ratio(0.5))] {
        let kept = [0, 10, 20, 30];
        let weights = weighting.weights(&kept, Some(&info), Answer::Regularized, afterfit::Stride::Linear).unwrap();
        let file = folder.path().join(format!("average-{name}.safetensors"));
        write(&series, &weights.weights, &file, &PLAIN).unwrap();
        same(&file);
    }
}
