//! `--optimizer NAME --momentum M --alpha A` → the recurrence a path obeys.

use afterfit::scheme::Recurrence;
use anyhow::Result;
use clap::ValueEnum;

use crate::output::Advice;

/// The optimizers whose paths can be averaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Optimizer {
    /// Gradient descent or SGD.
    Sgd,
    /// Descent with a constant preconditioner Q.
    Preconditioned,
    /// torch's SGD with momentum.
    HeavyBall,
    /// torch's SGD with momentum and nesterov=True.
    Nesterov,
    /// Nesterov as the paper writes it, with the convexity alpha.
    NesterovPaper,
}

/// Options that describe an optimizer.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct OptimizerArgs {
    /// What made the path.
    #[arg(long, value_enum, default_value_t = Optimizer::Sgd)]
    pub(crate) optimizer: Optimizer,
    /// Momentum μ of heavy-ball and nesterov, from 0 to below 1.
    #[arg(long, value_name = "M")]
    pub(crate) momentum: Option<f64>,
    /// Convexity α that nesterov-paper makes its momentum from.
    #[arg(long, value_name = "A")]
    pub(crate) alpha: Option<f64>,
}

impl OptimizerArgs {
    pub(crate) fn recurrence(&self) -> Result<Recurrence> {
        let name = self.optimizer.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        let need = |given: Option<f64>, option: &str| {
            given.ok_or_else(|| {
                Advice::error(format!("--optimizer {name} needs {option}"), format!("add {option} and its value"))
            })
        };
        let recurrence = match self.optimizer {
            Optimizer::Sgd => Recurrence::Descent,
            Optimizer::Preconditioned => Recurrence::Preconditioned,
            Optimizer::HeavyBall => Recurrence::HeavyBall { momentum: need(self.momentum, "--momentum")? },
            Optimizer::Nesterov => Recurrence::Nesterov { momentum: need(self.momentum, "--momentum")? },
            Optimizer::NesterovPaper => Recurrence::NesterovPaper { alpha: need(self.alpha, "--alpha")? },
        };
        let takes_momentum = matches!(self.optimizer, Optimizer::HeavyBall | Optimizer::Nesterov);
        if self.momentum.is_some() && !takes_momentum {
            return Err(Advice::error(
                format!("--momentum has no meaning for --optimizer {name}"),
                "use --optimizer heavy-ball or --optimizer nesterov",
            ));
        }
        recurrence.validate()?;
        Ok(recurrence)
    }
}
