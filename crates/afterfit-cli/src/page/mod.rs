//! The page of a λ path: what it is made from, as JSON, and the one file that carries it. What the page does with it is in
//! `web/`; `page.js`, `page.css` and `policy.txt` are built from there (`make web`) and committed.

use afterfit::RateRun;
use afterfit::files::text::is_active;
use afterfit::learn::Held;
use afterfit::model::ModelPath;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use half::f16;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The page's program: an ES module that brings the page of a report to life, and exports `render` for notebooks (anywidget).
pub const MODULE: &str = include_str!("page.js");
/// Its looks.
pub const STYLE: &str = include_str!("page.css");
/// What a browser lets the page do: run that program, nothing else, and fetch nothing.
const POLICY: &str = include_str!("policy.txt");

/// What the losses of a kind of model are.
#[must_use]
pub fn loss_of(model: &str) -> &'static str {
    match model {
        "softmax" => "log-loss",
        "poisson" => "half deviance",
        _ => "half squared error",
    }
}

/// Everything that a page shows. (`web/src/data.ts` is the same in TypeScript.)
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Page {
    /// Its heading.
    pub title: String,
    /// linear, softmax, poisson or kernel; nothing where no single model is shown.
    pub model: Option<String>,
    /// What is predicted.
    pub target: Option<String>,
    /// The classes, if it is those.
    pub classes: Option<Vec<String>>,
    /// The names of all features; of kernel models, of the training rows.
    pub features: Vec<String>,
    /// Height and width, where rows are images.
    pub image: Option<[usize; 2]>,
    /// What is known of each strength: objects with `l2`.
    pub rows: Vec<Value>,
    /// Number of the best row.
    pub best: Option<usize>,
    /// Number of the row of the strongest λ within one standard error of it.
    pub one_se: Option<usize>,
    /// What the losses are.
    pub loss: String,
    /// What `validation_score` is, where rows have one.
    pub score: Option<String>,
    /// The models at the nodes; of kernel models, their coefficients of each training row.
    pub path: Option<Models>,
    /// What a kernel model says of each sample at the nodes, in the place of weights.
    pub scores: Option<Models>,
    /// What a model file says of itself.
    pub about: Option<Value>,
    /// `[row][true][predicted]`.
    pub confusions: Vec<Vec<Vec<usize>>>,
    /// What a row of the table consists of.
    pub columns: Vec<Column>,
    /// Some rows of the table.
    pub samples: Vec<Held>,
    /// Whether the models have seen them in training.
    pub samples_seen: bool,
    /// How much each part of the run counts.
    pub averaging: Option<Averaging>,
    /// What each step does to λ's mass, where it keeps `1/(1 + λη)` of it; nothing where rows alone say what remains.
    pub runs: Option<Vec<RateRun>>,
    /// exact, approximation or heuristic.
    pub standing: String,
    /// Why.
    pub reason: String,
    /// The command that makes the model at `{l2}`.
    pub command: String,
    /// How the numbers came about.
    pub notes: Vec<String>,
    /// Another name for the strength, `scale · λ^power`: scikit-learn's.
    pub unit: Option<Unit>,
    /// Whether a server evaluates strengths that are asked for.
    pub live: bool,
}

/// A strength in other words: `scale · λ^power`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Unit {
    /// alpha or C.
    pub name: String,
    /// The factor.
    pub scale: f64,
    /// 1 or −1.
    pub power: i32,
}

/// A column of a table.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// The number of its first feature.
    pub first: usize,
    /// number, boolean, date or categorical.
    pub kind: String,
    /// What a missing value becomes; nothing where the model takes none.
    pub mean: Option<f64>,
    /// The texts of a categorical one, a feature each.
    pub values: Vec<String>,
}

/// How much the iterates at some steps count, at some strengths.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Averaging {
    /// The strengths.
    pub l2: Vec<f64>,
    /// The steps.
    pub steps: Vec<u64>,
    /// `[strength][step]`.
    pub weights: Vec<Vec<f64>>,
}

/// The models at the nodes of a path, packed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Models {
    from: f64,
    to: f64,
    count: usize,
    /// How far combinations of the unrounded models are from the exact ones, relative to the length of these.
    error: f64,
    /// How far rounding takes them besides.
    rounding: f64,
    /// f32 or f16.
    r#type: String,
    /// What the numbers are to be multiplied with.
    scale: f64,
    /// `[node][output][feature]`, little end first, in base64.
    weights: String,
    /// `[node][output]`, f64.
    biases: String,
}

/// More numbers than this are f16.
const MOST_SINGLE: usize = 1 << 20;
/// More than this are too many for a page.
const MOST_NUMBERS: usize = 1 << 24;
/// Strengths at which rounding is measured.
const MOST_MEASURED: usize = 12;

impl Models {
    /// Packs a path; `None` if it is too large for a page, or its numbers for f32.
    #[must_use]
    pub fn of(path: &ModelPath) -> Option<Self> {
        let (from, to) = path.nodes.range();
        let half = path.weights.len() > MOST_SINGLE;
        let largest = path.weights.iter().fold(0.0_f64, |top, w| top.max(w.abs()));
        let scale = if half && largest > 0.0 { largest } else { 1.0 };
        let (mut bytes, mut rounded) = (Vec::new(), path.clone());
        if path.weights.len() > MOST_NUMBERS {
            return None;
        }
        for weight in &mut rounded.weights {
            if half {
                let packed = f16::from_f64(*weight / scale);
                bytes.extend(packed.to_le_bytes());
                *weight = packed.to_f64() * scale;
            } else {
                let packed = *weight as f32;
                bytes.extend(packed.to_le_bytes());
                *weight = f64::from(packed);
            }
        }
        if rounded.weights.iter().chain(&path.biases).any(|number| !number.is_finite()) {
            return None;
        }
        let length = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|x| x * x).sum::<f64>().sqrt();
        let off = |at: usize| {
            let share = at as f64 / (MOST_MEASURED - 1) as f64;
            let l2 = (from * (to / from).powf(share)).clamp(from, to);
            let (exact, rounded) = (path.at(l2).0, rounded.at(l2).0);
            let whole = length(&mut exact.iter().copied());
            let miss = length(&mut exact.iter().zip(&rounded).map(|(a, b)| a - b));
            if miss == 0.0 { 0.0 } else { miss / whole }
        };
        let biases: Vec<u8> = path.biases.iter().flat_map(|bias| bias.to_le_bytes()).collect();
        Some(Self {
            from,
            to,
            count: path.nodes.len(),
            error: path.error,
            rounding: (0..MOST_MEASURED).map(off).fold(0.0, f64::max),
            r#type: if half { "f16" } else { "f32" }.into(),
            scale,
            weights: STANDARD.encode(bytes),
            biases: STANDARD.encode(biases),
        })
    }

    /// What the kernel models of a path say of some rows, whose kernel with each of the training rows this is, row by row.
    #[must_use]
    pub fn of_scores(path: &ModelPath, kernel: &[f64]) -> Option<Self> {
        let outputs = path.biases.len() / path.nodes.len();
        let rows = path.weights.len() / path.biases.len().max(1);
        if kernel.is_empty() || outputs == 0 || rows == 0 {
            return None;
        }
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let mut scores = Vec::with_capacity(kernel.len() / rows * path.biases.len());
        for (coefficients, biases) in path.weights.chunks_exact(rows * outputs).zip(path.biases.chunks_exact(outputs)) {
            for row in kernel.chunks_exact(rows) {
                scores.extend(coefficients.chunks_exact(rows).zip(biases).map(|(own, bias)| dot(own, row) + bias));
            }
        }
        let biases = vec![0.0; path.nodes.len()];
        Self::of(&ModelPath { nodes: path.nodes.clone(), weights: scores, biases, error: path.error, certified: None })
    }
}

/// A page in the same looks that only has text and pictures of its own folder: `body` is HTML.
#[must_use]
pub fn document(title: &str, body: &str) -> String {
    let style = POLICY.split(';').find(|rule| rule.trim().starts_with("style-src")).unwrap_or_default();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';{style}; img-src 'self' file:;\">\
<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">\
<title>{title}</title>\n<style>{STYLE}</style></head><body class=\"afterfit-page\">\n<main><div class=\"afterfit\">\n\
<h1>{title}</h1>\n{body}</div></main></body></html>\n",
        title = escaped(title),
    )
}

/// Text that may hold anything, made safe for HTML.
#[must_use]
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

impl Page {
    /// As JSON that no HTML parser takes for anything but text, and no terminal for commands.
    fn json(&self) -> serde_json::Result<String> {
        let json = serde_json::to_string(self)?;
        // (Outside of strings, JSON has none of these.)
        let safe = |c: char| match c {
            c if "<>&".contains(c) || is_active(c) => format!("\\u{:04x}", u32::from(c)),
            c => c.into(),
        };
        Ok(json.chars().map(safe).collect())
    }

    /// One self-contained file. It opens from disk and fetches nothing; a live one asks the server that it came from.
    pub fn html(&self) -> serde_json::Result<String> {
        let source = if self.live { " connect-src 'self';" } else { "" };
        Ok(format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}{source}\">\
<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">\
<meta name=\"referrer\" content=\"no-referrer\"><title>{title}</title>\n<style>{STYLE}</style></head><body class=\"afterfit-page\">\n\
<noscript class=\"afterfit-page\">{title}: this page draws itself with JavaScript, which is turned off here. It needs no network; the same numbers come \
from the command with --json.</noscript>\n<script type=\"application/json\" id=\"afterfit-data\">{data}</script>\n\
<script type=\"module\">{MODULE}</script>\n</body></html>\n",
            policy = POLICY.trim_end(),
            title = escaped(&self.title),
            data = self.json()?,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_text() {
        let name = "</script><img src=x onerror=alert(1)>\u{2028}";
        let page = Page { title: name.into(), features: vec![name.into()], ..Page::default() };
        let html = page.html().unwrap_or_default();
        assert_eq!(html.matches("</script>").count(), 2, "ours alone");
        assert!(!html.contains("<img"));
        let data = html.split("id=\"afterfit-data\">").nth(1).and_then(|rest| rest.split("</script>").next());
        let read: Page = serde_json::from_str(data.unwrap_or_default()).unwrap_or_default();
        assert_eq!(read.features, [name]);
    }

    #[test]
    fn the_program_cannot_end_its_own_element() {
        assert!(!MODULE.to_lowercase().contains("</script") && !MODULE.contains("<!--"));
        assert!(!STYLE.to_lowercase().contains("</style"));
        assert!(POLICY.starts_with("default-src 'none'; script-src 'sha256-") && !POLICY.contains("unsafe"));
    }

    #[test]
    fn kernel_models_say_at_each_node_what_their_rows_add_up_to() {
        let nodes = afterfit::Nodes::new(1e-3, 1.0, 4).unwrap_or_else(|error| panic!("{error}"));
        // Two outputs, three training rows, two samples.
        let weights: Vec<f64> = (0..4 * 2 * 3).map(f64::from).collect();
        let biases: Vec<f64> = (0..4 * 2).map(|at| f64::from(at) / 8.0).collect();
        let path = ModelPath { nodes, weights, biases, error: 0.0, certified: None };
        let kernel = [1.0, 0.5, 0.0, -1.0, 0.0, 2.0];
        let packed = Models::of_scores(&path, &kernel).unwrap_or_else(|| panic!("there are scores"));
        let bytes = STANDARD.decode(&packed.weights).unwrap_or_default();
        let scores: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        for (node, scores) in scores.chunks_exact(4).enumerate() {
            for sample in 0..2 {
                for output in 0..2 {
                    let own = |row: usize| path.weights[(node * 2 + output) * 3 + row] * kernel[sample * 3 + row];
                    let expected = own(0) + own(1) + own(2) + path.biases[node * 2 + output];
                    assert_eq!(f64::from(scores[sample * 2 + output]), expected);
                }
            }
        }
        assert!(Models::of_scores(&path, &[]).is_none());
    }

    #[test]
    fn large_paths_are_halved_and_say_what_that_costs() {
        let nodes = afterfit::Nodes::new(1e-3, 1.0, 8);
        let path = |size: usize| ModelPath {
            nodes: nodes.clone().unwrap_or_else(|error| panic!("{error}")),
            weights: (0..8 * size).map(|i| ((i * 7919) % 1009) as f64 / 1009.0 - 0.5).collect(),
            biases: vec![0.0; 8],
            error: 1e-6,
            certified: None,
        };
        let small = Models::of(&path(10));
        let large = Models::of(&path(MOST_SINGLE / 8 + 1));
        let of = |models: &Option<Models>| models.as_ref().map(|models| (models.r#type.clone(), models.rounding));
        assert!(matches!(of(&small), Some((kind, rounding)) if kind == "f32" && rounding < 1e-7));
        assert!(matches!(of(&large), Some((kind, rounding)) if kind == "f16" && (1e-5..1e-3).contains(&rounding)));
        assert!(Models::of(&path(MOST_NUMBERS / 8 + 1)).is_none());
    }
}
