//! What the command writes and shows: permissions, temporary files, signals, closed streams, and text from foreign files.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::{AFTERFIT, Run, afterfit, entries, flowers, folder, houses, json};

/// Small checkpoints `in/step-K.safetensors`.
fn checkpoints(at: &Path, count: usize, numbers: usize) {
    std::fs::create_dir_all(at.join("in")).unwrap();
    for k in 0..count {
        checkpoint(&at.join(format!("in/step-{k}.safetensors")), "w", numbers, k as f32);
    }
}

fn checkpoint(path: &Path, name: &str, numbers: usize, value: f32) {
    // (Large ones are of ten tensors, so that they can be cut into shards.)
    let (tensors, each) = if numbers < 100_000 { (1, numbers) } else { (10, numbers / 10) };
    let tensor = |at: usize| {
        let name = serde_json::json!(if at == 0 { name.to_owned() } else { format!("{name}{at}") });
        let (from, to) = (4 * each * at, 4 * each * (at + 1));
        format!("{name}:{{\"dtype\":\"F32\",\"shape\":[{each}],\"data_offsets\":[{from},{to}]}}")
    };
    let mut header = format!("{{{}}}", (0..tensors).map(tensor).collect::<Vec<_>>().join(","));
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend((0..numbers).flat_map(|i| (value + (i % 7) as f32).to_le_bytes()));
    std::fs::write(path, bytes).unwrap();
}

/// Folders `models/checkpoint-K` of weights and a configuration.
fn models(at: &Path) {
    for k in 0..2 {
        let folder = at.join(format!("models/checkpoint-{k}"));
        std::fs::create_dir_all(&folder).unwrap();
        checkpoint(&folder.join("model.safetensors"), "w", 50, k as f32);
        std::fs::write(folder.join("config.json"), "{}").unwrap();
    }
}

/// A shell's command line, with `afterfit` in it.
fn shell(at: &Path, line: &str) -> Output {
    let line = line.replace("afterfit", AFTERFIT);
    Command::new("sh").arg("-c").arg(line).current_dir(at).stdin(Stdio::null()).output().unwrap()
}

fn failure(at: &Path, arguments: &[&str]) -> String {
    let output = afterfit().current_dir(at).args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn temporaries(at: &Path) -> Vec<String> {
    entries(at).into_iter().filter(|name| name.starts_with(".afterfit-")).collect()
}

#[test]
fn permissions_follow_the_umask_and_not_the_inputs() {
    use std::os::unix::fs::PermissionsExt;
    let here = folder(&[("houses.csv", &houses())]);
    let at = here.path();
    checkpoints(at, 2, 50);
    let mode = |name: &str| at.join(name).metadata().unwrap().permissions().mode() & 0o7777;
    models(at);
    for k in 0..2 {
        let config = at.join(format!("models/checkpoint-{k}/config.json"));
        std::fs::set_permissions(config, std::fs::Permissions::from_mode(0o4755)).unwrap();
    }
    for (umask, file, inside) in [("077", 0o600, 0o700), ("027", 0o640, 0o750), ("002", 0o664, 0o775)] {
        let line = format!(
            "umask {umask}; afterfit average in -o a{umask}.safetensors --uniform -q && afterfit average in -o a{umask}.pt --uniform -q && \
             afterfit average models -o m{umask} --uniform -q && \
             afterfit fit houses.csv --target price -o f{umask}.safetensors --report f{umask}.html -q"
        );
        let output = shell(at, &line);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for name in ["a.safetensors", "a.pt", "m/config.json", "m/model.safetensors", "f.safetensors", "f.html"] {
            let name = format!("{}{umask}{}", &name[..1], &name[1..]);
            assert_eq!(mode(&name), file, "{name}: {:o}", mode(&name));
        }
        assert_eq!(mode(&format!("m{umask}")), inside);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_signal_removes_temporary_files_and_says_so_by_its_number() {
    let here = folder(&[]);
    let at = here.path();
    checkpoints(at, 3, 1000);
    for (signal, code) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
        // (Orphaned by the signal, the evaluation is let go below.)
        let evaluate =
            "touch started; for i in $(seq 300); do test -e done && break; sleep 0.1; done; touch ended; echo 1 {}";
        let mut child = Command::new(AFTERFIT)
            .args(["average", "in", "-o", "out/a.safetensors", "--uniform", "-q"])
            .args(["--eval", evaluate])
            .current_dir(at)
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let start = Instant::now();
        while !at.join("started").exists() && start.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(temporaries(&at.join("out")).len(), 1);
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert!(!at.join("ended").exists(), "it waited for the evaluation");
        std::fs::write(at.join("done"), "").unwrap();
        // The finished output stays.
        assert_eq!(entries(&at.join("out")), ["a.safetensors"]);
        std::fs::remove_dir_all(at.join("out")).unwrap();
        while !at.join("ended").exists() && start.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(5));
        }
        ["started", "done", "ended"].iter().for_each(|name| drop(std::fs::remove_file(at.join(name))));
    }
    // What was told to ignore a signal does; what it starts can be stopped.
    let line =
        "trap '' HUP; afterfit average in -o b.safetensors --uniform -q --eval 'kill -HUP $PPID; echo 1 {}' >/dev/null";
    assert!(shell(at, line).status.success());
    let error =
        failure(at, &["average", "in", "-o", "c.safetensors", "--uniform", "--eval", "kill -TERM $$; echo 1 {}"]);
    assert!(error.contains("ended with signal: 15"), "{error}");
}

#[test]
#[cfg(unix)]
fn a_signal_ends_a_fit() {
    let here = folder(&[]);
    let at = here.path();
    let row = |i: usize| {
        let values: Vec<String> = (0..40).map(|j| ((i * (2 * j + 7) + i * i % (j + 3)) % 101).to_string()).collect();
        format!("{},{}\n", values.join(","), ["a", "b", "c", "d", "e"][(i * i + i / 3) % 5])
    };
    let header: String = (0..40).map(|j| format!("x{j},")).collect();
    std::fs::write(at.join("t.csv"), format!("{header}y\n{}", (0..20_000).map(row).collect::<String>())).unwrap();
    let mut in_the_middle = 0;
    for wait in [100, 300, 1000] {
        let mut child = Command::new(AFTERFIT)
            .args(["fit", "t.csv", "--target", "y", "-o", "m.safetensors", "--report", "m.html", "-q"])
            .current_dir(at)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(wait));
        let _ = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
        let told = Instant::now();
        if child.wait().unwrap().code() == Some(130) {
            in_the_middle += 1;
            // (At once, that is: a fit of this table takes longer on any machine under this load.)
            assert!(told.elapsed() < Duration::from_secs(20), "{:?}", told.elapsed());
            assert_eq!(entries(at), ["t.csv"], "after {wait} ms");
        }
        ["m.safetensors", "m.html"].iter().for_each(|name| drop(std::fs::remove_file(at.join(name))));
    }
    assert!(in_the_middle > 0);
}

#[test]
fn a_signal_in_the_middle_of_writing_leaves_nothing() {
    let here = folder(&[]);
    let at = here.path();
    checkpoints(at, 8, 2_000_000);
    let mut in_the_middle = 0;
    for wait in [0, 10, 40] {
        let mut child = Command::new(AFTERFIT)
            .args(["average", "in", "-o", "out", "--ratio", "0.99,0.9,0.8,0.7", "--shard-size", "1MB", "-q"])
            .current_dir(at)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let writing = || at.join("out").exists() && !temporaries(&at.join("out")).is_empty();
        while !writing() && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(wait));
        let _ = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
        if child.wait().unwrap().code() == Some(130) {
            in_the_middle += 1;
            assert!(!at.join("out").exists() || temporaries(&at.join("out")).is_empty(), "after {wait} ms");
        }
        let _ = std::fs::remove_dir_all(at.join("out"));
    }
    assert!(in_the_middle > 0);
}

#[test]
#[cfg(target_os = "linux")]
fn streams_that_take_nothing_cost_no_model() {
    let here = folder(&[("houses.csv", &houses())]);
    let at = here.path();
    checkpoints(at, 2, 50);
    let fit = "afterfit fit houses.csv --target price --force -o m.safetensors";
    let average = "afterfit average in -o a.safetensors --force --uniform";
    for (line, made) in [(fit, "m.safetensors"), (average, "a.safetensors")] {
        for (ending, code) in [
            ("2>/dev/full", 0),
            ("2>&-", 0),
            ("1>&- 2>&-", 0),
            ("1>/dev/full 2>/dev/full", 1),
            ("| true", 0),
            ("1>/dev/full", 1),
        ] {
            let output = shell(at, &format!("{line} {ending}"));
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{line} {ending}: {said}");
            assert!(!said.contains("panicked"), "{said}");
            assert!(at.join(made).exists(), "{line} {ending}");
            if ending == "1>/dev/full" {
                assert!(said.contains("error: stdout: No space left on device"), "{said}");
            }
            std::fs::remove_file(at.join(made)).unwrap();
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn outputs_that_cannot_be_written_fail_before_any_work() {
    let here = folder(&[("houses.csv", &houses())]);
    let at = here.path();
    checkpoints(at, 2, 50);
    let fit = ["fit", "houses.csv", "--target", "price"];
    // (As root, permission bits do not bind; in /proc nobody can make a file.)
    for (option, file, words) in [
        ("-o", "/proc/m.safetensors", "/proc/m.safetensors cannot be written"),
        ("--report", "/proc/r.html", "/proc/r.html cannot be written"),
        ("-o", "missing/m.safetensors", "there is no folder missing"),
        ("-o", "houses.csv/m.safetensors", "there is no folder houses.csv"),
    ] {
        let error = failure(at, &[&fit[..], &[option, file]].concat());
        assert!(error.contains(words) && error.contains("hint: "), "{error}");
        assert!(!error.contains("read 60 rows"), "{error}");
    }
    let error = failure(at, &["average", "in", "-o", "-", "--uniform"]);
    assert!(error.contains("-o - would be stdout") && error.contains("hint: name a file"), "{error}");
    let error = failure(at, &["average", "in", "-o", "-", "--dial", "0.1..1", "--rate", "0.1"]);
    assert!(error.contains("-o - would be stdout"), "{error}");
    assert_eq!(entries(at), ["houses.csv", "in"]);
    let wide = afterfit().args(["fit", "x.csv", "--l2", "1e-300..1e90:5"]).output().unwrap();
    let wide = String::from_utf8(wide.stderr).unwrap();
    assert!(wide.contains("spans more than 308 decades") && !wide.contains("to inf"), "{wide}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_leaves_nothing_and_says_so() {
    let here = folder(&[]);
    let at = here.path();
    checkpoints(at, 2, 100_000);
    std::fs::create_dir(at.join("tiny")).unwrap();
    let average = "afterfit average in -o tiny/a.safetensors --uniform -q; echo code $?; ls -A tiny";
    let output = shell(at, &format!("unshare -rm sh -c 'mount -t tmpfs -o size=100k none tiny && {{ {average}; }}'"));
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !said.contains("code") {
        eprintln!("no tmpfs here: {errors}");
        return;
    }
    assert_eq!(said, "code 1\n");
    assert!(errors.contains("tiny/a.safetensors: No space left on device"), "{errors}");
}

#[test]
#[cfg(target_os = "linux")]
fn the_sweep_spares_a_run_in_another_namespace() {
    let here = folder(&[]);
    let at = here.path();
    checkpoints(at, 2, 50);
    // A run that lives, with a temporary folder that looks a week old.
    let mut child = Command::new(AFTERFIT)
        .args(["average", "in", "-o", "a.safetensors", "--uniform", "-q"])
        .args(["--eval", "touch started; while test ! -e done; do sleep 0.02; done; echo 1 {}"])
        .current_dir(at)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    while !at.join("started").exists() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(temporaries(at).len(), 1);
    let living = temporaries(at)[0].clone();
    let age = |path: &Path| {
        let then = std::time::SystemTime::now() - Duration::from_secs(7 * 86_400);
        std::fs::File::open(path).unwrap().set_modified(then).unwrap();
    };
    entries(&at.join(&living)).iter().for_each(|name| age(&at.join(&living).join(name)));
    age(&at.join(&living));
    // And one that was killed.
    let dead = format!("{}dead", &living[..living.rfind('-').unwrap() + 1]);
    std::fs::write(at.join(&dead), "x").unwrap();
    age(&at.join(&dead));
    // Another run sees no such process where it is; outputs without a folder are swept beside, too.
    let line = "average in -o b.safetensors --uniform -q >/dev/null";
    let output = shell(at, &format!("unshare -rpf --mount-proc afterfit {line} || afterfit {line} --force"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(temporaries(at), [living]);
    std::fs::write(at.join("done"), "").unwrap();
    assert!(child.wait().unwrap().success());
    assert!(temporaries(at).is_empty());
}

#[test]
fn runs_at_the_same_time_do_not_harm_each_other() {
    let here = folder(&[]);
    let at = here.path();
    checkpoints(at, 3, 300_000);
    let start = |more: &[&str]| {
        let mut command = Command::new(AFTERFIT);
        command.args(["average", "in", "--uniform", "-q"]).args(more).current_dir(at);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    // One name: one of them gets it.
    let children: Vec<_> = (0..4).map(|_| start(&["-o", "one.safetensors"])).collect();
    let ends: Vec<Output> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    assert_eq!(ends.iter().filter(|end| end.status.success()).count(), 1);
    for end in ends.iter().filter(|end| !end.status.success()) {
        let said = String::from_utf8_lossy(&end.stderr);
        assert!(said.contains("exists already") || said.contains("appeared or was replaced during this run"), "{said}");
        assert!(said.contains("hint: "), "{said}");
    }
    // Names of their own in one folder: all of them.
    let children: Vec<_> = (0..4).map(|k| start(&["-o", &format!("many/{k}.safetensors")])).collect();
    for end in children.into_iter().map(|child| child.wait_with_output().unwrap()) {
        assert!(end.status.success(), "{}", String::from_utf8_lossy(&end.stderr));
    }
    let one = std::fs::read(at.join("one.safetensors")).unwrap();
    for name in entries(&at.join("many")) {
        assert!(std::fs::read(at.join("many").join(&name)).unwrap() == one, "{name}");
    }
    assert_eq!(entries(&at.join("many")).len(), 4);
    assert!(temporaries(at).is_empty());
}

#[test]
fn a_model_whose_name_was_taken_during_training_is_not_lost() {
    let here = folder(&[("f.csv", &flowers())]);
    let at = here.path();
    let mut child = Command::new(AFTERFIT)
        .args(["fit", "f.csv", "--target", "kind", "-o", "m.safetensors", "--cv", "10", "--repeats", "30"])
        .current_dir(at)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    // Training starts after this line.
    assert!(lines.any(|line| line.starts_with("model: ")));
    std::fs::write(at.join("m.safetensors"), "precious").unwrap();
    let said = lines.collect::<Vec<_>>().join("\n");
    assert_eq!(child.wait().unwrap().code(), Some(1), "{said}");
    assert!(said.contains("m.safetensors was not there when this run began"), "{said}");
    assert!(said.contains("hint: what was made is saved as m-2.safetensors"), "{said}");
    assert_eq!(std::fs::read_to_string(at.join("m.safetensors")).unwrap(), "precious");
    afterfit().current_dir(at).args(["predict", "m-2.safetensors", "f.csv"]).succeeds();
}

#[test]
#[cfg(target_os = "linux")]
fn a_kill_while_a_folder_is_replaced_loses_neither_old_nor_new() {
    let here = folder(&[]);
    let at = here.path();
    checkpoints(at, 3, 300_000);
    let run = ["average", "in", "-o", "out", "--uniform", "--shard-size", "100kB", "-q", "--force"];
    afterfit().current_dir(at).args(run).succeeds();
    let whole = entries(&at.join("out"));
    assert!(whole.len() > 3, "{whole:?}");
    for wait in [0, 1, 2, 4, 8, 12, 16, 20, 24, 32, 48] {
        let mut child = Command::new(AFTERFIT).args(run).current_dir(at).stdout(Stdio::null()).spawn().unwrap();
        while temporaries(at).is_empty() && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(wait));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(entries(&at.join("out")), whole, "after {wait} ms");
        afterfit().current_dir(at).args(["inspect", "out"]).succeeds();
        temporaries(at).iter().for_each(|name| std::fs::remove_dir_all(at.join(name)).unwrap());
    }
}

#[test]
fn a_folder_with_something_of_the_users_is_not_replaced() {
    let here = folder(&[]);
    let at = here.path();
    checkpoints(at, 3, 5000);
    let run = ["average", "in", "-o", "out", "--uniform", "--shard-size", "10kB", "-q", "--force"];
    afterfit().current_dir(at).args(run).succeeds();
    // What afterfit wrote goes, however it was cut.
    let other = ["average", "in", "-o", "out", "--uniform", "--shard-size", "100kB", "-q", "--force"];
    afterfit().current_dir(at).args(other).succeeds();
    for (name, is_folder) in [("notes.md", false), ("mine.safetensors", false), ("scores", true)] {
        let path = at.join("out").join(name);
        if is_folder {
            std::fs::create_dir(&path).unwrap()
        } else {
            std::fs::write(&path, "precious").unwrap()
        }
        let error = failure(at, &run);
        assert!(error.contains(&format!("--force replaces the whole folder: {name}")), "{error}");
        assert!(path.exists());
        if is_folder { std::fs::remove_dir(&path).unwrap() } else { std::fs::remove_file(&path).unwrap() }
    }
    afterfit().current_dir(at).args(run).succeeds();
}

/// A copy that was edited is no copy any more.
#[test]
fn an_edited_configuration_is_not_replaced() {
    let here = folder(&[]);
    let at = here.path();
    models(at);
    let run = ["average", "models", "-o", "out", "--uniform", "-q", "--force"];
    afterfit().current_dir(at).args(run).succeeds();
    afterfit().current_dir(at).args(run).succeeds();
    std::fs::write(at.join("out/config.json"), "{\"mine\": 1}").unwrap();
    let error = failure(at, &run);
    assert!(error.contains("--force replaces the whole folder: config.json"), "{error}");
    assert_eq!(std::fs::read_to_string(at.join("out/config.json")).unwrap(), "{\"mine\": 1}");
    std::fs::write(at.join("out/config.json"), "{}").unwrap();
    afterfit().current_dir(at).args(run).succeeds();
}

/// What lies beside weights and is no plain file, or a folder of something else, is not followed, and is named.
#[test]
#[cfg(unix)]
fn what_is_not_copied_is_named() {
    let here = folder(&[]);
    let at = here.path();
    models(at);
    let last = at.join("models/checkpoint-1");
    assert!(Command::new("mkfifo").arg(last.join("pipe")).status().unwrap().success());
    std::fs::create_dir(last.join("logs")).unwrap();
    std::fs::write(last.join("logs/events"), "x").unwrap();
    let output = afterfit().current_dir(at).args(["average", "models", "-o", "out", "--uniform"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    let note = said.lines().find(|line| line.contains("pipe")).unwrap_or_else(|| panic!("{said}"));
    assert!(note.contains("logs/") && !note.contains("config.json"), "{note}");
    let copied = entries(&at.join("out"));
    assert!(copied.contains(&"config.json".to_owned()) && copied.len() == 2, "{copied:?}");
}

#[test]
fn skip_existing_keeps_only_what_would_be_made_again() {
    let here = folder(&[]);
    let at = here.path();
    checkpoints(at, 3, 50);
    for (out, more) in [("a.safetensors", &["--uniform"][..]), ("a.dial", &["--dial", "0.1..1", "--rate", "0.1"])] {
        let base = [&["average", "in", "-o", out, "--json"], more].concat();
        json(at, &base);
        let again = [&base[..], &["--skip-existing"]].concat();
        assert_eq!(json(at, &again)["outputs"][0]["skipped"], true);
        let error = failure(at, &[&again[..], &["--copy", "nothing*"]].concat());
        assert!(error.contains("exists, but was not made from these checkpoints"), "{error}");
        // Another file under the same name, of the same size.
        checkpoint(&at.join("in/step-1.safetensors"), "w", 50, 7.0);
        let error = failure(at, &again);
        assert!(error.contains("exists, but was not made from these checkpoints"), "{error}");
        assert!(error.contains("hint: use --force"), "{error}");
    }
}

/// The same of what is read within a file, and of how adapters are averaged.
#[test]
fn skip_existing_knows_keys_and_adapters() {
    let here = folder(&[]);
    let at = here.path();
    std::fs::create_dir(at.join("in")).unwrap();
    let wrapped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../afterfit/tests/fixtures/wrapped");
    for step in [0, 10] {
        let name = format!("epoch={step}.ckpt");
        std::fs::copy(wrapped.join(&name), at.join("in").join(&name)).unwrap();
    }
    let base = ["average", "in", "-o", "k.safetensors", "--uniform", "--json"];
    json(at, &base);
    let again = [&base[..], &["--skip-existing"]].concat();
    assert_eq!(json(at, &again)["outputs"][0]["skipped"], true);
    let error = failure(at, &[&again[..], &["--key", "model"]].concat());
    assert!(error.contains("exists, but was not made from these checkpoints"), "{error}");

    std::fs::create_dir(at.join("lora")).unwrap();
    for step in [1, 2] {
        let here = at.join(format!("lora/checkpoint-{step}"));
        std::fs::create_dir(&here).unwrap();
        let names = ["base_model.model.q.lora_A.weight", "base_model.model.q.lora_B.weight"];
        let entry = |at: usize, shape: &str| {
            format!(
                "\"{}\":{{\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":[{},{}]}}",
                names[at],
                8 * at,
                8 * at + 8
            )
        };
        let header = format!("{{{},{}}}", entry(0, "[1,2]"), entry(1, "[2,1]"));
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend((0..4).flat_map(|value| (value as f32 + step as f32).to_le_bytes()));
        std::fs::write(here.join("adapter_model.safetensors"), bytes).unwrap();
        std::fs::write(here.join("adapter_config.json"), "{\"peft_type\":\"LORA\",\"r\":1,\"lora_alpha\":1}").unwrap();
    }
    let base = ["average", "lora", "-o", "l", "--uniform", "--json"];
    json(at, &base);
    let again = [&base[..], &["--skip-existing"]].concat();
    assert_eq!(json(at, &again)["outputs"][0]["skipped"], true);
    let error = failure(at, &[&again[..], &["--lora", "exact"]].concat());
    assert!(error.contains("exists, but was not made from these checkpoints"), "{error}");

    // What the cut of products leaves out is said of an output that is there as of one that is written.
    let exact = ["average", "lora", "-o", "e", "--uniform", "--json", "--lora", "exact"];
    let written = json(at, &exact)["outputs"][0]["lora_error"].as_f64().unwrap();
    let there = json(at, &[&exact[..], &["--skip-existing"]].concat());
    assert!(written > 0.0 && there["outputs"][0]["skipped"] == true, "{written} {there}");
    assert_eq!(there["outputs"][0]["lora_error"], written);
}

/// A dial says where its checkpoints' small files are: a folder without their weights is not that folder.
#[test]
fn a_dial_takes_nothing_from_another_folder() {
    let here = folder(&[]);
    let at = here.path();
    for step in [0, 10] {
        let here = at.join(format!("in/checkpoint-{step}"));
        std::fs::create_dir_all(&here).unwrap();
        checkpoint(&here.join("model.safetensors"), "w", 50, step as f32);
        std::fs::write(here.join("config.json"), "{\"mine\":1}").unwrap();
    }
    json(at, &["average", "in", "-o", "run.dial", "--dial", "0.1..1", "--rate", "0.1", "--json"]);
    let read = |out: &str| {
        let output =
            afterfit().current_dir(at).args(["dial", "read", "run.dial", "--l2", "0.5", "-o", out]).output().unwrap();
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    read("first");
    assert!(at.join("first/config.json").exists());
    // The folder is another one now: its configuration is not the model's.
    std::fs::remove_file(at.join("in/checkpoint-10/model.safetensors")).unwrap();
    let said = read("second");
    assert!(!at.join("second/config.json").exists() && said.contains("checkpoint-10"), "{said}");
}

/// A table that is written to while a model is made of it, or predicted from, is no input.
#[test]
fn tables_that_change_during_a_run_are_refused() {
    let here = folder(&[]);
    let at = here.path();
    let rows: String = (0..200_000).map(|i| format!("{},{},{}\n", i % 97, i % 89, i % 7)).collect();
    std::fs::write(at.join("t.csv"), format!("a,b,y\n{rows}")).unwrap();
    // (Its time changes again and again; whichever comes during the reading counts.)
    let line = |command: &str| {
        format!("(while sleep 0.02; do touch t.csv; done) & writer=$!; {command}; code=$?; kill $writer; exit $code")
    };
    let output = shell(at, &line("afterfit fit t.csv --target y -o m.model -q"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("t.csv changed while it was read"), "{said}");
    assert!(!at.join("m.model").exists());
    afterfit().current_dir(at).args(["fit", "t.csv", "--target", "y", "-o", "m.model", "-q"]).succeeds();
    let output = shell(at, &line("afterfit predict m.model t.csv -o p.csv"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("t.csv changed while it was read"), "{said}");
    assert!(!at.join("p.csv").exists());
}

/// Names that would clear a screen, set a title, turn text around, forge a line, and fill it.
fn hostile() -> String {
    format!("\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}x\u{8}\u{7f}\nerror: forged\r{}", "y".repeat(5000))
}

fn assert_plain(output: &Output, what: &str) {
    for bytes in [&output.stdout, &output.stderr] {
        let text = String::from_utf8_lossy(bytes);
        let active = |c: char| (c.is_control() && c != '\n' && c != '\t') || ('\u{202a}'..='\u{202e}').contains(&c);
        assert!(!text.contains(active), "{what}: {text:?}");
        assert!(!text.lines().any(|line| line.starts_with("error: forged")), "{what}: {text}");
        assert!(text.lines().all(|line| line.chars().count() < 1500), "{what}: {text}");
    }
}

#[test]
fn foreign_text_never_reaches_a_terminal_as_it_is() {
    let here = folder(&[]);
    let at = here.path();
    std::fs::create_dir(at.join("in")).unwrap();
    for k in 0..3 {
        checkpoint(&at.join(format!("in/step-{k}.safetensors")), &hostile(), 20, k as f32);
    }
    std::fs::create_dir(at.join("bad")).unwrap();
    for k in 0..2 {
        checkpoint(&at.join(format!("bad/step-{k}.safetensors")), &hostile(), 20, f32::NAN);
    }
    std::fs::create_dir(at.join("other")).unwrap();
    for k in 0..2 {
        checkpoint(&at.join(format!("other/step-{k}.safetensors")), &hostile(), 20 + k, 1.0);
    }
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let (name, mut table, mut texts) = (quoted(&hostile()), String::new(), String::new());
    table.push_str(&format!("{name},b,kind\n"));
    texts.push_str(&format!("{name},b,kind\n"));
    for i in 0..60 {
        let kind = if i % 2 == 0 { quoted(&hostile()) } else { "plain".into() };
        table.push_str(&format!("{}.5,{},{kind}\n", i * 7 % 13, i * 5 % 11));
        texts.push_str(&format!("{},{},{kind}\n", quoted(&format!("{}{i}", hostile())), i * 5 % 11));
    }
    std::fs::write(at.join("t.csv"), table).unwrap();
    std::fs::write(at.join("texts.csv"), texts).unwrap();
    std::fs::write(at.join("mixed.csv"), format!("{name},y\n1,2\n{name},3\n4,5\n6,7\n8,9\n")).unwrap();
    for arguments in [
        &["inspect", "in/step-0.safetensors"][..],
        &["inspect", "in/step-0.safetensors", "--json"],
        &["average", "in", "-o", "a.safetensors", "--uniform"],
        &["average", "in", "-o", "a.safetensors", "--uniform", "--json", "--force"],
        &["average", "bad", "-o", "b.safetensors", "--uniform"],
        &["average", "other", "-o", "c.safetensors", "--uniform"],
        &["average", "in", "-o", "run.dial", "--dial", "0.1..1", "--rate", "0.1"],
        &["dial", "info", "run.dial"],
        &["inspect", "run.dial"],
        &["fit", "t.csv", "--target", "kind", "-o", "m.safetensors", "--report", "r.html"],
        &["fit", "t.csv", "--target", "kind", "--json"],
        &["fit", "t.csv", "--target", "nothing"],
        &["fit", "t.csv"],
        &["fit", "texts.csv", "--target", "b"],
        &["fit", "texts.csv", "--target", "kind"],
        &["fit", "mixed.csv", "--target", "y"],
        &["predict", "m.safetensors", "texts.csv"],
        &["predict", "m.safetensors", "mixed.csv"],
        &["predict", "m.safetensors", "t.csv", "--style", "jsonl"],
        &["inspect", "m.safetensors"],
        &["inspect", "m.safetensors", "--json"],
    ] {
        let output = afterfit().current_dir(at).args(arguments).output().unwrap();
        assert!(output.status.code().is_some_and(|code| code < 2), "{arguments:?}");
        let is_data = arguments.contains(&"--json") || arguments.contains(&"jsonl") || arguments[0] == "predict";
        let lengths_hold =
            Output { stdout: if is_data { Vec::new() } else { output.stdout.clone() }, ..output.clone() };
        assert_plain(&lengths_hold, &arguments.join(" "));
        let stdout = String::from_utf8(output.stdout).unwrap();
        assert!(!stdout.contains(['\u{1b}', '\u{9b}', '\u{7}', '\u{202e}']), "{arguments:?}: {stdout:?}");
    }
    let page = std::fs::read_to_string(at.join("r.html")).unwrap();
    assert!(!page.contains(['\u{1b}', '\u{9b}', '\u{7}', '\u{202e}']) && page.contains("\\x1b"), "{page}");
}

#[test]
fn predictions_start_no_formula() {
    let names = [("rose", "=cmd|' /C calc'!A0"), ("tulip", "-1")];
    let table = names.iter().fold(flowers(), |text, (from, to)| text.replace(from, to)).replace("kind", "@kind");
    let here = folder(&[("f.csv", &table)]);
    let at = here.path();
    afterfit().current_dir(at).args(["fit", "f.csv", "--target", "@kind", "-o", "m.safetensors"]).succeeds();
    let output = afterfit().current_dir(at).args(["predict", "m.safetensors", "f.csv"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.remove(0), "'@kind");
    lines.sort_unstable();
    lines.dedup();
    // (A label that is a number stays one.)
    assert_eq!(lines, ["'=cmd|' /C calc'!A0", "-1"]);
}
