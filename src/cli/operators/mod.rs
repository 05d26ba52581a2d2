//! The packages of a cluster: `operetta install`, `upgrade`, `rollback`, `uninstall`, `operators`, `versions` and `outdated`. One
//! file a command.

mod apply;
mod changes;
mod dependencies;
mod downgrade;
mod handed_over;
mod history;
mod install;
mod list;
mod releases;
mod revisions;
mod rights;
mod rollback;
mod shared;
mod source;
mod take_over;
mod uninstall;
mod wait;

use std::process::ExitCode;

use super::command::{Failure, duration, end};

pub(super) use apply::{begin_deletion, delete};
pub(super) use install::{InstallArgs, UpgradeArgs};
pub(super) use list::Args as ListArgs;
pub(super) use releases::{OutdatedArgs, VersionsArgs};
pub(super) use rollback::Args as RollbackArgs;
pub(super) use source::{lint, load_local};
pub(super) use uninstall::{Args as UninstallArgs, instances_of, with_instances};

pub(super) async fn install(args: &InstallArgs) -> ExitCode {
    end(install::install(args).await)
}

pub(super) async fn upgrade(args: &UpgradeArgs) -> ExitCode {
    end(install::upgrade(args).await)
}

pub(super) async fn rollback(args: &RollbackArgs) -> ExitCode {
    end(rollback::run(args).await)
}

pub(super) async fn uninstall(args: &UninstallArgs) -> ExitCode {
    end(uninstall::run(args).await)
}

pub(super) async fn list(args: &ListArgs) -> ExitCode {
    end(list::run(args).await)
}

pub(super) async fn versions(args: &VersionsArgs) -> ExitCode {
    end(releases::versions(args).await)
}

pub(super) async fn outdated(args: &OutdatedArgs) -> ExitCode {
    end(releases::outdated(args).await)
}
