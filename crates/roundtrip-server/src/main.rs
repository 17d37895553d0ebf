//! The command; see [`roundtrip_server::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    roundtrip_server::cli::main()
}
