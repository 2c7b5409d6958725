//! Parameter groups: one mass for all, or a mass for each; what is exact, and what says that it is not.
#![allow(clippy::needless_range_loop, clippy::unwrap_used, missing_docs, unreachable_pub)]

mod common;

use afterfit_core::{Answer, GroupMasses, Groups, Optimizer, PathInfo, Rates, Reason, Standing};
use common::*;

fn heavy(momentum: f64) -> Optimizer {
    Optimizer::HeavyBall { momentum, dampening: 0.0 }
}

/// Two groups of three coordinates, each with its optimizer, rates and (Adam's) decay.
struct Two {
    runs: [Run; 2],
}

impl Two {
    fn new(first: (Optimizer, Vec<f64>), second: (Optimizer, Vec<f64>)) -> Self {
        Self { runs: [Run::new(first.0, first.1), Run::new(second.0, second.1)] }
    }

    fn groups(&self) -> Groups {
        Groups::new(self.runs.iter().map(Run::info).collect()).unwrap()
    }

    fn with(&self, masses: GroupMasses) -> Groups {
        Groups::with(self.runs.iter().map(Run::info).collect(), masses).unwrap()
    }

    /// Both groups on one loss.
    fn path(&self, quadratic: &Quadratic) -> Vec<V> {
        let (mut w, mut buffer) = (quadratic.c, [0.0; D]);
        let mut path = vec![w];
        let rows = [self.runs[0].rows(), self.runs[1].rows()];
        for k in 0..self.runs[0].rates.len() {
            let grad = quadratic.grad(&w);
            for i in 0..D {
                let run = &self.runs[i / 3];
                let (momentum, rate, gain) = rows[i / 3][k];
                let before = buffer[i];
                buffer[i] = momentum * before + gain * grad[i];
                let along = if run.is_nesterov() { grad[i] + momentum * buffer[i] } else { buffer[i] };
                let decay = match run.optimizer {
                    Optimizer::Adam { weight_decay, .. } => weight_decay * run.rates[k],
                    _ => 0.0,
                };
                w[i] -= rate * run.preconditioner(quadratic)[i] * along + decay * w[i];
            }
            path.push(w);
        }
        path
    }
}

/// Each group's coordinates averaged with the weights that the reading gives it.
fn averaged(groups: &Groups, path: &[V], l2: f64) -> V {
    let weights: Vec<Vec<f64>> =
        (0..2).map(|group| groups.path(group).weights(l2, Answer::Regularized).unwrap()).collect();
    let means = [average(&weights[0], path), average(&weights[1], path)];
    std::array::from_fn(|i| means[i / 3][i])
}

fn l2_of(groups: &Groups, l2: f64) -> V {
    std::array::from_fn(|i| groups.l2(i / 3, l2).unwrap())
}

const STEPS: usize = 4000;

#[test]
fn constant_rates_one_mass_any_mixture() {
    let quadratic = Quadratic::random(1);
    let l2 = 0.1;
    let mixtures = [
        (heavy(0.9), 0.05, heavy(0.5), 0.3),
        (heavy(0.9), 0.05, Optimizer::Nesterov { momentum: 0.5 }, 0.2),
        (Optimizer::Sgd, 0.5, heavy(0.9), 0.02),
        (Optimizer::Nesterov { momentum: 0.9 }, 0.1, Optimizer::Sgd, 0.7),
        (Optimizer::Sgd, 0.5, Optimizer::Sgd, 0.05),
    ];
    for (first, rate, second, other) in mixtures {
        let two = Two::new((first, vec![rate; STEPS]), (second, vec![other; STEPS]));
        let groups = two.groups();
        assert_eq!(groups.masses, GroupMasses::One, "{first:?} and {second:?}");
        assert_eq!(groups.status().standing, Standing::Exact);
        within("its own λ", (groups.l2(0, l2).unwrap() / l2 - 1.0).abs(), 1e-13);
        let path = two.path(&quadratic);
        let ridge = quadratic.ridge(&l2_of(&groups, l2), &[0.0; D]);
        let off = quadratic.relative(&averaged(&groups, &path, l2), &ridge);
        within(&format!("{first:?} and {second:?}"), off, 1e-12);
        let plain = quadratic.plain_ridge(l2);
        refuted("plain λ in both", quadratic.relative(&averaged(&groups, &path, l2), &plain), 1e-3);
    }
}

#[test]
fn proportional_schedules() {
    let quadratic = Quadratic::random(2);
    let (l2, shape) = (0.1, warm_cosine(STEPS, 100));
    for optimizer in [Optimizer::Sgd, heavy(0.9), Optimizer::Nesterov { momentum: 0.9 }] {
        let base = 0.9 * (1.0 - optimizer.momentum());
        let (rates, other) = (times(base, &shape), times(0.3 * base, &shape));
        let two = Two::new((optimizer, rates), (optimizer, other));
        let path = two.path(&quadratic);

        let one = two.groups();
        assert_eq!(one.masses, GroupMasses::One);
        assert_eq!(one.status().standing, Standing::Exact);
        within("λ·η_ref/η_g", (one.l2(1, l2).unwrap() - l2 / 0.3).abs(), 1e-12);
        let ridge = quadratic.ridge(&l2_of(&one, l2), &[0.0; D]);
        within("one mass", quadratic.relative(&averaged(&one, &path, l2), &ridge), 1e-12);

        // A mass each: group g of the ridge with λη_g/η_h on group h, and not plain ridge.
        let each = two.with(GroupMasses::Each);
        assert_eq!(each.status().standing, Standing::Approximation);
        assert_eq!(each.status().reason, Reason::Groups);
        assert_eq!(l2_of(&each, l2), [l2; D]);
        let mean = averaged(&each, &path, l2);
        let seen_from = |ratio: [f64; 2]| quadratic.ridge(&std::array::from_fn(|i| l2 * ratio[i / 3]), &[0.0; D]);
        let (first, second) = (seen_from([1.0, 1.0 / 0.3]), seen_from([0.3, 1.0]));
        (0..3).for_each(|i| within("first group", (mean[i] - first[i]).abs(), 1e-11));
        (3..6).for_each(|i| within("second group", (mean[i] - second[i]).abs(), 1e-11));
        refuted("plain ridge", quadratic.relative(&mean, &quadratic.plain_ridge(l2)), 1e-3);

        // Where groups do not interact, it is plain ridge.
        let mut apart = quadratic.clone();
        for i in 0..3 {
            (3..6).for_each(|j| (apart.h[i][j], apart.h[j][i]) = (0.0, 0.0));
        }
        let mean = averaged(&each, &two.path(&apart), l2);
        within("a mass each", apart.relative(&mean, &apart.plain_ridge(l2)), 1e-11);
    }
}

/// The identity of one optimizer, in every group, at every k.
#[test]
fn groups_equal_their_twins_at_every_step() {
    const STEPS: usize = 2000;
    let mut rng = Rng::new(7);
    let l2 = 0.1;
    for (case, optimizer) in [
        Optimizer::Sgd,
        heavy(0.9),
        Optimizer::HeavyBall { momentum: 0.9, dampening: 0.5 },
        Optimizer::Nesterov { momentum: 0.9 },
        Optimizer::Adam { beta1: 0.9, weight_decay: 0.0 },
    ]
    .into_iter()
    .enumerate()
    {
        let mut quadratic = Quadratic::random(20 + case as u64);
        let rates = rng.with_zeros(STEPS, 0.0, 0.05);
        // In proportion: one mass, and a preconditioner that scales the second group.
        let two = Two::new((optimizer, rates.clone()), (optimizer, times(0.3, &rates)));
        let groups = two.groups();
        assert_eq!(groups.masses, GroupMasses::One, "{optimizer:?}");
        let own = two.runs[0].preconditioner(&quadratic);
        let q = std::array::from_fn(|i| own[i] * if i < 3 { 1.0 } else { 0.3 });
        let decays: Vec<_> = groups.path(1).decays(l2).collect();
        let (_, carries) = look_ahead(l2, &two.runs[0].rows(), two.runs[0].is_nesterov(), 0.0);
        let scaled = preconditioned_twin(&quadratic, &two.runs[0], &q, l2, &decays, &carries);
        let path = two.path(&quadratic);
        let off = paths_apart(&running(&path, &decays, &quadratic.c), &scaled);
        within(&format!("{optimizer:?}, in proportion"), off, 1e-12 * size(&path));

        // Out of proportion, where groups do not interact: a mass each, and the twin of each group's own run.
        for i in 0..3 {
            (3..6).for_each(|j| (quadratic.h[i][j], quadratic.h[j][i]) = (0.0, 0.0));
        }
        let two = Two::new((optimizer, rates), (heavy(0.5), rng.with_zeros(STEPS, 0.0, 0.2)));
        let each = two.with(GroupMasses::Each);
        let path = two.path(&quadratic);
        for (group, run) in two.runs.iter().enumerate() {
            let decays: Vec<_> = each.path(group).decays(l2).collect();
            let (_, carries) = look_ahead(l2, &run.rows(), run.is_nesterov(), 0.0);
            let own = twin(&quadratic, run, l2, &decays, &carries);
            let averaged = running(&path, &decays, &quadratic.c);
            let coordinates = 3 * group..3 * group + 3;
            let apart = |(a, b): (&V, &V)| coordinates.clone().map(|i| (a[i] - b[i]).abs()).fold(0.0, f64::max);
            let off = averaged.iter().zip(&own).map(apart).fold(0.0, f64::max);
            within(&format!("{optimizer:?}, group {group} by itself"), off, 1e-12 * size(&path));
        }
    }
}

/// Adam's groups: one mass where the rates stay in proportion, a λ of its own norm in each.
#[test]
fn adam_groups() {
    let quadratic = Quadratic::random(3);
    let l2 = 0.1;
    let adam = Optimizer::Adam { beta1: 0.9, weight_decay: 0.0 };
    for shape in [vec![1.0; STEPS], warm_cosine(STEPS, 50)] {
        let two = Two::new((adam, times(0.4, &shape)), (adam, times(0.1, &shape)));
        let groups = two.groups();
        assert_eq!(groups.masses, GroupMasses::One);
        assert_eq!(groups.status().reason, Reason::SecondMoments, "Adam's standing is the worse one");
        within("λ·η_ref/η_g", (groups.l2(1, l2).unwrap() - 4.0 * l2).abs(), 1e-12);
        let l2s = l2_of(&groups, l2);
        let ridge = quadratic.ridge(&std::array::from_fn(|i| l2s[i] / quadratic.q[i]), &[0.0; D]);
        let off = quadratic.relative(&averaged(&groups, &two.path(&quadratic), l2), &ridge);
        within("adam", off, 1e-12);
    }
    // Weight decay in one group only, as is usual. Of spent mass the two readings differ by about δηβ1/(1−β1);
    // of mass that is not spent, a decay that takes much away over the run keeps its place beside λ: a mass each, unless it does not.
    let with = Optimizer::Adam { beta1: 0.9, weight_decay: 0.01 };
    let two = Two::new((adam, vec![0.1; 4000]), (with, vec![0.1; 4000]));
    assert_eq!(two.groups().masses, GroupMasses::Each);
    let path = two.path(&quadratic);
    let per_q: V = std::array::from_fn(|i| l2 / quadratic.q[i]);
    let decay: V = std::array::from_fn(|i| if i < 3 { 0.0 } else { 0.01 / quadratic.q[i] });
    for groups in [two.groups(), two.with(GroupMasses::One)] {
        let off = quadratic.relative(&averaged(&groups, &path, l2), &quadratic.ridge(&per_q, &decay));
        within("decay in one group", off, 0.01 * 0.1 * 9.0);
    }
    let little = Two::new((adam, vec![1e-4; 4000]), (with, vec![1e-4; 4000]));
    assert_eq!(little.groups().masses, GroupMasses::One, "δΣη = 0.004");
}

#[test]
fn where_nothing_is_exact_it_says_so() {
    let quadratic = Quadratic::random(4);
    let shape = warm_cosine(STEPS, 50);
    // Different momenta with a schedule.
    let two = Two::new((heavy(0.9), times(0.05, &shape)), (heavy(0.5), times(0.3, &shape)));
    let groups = two.groups();
    assert_eq!(groups.masses, GroupMasses::Each);
    assert_eq!((groups.status().standing, groups.status().reason), (Standing::Approximation, Reason::Groups));
    let one = two.with(GroupMasses::One);
    assert_eq!(one.status().reason, Reason::Groups);
    // Schedules out of proportion.
    let late: Vec<f64> = (0..STEPS).map(|k| if k < 20 { 0.0 } else { 0.05 }).collect();
    let two = Two::new((heavy(0.9), vec![0.05; STEPS]), (heavy(0.9), late));
    let groups = two.groups();
    assert_eq!((groups.masses, groups.status().reason), (GroupMasses::Each, Reason::Groups));
    let off = |groups: &Groups| {
        quadratic.relative(&averaged(groups, &two.path(&quadratic), 0.05), &quadratic.plain_ridge(0.05))
    };
    refuted("frozen at first, a mass each", off(&groups), 1e-2);
    refuted("frozen at first, one mass", off(&two.with(GroupMasses::One)), 1e-2);
    // Momenta that are given and differ.
    let mut paths: Vec<PathInfo> = two.runs.iter().map(Run::info).collect();
    paths[1].rates = paths[0].rates.clone();
    paths[1].momenta = Some(Rates::constant(0.5, STEPS as u64));
    let groups = Groups::new(paths).unwrap();
    assert_eq!((groups.masses, groups.status().reason), (GroupMasses::Each, Reason::Groups));
    // The paper's Nesterov with two rates: its momentum follows from the rate.
    let paper = |rate: f64| PathInfo::quadratic(Optimizer::NesterovPaper { alpha: 0.1 }, Rates::constant(rate, 9));
    assert_eq!(Groups::new(vec![paper(0.1), paper(0.2)]).unwrap().status().reason, Reason::Groups);
    let same = Groups::new(vec![paper(0.1), paper(0.1)]).unwrap();
    assert_eq!((same.masses, same.status().standing), (GroupMasses::One, Standing::Exact));
    // The worst of the groups' standings counts.
    let network = PathInfo::new(Optimizer::Sgd, Rates::constant(0.1, 9));
    let exact = PathInfo::quadratic(Optimizer::Sgd, Rates::constant(0.1, 9));
    let lion = PathInfo::new(
        Optimizer::named("lion", afterfit_core::optimizer::Constants::default()).unwrap(),
        Rates::constant(0.1, 9),
    );
    assert_eq!(Groups::new(vec![exact.clone(), network.clone()]).unwrap().status().reason, Reason::NotQuadratic);
    assert_eq!(Groups::new(vec![exact, lion, network]).unwrap().status().standing, Standing::Heuristic);
}

/// A group that never moves stays at c: exact in both readings, whatever its weights; and it is no reference.
#[test]
fn frozen_groups() {
    let quadratic = Quadratic::random(5);
    let l2 = 0.1;
    let rates = times(0.09, &warm_cosine(STEPS, 50));
    for frozen in [0, 1] {
        let still = (heavy(0.9), vec![0.0; STEPS]);
        let moving = (heavy(0.9), rates.clone());
        let two = if frozen == 0 { Two::new(still, moving) } else { Two::new(moving, still) };
        let groups = two.groups();
        assert_eq!(groups.reference(), 1 - frozen);
        assert_eq!((groups.masses, groups.status().standing), (GroupMasses::One, Standing::Exact));
        assert_eq!(
            two.with(GroupMasses::Each).status().standing,
            Standing::Exact,
            "one moving group does not interact"
        );
        let path = two.path(&quadratic);
        // Ridge on the moving coordinates, the others at c: an infinite λ there.
        let l2s: V = std::array::from_fn(|i| if i / 3 == frozen { 1e12 } else { l2 });
        let ridge = quadratic.ridge(&l2s, &[0.0; D]);
        for masses in [GroupMasses::One, GroupMasses::Each] {
            let mean = averaged(&two.with(masses), &path, l2);
            within("frozen", apart(&mean, &ridge), 1e-10);
            (0..3).for_each(|i| within("at c", (mean[3 * frozen + i] - quadratic.c[3 * frozen + i]).abs(), 1e-14));
        }
        assert_eq!(groups.l2(frozen, l2).unwrap(), l2);
    }
    let all = Two::new((Optimizer::Sgd, vec![0.0; 5]), (Optimizer::Sgd, vec![0.0; 5])).groups();
    assert_eq!(all.reference(), 0);
    assert_eq!(all.l2(1, l2).unwrap(), l2);
}
