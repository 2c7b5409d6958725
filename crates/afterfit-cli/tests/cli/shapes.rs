//! `afterfit average` on what runs leave behind: broken files, many files, adapters, folders; and what it leaves itself.

use std::path::Path;

use serde_json::Value;

use crate::{AFTERFIT, Run, afterfit, entries, folder, json, transcript};

/// A small safetensors file of one tensor.
fn put(path: &Path, name: &str, values: &[f32]) {
    let bytes = 4 * values.len();
    let mut header =
        format!("{{\"{name}\":{{\"dtype\":\"F32\",\"shape\":[{}],\"data_offsets\":[0,{bytes}]}}}}", values.len());
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    values.iter().for_each(|value| file.extend(value.to_le_bytes()));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, file).unwrap();
}

fn run(count: usize) -> tempfile::TempDir {
    let here = folder(&[]);
    for k in 0..count {
        put(&here.path().join(format!("run/step-{k}.safetensors")), "w", &[k as f32, 1.0]);
    }
    here
}

#[track_caller]
fn fails(at: &Path, arguments: &[&str], words: &[&str]) {
    let printed = transcript(at, arguments);
    assert!(!printed.starts_with("exit 0"), "{arguments:?}: {printed}");
    for word in words {
        assert!(printed.contains(word), "{arguments:?} does not say {word}: {printed}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn few_open_files_are_enough_for_many_checkpoints() {
    let here = run(300);
    let limited = |arguments: &str| {
        let line = format!("ulimit -n 64; exec {AFTERFIT} {arguments}");
        std::process::Command::new("sh").args(["-c", &line]).current_dir(here.path()).output().unwrap()
    };
    let done = limited("average run -o mean.pt --uniform -q");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let whole = ["average", "run", "-o", "again.pt", "--uniform", "-q"];
    afterfit().current_dir(here.path()).args(whole).succeeds();
    assert_eq!(
        std::fs::read(here.path().join("mean.pt")).unwrap(),
        std::fs::read(here.path().join("again.pt")).unwrap()
    );
    // More outputs than may be open are refused with the number that would do.
    let many: Vec<String> = (1..40).map(|n| (f64::from(n) / 50.0).to_string()).collect();
    let done = limited(&format!("average run -o out --ratio {} -q", many.join(",")));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains("39 files") && said.contains("ulimit -n 142"), "{said}");
    assert!(!here.path().join("out").exists(), "a failed run leaves no folder");
}

#[test]
fn broken_files_are_named_and_left_out_on_demand() {
    let here = run(5);
    let at = here.path();
    let cut = at.join("run/step-3.safetensors");
    let whole = std::fs::read(&cut).unwrap();
    std::fs::write(&cut, &whole[..whole.len() - 3]).unwrap();
    std::fs::write(at.join("run/step-4.safetensors"), "").unwrap();
    let average = ["average", "run", "-o", "x.safetensors", "--uniform"];
    fails(at, &average, &["step-3.safetensors", "killed while writing it", "--skip-broken"]);
    let found = json(at, &[&average[..], &["--skip-broken", "--json", "-q"]].concat());
    assert_eq!(found["inputs"].as_array().unwrap().len(), 3);
    let notes = found["notes"].to_string();
    assert!(notes.contains("step-3.safetensors") && notes.contains("step-4.safetensors"), "{notes}");
}

#[test]
fn one_checkpoint_is_no_average() {
    let here = run(2);
    let at = here.path();
    let one = ["average", "run/step-1.safetensors", "-o", "x.safetensors"];
    for strength in [&["--uniform"][..], &["--ratio", "0.9"], &["--dial", "0.1..1", "--rate", "0.1"]] {
        fails(at, &[&one[..], strength].concat(), &["there is one checkpoint", "--iterate"]);
    }
    afterfit().current_dir(at).args(one).args(["--iterate", "1"]).succeeds();
}

#[test]
fn evaluation_starts_with_the_last_checkpoint_and_stops_at_a_failure() {
    let here = run(3);
    let at = here.path();
    let average = ["average", "run", "-o", "out", "--ratio", "0.9,0.5", "-q"];
    // The last checkpoint is scored in the form of the outputs, and is gone again.
    let command =
        "echo {} >> seen; case {} in *last.safetensors) cat {} > last; echo 5;; *0.5*) echo 7;; *) echo 3;; esac";
    let found = json(at, &[&average[..], &["--json", "--eval", command]].concat());
    assert_eq!(found["last_checkpoint"]["score"], 5.0);
    assert_eq!(found["outputs"][1]["best"], true);
    assert!(std::fs::read(at.join("last")).unwrap().ends_with(&[0, 0, 0, 64, 0, 0, 128, 63]), "step 2: 2 and 1");
    assert_eq!(entries(&at.join("out")), ["ratio-0.5.safetensors", "ratio-0.9.safetensors"]);
    assert_eq!(std::fs::read_to_string(at.join("seen")).unwrap().lines().count(), 3);
    let listed = transcript(at, &[&average[..], &["--force", "--eval", command]].concat());
    assert!(listed.contains("last checkpoint"), "{listed}");
    // Worse than the last checkpoint: said.
    let worse = json(
        at,
        &[
            &average[..],
            &["--force", "--json", "--best", "min", "--eval", "case {} in *last.*) echo 1;; *) echo 2;; esac"],
        ]
        .concat(),
    );
    assert!(worse["notes"].to_string().contains("no average scores better"), "{worse}");
    // The first failure ends it; what is written stays.
    std::fs::remove_file(at.join("seen")).unwrap();
    let broken = "echo {} >> seen; case {} in *0.9*) exit 3;; *) echo 1;; esac";
    fails(
        at,
        &[&average[..], &["--force", "--keep", "best", "--best", "max", "--eval", broken]].concat(),
        &[
            "out/ratio-0.9.safetensors: the command ended with exit status: 3",
            "0 of 2 outputs are evaluated",
            "written and kept",
        ],
    );
    assert_eq!(std::fs::read_to_string(at.join("seen")).unwrap().lines().count(), 2);
    assert_eq!(entries(&at.join("out")).len(), 2);
}

#[test]
fn what_is_best_must_be_said_before_the_rest_is_removed() {
    let here = run(3);
    let average = ["average", "run", "-o", "out", "--ratio", "0.9,0.5", "-q", "--eval", "echo 1 {}", "--keep", "best"];
    fails(here.path(), &average, &["nothing says which score is best", "--best min for a loss"]);
    assert!(!here.path().join("out").exists());
    afterfit().current_dir(here.path()).args(average).args(["--best", "min"]).succeeds();
    assert_eq!(entries(&here.path().join("out")).len(), 1);
}

#[test]
fn folders_above_the_output_are_made_and_removed_again() {
    let here = run(3);
    let at = here.path();
    std::fs::create_dir(at.join("empty")).unwrap();
    afterfit().current_dir(at).args(["average", "run", "-o", "a/b/c.safetensors", "--uniform", "-q"]).succeeds();
    assert_eq!(entries(&at.join("a/b")), ["c.safetensors"]);
    // An output that fails leaves none of them behind.
    let nan = at.join("nan");
    put(&nan.join("step-0.safetensors"), "w", &[f32::NAN]);
    put(&nan.join("step-1.safetensors"), "w", &[1.0]);
    for out in ["x/y/z.safetensors", "x/y/z/"] {
        for more in [&[][..], &["--eval", "echo 1 {}"]] {
            fails(at, &[&["average", "nan", "-o", out, "--uniform"], more].concat(), &["holds NaN"]);
            assert!(!at.join("x").exists());
        }
    }
    // An empty folder is free for shards; one with something in it is not.
    let shards = ["average", "run", "-o", "empty", "--uniform", "--shard-size", "4B", "-q"];
    afterfit().current_dir(at).args(shards).succeeds();
    assert!(at.join("empty/model.safetensors").exists());
    fails(at, &shards, &["exists already"]);
    // A dry run checks the same, makes nothing, and says how much there would be.
    fails(at, &[&shards[..], &["--dry-run"]].concat(), &["exists already"]);
    let dry = transcript(at, &["average", "run", "-o", "p/q/", "--ratio", "0.9,0.5", "--dry-run", "-q"]);
    assert!(dry.contains("2 outputs would take 16 B") && !at.join("p").exists(), "{dry}");
}

#[test]
fn a_dial_larger_than_its_checkpoints_says_so() {
    let here = run(3);
    let dial = |out: &str, nodes: &str| {
        transcript(here.path(), &["average", "run", "-o", out, "--dial", "0.1..1", "--rate", "0.1", "--nodes", nodes])
    };
    let large = dial("deep/large.dial", "16");
    assert!(large.contains("the dial takes 288 B, more than its 3 checkpoints together (24 B)"), "{large}");
    assert!(here.path().join("deep/large.dial").exists());
}

#[test]
fn adapters_are_said_to_be_averaged_apart_or_as_products() {
    let here = folder(&[]);
    let at = here.path();
    for k in 0..2 {
        let place = at.join(format!("run/checkpoint-{k}"));
        let (a, b) = (k as f32 + 1.0, 2.0 - 3.0 * k as f32);
        let header = "{\"m.lora_A.weight\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]},\"m.lora_B.weight\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[8,16]}}";
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        [a, 1.0, b, 1.0].iter().for_each(|value| bytes.extend(value.to_le_bytes()));
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("adapter_model.safetensors"), bytes).unwrap();
        std::fs::write(place.join("adapter_config.json"), "{\"r\": 1, \"lora_alpha\": 2}").unwrap();
    }
    let average = ["average", "run", "--uniform", "--json", "-q"];
    let apart = json(at, &[&average[..], &["-o", "apart"]].concat());
    assert!(apart["notes"].to_string().contains("A and B of 1 LoRA adapters are averaged apart"), "{apart}");
    let exact = json(at, &[&average[..], &["-o", "exact", "--lora", "exact"]].concat());
    let error = exact["outputs"][0]["lora_error"].as_f64().unwrap();
    assert!(
        error > 0.01 && error < 1.0 && exact["notes"].to_string().contains("cut off at the adapters' own rank"),
        "{exact}"
    );
    let wider = json(at, &[&average[..], &["-o", "wider", "--lora", "exact", "--lora-rank", "2"]].concat());
    assert!(wider["outputs"][0]["lora_error"].as_f64().unwrap() < 1e-9, "{wider}");
    let config: Value = serde_json::from_slice(&std::fs::read(at.join("wider/adapter_config.json")).unwrap()).unwrap();
    assert_eq!((config["r"].as_u64(), config["lora_alpha"].as_u64()), (Some(2), Some(4)));
    fails(
        at,
        &["average", "run", "-o", "x", "--uniform", "--lora-rank", "2", "--lora", "apart"],
        &["add --lora exact"],
    );
    fails(
        at,
        &["average", "run", "-o", "x", "--uniform", "--lora-rank", "0", "--lora", "exact"],
        &["1 is the smallest"],
    );
    // The configuration was written anew: it is our own all the same, unless somebody edited it.
    let again = [&average[..], &["-o", "wider", "--lora", "exact", "--lora-rank", "2", "--force"]].concat();
    json(at, &again);
    std::fs::write(at.join("wider/adapter_config.json"), "{\"r\": 2, \"lora_alpha\": 4, \"note\": 1}").unwrap();
    fails(at, &again, &["adapter_config.json"]);
    for k in 0..2 {
        let file = at.join(format!("run/checkpoint-{k}/adapter_config.json"));
        std::fs::write(file, "{\"r\": 0, \"lora_alpha\": 4}").unwrap();
    }
    fails(
        at,
        &["average", "run", "-o", "x", "--uniform", "--lora-rank", "2", "--lora", "exact"],
        &["checkpoint-1/adapter_config.json says r 0 and lora_alpha 4"],
    );
}
