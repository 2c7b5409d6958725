//! Paths on disk.

use afterfit::average::averages;
use afterfit::optimizer::{Method, RateSchedule};
use afterfit::path::{Path, Recording, StoredPath, record};
use afterfit::scheme::{Answer, Stride, Weighting};

use crate::common::*;

#[test]
fn a_recorded_path_is_the_live_one() {
    let mut rng = rng(71);
    let objective = quadratic(&mut rng, &log_spectrum(5, 1e-2, 1.0), 2);
    let center = vector(&mut rng, 10);
    let schedule = RateSchedule::Cosine { base: 0.9, floor: 0.1, steps: 120 };
    let mut live = run(&objective, Method::Nesterov { momentum: 0.8 }, schedule, 120, Some(&center));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.safetensors");
    record(&mut live, Recording::Every(1), &file).unwrap();
    let mut stored = StoredPath::open(&file).unwrap();
    assert_eq!(stored.info(), live.info());
    assert_eq!(stored.center(), live.center());
    assert_eq!(iterates(&mut stored), iterates(&mut live));
    let strengths: Vec<Weighting> = (0..9).map(|i| Weighting::L2(10_f64.powi(i - 5))).collect();
    for answer in [Answer::Regularized, Answer::Normalized] {
        let a = averages(&mut stored, &strengths, answer, Stride::Linear).unwrap();
        let b = averages(&mut live, &strengths, answer, Stride::Linear).unwrap();
        assert!(a.iter().zip(&b).all(|(a, b)| a.weights == b.weights));
    }
    // The same run is the same bytes, and the file is an ordinary one.
    let again = folder.path().join("again.safetensors");
    record(&mut live, Recording::Every(1), &again).unwrap();
    assert_eq!(std::fs::read(&file).unwrap(), std::fs::read(&again).unwrap());
}

#[test]
fn coordinatewise_paths_keep_their_factors() {
    let mut rng = rng(72);
    let objective = quadratic(&mut rng, &log_spectrum(4, 1e-2, 1.0), 1);
    let eigen = objective.diagonalize().unwrap();
    let factors = eigen.eigenvalues.iter().map(|e| 1.0 / (e + 0.01)).collect();
    let mut live = run(&eigen.quadratic, Method::Coordinatewise { factors }, RateSchedule::Constant(0.5), 40, None);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.safetensors");
    record(&mut live, Recording::Every(1), &file).unwrap();
    let mut stored = StoredPath::open(&file).unwrap();
    let strengths = [Weighting::L2(0.1)];
    let a = averages(&mut stored, &strengths, Answer::Regularized, Stride::Linear).unwrap();
    let b = averages(&mut live, &strengths, Answer::Regularized, Stride::Linear).unwrap();
    assert_eq!(a[0].weights, b[0].weights);
    // A strided one cannot be weighted by coordinate: said, not guessed.
    record(&mut live, Recording::Every(5), &file).unwrap();
    let error =
        averages(&mut StoredPath::open(&file).unwrap(), &strengths, Answer::Regularized, Stride::Linear).unwrap_err();
    assert_eq!(error.to_string(), "number of kept iterates is 9: it must be 41, every one");
}

#[test]
fn log_spaced_recording_serves_large_and_small_strengths() {
    let mut rng = rng(73);
    let objective = quadratic(&mut rng, &log_spectrum(6, 1e-2, 1.0), 1);
    let mut live = run(&objective, Method::Descent, RateSchedule::Constant(0.5), 20_000, None);
    let recording = Recording::LogSpaced { dense: 50, density: 40 };
    let kept = recording.kept(20_000).unwrap();
    assert!(kept.len() < 400 && kept[..50] == (0..50).collect::<Vec<u64>>() && kept.last() == Some(&20_000));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.safetensors");
    record(&mut live, recording, &file).unwrap();
    let mut stored = StoredPath::open(&file).unwrap();
    for l2 in [10.0, 0.1, 1e-3] {
        let found = averages(&mut stored, &[Weighting::L2(l2)], Answer::Regularized, Stride::Linear).unwrap();
        let direct = objective.solve(l2, &[0.0; 6], None).unwrap();
        assert!(relative(&found[0].weights, &direct) < 1e-2, "λ={l2}: {:e}", relative(&found[0].weights, &direct));
    }
}

#[test]
fn an_interrupted_recording_leaves_nothing() {
    // The visitor fails half way: no file under the final name, no stray temporary one.
    let mut rng = rng(74);
    let objective = quadratic(&mut rng, &[1.0, 2.0], 1);
    let mut diverging = run(&objective, Method::Descent, RateSchedule::Constant(5.0), 1000, None);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.safetensors");
    assert!(record(&mut diverging, Recording::Every(1), &file).is_err());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
