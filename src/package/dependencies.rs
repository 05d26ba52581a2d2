//! Packages that require kinds of each other: whether they fit together, and in which order they are installed.

use super::model::{Package, RequiredApi, Resource};
use super::{conflicts, lock::MOST_PACKAGES};

/// Why `provider`, which brings the kind, is not what `package` requires.
fn unfit(package: &Package, api: &RequiredApi, provider: &Package, resource: &Resource) -> Option<String> {
    if !resource.served_kinds().any(|served| served == api.gvk) {
        let served: Vec<&str> = resource.served_versions().collect();
        return Some(format!(
            "{} requires the kind {api}, and {} serves it as {}",
            package.title(),
            provider.title(),
            served.join(", ")
        ));
    }
    // A range is one of the versions of the package that is named, not of another that brings the same kind.
    let is_named = package.locked_for(api).is_none_or(|locked| locked.name == provider.name);
    (is_named && api.range.is_some() && !api.accepts(&provider.version)).then(|| {
        format!(
            "{} requires {} in {} for the kind {api}, and it would be {}",
            package.title(),
            provider.name,
            api.range_text(),
            provider.title()
        )
    })
}

/// Why packages do not fit into one cluster, by name; `installed` have been there before.
pub fn misfits(packages: &[&Package], installed: &[&Package]) -> Vec<String> {
    let mut found = Vec::new();
    for (at, problem) in conflicts(packages) {
        found.push(format!("{}: {}", packages[at].title(), problem.message));
    }
    let all: Vec<&Package> = packages.iter().chain(installed).copied().collect();
    for package in &all {
        for api in &package.required {
            let providers = all.iter().filter(|other| other.name != package.name);
            let providers: Vec<_> = providers
                .filter_map(|other| other.resource_of(&api.gvk).map(|resource| (*other, resource)))
                .collect();
            let problems: Vec<Option<String>> = providers
                .iter()
                .map(|(provider, resource)| unfit(package, api, provider, resource))
                .collect();
            // A package that has handed a kind over still has it in its files.
            let is_new = |one: &Package| packages.iter().any(|new| std::ptr::eq(*new, one));
            let concerns = is_new(package) || providers.iter().any(|(provider, _)| is_new(provider));
            if concerns && problems.iter().all(Option::is_some) {
                found.extend(problems.into_iter().flatten());
            }
        }
    }
    found
}

/// The order in which packages are installed: each after those that bring what it requires.
///
/// # Errors
/// They form a cycle, which the message names.
pub fn order(packages: &[&Package]) -> Result<Vec<usize>, String> {
    let mut order = Vec::with_capacity(packages.len());
    let mut path = Vec::new();
    for at in 0..packages.len() {
        visit(packages, at, &mut path, &mut order)?;
    }
    Ok(order)
}

fn visit(
    packages: &[&Package],
    at: usize,
    path: &mut Vec<usize>,
    order: &mut Vec<usize>,
) -> Result<(), String> {
    if order.contains(&at) {
        return Ok(());
    }
    let start = path.iter().position(|before| *before == at);
    path.push(at);
    if let Some(start) = start {
        let names: Vec<&str> = path[start..].iter().map(|at| packages[*at].name.as_str()).collect();
        return Err(format!("the packages require each other: {}", names.join(" -> ")));
    }
    debug_assert!(path.len() <= MOST_PACKAGES + 1, "at most all packages");
    // What is optional may come later.
    for api in packages[at].required.iter().filter(|api| !api.optional) {
        let provider = packages.iter().position(|other| other.resource_of(&api.gvk).is_some());
        if let Some(provider) = provider.filter(|provider| *provider != at) {
            visit(packages, provider, path, order)?;
        }
    }
    path.pop();
    order.push(at);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Files;

    /// A package with one kind, whose name is the package's in upper case, and what it requires.
    fn package(name: &str, version: &str, requires: &[(&str, &str)]) -> Package {
        let kind = name[..1].to_uppercase() + &name[1..];
        let apis: String = requires
            .iter()
            .map(|(other, range)| {
                let kind = other[..1].to_uppercase() + &other[1..];
                format!("      - {{apiVersion: {other}.example.org/v1, kind: {kind}, package: 'oci://r.example/{other}', version: '{range}'}}\n")
            })
            .collect::<Vec<_>>()
            .concat();
        let requires =
            if apis.is_empty() { String::new() } else { format!("  requires:\n    apis:\n{apis}") };
        let text = format!(
            "apiVersion: operetta.dev/v1alpha1\nkind: OperatorPackage\nmetadata: {{name: {name}}}\nspec:\n  version: {version}\n{requires}  resources:\n  - crd: crds/a.yaml\n"
        );
        let crd = format!(
            "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: {name}s.{name}.example.org}}\nspec:\n  group: {name}.example.org\n  scope: Namespaced\n  names: {{kind: {kind}, plural: {name}s}}\n  versions:\n  - name: v1\n    served: true\n    storage: true\n    schema: {{openAPIV3Schema: {{type: object, properties: {{spec: {{type: object}}}}}}}}\n"
        );
        let files = Files::from_texts(name, [("operator.yaml", text), ("crds/a.yaml", crd)]);
        crate::compile(&files).unwrap_or_else(|errors| panic!("{errors:?}")).0
    }

    #[test]
    fn required_packages_come_first() {
        let (shop, cache, queue) = (
            package("shop", "1.0.0", &[("cache", "^1"), ("queue", "^1")]),
            package("cache", "1.2.0", &[("queue", "*")]),
            package("queue", "1.0.0", &[]),
        );
        assert_eq!(order(&[&shop, &cache, &queue]).unwrap(), [2, 1, 0]);
        assert_eq!(misfits(&[&shop, &cache], &[&queue]), Vec::<String>::new());
    }

    #[test]
    fn cycles_are_named() {
        let (shop, cache) =
            (package("shop", "1.0.0", &[("cache", "^1")]), package("cache", "1.2.0", &[("shop", "^1")]));
        let error = order(&[&shop, &cache]).unwrap_err();
        assert_eq!(error, "the packages require each other: shop -> cache -> shop");
    }

    #[test]
    fn ranges_that_exclude_each_other_are_named() {
        let (shop, blog, cache) = (
            package("shop", "1.0.0", &[("cache", "^1")]),
            package("blog", "2.0.0", &[("cache", "^2")]),
            package("cache", "1.2.0", &[]),
        );
        let expected = "blog 2.0.0 requires cache in ^2 for the kind Cache (cache.example.org/v1), and it would be cache 1.2.0";
        assert_eq!(misfits(&[&blog], &[&shop, &cache]), [expected]);
        // What is installed and does not fit is nothing that a third package changes.
        assert_eq!(misfits(&[&package("other", "1.0.0", &[])], &[&blog, &cache]), Vec::<String>::new());
        let twice = misfits(&[&cache, &package("cache", "2.0.0", &[])], &[]);
        assert!(twice.iter().any(|text| text.contains("the package cache")), "{twice:?}");
    }
}
