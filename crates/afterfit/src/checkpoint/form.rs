//! The usual forms of schedules, known by their values: a function that no file has, where every checkpoint agrees with it.

/// A schedule as a share of its whole rate: a warm-up from 0 on a straight line, then one of the usual forms.
#[derive(Debug, Clone, Copy)]
pub(super) struct Form {
    kind: Kind,
    /// Ticks of the warm-up.
    pub(super) warmup: f64,
    /// Of the line that the form is when it is straightened.
    slope: f64,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Linear,
    Cosine,
    Exponential,
    InverseRoot,
}

impl Kind {
    /// What is a straight line of time.
    fn straightened(self, share: f64) -> f64 {
        match self {
            Self::Linear => share,
            Self::Cosine => (2.0 * share - 1.0).clamp(-1.0, 1.0).acos(),
            Self::Exponential => share.ln(),
            Self::InverseRoot => share.powi(-2),
        }
    }

    fn share(self, line: f64) -> f64 {
        match self {
            Self::Linear => line.max(0.0),
            Self::Cosine => (1.0 + line.min(std::f64::consts::PI).cos()) / 2.0,
            Self::Exponential => line.exp(),
            Self::InverseRoot => line.max(f64::MIN_POSITIVE).powf(-0.5),
        }
    }
}

impl Form {
    /// Fewest checkpoints behind the warm-up: two make a line, the others prove it.
    const FEWEST: usize = 4;
    /// How close each must be, of the highest.
    const CLOSE: f64 = 1e-6;

    /// The form that goes through all of these shares.
    pub(super) fn through(shares: &[(f64, f64)]) -> Option<Self> {
        let kinds = [Kind::Linear, Kind::Cosine, Kind::Exponential, Kind::InverseRoot];
        kinds.into_iter().find_map(|kind| Self::of(kind, shares))
    }

    fn of(kind: Kind, shares: &[(f64, f64)]) -> Option<Self> {
        let highest = shares.iter().map(|share| share.1).fold(0.0, f64::max);
        let falling = &shares[shares.iter().position(|share| share.1 == highest)?..];
        let positive = |share: &&(f64, f64)| share.1 > 0.0;
        let (first, last) = (falling.first()?, falling.iter().rev().find(positive)?);
        let slope = (kind.straightened(last.1) - kind.straightened(first.1)) / (last.0 - first.0);
        let whole = kind.straightened(1.0);
        let warmup = (first.0 + (whole - kind.straightened(first.1)) / slope).round();
        let slope = (kind.straightened(last.1) - whole) / (last.0 - warmup);
        let form = Self { kind, warmup: warmup.max(0.0), slope };
        let fits = |&(ticks, share): &(f64, f64)| (form.share(ticks) - share).abs() <= Self::CLOSE * highest;
        let behind = shares.iter().filter(|share| share.0 > warmup && share.1 > 0.0).count();
        (warmup >= 0.0 && slope.is_finite() && slope != 0.0 && behind >= Self::FEWEST && shares.iter().all(fits))
            .then_some(form)
    }

    /// After so many ticks.
    pub(super) fn share(&self, ticks: f64) -> f64 {
        match ticks < self.warmup {
            true => ticks / self.warmup,
            false => self.kind.share(self.kind.straightened(1.0) + self.slope * (ticks - self.warmup)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::float_cmp)]
    use super::*;

    #[test]
    fn usual_forms_are_known_by_their_values() {
        let at = |value: &dyn Fn(f64) -> f64| -> Vec<(f64, f64)> {
            (1..=10).map(|at| (20.0 * f64::from(at), value(20.0 * f64::from(at)))).collect()
        };
        let cosine = |warm: f64| move |t: f64| (1.0 + (std::f64::consts::PI * (t - warm) / (200.0 - warm)).cos()) / 2.0;
        for warm in [0.0, 15.0, 20.0] {
            let form = Form::through(&at(&cosine(warm))).unwrap();
            assert_eq!(form.warmup, warm);
            assert!((form.share(77.0) - cosine(warm)(77.0)).abs() < 1e-9);
        }
        // A checkpoint within the warm-up must lie on its line.
        let late = |t: f64| if t < 30.0 { t / 30.0 } else { cosine(30.0)(t) };
        assert_eq!(Form::through(&at(&late)).unwrap().warmup, 30.0);
        assert!(Form::through(&at(&|t| if t < 30.0 { (t + 1.0) / 30.0 } else { cosine(30.0)(t) })).is_none());
        assert_eq!(Form::through(&at(&|t| (60.0 / (t + 60.0)).sqrt())).unwrap().warmup, 0.0);
        assert_eq!(Form::through(&at(&|t| 0.98_f64.powf(t))).unwrap().warmup, 0.0);
        assert_eq!(Form::through(&at(&|t| (190.0 - t).max(0.0) / 180.0)).unwrap().warmup, 10.0);
        // A warm-up of thousands of steps, long over: the whole rate is never reached.
        assert!(Form::through(&at(&|t| (1.0 / (512.0 * t)).sqrt())).is_none());
        // Nothing tells when a level rate began.
        assert!(Form::through(&at(&|_| 1.0)).is_none());
        assert!(Form::through(&at(&|t| 1.0 / (1.0 + t / 50.0))).is_none());
    }
}
