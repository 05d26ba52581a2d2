//! `requires.apis`: kinds that other packages and operators bring.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::compiler::Compiler;
use super::decode::At;
use super::files::LOCK;
use super::lock;
use super::manifest;
use super::model::{Locked, RequiredApi, Resource};
use super::{Package, RefSource};
use crate::api::{BuiltIn, Gvk};
use crate::diag::{Diagnostic, Location};

impl Compiler<'_> {
    /// Compiles `requires.apis`.
    pub(super) fn required(
        &mut self,
        apis: Vec<At<manifest::RequiredApi>>,
        resources: &[Resource],
    ) -> Vec<RequiredApi> {
        let mut found: Vec<RequiredApi> = Vec::with_capacity(apis.len());
        for api in apis {
            let value = &api.value;
            let (Some(api_version), Some(kind)) = (&value.api_version.0, &value.kind.0) else { continue };
            let gvk = Gvk::new(api_version.value.0.as_str(), kind.value.0.as_str());
            let problem = if resources.iter().any(|resource| resource.is_of(&gvk)) {
                Some((format!("the package brings the kind {} itself", gvk.kind), "remove the entry"))
            } else if found.iter().any(|other| other.gvk == gvk) {
                Some((format!("the kind {} is there twice", gvk.kind), "remove one of the entries"))
            } else if value.version.is_some() && value.package.is_none() {
                let message = "`version` is of the package that brings the kind, and `package` is not set";
                Some((message.to_owned(), "write package: oci://HOST/PATH"))
            } else {
                None
            };
            if let Some((message, help)) = problem {
                self.diagnostics.push(api.error("package::requires", message).help(help));
            }
            found.push(RequiredApi {
                gvk,
                package: value.package.as_ref().map(|package| package.0.clone()),
                range: value.version.as_ref().map(|range| range.value.0.clone()),
                optional: value.optional.unwrap_or_default(),
                location: api.at,
            });
        }
        found
    }

    /// The packages of `operator.lock`.
    pub(super) fn locked(&mut self) -> Vec<Locked> {
        let Some(source) = self.files.get(LOCK).map(Arc::clone) else { return Vec::new() };
        self.used.insert(LOCK.to_owned());
        lock::read(&source, &mut self.diagnostics)
    }

    /// Warns of kinds of others that `requires.apis` does not name, and of a lock that does not fit to it. A package without that list
    /// installs nothing along, and is told nothing.
    pub(super) fn undeclared(&mut self, required: &[RequiredApi], locked: &[Locked], resources: &[Resource]) {
        if required.is_empty() {
            return;
        }
        let mut seen: BTreeSet<Gvk> = BTreeSet::new();
        for (gvk, location) in resources.iter().flat_map(uses) {
            let is_foreign = !BuiltIn::has_group(gvk.group())
                && gvk.group() != "operetta.dev"
                && !resources.iter().any(|resource| resource.is_of(gvk));
            // A child may have the kind in whichever of its versions is served.
            let is_named = required.iter().any(|api| api.gvk.is_version_of(gvk));
            if is_foreign && !is_named && seen.insert(gvk.clone()) {
                let message = format!(
                    "the kind {} ({}) is of another package or operator, and spec.requires.apis does not name it",
                    gvk.kind, gvk.api_version
                );
                self.diagnostics.push(
                    Diagnostic::warning("package::undeclared-api", message).located(location.clone()).help(
                        format!(
                            "requires: {{apis: [{{apiVersion: {}, kind: {}}}]}}, with optional: true if the package does without it",
                            gvk.api_version, gvk.kind
                        ),
                    ),
                );
            }
        }
        if self.files.get(LOCK).is_none() {
            return;
        }
        for api in required.iter().filter(|api| !is_covered(api, locked)) {
            let message = format!("{LOCK} has no package for the kind {api} in {}", api.range_text());
            let warning = Diagnostic::warning("package::lock", message).located(api.location.clone());
            self.diagnostics.push(warning.help("`operetta package` chooses one"));
        }
    }
}

impl Package {
    /// Whether the lock has a package for each kind that needs one.
    pub fn is_locked(&self) -> bool {
        self.required.iter().all(|api| is_covered(api, &self.locked))
    }

    /// The package that was chosen for a kind.
    pub fn locked_for(&self, api: &RequiredApi) -> Option<&Locked> {
        self.locked.iter().find(|locked| Some(&locked.package) == api.package.as_ref())
    }
}

fn is_covered(api: &RequiredApi, locked: &[Locked]) -> bool {
    let Some(package) = api.package.as_ref().filter(|_| !api.optional) else { return true };
    locked.iter().any(|locked| locked.package == *package && api.accepts(&locked.version))
}

/// The kinds that a resource uses, each with a place where it does.
fn uses(resource: &Resource) -> impl Iterator<Item = (&Gvk, &Location)> {
    let children = resource.children.iter();
    let children = children.flat_map(|child| child.kinds.iter().map(|kind| (kind, &child.location)));
    let refs = resource.refs.iter().filter(|reference| !matches!(reference.target, RefSource::Observe(_)));
    children.chain(refs.filter_map(|reference| Some((reference.gvk.as_ref()?, &reference.location))))
}

#[cfg(test)]
mod tests {
    use crate::files::Files;

    /// What lint says about `requires.apis` of a package with a `ServiceMonitor`.
    fn found(apis: &str, lock: Option<&str>) -> Vec<String> {
        let text = format!(
            "apiVersion: operetta.dev/v1alpha1\nkind: OperatorPackage\nmetadata: {{name: shop}}\nspec:\n  version: 1.0.0\n  \
             requires: {{apis: [{apis}]}}\n  resources:\n  - crd: crds/a.yaml\n    children: [{{id: monitor, template: \
             templates/a.yaml}}]\n"
        );
        let crd = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: shops.example.org}\nspec:\n  group: example.org\n  scope: Namespaced\n  names: {kind: Shop, plural: shops}\n  versions:\n  - name: v1\n    served: true\n    storage: true\n    schema: {openAPIV3Schema: {type: object}}\n";
        let child =
            "apiVersion: monitoring.coreos.com/v1\nkind: ServiceMonitor\nmetadata: {name: \"{{ name }}\"}\n";
        let files = [("operator.yaml", text.as_str()), ("crds/a.yaml", crd), ("templates/a.yaml", child)];
        let files =
            Files::from_texts("shop", files.into_iter().chain(lock.map(|lock| ("operator.lock", lock))));
        let found = match crate::compile(&files) {
            Ok((_, found)) | Err(found) => found,
        };
        found.into_iter().map(|found| format!("{}: {}", found.code, found.message)).collect()
    }

    #[test]
    fn a_list_that_is_wrong_or_not_complete_is_reported() {
        const MONITOR: &str = "{apiVersion: monitoring.coreos.com/v1, kind: ServiceMonitor, optional: true}";
        const CACHE: &str = "{apiVersion: cache.example.org/v1, kind: Cache, package: 'oci://r.example/cache', version: ^1.2}";
        let lock = |version: &str| {
            format!(
                "packages: [{{name: cache, version: {version}, package: 'oci://r.example/cache', digest: sha256:{}}}]",
                "0a".repeat(32)
            )
        };
        assert_eq!(found("", None), Vec::<String>::new());
        assert_eq!(found(MONITOR, None), Vec::<String>::new());
        assert_eq!(found(&format!("{MONITOR}, {CACHE}"), Some(&lock("1.3.0"))), Vec::<String>::new());
        for (apis, lock, expected) in [
            (CACHE.to_owned(), None, "package::undeclared-api: the kind ServiceMonitor"),
            (
                format!("{MONITOR}, {CACHE}"),
                Some(lock("1.1.0")),
                "package::lock: operator.lock has no package",
            ),
            (
                format!("{MONITOR}, {MONITOR}"),
                None,
                "package::requires: the kind ServiceMonitor is there twice",
            ),
            ("{apiVersion: example.org/v1, kind: Shop}".to_owned(), None, "brings the kind Shop itself"),
            ("{apiVersion: a.example.org/v1, kind: A, version: ^1}".to_owned(), None, "`package` is not set"),
            (
                "{apiVersion: a.example.org/v1, kind: A, package: 'oci://r/a:1'}".to_owned(),
                None,
                "oci://HOST/PATH",
            ),
        ] {
            let found = found(&apis, lock.as_deref());
            assert!(found.iter().any(|text| text.contains(expected)), "{expected}: {found:?}");
        }
    }
}
