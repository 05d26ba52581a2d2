//! Packages in registries: `operetta package`, `push`, `pull`, `copy`, `inspect`, `sign`, `verify`, `trust`, `deprecate`, `login` and
//! `logout`; indexes of them: `catalog`, `search` and `show`. One file a command.

mod access;
mod beside;
mod catalog;
mod copy;
mod deprecate;
mod deprecated;
mod evidence;
mod fetch;
mod fields;
mod indexes;
mod inspect;
mod level;
mod locked;
mod login;
mod made;
mod package;
mod page;
mod pull;
mod push;
mod sbom;
mod search;
mod show;
mod sign;
mod trust;
mod verify;

use std::process::ExitCode;

use super::command::end;

pub(super) use access::{Access, TimedAccess, Trust};
pub(super) use beside::locate;
pub(super) use catalog::Args as CatalogArgs;
pub(super) use copy::Args as CopyArgs;
pub(super) use deprecate::Args as DeprecateArgs;
pub(super) use deprecated::{deprecations, document as deprecations_document, words as deprecation_words};
pub(super) use fetch::{Compiled, fetch, is_place};
pub(super) use inspect::Args as InspectArgs;
pub(super) use locked::{named as named_versions, resolve};
pub(super) use login::{LoginArgs, LogoutArgs};
pub(super) use package::Args as PackageArgs;
pub(super) use pull::Args as PullArgs;
pub(super) use push::Args as PushArgs;
pub(super) use search::Args as SearchArgs;
pub(super) use show::Args as ShowArgs;
pub(super) use sign::Args as SignArgs;
pub(super) use trust::Args as TrustArgs;
pub(super) use verify::Args as VerifyArgs;

pub(super) async fn package(args: &PackageArgs) -> ExitCode {
    end(package::run(args).await)
}

pub(super) async fn push(args: &PushArgs) -> ExitCode {
    end(push::run(args).await)
}

pub(super) async fn pull(args: &PullArgs) -> ExitCode {
    end(Box::pin(pull::run(args)).await)
}

pub(super) async fn copy(args: &CopyArgs) -> ExitCode {
    end(copy::run(args).await)
}

pub(super) async fn inspect(args: &InspectArgs) -> ExitCode {
    end(inspect::run(args).await)
}

pub(super) async fn sign(args: &SignArgs) -> ExitCode {
    end(sign::run(args).await)
}

pub(super) async fn verify(args: &VerifyArgs) -> ExitCode {
    end(verify::run(args).await)
}

pub(super) async fn trust(args: &TrustArgs) -> ExitCode {
    end(trust::run(args).await)
}

pub(super) async fn catalog(args: &CatalogArgs) -> ExitCode {
    end(catalog::run(args).await)
}

pub(super) async fn deprecate(args: &DeprecateArgs) -> ExitCode {
    end(deprecate::run(args).await)
}

pub(super) async fn search(args: &SearchArgs) -> ExitCode {
    end(search::run(args).await)
}

pub(super) async fn show(args: &ShowArgs) -> ExitCode {
    end(show::run(args).await)
}

pub(super) async fn login(args: &LoginArgs) -> ExitCode {
    end(login::login(args).await)
}

pub(super) async fn logout(args: &LogoutArgs) -> ExitCode {
    end(login::logout(args).await)
}
