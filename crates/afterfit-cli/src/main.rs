//! The `afterfit` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    afterfit_cli::main(std::env::args_os()).into()
}
