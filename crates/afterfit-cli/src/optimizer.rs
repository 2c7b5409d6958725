//! `--optimizer NAME --momentum M --alpha A --beta1 B --weight-decay W` → the optimizer that made a path.

use afterfit::Optimizer;
use afterfit::optimizer::{ALIASES, Constants, KINDS, NamedError, listed};
use anyhow::Result;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use crate::output::Advice;

/// Options that describe an optimizer.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "How the path was made")]
pub(crate) struct OptimizerArgs {
    /// What made the path.
    #[arg(long, value_name = "NAME", value_parser = names(), hide_possible_values = true, long_help = listing())]
    pub(crate) optimizer: Option<String>,
    /// Momentum μ of heavy-ball and nesterov, from 0 to below 1.
    #[arg(long, value_name = "M")]
    pub(crate) momentum: Option<f64>,
    /// torch's dampening of heavy-ball.
    #[arg(long, value_name = "D")]
    pub(crate) dampening: Option<f64>,
    /// Convexity α that nesterov-paper makes its momentum from.
    #[arg(long, value_name = "A")]
    pub(crate) alpha: Option<f64>,
    /// β1 of adam [default: 0.9].
    #[arg(long, value_name = "B")]
    pub(crate) beta1: Option<f64>,
    /// AdamW's own weight decay of adam [default: that of the checkpoints, where there are any, else 0].
    #[arg(long, value_name = "W")]
    pub(crate) weight_decay: Option<f64>,
}

/// The names the library knows; another name for one of them is read as that one.
pub(crate) fn names() -> impl TypedValueParser<Value = String> {
    let names = KINDS.map(|(kind, about)| {
        let aliases = ALIASES.iter().filter(move |(_, of)| *of == kind.name()).map(|(alias, _)| *alias);
        PossibleValue::new(kind.name()).help(about).aliases(aliases)
    });
    PossibleValuesParser::from(names).map(|name| listed(&name).to_owned())
}

fn listing() -> String {
    let names = KINDS.map(|(kind, about)| format!("{}: {about}", kind.name()));
    format!("What made the path:\n{}", names.join("\n"))
}

impl OptimizerArgs {
    /// The optimizer that was named, or the one of this name; constants that are not given are those of `like`, if that is of
    /// the same name.
    pub(crate) fn named(&self, default: &str, like: Option<Optimizer>) -> Result<Optimizer> {
        let name = self.optimizer.as_deref().unwrap_or(default);
        let other = like.filter(|like| like.name() == name).map(|like| like.constants()).unwrap_or_default();
        let constants = Constants {
            momentum: self.momentum.or(other.momentum),
            dampening: self.dampening.or(other.dampening),
            alpha: self.alpha.or(other.alpha),
            beta1: self.beta1.or(other.beta1),
            weight_decay: self.weight_decay.or(other.weight_decay),
        };
        Optimizer::named(name, constants).map_err(advise)
    }
}

fn advise(error: NamedError) -> anyhow::Error {
    let hint = match &error {
        NamedError::Needs { constant, .. } => format!("add --{constant} and its value"),
        NamedError::Meaningless { constant: "momentum", .. } => {
            "use --optimizer heavy-ball or --optimizer nesterov".to_owned()
        }
        NamedError::Meaningless { constant, .. } => format!("leave out --{constant}"),
        _ => return error.into(),
    };
    let message = match &error {
        NamedError::Needs { name, constant } => format!("--optimizer {name} needs --{constant}"),
        NamedError::Meaningless { name, constant } => format!("--{constant} has no meaning for --optimizer {name}"),
        other => other.to_string(),
    };
    Advice::error(message, hint)
}
