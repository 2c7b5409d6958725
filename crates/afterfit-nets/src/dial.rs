//! The dial on the device that trains: every iterate enters the sums of all nodes, a block of them at a time.

use std::collections::BTreeMap;
use std::path::Path;

use afterfit::dial::{Beside, DialDraft, Part, Reading};
use afterfit::files::dial_file::Copy;
use afterfit::sums::{NotFinite, Sums};
use afterfit::tracker::{Precision, Rounding};
use afterfit::{Answer, Combination, Nodes, PathInfo, Rates, Target, Tracker};
use anyhow::{Result, ensure};
use safetensors::Dtype;
use tch::{Device, Kind, Tensor};

use crate::model::Model;

/// Sums `Σ p_k (w_k − c)` on a device, in f32. Memory: a vector of all weights for each sum, for each iterate of a block, and
/// three more.
#[derive(Debug)]
pub struct TensorSums {
    center: Tensor,
    sums: Tensor,
    last: Tensor,
    /// Iterates not yet in the sums, centered.
    block: Tensor,
    /// Their shares, by sum.
    shares: Vec<Vec<f64>>,
    /// What the sums are multiplied with before. (Products of many decays near 1: in f32 they would be off.)
    scales: Vec<f64>,
    waiting: i64,
    reach: Tensor,
}

impl TensorSums {
    /// `count` sums around `center`.
    #[must_use]
    pub fn new(center: &Tensor, count: usize) -> Self {
        let (length, device) = (center.size()[0], center.device());
        // Larger blocks read and write the sums less often.
        let block = if device.is_cuda() { 32 } else { 8 };
        let zeros = |rows: i64| Tensor::zeros([rows, length], (Kind::Float, device));
        Self {
            center: center.copy(),
            sums: zeros(count as i64),
            last: center.copy(),
            block: zeros(block),
            shares: vec![Vec::new(); count],
            scales: vec![1.0; count],
            waiting: 0,
            reach: Tensor::zeros([], (Kind::Float, device)),
        }
    }

    /// Brings waiting iterates into the sums: one product of sums × block and block × weights.
    pub fn flush(&mut self) {
        if self.waiting == 0 {
            return;
        }
        let device = self.center.device();
        if self.scales.iter().any(|&scale| scale != 1.0) {
            let scales: Vec<f32> = self.scales.iter().map(|&scale| scale as f32).collect();
            let _ = self.sums.g_mul_(&Tensor::from_slice(&scales).to_device(device).unsqueeze(1));
            self.scales.fill(1.0);
        }
        let flat: Vec<f32> = self.shares.iter().flatten().map(|&share| share as f32).collect();
        let shares = Tensor::from_slice(&flat).view([self.shares.len() as i64, self.waiting]);
        let block = self.block.narrow(0, 0, self.waiting);
        let _ = self.sums.addmm_(&shares.to_device(device), &block);
        let (low, high) = block.view([-1]).aminmax(None, false);
        self.reach = self.reach.maximum(&high).maximum(&-low);
        self.shares.iter_mut().for_each(Vec::clear);
        self.waiting = 0;
    }
}

impl Sums for TensorSums {
    type Vector = Tensor;
    type Model = Tensor;

    /// (Whether weights are finite is looked at once an epoch: asking here would wait for the device.)
    fn stage(&mut self, weights: &Tensor) -> Result<(), NotFinite> {
        if self.waiting == self.block.size()[0] {
            self.flush();
        }
        let _ = weights.sub_out(&self.block.get(self.waiting), &self.center);
        Ok(())
    }

    fn add(&mut self, shares: &[f64], scales: &[f64]) {
        for ((row, scale), (&share, &by)) in self.shares.iter_mut().zip(&mut self.scales).zip(shares.iter().zip(scales))
        {
            if by != 1.0 {
                row.iter_mut().for_each(|share| *share *= by);
                *scale *= by;
            }
            row.push(share);
        }
        self.waiting += 1;
        if self.waiting == self.block.size()[0] {
            self.flush();
        }
    }

    fn finish(&mut self, weights: &Tensor) -> Result<(), NotFinite> {
        self.last.copy_(weights);
        Ok(())
    }

    fn combine(&mut self, mix: &Combination) -> Tensor {
        self.flush();
        let nodes: Vec<f32> = mix.sums.iter().map(|&value| value as f32).collect();
        let moved = self.sums.tr().mv(&Tensor::from_slice(&nodes).to_device(self.center.device()));
        &self.center + (moved + (&self.last - &self.center) * mix.last)
    }

    fn reach(&mut self) -> f64 {
        self.flush();
        self.reach.double_value(&[])
    }

    fn rounding(&self) -> Rounding {
        Rounding { precision: Precision::F32, block: self.block.size()[0] as u64 }
    }
}

/// The dial of a run whose rates are known beforehand.
#[derive(Debug)]
pub struct Dial(afterfit::dial::Dial<TensorSums>);

/// What must be kept to go on later.
#[derive(Debug)]
pub struct Saved {
    /// c.
    pub center: Tensor,
    /// The sums, a row a node.
    pub sums: Tensor,
    /// The rates so far.
    pub rates: Rates,
    /// What is left of every node's mass.
    pub masses: Vec<f64>,
    /// The farthest any weight moved.
    pub reach: f64,
}

impl Dial {
    /// A dial around `center`, the weights before the next step, of a run whose steps to come are those of `path`: with
    /// momentum its sums are then exact under any schedule.
    pub fn new(nodes: Nodes, path: &PathInfo, center: &Tensor) -> Result<Self> {
        let tracker = Self::tracker_of(nodes, path)?;
        let sums = TensorSums::new(center, tracker.sums());
        Ok(Self(afterfit::dial::Dial::of(tracker, vec![sums])))
    }

    fn tracker_of(nodes: Nodes, path: &PathInfo) -> Result<Tracker> {
        let mut tracker = Tracker::new(vec![nodes], path)?;
        tracker.declare(std::slice::from_ref(path))?;
        Ok(tracker)
    }

    /// Resumes a dial that was kept.
    pub fn resume(nodes: Nodes, path: &PathInfo, saved: Saved) -> Result<Self> {
        let so_far = PathInfo { rates: saved.rates, ..path.clone() };
        let tracker = Self::tracker_of(nodes, path)?.resume(vec![so_far], vec![saved.masses])?;
        let mut sums = TensorSums::new(&saved.center, tracker.sums());
        let (found, expected) = (saved.sums.size(), sums.sums.size());
        ensure!(found == expected, "a dial of {found:?} sums, not {expected:?}");
        sums.sums = saved.sums;
        let _ = sums.reach.fill_(saved.reach);
        Ok(Self(afterfit::dial::Dial::of(tracker, vec![sums])))
    }

    /// Takes in `w_k` and the rate of the step that leaves it.
    pub fn push(&mut self, weights: &Tensor, rate: f64) -> Result<()> {
        Ok(self.0.push_each(&[weights], &[rate.into()])?)
    }

    /// Brings waiting iterates into the sums.
    pub fn flush(&mut self) {
        self.0.sums_mut()[0].flush();
    }

    /// What it knows besides its sums.
    #[must_use]
    pub fn tracker(&self) -> &Tracker {
        self.0.tracker()
    }

    /// The nodes.
    #[must_use]
    pub fn nodes(&self) -> &Nodes {
        &self.tracker().nodes()[0]
    }

    /// What to keep to go on later.
    pub fn saved(&mut self) -> Saved {
        let (rates, masses) = (self.tracker().paths()[0].rates.clone(), self.tracker().masses().concat());
        let sums = &mut self.0.sums_mut()[0];
        let reach = sums.reach();
        Saved { center: sums.center.shallow_clone(), sums: sums.sums.shallow_clone(), rates, masses, reach }
    }

    /// The weights at any λ of the range when training has come to `last`.
    pub fn read(&mut self, last: &Tensor, l2: f64, answer: Answer) -> Result<Reading<Tensor>> {
        self.0.finish_each(&[last])?;
        let Reading { mut weights, certificate, error, remaining, status } =
            self.0.read_each(&Target::L2(l2), answer)?;
        Ok(Reading { weights: weights.remove(0), certificate, error, remaining, status })
    }

    /// Writes the file that `afterfit dial read` reads, when training has come to `model`, with its statistics beside the sums.
    pub fn write(&mut self, path: &Path, model: &Model, remarks: &[String]) -> Result<()> {
        let shape = |shape: &[i64]| shape.iter().map(|&length| length as usize).collect::<Vec<usize>>();
        let (layout, net) = (&model.layout, &model.layout.net);
        let part = |name: &str, of: &[i64]| Part { dtype: "f32".into(), ..Part::new(name, shape(of)) };
        let parts: Vec<Part> = net.slots.iter().map(|slot| part(&slot.name, &slot.shape)).collect();
        let names = net.statistics.iter().flat_map(|statistic| statistic.names().map(|name| (name, statistic.width)));
        let copied: Vec<_> = names.map(|(name, width)| (name, Dtype::F32, shape(&[width]))).collect();
        let source = serde_json::json!({ "remarks": remarks });
        let beside = Beside { other: BTreeMap::from([("source".into(), source)]), ..Beside::default() };
        let count = parts.len();
        let rounding = self.0.sums_mut()[0].rounding();
        let draft = DialDraft::create(path, self.tracker(), rounding, parts, &copied, beside)?;
        let host = |tensor: &Tensor| -> Result<Vec<f32>> {
            Ok(Vec::<f32>::try_from(tensor.to_device(Device::Cpu).contiguous().view(-1))?)
        };
        let sums = &mut self.0.sums_mut()[0];
        let reach = sums.reach();
        let write = |copy: Copy, whole: &Tensor| -> Result<()> {
            for at in 0..count {
                let values: Vec<f64> = host(&layout.view(whole, at))?.into_iter().map(f64::from).collect();
                draft.write(copy, at, &values)?;
            }
            Ok(())
        };
        write(Copy::Center, &sums.center)?;
        write(Copy::Last, &model.weights)?;
        for node in 0..sums.sums.size()[0] {
            write(Copy::Sum(node as usize), &sums.sums.get(node))?;
        }
        for (at, (mean, variance)) in layout.statistics(&model.statistics).iter().enumerate() {
            for (side, statistic) in [mean, variance].into_iter().enumerate() {
                let bytes: Vec<u8> = host(statistic)?.iter().flat_map(|value| value.to_le_bytes()).collect();
                draft.write_copied(2 * at + side, &bytes)?;
            }
        }
        draft.finish(vec![reach])?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use afterfit::{Family, GroupMasses, Optimizer};

    use super::*;

    /// Blocks that fill up, one that does not, and a rate that changes inside a block, against plain sums in f64: for λ with and
    /// without momentum, and for an EMA beside it, whose sums decay.
    #[test]
    fn blocks_are_the_plain_sums() {
        tch::manual_seed(4);
        let iterates: Vec<Tensor> = (0..22).map(|_| Tensor::rand([5], (Kind::Float, Device::Cpu)) - 0.5).collect();
        let rates: Rates = (0..21).map(|step| if step < 11 { 0.3 } else { 0.03 }).collect();
        for optimizer in [Optimizer::Sgd, Optimizer::HeavyBall { momentum: 0.8, dampening: 0.0 }] {
            let path = PathInfo::new(optimizer, rates.clone());
            let nodes =
                vec![Nodes::new(1e-2, 1.0, 4).expect("nodes"), Nodes::of(Family::Ema, 2.0, 50.0, 3).expect("nodes")];
            let mut tracker =
                Tracker::with_groups(nodes.clone(), std::slice::from_ref(&path), GroupMasses::One).expect("a tracker");
            tracker.declare(std::slice::from_ref(&path)).expect("a schedule");
            let sums = TensorSums::new(&iterates[0], 7);
            let mut dial = Dial(afterfit::dial::Dial::of(tracker, vec![sums]));
            for (iterate, rate) in iterates[..21].iter().zip(rates.iter()) {
                dial.push(iterate, rate).expect("a step");
            }
            assert_eq!(dial.tracker().paths()[0].rates, rates);
            let average = |weights: &[f64]| {
                let mut sum = Tensor::zeros([5], (Kind::Double, Device::Cpu));
                for (iterate, &weight) in iterates.iter().zip(weights) {
                    sum += iterate.to_kind(Kind::Double) * weight;
                }
                sum
            };
            let off = |read: &Tensor, expected: &Tensor| {
                (read.to_kind(Kind::Double) - expected).abs().max().double_value(&[])
            };
            for answer in [Answer::Regularized, Answer::Normalized] {
                for &l2 in nodes[0].values() {
                    let expected = average(&path.weights(l2, answer).expect("weights"));
                    let read = dial.read(&iterates[21], l2, answer).expect("a reading");
                    let off = off(&read.weights, &expected);
                    assert!(off < 1e-6 && off <= read.error, "{answer:?} at {l2}: off by {off:e}");
                }
            }
            for &time in nodes[1].values() {
                let decay = 1.0 - 1.0 / time;
                let weight = |k: i32| if k == 0 { decay.powi(21) } else { (1.0 - decay) * decay.powi(21 - k) };
                let expected = average(&(0..22).map(weight).collect::<Vec<f64>>());
                let read = dial.0.read_each(&Target::Ema(decay), Answer::Regularized).expect("a reading");
                assert!(off(&read.weights[0], &expected) < 1e-6, "EMA {decay}");
            }
        }
    }
}
