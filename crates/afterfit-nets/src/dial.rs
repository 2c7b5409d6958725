//! The dial on the device that trains: every iterate enters the sums of all nodes, a block of them at a time.

use std::path::Path;

use afterfit::dial::{Nodes, Part, mix};
use afterfit::scheme::{Answer, Decay, PathInfo, RateRun, Recurrence};
use anyhow::{Result, ensure};
use tch::{Device, Kind, Tensor};

use crate::model::Model;

/// Sums `Σ p_k (w_k − c)` at Chebyshev nodes of ln λ, in f32. Memory: a vector of all weights for each node, for each
/// iterate of a block, and two more.
#[derive(Debug)]
pub struct Dial {
    nodes: Nodes,
    recurrence: Recurrence,
    center: Tensor,
    sums: Tensor,
    /// Iterates not yet in the sums, centred.
    block: Tensor,
    /// Their shares, by node.
    shares: Vec<Vec<f32>>,
    waiting: i64,
    masses: Vec<f64>,
    runs: Vec<RateRun>,
    decays: Vec<Decay>,
    reach: Tensor,
}

/// What must be kept to go on later.
#[derive(Debug)]
pub struct Saved {
    /// c.
    pub center: Tensor,
    /// The sums, a row a node.
    pub sums: Tensor,
    /// The rates so far.
    pub runs: Vec<RateRun>,
    /// The farthest any weight moved.
    pub reach: f64,
}

impl Dial {
    /// A dial around `center`, the weights before the next step.
    #[must_use]
    pub fn new(nodes: Nodes, recurrence: Recurrence, center: &Tensor) -> Self {
        let count = nodes.l2().len();
        let (length, device) = (center.size()[0], center.device());
        // Larger blocks read and write the sums less often.
        let block = if device.is_cuda() { 32 } else { 8 };
        let zeros = |rows: i64| Tensor::zeros([rows, length], (Kind::Float, device));
        Self {
            recurrence,
            center: center.copy(),
            sums: zeros(count as i64),
            block: zeros(block),
            shares: vec![Vec::new(); count],
            waiting: 0,
            masses: vec![1.0; count],
            runs: Vec::new(),
            decays: Vec::new(),
            reach: Tensor::zeros([], (Kind::Float, device)),
            nodes,
        }
    }

    /// Goes on with a dial that was kept.
    pub fn resume(nodes: Nodes, recurrence: Recurrence, saved: Saved) -> Result<Self> {
        let mut dial = Self::new(nodes, recurrence, &saved.center);
        ensure!(
            dial.sums.size() == saved.sums.size(),
            "a dial of {:?} sums, not {:?}",
            saved.sums.size(),
            dial.sums.size()
        );
        dial.sums = saved.sums;
        let _ = dial.reach.fill_(saved.reach);
        // The same products in the same order as while training: the masses are the same bits.
        for run in &saved.runs {
            for _ in 0..run.steps {
                dial.spend(run.rate);
            }
        }
        dial.shares.iter_mut().for_each(Vec::clear);
        Ok(dial)
    }

    /// Takes in `w_k` and the rate of the step that leaves it.
    pub fn push(&mut self, weights: &Tensor, rate: f64) {
        let _ = weights.sub_out(&self.block.get(self.waiting), &self.center);
        self.spend(rate);
        self.waiting += 1;
        if self.waiting == self.block.size()[0] {
            self.flush();
        }
    }

    /// The share of every node's mass that a step with this rate spends.
    fn spend(&mut self, rate: f64) {
        let step: u64 = self.steps();
        match self.runs.last_mut() {
            Some(run) if run.rate == rate => run.steps += 1,
            _ => {
                self.runs.push(RateRun { steps: 1, rate });
                self.decays.clear();
            }
        }
        if self.decays.is_empty() {
            self.decays = self.nodes.l2().iter().map(|&l2| self.recurrence.decay(l2, rate, step)).collect();
        }
        for ((mass, decay), shares) in self.masses.iter_mut().zip(&self.decays).zip(&mut self.shares) {
            shares.push((*mass * decay.spend) as f32);
            *mass *= decay.keep;
        }
    }

    /// Brings waiting iterates into the sums: one product of nodes × block and block × weights.
    pub fn flush(&mut self) {
        if self.waiting == 0 {
            return;
        }
        let flat: Vec<f32> = self.shares.iter().flatten().copied().collect();
        let shares = Tensor::from_slice(&flat).view([self.shares.len() as i64, self.waiting]);
        let block = self.block.narrow(0, 0, self.waiting);
        let _ = self.sums.addmm_(&shares.to_device(self.center.device()), &block);
        let (low, high) = block.view([-1]).aminmax(None, false);
        self.reach = self.reach.maximum(&high).maximum(&-low);
        self.shares.iter_mut().for_each(Vec::clear);
        self.waiting = 0;
    }

    /// Steps taken in.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.runs.iter().map(|run| run.steps).sum()
    }

    /// What to keep to go on later.
    pub fn saved(&mut self) -> Saved {
        self.flush();
        Saved {
            center: self.center.shallow_clone(),
            sums: self.sums.shallow_clone(),
            runs: self.runs.clone(),
            reach: self.reach.double_value(&[]),
        }
    }

    /// The nodes.
    #[must_use]
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// How the path was made, for its certificates.
    #[must_use]
    pub fn path_info(&self) -> PathInfo {
        PathInfo::of_network(self.recurrence, &self.runs)
    }

    /// The weights at any λ of the range when training has come to `last`, and R(λ), the mass no step has spent.
    pub fn read(&mut self, last: &Tensor, l2: f64, answer: Answer) -> Result<(Tensor, f64)> {
        self.flush();
        let mix = mix(&self.nodes, self.recurrence, &self.runs, l2, answer)?;
        let nodes: Vec<f32> = mix.nodes.iter().map(|&value| value as f32).collect();
        let moved = self.sums.tr().mv(&Tensor::from_slice(&nodes).to_device(self.center.device()));
        Ok((&self.center + (moved + (last - &self.center) * mix.last), mix.remaining))
    }

    /// Writes the file that `afterfit dial read` reads, when training has come to `model`, with its statistics beside the sums.
    pub fn write(&mut self, path: &Path, model: &Model, remarks: Vec<String>) -> Result<()> {
        self.flush();
        let part =
            |name: String, shape: &[i64]| Part { name, shape: shape.iter().map(|&length| length as usize).collect() };
        let (layout, net) = (&model.layout, &model.layout.net);
        let parts: Vec<Part> = net.slots.iter().map(|slot| part(slot.name.clone(), &slot.shape)).collect();
        let copied: Vec<Part> = net
            .statistics
            .iter()
            .flat_map(|statistic| statistic.names().map(|name| part(name, &[statistic.width])))
            .collect();
        let description = afterfit::checkpoint::LiveDial {
            nodes: &self.nodes,
            recurrence: self.recurrence,
            runs: &self.runs,
            reach: self.reach.double_value(&[]),
            parts,
            copied,
            remarks,
        };
        let host = |tensor: &Tensor| -> std::io::Result<Vec<f32>> {
            let tensor = tensor.to_device(Device::Cpu).contiguous().view(-1);
            Vec::<f32>::try_from(tensor).map_err(|error| std::io::Error::other(error.to_string()))
        };
        let running = layout.statistics(&model.statistics);
        description.write(path, &mut |group, at| match group {
            None if at % 2 == 0 => host(&running[at / 2].0),
            None => host(&running[at / 2].1),
            Some(0) => host(&layout.view(&self.center, at)),
            Some(1) => host(&layout.view(&model.weights, at)),
            Some(node) => host(&layout.view(&self.sums.get(node as i64 - 2), at)),
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks that fill up, one that does not, and a rate that changes inside a block, against plain sums in f64.
    #[test]
    fn blocks_are_the_plain_sums() {
        tch::manual_seed(4);
        let iterates: Vec<Tensor> = (0..22).map(|_| Tensor::rand([5], (Kind::Float, Device::Cpu)) - 0.5).collect();
        let rate = |step: usize| if step < 11 { 0.3 } else { 0.03 };
        let nodes = Nodes::new(1e-2, 1.0, 4).expect("nodes");
        let mut dial = Dial::new(nodes.clone(), Recurrence::Descent, &iterates[0]);
        for (step, iterate) in iterates[..21].iter().enumerate() {
            dial.push(iterate, rate(step));
        }
        assert_eq!(dial.steps(), 21);
        assert_eq!(dial.path_info().rates, (0..21).map(rate).collect::<Vec<_>>());
        for answer in [Answer::Regularized, Answer::Normalized] {
            for &l2 in nodes.l2() {
                let mut sum = Tensor::zeros([5], (Kind::Double, Device::Cpu));
                let (mut remaining, mut spent) = (1.0, 0.0);
                for (step, iterate) in iterates[..21].iter().enumerate() {
                    let decay = Recurrence::Descent.decay(l2, rate(step), step as u64);
                    sum += iterate.to_kind(Kind::Double) * (remaining * decay.spend);
                    spent += remaining * decay.spend;
                    remaining *= decay.keep;
                }
                let expected = match answer {
                    Answer::Regularized => sum + iterates[21].to_kind(Kind::Double) * remaining,
                    Answer::Normalized => sum / spent,
                };
                let (read, left) = dial.read(&iterates[21], l2, answer).expect("a reading");
                let off = (read.to_kind(Kind::Double) - expected).abs().max().double_value(&[]);
                assert!(off < 1e-6 && (left - remaining).abs() < 1e-12, "{answer:?} at {l2}: off by {off:e}");
            }
        }
    }
}
