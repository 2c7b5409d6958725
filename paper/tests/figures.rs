//! The experiments that need no images: the same seed gives the same bytes, and the tables are those that are stored.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

const NAMES: [&str; 9] = ["fig1", "fig2", "fig3", "fig6", "bounds", "flow", "dial", "table1", "noise"];

fn paper(out: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paper"));
    let output = command.args(arguments).arg("--out").arg(out).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn tables_are_those_stored_and_bytes_repeat() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    paper(one.path(), &NAMES);
    paper(two.path(), &NAMES);
    let mut files = 0;
    for entry in std::fs::read_dir(one.path()).unwrap() {
        let name = entry.unwrap().file_name();
        let read = |folder: &Path| std::fs::read(folder.join(&name)).unwrap();
        assert!(read(one.path()) == read(two.path()), "{name:?} differs between two runs");
        files += 1;
    }
    assert!(files > 30, "{files} files");
    let shown = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/noise.svg")).unwrap();
    assert!(
        std::fs::read(one.path().join("noise-resnet-18-seed-1.svg")).unwrap() == shown,
        "the README's picture is another"
    );
    let checked = paper(one.path(), &["check", "--partial"]);
    assert!(checked.contains("cells passed, 0 failed"), "{checked}");
    // Every table made is one of those stored.
    let made = std::fs::read_dir(one.path())
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|e| e == "csv"));
    assert!(checked.starts_with(&format!("{} tables", made.count())), "{checked}");
    // A cell that is off is noticed.
    let file = one.path().join("fig2.csv");
    let text = std::fs::read_to_string(&file).unwrap();
    let last = text.trim_end().rsplit(',').next().unwrap().len();
    let row = text.trim_end().rfind('\n').unwrap();
    let spoiled = format!("{}\n5e2{}\n", &text[..row], ",9e9".repeat(text[row..].matches(',').count()));
    assert!(last > 0 && spoiled != text);
    std::fs::write(&file, spoiled).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_paper"))
        .args(["check", "--partial", "--out"])
        .arg(one.path())
        .output()
        .unwrap();
    assert!(!output.status.success());
}
