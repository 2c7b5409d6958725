//! The programs of `examples/` run: each asserts what it shows.

use std::process::Command;

#[test]
fn every_example_runs() {
    // (`cargo test` and nextest build them beside the tests.)
    let tests = std::env::current_exe().unwrap();
    let built = tests.parent().and_then(|deps| deps.parent()).unwrap().join("examples");
    let sources = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples")).unwrap();
    let names: Vec<String> =
        sources.map(|source| source.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    assert!(names.len() >= 4, "{names:?}");
    for name in names {
        let program = built.join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
        assert!(program.is_file(), "{} is not built: cargo build -p afterfit --examples", program.display());
        let output = Command::new(program).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.lines().count() >= 1,
            "{name}: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
