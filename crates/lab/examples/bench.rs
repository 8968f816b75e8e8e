//! `myriad bench` without the rest of the command line: `cargo run -p myriad-lab --example bench -- dir /tmp`.

fn main() -> anyhow::Result<std::process::ExitCode> {
    myriad_lab::cli::run(&myriad_lab::cli::command().arg_required_else_help(true).get_matches())
}
