//! Averages of adapters: exactly the average of the products they stand for.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use afterfit::checkpoint::{Average, Series};
use afterfit::files::safetensors::write_safetensors;
use rand::RngExt;
use safetensors::Dtype;

use crate::checkpoints::{PLAIN, numbers};
use crate::common::rng;

const RANK: usize = 2;

/// Shapes of A and B: a linear map, an embedding, a convolution.
fn modules() -> [(&'static str, &'static str, Vec<usize>, Vec<usize>); 3] {
    [
        ("q.lora_A.weight", "q.lora_B.weight", vec![RANK, 7], vec![9, RANK]),
        ("e.lora_embedding_A", "e.lora_embedding_B", vec![RANK, 11], vec![5, RANK]),
        ("c.lora_A.weight", "c.lora_B.weight", vec![RANK, 3, 2, 2], vec![6, RANK, 1, 1]),
    ]
}

fn adapters(folder: &Path, count: usize, config: &str) -> Vec<PathBuf> {
    let mut random = rng(5);
    (0..count)
        .map(|k| {
            let path = folder.join(format!("checkpoint-{k}"));
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("adapter_config.json"), config).unwrap();
            let shapes = modules().into_iter().flat_map(|(a, b, of_a, of_b)| [(a, of_a), (b, of_b)]);
            let tensors: Vec<_> = shapes
                .chain([("head.weight", vec![4])])
                .map(|(name, shape)| (name.to_owned(), Dtype::F32, shape))
                .collect();
            write_safetensors(&path.join("adapter_model.safetensors"), &tensors, &BTreeMap::new(), &mut |at, file| {
                let count: usize = tensors[at].2.iter().product();
                (0..count).try_for_each(|_| file.write_all(&(random.random::<f32>() - 0.5).to_le_bytes()))
            })
            .unwrap();
            path
        })
        .collect()
}

/// B·A of a module, row by row.
fn product(file: &Path, names: (&str, &str)) -> Vec<f64> {
    let found = numbers(file);
    let (a, b) = (&found[names.0], &found[names.1]);
    let rank = a.1[0];
    let columns = a.2.len() / rank;
    let entry = |i: usize, j: usize| (0..rank).map(|k| b.2[i * rank + k] * a.2[k * columns + j]).sum();
    (0..b.1[0]).flat_map(|i| (0..columns).map(move |j| (i, j))).map(|(i, j)| entry(i, j)).collect()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

#[test]
fn products_are_averaged_and_what_the_rank_cuts_off_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let inputs = adapters(folder.path(), 3, r#"{"r": 2, "lora_alpha": 8, "peft_type": "LORA"}"#);
    let file = |path: &Path| path.join("adapter_model.safetensors");
    // Negative weights are allowed; several outputs share one pass.
    let weights = [vec![0.2, 0.3, 0.5], vec![1.5, -1.0, 0.5]];
    for rank in [None, Some(1), Some(5), Some(6)] {
        let mut series = Series::open(&inputs, None, &[]).unwrap();
        assert_eq!(series.adapters(), 3);
        // (5 is the most that the embedding can have.)
        if let Err(error) = series.average_products(rank) {
            assert!(rank == Some(6) && error.to_string().contains("more than the 5"), "{error}");
            continue;
        }
        let average = |n: usize| Average {
            path: folder.path().join(format!("out-{n}-{rank:?}")),
            weights: vec![weights[n].clone()],
            record: "{}".into(),
        };
        let averages = [average(0), average(1)];
        let report = series.write(&averages, &PLAIN, &|_| {}).unwrap();
        for (n, average) in averages.iter().enumerate() {
            let (mut off, mut all) = (0.0, 0.0);
            for (a, b, ..) in modules() {
                let each: Vec<Vec<f64>> = inputs.iter().map(|input| product(&file(input), (a, b))).collect();
                let expected: Vec<f64> = (0..each[0].len())
                    .map(|at| weights[n].iter().zip(&each).map(|(weight, product)| weight * product[at]).sum())
                    .collect();
                off += distance(&product(&file(&average.path), (a, b)), &expected);
                all += distance(&expected, &vec![0.0; expected.len()]);
                assert_eq!(numbers(&file(&average.path))[a].1[0], rank.unwrap_or(RANK));
            }
            let (found, said) = ((off / all).sqrt(), report.lora_errors[n]);
            // Factors are rounded to f32.
            assert!((found - said).abs() < 1e-6, "rank {rank:?}: {found} instead of {said}");
            assert!(if rank == Some(5) { said < 0.5 } else { said > 0.01 }, "rank {rank:?}: {said}");
            let head = |path: &Path| numbers(&file(path))["head.weight"].2.clone();
            let mean: f64 = weights[n].iter().zip(&inputs).map(|(weight, input)| weight * head(input)[0]).sum();
            assert!((head(&average.path)[0] - mean).abs() < 1e-6, "other tensors are averaged as ever");
            // α/r stays what it was: 4.
            let config = std::fs::read(average.path.join("adapter_config.json")).unwrap();
            let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
            let r = rank.unwrap_or(RANK);
            assert_eq!((config["r"].as_u64(), config["lora_alpha"].as_f64()), (Some(r as u64), Some(4.0 * r as f64)));
        }
    }
}

#[test]
fn a_rank_that_holds_everything_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let inputs = adapters(folder.path(), 2, r#"{"r": 2, "lora_alpha": 8, "use_rslora": true}"#);
    let mut series = Series::open(&inputs, None, &[]).unwrap();
    series.average_products(Some(4)).unwrap();
    let path = folder.path().join("out");
    let average = Average { path: path.clone(), weights: vec![vec![0.5, 0.5]], record: "{}".into() };
    let report = series.write(&[average], &PLAIN, &|_| {}).unwrap();
    assert!(report.lora_errors[0] < 1e-12, "{:?}", report.lora_errors);
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(path.join("adapter_config.json")).unwrap()).unwrap();
    // α/√r stays what it was.
    assert!((config["lora_alpha"].as_f64().unwrap() / 2.0 - 8.0 / 2.0_f64.sqrt()).abs() < 1e-12);
}

#[test]
fn adapters_that_do_not_allow_it_are_refused() {
    let refused = |config: &str, rank: Option<usize>, words: &str| {
        let folder = tempfile::tempdir().unwrap();
        let inputs = adapters(folder.path(), 2, config);
        if words.contains("otherwise") {
            std::fs::write(inputs[0].join("adapter_config.json"), r#"{"r": 2, "lora_alpha": 16}"#).unwrap();
        }
        let mut series = Series::open(&inputs, None, &[]).unwrap();
        let error = series.average_products(rank).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    refused(r#"{"r": 2, "lora_alpha": 8}"#, None, "scales its product otherwise");
    refused(r#"{"r": 2, "lora_alpha": 8, "rank_pattern": {"q": 2}}"#, Some(3), "rank_pattern");
    refused("not json", Some(3), "there is none beside the adapter");
    let plain = crate::checkpoints::files("plain");
    let error = Series::open(&plain, None, &[]).unwrap().average_products(None).unwrap_err().to_string();
    assert!(error.contains("there are no adapters"), "{error}");
}
