//! The command line.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use operetta::local::guard;

/// The C library's allocator takes a quarter of the manager's time: many small values, on many threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Milliseconds until the allocator returns freed memory to the system. It reads the variable before `main`.
const PURGE_DELAY: &str = "MIMALLOC_PURGE_DELAY";

fn main() -> ExitCode {
    // The guard comes first, because it must not have threads or a runtime.
    if env::args_os().nth(1).is_some_and(|arg| arg == guard::COMMAND) {
        return guard::main(env::args_os().skip(2));
    }
    if env::args_os().any(|arg| arg == "run") && env::var_os(PURGE_DELAY).is_none() {
        purge_at_once();
    }
    operetta::cli::main()
}

/// Executes the program again, in the same process, with an allocator that returns freed memory at once: the
/// peak of a manager of large instances is half as high. Returns only if that fails; the delay is then the
/// allocator's default.
fn purge_at_once() {
    if let Ok(program) = env::current_exe() {
        let error = Command::new(program).args(env::args_os().skip(1)).env(PURGE_DELAY, "0").exec();
        drop(error);
    }
}
