//! A dial's file: saved by a run, opened by another program, read at any strength.
//!
//! cargo run --release -p afterfit --example read_dial [FILE L2]

use std::path::PathBuf;

use afterfit::dial::Dial;
use afterfit::{Answer, Nodes, Optimizer, PathInfo, Rates};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let mut given = std::env::args().skip(1);
    let file = match given.next() {
        Some(file) => PathBuf::from(file),
        None => {
            let file = folder.path().join("run.dial");
            train()?.save(&file)?;
            file
        }
    };
    let l2: f64 = given.next().map_or(Ok(0.3), |text| text.parse())?;

    let mut dial = Dial::load(&file)?;
    println!("{}: {} steps of {}", file.display(), dial.tracker().steps(), dial.info().optimizer);
    let reading = dial.read(l2, Answer::Regularized)?;
    println!("λ = {l2}: {} weights, {}: {}", reading.weights.len(), reading.status.standing, reading.status.reason);
    println!(
        "any weight is within {:.1e} of the exact average; {:.1} % of the mass is unspent",
        reading.error,
        100.0 * reading.remaining
    );
    Ok(())
}

/// Fifty steps of descent toward 1, with a dial.
fn train() -> afterfit::Result<Dial> {
    let mut weights = vec![0.0; 10];
    let path = PathInfo::new(Optimizer::Sgd, Rates::new());
    let mut dial = Dial::new(vec![Nodes::new(0.01, 10.0, 16)?], &path, &weights)?;
    for _step in 0..50 {
        dial.push(&weights, 0.1)?;
        weights.iter_mut().for_each(|w| *w -= 0.1 * (*w - 1.0));
    }
    dial.finish(&weights)?;
    Ok(dial)
}
