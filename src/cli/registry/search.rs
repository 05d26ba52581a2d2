//! `operetta search`.

use std::process::ExitCode;

use operetta_registry::index::{Channel, Depth, Entry};
use operetta_registry::search;
use serde_json::json;

use super::access::TimedAccess;
use super::deprecated::indexed;
use super::indexes::Catalogs;
use crate::cli::command::{Failure, Shown};
use crate::cli::out;
use crate::cli::show::{Cell, Severity, Table, named};
use crate::printable::clip;

const NOTHING: &str = "No packages found";
/// The longest description that is shown without -o wide, in characters.
const DESCRIPTION: usize = 100;

/// Search packages in indexes
///
/// Lists the packages in which all words are found: in the name, the kinds, the description or the first paragraph of the README, the
/// best first. Without words it lists all. `operetta show NAME` says more about one.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta search etcd --catalog index.json
  operetta search postgres backup --catalog oci://ghcr.io/acme/index --catalog-key acme.pub
  export OPERETTA_CATALOG=oci://ghcr.io/acme/index; operetta search -o wide
  operetta install $(operetta search etcd -o name | head -1)

-o name prints references with digests. What an index says was so when it was made: an installation asks the registry. SIGNERS are as \
the signatures state them, unverified.

Exit codes: 0 success, also if nothing is found; 1 an index cannot be read, or is not signed by --catalog-key; 2 wrong usage; \
4 --timeout is over.")]
pub(in crate::cli) struct Args {
    /// What to look for
    #[arg(value_name = "WORD")]
    words: Vec<String>,

    #[command(flatten)]
    shown: Shown,

    #[command(flatten)]
    catalogs: Catalogs,

    #[command(flatten)]
    access: TimedAccess,
}

pub(super) async fn run(args: &Args) -> Result<ExitCode, Failure> {
    let options = args.access.options()?;
    let depth = if args.shown.is_document() { Depth::Whole } else { Depth::Newest };
    let packages = args.catalogs.read(&args.words, depth, &options).await?;
    let all = packages.all();
    let found = search(all.iter().copied(), &args.words);
    let is_wide = args.shown.is_wide();
    let newest = |entry: &Entry| entry.newest().map(|one| one.version.clone()).unwrap_or_default();
    let table = Table::new()
        .column("NAME", |entry: &&Entry| Cell::plain(entry.name.clone()))
        .column("VERSION", |entry| Cell::plain(newest(entry)))
        .column("LEVEL", |entry| Cell::plain(level(entry.newest().and_then(|newest| newest.level))))
        .column_if(is_wide, "CHANNELS", |entry| Cell::plain(channels(&entry.channels)))
        .column_if(is_wide, "KINDS", |entry| {
            let kinds: Vec<&str> = entry.kinds.iter().map(|kind| &*kind.kind).collect();
            Cell::plain(named(&kinds, 4))
        })
        .column_if(is_wide, "SIGNERS", |entry| {
            let signers = entry.newest().map_or(&[][..], |newest| &newest.signers);
            Cell::plain(named(signers, 2))
        })
        .column_if(is_wide, "REPOSITORY", |entry| Cell::plain(entry.repository.clone()))
        .column("DESCRIPTION", |entry| description(entry, is_wide));
    let name = |entry: &&Entry| {
        let newest = entry.newest().map(|one| format!(":{}@{}", one.version, one.digest));
        out::printable(&format!("{}{}", entry.repository, newest.unwrap_or_default()))
    };
    let near = match &args.words[..] {
        [word] if found.is_empty() => packages.near(word),
        _ => None,
    };
    let nothing = near.map_or(NOTHING.to_owned(), |near| format!("{NOTHING}; did you mean {near}?"));
    let text = args.shown.text(&found, &nothing, &table, name, || json!(found));
    Ok(out::all(&text, if packages.is_partial { ExitCode::FAILURE } else { ExitCode::SUCCESS }))
}

fn description(entry: &Entry, is_wide: bool) -> Cell {
    let text = entry.description.as_deref().or(entry.readme.as_deref()).unwrap_or_default();
    let text = if is_wide { text.into() } else { clip(text, DESCRIPTION) };
    match entry.newest().and_then(|newest| newest.deprecated.as_ref()) {
        Some(deprecated) => Cell::new(format!("DEPRECATED: {}", indexed(deprecated)), Severity::Busy),
        None => Cell::text(text),
    }
}

/// The capability level in Roman digits, as it is usually written.
pub(super) fn level(level: Option<u8>) -> String {
    level
        .map(usize::from)
        .and_then(|level| ["I", "II", "III", "IV", "V"].get(level.checked_sub(1)?))
        .map_or("", |text| *text)
        .into()
}

/// Channels with their versions.
pub(super) fn channels(channels: &[Channel]) -> String {
    let channels: Vec<String> =
        channels.iter().map(|channel| format!("{}={}", channel.tag, channel.version)).collect();
    named(&channels, 4)
}
