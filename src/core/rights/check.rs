//! Checks `permissions` of a package against what is derived.

use super::derive::{built_in, declared, from_templates};
use super::rules::Right;
use crate::api::{BuiltIn, Gvk};
use crate::diag::{Diagnostic, did_you_mean};
use crate::package::{Package, Permission};

/// Findings about `permissions`: rules with unknown words, rules that are derived anyway, and rules that are
/// missing.
pub fn check(package: &Package) -> Vec<Diagnostic> {
    let derived = from_templates(package);
    let mut found = Vec::new();
    for permission in &package.permissions {
        let located = |diagnostic: Diagnostic| {
            diagnostic.located(permission.location.clone()).path(permission.path.clone())
        };
        found.extend(unknown(permission).into_iter().map(located));
        let all = declared(package, permission);
        let needless: Vec<&Right> = all.iter().filter(|right| derived.grants(right)).collect();
        if !needless.is_empty() {
            let names: Vec<String> = needless.iter().map(ToString::to_string).collect();
            let is_whole = needless.len() == all.len();
            let what = if is_whole { "this rule is" } else { "a part of this rule is" };
            let message = format!("{what} derived from the package and needless here: {}", names.join(", "));
            let help = if is_whole { "remove it" } else { "remove that part" };
            found.push(located(Diagnostic::warning("rights::needless", message).help(help)));
        }
    }
    found.extend(escalating(package));
    found
}

/// What is wrong with the words of a rule.
fn unknown(permission: &Permission) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for verb in permission.verbs.iter().filter(|verb| !super::VERBS.contains(&verb.as_str()) && *verb != "*")
    {
        let near = did_you_mean(verb, super::VERBS).map(|near| format!("did you mean `{near}`?"));
        let warning = Diagnostic::warning("rights::unknown", format!("`{verb}` is no verb of Kubernetes"));
        let all = || format!("there is {}", super::VERBS.join(", "));
        found.push(warning.help(near.unwrap_or_else(all)));
    }
    for group in permission.api_groups.iter().filter(|group| is_built_in(group)) {
        for resource in permission.resources.iter().filter(|resource| *resource != "*") {
            let plural = resource.split('/').next().unwrap_or_default();
            if built_in(group, plural).is_some() || plural == "*" {
                continue;
            }
            let of =
                if group.is_empty() { "the core group".to_owned() } else { format!("the group {group}") };
            let message = format!("{of} has no resource `{plural}`");
            let plurals: Vec<String> = plurals(group);
            let near = did_you_mean(plural, plurals.iter().map(String::as_str)).map(str::to_owned);
            let elsewhere = || {
                let groups: Vec<&str> = groups_of(plural);
                (!groups.is_empty()).then(|| format!("it is in apiGroups: {groups:?}"))
            };
            let help = elsewhere().or_else(|| near.map(|near| format!("did you mean `{near}`?")));
            let help = help.unwrap_or_else(|| "write the plural, such as deployments".to_owned());
            found.push(Diagnostic::warning("rights::unknown", message).help(help));
        }
    }
    let has_wildcard = |words: &[String]| words.iter().any(|word| word == "*");
    let all = [&permission.api_groups, &permission.resources, &permission.verbs];
    if all.into_iter().any(|words| has_wildcard(words)) {
        let message = "`*` grants everything that there is, now and later";
        let help = "name what the package needs";
        found.push(Diagnostic::warning("rights::wildcard", message).help(help));
    }
    found
}

fn is_built_in(group: &str) -> bool {
    BuiltIn::all().iter().any(|known| known.group == group)
}

fn plurals(group: &str) -> Vec<String> {
    let all = BuiltIn::all().iter().filter(|known| known.group == group);
    all.map(|known| crate::api::ApiKind::built_in(&format!("{group}/v1"), known.kind).plural).collect()
}

/// The groups that have a resource of that plural.
fn groups_of(plural: &str) -> Vec<&'static str> {
    let mut groups: Vec<&str> = BuiltIn::all().iter().map(|known| known.group).collect();
    groups.dedup();
    groups.into_iter().filter(|group| built_in(group, plural).is_some()).collect()
}

/// Children that grant rights: the API server refuses them unless the account has those rights itself, or may `bind` or
/// `escalate`.
fn escalating(package: &Package) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    if !package.permissions.is_empty() {
        return found;
    }
    for child in package.resources.iter().flat_map(|resource| &resource.children) {
        let grants = |gvk: &&Gvk| {
            gvk.group() == "rbac.authorization.k8s.io"
                && matches!(&*gvk.kind, "Role" | "ClusterRole" | "RoleBinding" | "ClusterRoleBinding")
        };
        let Some(gvk) = child.kinds.iter().find(grants) else { continue };
        let message = format!(
            "the child `{}` is a {}: the package can grant only rights that it has itself",
            child.id, gvk.kind
        );
        let help = if gvk.kind.ends_with("Binding") {
            "allow it to bind the role, in spec: permissions: [{apiGroups: [rbac.authorization.k8s.io], resources: \
             [clusterroles], resourceNames: [view], verbs: [bind]}]"
        } else {
            "repeat the rules of the role in spec.permissions"
        };
        let warning = Diagnostic::warning("rights::grants", message).help(help);
        found.push(warning.located(child.location.clone()));
    }
    found
}
