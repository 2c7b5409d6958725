//! LoRA adapters, whose update of a weight is a product `B·A`: the average of products is not the product of averages.
//!
//! The average `Σ p_k B_k A_k` is `[B_1 … B_n] diag(p) [A_1; …; A_n]`. With thin QR factors of both stacks, which all strengths
//! share, what is left is the SVD of a small core, cut off at the rank asked for (the best approximation there is). No
//! matrix of the size of the updated weight is formed. Memory: one module's pairs of all checkpoints, in f64.

use std::fs::File;
use std::path::Path;

use faer::Mat;
use serde_json::Value;

use super::output::{Average, Layout};
use super::series::{Series, Treatment};
use super::stream::{Copier, Row};
use super::{CheckpointError, FileError, Result, Tensor, number};
use crate::files::source::{read_whole, write_at};

/// The adapters' configuration, as peft names it.
pub(super) const CONFIG: &str = "adapter_config.json";
/// Names of the two factors, first `A`, which is applied first.
const FACTORS: [(&str, &str); 4] = [
    ("lora_A", "lora_B"),
    ("lora_embedding_A", "lora_embedding_B"),
    ("lora_down", "lora_up"),
    ("lora.down", "lora.up"),
];

/// One module's two factors.
#[derive(Debug)]
pub(super) struct Pair {
    a: usize,
    b: usize,
    /// Their tensors as they are in the checkpoints.
    from: (Tensor, Tensor),
    rank: usize,
    /// The rank they are written with.
    kept: usize,
}

/// The products to be averaged.
#[derive(Debug)]
pub(crate) struct Products {
    pairs: Vec<Pair>,
    /// The rank and the factor `lora_alpha` of the configuration, where they change.
    config: Option<(usize, f64)>,
    /// The rank asked for.
    pub(super) rank: Option<usize>,
}

/// The pairs among tensors: positions of A and B.
fn pairs(tensors: &[Tensor]) -> Vec<(usize, usize)> {
    let find = |name: &str| tensors.iter().position(|tensor| tensor.name == name);
    let pair = |(at, tensor): (usize, &Tensor)| {
        let (a, b) = FACTORS.iter().find(|(a, _)| {
            tensor.name.split('.').any(|part| part == *a) || a.contains('.') && tensor.name.contains(a)
        })?;
        Some((at, find(&tensor.name.replace(a, b))?))
    };
    tensors.iter().enumerate().filter_map(pair).collect()
}

impl Series {
    /// How many modules have adapters whose update is a product of two of the tensors.
    #[must_use]
    pub fn adapters(&self) -> usize {
        pairs(&self.tensors).len()
    }

    /// From here on, outputs hold averages of the adapters' products instead of averages of their factors, cut off at the
    /// rank they have or at `rank`.
    pub fn average_products(&mut self, rank: Option<usize>) -> Result<()> {
        let setting = |reason: String| CheckpointError::Setting(reason);
        let found = pairs(&self.tensors);
        if found.is_empty() {
            return Err(setting(format!(
                "{}: there are no adapters (lora_A and lora_B) in it",
                self.paths[0].display()
            )));
        }
        if let Some(vector) = self.tensors.iter().find(|tensor| tensor.name.contains("lora_magnitude_vector")) {
            let name = &vector.name;
            return Err(setting(format!(
                "{name}: DoRA's magnitudes make the update more than a product: average it without --lora exact"
            )));
        }
        let config = self.require_configs(rank)?;
        let mut products = Products { pairs: Vec::new(), config, rank };
        for (a, b) in found {
            if [a, b].iter().any(|&at| self.treatments[at] != Treatment::Average) {
                continue;
            }
            let from = (self.tensors[a].clone(), self.tensors[b].clone());
            let (name, shapes) = (&from.0.name, (&from.0.shape, &from.1.shape));
            let width = |shape: &[usize]| shape.iter().skip(1).product::<usize>();
            let own = from.0.shape.first().copied().unwrap_or(0);
            if own == 0 || from.1.shape.len() < 2 || width(&from.1.shape) != own {
                return Err(setting(format!("{name}: shapes {shapes:?} are not those of two factors")));
            }
            let most = from.1.shape[0].min(width(&from.0.shape));
            let kept = rank.unwrap_or(own);
            if kept > most {
                return Err(setting(format!("--lora-rank {kept} is more than the {most} that {name} can have")));
            }
            self.tensors[a].shape[0] = kept;
            self.tensors[b].shape[1] = kept;
            (self.treatments[a], self.treatments[b]) = (Treatment::Product, Treatment::Product);
            products.pairs.push(Pair { a, b, from, rank: own, kept });
        }
        self.products = Some(products);
        Ok(())
    }

    /// Makes sure that every adapter scales its product alike; says what a new rank makes of the configuration.
    fn require_configs(&self, rank: Option<usize>) -> Result<Option<(usize, f64)>> {
        let read =
            |path: &Path| -> Option<Value> { serde_json::from_slice(&read_whole(&path.join(CONFIG)).ok()?).ok() };
        let scaling = |config: &Value| {
            ["r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern"].map(|key| config[key].clone())
        };
        let last = self.home.as_deref().and_then(read);
        let (Some(config), last) = (&last, &self.paths[self.paths.len() - 1]) else {
            return match rank {
                None => Ok(None),
                Some(rank) => Err(CheckpointError::Setting(format!(
                    "--lora-rank {rank} changes {CONFIG}, and there is none beside the adapter: give its folder"
                ))),
            };
        };
        for path in &self.paths {
            if let Some(other) = read(path).filter(|other| scaling(other) != scaling(config)) {
                return Err(CheckpointError::Mismatch {
                    path: path.clone(),
                    first: last.clone(),
                    reason: format!(
                        "it scales its product otherwise (r, lora_alpha: {:?})",
                        scaling(&other)[..2].to_vec()
                    ),
                });
            }
        }
        let Some(rank) = rank else { return Ok(None) };
        let is_set = |key: &str| config[key].as_object().is_some_and(|pattern| !pattern.is_empty());
        if let Some(pattern) = ["rank_pattern", "alpha_pattern"].into_iter().find(|key| is_set(key)) {
            return Err(CheckpointError::Setting(format!(
                "{pattern} of {CONFIG} gives modules ranks or scales of their own: leave out --lora-rank, and each keeps its own"
            )));
        }
        let (Some(r), Some(alpha)) = (config["r"].as_u64().filter(|r| *r > 0), config["lora_alpha"].as_f64()) else {
            return Err(CheckpointError::Setting(format!(
                "{} says r {} and lora_alpha {}, which --lora-rank changes: a whole number above 0, and a number",
                last.join(CONFIG).display(),
                config["r"],
                config["lora_alpha"]
            )));
        };
        // peft scales by α/r, or by α/√r: the factor must stay what it is.
        let ratio = rank as f64 / r as f64;
        let ratio = if config["use_rslora"].as_bool() == Some(true) { ratio.sqrt() } else { ratio };
        Ok(Some((rank, alpha * ratio)))
    }

    /// What the cut of products leaves out of averages, relative to all of each: as it is reported when they are written. Nothing
    /// where no products are averaged.
    pub fn lora_errors(&self, averages: &[Average], layout: &Layout) -> Result<Vec<f64>> {
        let rows: Vec<Row> = averages.iter().map(Average::row).collect();
        self.write_products(&rows, layout, &|_, _| Vec::new())
    }

    /// Writes the products of every row; what the cut leaves out of each, relative to all of it.
    pub(super) fn write_products<'a>(
        &self,
        rows: &[Row],
        layout: &Layout,
        targets: &dyn Fn(usize, usize) -> Vec<(&'a File, u64)>,
    ) -> Result<Vec<f64>> {
        let Some(products) = &self.products else { return Ok(Vec::new()) };
        let mut sums = vec![(0.0, 0.0); rows.len()];
        for pair in &products.pairs {
            let sequence = |at: usize| self.sequences.get(at).copied().unwrap_or(0);
            if sequence(pair.a) != sequence(pair.b) {
                return Err(CheckpointError::Setting(format!(
                    "{}: its two factors have masses of their own, and a product has one: --groups one",
                    pair.from.0.name
                )));
            }
            let factors = Factors::read(self, pair)?;
            for (n, row) in rows.iter().enumerate() {
                let cut = factors.cut(&row.weights[sequence(pair.a)], pair)?;
                sums[n] = (sums[n].0 + cut.left_out, sums[n].1 + cut.all);
                for (at, values) in [(pair.a, &cut.a), (pair.b, &cut.b)] {
                    let dtype = self.output_dtype(at, layout);
                    let mut bytes = Vec::new();
                    number::narrow(dtype, values, &mut bytes);
                    if let Some(position) = number::first_overflow(dtype, &bytes) {
                        return Err(CheckpointError::Overflow {
                            name: self.tensors[at].name.clone(),
                            value: values[position],
                            position: position as u64,
                            dtype: number::name(dtype),
                        });
                    }
                    for (file, offset) in targets(n, at) {
                        write_at(file, &bytes, offset).map_err(FileError::io(&row.path))?;
                    }
                }
            }
        }
        Ok(sums.into_iter().map(|(left_out, all)| if all > 0.0 { (left_out / all).sqrt() } else { 0.0 }).collect())
    }

    /// Brings the rank in a folder's configuration up to date.
    pub(super) fn rewrite_config(&self, folder: &Path) -> std::io::Result<()> {
        let Some((rank, alpha)) = self.products.as_ref().and_then(|products| products.config) else { return Ok(()) };
        let path = folder.join(CONFIG);
        let alpha = if alpha.fract() == 0.0 { (alpha as i64).into() } else { alpha.into() };
        let text = with_rank(&std::fs::read(&path)?, rank.into(), alpha)?;
        std::fs::write(path, text)
    }
}

/// An adapter's configuration with another rank and scale.
fn with_rank(config: &[u8], rank: Value, alpha: Value) -> serde_json::Result<String> {
    let mut config: Value = serde_json::from_slice(config)?;
    config["r"] = rank;
    config["lora_alpha"] = alpha;
    Ok(serde_json::to_string_pretty(&config)? + "\n")
}

/// Whether a configuration is another one as [`Series::rewrite_config`] leaves it.
pub(super) fn is_rewritten(config: &[u8], from: &[u8]) -> bool {
    let Ok(own) = serde_json::from_slice::<Value>(config) else { return false };
    with_rank(from, own["r"].clone(), own["lora_alpha"].clone()).is_ok_and(|text| text.as_bytes() == config)
}

/// Thin factors of a module's two stacks: all strengths share them.
struct Factors {
    left: (Mat<f64>, Mat<f64>),
    right: (Mat<f64>, Mat<f64>),
}

/// A product of the rank asked for, row-major, and squared norms.
struct Cut {
    a: Vec<f64>,
    b: Vec<f64>,
    left_out: f64,
    all: f64,
}

impl Factors {
    fn read(series: &Series, pair: &Pair) -> Result<Self> {
        let (r, count) = (pair.rank, series.places.len());
        let (a, b) = (&pair.from.0, &pair.from.1);
        let (rows, columns) = (b.shape[0], a.shape[1..].iter().product::<usize>());
        let mut left = Mat::zeros(rows, r * count);
        let mut right = Mat::zeros(columns, r * count);
        for k in 0..count {
            let values = read(series, k, pair.b, b)?;
            for (i, row) in values.chunks(r).enumerate() {
                row.iter().enumerate().for_each(|(j, &value)| left[(i, k * r + j)] = value);
            }
            let values = read(series, k, pair.a, a)?;
            for (j, row) in values.chunks(columns).enumerate() {
                row.iter().enumerate().for_each(|(i, &value)| right[(i, k * r + j)] = value);
            }
        }
        let thin = |stack: Mat<f64>| {
            let qr = stack.qr();
            (qr.compute_thin_Q(), qr.thin_R().to_owned())
        };
        Ok(Self { left: thin(left), right: thin(right) })
    }

    fn cut(&self, weights: &[f64], pair: &Pair) -> Result<Cut> {
        let mut weighted = self.left.1.clone();
        for j in 0..weighted.ncols() {
            let weight = weights[j / pair.rank];
            weighted.col_mut(j).iter_mut().for_each(|value| *value *= weight);
        }
        let core = &weighted * self.right.1.transpose();
        let svd = core.thin_svd().map_err(|_| {
            CheckpointError::Setting(format!(
                "{}: the singular values of its products were not found",
                pair.from.0.name
            ))
        })?;
        let values: Vec<f64> = svd.S().column_vector().iter().copied().collect();
        let norm = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>();
        let kept = pair.kept.min(values.len());
        // Both factors get the root of each singular value; ranks beyond what there is stay 0.
        let scaled = |q: &Mat<f64>, vectors: faer::MatRef<'_, f64>| {
            let mut product = q * vectors.subcols(0, kept);
            for (j, value) in values.iter().take(kept).enumerate() {
                product.col_mut(j).iter_mut().for_each(|entry| *entry *= value.sqrt());
            }
            product
        };
        let (b, a) = (scaled(&self.left.0, svd.U()), scaled(&self.right.0, svd.V()));
        let at = |matrix: &Mat<f64>, i: usize, j: usize| if j < kept { matrix[(i, j)] } else { 0.0 };
        Ok(Cut {
            a: (0..pair.kept).flat_map(|j| (0..a.nrows()).map(move |i| (i, j))).map(|(i, j)| at(&a, i, j)).collect(),
            b: (0..b.nrows()).flat_map(|i| (0..pair.kept).map(move |j| (i, j))).map(|(i, j)| at(&b, i, j)).collect(),
            left_out: norm(&values[kept..]),
            all: norm(&values),
        })
    }
}

/// A factor of one checkpoint.
fn read(series: &Series, k: usize, at: usize, tensor: &Tensor) -> Result<Vec<f64>> {
    let (files, place) = (&series.files[k], &series.places[k][at]);
    let mut reader = Copier::default();
    let own = if k == 0 { series.start_of(at) } else { None };
    let bytes = reader.chunk(
        files,
        place,
        own.as_ref().unwrap_or(tensor),
        0,
        tensor.len() as usize,
        safetensors::Dtype::F64,
    )?;
    let values: Vec<f64> = bytes.as_chunks().0.iter().map(|&bits| f64::from_le_bytes(bits)).collect();
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(values),
        Some(position) => Err(CheckpointError::NotFinite {
            path: files[place.file as usize].path().into(),
            name: tensor.name.clone(),
            value: values[position],
            position: position as u64,
        }),
    }
}
