//! PyTorch's distributed checkpoints: pieces joined, cut otherwise from one step to the next, written and read again.

use std::path::{Path, PathBuf};

use afterfit::checkpoint::{Average, Checkpoint, Format, Layout, Series, expand, inspect};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/distributed")
}

fn steps() -> [PathBuf; 2] {
    ["step-10", "step-20"].map(|name| fixtures().join(name))
}

fn wholes() -> [PathBuf; 2] {
    ["step-10", "step-20"].map(|name| fixtures().join(format!("whole/{name}.safetensors")))
}

/// A copy of a step whose files may be changed.
fn copied(to: &Path) -> PathBuf {
    let target = to.join("step-10");
    std::fs::create_dir(&target).unwrap();
    for name in [".metadata", "__0_0.distcp"] {
        std::fs::copy(steps()[0].join(name), target.join(name)).unwrap();
    }
    target
}

fn bits(path: &Path) -> Vec<(String, Vec<usize>, Vec<u32>)> {
    let opened = Checkpoint::open(path, None).unwrap();
    let floats = opened.tensors.iter().filter(|tensor| format!("{:?}", tensor.dtype).contains(['F']));
    let mut found: Vec<_> = floats
        .map(|tensor| {
            let values = opened.read_f32(tensor).unwrap();
            (tensor.name.clone(), tensor.shape.clone(), values.into_iter().map(f32::to_bits).collect())
        })
        .collect();
    found.sort();
    found
}

fn average(paths: &[PathBuf], out: &Path, layout: &Layout) {
    let series = Series::open(paths, None, &[]).unwrap();
    let average = Average { path: out.into(), weights: vec![vec![0.25, 0.75]], record: r#"{"kind":"average"}"#.into() };
    series.write(&[average], layout, &|_| {}).unwrap();
}

#[test]
fn pieces_are_the_whole() {
    for (step, whole) in steps().iter().zip(wholes()) {
        assert_eq!(bits(step), bits(&whole), "{}", step.display());
    }
}

#[test]
fn what_was_saved_beside_the_model_tells_of_the_training() {
    for (step, number, rate) in [("step-10", 10, 0.1), ("step-20", 20, 0.05)] {
        let training = inspect(&fixtures().join(step)).unwrap().training.unwrap();
        assert_eq!((training.step, training.rate()), (Some(number), Some(rate)));
        assert_eq!(training.groups[0].optimizer.unwrap().to_string(), "heavy ball, momentum 0.9");
    }
    assert_eq!(expand(&[fixtures()], Some("step-*")).unwrap(), steps());
}

#[test]
fn averages_do_not_depend_on_how_tensors_were_cut() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let single = Layout { single: true, ..Layout::default() };
    average(&wholes(), &at("expected.safetensors"), &single);
    average(&steps(), &at("found.safetensors"), &single);
    assert_eq!(bits(&at("found.safetensors")), bits(&at("expected.safetensors")));
    // As a distributed checkpoint, in one file and in several; as the files of a model.
    for (name, shard_bytes) in [("one", None), ("several", Some(300))] {
        average(&steps(), &at(name), &Layout { format: Format::Distributed, shard_bytes, ..Layout::default() });
        assert_eq!(bits(&at(name)), bits(&at("expected.safetensors")));
        let made = Checkpoint::open(&at(name), None).unwrap();
        assert!(made.is_average());
        let files = std::fs::read_dir(at(name)).unwrap().flatten();
        let chunks = files.filter(|file| file.file_name().to_string_lossy().ends_with(".distcp")).count();
        assert!((chunks == 1) == shard_bytes.is_none(), "{chunks} files");
        // The names are those that were saved, with the way to them.
        let list = std::fs::read(at(name).join(".metadata")).unwrap();
        assert!(list.windows(10).any(|bytes| bytes == b"model.rows"));
    }
    average(&steps(), &at("model"), &Layout::default());
    assert_eq!(bits(&at("model/model.safetensors")), bits(&at("expected.safetensors")));
    average(&steps(), &at("model.pt"), &Layout { format: Format::Torch, ..Layout::default() });
    assert_eq!(bits(&at("model.pt")), bits(&at("expected.safetensors")));
    // From plain files, too.
    average(&wholes(), &at("from-plain"), &Layout { format: Format::Distributed, ..Layout::default() });
    assert_eq!(bits(&at("from-plain")), bits(&at("expected.safetensors")));
}

#[test]
fn folders_of_several_frameworks_are_known() {
    let folder = tempfile::tempdir().unwrap();
    for inside in ["checkpoint-10/pytorch_model_fsdp_0", "checkpoint-20/pytorch_model_fsdp_0", "olmo/model_and_optim"] {
        std::fs::create_dir_all(folder.path().join(inside)).unwrap();
        for name in [".metadata", "__0_0.distcp"] {
            std::fs::copy(steps()[0].join(name), folder.path().join(inside).join(name)).unwrap();
        }
    }
    let found = expand(&[folder.path().into()], Some("checkpoint-*")).unwrap();
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(bits(&found[0]), bits(&wholes()[0]));
    assert_eq!(bits(&folder.path().join("olmo")), bits(&wholes()[0]));
    let layout = Layout { format: Format::Distributed, ..Layout::default() };
    average(&found, &folder.path().join("out"), &layout);
    assert!(folder.path().join("out/pytorch_model_fsdp_0/.metadata").is_file());
}

#[test]
fn what_is_damaged_is_refused_by_name() {
    let refused = |change: &dyn Fn(&Path), word: &str, is_broken: bool| {
        let folder = tempfile::tempdir().unwrap();
        let step = copied(folder.path());
        change(&step);
        let out = folder.path().join("out");
        let written = Series::open(std::slice::from_ref(&step), None, &[]).and_then(|series| {
            let average = Average { path: out.clone(), weights: vec![vec![1.0]], record: "{}".into() };
            series.write(&[average], &Layout::default(), &|_| {})
        });
        let error = written.unwrap_err();
        assert!(error.to_string().contains(word), "{word}: {error}");
        assert_eq!(error.is_broken(), is_broken, "{error}");
        assert!(!out.exists());
    };
    let metadata = |step: &Path| step.join(".metadata");
    let data = |step: &Path| step.join("__0_0.distcp");
    let cut = |path: &Path, length: usize| {
        let bytes = std::fs::read(path).unwrap();
        std::fs::write(path, &bytes[..length]).unwrap();
    };
    let edit = |path: &Path, from: &[u8], to: &[u8]| {
        let mut bytes = std::fs::read(path).unwrap();
        let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
        bytes[at..at + from.len()].copy_from_slice(to);
        std::fs::write(path, bytes).unwrap();
    };
    refused(&|step| std::fs::remove_file(metadata(step)).unwrap(), "never completed", true);
    refused(&|step| cut(&metadata(step), 700), "ends in the middle", true);
    refused(&|step| cut(&data(step), 30_000), "beyond its 30000", true);
    refused(
        &|step| std::fs::write(step.join("other.distcp"), "").and(std::fs::remove_file(data(step))).unwrap(),
        "is missing",
        true,
    );
    refused(
        &|step| edit(&metadata(step), b"__0_0.distcp", b"../00.distcp"),
        "`../00.distcp` is not a file beside",
        false,
    );
    refused(
        &|step| edit(&metadata(step), b"state_dict_metadata", b"state_dict_metadatb"),
        "not a list of chunks",
        false,
    );
    // (The numbers of a tensor that is not touched before the pass.)
    let flip = |step: &Path| {
        let whole = std::fs::read(&wholes()[0]).unwrap();
        let turned = Checkpoint::open(&wholes()[0], None).unwrap();
        let values = turned.read_f32(turned.tensors.iter().find(|tensor| tensor.name == "columns").unwrap()).unwrap();
        let first: Vec<u8> = values[..10].iter().flat_map(|value| value.to_le_bytes()).collect();
        assert!(whole.windows(40).any(|window| window == first));
        let mut damaged = first.clone();
        damaged[17] ^= 1;
        edit(&data(step), &first, &damaged);
    };
    refused(&flip, "is damaged: the checksum", false);
}

/// Thousands of lists with a few bytes changed, cut out or doubled: refused or read, without a panic.
#[test]
fn mutants_of_a_list_are_errors_at_worst() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/distributed");
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for name in ["one", "training", "flat"] {
        let whole = std::fs::read(corpus.join(name)).unwrap();
        let list = 4 + u32::from_le_bytes(whole[..4].try_into().unwrap()) as usize;
        for _ in 0..700 {
            let mut bytes = whole.clone();
            for _ in 0..=random(3) {
                let at = 4 + random(list - 4);
                match random(4) {
                    0 => bytes[at] = random(256) as u8,
                    1 => bytes[at] ^= 1 << random(8),
                    2 => drop(bytes.splice(at..at, [random(256) as u8])),
                    _ => drop(bytes.drain(at..at + 1 + random(8))),
                }
            }
            afterfit::checkpoint::fuzzing::distributed(&bytes);
        }
    }
}
