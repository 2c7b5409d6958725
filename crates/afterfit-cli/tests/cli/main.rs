//! The command as a user meets it: output, errors, files.
#![allow(missing_docs, clippy::unwrap_used)]

mod average;
mod page;
mod shapes;
#[cfg(unix)]
mod written;

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

const AFTERFIT: &str = env!("CARGO_BIN_EXE_afterfit");

fn afterfit() -> Command {
    Command::new(AFTERFIT)
}

/// A command that must end well, or must not.
trait Run {
    fn succeeds(&mut self) -> Output;
    fn fails(&mut self) -> Output;
}

impl Run for Command {
    fn succeeds(&mut self) -> Output {
        let output = self.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output
    }

    fn fails(&mut self) -> Output {
        let output = self.output().unwrap();
        assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        output
    }
}

/// Runs in `folder`; stdout and stderr with times and version left out.
fn transcript(folder: &Path, arguments: &[&str]) -> String {
    let output = afterfit().current_dir(folder).args(arguments).output().unwrap();
    let status = output.status.code().unwrap();
    let steady = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let kept = text.lines().filter(|line| !line.starts_with("time ")).map(|line| match line.split_once(" in ") {
            Some((start, end)) if end.ends_with(" s") => format!("{start} in … s"),
            _ if ["passes over the data", "path is kept at", "certificate: {", "  path: {", " tensor(s), "]
                .iter()
                .any(|part| line.contains(part)) =>
            {
                numberless(line)
            }
            _ => line.to_owned(),
        });
        kept.collect::<Vec<_>>().join("\n")
    };
    format!("exit {status}\n--- stdout\n{}\n--- stderr\n{}", steady(&output.stdout), steady(&output.stderr))
}

/// With # for every number: those that end in rounding are not the same on every machine.
fn numberless(line: &str) -> String {
    let words = line.split_inclusive([' ', ',', '}', ':', ';']);
    let numberless = words.map(|word| {
        let (text, end) = word.split_at(word.trim_end_matches([' ', ',', '}', ':', ';']).len());
        if text.parse::<f64>().is_ok() { format!("#{end}") } else { word.to_owned() }
    });
    numberless.collect()
}

fn json(folder: &Path, arguments: &[&str]) -> Value {
    let output = afterfit().current_dir(folder).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A small regression table with a category, quotes and a comma in a field.
fn houses() -> String {
    let mut text = String::from("size,age,town,price\n");
    for i in 0..60 {
        let (size, age) = (40.0 + f64::from(i * 37 % 90), f64::from(i * 13 % 50));
        let town = ["Ulm", "\"Bad Tölz, upper\"", "Jena"][i as usize % 3];
        let price = 3.0 * size - 1.5 * age + [10.0, 40.0, 0.0][i as usize % 3] + f64::from(i * 7 % 11);
        text.push_str(&format!("{size},{age},{town},{price}\n"));
    }
    text
}

/// Two flowers that overlap a little.
fn flowers() -> String {
    let mut text = String::from("long,wide,kind\n");
    for i in 0..80 {
        let kind = i % 2;
        let (a, b) = (f64::from(i * 29 % 40) / 10.0, f64::from(i * 17 % 30) / 10.0);
        let name = ["rose", "tulip"][kind as usize];
        text.push_str(&format!("{:.2},{:.2},{name}\n", a + f64::from(kind) * 1.5, b - f64::from(kind) * 1.2));
    }
    text
}

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn small_commands() {
    let here = folder(&[]);
    let at = here.path();
    insta::assert_snapshot!("weights", transcript(at, &["weights", "--rate", "0.1", "--l2", "0.5", "--steps", "3"]));
    let nesterov = [
        "weights",
        "--optimizer",
        "nesterov",
        "--momentum",
        "0.9",
        "--rate",
        "0.1",
        "--l2",
        "0.5",
        "--steps",
        "3",
        "--json",
    ];
    insta::assert_snapshot!("weights_json", transcript(at, &nesterov));
    let plan = [
        "plan",
        "--l2",
        "1e-5..1e-2",
        "--rate",
        "0.1",
        "--steps",
        "15000",
        "--params",
        "11173962",
        "--tolerance",
        "1e-3",
    ];
    insta::assert_snapshot!("plan", transcript(at, &plan));
    let whole = [&plan[..], &["--dtype", "f32", "--block", "9"]].concat();
    insta::assert_snapshot!("plan_of_all_that_is_kept", transcript(at, &whole));
    let bound = [
        "theory", "bound", "--rate", "0.01", "--l2", "1", "--alpha", "1", "--beta", "80", "--sigma", "1", "--delta",
        "0.1",
    ];
    insta::assert_snapshot!("bound", transcript(at, &bound));
    insta::assert_snapshot!(
        "bracket",
        transcript(at, &["theory", "bracket", "--rate", "0.3", "--l2", "1.2", "--alpha", "0.1", "--beta", "1"])
    );
    insta::assert_snapshot!(
        "flow",
        transcript(at, &["theory", "flow", "--eigenvalue", "1", "--l2", "0.1", "--time", "5", "--alpha", "0.3"])
    );
}

#[test]
fn the_documented_json_of_small_commands() {
    let here = folder(&[]);
    let value = json(here.path(), &["weights", "--rate", "0.1", "--l2", "0.5", "--steps", "4", "--json"]);
    let weights: Vec<f64> = value["weights"].as_array().unwrap().iter().map(|w| w.as_f64().unwrap()).collect();
    let remaining = value["remaining"].as_f64().unwrap();
    assert_eq!((weights.len(), &value["exact"]), (4, &Value::Bool(true)));
    assert!((weights.iter().sum::<f64>() + remaining - 1.0).abs() < 1e-15);
    assert!((value["ratio"].as_f64().unwrap() - 1.0 / 1.05).abs() < 1e-15);
    let value = json(
        here.path(),
        &["theory", "bracket", "--rate", "0.3", "--l2", "1.2", "--alpha", "0.1", "--beta", "1", "--json"],
    );
    assert!((value["lambda_1"].as_f64().unwrap() - 2.1).abs() < 1e-12 && value["theorem"] == Value::Bool(false));
    let bound = [
        "theory",
        "bound",
        "--optimizer",
        "sgd",
        "--rate",
        "0.01",
        "--l2",
        "1",
        "--alpha",
        "1",
        "--beta",
        "80",
        "--sigma",
        "1",
        "--delta",
        "0.1",
        "--json",
    ];
    assert!(json(here.path(), &bound)["epsilon"].as_f64().unwrap() > 0.0);
    let plan = [
        "plan",
        "--l2",
        "1e-5..1e-2",
        "--rate",
        "0.1",
        "--steps",
        "150000",
        "--params",
        "11173962",
        "--tolerance",
        "1e-3",
        "--json",
    ];
    let plan = json(here.path(), &plan);
    assert_eq!((plan["nodes"].as_u64(), plan["bytes"].as_u64()), (Some(18), Some(18 * 8 * 11_173_962)));
    // Half of it in f32; with the center and nine iterates that wait.
    let small = ["plan", "--l2", "1e-5..1e-2", "--rate", "0.1", "--steps", "150000", "--params", "10", "--json"];
    let bytes = |more: &[&str]| json(here.path(), &[&small[..], more].concat())["bytes"].as_u64();
    assert_eq!(bytes(&["--dtype", "f32"]), Some(18 * 4 * 10));
    assert_eq!(bytes(&["--dtype", "f32", "--block", "9"]), Some((18 + 1 + 9) * 4 * 10));
}

#[test]
fn fit_prints_a_path_and_saves_a_model_that_predicts() {
    let here = folder(&[("houses.csv", &houses())]);
    let at = here.path();
    let fit = [
        "fit",
        "houses.csv",
        "--target",
        "price",
        "--l2",
        "1e-4..1e2:7",
        "-o",
        "model.safetensors",
        "--report",
        "report.html",
    ];
    insta::assert_snapshot!("fit_linear", transcript(at, &fit));
    insta::assert_snapshot!("fit_again", transcript(at, &fit));
    insta::assert_snapshot!("inspect", transcript(at, &["inspect", "model.safetensors"]));
    let output = afterfit().current_dir(at).args(["predict", "model.safetensors", "houses.csv"]).output().unwrap();
    let lines: Vec<String> = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    assert_eq!((lines[0].as_str(), lines.len()), ("price", 61));
    let truth: Vec<f64> =
        houses().lines().skip(1).map(|line| line.rsplit(',').next().unwrap().parse().unwrap()).collect();
    let worst = lines[1..].iter().zip(&truth).map(|(p, t)| (p.parse::<f64>().unwrap() - t).abs()).fold(0.0, f64::max);
    assert!(worst < 12.0, "{worst}");
    let page = std::fs::read_to_string(at.join("report.html")).unwrap();
    assert!(page.contains("default-src 'none'") && !page.contains("<link") && !page.contains("<script src"));
}

/// What a page shows.
fn page_data(page: &str) -> Value {
    let (_, rest) = page.split_once("id=\"afterfit-data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn the_report_has_the_models_the_rows_and_the_numbers() {
    let long = "distance_to_the_nearest_body_of_salt_water_in_kilometres";
    let houses = houses().replace("town", long).replace("Ulm", "NEAR </script> THE BAY");
    let here = folder(&[("houses.csv", &houses), ("flowers.csv", &flowers())]);
    let report = |table: &str, target: &str, more: &[&str]| {
        let file = format!("{target}.html");
        let fit =
            ["fit", table, "--target", target, "--l2", "1e-4..1e2:7", "--report", &file, "--force", "--json", "-q"];
        let printed = json(here.path(), &[&fit, more].concat());
        let page = std::fs::read_to_string(here.path().join(file)).unwrap();
        assert_eq!(page.matches("</script>").count(), 2, "names are data");
        (printed, page_data(&page))
    };
    let (printed, page) = report("houses.csv", "price", &[]);
    assert_eq!(page["rows"], printed["path"]);
    assert_eq!(page["rows"][page["best"].as_u64().unwrap() as usize]["l2"], printed["best_l2"]);
    let features: Vec<&str> = page["features"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(features.contains(&format!("{long}=NEAR </script> THE BAY").as_str()), "{features:?}");
    assert_eq!((page["samples"].as_array().unwrap().len(), page["path"]["type"].as_str()), (8, Some("f32")));
    assert!(page["path"]["error"].as_f64().unwrap() < 1e-4 && page["path"]["rounding"].as_f64().unwrap() < 1e-6);
    let command = page["command"].as_str().unwrap();
    assert_eq!(command, "afterfit fit houses.csv --target price --l2 {l2} -o model.safetensors");

    let (_, page) = report("flowers.csv", "kind", &["--cv", "3"]);
    let rows = flowers().lines().count() as u64 - 1;
    for confusion in page["confusions"].as_array().unwrap() {
        let counts = confusion.as_array().unwrap().iter().flat_map(|row| row.as_array().unwrap());
        assert_eq!(counts.filter_map(Value::as_u64).sum::<u64>(), rows, "each row is held out once");
    }
    assert_eq!(page["samples_seen"], true);

    let (_, page) = report("flowers.csv", "kind", &["--average-only"]);
    assert_eq!((page["standing"].as_str(), page["path"]["type"].as_str()), (Some("approximation"), Some("f32")));
    let averaging = &page["averaging"];
    assert_eq!(averaging["weights"].as_array().unwrap().len(), 7);
    for weights in averaging["weights"].as_array().unwrap() {
        let sum: f64 = weights.as_array().unwrap().iter().filter_map(Value::as_f64).sum();
        assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    }

    let (_, page) = report("houses.csv", "price", &["--model", "kernel"]);
    assert_eq!(page["rows"].as_array().unwrap().len(), 7);
    assert!(page["path"].is_object() && page["scores"].is_object() && page["about"].is_null());
    let (own, samples) = (page["features"].as_array().unwrap(), page["samples"].as_array().unwrap());
    let held = |sample: &Value| Value::from(format!("row {}", sample["row"].as_u64().unwrap() + 1));
    assert!(own.len() > 3 && samples.len() == 8 && samples.iter().all(|sample| !own.contains(&held(sample))));
    assert!(!page["columns"].as_array().unwrap().is_empty());
    let (_, page) = report("houses.csv", "price", &["--stream"]);
    assert!(page["path"].is_object() && page["samples"].as_array().unwrap().is_empty());
}

#[test]
fn fit_softmax_and_probabilities() {
    let here = folder(&[("flowers.csv", &flowers())]);
    let at = here.path();
    let fit = ["fit", "flowers.csv", "--target", "kind", "--l2", "1e-3..1:5", "-o", "model.safetensors"];
    insta::assert_snapshot!("fit_softmax", transcript(at, &fit));
    let averages =
        ["fit", "flowers.csv", "--target", "kind", "--l2", "1e-3..1:5", "--average-only", "--dial", "run.dial"];
    insta::assert_snapshot!("fit_averages", transcript(at, &averages));
    let predict = ["predict", "model.safetensors", "flowers.csv", "--probabilities", "--style", "jsonl"];
    let output = afterfit().current_dir(at).args(predict).output().unwrap();
    let first: Value = serde_json::from_str(String::from_utf8(output.stdout).unwrap().lines().next().unwrap()).unwrap();
    let p = |class: &str| first["probabilities"][class].as_f64().unwrap();
    assert!((p("rose") + p("tulip") - 1.0).abs() < 1e-9 && first["kind"].is_string());
    let info = json(at, &["inspect", "run.dial", "--json"]);
    assert_eq!(info["metadata"]["afterfit"]["kind"], "dial");
}

/// A dial of a fit gives models that predict takes; a model gives every λ of its path.
#[test]
fn models_of_other_strengths() {
    let here = folder(&[("flowers.csv", &flowers())]);
    let at = here.path();
    let fit = |more: &[&str]| {
        let base = ["fit", "flowers.csv", "--target", "kind", "--l2", "1e-3..1:9", "--standardize", "-q"];
        transcript(at, &[&base[..], more].concat());
    };
    fit(&["-o", "exact.safetensors"]);
    fit(&["--average-only", "--dial", "run.dial", "-o", "average.safetensors"]);
    let read = transcript(at, &["dial", "read", "run.dial", "--l2", "0.03", "-o", "read.safetensors", "-q"]);
    assert!(read.contains("exit 0"), "{read}");
    let rose = |model: &str, l2: &[&str]| -> Vec<f64> {
        let predict = ["predict", model, "flowers.csv", "--probabilities", "--style", "jsonl"];
        let output = afterfit().current_dir(at).args(predict).args(l2).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let lines = String::from_utf8(output.stdout).unwrap();
        let value = |line: &str| -> Value { serde_json::from_str(line).unwrap() };
        lines.lines().map(|line| value(line)["probabilities"]["rose"].as_f64().unwrap()).collect()
    };
    let apart = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    // The average of a run is near the exact model of the same strength.
    let exact = rose("exact.safetensors", &["--l2", "0.03"]);
    assert!(apart(&exact, &rose("read.safetensors", &[])) < 0.05);
    assert!(apart(&exact, &rose("exact.safetensors", &["--l2", "1"])) > 0.1, "another strength is another model");
    assert_eq!(rose("exact.safetensors", &[]), rose("exact.safetensors", &["--l2", "best"]));
    let chosen = json(at, &["fit", "flowers.csv", "--target", "kind", "--l2", "1e-3..1:9", "--standardize", "--json"]);
    let one_se = chosen["one_se_l2"].to_string();
    assert_ne!(chosen["one_se_l2"], chosen["best_l2"], "the flowers tell the two rules apart");
    assert_eq!(rose("exact.safetensors", &["--l2", "1se"]), rose("exact.safetensors", &["--l2", &one_se]));
    for (l2, says) in [("0.5e-3", "it must be from 0.001 to 1, the path that this model holds"), ("0", "neither")] {
        let refused = transcript(at, &["predict", "exact.safetensors", "flowers.csv", "--l2", l2]);
        assert!(refused.contains(says) && !refused.contains("exit 0"), "{refused}");
    }
    let refused = transcript(at, &["predict", "average.safetensors", "flowers.csv", "--l2", "0.03"]);
    assert!(refused.contains("the only one this model holds"), "{refused}");
}

#[test]
fn the_documented_json_of_fit() {
    let here = folder(&[("houses.csv", &houses()), ("flowers.csv", &flowers())]);
    let value =
        json(here.path(), &["fit", "houses.csv", "--target", "price", "--l2", "0.01,0.1", "--cv", "5", "--json"]);
    assert_eq!((&value["model"], value["runs"].as_u64()), (&Value::from("linear"), Some(6)));
    for key in ["best_l2", "one_se_l2", "steps"] {
        assert!(value[key].is_number(), "{key}");
    }
    for key in ["read", "train", "average", "select"] {
        assert!(value["seconds"][key].is_number(), "{key}");
    }
    let row = &value["path"][0];
    for key in ["l2", "train_loss", "validation_loss", "validation_r2", "norm", "degrees_of_freedom"] {
        assert!(row[key].is_number(), "{key}");
    }
    assert_eq!(row["resolved"], Value::Bool(true));
    let value = json(
        here.path(),
        &["fit", "flowers.csv", "--target", "kind", "--l2", "0.01,0.1", "--scoring", "auc", "--json"],
    );
    let row = &value["path"][0];
    for key in ["validation_accuracy", "validation_error", "validation_score", "gradient", "distance", "excess"] {
        assert!(row[key].is_number(), "{key}");
    }
    assert_eq!(value["scoring"], "auc");
    let value = json(
        here.path(),
        &["fit", "flowers.csv", "--target", "kind", "--model", "kernel", "--l2", "0.001,0.1", "--json"],
    );
    assert!(value["path"][1]["validation_accuracy"].as_f64().unwrap() > 0.5);
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let here = folder(&[("flowers.csv", &flowers()), ("houses.csv", &houses())]);
    for (table, target) in [("flowers.csv", "kind"), ("houses.csv", "price")] {
        let run = |name: &str, seed: &str| {
            let fit = [
                "fit",
                table,
                "--target",
                target,
                "--l2",
                "1e-3..1:5",
                "-q",
                "--seed",
                seed,
                "-o",
                name,
                "--force",
                "--report",
                "r.html",
            ];
            afterfit().current_dir(here.path()).args(fit).succeeds();
            let model = std::fs::read(here.path().join(name)).unwrap();
            (model, std::fs::read_to_string(here.path().join("r.html")).unwrap())
        };
        assert_eq!(run("a", "1"), run("b", "1"));
        assert_ne!(run("a", "1").0, run("b", "2").0);
        // Nor does the number of threads matter.
        let fit =
            ["--threads", "1", "fit", table, "--target", target, "--l2", "1e-3..1:5", "-q", "--seed", "1", "-o", "c"];
        afterfit().current_dir(here.path()).args(fit).succeeds();
        assert_eq!(std::fs::read(here.path().join("a")).unwrap(), std::fs::read(here.path().join("c")).unwrap());
        std::fs::remove_file(here.path().join("c")).unwrap();
    }
}

/// The same rows judge in both: a test table.
#[test]
fn a_streamed_table_gives_the_same_path_and_model() {
    let folder = folder(&[("houses.csv", &houses())]);
    let arguments = ["fit", "houses.csv", "--target", "price", "--test", "houses.csv", "--l2", "1e-3..1:4", "--json"];
    let whole = json(folder.path(), &[&arguments[..], &["-q", "-o", "whole.safetensors"]].concat());
    let streamed = json(folder.path(), &[&arguments[..], &["-q", "-o", "pieces.safetensors", "--stream"]].concat());
    for (a, b) in whole["path"].as_array().unwrap().iter().zip(streamed["path"].as_array().unwrap()) {
        for key in ["train_loss", "validation_loss", "validation_r2", "norm", "degrees_of_freedom"] {
            let (a, b) = (a[key].as_f64().unwrap(), b[key].as_f64().unwrap());
            assert!((a - b).abs() <= 1e-9 * a.abs(), "{key}: {a} {b}");
        }
    }
    let predict = |model: &str| -> Vec<f64> {
        let shown = transcript(folder.path(), &["predict", model, "houses.csv"]);
        shown.lines().filter_map(|line| line.trim().parse().ok()).collect()
    };
    let (a, b) = (predict("whole.safetensors"), predict("pieces.safetensors"));
    assert!(a.len() > 10 && a.len() == b.len());
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 1e-8 * a.abs()));
    for model in ["softmax", "kernel"] {
        let refused =
            transcript(folder.path(), &["fit", "houses.csv", "--target", "price", "--stream", "--model", model]);
        assert!(
            refused.contains(&format!("a {model} model cannot be fitted a piece of the table at a time")),
            "{refused}"
        );
        assert!(refused.contains("--model linear"), "{refused}");
    }
}

#[test]
fn sparse_and_dense_tables_give_the_same_model() {
    let (mut svm, mut csv) = (String::new(), String::from("a,b,c,y\n"));
    for i in 0..50 {
        let (a, c) = (f64::from(i * 7 % 10), f64::from(i * 3 % 8));
        let y = a - 0.5 * c + f64::from(i % 5) / 10.0 + 0.25;
        svm.push_str(&format!("{y} 1:{a} 3:{c}\n"));
        csv.push_str(&format!("{a},0,{c},{y}\n"));
    }
    let here = folder(&[("t.libsvm", &svm), ("t.csv", &csv)]);
    let sparse = json(here.path(), &["fit", "t.libsvm", "--model", "linear", "--l2", "1e-3..10:9", "--json"]);
    let dense =
        json(here.path(), &["fit", "t.csv", "--target", "y", "--model", "linear", "--l2", "1e-3..10:9", "--json"]);
    for (a, b) in sparse["path"].as_array().unwrap().iter().zip(dense["path"].as_array().unwrap()) {
        for key in ["train_loss", "validation_loss", "norm"] {
            let (a, b) = (a[key].as_f64().unwrap(), b[key].as_f64().unwrap());
            assert!((a - b).abs() < 1e-10 * (1.0 + b.abs()), "{key}: {a} {b}");
        }
    }
}

#[test]
fn errors() {
    let ragged = "a,b\n1,2\n3\n";
    let text_target = "a,b\n1,x\n2,y\n3,x\n4,y\n5,x\n6,y\n";
    let one_class = "a,b\n1,x\n2,x\n3,x\n4,x\n5,x\n6,x\n";
    let missing = "a,b\n1,2\n,3\n4,5\n,6\n7,8.5\n";
    let all_missing = "a,b,c\n1,,2.5\n2,,3.5\n3,,4.5\n";
    let here = folder(&[
        ("empty.csv", ""),
        ("header.csv", "a,b\n"),
        ("ragged.csv", ragged),
        ("text.csv", text_target),
        ("one.csv", one_class),
        ("missing.csv", missing),
        ("all_missing.csv", all_missing),
        ("houses.csv", &houses()),
        ("twice.csv", "a,a\n1,2\n"),
        ("bad.libsvm", "1 1:2 0:3\n"),
        ("wide.libsvm", "1 4000000000:2\n"),
        ("infinite.csv", &format!("a,b\n{}inf,2.5\n", "1,3.5\n".repeat(20))),
        ("dates.csv", "day,b\n01/02/2024,2.5\n02/02/2024,3.5\n"),
        ("typo.csv", &format!("a,b\n{}1o,2.5\n", "1,3.5\n".repeat(20))),
        ("overflow.csv", &format!("a,b\n{}2,1e200\n", "1,3.5\n2,4.5\n".repeat(20))),
        ("decimal_commas.csv", &format!("a;b\n{}", (0..20).map(|i| format!("{i},5;{i}\n")).collect::<String>())),
        ("bad.npy", "not numpy"),
        ("bad.parquet", "PAR1"),
        ("bad-idx3-ubyte", "\u{1}\u{2}\u{3}\u{4}"),
        ("strange.xyz", "1"),
    ]);
    let at = here.path();
    let before = entries(at);
    let cases: &[(&str, &[&str])] = &[
        ("missing_file", &["fit", "nowhere.csv", "--target", "a"]),
        ("empty_file", &["fit", "empty.csv", "--target", "a"]),
        ("header_only", &["fit", "header.csv", "--target", "a"]),
        ("ragged", &["fit", "ragged.csv", "--target", "a"]),
        ("unknown_column", &["fit", "houses.csv", "--target", "prize"]),
        ("no_target", &["fit", "houses.csv"]),
        ("target_not_numeric", &["fit", "text.csv", "--target", "b", "--model", "linear"]),
        ("one_class", &["fit", "one.csv", "--target", "b"]),
        ("missing_values", &["fit", "missing.csv", "--target", "b"]),
        ("all_missing", &["fit", "all_missing.csv", "--target", "c"]),
        ("no_validation_rows", &["fit", "houses.csv", "--target", "price", "--validation", "0.001"]),
        ("too_many_folds", &["fit", "houses.csv", "--target", "price", "--cv", "100"]),
        ("bad_range", &["fit", "houses.csv", "--target", "price", "--l2", "1..0.1"]),
        ("negative_strength", &["fit", "houses.csv", "--target", "price", "--l2=-1"]),
        ("output_folder_missing", &["fit", "houses.csv", "--target", "price", "-o", "no/such/model"]),
        ("output_exists", &["fit", "houses.csv", "--target", "price", "-o", "text.csv"]),
        (
            "diverging",
            &["fit", "houses.csv", "--target", "price", "--optimizer", "sgd", "--rate", "100", "--steps", "500"],
        ),
        ("twice", &["fit", "twice.csv", "--target", "a"]),
        ("infinite", &["fit", "infinite.csv", "--target", "b"]),
        ("dates", &["fit", "dates.csv", "--target", "b"]),
        ("typo", &["fit", "typo.csv", "--target", "b"]),
        ("typo_in_target", &["fit", "typo.csv", "--target", "a"]),
        ("overflow", &["fit", "overflow.csv", "--target", "b"]),
        ("decimal_commas", &["fit", "decimal_commas.csv", "--target", "b"]),
        ("hopeless_rate", &["fit", "text.csv", "--target", "b", "--rate", "1e9", "--validation", "0.5"]),
        ("pointless_option", &["fit", "houses.csv", "--target", "price", "--batch", "5"]),
        ("output_twice", &["fit", "houses.csv", "--target", "price", "-o", "x", "--report", "x"]),
        ("output_twice_in_other_words", &["fit", "houses.csv", "--target", "price", "-o", "x", "--report", "./x"]),
        ("pointless_kernel", &["fit", "houses.csv", "--target", "price", "--kernel", "rbf"]),
        ("target_dropped", &["fit", "houses.csv", "--target", "price", "--drop", "price"]),
        ("output_is_input", &["fit", "houses.csv", "--target", "price", "-o", "houses.csv", "--force"]),
        ("too_many_steps", &["fit", "houses.csv", "--target", "price", "--steps", "100000000000"]),
        ("too_many_threads", &["--threads", "100000", "demo"]),
        ("index_too_large", &["fit", "wide.libsvm"]),
        ("bad_libsvm", &["fit", "bad.libsvm"]),
        ("bad_npy", &["fit", "bad.npy", "--target", "y.npy"]),
        ("bad_parquet", &["fit", "bad.parquet", "--target", "a"]),
        ("bad_idx", &["fit", "bad-idx3-ubyte"]),
        ("unknown_format", &["fit", "strange.xyz", "--target", "a"]),
        ("not_classes", &["fit", "houses.csv", "--target", "price", "--model", "softmax"]),
        ("not_a_model", &["predict", "houses.csv", "houses.csv"]),
        ("kernel_standardized", &["fit", "houses.csv", "--target", "price", "--model", "kernel", "--standardize"]),
        ("dial_of_linear", &["fit", "houses.csv", "--target", "price", "--dial", "x.dial"]),
        ("momentum_missing", &["weights", "--optimizer", "nesterov", "--rate", "0.1", "--l2", "1", "--steps", "3"]),
        ("momentum_pointless", &["weights", "--momentum", "0.9", "--rate", "0.1", "--l2", "1", "--steps", "3"]),
        (
            "momentum_range",
            &["weights", "--optimizer", "nesterov", "--momentum", "1", "--rate", "0.1", "--l2", "1", "--steps", "3"],
        ),
        (
            "rate_above_limit",
            &[
                "theory", "bound", "--rate", "0.02", "--l2", "1", "--alpha", "1", "--beta", "80", "--sigma", "1",
                "--delta", "0.1",
            ],
        ),
        ("lambda", &["fit", "houses.csv", "--target", "price", "--lambda", "0.1"]),
        ("bracket_l2", &["theory", "bracket", "--rate", "0.001", "--l2", "50", "--alpha", "1", "--beta", "55"]),
    ];
    let mut all = String::new();
    for (name, arguments) in cases {
        let text = transcript(at, arguments);
        assert!(!text.starts_with("exit 0"), "{name}: {text}");
        assert!(!text.contains("panicked"), "{name}: {text}");
        all.push_str(&format!("# {name}\nafterfit {}\n{text}\n\n", arguments.join(" ")));
    }
    insta::assert_snapshot!("errors", all);
    assert_eq!(entries(at), before, "nothing was written");
}

#[test]
fn semicolons_and_tabs_are_commas() {
    let commas = houses().replace("\"Bad Tölz, upper\"", "\"Bad; Tölz\"");
    let with = |mark: &str| {
        let fields = commas.replace("\"Bad; Tölz\"", "\u{1}").replace(',', mark).replace('\u{1}', "\"Bad; Tölz\"");
        fields.replace("\n", "\r\n")
    };
    let here = folder(&[("a.csv", &commas), ("b.csv", &with(";")), ("c.tsv", &with("\t"))]);
    let at = here.path();
    for way in [&[][..], &["--stream"]] {
        let path = |table: &str| {
            let mut fit = vec!["fit", table, "--target", "price", "--l2", "1e-3..1:3", "--json", "-o", "m", "--force"];
            fit.extend(way);
            let found = json(at, &fit)["path"].clone();
            let predicted = afterfit().current_dir(at).args(["predict", "m", table]).succeeds().stdout;
            (found, predicted)
        };
        let [a, b, c] = ["a.csv", "b.csv", "c.tsv"].map(path);
        assert!(a == b && a == c, "{way:?}");
    }
}

#[test]
fn scales_that_are_far_apart_get_a_hint() {
    let row = |i: i32| format!("{},{},7,{},{}\n", f64::from(i % 7) / 10.0, 20_000 + 3000 * (i % 11), i % 2, i * 5 % 17);
    let rows: String = (0..40).map(row).collect();
    let libsvm: String = (0..40).map(|i| format!("{} 1:{} 2:{}\n", i * 5 % 17, i % 7, 10_000 * (i % 11))).collect();
    let alike = houses();
    let here =
        folder(&[("t.csv", &format!("share,income,same,flag,y\n{rows}")), ("t.libsvm", &libsvm), ("h.csv", &alike)]);
    let hints = |arguments: &[&str]| {
        let fit = [&["fit", "t.csv", "--target", "y", "--model", "linear"][..], arguments].concat();
        let said = String::from_utf8(afterfit().current_dir(here.path()).args(fit).succeeds().stderr).unwrap();
        said.lines().filter(|line| line.starts_with("hint: ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let [hint] = &hints(&[])[..] else { panic!("one hint expected") };
    assert!(["\"income\"", "\"share\"", "--standardize"].iter().all(|part| hint.contains(part)), "{hint}");
    assert_eq!(hints(&["--stream"]), std::slice::from_ref(hint));
    assert!(
        hints(&["--standardize"]).is_empty()
            && hints(&["-q"]).is_empty()
            && hints(&["--drop", "share,flag"]).is_empty()
    );
    for other in [&["fit", "t.libsvm", "--model", "linear"][..], &["fit", "h.csv", "--target", "price"]] {
        let said = afterfit().current_dir(here.path()).args(other).succeeds().stderr;
        assert!(!String::from_utf8_lossy(&said).contains("hint: "));
    }
}

#[test]
fn adamw_is_adam() {
    let here = folder(&[]);
    let weights = |name: &str| {
        let run =
            ["weights", "--optimizer", name, "--weight-decay", "0.1", "--rate", "0.1", "--l2", "1", "--steps", "5"];
        afterfit().current_dir(here.path()).args(run).succeeds().stdout
    };
    assert_eq!(weights("adamw"), weights("adam"));
}

#[test]
fn missing_values_constant_columns_and_unseen_texts() {
    let mut rows = String::from("a,same,town,y\n");
    for i in 0..40 {
        let a = if i % 9 == 0 { "NA".to_owned() } else { (i * 7 % 13).to_string() };
        rows.push_str(&format!(
            "{a},5,{},{}\n",
            ["Ulm", "Jena", ""][usize::from(i % 10 == 3) * 2 + (i % 2) * usize::from(i % 10 != 3)],
            i * 7 % 13
        ));
    }
    let here = folder(&[
        ("t.csv", &rows),
        ("new.csv", "a,same,town\n3,5,Rome\n4,5,Ulm\n"),
        ("short.csv", "a,town\n3,Ulm\n"),
        ("gaps.csv", "a,same,town\n,5,Ulm\n3,5,Ulm\n4,,Ulm\n,5,Ulm\n4,5,Ulm\n,5,Ulm\n"),
    ]);
    let at = here.path();
    for missing in ["drop", "mean"] {
        let fit = [
            "fit",
            "t.csv",
            "--target",
            "y",
            "--model",
            "linear",
            "--missing",
            missing,
            "--standardize",
            "--l2",
            "0.01,1",
            "-o",
            missing,
        ];
        insta::assert_snapshot!(format!("missing_{missing}"), transcript(at, &fit));
    }
    // Predictions have all their digits, the last of which differ between machines.
    let predicted = transcript(at, &["predict", "mean", "new.csv"]);
    let (numbers, warning) = predicted.split_once("--- stderr").unwrap();
    assert_eq!(numbers.lines().filter(|line| line.parse::<f64>().is_ok()).count(), 2, "{numbers}");
    insta::assert_snapshot!("predict_unseen", warning);
    insta::assert_snapshot!("predict_missing_column", transcript(at, &["predict", "mean", "short.csv"]));
    // A line a row, whether or not there is a prediction.
    let lines = |style: &str| -> Vec<String> {
        let output =
            afterfit().current_dir(at).args(["predict", "drop", "gaps.csv", "--style", style]).output().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stderr),
            "4 of 6 rows have missing values: their predictions are empty\n"
        );
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    };
    let is_there = |line: &String| *line != "\"\"" && *line != "{\"y\":null}";
    assert_eq!(lines("csv")[0], "y");
    assert_eq!(lines("csv")[1..].iter().map(is_there).collect::<Vec<_>>(), [false, true, false, false, true, false]);
    assert_eq!(lines("jsonl").iter().map(is_there).collect::<Vec<_>>(), [false, true, false, false, true, false]);
}

#[test]
fn an_interrupted_fit_leaves_no_file() {
    let here = folder(&[("flowers.csv", &flowers())]);
    let mut child = Command::new(AFTERFIT)
        .args([
            "fit",
            "flowers.csv",
            "--target",
            "kind",
            "--steps",
            "100000000",
            "-o",
            "m.safetensors",
            "--report",
            "r.html",
            "-q",
        ])
        .current_dir(here.path())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(entries(here.path()), ["flowers.csv"]);
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_an_error() {
    let here = folder(&[("houses.csv", &houses())]);
    let output = Command::new(AFTERFIT)
        .args(["fit", "houses.csv", "--target", "price", "--json"])
        .current_dir(here.path())
        .stdout(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap())
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("error: stdout: No space left on device"));
}

#[test]
fn demo_runs_and_replaces_only_its_own_files() {
    let here = folder(&[]);
    let mine = here.path().join("afterfit-demo");
    std::fs::create_dir(&mine).unwrap();
    std::fs::write(mine.join("notes.txt"), "keep me").unwrap();
    for _ in 0..2 {
        let output = afterfit().current_dir(here.path()).arg("demo").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for part in ["best λ", "validation loss", "40 λ, each from the last", "one by one", "passes over the data"] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert_eq!(entries(&mine), ["digits.safetensors", "notes.txt", "report.html"]);
    }
    assert_eq!(std::fs::read_to_string(mine.join("notes.txt")).unwrap(), "keep me");
}

#[test]
fn data_get_says_what_is_missing() {
    let here = folder(&[]);
    let output = afterfit()
        .args(["data", "get", "mnist"])
        .env("AFTERFIT_DATA", here.path().join("cache"))
        .env("PATH", here.path())
        .output()
        .unwrap();
    assert!(!output.status.success());
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("error: npm could not be started") && message.contains("hint: "), "{message}");
    assert_eq!(entries(&here.path().join("cache")), Vec::<String>::new(), "nothing half-written");
}

#[test]
fn tables_that_ask_for_too_much_or_name_oddly() {
    let folder = tempfile::tempdir().unwrap();
    let rows: String = (0..40).map(|row| format!("{row},{},{}.5,{row}\n", row % 7, row % 5)).collect();
    std::fs::write(folder.path().join("t.csv"), format!("\"a, b\",c,y,d\n{rows}")).unwrap();
    // A name with a comma goes in quotes; the flag may be repeated.
    let found = json(
        folder.path(),
        &["fit", "t.csv", "--target", "y", "--drop", "\"a, b\"", "--drop", "d", "--l2", "0.1", "--json", "-q"],
    );
    assert_eq!(found["model"], "linear");
    let shown = transcript(folder.path(), &["fit", "t.csv", "--target", "y", "--drop", "\"a, b", "--l2", "0.1"]);
    assert!(shown.contains("is never closed"), "{shown}");
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::Write::write_all(&mut packed, b"a,y\n").unwrap();
    (0..100).for_each(|_| std::io::Write::write_all(&mut packed, &b"0,1\n".repeat(1 << 18)).unwrap());
    std::fs::write(folder.path().join("bomb.csv.gz"), packed.finish().unwrap()).unwrap();
    let shown = transcript(folder.path(), &["fit", "bomb.csv.gz", "--target", "y"]);
    assert!(
        shown.starts_with("exit 1") && shown.contains("more than the ") && shown.contains("--max-memory"),
        "{shown}"
    );
    let prices: String = (0..40).map(|row| format!("${row},{}.5\n", row % 5)).collect();
    std::fs::write(folder.path().join("p.csv"), format!("price,y\n{prices}")).unwrap();
    let shown = transcript(folder.path(), &["fit", "p.csv", "--target", "y"]);
    assert!(shown.contains("column \"price\" holds amounts of money") && shown.contains("--drop price"), "{shown}");
}
