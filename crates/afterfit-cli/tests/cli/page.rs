//! What the page's own mathematics (`web/src/nodes.ts`) is tested against: the library's coefficients and readings.

use std::path::PathBuf;

use afterfit::model::ModelPath;
use afterfit::{Nodes, Optimizer, PathInfo, Rates};

use afterfit_cli::page::Models;
use serde_json::{Value, json};

/// Strengths of each set of nodes.
const STRENGTHS: usize = 250;

/// The same numbers at every call, spread over [0, 1).
struct Spread(u64);

impl Spread {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The packed paths, each with the runs of a path's rates, and for each strength its λ, its coefficients, its reading and what it
/// leaves of its mass.
fn made() -> (String, Vec<u8>) {
    let (mut spread, mut rates, mut paths, mut numbers) = (Spread(17), Spread(23), Vec::new(), Vec::new());
    for (from, to, count) in [(1e-5, 1e2, 24), (1e-3, 1.0, 9), (1e-8, 1e8, 16), (0.1, 0.2, 4)] {
        let nodes = Nodes::new(from, to, count).unwrap();
        // Weights of ridge models with these curvatures.
        let weights = nodes.values().iter().flat_map(|l2| [0.3 / (0.1 + l2), -2.0 / (1.0 + l2), 5.0 / (4.0 + l2)]);
        let weights: Vec<f64> = weights.collect();
        let biases = nodes.values().iter().map(|l2| 1.0 / (1.0 + l2)).collect();
        // A schedule of a few hundred rates, one of them often, times a few gains.
        let own = (0..300).map(|_| rates.next()).chain(std::iter::repeat_n(0.3, 5000)).collect::<Rates>();
        let gains = (0..5300).map(|step| if step % 7 == 0 { 0.5 } else { 1.0 }).collect::<Rates>();
        let run = PathInfo { gains: Some(gains), ..PathInfo::new(Optimizer::Sgd, own) };
        let path = ModelPath { nodes, weights, biases, error: 0.0, certified: None };
        for _ in 0..STRENGTHS {
            let l2 = (from * (to / from).powf(spread.next())).clamp(from, to);
            let (weights, bias) = path.at(l2);
            numbers.push(l2);
            numbers.extend(path.nodes.coefficients(l2));
            numbers.extend(weights);
            numbers.extend(bias);
            numbers.push(run.remaining(l2).unwrap());
        }
        paths.push(json!({ "path": Models::of(&path), "runs": run.mass_runs() }));
    }
    let json = serde_json::to_string_pretty(&paths).unwrap() + "\n";
    (json, numbers.iter().flat_map(|number| number.to_le_bytes()).collect())
}

#[test]
fn the_pages_tests_expect_what_the_library_gives() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../web/tests");
    let (json, numbers) = made();
    if std::env::var_os("UPDATE_FIXTURES").is_some() {
        std::fs::write(folder.join("fixture.json"), &json).unwrap();
        std::fs::write(folder.join("fixture.f64"), &numbers).unwrap();
    }
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap_or_default();
    let again = "UPDATE_FIXTURES=1 cargo nextest run the_pages_tests writes it anew";
    // (Another machine's logarithms may differ in their last digits: what is packed need not be the same bits.)
    let parse = |text: &[u8]| serde_json::from_slice::<Vec<Value>>(text).unwrap_or_default();
    let (kept, own) = (parse(&read("fixture.json")), parse(json.as_bytes()));
    let shape = |models: &Value| {
        let (models, runs) = (&models["path"], models["runs"].as_array().map(Vec::len));
        let length = models["weights"].as_str().map(str::len);
        (models["from"].as_f64(), models["to"].as_f64(), models["count"].as_u64(), length, runs)
    };
    assert!(own.len() == 4 && kept.iter().map(shape).eq(own.iter().map(shape)), "{again}");
    let floats = |bytes: &[u8]| -> Vec<f64> {
        bytes.chunks_exact(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap_or_default())).collect()
    };
    let (kept, own) = (floats(&read("fixture.f64")), floats(&numbers));
    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-12 * a.abs().max(1.0);
    assert!(kept.len() == own.len() && kept.iter().zip(&own).all(close), "{again}");
}
