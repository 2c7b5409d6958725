//! Two checkpoints, averaged by hand: their midpoint, in a file of the same kind.
//!
//! cargo run --release -p afterfit --example average_checkpoints [ONE TWO OUT]

use std::path::PathBuf;

use afterfit::checkpoint::{Average, Layout, Series};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fixtures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/safetensors");
    let temporary = tempfile::tempdir()?;
    let mut given = std::env::args_os().skip(1).map(PathBuf::from);
    let one = given.next().unwrap_or_else(|| fixtures.join("step-20.safetensors"));
    let two = given.next().unwrap_or_else(|| fixtures.join("step-30.safetensors"));
    let out = given.next().unwrap_or_else(|| temporary.path().join("middle.safetensors"));

    // Opening reads names, types and places, no numbers.
    let series = Series::open(&[one, two], None, &[])?;
    let record = r#"{"kind":"average","scheme":"midpoint"}"#.to_owned();
    let average = Average { path: out.clone(), weights: vec![vec![0.5, 0.5]], record };

    // One pass over both files, in pieces, summed in f64.
    series.write(&[average], &Layout { single: true, ..Layout::default() }, &|_| {})?;
    println!("{} tensors, {} bytes each, to {}", series.tensors.len(), series.model_bytes(), out.display());
    for note in &series.notes {
        println!("note: {note}");
    }
    assert!(out.is_file());
    Ok(())
}
