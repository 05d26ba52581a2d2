//! What is said about a package, as text and as a document. No I/O.

use std::fmt::Write as _;

use operetta_registry::Config;
use operetta_registry::artifact::Locked;
use operetta_registry::index::{Entry, Release};
use serde_json::{Value, json};

use super::deprecated::indexed;
use super::fields::{Field, fields, parameters};
use super::inspect::{need, right};
use super::search::{channels, level};
use crate::children::crds::{PublishedPlan, plans_of};
use crate::cli::out;
use crate::cli::show::{Cell, Line, Severity, Table, Terminal, plural, with_messages};
use crate::crd::schema_of;
use crate::package::Package;
use crate::printable::lines;

/// What is shown of a package.
pub(super) struct Page {
    pub(super) reference: String,
    /// What is computed from its files.
    pub(super) config: Config,
    pub(super) readme: Option<String>,
    pub(super) kinds: Vec<Kind>,
    /// The versions of its repository.
    pub(super) entry: Option<Entry>,
    /// What is known of this version.
    pub(super) release: Option<Release>,
}

/// A kind, as its users see it.
pub(super) struct Kind {
    name: String,
    group: String,
    versions: Vec<String>,
    plural: String,
    is_namespaced: bool,
    docs: String,
    fields: Vec<Field>,
    plans: Vec<PublishedPlan>,
}

/// The kinds of a package.
pub(super) fn kinds(package: &Package) -> Vec<Kind> {
    let kinds = package.resources.iter().map(|resource| {
        let schema = schema_of(&resource.crd, &resource.kind.version).unwrap_or(&Value::Null);
        Kind {
            name: resource.kind.kind.clone(),
            group: resource.kind.group.clone(),
            versions: resource.served_versions().map(str::to_owned).collect(),
            plural: resource.kind.plural.clone(),
            is_namespaced: resource.kind.namespaced,
            docs: schema["description"].as_str().unwrap_or_default().to_owned(),
            fields: fields(schema),
            plans: plans_of(resource),
        }
    });
    kinds.collect()
}

impl Kind {
    fn scope(&self) -> &'static str {
        if self.is_namespaced { "Namespaced" } else { "Cluster" }
    }

    fn document(&self) -> Value {
        let plans = self.plans.iter().map(|plan| {
            let parameters = plan.params.as_ref().map(parameters).unwrap_or_default();
            let parameters: Vec<Value> = parameters.iter().map(Field::document).collect();
            json!({"name": plan.name, "triggers": plan.triggers, "parameters": parameters})
        });
        json!({
            "kind": self.name, "group": self.group, "versions": self.versions, "plural": self.plural,
            "scope": self.scope(), "description": self.docs,
            "fields": self.fields.iter().map(Field::document).collect::<Vec<_>>(),
            "plans": plans.collect::<Vec<_>>(),
        })
    }

    fn text(&self, depth: usize) -> String {
        let versions = self.versions.join(", ");
        let title = format!("{} ({}/{versions}), {}", self.name, self.group, self.scope().to_lowercase());
        let mut text = format!("\n{}\n", out::printable(&title));
        if !self.docs.is_empty() {
            let _ = writeln!(text, "{}", lines(self.docs.trim_end()));
        }
        text.push_str(&table("FIELD", &self.fields, depth));
        if !self.plans.is_empty() {
            let table = Table::new()
                .column("PLAN", |plan: &&PublishedPlan| Cell::plain(plan.name.clone()))
                .column("STARTED BY", |plan| {
                    let triggers = plan.triggers.join(", ");
                    Cell::text(if triggers.is_empty() {
                        "a request or another plan".into()
                    } else {
                        triggers
                    })
                });
            let _ = write!(text, "\n{}", table.text(&self.plans.iter().collect::<Vec<_>>(), true));
        }
        for plan in &self.plans {
            if let Some(params) = &plan.params {
                let _ = writeln!(text, "\nParameters of {}:", out::printable(&plan.name));
                text.push_str(&self::table("PARAMETER", &parameters(params), depth));
            }
        }
        text
    }
}

/// Fields to that depth, and how many are below.
fn table(title: &str, fields: &[Field], depth: usize) -> String {
    if fields.is_empty() {
        return String::new();
    }
    let mut rows: Vec<Line> =
        vec![[title, "TYPE", "DEFAULT", "DESCRIPTION"].into_iter().map(Cell::text).collect()];
    for (at, field) in fields.iter().enumerate().filter(|(_, field)| field.depth <= depth) {
        let below = fields[at + 1..].iter().take_while(|other| other.depth > field.depth);
        let hidden = if field.depth == depth { below.count() } else { 0 };
        let severity = if field.is_required { Severity::Plain } else { Severity::Dim };
        rows.push(vec![
            Cell::plain(field.path.clone()),
            Cell::plain(field.kind.clone()),
            Cell::new(field.default_words(), severity),
            Cell::text(field.words(hidden)),
        ]);
    }
    with_messages(&rows, 3, Terminal::stdout())
}

impl Page {
    /// It for programs.
    pub(super) fn document(&self) -> Value {
        let kinds: Vec<Value> = self.kinds.iter().map(Kind::document).collect();
        let mut value = json!({
            "reference": self.reference, "name": self.config.name, "version": self.config.version,
            "appVersion": self.config.app_version, "description": self.config.description,
            "readme": self.readme, "revision": self.config.revision, "requires": self.config.requires,
            "rights": self.config.rights, "level": self.config.level, "kinds": kinds,
        });
        if let Some(release) = &self.release {
            value["signers"] = json!(release.signers);
            value["deprecated"] = json!(release.deprecated);
        }
        if let Some(entry) = &self.entry {
            value["versions"] = json!(entry.versions);
            value["channels"] = json!(entry.channels);
        }
        value
    }

    pub(super) fn text(&self, depth: usize) -> String {
        let Config { name, version, app_version, description, requires, rights, .. } = &self.config;
        let mut text = String::new();
        let mut row = |title: &str, value: &str| {
            if !value.is_empty() {
                let _ = writeln!(text, "{title:<12} {}", out::printable(value));
            }
        };
        row("Package:", &format!("{name} {version}"));
        row("About:", description.as_deref().unwrap_or_default());
        let release = self.release.as_ref();
        if let Some(deprecated) = release.and_then(|release| release.deprecated.as_ref()) {
            row("Deprecated:", &indexed(deprecated));
        }
        row("App:", app_version.as_deref().unwrap_or_default());
        row("Level:", &level(self.config.level));
        row("Reference:", &self.reference);
        if let Some(entry) = &self.entry {
            let versions: Vec<String> = entry.versions.iter().map(version_words).collect();
            row("Versions:", &crate::cli::show::named(&versions, 10));
            row("Channels:", &channels(&entry.channels));
        }
        let signers = release.map(|release| release.signers.join(", ")).unwrap_or_default();
        row("Signers:", &signers);
        row("Kubernetes:", requires.kubernetes.as_deref().unwrap_or_default());
        let mut list = |title: &str, values: Vec<String>| {
            for (at, value) in values.iter().enumerate() {
                row(if at == 0 { title } else { "" }, value);
            }
        };
        list("Needs:", requires.apis.iter().map(|api| need(api, &requires.dependencies)).collect());
        let lock = |one: &Locked| format!("{} {}, {}@{}", one.name, one.version, one.package, one.digest);
        list("Installs:", requires.locked.iter().map(lock).collect());
        list("Rights:", rights.iter().map(right).collect());
        if let Some(readme) = &self.readme {
            let _ = writeln!(text, "\n{}", lines(readme.trim_end()));
        }
        for kind in &self.kinds {
            text.push_str(&kind.text(depth));
        }
        let hidden = self.kinds.iter().flat_map(|kind| &kind.fields).filter(|field| field.depth > depth);
        let hidden = hidden.count();
        if hidden > 0 {
            let _ = writeln!(text, "\n{} below: --depth {} shows more", plural(hidden, "field"), depth + 1);
        }
        text
    }
}

fn version_words(release: &Release) -> String {
    let deprecated = if release.deprecated.is_some() { " (deprecated)" } else { "" };
    format!("{}{deprecated}", release.version)
}
