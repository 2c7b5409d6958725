//! `afterfit demo`: no arguments, no network. Handwritten digits, one training run, every strength.

use std::io::Read;
use std::path::Path;
use std::time::Instant;

use afterfit::fit::{RidgeRun, SoftmaxRun};
use afterfit::learn::{ModelChoice, Polish, Settings, Validation, learn};
use afterfit::model::argmax;
use afterfit::objective::{Dense, Features, Softmax};
use afterfit::polish::polish;
use afterfit::select::{Rules, split};
use afterfit::table::{Matrix, Table, Target};
use anyhow::{Context, Result};

use crate::fit::summary;
use crate::output::{self, short};
use crate::report::{self, Report};

/// 1797 handwritten digits of 8×8 pixels, E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, CC BY 4.0, as
/// scikit-learn ships them: 64 pixels from 0 to 16 and the digit, a row a line.
const DIGITS: &[u8] = include_bytes!("digits.csv.gz");

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to write the model and the report page; only these two files are replaced.
    #[arg(long, value_name = "FOLDER", default_value = "afterfit-demo")]
    folder: std::path::PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    std::fs::create_dir_all(&args.folder).with_context(|| args.folder.display().to_string())?;
    let start = Instant::now();
    let (pixels, labels) = digits()?;
    let read = start.elapsed().as_secs_f64();
    let strengths: Vec<f64> = (0..40).map(|i| 10_f64.powf(-5.0 + 5.0 * f64::from(i) / 39.0)).collect();
    let settings = Settings {
        model: ModelChoice::Softmax,
        l2: strengths.clone(),
        validation: Validation::Share(0.2),
        bias: true,
        standardize: false,
        ridge: RidgeRun::default(),
        classes: true,
        softmax: SoftmaxRun { steps: Some(28_000), batch: Some(64), ..SoftmaxRun::default() },
        seed: 0,
        polish: Polish::Off,
    };
    let features = || -> Result<Features<f64>> { Ok(Features::Dense(Dense::new(labels.len(), 64, pixels.clone())?)) };
    let target = Target::Numeric(labels.iter().map(|&label| f64::from(label)).collect());
    output::text(
        "1797 handwritten digits, softmax, trained once without a penalty; then every λ from the same run:\n\n",
    )?;
    let start = Instant::now();
    let mut learned = learn(Table::of(Matrix::Double(features()?), target.clone()), &settings)?;
    learned.seconds.read = read;
    let once = start.elapsed().as_secs_f64();
    output::text(&summary(&learned))?;

    // The same model the usual way: minimize the penalized loss, at the chosen λ and at all of them.
    let (training, validation) = split(labels.len(), 0.2, &Rules::seeded(settings.seed))?;
    let pick = |rows: &[usize]| rows.iter().map(|&row| labels[row]).collect::<Vec<u32>>();
    let objective = Softmax::new(features()?.pick(&training), pick(&training), 10, 0.0, true)?;
    let zero = vec![0.0; 650];
    let chosen = strengths[learned.best];
    let retrained = polish(&objective, chosen, &zero, 1e-6)?.weights;
    let start = Instant::now();
    for &l2 in &strengths {
        polish(&objective, l2, &zero, 1e-4)?;
    }
    let every = start.elapsed().as_secs_f64();
    let held = features()?.pick(&validation);
    let accuracy = |matrix: &[f64], bias: &[f64]| {
        let mut scores = vec![0.0; validation.len() * 10];
        held.multiply(matrix, &mut scores);
        scores.chunks_exact_mut(10).for_each(|row| row.iter_mut().zip(bias).for_each(|(score, bias)| *score += bias));
        let right = argmax(&scores, 10)
            .iter()
            .zip(pick(&validation))
            .filter(|(found, label)| **found == *label as usize)
            .count();
        100.0 * right as f64 / validation.len() as f64
    };
    let (matrix, bias) = objective.split(&retrained);
    let distance = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
    let apart = distance(&learned.model.weights, matrix) / distance(matrix, &vec![0.0; matrix.len()]);
    let dot: f64 = learned.model.weights.iter().zip(matrix).map(|(a, b)| a * b).sum();
    let cosine = dot / (distance(matrix, &vec![0.0; 640]) * distance(&learned.model.weights, &vec![0.0; 640]));
    output::text(&format!(
        "\nat λ = {}          averaged   retrained\nvalidation accuracy  {:>7.2} %   {:>7.2} %\nweights              {:.1} % apart (cosine {:.4})\ntime for all {} λ     {:>7.2} s   {:>7.2} s   ({:.0}× as long)\n",
        short(chosen),
        accuracy(&learned.model.weights, &learned.model.bias),
        accuracy(matrix, bias),
        100.0 * apart,
        cosine,
        strengths.len(),
        once,
        every,
        every / once
    ))?;

    let folder: &Path = &args.folder;
    let (model, page) = (folder.join("digits.safetensors"), folder.join("report.html"));
    learned.model.save(&model)?;
    let html = report::page(&Report {
        title: "Handwritten digits, softmax",
        learned: &learned,
        names: None,
        image: Some([8, 8]),
    });
    output::write_file(&page, html.as_bytes())?;
    output::text(&format!(
        "\nwrote {} and {}\nnext: afterfit fit YOUR.csv --target COLUMN\n",
        model.display(),
        page.display()
    ))
}

/// Pixels in [0, 1], row by row, and the digit of each row.
pub(crate) fn digits() -> Result<(Vec<f64>, Vec<u32>)> {
    let mut text = String::new();
    flate2::read::GzDecoder::new(DIGITS).read_to_string(&mut text)?;
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let mut fields = line.split(',').map(|field| field.trim().parse::<f64>());
        for _ in 0..64 {
            pixels.push(fields.next().context("a digit has 64 pixels")?? / 16.0);
        }
        labels.push(fields.next().context("a digit has a label")?? as u32);
    }
    Ok((pixels, labels))
}
