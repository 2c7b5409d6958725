//! Averages of checkpoint files against an obvious reference, for every type and format.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use afterfit::checkpoint::{
    Average, Checkpoint, DialSetting, Format, GroupState, Layout, PathSettings, Provenance, RateSource, Series,
    StepsFrom, Timeline, Training, Treatment, number,
};
use afterfit::dial::{Dial, DialDraft, DialFile, Part};
use afterfit::files::atomic::Existing;
use afterfit::files::safetensors::write_safetensors;
use afterfit::run::{Method, Path as _, RateSchedule, averages};
use afterfit::stride::{kept_weights, strided};
use afterfit::tracker::Precision;
use afterfit::weighting::{EmaStart, Window};
use afterfit::{
    Answer, GroupMasses, Groups, Nodes, Optimizer, PathInfo, RateRun, Rates, Stride, Target, Tracker, Weighting,
};
use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};

use crate::common::{log_spectrum, quadratic, rng, run, uniform};

pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

pub(crate) fn files(folder: &str) -> Vec<PathBuf> {
    let name = |step: u64| match folder {
        "legacy" => format!("checkpoint_{step}.pth.tar"),
        "wrapped" => format!("epoch={step}.ckpt"),
        "safetensors" => format!("step-{step}.safetensors"),
        _ => format!("step-{step}.pt"),
    };
    [0, 10, 20, 30].iter().map(|&step| fixtures().join(folder).join(name(step))).collect()
}

pub(crate) const PLAIN: Layout = Layout {
    format: Format::Safetensors,
    dtype: None,
    shard_bytes: None,
    single: false,
    memory: None,
    existing: Existing::Replace,
};

pub(crate) fn write(series: &Series, weights: &[f64], path: &Path, layout: &Layout) -> afterfit::Result<()> {
    let average = Average { path: path.into(), weights: vec![weights.to_vec()], record: "{\"kind\":\"test\"}".into() };
    series.write(&[average], layout, &|_| {})?;
    Ok(())
}

fn ratio_weights(ratio: f64, count: u64, answer: Answer) -> Result<Vec<f64>, afterfit::OutOfRange> {
    let kept: Vec<u64> = (0..count).collect();
    Ok(Weighting::Ratio(ratio).weights(&kept, None, answer, Stride::Linear)?.weights)
}

/// Tensors by name, as numbers.
pub(crate) type Numbers = BTreeMap<String, (Dtype, Vec<usize>, Vec<f64>)>;

fn eight_bit(dtype: Dtype, bits: u8) -> f64 {
    let (exponent_bits, fraction_bits, bias) = if dtype == Dtype::F8_E4M3 { (4, 3, 7) } else { (5, 2, 15) };
    let sign = if bits & 0x80 != 0 { -1.0 } else { 1.0 };
    let exponent = i32::from(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    let fraction = f64::from(bits & ((1 << fraction_bits) - 1)) / f64::from(1 << fraction_bits);
    match exponent {
        0 => sign * fraction * 2.0_f64.powi(1 - bias),
        _ => sign * (1.0 + fraction) * 2.0_f64.powi(exponent - bias),
    }
}

pub(crate) fn numbers(file: &Path) -> Numbers {
    if file.is_dir() {
        let inside = std::fs::read_dir(file).unwrap().map(|entry| entry.unwrap().path());
        return inside
            .filter(|path| path.extension().is_some_and(|e| e == "safetensors"))
            .flat_map(|path| numbers(&path))
            .collect();
    }
    let bytes = std::fs::read(file).unwrap();
    let parsed = SafeTensors::deserialize(&bytes).unwrap();
    let values = |dtype: Dtype, data: &[u8]| -> Vec<f64> {
        match dtype {
            Dtype::F64 => data.chunks(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect(),
            Dtype::F32 => data.chunks(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect(),
            Dtype::F16 => data.chunks(2).map(|b| f16::from_le_bytes(b.try_into().unwrap()).to_f64()).collect(),
            Dtype::BF16 => data.chunks(2).map(|b| bf16::from_le_bytes(b.try_into().unwrap()).to_f64()).collect(),
            Dtype::F8_E4M3 | Dtype::F8_E5M2 => data.iter().map(|&b| eight_bit(dtype, b)).collect(),
            Dtype::I64 => data.chunks(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as f64).collect(),
            Dtype::I32 => data.chunks(4).map(|b| f64::from(i32::from_le_bytes(b.try_into().unwrap()))).collect(),
            Dtype::U16 => data.chunks(2).map(|b| f64::from(u16::from_le_bytes(b.try_into().unwrap()))).collect(),
            _ => data.iter().map(|&b| f64::from(b)).collect(),
        }
    };
    parsed
        .tensors()
        .into_iter()
        .map(|(name, view)| (name, (view.dtype(), view.shape().to_vec(), values(view.dtype(), view.data()))))
        .collect()
}

/// The obvious reference: Σ p_k w_k in f64, rounded to the tensor's type; everything else from the last checkpoint.
fn reference(files: &[PathBuf], weights: &[f64], dtype: Option<Dtype>) -> Numbers {
    let all: Vec<Numbers> = files.iter().map(|file| numbers(file)).collect();
    let mut result = all.last().unwrap().clone();
    for (name, (own, _, values)) in &mut result {
        let float = matches!(own, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::F8_E4M3 | Dtype::F8_E5M2);
        if !float {
            continue;
        }
        if !name.ends_with("running_mean") && !name.ends_with("running_var") {
            for (i, value) in values.iter_mut().enumerate() {
                *value = weights.iter().zip(&all).map(|(weight, numbers)| weight * numbers[name].2[i]).sum();
            }
        }
        *own = dtype.unwrap_or(*own);
        for value in values {
            *value = match own {
                Dtype::F32 => f64::from(*value as f32),
                Dtype::F16 => f16::from_f64(*value).to_f64(),
                Dtype::BF16 => bf16::from_f64(*value).to_f64(),
                Dtype::F8_E4M3 | Dtype::F8_E5M2 => {
                    // The nearest of all finite values; of two, the one with the even pattern.
                    let last = if *own == Dtype::F8_E4M3 { 0x7e } else { 0x7b };
                    let codes = (0..=last).flat_map(|code: u8| [code, code | 0x80]);
                    let distance = |code: u8| (eight_bit(*own, code) - *value).abs();
                    let nearest =
                        codes.min_by(|&a, &b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1))));
                    eight_bit(*own, nearest.unwrap())
                }
                _ => *value,
            };
        }
    }
    result
}

/// Equal, but for the last digits of f64, where sums are ordered differently.
#[track_caller]
fn assert_same(found: &Numbers, expected: &Numbers) {
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, (dtype, shape, values)) in expected {
        let (found_dtype, found_shape, found_values) = &found[name];
        assert_eq!((found_dtype, found_shape), (dtype, shape), "{name}");
        for (found, value) in found_values.iter().zip(values) {
            let tolerance = if *dtype == Dtype::F64 { 1e-14 * value.abs().max(1.0) } else { 0.0 };
            assert!((found - value).abs() <= tolerance, "{name} {dtype:?}: {found} instead of {value}");
        }
    }
}

#[test]
fn every_type_and_format_equals_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    let twins = files("safetensors");
    let out = folder.path().join("out.safetensors");
    for weights in [
        (Weighting::Ratio(0.9), Answer::Normalized),
        (Weighting::Ratio(0.5), Answer::Regularized),
        (Weighting::Mean(Window::All), Answer::Normalized),
        (Weighting::Mean(Window::Last(2)), Answer::Normalized),
        (Weighting::Ema { decay: 0.7, start: EmaStart::First }, Answer::Normalized),
    ]
    .map(|(weighting, answer)| weighting.weights(&[0, 1, 2, 3], None, answer, Stride::Linear).unwrap().weights)
    {
        let expected = reference(&twins, &weights, None);
        for format in ["safetensors", "plain", "legacy"] {
            let series = Series::open(&files(format), None, &[]).unwrap();
            write(&series, &weights, &out, &PLAIN).unwrap();
            let mut expected = expected.clone();
            if format == "legacy" {
                // The old format has no such types.
                expected.retain(|name, _| !["e4m3", "e5m2", "codes"].contains(&name.as_str()));
            }
            assert_same(&numbers(&out), &expected);
        }
    }
}

#[test]
fn geometric_weights_are_those_of_the_paper() {
    let weights = ratio_weights(0.99, 240, Answer::Normalized).unwrap();
    let total: f64 = (0..240).map(|j| 0.99_f64.powi(j)).sum();
    for (j, weight) in weights.iter().enumerate() {
        assert!((weight - 0.99_f64.powi(j as i32) / total).abs() < 1e-16);
    }
    // The regularized kind keeps what is unspent for the last.
    let weights = ratio_weights(0.99, 240, Answer::Regularized).unwrap();
    assert!((weights[3] - 0.01 * 0.99_f64.powi(3)).abs() < 1e-16);
    assert!((weights[239] - 0.99_f64.powi(239)).abs() < 1e-15 && (weights.iter().sum::<f64>() - 1.0).abs() < 1e-14);
}

#[test]
fn every_output_type_is_rounded_once() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.safetensors");
    let weights = ratio_weights(0.8, 4, Answer::Normalized).unwrap();
    let series = Series::open(&files("plain"), None, &[]).unwrap();
    for dtype in [Dtype::F64, Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::F8_E4M3, Dtype::F8_E5M2] {
        write(&series, &weights, &out, &Layout { dtype: Some(dtype), ..PLAIN }).unwrap();
        assert_same(&numbers(&out), &reference(&files("safetensors"), &weights, Some(dtype)));
    }
}

#[test]
fn every_output_format_reads_back_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let weights = ratio_weights(0.9, 4, Answer::Normalized).unwrap();
    let series = Series::open(&files("plain"), None, &[]).unwrap();
    let out = |name: &str| folder.path().join(name);
    let expected = {
        write(&series, &weights, &out("a.safetensors"), &PLAIN).unwrap();
        numbers(&out("a.safetensors"))
    };
    // What was written is read again and written as plain safetensors: the numbers must be the same.
    let again = |path: PathBuf| {
        let name = path.with_extension("again");
        let series = Series::open(&[path], None, &["*".into()]).unwrap();
        write(&series, &[1.0], &name, &PLAIN).unwrap();
        (numbers(&name), series)
    };
    write(&series, &weights, &out("b.pt"), &Layout { format: Format::Torch, ..PLAIN }).unwrap();
    let (found, reread) = again(out("b.pt"));
    assert_same(&found, &expected);
    assert!(matches!(reread.treatments[1], Treatment::Tied(0)), "{:?}", reread.treatments);
    // numpy has neither bfloat16 nor 8-bit floats.
    let error = write(&series, &weights, &out("c.npz"), &Layout { format: Format::Npz, ..PLAIN }).unwrap_err();
    assert!(error.to_string().contains("numpy has no type"), "{error}");
    write(&series, &weights, &out("c.npz"), &Layout { format: Format::Npz, dtype: Some(Dtype::F32), ..PLAIN }).unwrap();
    assert_same(&again(out("c.npz")).0, &reference(&files("safetensors"), &weights, Some(Dtype::F32)));
    // Shards of at most 300 bytes, with an index.
    write(&series, &weights, &out("sharded"), &Layout { shard_bytes: Some(300), ..PLAIN }).unwrap();
    let index = std::fs::read_to_string(out("sharded").join("model.safetensors.index.json")).unwrap();
    assert!(index.contains("model-00001-of-0000"), "{index}");
    assert_same(&again(out("sharded")).0.clone(), &expected);
}

#[test]
fn a_sharded_folder_keeps_its_shards_and_sidecars() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let weights = [0.25, 0.75];
    let whole = Series::open(&files("plain")[..1], None, &[]).unwrap();
    let later = Series::open(&files("plain")[3..], None, &[]).unwrap();
    for (series, name) in [(&whole, "checkpoint-100"), (&later, "checkpoint-200")] {
        write(series, &[1.0], &at(name), &Layout { shard_bytes: Some(400), ..PLAIN }).unwrap();
        std::fs::write(at(name).join("config.json"), name).unwrap();
        std::fs::write(at(name).join("optimizer.pt"), "junk").unwrap();
        std::fs::write(at(name).join("trainer_state.json"), "{}").unwrap();
    }
    let found = afterfit::checkpoint::expand(&[folder.path().into()], None).unwrap();
    assert_eq!(found, [at("checkpoint-100"), at("checkpoint-200")]);
    let series = Series::open(&found, None, &[]).unwrap();
    write(&series, &weights, &at("average"), &PLAIN).unwrap();
    let names = |folder: &Path| {
        let mut names: Vec<String> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let mut expected = names(&at("checkpoint-100"));
    expected.retain(|name| name != "optimizer.pt" && name != "trainer_state.json");
    assert_eq!(names(&at("average")), expected);
    assert_eq!(std::fs::read_to_string(at("average").join("config.json")).unwrap(), "checkpoint-200");
    for name in expected.iter().filter(|name| name.ends_with(".safetensors")) {
        let (a, b) = (numbers(&at("average").join(name)), numbers(&at("checkpoint-100").join(name)));
        assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
    }
    // Replacing a folder leaves no rest of the old one.
    std::fs::write(at("average").join("old.txt"), "x").unwrap();
    write(&series, &weights, &at("average"), &PLAIN).unwrap();
    assert!(!at("average").join("old.txt").exists());
}

#[test]
fn results_do_not_depend_on_chunks_threads_or_company() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = rng(3);
    // More checkpoints than are read at a time, tensors that are no multiple of anything.
    let paths: Vec<PathBuf> = (0..150)
        .map(|k| {
            let path = folder.path().join(format!("step{k}.safetensors"));
            let values: Vec<f32> = (0..20_011).map(|_| uniform(&mut random, -1.0, 1.0) as f32).collect();
            let halves: Vec<u16> = (0..333).map(|_| f16::from_f64(uniform(&mut random, -1.0, 1.0)).to_bits()).collect();
            let view = |dtype, shape, data| safetensors::tensor::TensorView::new(dtype, shape, data).unwrap();
            let number = [f64::from(k) / 7.0];
            let tensors = [
                ("a", view(Dtype::F32, vec![20_011], bytemuck::cast_slice(&values))),
                ("b", view(Dtype::F16, vec![333], bytemuck::cast_slice(&halves))),
                ("c", view(Dtype::F64, vec![], bytemuck::cast_slice(&number))),
            ];
            safetensors::serialize_to_file(tensors, None, &path).unwrap();
            path
        })
        .collect();
    let series = Series::open(&paths, None, &[]).unwrap();
    let strengths: Vec<Vec<f64>> =
        (0..13).map(|i| ratio_weights(0.9 + 0.005 * f64::from(i), 150, Answer::Normalized).unwrap()).collect();
    let out = |name: String| folder.path().join(name);
    write(&series, &strengths[5], &out("alone.safetensors".into()), &PLAIN).unwrap();
    let alone = std::fs::read(out("alone.safetensors".into())).unwrap();
    assert_same(&numbers(&out("alone.safetensors".into())), &reference(&paths, &strengths[5], None));
    for (memory, threads) in [(1, 1), (1 << 16, 2), (1 << 22, 3), (1 << 28, 1)] {
        let averages: Vec<Average> = strengths
            .iter()
            .enumerate()
            .map(|(i, weights)| Average {
                path: out(format!("{i}-of-many.safetensors")),
                weights: vec![weights.clone()],
                record: "{\"kind\":\"test\"}".into(),
            })
            .collect();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let layout = Layout { memory: Some(memory), ..PLAIN };
        pool.install(|| series.write(&averages, &layout, &|_| {})).unwrap();
        assert!(
            std::fs::read(out("5-of-many.safetensors".into())).unwrap() == alone,
            "memory {memory}, {threads} threads"
        );
    }
    // A tensor that never changes comes out bit for bit, whatever the weights.
    let same = Series::open(&[paths[7].clone(), paths[7].clone(), paths[7].clone()], None, &[]).unwrap();
    write(&same, &[0.1, 0.2, 0.7], &out("same.safetensors".into()), &PLAIN).unwrap();
    assert_eq!(numbers(&out("same.safetensors".into())), numbers(&paths[7]));
}

#[test]
fn more_checkpoints_than_files_may_be_open() {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = (0..1100)
        .map(|k| {
            let path = folder.path().join(format!("{k}.safetensors"));
            let data = [k as f32, 1.0];
            let view = safetensors::tensor::TensorView::new(Dtype::F32, vec![2], bytemuck::cast_slice(&data)).unwrap();
            safetensors::serialize_to_file([("w", view)], None, &path).unwrap();
            path
        })
        .collect();
    let series = Series::open(&paths, None, &[]).unwrap();
    let out = folder.path().join("out.safetensors");
    write(&series, &[1.0 / 1100.0; 1100], &out, &PLAIN).unwrap();
    assert_eq!(numbers(&out)["w"].2, [549.5, 1.0]);
}

#[test]
fn kept_weights_are_strided_weights() {
    let runs = [RateRun { steps: 70, rate: 0.1 }, RateRun { steps: 90, rate: 0.02 }];
    let rates: Rates = runs.into_iter().collect();
    for optimizer in [
        Optimizer::Sgd,
        Optimizer::HeavyBall { momentum: 0.9, dampening: 0.0 },
        Optimizer::Nesterov { momentum: 0.5 },
        Optimizer::NesterovPaper { alpha: 0.01 },
        Optimizer::Adam { beta1: 0.9, weight_decay: 0.1 },
    ] {
        let path = PathInfo::quadratic(optimizer, rates.clone());
        for kept in [&[0, 40, 70, 100, 160][..], &[13, 14, 160], &[160], &[0, 160]] {
            for l2 in [1e-6, 0.03, 5.0] {
                for rule in [Stride::Linear, Stride::Left] {
                    for answer in [Answer::Regularized, Answer::Normalized] {
                        let found = kept_weights(&path, l2, kept, rule).unwrap();
                        let full = path.weights(l2, answer).unwrap();
                        let expected = strided(&full, kept, rule).unwrap();
                        for (a, b) in found.weights(answer).iter().zip(&expected.spent) {
                            assert!((a - b).abs() < 1e-13, "{optimizer:?} {kept:?} {l2} {rule:?} {answer:?}: {a} {b}");
                        }
                        assert!((found.remaining - path.remaining(l2).unwrap()).abs() < 1e-13);
                        let regularized = path.weights(l2, Answer::Regularized).unwrap();
                        let before: f64 = regularized[..kept[0] as usize].iter().sum();
                        assert!((found.before - before).abs() < 1e-13, "{} {before}", found.before);
                    }
                }
            }
        }
    }
    let path = PathInfo::quadratic(Optimizer::Sgd, rates);
    let refuse = |kept: &[u64]| kept_weights(&path, 0.1, kept, Stride::Linear).is_err();
    assert!(refuse(&[0, 50, 50, 160]) && refuse(&[]) && refuse(&[0, 161]));
}

/// Checkpoints of these numbers, each standing for so many steps.
fn numbered(numbers: &[u64], each: u64) -> Timeline {
    Timeline {
        order: (0..numbers.len()).collect(),
        numbers: numbers.to_vec(),
        steps: numbers.iter().map(|number| number.saturating_mul(each)).collect(),
        each,
        source: StepsFrom::Names,
        notes: Vec::new(),
        batches_each: None,
    }
}

/// What made a series whose rates are given.
fn provenance(series: &Series, numbers: &[u64], rates: &str, optimizer: Optimizer) -> Provenance {
    let settings =
        PathSettings { rates: Some(rates.parse().unwrap()), optimizer: Some(optimizer), ..PathSettings::default() };
    Provenance::of(series, &numbered(numbers, 1), &settings, true).unwrap()
}

/// Stores every iterate of a live path as a checkpoint.
fn stored_path(folder: &Path) -> (Vec<PathBuf>, Vec<f64>, Vec<f64>) {
    let mut random = rng(11);
    let loss = quadratic(&mut random, &log_spectrum(12, 1e-2, 1.0), 1);
    let method = Method::HeavyBall { momentum: 0.6 };
    let mut path = run(&loss, method, RateSchedule::Constant(0.5), 60, None);
    let iterates = crate::common::iterates(&mut path);
    let averaged = averages(&mut path, &[Weighting::L2(0.07)], Answer::Regularized, Stride::Linear).unwrap();
    let files: Vec<PathBuf> = iterates
        .iter()
        .enumerate()
        .map(|(k, weights)| {
            let file = folder.join(format!("step-{k}.safetensors"));
            let view =
                safetensors::tensor::TensorView::new(Dtype::F64, vec![3, 4], bytemuck::cast_slice(weights)).unwrap();
            safetensors::serialize_to_file([("layer.weight", view)], None, &file).unwrap();
            file
        })
        .collect();
    assert_eq!(path.kept().len(), files.len());
    (files, averaged[0].weights.clone(), iterates[0].clone())
}

#[test]
fn checkpoints_of_every_step_give_what_averaging_the_path_gives() {
    let folder = tempfile::tempdir().unwrap();
    let (files, expected, _) = stored_path(folder.path());
    let numbers_of: Vec<u64> = (0..files.len() as u64).collect();
    let series = Series::open(&files, None, &[]).unwrap();
    let made = provenance(&series, &numbers_of, "0.5", Optimizer::HeavyBall { momentum: 0.6, dampening: 0.0 });
    let weights = made.weights(&Weighting::L2(0.07), Answer::Regularized).unwrap().weights;
    let out = folder.path().join("out.safetensors");
    write(&series, &weights[0], &out, &PLAIN).unwrap();
    let found = &numbers(&out)["layer.weight"].2;
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found - expected).abs() < 1e-13, "{found} {expected}");
    }
}

fn written_dial(series: &Series, made: &Provenance, nodes: &Nodes, file: &Path) -> DialFile {
    let setting = DialSetting {
        nodes,
        groups: &made.groups,
        kept: &made.kept,
        remarks: &[],
        doubt: None,
        existing: Existing::Replace,
    };
    series.write_dial(file, &setting, None, &|_| {}).unwrap();
    DialFile::open(file).unwrap()
}

#[test]
fn a_dial_of_checkpoints_gives_every_strength() {
    let folder = tempfile::tempdir().unwrap();
    let (files, _, _) = stored_path(folder.path());
    // Every third checkpoint: steps between are stood in for.
    let kept: Vec<u64> = (0..files.len() as u64).step_by(3).collect();
    let files: Vec<PathBuf> = kept.iter().map(|&k| files[k as usize].clone()).collect();
    let series = Series::open(&files, None, &[]).unwrap();
    let made = provenance(&series, &kept, "0.5", Optimizer::HeavyBall { momentum: 0.6, dampening: 0.0 });
    let nodes = Nodes::new(1e-3, 1.0, 12).unwrap();
    let file = folder.path().join("run.dial");
    let dial = written_dial(&series, &made, &nodes, &file);
    let mut in_memory = Dial::load(&file).unwrap();
    for answer in [Answer::Regularized, Answer::Normalized] {
        let strengths = [nodes.values()[4], 1e-3, 0.0123, 0.4, 1.0];
        let targets = strengths.map(Target::L2);
        let readings = targets.clone().map(|target| dial.reading(&target, answer).unwrap());
        let mut outputs: Vec<Average> = (0..strengths.len())
            .map(|i| Average {
                path: folder.path().join(format!("{i}.safetensors")),
                weights: Vec::new(),
                record: "{}".into(),
            })
            .collect();
        dial.write(&dial.series(&file), &targets, answer, &mut outputs, &PLAIN, &|_| {}).unwrap();
        for ((&l2, output), reading) in strengths.iter().zip(&outputs).zip(&readings) {
            let found = &numbers(&output.path)["layer.weight"].2;
            let weights = made.weights(&Weighting::L2(l2), answer).unwrap().weights;
            let direct = folder.path().join("direct.safetensors");
            write(&series, &weights[0], &direct, &PLAIN).unwrap();
            let memory = in_memory.read(l2, answer).unwrap();
            for ((found, expected), memory) in
                found.iter().zip(&numbers(&direct)["layer.weight"].2).zip(&memory.weights)
            {
                let allowed = reading.error + 1e-13;
                assert!((found - expected).abs() <= allowed, "{l2} {answer:?}: {found} {expected} {}", reading.error);
                assert_eq!(found.to_bits(), memory.to_bits(), "the command and the library: {found} {memory}");
            }
            assert!((memory.certificate - reading.certificate).abs() < 1e-12);
            assert!((memory.remaining - reading.remaining).abs() < 1e-12);
        }
        assert!(readings[0].certificate < 1e-12, "at a node nothing is interpolated: {:?}", readings[0]);
    }
}

#[test]
fn a_dial_keeps_types_copies_and_ties() {
    let folder = tempfile::tempdir().unwrap();
    let series = Series::open(&files("plain"), None, &[]).unwrap();
    let steps = [0, 10, 20, 30];
    let made = provenance(&series, &steps, "0.1,15:0.01", Optimizer::Sgd);
    let nodes = Nodes::new(0.01, 1.0, 6).unwrap();
    let file = folder.path().join("run.dial");
    let dial = written_dial(&series, &made, &nodes, &file);
    let l2 = nodes.values()[2];
    let weights = made.weights(&Weighting::L2(l2), Answer::Regularized).unwrap().weights;
    let expected = reference(&files("safetensors"), &weights[0], None);
    // Loaded and saved again, it still has all that belongs to it.
    let again = folder.path().join("again.dial");
    Dial::load(&file).unwrap().save(&again).unwrap();
    for file in [&file, &again] {
        let dial = DialFile::open(file).unwrap();
        let out = folder.path().join("out.safetensors");
        let mut outputs = [Average { path: out.clone(), weights: Vec::new(), record: "{}".into() }];
        dial.write(&dial.series(file), &[Target::L2(l2)], Answer::Regularized, &mut outputs, &PLAIN, &|_| {}).unwrap();
        assert_same(&numbers(&out), &expected);
        std::fs::remove_file(&out).unwrap();
    }
    assert_eq!(std::fs::read(&file).unwrap(), std::fs::read(&again).unwrap(), "to the byte");
    assert_eq!(dial.series(&file).treatments.iter().filter(|t| matches!(t, Treatment::Tied(_))).count(), 1);
}

#[test]
fn rates_come_from_the_optimizer_in_the_checkpoint() {
    let series = Series::open(&files("wrapped"), None, &[]).unwrap();
    let group = GroupState {
        rate: Some(0.1),
        optimizer: Some(Optimizer::Nesterov { momentum: 0.9 }),
        weight_decay: Some(5e-4),
        ..series.trainings[1].groups[0].clone()
    };
    assert_eq!(series.trainings[1], Training { groups: vec![group], epoch: Some(10), ..Training::default() });
    assert_eq!(series.tensors.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["weight", "bias"]);
    let made = Provenance::of(&series, &numbered(&[0, 10, 20, 30], 5), &PathSettings::default(), true).unwrap();
    assert_eq!(made.kept, [0, 50, 100, 150]);
    assert_eq!(made.optimizer(), Optimizer::Nesterov { momentum: 0.9 });
    let runs: Vec<RateRun> = made.groups.paths()[0].rates.runs().collect();
    assert_eq!(runs, [RateRun { steps: 100, rate: 0.1 }, RateRun { steps: 50, rate: 0.01 }]);
    // A key leads straight to the weights; a wrong one says what there is.
    let file = &files("wrapped")[0];
    assert_eq!(Checkpoint::open(file, Some("model.state_dict")).unwrap().tensors.len(), 2);
    let error = Checkpoint::open(file, Some("ema")).unwrap_err().to_string();
    assert!(error.contains("no key ema (there are: epoch, arch, model"), "{error}");
}

/// A run whose files, one every so many steps from there on, say these rates of SGD and nothing else: no scheduler, no log.
fn set_by_hand(folder: &Path, every: u64, rate: impl Fn(u64) -> f64) -> (Series, Timeline) {
    const STEPS: u64 = 200;
    let steps: Vec<u64> = (1..=STEPS / every).map(|file| file * every).collect();
    let place = |step: &u64| folder.join(format!("step-{step}.safetensors"));
    for step in &steps {
        std::fs::copy(&files("safetensors")[0], place(step)).unwrap();
    }
    let mut series = Series::open(&steps.iter().map(place).collect::<Vec<_>>(), None, &[]).unwrap();
    let said = |&step: &u64| {
        let group = GroupState { rate: Some(rate(step)), optimizer: Some(Optimizer::Sgd), ..GroupState::default() };
        Training { groups: vec![group], ..Training::default() }
    };
    series.trainings = steps.iter().map(said).collect();
    (series, numbered(&steps, 1))
}

/// Half the sum of the differences from the weights that every step's own rate gives.
fn off(made: &Provenance, found: &[f64], l2: f64, rate: impl Fn(u64) -> f64) -> f64 {
    let rates: Rates = (0..200).map(|step| RateRun { steps: 1, rate: rate(step) }).collect();
    let true_path = PathInfo::new(Optimizer::Sgd, rates);
    let weights = kept_weights(&true_path, l2, &made.kept, Stride::Linear).unwrap().weights(Answer::Regularized);
    weights.iter().zip(found).map(|(a, b)| (a - b).abs()).sum::<f64>() / 2.0
}

/// What the command never makes, a program can: it is told what is wrong.
#[test]
fn timelines_and_types_that_cannot_be() {
    let folder = tempfile::tempdir().unwrap();
    let (series, _) = set_by_hand(folder.path(), 100, |_| 0.1);
    let refused = |numbers: &[u64], words: &str| {
        let error = Provenance::of(&series, &numbered(numbers, 1), &PathSettings::default(), true).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        // (Without rates, no λ asks for them.)
        let _ = Provenance::of(&series, &numbered(numbers, 1), &PathSettings::default(), false);
    };
    refused(&[], "no checkpoint was given");
    refused(&[200, 100], "falls from step 200 to 100");
    refused(&[100], "a timeline of 1 checkpoints does not fit a series of 2");
    refused(&[100, u64::MAX], "steps are more than");
    let at = folder.path().join("whole.safetensors");
    for dtype in [Dtype::I64, Dtype::U8, Dtype::BOOL] {
        let layout = Layout { dtype: Some(dtype), ..PLAIN };
        assert!(write(&series, &[0.5, 0.5], &at, &layout).is_err(), "{dtype:?}");
        assert!(!at.exists());
    }
    for weights in [&[][..], &[1.0], &[0.5, 0.25, 0.25], &[f64::NAN, 1.0]] {
        assert!(write(&series, weights, &at, &PLAIN).is_err(), "{weights:?}");
        assert!(!at.exists());
    }
}

/// nanoGPT sets its rate by hand: nothing says that it warmed up before the first file.
#[test]
fn a_warm_up_before_the_first_file_is_not_guessed_away() {
    let folder = tempfile::tempdir().unwrap();
    let cosine = |step: u64| 0.05 * (1.0 + (std::f64::consts::PI * (step as f64 - 18.0) / 182.0).cos());
    let rate = |step: u64| if step < 18 { 0.1 * (step as f64 + 1.0) / 18.0 } else { cosine(step) };
    let reach: f64 = (0..200).map(rate).sum();
    let weights = |every: u64, l2: f64| {
        let (series, timeline) = set_by_hand(folder.path(), every, rate);
        let made = Provenance::of(&series, &timeline, &PathSettings::default(), true).unwrap();
        let found = made.weights(&Weighting::L2(l2), Answer::Regularized);
        found.map(|found| (off(&made, &found.weights[0], l2, rate), found)).map_err(|error| error.to_string())
    };
    for share in [0.3, 2.0, 10.0] {
        let error = weights(20, share / reach).unwrap_err();
        assert!(error.contains("no file says the rates of the first 20 steps"), "{error}");
    }
    // Where little hangs on it, it is no reason to refuse; where every step is kept, nothing does.
    let (far, found) = weights(20, 1e-3 / reach).unwrap();
    assert!(far < 0.01 && found.unplaced > 0.0 && found.assumed == 0.0, "{far} {found:?}");
    let (far, _) = weights(1, 2.0 / reach).unwrap();
    assert!(far < 0.01, "{far}");
}

/// Whatever is given out is right for every start that happens: the schedule as it goes on, and warm-ups of any length before the first file.
#[test]
fn what_lies_before_the_first_rate_is_given_only_where_it_hardly_matters() {
    let folder = tempfile::tempdir().unwrap();
    let forms: [fn(f64) -> f64; 3] =
        [|t| (1.0 + (std::f64::consts::PI * t).cos()) / 2.0, |t| 1.0 - t, |t| (-3.0 * t).exp()];
    let (mut given, mut refused) = (0, 0);
    for (form, every) in forms.iter().flat_map(|form| [2, 4, 10, 20].map(move |every| (form, every))) {
        for warm in [0.0, 0.3, 0.6, 1.0] {
            let warmup = warm * every as f64;
            let rate = |step: u64| 0.1 * form(step as f64 / 200.0) * ((step as f64 + 1.0) / warmup.max(1.0)).min(1.0);
            let (series, timeline) = set_by_hand(folder.path(), every, rate);
            let made = Provenance::of(&series, &timeline, &PathSettings::default(), true).unwrap();
            let reach: f64 = (0..200).map(rate).sum();
            for l2 in [0.01, 0.03, 0.1, 0.3, 2.0, 10.0, 30.0].map(|share| share / reach) {
                match made.weights(&Weighting::L2(l2), Answer::Regularized) {
                    Ok(found) => {
                        let far = off(&made, &found.weights[0], l2, rate);
                        assert!(far < 0.01, "{far} of a warm-up of {warmup} before {every} at λ = {l2}");
                        given += 1;
                    }
                    Err(error) => {
                        assert!(error.to_string().contains("no file says the rates"), "{error}");
                        refused += 1;
                    }
                }
            }
        }
    }
    assert!(given > 50 && refused > 50, "{given} {refused}");
}

/// A level rate says as little of a warm-up, and is what it looks like nearly always: told, and not refused.
#[test]
fn a_warm_up_before_level_rates_is_told_in_percent() {
    let folder = tempfile::tempdir().unwrap();
    let level = set_by_hand(folder.path(), 20, |_| 0.1);
    let stairs = set_by_hand(folder.path(), 2, |step| if step < 160 { 0.1 } else { 0.01 });
    for ((series, timeline), least) in [(level, 0.05), (stairs, 0.005)] {
        let made = Provenance::of(&series, &timeline, &PathSettings::default(), true).unwrap();
        let found = made.weights(&Weighting::L2(0.1), Answer::Regularized).unwrap();
        assert!(found.assumed > least && found.unplaced < 0.01, "{found:?}");
        // From the first step on there is nothing before it.
        let settings = PathSettings { origin: timeline.numbers[0], ..PathSettings::default() };
        let made = Provenance::of(&series, &timeline, &settings, true).unwrap();
        assert_eq!(made.weights(&Weighting::L2(0.1), Answer::Regularized).unwrap().assumed, 0.0);
    }
}

/// What a jump decides and what the start decides come together.
#[test]
fn unknown_rates_are_refused_by_what_they_decide_together() {
    let folder = tempfile::tempdir().unwrap();
    // A line down, and by ten at once within it.
    let rate = |step: u64| (1.0 - step as f64 / 400.0) * if step < 150 { 0.1 } else { 0.01 };
    let (series, timeline) = set_by_hand(folder.path(), 4, rate);
    let made = Provenance::of(&series, &timeline, &PathSettings::default(), true).unwrap();
    let (mut given, mut refused) = (0, 0);
    for power in -30..=10 {
        let l2 = 10_f64.powf(f64::from(power) / 10.0);
        match made.weights(&Weighting::L2(l2), Answer::Regularized) {
            Ok(found) => {
                assert!(found.unplaced <= 0.05, "{found:?}");
                assert!(off(&made, &found.weights[0], l2, rate) < 0.01, "{l2}");
                given += 1;
            }
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("nothing says where") || error.contains("no file says"), "{error}");
                refused += 1;
            }
        }
    }
    assert!(given > 10 && refused > 5, "{given} {refused}");
}

#[test]
fn rate_schedules() {
    let parse = |text: &str| text.parse::<RateSource>();
    assert_eq!(parse("0.1,150:0.01"), Ok(RateSource::Schedule(vec![(0, 0.1), (150, 0.01)])));
    for wrong in ["", "x", "0.1,150", "0.1,150:0.01,150:0.001", "150:0.1", "0.1,5:-1", "-1", "0.1,x:1"] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
    assert_eq!(parse("0,10:0.1"), Ok(RateSource::Schedule(vec![(0, 0.0), (10, 0.1)])), "0 is a rate");
    let folder = tempfile::tempdir().unwrap();
    let series = Series::open(&files("safetensors")[..3], None, &[]).unwrap();
    let made = |source: RateSource, numbers: &[u64], steps: u64, origin: u64| {
        let settings = PathSettings { rates: Some(source), origin, ..PathSettings::default() };
        Provenance::of(&series, &numbered(numbers, steps), &settings, true)
    };
    let table = |text: &str| {
        let file = folder.path().join("lr.csv");
        std::fs::write(&file, text).unwrap();
        let made = made(RateSource::Table(file), &[0, 2, 6], 10, 0)?;
        Ok::<Vec<RateRun>, afterfit::checkpoint::CheckpointError>(made.groups.paths()[0].rates.runs().collect())
    };
    let expected = [RateRun { steps: 30, rate: 0.1 }, RateRun { steps: 30, rate: 0.01 }];
    assert_eq!(table("epoch,loss,lr\n0,1,0.1\n3,2,0.01\n").unwrap(), expected);
    assert_eq!(table("0,0.1\n3,0.01\n").unwrap(), expected);
    for wrong in ["", "a,b\n1,2\n", "1,0.1\n", "0,0.1\n0,0.2\n", "0,-1\n", "0\n", "step,lr\n0,x\n", "x,0.1\n0,0.1"] {
        assert!(table(wrong).is_err(), "{wrong}");
    }
    let late = made(parse("0.1").unwrap(), &[5, 6, 7], 1, 6).unwrap_err().to_string();
    assert!(late.contains("origin 6 lies after the first checkpoint, 5"), "{late}");
    let many = made(parse("0.1").unwrap(), &[0, 1, u64::MAX], 1, 0).unwrap_err().to_string();
    assert!(many.contains("more than"), "{many}");
}

#[test]
fn names_of_types() {
    for name in ["f64", "f32", "f16", "bf16", "f8-e4m3", "f8-e5m2"] {
        assert_eq!(number::name(number::parse(name).unwrap()), name);
    }
    assert!(number::parse("f7").is_none());
}

fn odd(name: &str) -> PathBuf {
    fixtures().join("odd").join(name)
}

#[test]
fn no_tensor_is_lost_to_its_name() {
    let names = |file: &str| -> Vec<String> {
        Checkpoint::open(&odd(file), None).unwrap().tensors.into_iter().map(|tensor| tensor.name).collect()
    };
    assert_eq!(names("names.pt"), ["layer2.0.downsample.0.weight", "rng_proj"]);
    // Parts of one model are taken together; a whole model is taken alone, and what stands beside it is said.
    assert_eq!(names("parts.pt"), ["net.w", "classifier.b"]);
    let beside = Checkpoint::open(&odd("beside.pt"), None).unwrap();
    assert_eq!(beside.tensors.len(), 1);
    assert!(
        beside.notes[0].contains("teacher beside state_dict is left out, a copy of the model"),
        "{:?}",
        beside.notes
    );
    let bare = Checkpoint::open(&odd("bare.pt"), None).unwrap_err().to_string();
    assert!(bare.contains("a bare tensor"), "{bare}");
}

#[test]
fn a_warm_up_from_zero_is_a_path_like_any_other() {
    let files: Vec<PathBuf> = (0..3).map(|step| odd(&format!("warm-{step}.pt"))).collect();
    let series = Series::open(&files, None, &[]).unwrap();
    let made = Provenance::of(&series, &numbered(&[0, 1, 2], 1), &PathSettings::default(), true).unwrap();
    let runs: Vec<RateRun> = made.groups.paths()[0].rates.runs().collect();
    assert_eq!(runs, [RateRun { steps: 1, rate: 0.0 }, RateRun { steps: 1, rate: 0.1 }]);
    let found = made.weights(&Weighting::L2(1.0), Answer::Regularized).unwrap();
    assert_eq!(found.weights[0], [0.0, 0.1 / 1.1, 1.0 - 0.1 / 1.1], "descent spends nothing at rate 0");
    // With momentum the first gradient keeps moving the weights: its iterate counts.
    let settings = PathSettings {
        optimizer: Some(Optimizer::HeavyBall { momentum: 0.9, dampening: 0.0 }),
        ..PathSettings::default()
    };
    let ball = Provenance::of(&series, &numbered(&[0, 1, 2], 1), &settings, true).unwrap();
    assert!(ball.weights(&Weighting::L2(1.0), Answer::Regularized).unwrap().weights[0][0] > 0.05);
    let folder = tempfile::tempdir().unwrap();
    let nodes = Nodes::new(0.1, 1.0, 4).unwrap();
    let setting = DialSetting {
        nodes: &nodes,
        groups: &made.groups,
        kept: &made.kept,
        remarks: &[],
        doubt: None,
        existing: Existing::Replace,
    };
    series.write_dial(&folder.path().join("warm.dial"), &setting, None, &|_| {}).unwrap();
}

#[test]
fn sharded_inputs_go_into_one_file_of_any_format() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let first = Series::open(&files("plain")[..1], None, &[]).unwrap();
    write(&first, &[1.0], &at("sharded"), &Layout { shard_bytes: Some(200), ..PLAIN }).unwrap();
    // Rates from the optimizer's own file, which holds no tensor.
    std::fs::copy(odd("optimizer.pt"), at("sharded").join("optimizer.pt")).unwrap();
    let series = Series::open(&[at("sharded")], None, &["*".into()]).unwrap();
    assert_eq!(series.trainings[0].rate(), Some(0.25));
    let expected = numbers(&at("sharded"));
    write(&series, &[1.0], &at("one.safetensors"), &Layout { single: true, ..PLAIN }).unwrap();
    assert_same(&numbers(&at("one.safetensors")), &expected);
    write(&series, &[1.0], &at("one.pt"), &Layout { format: Format::Torch, ..PLAIN }).unwrap();
    let again = Series::open(&[at("one.pt")], None, &["*".into()]).unwrap();
    write(&again, &[1.0], &at("again.safetensors"), &PLAIN).unwrap();
    assert_same(&numbers(&at("again.safetensors")), &expected);
}

#[test]
fn averages_are_not_averaged_again() {
    let folder = tempfile::tempdir().unwrap();
    let series = Series::open(&files("plain"), None, &[]).unwrap();
    for (name, format) in [("a.safetensors", Format::Safetensors), ("a.pt", Format::Torch)] {
        let path = folder.path().join(name);
        let average =
            Average { path: path.clone(), weights: vec![vec![0.25; 4]], record: "{\"kind\":\"average\"}".into() };
        series.write(&[average], &Layout { format, ..PLAIN }, &|_| {}).unwrap();
        assert!(Checkpoint::open(&path, None).unwrap().is_average());
        let error = Series::open(&[files("plain")[0].clone(), path], None, &[]).unwrap_err().to_string();
        assert!(error.ends_with("is itself an average that afterfit made"), "{error}");
    }
}

#[test]
fn headers_of_every_length_are_told_from_pickles() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    for length in [128_usize, 384, 640, 896, 1152, 1408] {
        let mut header = "{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}".to_owned();
        header.push_str(&" ".repeat(length - header.len()));
        let mut bytes = (length as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend([0; 4]);
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(Checkpoint::open(&path, None).unwrap().tensors.len(), 1, "{length}");
    }
}

#[test]
fn files_are_written_and_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let tensors = vec![
        ("a".to_owned(), Dtype::F32, vec![2, 2]),
        ("b".to_owned(), Dtype::BF16, vec![3]),
        ("count".to_owned(), Dtype::I64, vec![1]),
    ];
    let metadata = BTreeMap::from([("rate".to_owned(), "0.1".to_owned()), ("step".to_owned(), "7".to_owned())]);
    let put = |path: &Path, tensors: &[(String, Dtype, Vec<usize>)]| {
        write_safetensors(path, tensors, &metadata, &mut |at, file| match at {
            0 => [1.5_f32, -2.0, 0.25, 4.0].iter().try_for_each(|value| file.write_all(&value.to_le_bytes())),
            1 => {
                [1.0_f32, -0.5, 3.0].iter().try_for_each(|&value| file.write_all(&bf16::from_f32(value).to_le_bytes()))
            }
            _ => file.write_all(&7_i64.to_le_bytes()),
        })
    };
    put(&path, &tensors).unwrap();
    let again = folder.path().join("again.safetensors");
    put(&again, &tensors).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(&again).unwrap(), "the same content is the same bytes");
    let file = Checkpoint::open(&path, None).unwrap();
    let find = |name: &str| file.tensors.iter().find(|tensor| tensor.name == name).unwrap();
    assert_eq!(file.read_f32(find("a")).unwrap(), [1.5, -2.0, 0.25, 4.0]);
    assert_eq!(file.read_f32(find("b")).unwrap(), [1.0, -0.5, 3.0]);
    assert_eq!((file.training.rate(), file.training.step), (Some(0.1), Some(7)));
    let error = file.read_f32(find("count")).unwrap_err().to_string();
    assert!(error.contains("tensor count") && error.contains("i64"), "{error}");

    // Sizes that lie and names that are taken are refused, and nothing is left behind.
    let bad = folder.path().join("bad.safetensors");
    for (at, shape, name) in [(0, vec![2, 3], "a"), (1, vec![3], "a"), (1, vec![3], "__metadata__")] {
        let mut tensors = tensors.clone();
        tensors[at] = (name.into(), tensors[at].1, shape);
        assert!(put(&bad, &tensors).is_err(), "{name}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

/// A dial that something else kept in f32, written and read like any other.
#[test]
fn a_dial_kept_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("live.dial");
    let nodes = Nodes::new(1e-2, 1.0, 5).unwrap();
    let runs = [RateRun { steps: 30, rate: 0.5 }, RateRun { steps: 20, rate: 0.05 }];
    let mut rng = rng(77);
    let iterates: Vec<Vec<f64>> = (0..51).map(|_| (0..6).map(|_| uniform(&mut rng, -1.0, 1.0)).collect()).collect();
    let rates = |step: usize| if step < 30 { 0.5 } else { 0.05 };
    let path_info = PathInfo::new(Optimizer::Sgd, runs.into_iter().collect());
    let centered = |l2: f64, i: usize| -> f64 {
        let shares = path_info.weights(l2, Answer::Regularized).unwrap();
        shares[..50].iter().zip(&iterates).map(|(share, iterate)| share * (iterate[i] - iterates[0][i])).sum()
    };
    let mut tracker = Tracker::new(vec![nodes.clone()], &path_info).unwrap();
    (0..50).for_each(|step| tracker.step(&[rates(step)]).unwrap());
    let part = |name: &str, length: usize| Part { dtype: "f32".into(), ..Part::new(name, vec![length]) };
    let copied = [("mean".to_owned(), Dtype::F32, vec![1])];
    let mut beside = afterfit::dial::Beside::default();
    beside.other.insert("source".into(), serde_json::json!({ "remarks": ["kept elsewhere"] }));
    let parts = vec![part("x", 4), part("y", 2)];
    let draft = DialDraft::create(&path, &tracker, Precision::F32, parts, &copied, beside).unwrap();
    use afterfit::files::dial_file::Copy;
    for (at, range) in [0..4, 4..6].into_iter().enumerate() {
        let values = |of: &dyn Fn(usize) -> f64| range.clone().map(of).collect::<Vec<f64>>();
        draft.write(Copy::Center, at, &values(&|i| iterates[0][i])).unwrap();
        draft.write(Copy::Last, at, &values(&|i| iterates[50][i])).unwrap();
        for (j, &l2) in nodes.values().iter().enumerate() {
            draft.write(Copy::Sum(j), at, &values(&|i| centered(l2, i))).unwrap();
        }
    }
    draft.write_copied(0, &9.0_f32.to_le_bytes()).unwrap();
    draft.finish(vec![2.0]).unwrap();
    let file = DialFile::open(&path).unwrap();
    assert_eq!((file.tracker.steps(), file.texts("remarks")), (50, vec!["kept elsewhere".to_owned()]));
    let mut in_memory = Dial::load(&path).unwrap();
    let series = file.series(&path);
    for answer in [Answer::Regularized, Answer::Normalized] {
        for l2 in [nodes.values()[2], 0.1] {
            let out = folder.path().join("model.safetensors");
            let mut averages = [Average { path: out.clone(), weights: Vec::new(), record: "{}".into() }];
            file.write(&series, &[Target::L2(l2)], answer, &mut averages, &PLAIN, &|_| {}).unwrap();
            let read = numbers(&out);
            let bound = file.reading(&Target::L2(l2), answer).unwrap().error;
            let kept = kept_weights(&path_info, l2, &(0..=50).collect::<Vec<_>>(), Stride::Left).unwrap();
            let weights = kept.weights(answer);
            let memory = in_memory.read(l2, answer).unwrap();
            for (i, found) in read["x"].2.iter().chain(&read["y"].2).enumerate() {
                let expected: f64 = weights.iter().zip(&iterates).map(|(weight, iterate)| weight * iterate[i]).sum();
                assert!((found - expected).abs() <= bound, "{answer:?} at {l2}: {found}, {expected}, {bound:e}");
                assert!((found - memory.weights[i]).abs() < 1e-6, "read in memory, too");
            }
            assert_eq!((read["x"].0, read["mean"].2[0]), (Dtype::F32, 9.0));
        }
    }
}

/// Two groups that do not interact: each must get the ridge of its own rate.
#[test]
fn groups_of_an_optimizer_have_weights_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let series = Series::open(&files("safetensors"), None, &[]).unwrap();
    let rates = |rates: &[f64]| PathInfo::quadratic(Optimizer::Sgd, rates.iter().copied().collect());
    // Rates out of proportion: a mass for each.
    let groups = Groups::new(vec![rates(&[0.1; 30]), rates(&[[0.2; 15], [0.1; 15]].concat())]).unwrap();
    assert_eq!(groups.masses, GroupMasses::Each);
    let averaged: Vec<usize> =
        (0..series.tensors.len()).filter(|&at| series.treatments[at] == Treatment::Average).collect();
    let mut series = series;
    series.sequences = vec![0; series.tensors.len()];
    averaged.iter().skip(2).for_each(|&at| series.sequences[at] = 1);
    let kept = [0, 10, 20, 30];
    let weights: Vec<Vec<f64>> = (0..2)
        .map(|g| kept_weights(groups.path(g), 0.5, &kept, Stride::Linear).unwrap().weights(Answer::Regularized))
        .collect();
    let out = folder.path().join("out.safetensors");
    let average = Average { path: out.clone(), weights: weights.clone(), record: "{}".into() };
    series.write(&[average], &PLAIN, &|_| {}).unwrap();
    let (found, own) = (numbers(&out), [0, 1].map(|g| reference(&files("safetensors"), &weights[g], None)));
    for &at in &averaged {
        let name = &series.tensors[at].name;
        let expected: Numbers = [(name.clone(), own[series.sequences[at]][name].clone())].into();
        assert_same(&[(name.clone(), found[name].clone())].into(), &expected);
    }
    // And in a dial, at a node.
    let nodes = Nodes::new(0.1, 1.0, 5).unwrap();
    let file = folder.path().join("groups.dial");
    let setting = DialSetting {
        nodes: &nodes,
        groups: &groups,
        kept: &kept,
        remarks: &[],
        doubt: None,
        existing: Existing::Replace,
    };
    series.write_dial(&file, &setting, None, &|_| {}).unwrap();
    let dial = DialFile::open(&file).unwrap();
    let l2 = nodes.values()[3];
    let mut outputs = [Average { path: out.clone(), weights: Vec::new(), record: "{}".into() }];
    dial.write(&dial.series(&file), &[Target::L2(l2)], Answer::Regularized, &mut outputs, &PLAIN, &|_| {}).unwrap();
    let direct = (0..2).map(|g| kept_weights(groups.path(g), l2, &kept, Stride::Linear).unwrap());
    let direct: Vec<Vec<f64>> = direct.map(|kept| kept.weights(Answer::Regularized)).collect();
    let (found, own) = (numbers(&out), [0, 1].map(|g| reference(&files("safetensors"), &direct[g], None)));
    for &at in &averaged {
        let name = &series.tensors[at].name;
        let expected: Numbers = [(name.clone(), own[series.sequences[at]][name].clone())].into();
        assert_same(&[(name.clone(), found[name].clone())].into(), &expected);
    }
}
