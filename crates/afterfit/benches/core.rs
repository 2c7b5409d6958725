//! What the core costs, each beside a physical limit or the work it rides on, measured in turns in the same run.
//!
//! Prints Markdown rows; `make bench` puts them into BENCHMARKS.md.
#![allow(missing_docs, clippy::unwrap_used)]

use std::hint::black_box;
use std::io::Read;
use std::time::Instant;

use afterfit::Nodes;
use afterfit::dial::Dial;
use afterfit::fit::{AveragedRun, ExactRun, Start, averaged, exact};
use afterfit::objective::{Dense, Features, Glm, LeastSquares, Loss, Objective, Rows, Shift};
use afterfit::run::averages;
use afterfit::run::{Batches, LivePath, Path};
use afterfit::run::{Method, RateSchedule, Trainer};
use afterfit::sums::Bank;
use afterfit::{Answer, Stride, Weighting};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const N: usize = 60_000;
const D: usize = 784;
const K: usize = 10;

fn seconds(work: &mut dyn FnMut()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

/// Median times of two pieces of work, run in turns so that a noisy neighbor hits both.
fn in_turns(rounds: usize, first: &mut dyn FnMut(), second: &mut dyn FnMut()) -> (f64, f64) {
    first();
    second();
    let (mut a, mut b): (Vec<f64>, Vec<f64>) = (0..rounds).map(|_| (seconds(first), seconds(second))).unzip();
    a.sort_by(f64::total_cmp);
    b.sort_by(f64::total_cmp);
    (a[rounds / 2], b[rounds / 2])
}

fn row(what: &str, ours: &str, beside: &str, ratio: String) {
    println!("| {what} | {ours} | {beside} | {ratio} |");
}

/// MNIST's shape and sparsity: four pixels in five are 0.
fn pixels(rng: &mut ChaCha8Rng) -> Vec<f32> {
    (0..N * D).map(|_| if rng.random::<f32>() < 0.8 { 0.0 } else { rng.random::<f32>() }).collect()
}

fn main() {
    let threads = std::thread::available_parallelism().unwrap();
    println!("Threads: {threads}. Medians of runs taken in turns.\n");
    println!("| what | ours | beside | ratio |\n|---|---|---|---|");
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let x = Features::Dense(Dense::new(N, D, pixels(&mut rng)).unwrap());
    let labels: Vec<u32> = (0..N).map(|_| rng.random_range(0..K as u32)).collect();
    let softmax = Glm::softmax(x, labels.clone(), K, 0.0, false).unwrap();
    pass_beside_products(&softmax);
    starts();
    dial_beside_gradient(&softmax);
    sums_in_memory();
    let Features::Dense(x) = softmax.features().clone() else { unreachable!("dense above") };
    drop(softmax);
    gram_space(Features::Dense(x), &labels);
}

/// A pass of the exact path, loss and gradient of all rows, beside its two products with the data.
fn pass_beside_products(softmax: &Glm<f32>) {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let weights: Vec<f64> = (0..softmax.width()).map(|_| 0.1 * (rng.random::<f64>() - 0.5)).collect();
    let (mut gradient, mut products) = (weights.clone(), weights.clone());
    let (pass, both) = in_turns(
        9,
        &mut || {
            black_box(softmax.evaluate(&weights, Rows::All, &mut gradient));
        },
        &mut || {
            black_box(softmax.features().pull_back(Rows::All, &weights, |_| Vec::new(), &mut products));
        },
    );
    row(
        "softmax pass, 60 000×784×10 f32 (loss and gradient)",
        &format!("{:.1} ms", 1e3 * pass),
        &format!("its two products: {:.1} ms", 1e3 * both),
        format!("{:.2}×", pass / both),
    );
}

/// What each start of the exact path costs on the digits: passes over the data for 40 λ.
fn starts() {
    let mut text = String::new();
    let packed = include_bytes!("../../afterfit-cli/src/digits.csv.gz");
    flate2::read::GzDecoder::new(&packed[..]).read_to_string(&mut text).unwrap();
    let rows: Vec<Vec<f64>> =
        text.lines().map(|line| line.split(',').map(|field| field.trim().parse().unwrap()).collect()).collect();
    let pixels = rows.iter().flat_map(|row| row[..64].iter().map(|pixel| pixel / 16.0)).collect();
    let labels = rows.iter().map(|row| row[64] as u32).collect();
    let x = Features::Dense(Dense::new(rows.len(), 64, pixels).unwrap());
    let glm = Glm::new(x, Loss::classes(labels, 10).unwrap(), 0.0, true).unwrap();
    let l2: Vec<f64> = (0..40).map(|i| 10_f64.powf(-5.0 + 5.0 * f64::from(i) / 39.0)).collect();
    let timed = |start: Start| {
        let begin = Instant::now();
        let path = exact(&glm, &l2, &ExactRun { start, ..ExactRun::default() }).unwrap();
        (path.passes, begin.elapsed().as_secs_f64())
    };
    let begin = Instant::now();
    let averages = averaged(&glm, &l2, &AveragedRun::default()).unwrap();
    let averaging = begin.elapsed().as_secs_f64();
    let (passes, time) = timed(Start::Path);
    for (name, start, before) in [
        ("the neighboring λ", Start::Neighbor, 0.0),
        ("zero", Start::Zero, 0.0),
        ("the averages of one run", Start::Given(averages.weights), averaging),
    ] {
        let (others, other_time) = timed(start);
        let more = if before > 0.0 { format!(", after {before:.2} s for the averages") } else { String::new() };
        row(
            &format!("digits, 40 exact λ: from the path so far, or from {name}"),
            &format!("{passes} passes, {time:.2} s"),
            &format!("{others} passes, {other_time:.2} s{more}"),
            format!("{:.1}× the passes", others as f64 / passes as f64),
        );
    }
}

/// A 16-node dial on softmax, batch 500: what it adds to a training step. Both trainings run in turns, one with a dial in its loop.
fn dial_beside_gradient(softmax: &Glm<f32>) {
    const STEPS: u64 = 240;
    let optimizer = Trainer::new(Method::Nesterov { momentum: 0.98 }, RateSchedule::Constant(0.02));
    let batches = Batches::Blocks { size: 500, first_steps: 0, first_size: 500, seed: 1 };
    let mut path = LivePath::new(softmax, optimizer, batches, STEPS, None).unwrap();
    let info = path.info().clone();
    let center = vec![0.0; softmax.width()];
    let mut differences = Vec::new();
    let mut alone = Vec::new();
    for _ in 0..31 {
        let bare = seconds(&mut || path.for_each(&mut |_| Ok(())).unwrap());
        let mut dial = Dial::new(vec![Nodes::new(1e-5, 1.0, 16).unwrap()], &info, &center).unwrap();
        let with = seconds(&mut || {
            path.for_each(&mut |iterate| match iterate.rate {
                Some(rate) => dial.push(iterate.weights, rate),
                None => dial.finish(iterate.weights),
            })
            .unwrap();
        });
        black_box(dial.tracker().frozen());
        alone.push(bare / STEPS as f64);
        differences.push((with - bare) / STEPS as f64);
    }
    let median = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let (dial, step) = (median(&mut differences), median(&mut alone));
    row(
        "16-node dial in the loop, softmax 784×10, batch 500",
        &format!("{:.1} µs more a step", 1e6 * dial),
        &format!("training step: {:.1} µs", 1e6 * step),
        format!("{:.1} % of the step", 100.0 * dial / step),
    );
}

/// Multiply-adds a second of all threads when nothing is read or written.
fn multiply_add_peak() -> f64 {
    struct Spin(usize);
    impl pulp::WithSimd for Spin {
        type Output = f64;
        #[inline(always)]
        fn with_simd<S: pulp::Simd>(self, simd: S) -> f64 {
            let (scale, shift) = (simd.splat_f64s(black_box(0.999)), simd.splat_f64s(black_box(1e-3)));
            let mut held = [simd.splat_f64s(1.0); 12];
            for _ in 0..self.0 {
                for held in &mut held {
                    *held = simd.mul_add_f64s(*held, scale, shift);
                }
            }
            held.iter().map(|&held| simd.reduce_sum_f64s(held)).sum()
        }
    }
    let (arch, turns) = (pulp::Arch::new(), 2_000_000);
    let (_, best) = in_turns(5, &mut || {}, &mut || {
        black_box(rayon::broadcast(|_| arch.dispatch(Spin(turns))));
    });
    // Vectors of four f64: pulp's default on x86-64 with AVX2.
    (turns * 12 * 4 * rayon::current_num_threads()) as f64 / best
}

/// 100 strengths of 500 iterates of 7840 weights.
fn sums_in_memory() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let width = D * K;
    let iterates: Vec<Vec<f64>> = (0..500).map(|_| (0..width).map(|_| rng.random()).collect()).collect();
    let shares: Vec<Vec<f64>> = (0..500).map(|_| (0..100).map(|_| rng.random()).collect()).collect();
    let scales = vec![1.0; 100];
    let mut sink = 0.0;
    let (ours, read) = in_turns(
        9,
        &mut || {
            let mut bank = Bank::new(&vec![0.0; width], 100);
            for (iterate, share) in iterates.iter().zip(&shares) {
                assert!(bank.push(iterate, share, &scales));
            }
            bank.flush();
            black_box(bank.reach());
        },
        // The physical limit: every byte read once, by every thread.
        &mut || {
            use rayon::prelude::*;
            sink +=
                iterates.par_iter().map(|w| w.chunks_exact(8).map(|c| c.iter().sum::<f64>()).sum::<f64>()).sum::<f64>();
        },
    );
    black_box(sink);
    let bytes = (500 * width * 8) as f64;
    let multiply_adds = (500 * width * 100) as f64;
    row(
        "100 averages of 500 iterates × 7840 weights, in memory",
        &format!("{:.1} ms, {:.1} GB/s of path", ours * 1e3, bytes / ours / 1e9),
        &format!("reading the path once: {:.1} ms, {:.1} GB/s", read * 1e3, bytes / read / 1e9),
        format!("{:.0} % of memory bandwidth", 100.0 * read / ours),
    );
    let peak = multiply_add_peak();
    row(
        "the same, as arithmetic (100 multiply-adds for every number read: this, not memory, is its limit)",
        &format!("{:.1} G multiply-adds/s", multiply_adds / ours / 1e9),
        &format!("AVX2 registers only, all threads: {:.1} G/s", peak / 1e9),
        format!("{:.0} % of peak", 100.0 * multiply_adds / ours / peak),
    );
    for count in [1, 4, 16] {
        let (ours, read) = in_turns(
            9,
            &mut || {
                let mut bank = Bank::new(&vec![0.0; width], count);
                for (iterate, share) in iterates.iter().zip(&shares) {
                    assert!(bank.push(iterate, &share[..count], &scales[..count]));
                }
                bank.flush();
                black_box(bank.reach());
            },
            &mut || {
                black_box(
                    iterates.iter().map(|w| w.chunks_exact(8).map(|c| c.iter().sum::<f64>()).sum::<f64>()).sum::<f64>(),
                );
            },
        );
        row(
            &format!("{count} averages of the same path"),
            &format!("{:.1} ms", ours * 1e3),
            &format!("one thread reading it: {:.1} ms", read * 1e3),
            format!("{:.0} % of one thread's bandwidth", 100.0 * read / ours),
        );
    }
}

/// 500 full-batch iterations and 100 strengths of MNIST-sized least squares, against the product XᵀX alone.
fn gram_space(x: Features<f32>, labels: &[u32]) {
    let mut y = vec![0.0; N * K];
    labels.iter().enumerate().for_each(|(i, &label)| y[i * K + label as usize] = 1.0);
    let ones = vec![1.0; N];
    let squares = LeastSquares::new(x.clone(), y, K, 0.0, false).unwrap();
    let strengths: Vec<Weighting> = (0..100).map(|i| Weighting::L2(10_f64.powf(-4.0 + 0.06 * f64::from(i)))).collect();
    let (ours, product) = in_turns(
        3,
        &mut || {
            let gram = squares.gram().unwrap();
            let optimizer = Trainer::new(Method::Descent, RateSchedule::Constant(0.01));
            let mut path = LivePath::new(&gram, optimizer, Batches::Full, 500, None).unwrap();
            black_box(averages(&mut path, &strengths, Answer::Regularized, Stride::Linear).unwrap());
        },
        &mut || {
            _ = black_box(x.gram(Rows::All, &ones, &Shift::none(&x, &ones)));
        },
    );
    row(
        "least squares 60000×784×10 in Gram space: 500 iterations + 100 λ",
        &format!("{ours:.2} s"),
        &format!("XᵀX alone (f64 sums): {product:.2} s"),
        format!("{:.2}×", ours / product),
    );
    let mut gradient = vec![0.0; D * K];
    let weights = vec![0.1; D * K];
    let (step, _) = in_turns(5, &mut || squares.gradient(&weights, Rows::All, &mut gradient), &mut || {});
    row(
        "the same 500 iterations without Gram space (estimated from one)",
        &format!("{:.1} s", 500.0 * step),
        &format!("XᵀX alone: {product:.2} s"),
        format!("{:.1}×", 500.0 * step / product),
    );
}
