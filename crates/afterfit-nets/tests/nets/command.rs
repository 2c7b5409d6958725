//! The command from end to end, and what it says to wrong input.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::small_cifar;

const NETS: &str = env!("CARGO_BIN_EXE_afterfit-nets");

fn nets(arguments: &[&str]) -> Output {
    Command::new(NETS).args(arguments).output().expect("the command")
}

/// What a command gives that must end well.
fn done(arguments: &[&str]) -> Output {
    let output = nets(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

fn stdout(arguments: &[&str]) -> String {
    String::from_utf8(done(arguments).stdout).expect("text")
}

/// Standard error of a command that must fail.
fn failure(arguments: &[&str]) -> String {
    let output = nets(arguments);
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).expect("text")
}

const TINY: [&str; 11] =
    ["--width", "2", "--epochs", "3", "--batch", "25", "--device", "cpu", "--quiet", "--rate", "0.1"];

/// The `afterfit` command beside this one; cargo makes it where it is missing.
fn afterfit() -> PathBuf {
    let place = Path::new(NETS).with_file_name("afterfit");
    if !place.exists() {
        let made = Command::new(env!("CARGO")).args(["build", "-p", "afterfit-cli"]).status();
        assert!(made.is_ok_and(|status| status.success()), "cargo build -p afterfit-cli");
    }
    place
}

/// What follows a safetensors file's header: the numbers.
fn numbers(path: &Path) -> Vec<u8> {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("a length")) as usize;
    bytes[8 + header..].to_vec()
}

#[test]
fn train_average_refresh_evaluate() {
    let place = tempfile::tempdir().expect("a folder");
    let at = |name: &str| place.path().join(name);
    small_cifar(&at("data"), 300);
    let (data, run) = (at("data"), at("run"));
    let mut arguments = vec!["train", "--out", text(&run), "--data-folder", text(&data), "--dial", "1e-3..1"];
    arguments.extend(TINY);
    let line = stdout(&arguments);
    assert!(line.contains("\"epoch\":3") && line.contains("test_accuracy"), "{line}");

    let averages = at("averages");
    let files = stdout(&["average", "--run", text(&run), "--uniform", "--out", text(&averages)]);
    assert_eq!(files.lines().count(), 5);
    let out = at("by-afterfit");
    let checkpoints = run.join("checkpoints");
    let ratios = ["--ratio", "0.9999,0.999,0.99,0.9", "--uniform"];
    let made =
        Command::new(afterfit()).args(["average", text(&checkpoints)]).args(ratios).args(["-o", text(&out)]).output();
    let made = made.expect("afterfit average");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    for name in ["ratio-0.9999", "ratio-0.999", "ratio-0.99", "ratio-0.9", "uniform"] {
        let file = format!("{name}.safetensors");
        let read = |folder: &Path| std::fs::read(folder.join(&file)).expect("an average");
        assert!(read(&averages) == read(&out), "{name}: not the same bytes");
    }

    let average = averages.join("ratio-0.99.safetensors");
    let fresh = at("fresh");
    let common = ["--run", text(&run), "--data-folder", text(&data), "--device", "cpu"];
    let mut refresh = vec!["refresh", text(&average), "--out", text(&fresh)];
    refresh.extend(common);
    let made = stdout(&refresh);
    let fresh = fresh.join("ratio-0.99.safetensors");
    assert_eq!(made.trim(), text(&fresh));
    assert_ne!(numbers(&fresh), numbers(&average), "statistics are new");
    let mut evaluate = vec!["evaluate", text(&fresh), "--quiet"];
    evaluate.extend(common);
    let accuracy: f64 = stdout(&evaluate).trim().parse().expect("a number");
    // Refreshing in memory is the same as refreshing a file.
    let mut evaluate = vec!["evaluate", text(&average), "--quiet", "--refresh"];
    evaluate.extend(common);
    assert_eq!(stdout(&evaluate).trim().parse::<f64>().expect("a number"), accuracy);
    let noted = |folder: &Path| {
        let evaluate =
            ["evaluate", text(&average), "--run", text(&run), "--device", "cpu", "--data-folder", text(folder)];
        let output = done(&evaluate).stderr;
        String::from_utf8(output).expect("text").contains("not the images")
    };
    small_cifar(&at("others"), 350);
    assert!(noted(&at("others")) && !noted(&data));
    let error = failure(&refresh);
    assert!(error.contains("is there already"), "{error}");
    let other = at("twice");
    let twice = [&["refresh", text(&average), text(&average), "--out", text(&other)][..], &common].concat();
    assert!(failure(&twice).contains("two models would be written"));
    let error = failure(&["average", "--run", text(&run), "--out", text(&averages)]);
    assert!(error.contains("is there already"), "{error}");

    // λ through the command, with steps from the checkpoints and the drop as it was, and off the dial of every iterate.
    let (strided, read) = (at("l2.safetensors"), at("read.safetensors"));
    let afterfit = |arguments: &[&str]| {
        let made = Command::new(afterfit()).args(arguments).output().expect("afterfit");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        String::from_utf8_lossy(&made.stderr).into_owned()
    };
    let average = ["average", text(&checkpoints), "--origin", "1", "--rate", "0.1,2:0.01", "--l2", "0.5"];
    let said = afterfit(&[&average[..], &["-o", text(&strided)]].concat());
    assert!(said.contains("each number in the names stands for 12 optimizer steps"), "{said}");
    afterfit(&["dial", "read", text(&run.join("dial.safetensors")), "--l2", "0.5", "-o", text(&read)]);
    let floats = |path: &Path| -> Vec<f32> {
        let bytes = numbers(path);
        bytes.as_chunks().0.iter().map(|&bits| f32::from_le_bytes(bits)).collect()
    };
    let last = floats(&checkpoints.join("epoch-0003.safetensors"));
    let (strided, read) = (floats(&strided), floats(&read));
    let apart = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt();
    let (off, moved) = (apart(&strided, &read), apart(&read, &last));
    assert!(off < 0.5 * moved, "{off} apart, {moved} from the last weights");
}

#[test]
fn table1_measures_everything() {
    let place = tempfile::tempdir().expect("a folder");
    let (data, out) = (place.path().join("data"), place.path().join("out"));
    small_cifar(&data, 200);
    let common = ["--out", text(&out), "--data-folder", text(&data), "--net", "vgg-16"];
    let go_on = |study, stop: &[&str]| stdout(&[&[study], &common[..], &TINY, stop].concat());
    // A run of `train` becomes one of `table1`, which averages its last epochs alone.
    go_on("train", &["--stop-after", "1"]);
    assert_eq!(go_on("table1", &["--stop-after", "2"]), "", "not yet");
    let table = go_on("table1", &[]);
    assert!(out.join("checkpoints/epoch-0001.safetensors").exists());
    for row in [
        "last weights, as trained",
        "ratio 0.99 ",
        "uniform average",
        "EMA 0.9",
        "SWA from",
        "dial 1.0e-6, reg",
        "93.18",
        "2 checkpoints, four ratios",
    ] {
        assert!(table.contains(row), "{row} is not in\n{table}");
    }
    let found: serde_json::Value =
        serde_json::from_slice(&std::fs::read(out.join("table1.json")).expect("json")).expect("json");
    let rows = found["rows"].as_array().expect("rows");
    let count = |kind: &str| rows.iter().filter(|row| row["kind"] == kind).count();
    assert_eq!((count("last"), count("ratio"), count("dial")), (1, 4, 34));
    let picture = std::fs::read_to_string(out.join("table1.svg")).expect("a picture");
    assert!(picture.contains("vgg-16 on cifar-10, 3 epochs"));
    for file in ["table1.csv", "table1.svg", "table1.png"] {
        assert!(std::fs::metadata(out.join(file)).is_ok_and(|file| file.len() > 200), "{file}");
    }
}

#[test]
fn noise_chooses_without_the_test_images() {
    let place = tempfile::tempdir().expect("a folder");
    let (data, out) = (place.path().join("data"), place.path().join("out"));
    small_cifar(&data, 300);
    let noise = |out: &Path| {
        let mut arguments = vec!["noise", "--out", text(out), "--data-folder", text(&data), "--hold-out", "50"];
        arguments.extend(TINY);
        stdout(&arguments)
    };
    let table = noise(&out);
    assert!(table.contains("chosen on 50 held-out images") && table.contains("best epoch"), "{table}");
    let found: serde_json::Value =
        serde_json::from_slice(&std::fs::read(out.join("noise.json")).expect("json")).expect("json");
    // 120 of 300 labels were drawn anew; a tenth of them are right by chance.
    let wrong = found["wrong_labels"].as_i64().expect("a number");
    assert!((90..=120).contains(&wrong), "{wrong}");
    let rows = found["rows"].as_array().expect("rows");
    assert!(rows.iter().all(|row| row["held_out"]["accuracy"].is_number()));
    // Other test labels change every accuracy on them, and nothing of the choice.
    let mut test = std::fs::read(data.join("test_batch.bin")).expect("the test images");
    test.chunks_exact_mut(3073).for_each(|image| image[0] = (image[0] + 3) % 10);
    std::fs::write(data.join("test_batch.bin"), test).expect("the test images");
    let again = noise(&place.path().join("again"));
    let choice = |table: &str| table.lines().last().and_then(|line| line.split(',').next()).map(str::to_owned);
    assert_eq!(choice(&table), choice(&again));
    assert_ne!(table, again);
}

#[test]
fn wrong_input_is_refused_with_its_limits() {
    let place = tempfile::tempdir().expect("a folder");
    let (data, out) = (place.path().join("data"), place.path().join("out"));
    small_cifar(&data, 100);
    let train = |more: &[&str]| {
        let mut arguments = vec!["train", "--out", text(&out), "--data-folder", text(&data)];
        arguments.extend(["--quiet", "--epochs", "3", "--width", "2"]);
        arguments.extend(more);
        failure(&arguments)
    };
    for (more, expected) in [
        (&["--rate=-1"][..], "a rate of -1.0: it must be from 1e-30 to 100"),
        (&["--momentum", "1"], "a momentum of 1.0: it must be at least 0 and below 1"),
        (&["--nesterov"], "--nesterov needs a --momentum"),
        (&["--weight-decay", "NaN"], "a weight decay of NaN"),
        (&["--batch", "1000"], "100 training images do not fill a batch of 1000"),
        (&["--batch", "1"], "a batch of 1: it must be from 2"),
        (&["--dial", "1e-2..1e-6"], "lower end of the range"),
        (&["--dial", "1e-2"], "is not MIN..MAX"),
        (&["--dial-from", "3"], "starts after 3 epochs"),
        (&["--checkpoints-from", "4"], "checkpoints from epoch 4"),
        (&["--drops", "2,1"], "must rise"),
        (&["--label-noise", "2"], "a label noise of 2"),
        (&["--data", "cifar-100"], "train.bin"),
        (&["--data", "fashion-mnist"], "train-images-idx3-ubyte"),
    ] {
        let error = train(more);
        assert!(error.contains(expected), "{more:?}: {error}");
        assert!(!out.exists(), "{more:?} left something behind");
    }
    if !tch::Cuda::is_available() {
        assert!(train(&["--device", "cuda"]).contains("CUDA is not available"));
    }
    std::fs::create_dir_all(&out).expect("a folder");
    std::fs::write(out.join("thesis.txt"), "mine").expect("a file");
    assert!(train(&[]).contains("holds other things"));
    let error = failure(&["evaluate", "nothing.pt", "--run", text(&out), "--device", "cpu"]);
    assert!(error.contains("not the folder of a run"), "{error}");
    let error = failure(&["train", "--out", text(&place.path().join("x")), "--data", "cifar-100", "--device", "cpu"]);
    assert!(error.contains("--data-folder"), "{error}");
}
