//! The one binary `conch`: `serve`, the operator commands, the benchmarks, and the Rust client they use.
//!
//! Invariant: what a command prints on standard output is its result and nothing else (records, tables, JSON lines);
//! progress, notices and failures go to standard error, and the exit code says how it ended (see [`exit`]).
//!
//! Deliberately absent: any logic of the server. `serve` hands a configuration to `conch_server`; the other commands
//! speak the public protocol like any stranger.

mod args;
mod bench;
pub mod client;
mod commands;
mod duration;
mod exit;
mod local;
mod output;
mod safe;
mod target;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser};

use crate::args::{Arguments, Command};
use crate::exit::Failure;
use crate::output::{Format, Output};

/// Parses the command line, runs the command, and turns its end into an exit code.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return not_parsed(&with_plain_usage(error, std::env::args_os().skip(1))),
    };
    let output = Output::detect(arguments.json);
    match dispatch(arguments.command, &output) {
        Ok(()) => exit::Exit::Ok.into(),
        Err(failure) => {
            output.failure(&failure);
            failure.exit.into()
        }
    }
}

/// The usage line of a mistake as the command's help has it. By itself it names every option that has a value, also from the
/// environment, as if it were needed.
fn with_plain_usage(mut error: clap::Error, arguments: impl Iterator<Item = OsString>) -> clap::Error {
    if error.get(ContextKind::Usage).is_none() {
        return error;
    }
    let mut all = Arguments::command();
    all.build();
    let mut command = &all;
    // Only flags come before a subcommand's name.
    for word in arguments.filter(|argument| !argument.to_string_lossy().starts_with('-')) {
        let Some(named) = command.find_subcommand(&word) else { break };
        command = named;
    }
    let usage = command.clone().render_usage();
    error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
    error
}

/// Help and version are answers, not mistakes: clap prints them to standard output, with code 0. A mistake is shown as
/// clap does it to people, and to programs like any other failure.
fn not_parsed(error: &clap::Error) -> ExitCode {
    // What was not parsed cannot say for whom results are.
    let output = Output::detect(std::env::args_os().any(|argument| argument == "--json"));
    if error.use_stderr() && output.format == Format::Json {
        let message = error.to_string();
        output.failure(&Failure::usage(message.trim().trim_start_matches("error: ")));
        return exit::Exit::Usage.into();
    }
    let exit = if error.use_stderr() { exit::Exit::Usage } else { exit::Exit::Ok };
    if error.print().is_ok() { exit.into() } else { exit::Exit::Failure.into() }
}

fn dispatch(command: Command, output: &Output) -> Result<(), Failure> {
    match command {
        Command::Serve(args) => commands::serve::run(&args, output),
        Command::Config(args) => commands::config::run(&args, output),
        Command::Verify(args) => commands::verify::run(&args, output),
        Command::CheckHistory(args) => commands::check_history::run(&args, output),
        Command::Token(args) => commands::token::run(&args, output),
        Command::Bench(args) => bench::run(&args, output),
        Command::Create(args) => block_on(commands::conversation::create(&args, output)),
        Command::Conversations(args) => block_on(commands::conversation::list(&args, output)),
        Command::Members(args) => block_on(commands::conversation::members(&args, output)),
        Command::Nodes(args) => block_on(commands::nodes::list(&args, output)),
        Command::Expel(args) => block_on(commands::nodes::expel(&args, output)),
        Command::Drain(args) => block_on(commands::cluster::drain(&args, output)),
        Command::Canary(args) => commands::canary::run(&args, output),
        Command::Restored(args) => block_on(commands::cluster::restored(&args, output)),
        Command::Leases(args) => block_on(commands::cluster::leases(&args, output)),
        Command::Send(args) => block_on(commands::send::run(&args, output)),
        Command::Turn { command } => block_on(commands::turn::run(&command, output)),
        Command::Tail(args) => block_on(commands::tail::run(&args, output)),
        Command::History(args) => block_on(commands::history::run(&args, output)),
    }
}

/// Client commands are one conversation with one server: a single thread is enough, and starts fastest.
fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::other(format!("the runtime could not be started: {error}")))?;
    runtime.block_on(future)
}

/// A command that runs a node in its own process gives it the threads that a server has.
fn block_on_threads<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::other(format!("the runtime could not be started: {error}")))?;
    runtime.block_on(future)
}
