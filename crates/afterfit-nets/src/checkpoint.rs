//! Checkpoints of a run: safetensors by torchvision's names, with rate and step in the metadata.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use afterfit::checkpoint::Checkpoint;
use afterfit::files::safetensors::{write_f32, write_safetensors};
use anyhow::{Context, Result, ensure};
use safetensors::Dtype;
use tch::{Device, Tensor};

use crate::model::Model;

/// `epoch-0061.safetensors`.
#[must_use]
pub fn path(folder: &Path, epoch: u64) -> PathBuf {
    folder.join(format!("epoch-{epoch:04}.safetensors"))
}

/// A model's numbers in main memory, on their way to a file.
#[derive(Debug)]
pub struct Snapshot {
    tensors: Vec<(String, Dtype, Vec<usize>)>,
    values: Vec<f32>,
    metadata: BTreeMap<String, String>,
}

impl Snapshot {
    /// Copies a model from its device. Memory: the model.
    pub fn of(model: &Model, metadata: BTreeMap<String, String>) -> Result<Self> {
        let net = &model.layout.net;
        let shape = |shape: &[i64]| shape.iter().map(|&length| length as usize).collect::<Vec<_>>();
        let mut tensors: Vec<_> =
            net.slots.iter().map(|slot| (slot.name.clone(), Dtype::F32, shape(&slot.shape))).collect();
        for statistic in &net.statistics {
            tensors.extend(statistic.names().map(|name| (name, Dtype::F32, shape(&[statistic.width]))));
        }
        let all = Tensor::cat(&[&model.layout.in_file_order(&model.weights), &model.statistics], 0);
        Ok(Self { tensors, values: Vec::try_from(all.to_device(Device::Cpu))?, metadata })
    }

    /// Writes the file, under another name first.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut rest: &[f32] = &self.values;
        write_safetensors(path, &self.tensors, &self.metadata, &mut |at, file: &mut dyn Write| {
            let (mine, others) = rest.split_at(self.tensors[at].2.iter().product());
            rest = others;
            write_f32(file, mine)
        })?;
        Ok(())
    }
}

/// Reads a checkpoint of any format `afterfit` knows into a model. Every tensor of the model must be there, in its shape.
pub fn load(model: &Model, path: &Path) -> Result<()> {
    let checkpoint = Checkpoint::open(path, None)?;
    let names = model.names();
    let mut missing = names.clone();
    for tensor in &checkpoint.tensors {
        if tensor.name.ends_with("num_batches_tracked") {
            continue;
        }
        ensure!(
            names.contains(&tensor.name),
            "{}: tensor {} is not one of this network's",
            path.display(),
            tensor.name
        );
        let shape: Vec<i64> = tensor.shape.iter().map(|&length| length as i64).collect();
        let values = Tensor::from_slice(&checkpoint.read_f32(tensor)?).view(&shape[..]);
        model.set(&tensor.name, &values).with_context(|| path.display().to_string())?;
        missing.retain(|name| *name != tensor.name);
    }
    ensure!(
        missing.is_empty(),
        "{}: {} of this network's tensors are not in it, such as {}",
        path.display(),
        missing.len(),
        missing[0]
    );
    Ok(())
}
