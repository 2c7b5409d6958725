//! `afterfit average` and `afterfit dial`, as a user meets them.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::{Run, afterfit, entries, folder, json, transcript};

/// The library's PyTorch fixtures, copied so that paths are short.
fn fixtures() -> TempDir {
    let here = folder(&[]);
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../afterfit/tests/fixtures");
    for name in ["plain", "legacy", "wrapped", "safetensors", "odd", "shapes"] {
        std::fs::create_dir(here.path().join(name)).unwrap();
        for entry in std::fs::read_dir(from.join(name)).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), here.path().join(name).join(entry.file_name())).unwrap();
        }
    }
    here
}

#[test]
fn what_average_and_dial_print() {
    let here = fixtures();
    let at = here.path();
    std::fs::write(at.join("lr.csv"), "step,lr\n0,0.1\n20,0.01\n").unwrap();
    let commands: &[&[&str]] = &[
        &["average", "plain", "-o", "out", "--ratio", "0.9999,0.999,0.99,0.9"],
        &["average", "plain", "-o", "one.safetensors", "--ratio", "0.99", "--dry-run"],
        &["average", "wrapped", "-o", "l2", "--l2", "1e-4,5e-4", "--steps-per-epoch", "2"],
        &["average", "plain", "-o", "csv.npz", "--l2", "1e-3", "--rates", "lr.csv", "--dtype", "f32", "--quadratic"],
        &["average", "plain/step-0.pt", "plain/step-30.pt", "-o", "two.pt", "--uniform"],
        &["average", "plain/step-*.pt", "-o", "some.safetensors", "--last", "2", "--from", "10"],
        &["average", "plain", "-o", "run.dial", "--dial", "1e-3..1", "--rate", "0.1,20:0.01", "--nodes", "8"],
        &["dial", "info", "run.dial"],
        &["dial", "read", "run.dial", "--l2", "3e-3", "-o", "m.safetensors"],
        &["dial", "read", "run.dial", "--l2", "1e-3..1:3", "-o", "many", "--format", "pt"],
        &["inspect", "wrapped/epoch=10.ckpt"],
        &[
            "average",
            "plain",
            "-o",
            "evaluated",
            "--ratio",
            "0.9,0.5,0.1",
            "--eval",
            "echo {} scores; case {} in *0.5*) echo 7;; *) echo 3;; esac",
            "--keep",
            "best",
            "--best",
            "max",
        ],
    ];
    let mut book = String::new();
    for command in commands {
        book.push_str(&format!("$ afterfit {}\n{}\n\n", command.join(" "), transcript(at, command)));
    }
    insta::assert_snapshot!(book);
    assert_eq!(entries(&at.join("evaluated")), ["ratio-0.5.safetensors"]);
    assert_eq!(entries(&at.join("out")).len(), 4);
}

#[test]
fn average_errors() {
    let here = fixtures();
    let at = here.path();
    std::fs::create_dir(at.join("nothing")).unwrap();
    std::fs::create_dir(at.join("mixed")).unwrap();
    std::fs::copy(at.join("plain/step-0.pt"), at.join("mixed/step-0.pt")).unwrap();
    std::fs::copy(at.join("wrapped/epoch=10.ckpt"), at.join("mixed/step-1.pt")).unwrap();
    std::fs::create_dir(at.join("twice")).unwrap();
    std::fs::copy(at.join("plain/step-0.pt"), at.join("twice/step-3.pt")).unwrap();
    std::fs::copy(at.join("plain/step-0.pt"), at.join("twice/step-03.pt")).unwrap();
    for run in ["logs/version_0/checkpoints", "logs/version_1/checkpoints", "every-second"] {
        std::fs::create_dir_all(at.join(run)).unwrap();
        for epoch in [1, 3, 5] {
            std::fs::copy(at.join("plain/step-0.pt"), at.join(run).join(format!("epoch_{epoch}.pt"))).unwrap();
        }
    }
    std::fs::write(at.join("exists.safetensors"), "precious").unwrap();
    std::fs::write(at.join("evil.pt"), "\u{80}").unwrap();
    std::fs::write(at.join("bad.csv"), "step,lr\n0,zero\n").unwrap();
    let before = entries(at);
    let cases: &[&[&str]] = &[
        &["average", "plain", "-o", "x.safetensors"],
        &["average", "plain", "-o", "x.safetensors", "--ratio", "1.5"],
        &["average", "plain", "-o", "x.safetensors", "--ratio", "0"],
        &["average", "plain", "-o", "x.safetensors", "--ratio", "0.9,0.8"],
        &["average", "plain", "-o", "x.safetensors", "--last", "9"],
        &["average", "plain", "-o", "x.safetensors", "--ema", "1"],
        &["average", "plain", "-o", "x.safetensors", "--l2", "0.1"],
        &["average", "plain", "-o", "x.safetensors", "--l2", "-1", "--rate", "0.1"],
        &["average", "plain", "-o", "x.safetensors", "--l2", "0.1", "--rate", "fast"],
        &["average", "plain", "-o", "x.safetensors", "--l2", "0.1", "--rate", "0.1,5"],
        &["average", "plain", "-o", "x.safetensors", "--l2", "0.1", "--rates", "bad.csv"],
        &["average", "plain", "-o", "x.safetensors", "--l2", "0.1", "--rate", "0.1", "--momentum", "1"],
        &["average", "plain", "-o", "x.safetensors", "--l2", "0.1", "--rate", "0.1", "--nesterov"],
        &["average", "plain", "-o", "x.safetensors", "--l2", "0.1", "--rate", "0.1", "--steps-per-epoch", "0"],
        &["average", "plain", "-o", "x.safetensors", "--l2", "0.1", "--rate", "0.1", "--origin", "5"],
        &["average", "plain", "-o", "x.safetensors", "--uniform", "--from", "100"],
        &["average", "plain", "-o", "x.safetensors", "--uniform", "--every", "0"],
        &["average", "plain", "-o", "x.safetensors", "--uniform", "--step-regex", "("],
        &["average", "plain", "-o", "x.safetensors", "--uniform", "--step-regex", "q(\\d+)"],
        &["average", "plain", "-o", "x.safetensors", "--uniform", "--filter", "*.npz"],
        &["average", "plain", "-o", "x.safetensors", "--uniform", "--dtype", "f7"],
        &["average", "plain", "-o", "x.safetensors", "--uniform", "--memory", "much"],
        &["average", "plain", "-o", "x.npz", "--uniform"],
        &["average", "plain", "-o", "x.onnx", "--uniform"],
        &["average", "plain", "-o", "x.H5", "--uniform"],
        &["average", "logs", "-o", "x.pt", "--uniform"],
        &["average", "wrapped", "-o", "x.pt", "--l2", "1e-2", "--steps-per-epoch", "2"],
        &["average", "every-second", "-o", "x.pt", "--l2", "0.1", "--rate", "0.1", "--steps-per-epoch", "10"],
        &["average", "plain", "-o", "x.pt", "--uniform", "--shard-size", "1MB"],
        &["average", "plain", "-o", "exists.safetensors/x.safetensors", "--uniform"],
        &["average", "plain", "-o", "exists.safetensors", "--uniform"],
        &["average", "plain", "-o", "exists.safetensors", "--uniform", "--skip-existing"],
        &["average", "plain", "-o", "plain/step-0.pt", "--uniform", "--force"],
        &["average", "plain", "-o", "x.safetensors", "--uniform", "--eval", "true"],
        &["average", "plain", "-o", "x.safetensors", "--keep", "best", "--uniform"],
        &["average", "plain", "-o", "x.safetensors", "--keep", "best", "--uniform", "--eval", "echo {}"],
        &["average", "shapes/quantized.pt", "-o", "x.safetensors", "--uniform"],
        &["average", "shapes/placeholder.pt", "-o", "x.safetensors", "--uniform"],
        &["average", "plain/step-0.pt", "-o", "x.safetensors", "--uniform"],
        &["average", "plain", "-o", "x.safetensors", "--uniform", "--lora", "exact"],
        &["average", "plain", "-o", "x.dial", "--dial", "1e-3..1"],
        &["average", "plain", "-o", "x.dial", "--dial", "1..1e-3", "--rate", "0.1"],
        &["average", "plain", "-o", "x.dial", "--dial", "1e-3..1", "--rate", "0.1", "--nodes", "0"],
        &["average", "plain", "-o", "x.dial", "--dial", "1e-3..1", "--rate", "0.1", "--uniform"],
        &["average", "nothing", "-o", "x.safetensors", "--uniform"],
        &["average", "missing", "-o", "x.safetensors", "--uniform"],
        &["average", "plain/q*.pt", "-o", "x.safetensors", "--uniform"],
        &["average", "mixed", "-o", "x.safetensors", "--uniform"],
        &["average", "twice", "-o", "x.safetensors", "--last", "2"],
        &["average", "evil.pt", "-o", "x.safetensors", "--uniform"],
        &["average", "wrapped", "-o", "x.safetensors", "--uniform", "--key", "ema"],
        &["average", "safetensors", "-o", "x.safetensors", "--uniform", "--key", "ema"],
        &["dial", "info", "safetensors/step-0.safetensors"],
        &["dial", "info", "missing.dial"],
    ];
    let mut book = String::new();
    for arguments in cases {
        let printed = transcript(at, arguments);
        assert!(!printed.starts_with("exit 0"), "{arguments:?}: {printed}");
        book.push_str(&format!("$ afterfit {}\n{printed}\n\n", arguments.join(" ")));
        assert_eq!(entries(at), before, "{arguments:?} left something behind");
    }
    assert_eq!(std::fs::read_to_string(at.join("exists.safetensors")).unwrap(), "precious");
    insta::assert_snapshot!(book);
}

#[test]
fn the_documented_json_of_average() {
    let here = fixtures();
    let at = here.path();
    let arguments = [
        "average",
        "wrapped",
        "-o",
        "out",
        "--l2",
        "1e-4,1e-2",
        "--ratio",
        "0.9",
        "--steps-per-epoch",
        "2",
        "--rate",
        "0.1,21:0.01",
        "--json",
        "-q",
    ];
    let dry = json(at, &[&arguments[..], &["--dry-run"]].concat());
    assert!(!at.join("out").exists(), "--dry-run writes nothing");
    let found = json(at, &arguments);
    for key in ["outputs", "inputs", "weights"] {
        assert_eq!(dry[key], found[key], "{key}");
    }
    let second = serde_json::json!({"path": "wrapped/epoch=10.ckpt", "number": 10, "step": 22, "rate": 0.1});
    assert_eq!(found["inputs"][1], second, "epochs counted from 0 are saved at their ends");
    assert_eq!(found["inputs"][3]["rate"], Value::Null, "no step leaves the last checkpoint");
    let outputs = found["outputs"].as_array().unwrap();
    assert_eq!(outputs.len(), 3);
    for (output, weights) in outputs.iter().zip(found["weights"].as_array().unwrap()) {
        assert!(at.join(output["path"].as_str().unwrap()).is_file());
        assert!(output["strength"].is_f64() && output["scheme"].is_string());
        assert!(["exact", "approximation", "heuristic"].contains(&output["status"].as_str().unwrap()));
        let sum: f64 = weights.as_array().unwrap().iter().map(|weight| weight.as_f64().unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-12);
    }
    assert_eq!(outputs[0]["path"], "out/ratio-0.9.safetensors");
    assert_eq!(
        (outputs[1]["path"].as_str(), outputs[1]["answer"].as_str()),
        (Some("out/l2-1e-4.safetensors"), Some("regularized"))
    );
    assert!(found["seconds"]["total"].is_f64());
}

#[test]
fn a_path_of_every_step_of_a_quadratic_is_exact() {
    let here = fixtures();
    let status = |more: &[&str]| {
        let base = ["average", "plain", "-o", "x.safetensors", "--rate", "0.1", "--l2", "0.01", "--dry-run", "--json"];
        json(here.path(), &[&base[..], more].concat())["outputs"][0]["status"].as_str().unwrap().to_owned()
    };
    // Names 0, 10, 20, 30: with a regular expression that drops the zero they are 0, 1, 2, 3.
    let every = ["--step-regex", "step-(\\d)", "--quadratic"];
    assert_eq!(status(&every), "exact");
    assert_eq!(status(&["--step-regex", "step-(\\d)"]), "approximation");
    assert_eq!(status(&["--quadratic"]), "approximation");
    assert_eq!(status(&["--quadratic", "--step-regex", "step-(\\d)", "--momentum", "0.9"]), "exact");
    assert_eq!(status(&["--quadratic", "--step-regex", "step-(\\d)", "--from", "1"]), "approximation");
    assert_eq!(status(&["--quadratic", "--step-regex", "step-(\\d)", "--from", "1", "--origin", "1"]), "exact");
}

/// Checkpoints large enough for a kill to come in the middle.
fn large(folder: &Path, count: usize) {
    for k in 0..count {
        let values: Vec<u8> =
            (0..1_000_000_u32).flat_map(|i| (((i * 7 + k as u32) % 1000) as f32).to_le_bytes()).collect();
        let header = "{\"w\":{\"dtype\":\"F32\",\"shape\":[1000000],\"data_offsets\":[0,4000000]}}     ";
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend(values);
        std::fs::write(folder.join(format!("step-{k}.safetensors")), bytes).unwrap();
    }
}

#[test]
fn a_kill_leaves_nothing_half_written_and_a_rerun_finishes() {
    let here = folder(&[]);
    let at = here.path();
    std::fs::create_dir(at.join("in")).unwrap();
    large(&at.join("in"), 12);
    let arguments = ["average", "in", "-o", "out", "--ratio", "0.99,0.9,0.8,0.7,0.6,0.5", "-q"];
    afterfit().current_dir(at).args(arguments).succeeds();
    let whole: Vec<(String, Vec<u8>)> = entries(&at.join("out"))
        .into_iter()
        .map(|name| (name.clone(), std::fs::read(at.join("out").join(name)).unwrap()))
        .collect();
    let mut in_the_middle = 0;
    for wait in [0, 2, 5, 20, 80] {
        std::fs::remove_dir_all(at.join("out")).unwrap();
        let mut child = std::process::Command::new(crate::AFTERFIT)
            .args(arguments)
            .current_dir(at)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // Kills that come while files are being written: a temporary name is there, and a moment has passed.
        let writing =
            || at.join("out").exists() && entries(&at.join("out")).iter().any(|name| name.starts_with(".afterfit-"));
        while !writing() && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_millis(wait));
        in_the_middle += usize::from(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        // What has its name is whole.
        let visible =
            |folder: &PathBuf| entries(folder).into_iter().filter(|name| !name.starts_with('.')).collect::<Vec<_>>();
        if at.join("out").exists() {
            for name in visible(&at.join("out")) {
                let expected = whole.iter().find(|(known, _)| *known == name).unwrap();
                assert!(std::fs::read(at.join("out").join(&name)).unwrap() == expected.1, "{name} after {wait} ms");
            }
        }
        std::fs::create_dir_all(at.join("out")).unwrap();
        afterfit().current_dir(at).args(arguments).arg("--skip-existing").succeeds();
        for (name, bytes) in &whole {
            assert!(std::fs::read(at.join("out").join(name)).unwrap() == *bytes, "{name} after {wait} ms and a rerun");
        }
    }
    assert!(in_the_middle >= 1, "no kill came in the middle of writing");
    // Some of them gone: only those are made again.
    std::fs::remove_file(at.join("out/ratio-0.8.safetensors")).unwrap();
    let stamp = |name: &str| std::fs::metadata(at.join("out").join(name)).unwrap().modified().unwrap();
    let before = stamp("ratio-0.9.safetensors");
    let again = json(at, &[&arguments[..], &["--skip-existing", "--json"]].concat());
    assert_eq!(stamp("ratio-0.9.safetensors"), before);
    let skipped = again["outputs"].as_array().unwrap().iter().filter(|output| output["skipped"] == true).count();
    assert_eq!(skipped, 5);
    // Made from other checkpoints, it is not taken for the same.
    let other = transcript(at, &[&arguments[..], &["--skip-existing", "--to", "5"]].concat());
    assert!(other.contains("was not made from these checkpoints"), "{other}");
}

#[test]
fn evaluation_that_fails_keeps_the_outputs() {
    let here = fixtures();
    let at = here.path();
    let printed = transcript(
        at,
        &[
            "average",
            "plain",
            "-o",
            "out",
            "--ratio",
            "0.9,0.5",
            "--keep",
            "best",
            "--best",
            "max",
            "-q",
            "--eval",
            "case {} in *0.5*) exit 3;; *) echo 1;; esac",
        ],
    );
    assert!(printed.starts_with("exit 1") && printed.contains("(1 of 2 outputs are evaluated)"), "{printed}");
    assert_eq!(entries(&at.join("out")).len(), 2);
    // A name that would be dangerous to a shell stays a name.
    std::fs::rename(at.join("plain"), at.join("a b'; touch pwned; '")).unwrap();
    let printed = transcript(
        at,
        &[
            "average",
            "a b'; touch pwned; '",
            "-o",
            "x '$(touch pwned).safetensors",
            "--uniform",
            "-q",
            "--eval",
            "ls {} >/dev/null && echo 4",
        ],
    );
    assert!(printed.starts_with("exit 0"), "{printed}");
    assert!(!at.join("pwned").exists());
}

#[test]
fn nothing_of_the_users_is_replaced() {
    let here = fixtures();
    let at = here.path();
    // A checkpoint in shards, and a folder of the user's own.
    let shards = ["average", "plain/step-0.pt", "-o", "checkpoint-1", "--iterate", "0", "--shard-size", "300B", "-q"];
    afterfit().current_dir(at).args(shards).succeeds();
    std::fs::create_dir(at.join("precious")).unwrap();
    std::fs::write(at.join("precious/notes.txt"), "mine").unwrap();
    let refused = |arguments: &[&str], words: &str| {
        let printed = transcript(at, arguments);
        assert!(printed.starts_with("exit 1") && printed.contains(words), "{arguments:?}: {printed}");
    };
    let average = |out: &'static str| ["average", "checkpoint-1", "-o", out, "--iterate", "1", "--force"];
    refused(&average("precious"), "a folder that afterfit did not make");
    assert_eq!(std::fs::read_to_string(at.join("precious/notes.txt")).unwrap(), "mine");
    refused(&average("checkpoint-1/model-00001-of-00007.safetensors"), "inside an input");
    refused(&average("checkpoint-1/new"), "inside an input");
    refused(&average("checkpoint-1"), "is an input, too");
    // Its own folder is replaced, and one file can be asked for.
    for _ in 0..2 {
        afterfit().current_dir(at).args(average("again")).succeeds();
    }
    afterfit().current_dir(at).args(average("one.safetensors")).succeeds();
    assert!(at.join("one.safetensors").is_file() && at.join("again").is_dir());
    // Nor is a dial, nor is a checkpoint passed over for its name.
    let dial = ["average", "plain", "-o", "run.dial", "--dial", "1e-3..1", "--rate", "0.1", "-q"];
    afterfit().current_dir(at).args(dial).succeeds();
    refused(&["average", "run.dial", "-o", "x.safetensors", "--uniform"], "is a dial, not a checkpoint");
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::ffi::OsStrExt;
        std::fs::create_dir(at.join("named-oddly")).unwrap();
        std::fs::copy(at.join("plain/step-0.pt"), at.join("named-oddly/step-0.pt")).unwrap();
        std::fs::write(at.join("named-oddly").join(std::ffi::OsStr::from_bytes(b"step\xff-1.pt")), "x").unwrap();
        refused(&["average", "named-oddly", "-o", "x.safetensors", "--uniform"], "is not UTF-8");
    }
    // Outputs of an earlier run are not taken for checkpoints, whatever number is in their names.
    for format in ["safetensors", "pt"] {
        let once = ["average", "plain", "-o", "plain", "--ratio", "0.9,0.8", "--format", format, "-q"];
        afterfit().current_dir(at).args(once).succeeds();
        let said = transcript(at, &["average", "plain", "-o", "x.safetensors", "--uniform", "--dry-run"]);
        assert!(said.contains("4 checkpoints") && said.contains("left out: ratio-0.8"), "{said}");
        refused(
            &["average", "plain", "-o", "y", "--uniform", "--filter", &format!("ratio*.{format}")],
            "itself an average",
        );
        for ratio in ["0.9", "0.8"] {
            std::fs::remove_file(at.join(format!("plain/ratio-{ratio}.{format}"))).unwrap();
        }
    }
    // What exists counts as done only if it was made the same way.
    std::fs::write(at.join("junk.pt"), "junk").unwrap();
    refused(&["average", "plain", "-o", "junk.pt", "--uniform", "--skip-existing"], "was not made from these");
    for _ in 0..2 {
        afterfit()
            .current_dir(at)
            .args(["average", "plain", "-o", "mean.pt", "--uniform", "--skip-existing"])
            .succeeds();
    }
    refused(
        &["average", "plain", "-o", "mean.pt", "--uniform", "--skip-existing", "--dtype", "f32"],
        "was not made from these",
    );
    // A failed run leaves no folder behind.
    refused(&["average", "plain", "-o", "out", "--ratio", "0.9,0.8", "--format", "npz"], "numpy has no type");
    assert!(!at.join("out").exists());
}

#[test]
#[cfg(target_os = "linux")]
fn names_that_are_not_text() {
    use std::os::unix::ffi::OsStrExt;
    let here = fixtures();
    let odd = std::ffi::OsStr::from_bytes(b"step-1\xff.pt");
    std::fs::copy(here.path().join("plain/step-0.pt"), here.path().join(odd)).unwrap();
    let output = afterfit()
        .current_dir(here.path())
        .args(["average", "--iterate", "0", "--json", "-o", "x.safetensors"])
        .arg(odd)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_warm_up_from_zero_is_no_obstacle() {
    let here = fixtures();
    for strength in [&["--ratio", "0.9"][..], &["--uniform"], &["--l2", "1"]] {
        let arguments = [&["average", "odd/warm-*.pt", "-o", "x.safetensors", "--force", "--json"], strength].concat();
        let found = json(here.path(), &arguments);
        assert_eq!(found["inputs"][0]["rate"], 0.0, "{strength:?}");
    }
    let dial = transcript(here.path(), &["average", "odd/warm-*.pt", "-o", "x.dial", "--dial", "0.1..1"]);
    assert!(dial.contains("exit 0") && dial.contains("wrote x.dial"), "{dial}");
}

/// Every weighting by its flag: what the library gives for the same steps, and how exact it is said to be.
#[test]
fn every_weighting_has_a_flag() {
    let here = fixtures();
    std::fs::write(here.path().join("by-hand.txt"), "\u{feff}0.5 -0.25\n0.25, 0.5\n").unwrap();
    std::fs::write(here.path().join("counts.txt"), "5 2 3 1").unwrap();
    let counts = transcript(here.path(), &["average", "plain", "-o", "x", "--weights", "counts.txt"]);
    assert!(counts.contains("counts.txt: the sum of the weights is 11: it must be 1"), "{counts}");
    let weights = |arguments: &[&str]| -> (Vec<f64>, String) {
        let all = [&["average", "plain", "-o", "x/", "--dry-run", "--json", "-q"], arguments].concat();
        let found = json(here.path(), &all);
        let list = found["weights"][0].as_array().unwrap().iter().map(|weight| weight.as_f64().unwrap()).collect();
        (list, found["outputs"][0]["status"].as_str().unwrap().to_owned())
    };
    // Checkpoints at steps 0, 10, 20, 30.
    let close = |arguments: &[&str], expected: [f64; 4], standing: &str| {
        let (found, status) = weights(arguments);
        let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(off < 1e-12 && found.len() == 4, "{arguments:?}: {found:?} instead of {expected:?}");
        assert_eq!(status, standing, "{arguments:?}");
    };
    let decay = 0.9_f64.powi(10);
    let ema = [decay.powi(3), (1.0 - decay) * decay.powi(2), (1.0 - decay) * decay, 1.0 - decay];
    close(&["--ema", "0.9"], ema, "heuristic");
    close(&["--half-life", "10"], [0.125, 0.125, 0.25, 0.5], "heuristic");
    close(&["--half-life", "10", "--ema-start", "update"], [0.0, 0.25, 0.25, 0.5], "heuristic");
    let debiased = [1.0, 2.0, 4.0, 8.0].map(|weight| weight / 15.0);
    close(&["--half-life", "10", "--ema-start", "debiased"], debiased, "heuristic");
    // t^γ+1 with γ = 1: (t_j/30)² − (t_{j−1}/30)².
    close(&["--power-ema-gamma", "1"], [0.0, 1.0 / 9.0, 3.0 / 9.0, 5.0 / 9.0], "heuristic");
    close(&["--uniform", "--window", "2"], [0.0, 0.0, 0.5, 0.5], "heuristic");
    close(&["--uniform", "--window", "34%"], [0.0, 0.0, 0.5, 0.5], "heuristic");
    close(&["--uniform", "--window", "20steps"], [0.0, 1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0], "heuristic");
    close(&["--uniform", "--window", "5..15"], [0.0, 1.0, 0.0, 0.0], "heuristic");
    close(&["--anneal", "linear", "--window", "100%"], [0.25; 4], "heuristic");
    close(&["--wise", "0.3"], [0.7, 0.0, 0.0, 0.3], "heuristic");
    close(&["--iterate", "20"], [0.0, 0.0, 1.0, 0.0], "exact");
    close(&["--weights", "by-hand.txt"], [0.5, -0.25, 0.25, 0.5], "heuristic");
    for (arguments, standing) in [
        (&["--schedule", "linear", "--window", "100%", "--rate", "0.1"][..], "approximation"),
        (&["--power-ema", "0.1"], "heuristic"),
        (&["--bema"], "heuristic"),
        (&["--ema", "0.999", "--ema-warmup"], "heuristic"),
        (&["--l2", "0.01", "--rate", "0.1", "--optimizer", "adam", "--beta1", "0.9"], "approximation"),
        (&["--l2", "0.01", "--rate", "0.1", "--optimizer", "lion"], "heuristic"),
    ] {
        let (found, status) = weights(arguments);
        assert!(
            (found.iter().sum::<f64>() - 1.0).abs() < 1e-12 && status == standing,
            "{arguments:?}: {found:?} {status}"
        );
    }
    for (arguments, words) in [
        (&["--window", "20%", "--ema", "0.9"][..], "--window has no effect here: no option that was given uses it"),
        (&["--uniform", "--window", "x"], "is not a window"),
        (&["--anneal", "square"], "is not a shape"),
        (&["--iterate", "11"], "iterate is 11: it must be one of the 4 kept, from step 0 to 30"),
        (&["--wise", "2"], "share of the last iterate is 2: it must be from 0 to 1"),
        (&["--power-ema", "0.5"], "sigma_rel is 0.5"),
        (&["--schedule", "linear"], "the rates of the training are needed"),
        (
            &["--l2", "1", "--rate", "0.1", "--optimizer", "sgd", "--momentum", "0.9"],
            "--momentum has no meaning for --optimizer sgd",
        ),
    ] {
        let all = [&["average", "plain", "-o", "x/", "--dry-run"], arguments].concat();
        let said = transcript(here.path(), &all);
        assert!(!said.contains("exit 0") && said.contains(words), "{arguments:?}: {said}");
    }
}

/// Steps are counted the same whether or not rates are known, and from 0 whatever the origin.
#[test]
fn steps_are_what_users_call_them() {
    let here = fixtures();
    let weights = |arguments: &[&str]| -> Vec<f64> {
        let all = [&["average", "plain", "-o", "x/", "--dry-run", "--json", "-q"], arguments].concat();
        let found = json(here.path(), &all);
        found["weights"][0].as_array().unwrap().iter().map(|weight| weight.as_f64().unwrap()).collect()
    };
    let tens = ["--half-life", "100", "--step-regex", "step-(\\d+)", "--steps-per-epoch", "10"];
    let plain = weights(&tens);
    assert_eq!(plain, weights(&[&tens[..], &["--rate", "0.1"]].concat()));
    assert!((plain[3] - 0.5).abs() < 1e-12, "{plain:?}");
    let one = weights(&["--iterate", "20", "--from", "10", "--origin", "10", "--rate", "0.1"]);
    assert_eq!(one, [0.0, 1.0, 0.0]);
}

/// An average that needs no rates does not open the files that have them, whatever they hold.
#[test]
fn what_is_not_needed_stays_closed() {
    let folder = tempfile::tempdir().unwrap();
    for step in [10, 20] {
        let here = folder.path().join(format!("checkpoint-{step}"));
        std::fs::create_dir(&here).unwrap();
        let header = b"{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.extend([0; 8]);
        std::fs::write(here.join("model.safetensors"), bytes).unwrap();
        std::fs::write(here.join("optimizer.pt"), b"not a pickle").unwrap();
        std::fs::write(here.join("scheduler.pt"), b"not a pickle").unwrap();
    }
    let run = |weighting: &[&str]| {
        let out = folder.path().join("out");
        let output = afterfit()
            .arg("average")
            .arg(folder.path())
            .args(weighting)
            .arg("-o")
            .arg(&out)
            .arg("--force")
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let quiet = run(&["--uniform"]);
    assert!(!quiet.contains("optimizer.pt") && !quiet.contains("scheduler.pt"), "{quiet}");
    let needed = run(&["--l2", "0.1", "--rate", "0.1"]);
    assert!(needed.contains("optimizer.pt cannot be read"), "{needed}");
}

#[test]
fn the_pages_of_averages_and_dials() {
    let here = fixtures();
    let at = here.path();
    let page = |file: &str| crate::page_data(&std::fs::read_to_string(at.join(file)).unwrap());
    let eval = "case {} in *0.1*) echo 7;; *) echo 3;; esac";
    let average = ["average", "plain", "-o", "out", "--l2", "0.01,0.1,1", "--rate", "0.1", "--eval", eval];
    let printed = json(at, &[&average[..], &["--report", "a.html", "--json", "-q"]].concat());
    let shown = page("a.html");
    let scores: Vec<&Value> = shown["rows"].as_array().unwrap().iter().map(|row| &row["validation_score"]).collect();
    assert_eq!(scores, [3.0, 7.0, 3.0]);
    assert_eq!((shown["best"].as_u64(), &shown["averaging"]["weights"]), (Some(1), &printed["weights"]));
    assert_eq!(shown["command"], "afterfit average plain --rate 0.1 --l2 {l2} -o model.safetensors");
    let refused = transcript(at, &["average", "plain", "-o", "b", "--ratio", "0.9,0.5", "--report", "b.html"]);
    assert!(refused.starts_with("exit 1") && refused.contains("ratio has none"), "{refused}");
    assert!(!at.join("b").exists() && !at.join("b.html").exists());

    let dial = ["average", "plain", "-o", "run.dial", "--dial", "1e-3..1", "--rate", "0.1", "--nodes", "8", "-q"];
    afterfit().current_dir(at).args(dial).succeeds();
    afterfit().current_dir(at).args(["dial", "info", "run.dial", "--report", "d.html"]).succeeds();
    let shown = page("d.html");
    assert_eq!((shown["rows"].as_array().unwrap().len(), shown["path"].is_null()), (41, true));
    assert_eq!(shown["rows"][0]["standing"], shown["standing"]);
    assert!(shown["rows"][0]["error"].is_number() && shown["averaging"]["steps"].as_array().unwrap().len() > 1);
    let again = transcript(at, &["dial", "info", "run.dial", "--report", "d.html"]);
    assert!(again.starts_with("exit 1") && again.contains("d.html exists already"), "{again}");
}

#[test]
fn distributed_checkpoints_come_out_as_they_came_unless_a_format_is_named() {
    let here = folder(&[]);
    let at = here.path();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../afterfit/tests/fixtures/distributed");
    for step in ["step-10", "step-20"] {
        std::fs::create_dir_all(at.join("run").join(step)).unwrap();
        for name in [".metadata", "__0_0.distcp"] {
            std::fs::copy(from.join(step).join(name), at.join("run").join(step).join(name)).unwrap();
        }
    }
    std::fs::write(at.join("run/step-20/config.json"), "{}").unwrap();
    let average = |more: &[&str]| json(at, &[&["average", "run", "--json"], more].concat());
    let found = average(&["-o", "out", "--uniform"]);
    let notes = found["notes"].to_string();
    assert!(notes.contains("optimizer") && notes.contains("train_state"), "{notes}");
    assert_eq!(entries(&at.join("out")), [".metadata", "__0_0.distcp", "afterfit.json", "config.json"]);
    average(&["-o", "hf", "--uniform", "--format", "safetensors"]);
    assert_eq!(entries(&at.join("hf")), ["config.json", "model.safetensors"]);
    average(&["-o", "x.safetensors", "--uniform"]);
    assert!(at.join("x.safetensors").is_file());
    // Steps, rates and the optimizer are those inside.
    let found = average(&["-o", "many", "--l2", "0.1,1", "--rate", "0.1"]);
    assert_eq!(found["inputs"][1]["step"], 20);
    assert_eq!(found["outputs"][0]["scheme"], "heavy ball, momentum 0.9");
    assert_eq!(entries(&at.join("many/l2-1")), entries(&at.join("out")));
    // One of ours is replaced when that is asked for, kept when it is the same, and no checkpoint.
    average(&["-o", "out", "--uniform", "--skip-existing"]);
    average(&["-o", "out", "--uniform", "--force"]);
    afterfit().current_dir(at).args(["average", "out", "run/step-10", "-o", "no", "--uniform"]).fails();
}
