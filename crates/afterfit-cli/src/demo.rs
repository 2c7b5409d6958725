//! `afterfit demo`: no arguments, no network. Handwritten digits, forty exact models, each with its certificate.

use std::io::Read;
use std::path::Path;
use std::time::Instant;

use afterfit::files::atomic::Existing;
use afterfit::files::text::quoted_if_needed;
use afterfit::fit::{ExactRun, Start, exact};
use afterfit::learn::{ModelChoice, Settings, learn};
use afterfit::objective::{Dense, Features, Glm};
use afterfit::select::{Rules, split};
use afterfit::table::{Matrix, Table, Target};
use anyhow::{Context, Result};

use crate::fit::summary;
use crate::output;
use crate::report;
use crate::table::certainty;

/// 1797 handwritten digits of 8×8 pixels, E. Alpaydin and C. Kaynak, UCI Machine Learning Repository, CC BY 4.0, as
/// scikit-learn ships them: 64 pixels from 0 to 16 and the digit, a row a line.
const DIGITS: &[u8] = include_bytes!("digits.csv.gz");

/// Of so many strengths, one is solved alone as well.
const ALONE: usize = 8;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to write the model and the report page; only these two files are replaced.
    #[arg(long, value_name = "FOLDER", default_value = "afterfit-demo", value_parser = crate::place::local())]
    folder: std::path::PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    std::fs::create_dir_all(&args.folder).with_context(|| args.folder.display().to_string())?;
    let start = Instant::now();
    let (pixels, labels) = digits()?;
    let read = start.elapsed().as_secs_f64();
    let strengths: Vec<f64> = (0..40).map(|i| 10_f64.powf(-5.0 + 5.0 * f64::from(i) / 39.0)).collect();
    let exactly = ExactRun { tolerance: Some(1e-11), ..ExactRun::default() };
    let settings = Settings {
        keep_path: true,
        keep_held: report::ROWS,
        count_degrees: true,
        exact: exactly.clone(),
        ..Settings::new(ModelChoice::Softmax, strengths.clone())
    };
    let features = || -> Result<Features<f64>> { Ok(Features::Dense(Dense::new(labels.len(), 64, pixels.clone())?)) };
    let target = Target::Numeric(labels.iter().map(|&label| f64::from(label)).collect());
    output::text("1797 handwritten digits, softmax: the exact model at 40 strengths λ, each with its certificate\n\n")?;
    let mut learned = learn(Table::of(Matrix::Double(features()?), target), &settings)?;
    learned.seconds.read = read;
    output::text(&summary(&learned))?;

    // The same models one by one, each from zero and as exact. (A few are enough to tell.)
    let (training, _) = split(labels.len(), 0.2, &Rules::seeded(settings.seed))?;
    let labels: Vec<u32> = training.iter().map(|&row| labels[row]).collect();
    let glm = Glm::softmax(features()?.pick(&training), labels, 10, 0.0, true)?;
    let some: Vec<f64> = strengths.iter().copied().skip(ALONE / 2).step_by(ALONE).collect();
    let before = Instant::now();
    let alone = exact(&glm, &some, &ExactRun { start: Start::Zero, ..exactly })?;
    let one_by_one = ALONE as f64 * before.elapsed().as_secs_f64();
    let together = learned.seconds.train + learned.seconds.average;
    let worst = learned.rows.iter().map(|row| row.certificate.excess).fold(0.0, f64::max);
    output::text(&format!(
        "\n{} λ, each from the last ones   {together:>6.2} s   {:>6} passes over the data\none by one, each from zero     {one_by_one:>6.2} s   {:>6} passes over the data   ({:.0}× as long, going by every {ALONE}th)\ncertified: no penalized loss is more than {} above its minimum\n",
        strengths.len(),
        learned.steps,
        ALONE as u64 * alone.passes,
        one_by_one / together,
        certainty(worst)
    ))?;

    let folder: &Path = &args.folder;
    let (model, page) = (folder.join("digits.safetensors"), folder.join("report.html"));
    learned.model.save(&model)?;
    let command = format!("afterfit predict {} YOUR.npy --l2 {{l2}}", quoted_if_needed(&model.display().to_string()));
    let page_of = report::of_fit("Handwritten digits, softmax", &mut learned, None, Some([8, 8]), command)?;
    let html = page_of.html()?;
    output::write_file(&page, html.as_bytes(), Existing::Replace)?;
    output::text(&format!(
        "\nwrote {} and {}\nall of this took {:.1} s\nnext: afterfit fit YOUR.csv --target COLUMN\n",
        model.display(),
        page.display(),
        start.elapsed().as_secs_f64()
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
