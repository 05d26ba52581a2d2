//! `operetta inspect`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;

use bytes::Bytes;
use operetta_registry::artifact::{Dependency, Locked};
use operetta_registry::attached::{SBOM, TESTS};
use operetta_registry::deprecation::{DEPRECATION, Found as Deprecation};
use operetta_registry::signatures::{self, Signature};
use operetta_registry::{BLOB_BYTES, Config, Descriptor, Evidence, Fetched, Signers, attached};
use serde_json::{Value, json};

use super::access::{TimedAccess, size};
use super::evidence::{Point, differences, linted, replay, summary};
use super::fetch::{Found, find};
use super::{deprecated, level, made, sbom};
use crate::cli::command::{Failure, Format};
use crate::cli::show::plural;
use crate::cli::{operators, out};
use crate::diag::Diagnostic;
use crate::package::Package;
use crate::package::capability::{self, Capability};

/// The maximum size of an SBOM that is read, in bytes.
const SBOM_BYTES: u64 = 4 << 20;

/// Show what a package in a registry or OCI layout is, without installing it
///
/// Its kinds, what it needs of a cluster, the packages that it installs for that, its level in the Operator capability model (I to V,
/// computed from its plans, triggers and children), images, the rights of its account, its files, who has signed it, and whether it is
/// deprecated. The names of signers are as the signatures state them: `operetta verify` checks them.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta inspect oci://ghcr.io/acme/etcd
  operetta inspect oci://ghcr.io/acme/etcd:1.2.0 -o json | jq .config.rights
  operetta inspect oci://ghcr.io/acme/etcd:1.2.0 --check     # plays its tests again
  operetta inspect oci://ghcr.io/acme/etcd:1.2.0 --sbom > etcd.spdx.json
  operetta inspect layout

Exit codes: 0 success, 1 there is no such package, or it is not what it should be or states (--check), 2 wrong usage, 4 --timeout is over.")]
pub(in crate::cli) struct Args {
    /// The package: `oci://HOST/PATH[:TAG][@sha256:...]`, or an OCI layout
    #[arg(value_name = "REF")]
    reference: String,

    /// Check again what the package states: lint, level, and the cases that have passed, which are played again on this machine
    #[arg(long)]
    check: bool,

    /// Print an SBOM instead, in SPDX 2.3: the package, the packages that it requires, its images
    #[arg(long, conflicts_with_all = ["check", "output"])]
    sbom: bool,

    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Format>,

    #[command(flatten)]
    access: TimedAccess,
}

pub(super) async fn run(args: &Args) -> Result<ExitCode, Failure> {
    let found = find(&args.reference, &args.access.options()?).await?;
    let (package, warnings) = found.package()?;
    // Kinds, rights and level of its files, not those that it states.
    let stated = &found.config;
    let config = Config {
        tar: stated.tar.clone(),
        readme: stated.readme.clone(),
        readme_file: stated.readme_file.clone(),
        evidence: stated.evidence.clone(),
        ..made::config(&package)
    };
    if args.sbom {
        let document = sbom::document(&config, &found.manifest.descriptor.digest);
        return Ok(out::all(&out::json(&document), ExitCode::SUCCESS));
    }
    if let Some(level) = stated.level.filter(|level| Some(*level) != config.level) {
        let found = config.level.map_or("none".to_owned(), |level| level.to_string());
        out::note(format!(
            "warning: the config states the level {level}, and the level of the files is {found}"
        ));
    }
    let signatures = signatures::find(&found.place.store, &found.manifest).await?;
    let referrers = attached::listed(&found.place.store, &found.manifest).await?;
    let nobody = Signers::default();
    let deprecations = deprecated::deprecations(&found.place.store, &found.manifest, &nobody).await;
    let checked = if args.check { Some(check(&found, &config, &package, warnings).await?) } else { None };
    let is_ok = checked.iter().flatten().all(|point| point.is_ok);
    let files: Vec<(&str, usize)> =
        package.files.iter().map(|(path, source)| (path, source.text.len())).collect();
    let shown = Shown {
        found: &Found(Fetched { config, ..found.0 }),
        level: &capability::capability(&package),
        files: &files,
        signatures: &signatures,
        referrers: &referrers,
        deprecations: &deprecations,
        checked: checked.as_deref(),
    };
    let text = match args.output {
        Some(format) => format.document(&shown.document()),
        None => shown.text(),
    };
    Ok(out::all(&text, if is_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }))
}

/// Checks again what the config states; `config` is what it should state.
async fn check(
    found: &Found,
    config: &Config,
    package: &Package,
    warnings: Vec<Diagnostic>,
) -> Result<Vec<Point>, Failure> {
    let stated = &found.config;
    let text = |value: Value| value.to_string();
    let statements = |config: &Config| -> BTreeMap<String, String> {
        let statements = [
            ("kinds", text(json!(config.kinds))),
            ("requires", text(json!(config.requires))),
            ("rights", text(json!(config.rights))),
            ("level", text(json!(config.level))),
            ("images", text(json!(config.images))),
        ];
        statements.map(|(name, value)| (name.to_owned(), value)).into()
    };
    let problems = differences(&statements(stated), &statements(config));
    let mut points = vec![Point::of(
        "config",
        &problems,
        "kinds, requirements, rights, level and images are those of the files",
    )];
    let store = &found.place.store;
    let Some(evidence) = &stated.evidence else {
        points.push(Point::of("evidence", &[], "it states none"));
        return Ok(points);
    };
    let again = linted(&operators::lint(package, warnings));
    let made = format!("with Operetta {}, and this is {}", evidence.operetta, again.operetta);
    let mut problems = differences(&evidence.lint.warnings, &again.lint.warnings);
    if !problems.is_empty() && evidence.operetta != again.operetta {
        problems.push(format!("it was made {made}"));
    }
    let count: u32 = again.lint.warnings.values().sum();
    points.push(Point::of("lint", &problems, plural(count as usize, "warning")));
    points.push(match &evidence.tests {
        None => Point::of("tests", &[], "no cases were played when it was made"),
        Some(tests) => {
            let archives = attached(store, &found.manifest, TESTS, BLOB_BYTES).await?;
            replay(&found.name, package, tests, &archives)?
        }
    });
    let attached = attached(store, &found.manifest, SBOM, SBOM_BYTES).await?;
    if !attached.is_empty() {
        let wanted = sbom::document(config, &found.manifest.descriptor.digest);
        let is_same = |bytes: &Bytes| serde_json::from_slice::<Value>(bytes).is_ok_and(|one| one == wanted);
        let problems: Vec<String> = if attached.iter().any(is_same) {
            Vec::new()
        } else {
            vec!["what is attached is not the SBOM of this package".to_owned()]
        };
        points.push(Point::of("SBOM", &problems, "what is attached is the SBOM of this package"));
    }
    Ok(points)
}

/// What is shown of a package.
struct Shown<'s> {
    found: &'s Found,
    level: &'s Capability,
    files: &'s [(&'s str, usize)],
    signatures: &'s [Signature],
    referrers: &'s [Descriptor],
    deprecations: &'s [Deprecation],
    checked: Option<&'s [Point]>,
}

impl Shown<'_> {
    fn document(&self) -> Value {
        let Self { found, files, .. } = self;
        let files: Vec<Value> =
            files.iter().map(|(path, bytes)| json!({"path": path, "bytes": bytes})).collect();
        let signatures: Vec<Value> = self
            .signatures
            .iter()
            .map(|one| json!({"digest": one.of.digest, "format": one.format(), "signer": one.claim()}))
            .collect();
        let referrers: Vec<Value> = self
            .referrers
            .iter()
            .map(|one| json!({"digest": one.digest, "artifactType": one.artifact_type}))
            .collect();
        let mut document = json!({
            "reference": found.name, "digest": found.manifest.descriptor.digest, "config": found.config,
            "capability": level::value(self.level),
            "files": files, "signatures": signatures, "referrers": referrers,
            "deprecations": deprecated::document(self.deprecations),
        });
        if let Some(points) = self.checked {
            let point = |one: &Point| json!({"what": one.what, "ok": one.is_ok, "message": one.words});
            document["checked"] = points.iter().map(point).collect();
        }
        document
    }

    fn text(&self) -> String {
        let Config {
            name, version, app_version, description, kinds, requires, rights, revision, readme, ..
        } = &self.found.config;
        let mut text = String::new();
        let mut row = |title: &str, value: &str| {
            let _ =
                writeln!(text, "{:<12} {}", if title.is_empty() { "" } else { title }, out::printable(value));
        };
        row("Package:", &format!("{name} {version}"));
        row("Reference:", &self.found.name);
        row("Revision:", revision);
        for (title, value) in [("App:", app_version), ("About:", description), ("README:", readme)] {
            if let Some(value) = value {
                row(title, value);
            }
        }
        let mut list = |title: &str, values: Vec<String>| {
            for (at, value) in values.iter().enumerate() {
                row(if at == 0 { title } else { "" }, value);
            }
        };
        list("Deprecated:", self.deprecations.iter().map(|one| deprecated::words(one, false)).collect());
        let kind = |kind: &operetta_registry::artifact::Kind| {
            format!("{} ({}/{})", kind.kind, kind.group, kind.versions.join(", "))
        };
        list("Kinds:", kinds.iter().map(kind).collect());
        list("Kubernetes:", requires.kubernetes.iter().cloned().collect());
        list("Needs:", requires.apis.iter().map(|api| need(api, &requires.dependencies)).collect());
        let lock = |one: &Locked| format!("{} {}, {}@{}", one.name, one.version, one.package, one.digest);
        list("Installs:", requires.locked.iter().map(lock).collect());
        list("Level:", level::lines(self.level));
        list("Images:", sbom::images(&self.found.config).into_iter().map(str::to_owned).collect());
        list("Stated:", self.found.config.evidence.as_ref().map(stated).unwrap_or_default());
        list("Rights:", rights.iter().map(right).collect());
        let count: usize = self.files.iter().map(|(_, bytes)| bytes).sum();
        let sum = format!("{} in {}", size(count as u64), crate::cli::show::plural(self.files.len(), "file"));
        let files = self.files.iter().map(|(path, bytes)| format!("{path} ({})", size(*bytes as u64)));
        list("Files:", [sum].into_iter().chain(files).collect());
        let claim = |one: &Signature| one.claim().map(|claim| format!(", by {claim}")).unwrap_or_default();
        let signatures: Vec<String> =
            self.signatures.iter().map(|one| format!("{}{}", one.format(), claim(one))).collect();
        list("Signatures:", if signatures.is_empty() { vec!["none".to_owned()] } else { signatures });
        let others = self.referrers.iter().filter_map(|one| one.artifact_type.as_deref());
        let is_shown = |kind: &str| operetta_registry::bundle::is_bundle(kind) || kind == DEPRECATION;
        let others = others.filter(|kind| !is_shown(kind)).map(str::to_owned);
        list("Attached:", others.collect());
        let point =
            |one: &Point| format!("{} {}: {}", if one.is_ok { "ok" } else { "DIFFERS" }, one.what, one.words);
        list("Checked:", self.checked.unwrap_or_default().iter().map(point).collect());
        text
    }
}

/// What the config states about how the package was made.
fn stated(evidence: &Evidence) -> Vec<String> {
    let warnings: u32 = evidence.lint.warnings.values().sum();
    let mut lines =
        vec![format!("lint: {} (Operetta {})", plural(warnings as usize, "warning"), evidence.operetta)];
    lines.extend(evidence.lint.warnings.iter().map(|(rule, count)| format!("  {rule}: {count}")));
    lines.extend(evidence.tests.as_ref().map(|tests| format!("tests: {}", summary(tests))));
    lines
}

/// A kind of others, and which packages bring it.
pub(super) fn need(api: &str, dependencies: &[Dependency]) -> String {
    let Some(named) = dependencies.iter().find(|one| one.api == api) else { return api.to_owned() };
    let optional = named.optional.then(|| "optional".to_owned());
    let words = [named.package.clone(), named.versions.clone(), optional];
    [Some(api.to_owned())].into_iter().chain(words).flatten().collect::<Vec<_>>().join(", ")
}

/// A rule in a line.
pub(super) fn right(rule: &Value) -> String {
    let words = |field: &str| {
        let values = rule[field].as_array().into_iter().flatten().filter_map(Value::as_str);
        values.collect::<Vec<_>>().join(", ")
    };
    let group = words("apiGroups");
    let group = if group.is_empty() { String::new() } else { format!(" of {group}") };
    let names = words("resourceNames");
    let names = if names.is_empty() { String::new() } else { format!(" named {names}") };
    format!("{}{group}{names}: {}", words("resources"), words("verbs"))
}
