//! The command line.

use std::process::ExitCode;

use operetta::local::guard;

/// A quarter of the manager's time went into the C library's allocator: many small values, on many threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Before all else, for the guard must not have threads or a runtime of somebody else's.
    if std::env::args_os().nth(1).is_some_and(|arg| arg == guard::COMMAND) {
        return guard::main(std::env::args_os().skip(2));
    }
    operetta::cli::main()
}
