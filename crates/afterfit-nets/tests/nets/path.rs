//! The path of a run: dials of every iterate, runs that stop and go on, networks that learn.

use std::path::{Path, PathBuf};

use afterfit::checkpoint::{Average, Checkpoint, Layout, Series};
use afterfit::dial::DialFile;
use afterfit::files::atomic::Existing;
use afterfit::stride::kept_weights;
use afterfit::{Answer, Optimizer, PathInfo, RateRun, Stride, Target};
use afterfit_nets::augment::{Augmenter, Epoch, REFRESHING};
use afterfit_nets::checkpoint;
use afterfit_nets::data::Data;
use afterfit_nets::findings::EpochLine;
use afterfit_nets::measure::Refresher;
use afterfit_nets::net::Mode;
use afterfit_nets::run::{DialRange, Folder, Settings};
use afterfit_nets::study::checkpoints;
use afterfit_nets::train::{self, Options, Trained};
use tch::{Device, Kind, Tensor};

use crate::{QUIET, small_cifar, tiny};

fn run(settings: &Settings, folder: &Path, data: &Data, options: Options) -> Trained {
    train::train(settings, &Folder(folder.into()), data, Device::Cpu, options).expect("a run")
}

fn load(settings: &Settings, place: &Path, count: usize) -> Data {
    small_cifar(place, count);
    settings.data.load(place, Device::Cpu).expect("data")
}

fn bytes(path: PathBuf) -> Vec<u8> {
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn farthest(a: &Tensor, b: &Tensor) -> f64 {
    (a - b).abs().max().double_value(&[])
}

/// All images in one batch: each epoch is one step, so its checkpoints are the iterates.
#[test]
fn a_dial_is_the_average_of_the_stored_iterates() {
    let place = tempfile::tempdir().expect("a folder");
    // (Written out: what settings make of their own momentum is under test, too.)
    let heavy_ball = Optimizer::HeavyBall { momentum: 0.8, dampening: 0.0 };
    let nesterov = Optimizer::Nesterov { momentum: 0.8 };
    for (name, optimizer) in [("plain", Optimizer::Sgd), ("heavy-ball", heavy_ball), ("nesterov", nesterov)] {
        let momentum = if name == "plain" { 0.0 } else { 0.8 };
        let settings = Settings { momentum, nesterov: name == "nesterov", rate: 0.05, ..tiny(24, 60) };
        let data = load(&settings, &place.path().join("data"), 60);
        let folder = place.path().join(name);
        let mut trained = run(&settings, &folder, &data, QUIET);
        let mut dial = trained.dial.take().expect("a dial");
        assert_eq!(dial.tracker().steps(), 24);

        // The start is an iterate, too: written like the others.
        let start = train::start(&settings, Device::Cpu);
        let first = place.path().join(format!("start-{name}.safetensors"));
        checkpoint::Snapshot::of(&start, Default::default()).expect("a copy").write(&first).expect("a file");
        let mut paths = vec![first];
        paths.extend(checkpoints(&Folder(folder.clone()), &settings, 1..=24).expect("checkpoints"));
        let runs = [RateRun { steps: 12, rate: 0.05 }, RateRun { steps: 12, rate: 0.005 }];
        let path = PathInfo::new(optimizer, runs.into_iter().collect());
        let series = Series::open(&paths, None, &[]).expect("a series");
        let layout = Layout { single: true, existing: Existing::Replace, ..Layout::default() };
        let file = DialFile::open(&Folder(folder).dial()).expect("the dial's file");
        let strengths: Vec<f64> = dial.nodes().values().to_vec();
        let kept: Vec<u64> = (0..=24).collect();
        let mut moved = 0.0_f64;
        for answer in [Answer::Regularized, Answer::Normalized] {
            for &l2 in &strengths {
                let weights = kept_weights(&path, l2, &kept, Stride::Left).expect("weights");
                let out = place.path().join("average.safetensors");
                let average =
                    Average { path: out.clone(), weights: vec![weights.weights(answer)], record: "{}".into() };
                series.write(&[average], &layout, &|_| {}).expect("an average");
                let ours = trained.model.with(trained.model.weights.copy());
                checkpoint::load(&ours, &out).expect("the average");
                let read = dial.read(&trained.model.weights, l2, answer).expect("a reading").weights;
                assert!(farthest(&read, &ours.weights) < 2e-6, "λ {l2:e}: {:e}", farthest(&read, &ours.weights));
                moved = moved.max(farthest(&read, &trained.model.weights));

                // `afterfit dial read` gives the same model.
                let out = place.path().join("read.safetensors");
                let mut averages = [Average { path: out.clone(), weights: Vec::new(), record: "{}".into() }];
                file.write(&file.series(&out), &[Target::L2(l2)], answer, &mut averages, &layout, &|_| {})
                    .expect("a reading of the file");
                checkpoint::load(&ours, &out).expect("the reading");
                assert!(farthest(&read, &ours.weights) < 2e-6);
            }
        }
        assert!(moved > 0.01, "every average is the last iterate: this tests nothing");
        assert!(file.tracker.paths()[0].rates.runs().eq(runs));
        assert!(file.reach[0] > 0.0);
        // Between the nodes, within the certificate.
        let l2 = (strengths[3] * strengths[4]).sqrt();
        let bound = file.reading(&Target::L2(l2), Answer::Regularized).expect("a certificate").error;
        let weights = kept_weights(&path, l2, &kept, Stride::Left).expect("weights");
        let out = place.path().join("between.safetensors");
        let average =
            Average { path: out.clone(), weights: vec![weights.weights(Answer::Regularized)], record: "{}".into() };
        series.write(&[average], &layout, &|_| {}).expect("an average");
        let ours = trained.model.with(trained.model.weights.copy());
        checkpoint::load(&ours, &out).expect("the average");
        let read = dial.read(&trained.model.weights, l2, Answer::Regularized).expect("a reading").weights;
        assert!(farthest(&read, &ours.weights) <= bound + 2e-6);
    }
}

#[test]
fn a_run_that_stops_and_goes_on_ends_the_same() {
    let place = tempfile::tempdir().expect("a folder");
    for momentum in [0.0, 0.9] {
        let mut settings = Settings { momentum, rate: 0.02, ..tiny(4, 50) };
        settings.dial = Some(DialRange { from: 1e-3, to: 1.0, nodes: 8, start: 1 });
        let data = load(&settings, &place.path().join("data"), 200);
        let whole = Folder(place.path().join(format!("whole-{momentum}")));
        let parts = Folder(place.path().join(format!("parts-{momentum}")));
        run(&settings, &whole.0, &data, QUIET);
        for stop in [1, 3] {
            let stopped = run(&settings, &parts.0, &data, Options { stop_after: Some(stop), ..QUIET });
            assert_eq!(stopped.epoch, stop);
            assert!(!parts.dial().exists());
        }
        // A kill after a later checkpoint and before the next state: what comes after the state is done again.
        std::fs::write(checkpoint::path(&parts.checkpoints(), 4), b"another path's").expect("a file");
        let line = EpochLine { epoch: 4, ..parts.log().expect("a log")[2].clone() };
        parts.append(&line).expect("a line too many");
        let log = std::fs::read_to_string(parts.0.join("log.jsonl")).expect("the log");
        std::fs::write(parts.0.join("log.jsonl"), log + "{\"epoch\": 5, \"st").expect("half a line more");
        run(&settings, &parts.0, &data, Options { save_every: 3, ..QUIET });
        for epoch in 1..=4 {
            let files = [&whole, &parts].map(|folder| bytes(checkpoint::path(&folder.checkpoints(), epoch)));
            assert!(files[0] == files[1], "epoch {epoch}, momentum {momentum}");
        }
        assert!(bytes(whole.dial()) == bytes(parts.dial()), "the dials differ");
        assert!(bytes(whole.state()) == bytes(parts.state()), "the states differ");
        let losses = |folder: &Folder| -> Vec<(u64, f64)> {
            folder.log().expect("a log").iter().map(|line| (line.epoch, line.loss)).collect()
        };
        assert_eq!(losses(&whole), losses(&parts));
        // Nothing is left to do, and nothing changes.
        let before = bytes(parts.state());
        assert_eq!(run(&settings, &parts.0, &data, QUIET).epoch, 4);
        assert!(bytes(parts.state()) == before);
    }
    let settings = Settings { rate: 0.3, ..tiny(4, 50) };
    let data = load(&settings, &place.path().join("data"), 200);
    let error = train::train(&settings, &Folder(place.path().join("whole-0")), &data, Device::Cpu, QUIET);
    let error = error.expect_err("other settings").to_string();
    assert!(error.contains("other settings"), "{error}");
}

#[test]
fn training_learns_and_is_described() {
    let place = tempfile::tempdir().expect("a folder");
    let settings = Settings { width: 4, ..tiny(6, 25) };
    let data = load(&settings, &place.path().join("data"), 400);
    let folder = Folder(place.path().join("run"));
    let trained = run(&settings, &folder.0, &data, Options { evaluate_every: 2, ..QUIET });
    let log = &trained.log;
    assert_eq!(log.iter().map(|line| line.epoch).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(
        log.iter().map(|line| line.test_accuracy.is_some()).collect::<Vec<_>>(),
        [false, true, false, true, false, true]
    );
    let (first, last) = (&log[0], &log[5]);
    assert!(last.loss < 0.7 * first.loss, "{} → {}", first.loss, last.loss);
    assert!(last.test_accuracy > Some(40.0), "{:?}", last.test_accuracy);
    assert_eq!((first.rate, last.rate, last.step), (0.1, 0.01, 6 * 16));
    // What `afterfit average` needs is in the checkpoints: the rate is that of the step that comes next.
    let at = |epoch| Checkpoint::open(&checkpoint::path(&folder.checkpoints(), epoch), None).expect("a checkpoint");
    let training = at(3).training;
    assert_eq!((training.rate(), training.step, training.epoch), (Some(0.01), Some(48), Some(3)));
    assert_eq!(at(2).training.rate(), Some(0.1));
    assert_eq!(training.groups[0].weight_decay, Some(5e-4));
}

#[test]
fn a_diverging_run_says_so() {
    let place = tempfile::tempdir().expect("a folder");
    let settings = Settings { rate: 100.0, weight_decay: 1.0, drops: Vec::new(), ..tiny(6, 25) };
    let data = load(&settings, &place.path().join("data"), 200);
    let folder = Folder(place.path().join("run"));
    let error = train::train(&settings, &folder, &data, Device::Cpu, QUIET).expect_err("an infinite loss").to_string();
    assert!(error.contains("diverged in epoch") && error.contains("below"), "{error}");
}

/// The mean of the batches' own statistics, computed another way: running means with a share of 1/(i+1).
#[test]
fn refreshing_takes_the_mean_over_augmented_batches() {
    let place = tempfile::tempdir().expect("a folder");
    let settings = tiny(1, 50);
    let data = load(&settings, &place.path().join("data"), 220);
    let model = train::start(&settings, Device::Cpu);
    Refresher::new(&data.train, 50, 9, false).expect("a pass").refresh(&model).expect("fresh statistics");
    let expected = model.with(model.weights.copy());
    expected.reset_statistics();
    let _guard = tch::no_grad_guard();
    let epoch = Epoch::draw(220, 9, REFRESHING);
    let augmenter = Augmenter::new(&data.train);
    for at in 0..4 {
        let (pixels, _) = augmenter.images(&epoch, 50 * at, 50);
        let batch = data.train.normalized(&pixels, Kind::Float);
        let _ = expected.scores(&batch, Mode::Batch(1.0 / (at + 1) as f64));
    }
    assert!(farthest(&model.statistics, &expected.statistics) < 1e-5);
    let clean = data.train.normalized(&data.train.pixels, Kind::Float);
    let _ = expected.scores(&clean, Mode::Batch(1.0));
    assert!(farthest(&model.statistics, &expected.statistics) > 1e-2, "clean images have other statistics");
}

/// Which images are noisy has nothing to do with the order in which the first epoch shows them.
#[test]
fn random_streams_are_apart() {
    let place = tempfile::tempdir().expect("a folder");
    let clean = tiny(1, 50);
    let mut noisy = clean.clone();
    noisy.data.label_noise = 0.5;
    let clean = load(&clean, &place.path().join("data"), 400);
    let noisy = load(&noisy, &place.path().join("data"), 400);
    let is_wrong: Vec<bool> = {
        let [a, b] = [&clean, &noisy].map(|data| Vec::<i64>::try_from(&data.train.labels).expect("labels"));
        a.iter().zip(&b).map(|(a, b)| a != b).collect()
    };
    let (_, order) = Augmenter::new(&noisy.train).images(&Epoch::draw(400, 3, 0), 0, 200);
    let shown: Vec<i64> = Vec::try_from(&order).expect("positions");
    let early = shown.iter().filter(|&&at| is_wrong[at as usize]).count();
    assert!((60..=120).contains(&early), "{early} of the first 200 images are noisy");
}

#[test]
fn a_run_that_has_ended_does_not_start_again() {
    let place = tempfile::tempdir().expect("a folder");
    let settings = tiny(1, 50);
    let data = load(&settings, &place.path().join("data"), 100);
    let folder = Folder(place.path().join("run"));
    run(&settings, &folder.0, &data, QUIET);
    let before = bytes(checkpoint::path(&folder.checkpoints(), 1));
    std::fs::remove_file(folder.state()).expect("the state");
    let error = train::train(&settings, &folder, &data, Device::Cpu, QUIET).expect_err("nothing to resume from");
    assert!(error.to_string().contains("this run of 1 epochs can neither go on"), "{error}");
    assert!(bytes(checkpoint::path(&folder.checkpoints(), 1)) == before);

    // One that was killed while its first state was written does.
    let (settings, folder) = (tiny(2, 50), Folder(place.path().join("killed")));
    run(&settings, &folder.0, &data, Options { stop_after: Some(1), ..QUIET });
    let before = bytes(checkpoint::path(&folder.checkpoints(), 1));
    std::fs::remove_file(folder.state()).expect("the state");
    assert_eq!(run(&settings, &folder.0, &data, QUIET).epoch, 2);
    assert!(bytes(checkpoint::path(&folder.checkpoints(), 1)) == before, "the same again");
}

/// What was saved is checked against the run before it is believed.
#[test]
fn a_state_that_is_not_this_runs_is_refused() {
    let place = tempfile::tempdir().expect("a folder");
    let settings = tiny(3, 50);
    let data = load(&settings, &place.path().join("data"), 100);
    let folder = Folder(place.path().join("run"));
    run(&settings, &folder.0, &data, Options { stop_after: Some(2), ..QUIET });
    let again = |data: &Data| {
        let error = train::train(&settings, &folder, data, Device::Cpu, QUIET).expect_err("a refusal");
        format!("{error:#}")
    };
    let whole = bytes(folder.state());
    for (from, to, expected) in [
        ("\"epoch\":\"2\"", "\"epoch\":\"9\"", "its epoch is 9"),
        ("\"epoch\":\"2\"", "\"epoch\":\"1\"", "its rates are not"),
        ("\"images\":\"", "\"images\":\"9", "other images"),
        ("\"layout\":\"channels first\"", "\"layout\":\"channels last_\"", "another kind of device"),
    ] {
        let text: String = whole.iter().map(|&byte| byte as char).collect();
        assert!(text.contains(from), "{from}");
        let mut spoiled: Vec<u8> = text.replacen(from, to, 1).chars().map(|c| c as u8).collect();
        let header = u64::from_le_bytes(whole[..8].try_into().expect("a length"));
        let longer = (spoiled.len() - whole.len()) as u64;
        spoiled[..8].copy_from_slice(&(header + longer).to_le_bytes());
        std::fs::write(folder.state(), spoiled).expect("a state");
        let error = again(&data);
        assert!(error.contains(expected), "{to}: {error}");
    }
    std::fs::write(folder.state(), &whole).expect("the state");
    // Other test images: what was measured of them would not go with what is to come.
    let mut other = load(&settings, &place.path().join("data"), 60);
    other.test.labels = other.test.labels.flip([0]);
    assert!(again(&other).contains("other images"));
    let lock = folder.lock().expect("a free folder");
    assert!(again(&data).contains("in use by another process"));
    drop(lock);
    std::fs::remove_file(folder.0.join("log.jsonl")).expect("the log");
    assert!(again(&data).contains("does not have the epochs 1 to 2"));
}
