//! The examples under each command's help. `tests/readme.py` runs every line that starts with `$`, in order, in a folder with a few
//! small files (`evaluate.py` prints a score).

pub(crate) const DEMO: &str = "Example:
  $ afterfit demo
Then open afterfit-demo/report.html in a browser.";

pub(crate) const FIT: &str = "Examples:
  $ afterfit fit houses.csv --target price -o model.safetensors --report report.html
  $ afterfit fit flowers.csv --target kind --cv 5 --standardize
  $ afterfit fit houses.csv --target price --l2 1e-4..1e2:100 --json";

pub(crate) const PREDICT: &str = "Examples:
  $ afterfit fit houses.csv --target price -o model.safetensors
  $ afterfit predict model.safetensors new-houses.csv
  $ afterfit predict model.safetensors new-houses.csv --l2 1se -o prices.csv";

pub(crate) const AVERAGE: &str = "Examples:
  $ afterfit average checkpoints/ -o averaged/ --l2 auto
  $ afterfit average checkpoints/ -o best/ --l2 auto --eval 'python evaluate.py {}' --best min
  $ afterfit average checkpoints/ -o ema.safetensors --ema 0.999
  $ afterfit average checkpoints/ -o run.dial --dial auto
  $ afterfit average checkpoints/ -o nothing/ --l2 auto --dry-run";

pub(crate) const DIAL: &str = "Examples:
  $ afterfit average checkpoints/ -o run.dial --dial 1e-2..1
  $ afterfit dial info run.dial
  $ afterfit dial read run.dial --l2 0.3 -o model.safetensors";

pub(crate) const DIAL_READ: &str = "Examples:
  $ afterfit average checkpoints/ -o run.dial --dial 1e-2..1
  $ afterfit dial read run.dial --l2 0.3 -o model.safetensors
  $ afterfit dial read run.dial --l2 1e-2..1:5 -o models/";

pub(crate) const DIAL_INFO: &str = "Examples:
  $ afterfit average checkpoints/ -o run.dial --dial auto
  $ afterfit dial info run.dial --report page.html";

pub(crate) const SERVE: &str = "Examples:
  $ afterfit average checkpoints/ -o run.dial --dial auto
  $ afterfit serve run.dial --eval 'python evaluate.py {}' --best min
Open the address it prints. Ctrl-C ends it.";

pub(crate) const INSPECT: &str = "Examples:
  $ afterfit inspect checkpoints/step-10.safetensors
  $ afterfit inspect checkpoints/step-10.safetensors --json";

pub(crate) const DATA_GET: &str = "Example (needs the network):
  > afterfit data get mnist";

pub(crate) const WEIGHTS: &str = "Examples:
  $ afterfit weights --l2 0.5 --rate 0.1 --steps 20
  $ afterfit weights --l2 0.5 --rate 0.1,50:0.01 --steps 99 --optimizer nesterov --momentum 0.9";

pub(crate) const THEORY_BOUND: &str = "Example:
  $ afterfit theory bound --rate 0.01 --l2 1 --alpha 0.1 --beta 2 --sigma 0.5 --delta 0.05";

pub(crate) const THEORY_BRACKET: &str = "Example:
  $ afterfit theory bracket --rate 0.1 --l2 0.8 --alpha 0.5 --beta 1";

pub(crate) const THEORY_FLOW: &str = "Example:
  $ afterfit theory flow --eigenvalue 0.5 --l2 0.1 --time 20";

pub(crate) const PLAN: &str = "Examples:
  $ afterfit plan --l2 1e-5..1e-2 --rate 0.1 --steps 150000 --params 11173962
  $ afterfit plan --l2 1e-4..1 --rate 0.1 --steps 10000 --params 1000000 --tolerance 1e-5";

pub(crate) const COMPLETIONS: &str = "Examples:
  $ afterfit completions bash > afterfit.bash
  $ afterfit completions zsh > _afterfit";

pub(crate) const MAN: &str = "Example:
  $ afterfit man man1/";

/// Under the help of `afterfit` itself.
pub(crate) const ALL: &str = "Start with `afterfit demo`. Every command's --help ends with examples.";
