//! Checkpoints as frameworks save them: outputs in the shape of their inputs, and weights that are no numbers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use afterfit::checkpoint::{Average, Checkpoint, DialSetting, Format, Layout, Series, expand, sidecars};
use afterfit::dial::DialFile;
use afterfit::files::atomic::Existing;
use afterfit::files::safetensors::write_safetensors;
use afterfit::{Answer, Groups, Nodes, Optimizer, PathInfo, Rates, Target};
use safetensors::Dtype;

use crate::checkpoints::{PLAIN, fixtures, numbers, write};

const TORCH: Layout = Layout { format: Format::Torch, ..PLAIN };

fn shape(name: &str) -> PathBuf {
    fixtures().join("shapes").join(name)
}

fn both(stem: &str, ending: &str) -> Vec<PathBuf> {
    [1, 3].iter().map(|step| shape(&format!("{stem}-{step}.{ending}"))).collect()
}

fn names(series: &Series) -> Vec<&str> {
    series.tensors.iter().map(|tensor| tensor.name.as_str()).collect()
}

/// The bytes of an archive's entry.
fn entry(path: &Path, name: &str) -> Vec<u8> {
    let mut archive = zip::ZipArchive::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut archive.by_name(name).unwrap(), &mut bytes).unwrap();
    bytes
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

fn put(path: &Path, tensors: &[(&str, Vec<usize>, f32)]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let described: Vec<_> =
        tensors.iter().map(|(name, shape, _)| ((*name).to_owned(), Dtype::F32, shape.clone())).collect();
    write_safetensors(path, &described, &BTreeMap::new(), &mut |at, file| {
        let count: usize = tensors[at].1.iter().product();
        (0..count).try_for_each(|_| file.write_all(&tensors[at].2.to_le_bytes()))
    })
    .unwrap();
}

#[test]
fn a_lightning_checkpoint_keeps_its_structure() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("mean.ckpt");
    let series = Series::open(&both("lit", "ckpt"), None, &[]).unwrap();
    write(&series, &[0.5, 0.5], &out, &TORCH).unwrap();
    let pickle = entry(&out, "archive/data.pkl");
    for kept in [
        "state_dict",
        "hyper_parameters",
        "AttributeDict",
        "PurePosixPath",
        "Namespace",
        "_metadata",
        "epoch",
        "best_acc1",
    ] {
        assert!(holds(&pickle, kept), "{kept}");
    }
    for left_out in ["optimizer_states", "lr_schedulers", "loops", "callbacks", "queue", "Own", "param_groups"] {
        assert!(!holds(&pickle, left_out), "{left_out}");
    }
    let notes = series.left_out(&TORCH);
    let all = notes.join("\n");
    for said in ["loops, callbacks, optimizer_states, lr_schedulers, trainer.helper", "queue", "hyper_parameters.own"] {
        assert!(all.contains(said), "{said}: {all}");
    }
    // What was written is read like the input: through the same wrapper, with the averaged numbers.
    let again = Checkpoint::open(&out, None).unwrap();
    assert_eq!(again.read_f32(&again.tensors[0]).unwrap(), [2.0; 6]);
    assert_eq!((again.training.epoch, again.training.step), (Some(3), Some(30)));
    assert_eq!(Checkpoint::open(&out, Some("state_dict")).unwrap().tensors.len(), again.tensors.len());
    // Tensors among the hyperparameters are settings: the last one's, not averaged.
    let settings = Checkpoint::open(&out, Some("hyper_parameters")).unwrap();
    assert_eq!(settings.tensors[0].name, "class_weights");
    assert_eq!(settings.read_f32(&settings.tensors[0]).unwrap(), [1.0, 3.0]);
}

#[test]
fn nested_dictionaries_lists_and_tuples_come_out_as_they_came() {
    let folder = tempfile::tempdir().unwrap();
    let series = Series::open(&both("nested", "pt"), None, &[]).unwrap();
    assert_eq!(names(&series), ["encoder.layers.0", "encoder.layers.1", "encoder.pair.0", "head.w"]);
    for dtype in [None, Some(Dtype::BF16)] {
        let out = folder.path().join("nested.pt");
        write(&series, &[0.25, 0.75], &out, &Layout { dtype, ..TORCH }).unwrap();
        let again = Checkpoint::open(&out, None).unwrap();
        assert_eq!(again.tensors.iter().map(|tensor| tensor.name.as_str()).collect::<Vec<_>>(), names(&series));
        assert_eq!(again.read_f32(&again.tensors[1]).unwrap(), [5.0; 3]);
        assert!(holds(&entry(&out, "archive/data.pkl"), "_rebuild_parameter"), "a parameter stays one");
        assert_eq!(again.tensors[0].dtype, dtype.unwrap_or(Dtype::F32));
    }
    // Other formats have names alone.
    write(&series, &[0.25, 0.75], &folder.path().join("flat.safetensors"), &PLAIN).unwrap();
    assert_eq!(numbers(&folder.path().join("flat.safetensors"))["encoder.layers.0"].2, [2.5; 2]);
}

#[test]
fn copies_beside_the_model_are_left_out_and_said() {
    let folder = tempfile::tempdir().unwrap();
    let series = Series::open(&both("copies", "pt"), None, &[]).unwrap();
    assert_eq!(names(&series), ["w"]);
    let said = series.notes.join("\n");
    assert!(said.contains("ema_model beside model is left out") && said.contains("--key ema_model"), "{said}");
    let out = folder.path().join("copies.pt");
    write(&series, &[0.5, 0.5], &out, &TORCH).unwrap();
    let pickle = entry(&out, "archive/data.pkl");
    assert!(!holds(&pickle, "ema_model"));
    // One dictionary under two names stays one: both are the average.
    for key in ["model", "alias"] {
        let again = Checkpoint::open(&out, Some(key)).unwrap();
        assert_eq!(again.read_f32(&again.tensors[0]).unwrap(), [2.0; 2], "{key}");
    }
    let ema = Series::open(&both("copies", "pt"), Some("ema_model"), &[]).unwrap();
    write(&ema, &[0.5, 0.5], &out, &TORCH).unwrap();
    assert_eq!(Checkpoint::open(&out, Some("ema_model")).unwrap().tensors.len(), 1);
    assert!(Checkpoint::open(&out, Some("model")).is_err(), "what was not averaged is not in the output");
    let student = Series::open(&both("teacher", "pt"), None, &[]).unwrap();
    assert_eq!(names(&student), ["student.w"]);
    assert!(student.notes.join("\n").contains("teacher beside student is left out"), "{:?}", student.notes);
}

#[test]
fn what_wrappers_add_to_names_is_no_difference() {
    let files: Vec<PathBuf> = (0..4).map(|step| shape(&format!("prefix-{step}.pt"))).collect();
    let folder = tempfile::tempdir().unwrap();
    let series = Series::open(&files, None, &[]).unwrap();
    assert_eq!(
        names(&series),
        ["_fsdp_wrapped_module.a.weight", "_fsdp_wrapped_module.a.b.bias"],
        "the last one's names"
    );
    assert_eq!(series.notes.iter().filter(|note| note.contains("what wrappers add")).count(), 1, "{:?}", series.notes);
    for (name, layout) in [("x.pt", &TORCH), ("x.safetensors", &PLAIN)] {
        let out = folder.path().join(name);
        write(&series, &[0.25; 4], &out, layout).unwrap();
        let again = Checkpoint::open(&out, None).unwrap();
        for tensor in &again.tensors {
            assert!(again.read_f32(tensor).unwrap().iter().all(|&value| value == 1.5), "{}", tensor.name);
        }
    }
    let back = Series::open(&[files[3].clone(), files[0].clone()], None, &[]).unwrap();
    assert_eq!(names(&back), ["a.weight", "a.b.bias"]);
    // A name too many is still a difference.
    let error = Series::open(&[files[0].clone(), both("copies", "pt")[0].clone()], None, &[]).unwrap_err().to_string();
    assert!(error.contains("it lacks a.weight, a.b.bias"), "{error}");
}

#[test]
fn weights_that_are_no_numbers_are_refused_by_name() {
    let error = |path: PathBuf| Series::open(&[path.clone(), path], None, &[]).unwrap_err().to_string();
    let dynamic = error(shape("quantized.pt"));
    assert!(dynamic.contains("tensor 0._packed_params._packed_params.0: quantized (torch.quantize)"), "{dynamic}");
    let placeholder = error(shape("placeholder.pt"));
    assert!(
        placeholder.contains("tensor a.weight") && placeholder.contains("deepspeed.utils.zero_to_fp32"),
        "{placeholder}"
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("codes.safetensors");
    let coded = |tensors: &[(&str, Dtype)]| {
        let described: Vec<_> = tensors.iter().map(|(name, dtype)| ((*name).to_owned(), *dtype, vec![4])).collect();
        let width = |dtype: Dtype| dtype.bitsize() / 8 * 4;
        write_safetensors(&path, &described, &BTreeMap::new(), &mut |at, file| {
            file.write_all(&vec![0; width(described[at].1)])
        })
        .unwrap();
        Series::open(&[path.clone(), path.clone()], None, &[]).map(|_| ()).map_err(|error| error.to_string())
    };
    for (codes, beside, how) in [
        (("l.weight", Dtype::U8), ("l.weight.absmax", Dtype::F32), "bitsandbytes, 4 bits"),
        (("l.weight", Dtype::I8), ("l.SCB", Dtype::F32), "bitsandbytes, 8 bits"),
        (("l.qweight", Dtype::I32), ("l.scales", Dtype::F16), "GPTQ or AWQ"),
        (("l.weight", Dtype::F8_E4M3), ("l.weight_scale", Dtype::F32), "8 bits with scales"),
        (("l.weight_packed", Dtype::I32), ("l.weight_scale", Dtype::F16), "packed"),
    ] {
        let error = coded(&[codes, beside]).unwrap_err();
        assert!(error.contains(&format!("tensor {}", codes.0)) && error.contains(how), "{error}");
    }
    // Integers and 8-bit floats without scales are what they are.
    coded(&[("l.weight", Dtype::F8_E4M3), ("ids", Dtype::I64), ("scale", Dtype::F32)]).unwrap();
    let none = coded(&[("ids", Dtype::I64)]).unwrap_err();
    assert!(none.contains("0 of its numbers are to be averaged"), "{none}");
}

#[test]
fn records_are_found_however_long() {
    let folder = tempfile::tempdir().unwrap();
    let series = Series::open(&both("nested", "pt"), None, &[]).unwrap();
    for (name, layout, length) in [
        ("a.pt", &TORCH, 200_000),
        ("a.npz", &Layout { format: Format::Npz, ..PLAIN }, 50_000),
        ("a.safetensors", &PLAIN, 200_000),
    ] {
        let path = folder.path().join(name);
        let record = format!("{{\"kind\":\"average\",\"inputs\":\"{}\"}}", "x".repeat(length));
        let average = Average { path: path.clone(), weights: vec![vec![0.5, 0.5]], record: record.clone() };
        series.write(&[average], layout, &|_| {}).unwrap();
        let made = Checkpoint::open(&path, None).unwrap();
        assert!(made.is_average() && made.metadata["afterfit"] == record, "{name}");
        if name.ends_with(".pt") {
            let archive = zip::ZipArchive::new(std::fs::File::open(&path).unwrap()).unwrap();
            assert!(archive.comment().is_empty(), "torch finds no end of an archive behind a long comment");
        }
    }
}

/// A pipeline as diffusers saves it, or the checkpoints of its training.
fn pipeline(folder: &Path, value: f32, training: bool) {
    let files = [
        ("unet/diffusion_pytorch_model.safetensors", "conv.weight"),
        ("text_encoder/model.safetensors", "conv.weight"),
        ("unet_ema/diffusion_pytorch_model.safetensors", "conv.weight"),
    ];
    for (name, tensor) in files.iter().take(if training { 3 } else { 2 }) {
        put(&folder.join(name), &[(tensor, vec![2], value + name.len() as f32)]);
        std::fs::write(folder.join(name).with_file_name("config.json"), format!("{name} {value}")).unwrap();
    }
    if !training {
        let index = r#"{"_class_name": "P", "unet": ["d", "U"], "text_encoder": ["t", "C"], "scheduler": ["d", "S"], "../out": ["x", "y"]}"#;
        std::fs::write(folder.join("model_index.json"), index).unwrap();
        std::fs::create_dir(folder.join("scheduler")).unwrap();
        std::fs::write(folder.join("scheduler/scheduler_config.json"), "{}").unwrap();
    }
}

fn tree(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        match path.is_dir() {
            true => found.extend(tree(&path).into_iter().map(|inner| format!("{name}/{inner}"))),
            false => found.push(name),
        }
    }
    found.sort();
    found
}

#[test]
fn every_part_of_a_pipeline_is_averaged_in_its_place() {
    for training in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for (name, value) in [("checkpoint-1", 0.0), ("checkpoint-2", 2.0)] {
            pipeline(&at(name), value, training);
        }
        let paths = expand(&[folder.path().into()], None).unwrap();
        assert_eq!(paths, [at("checkpoint-1"), at("checkpoint-2")]);
        let series = Series::open(&paths, None, &[]).unwrap();
        write(&series, &[0.5, 0.5], &at("mean"), &PLAIN).unwrap();
        let mut expected = tree(&at("checkpoint-2"));
        expected.retain(|name| !name.starts_with("unet_ema"));
        assert_eq!(tree(&at("mean")), expected);
        for part in ["unet/diffusion_pytorch_model.safetensors", "text_encoder/model.safetensors"] {
            let found = numbers(&at("mean").join(part));
            assert_eq!(found["conv.weight"].2, [1.0 + part.len() as f64; 2], "{part}");
        }
        assert!(std::fs::read_to_string(at("mean/unet/config.json")).unwrap().ends_with(" 2"), "the last one's");
        assert_eq!(series.notes.iter().any(|note| note.contains("unet_ema is left out")), training);
        assert!(Checkpoint::open(&at("mean"), None).is_ok());
        // One part alone, by its name; all of them in one file, under theirs.
        let unet = Series::open(&paths, Some("unet"), &[]).unwrap();
        write(&unet, &[0.5, 0.5], &at("unet"), &PLAIN).unwrap();
        assert_eq!(tree(&at("unet")), ["config.json", "diffusion_pytorch_model.safetensors"]);
        write(&series, &[0.5, 0.5], &at("one.safetensors"), &Layout { single: true, ..PLAIN }).unwrap();
        let keys: Vec<String> = numbers(&at("one.safetensors")).into_keys().collect();
        assert_eq!(keys, ["text_encoder/conv.weight", "unet/conv.weight"]);
    }
}

#[test]
fn sentence_transformers_and_several_models_of_one_run() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (name, value) in [("st-1", 0.0), ("st-2", 2.0)] {
        put(&at(name).join("model.safetensors"), &[("a", vec![2], value)]);
        put(&at(name).join("2_Dense/model.safetensors"), &[("linear.weight", vec![3], value + 10.0)]);
        for (file, text) in [
            ("modules.json", r#"[{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Dense"}]"#),
            ("config.json", "{}"),
            ("2_Dense/config.json", "{}"),
        ] {
            std::fs::write(at(name).join(file), text).unwrap();
        }
        std::fs::create_dir(at(name).join("1_Pooling")).unwrap();
        std::fs::write(at(name).join("1_Pooling/config.json"), "{}").unwrap();
        // A folder that nothing lists is not the model's.
        std::fs::create_dir(at(name).join("logs")).unwrap();
        std::fs::write(at(name).join("logs/config.json"), "{}").unwrap();
    }
    let series = Series::open(&[at("st-1"), at("st-2")], None, &[]).unwrap();
    write(&series, &[0.5, 0.5], &at("mean"), &PLAIN).unwrap();
    let mut expected = tree(&at("st-2"));
    expected.retain(|name| !name.starts_with("logs"));
    assert_eq!(tree(&at("mean")), expected);
    assert_eq!(numbers(&at("mean/2_Dense/model.safetensors"))["linear.weight"].2, [11.0; 3]);
    // accelerate numbers its models; what else may hold weights is said.
    for (name, value) in [("acc-1", 0.0), ("acc-2", 2.0)] {
        put(&at(name).join("model.safetensors"), &[("w", vec![2], value)]);
        put(&at(name).join("model_1.safetensors"), &[("w", vec![2], value + 5.0)]);
        std::fs::write(at(name).join("custom_checkpoint_0.pkl"), "x").unwrap();
    }
    let series = Series::open(&[at("acc-1"), at("acc-2")], None, &[]).unwrap();
    assert_eq!(names(&series), ["w", "model_1/w"]);
    assert!(series.notes.join("\n").contains("custom_checkpoint_0.pkl"), "{:?}", series.notes);
    write(&series, &[0.5, 0.5], &at("acc"), &PLAIN).unwrap();
    assert_eq!(tree(&at("acc")), ["model.safetensors", "model_1.safetensors"]);
    assert_eq!(numbers(&at("acc/model_1.safetensors"))["w"].2, [6.0; 2]);
    // Cut into shards, each part has its own index.
    write(&series, &[0.5, 0.5], &at("cut"), &Layout { shard_bytes: Some(4), ..PLAIN }).unwrap();
    assert_eq!(tree(&at("cut")), ["model.safetensors", "model_1.safetensors"]);
}

#[test]
fn models_read_off_a_dial_have_their_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (name, value) in [("checkpoint-1", 0.0), ("checkpoint-2", 2.0)] {
        pipeline(&at(name), value, false);
    }
    let series = Series::open(&[at("checkpoint-1"), at("checkpoint-2")], None, &[]).unwrap();
    let nodes = Nodes::new(0.1, 1.0, 4).unwrap();
    let groups = Groups::new(vec![PathInfo::new(Optimizer::Sgd, Rates::constant(0.1, 10))]).unwrap();
    let setting = DialSetting {
        nodes: &nodes,
        groups: &groups,
        kept: &[0, 10],
        remarks: &[],
        doubt: None,
        existing: Existing::Replace,
    };
    series.write_dial(&at("run.dial"), &setting, None, &|_| {}).unwrap();
    let read = |out: &str| {
        let dial = DialFile::open(&at("run.dial")).unwrap();
        let series = dial.series(&at("run.dial"));
        let mut averages = [Average { path: at(out), weights: Vec::new(), record: "{}".into() }];
        dial.write(&series, &[Target::L2(0.5)], Answer::Regularized, &mut averages, &PLAIN, &|_| {}).unwrap();
        series.notes
    };
    assert!(read("model").is_empty());
    assert_eq!(tree(&at("model")), tree(&at("checkpoint-2")));
    // Gone, they are not copied, and that is said.
    std::fs::rename(at("checkpoint-2"), at("elsewhere")).unwrap();
    let notes = read("again");
    assert!(notes[0].contains("is not on this machine"), "{notes:?}");
    assert_eq!(tree(&at("again")), ["text_encoder/model.safetensors", "unet/diffusion_pytorch_model.safetensors"]);
}

#[test]
fn formats_that_are_not_read_are_named_with_the_way_on() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let make = |name: &str, bytes: &[u8]| {
        std::fs::create_dir_all(at(name).parent().unwrap()).unwrap();
        std::fs::write(at(name), bytes).unwrap();
    };
    make("zero/global_step1/mp_rank_00_model_states.pt", b"x");
    make("zero/global_step1/zero_pp_rank_0_mp_rank_00_optim_states.pt", b"x");
    make("orbax/_CHECKPOINT_METADATA", b"{}");
    make("orbax/default/_METADATA", b"{}");
    make("tf/model.ckpt-1.index", b"x");
    make("tf/model.ckpt-1.data-00000-of-00001", b"x");
    make("flax/flax_model.msgpack", b"\x81x");
    make("a.h5", b"\x89HDF\r\n\x1a\n........");
    make("a.gguf", b"GGUF............");
    make("a.onnx", b"\x08\x07xxxxxxxxxxxxxx");
    for (name, format, way) in [
        ("zero", "DeepSpeed ZeRO", "deepspeed.utils.zero_to_fp32"),
        ("orbax", "orbax", "default "),
        ("tf", "TensorFlow", "model.ckpt-1 "),
        ("flax", "flax msgpack", "msgpack_restore"),
        ("a.h5", "HDF5", "h5py"),
        ("a.gguf", "gguf", "convert_hf_to_gguf.py"),
        ("a.onnx", "ONNX", "numpy_helper"),
    ] {
        let found = expand(&[at(name)], None).and_then(|paths| Checkpoint::open(&paths[0], None));
        let error = found.unwrap_err().to_string();
        assert!(error.contains(format) && error.contains(way), "{name}: {error}");
    }
}

/// The lines are there to be pasted: a stranger's file must not be able to put a command of its own into them.
#[cfg(unix)]
#[test]
fn a_line_that_converts_runs_nothing_that_a_name_says() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    // A python that writes down what it was given.
    let python = folder.path().join("python");
    std::fs::write(&python, "#!/bin/sh\nfor each in \"$@\"; do printf '%s\\n' \"$each\"; done > said\n").unwrap();
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    let name = "a'); import os #\"; touch pwned; $(touch pwned) `touch pwned` '";
    for (ending, start) in [("h5", "\u{89}HDF"), ("msgpack", "x"), ("keras", "x"), ("onnx", "x"), ("index", "x")] {
        let path = folder.path().join(format!("{name}.{ending}"));
        std::fs::write(&path, start).unwrap();
        let error = Checkpoint::open(&path, None).unwrap_err().to_string();
        let line = error.split_once("python -P -c").unwrap_or_else(|| panic!("{error}")).1;
        let mut shell = std::process::Command::new("sh");
        shell.current_dir(&folder).arg("-c").arg(format!("./python -P -c{line}"));
        assert!(shell.status().unwrap().success(), "{error}");
        let said = std::fs::read_to_string(folder.path().join("said")).unwrap();
        let read = if ending == "index" { path.with_extension("") } else { path };
        assert_eq!(said.lines().nth(3).unwrap(), read.to_str().unwrap());
        assert!(said.lines().nth(4).unwrap().starts_with(read.to_str().unwrap()), "{said}");
    }
    assert!(!folder.path().join("pwned").exists());
}

#[test]
fn files_that_end_early_are_broken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut");
    let sources = [
        fixtures().join("plain/step-0.pt"),
        fixtures().join("legacy/checkpoint_0.pth.tar"),
        fixtures().join("safetensors/step-0.safetensors"),
    ];
    for source in sources {
        let whole = std::fs::read(&source).unwrap();
        for share in [0, 40, 700, whole.len() / 2, whole.len() - 1] {
            std::fs::write(&path, &whole[..share]).unwrap();
            let error = Checkpoint::open(&path, None).unwrap_err();
            assert!(error.is_broken(), "{} cut at {share}: {error}", source.display());
            assert!(error.to_string().contains("the run was killed while writing it"), "{error}");
        }
    }
    assert!(!Checkpoint::open(&shape("quantized.pt"), None).unwrap_err().is_broken());
    assert!(sidecars(folder.path()).unwrap().0 == ["cut"]);
}

/// Packed archives are unpacked into one file, whatever their number.
#[test]
#[cfg(target_os = "linux")]
fn packed_archives_share_a_file() {
    use std::io::Write;
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = (0..40).map(|step| folder.path().join(format!("step-{step}.npz"))).collect();
    for (step, path) in paths.iter().enumerate() {
        let mut zip = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
        for name in ["a", "b"] {
            let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
            zip.start_file(format!("{name}.npy"), options).unwrap();
            let header = format!("{:<117}\n", "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }");
            zip.write_all(b"\x93NUMPY\x01\x00").unwrap();
            zip.write_all(&(header.len() as u16).to_le_bytes()).unwrap();
            zip.write_all(header.as_bytes()).unwrap();
            (0..3).for_each(|at| zip.write_all(&((step + at) as f32).to_le_bytes()).unwrap());
        }
        zip.finish().unwrap();
    }
    let series = Series::open(&paths, None, &[]).unwrap();
    let deleted = |entry: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_link(entry.ok()?.path()).ok()?.to_str()?.ends_with("(deleted)").then_some(())
    };
    assert!(std::fs::read_dir("/proc/self/fd").unwrap().filter_map(deleted).count() <= 2);
    let out = folder.path().join("mean.safetensors");
    write(&series, &[1.0 / 40.0; 40], &out, &PLAIN).unwrap();
    assert_eq!(numbers(&out)["b"].2, [19.5, 20.5, 21.5]);
}
