//! Checks `permissions` of a package against what is derived.

use super::derive::{RBAC, built_in, declared, from_templates};
use super::rules::{Right, Rights};
use crate::api::BuiltIn;
use crate::diag::{Diagnostic, did_you_mean};
use crate::package::{Granted, Package, Permission};

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
    found.extend(escalating(package, &derived));
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

/// The roles of Kubernetes whose rights no package repeats.
const KNOWN_ROLES: [&str; 4] = ["view", "edit", "admin", "cluster-admin"];

/// Children that grant rights: the API server refuses them unless the account has those rights itself, or may `bind` or
/// `escalate`.
fn escalating(package: &Package, derived: &Rights) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let mut own = derived.clone();
    own.extend(package.permissions.iter().flat_map(|permission| declared(package, permission)));
    for Granted { child, rules, is_whole, urls, cluster_role, is_of_own_role, location } in package.granted()
    {
        let Some(kind) = child.kinds.iter().map(|gvk| &*gvk.kind).find(|kind| kind.contains("Role")) else {
            continue;
        };
        let is_binding = kind.ends_with("Binding");
        if is_binding && may(package, "bind", cluster_role.as_deref())
            || !is_binding && may(package, "escalate", None)
        {
            continue;
        }
        let known = found.len();
        for rule in &rules {
            let missing = declared(package, rule).into_iter().filter(|right| !own.grants(right));
            let missing: Vec<String> = missing.map(|right| right.to_string()).collect();
            if missing.is_empty() {
                continue;
            }
            let message = format!(
                "the package does not have these rights itself, so the API server refuses the {kind} of `{}`: {}",
                child.id,
                missing.join(", ")
            );
            let help = "repeat the rule in spec.permissions";
            found.push(
                Diagnostic::warning("rights::grants", message).located(rule.location.clone()).help(help),
            );
        }
        if let Some(at) = urls {
            let message = format!(
                "a package has no rights to URLs itself, so the API server refuses the {kind} of `{}`",
                child.id
            );
            let help = "remove nonResourceURLs, bind a ClusterRole that the cluster has, or allow the package to `escalate` roles";
            found.push(Diagnostic::warning("rights::grants", message).located(at).help(help));
        }
        let is_known_role = cluster_role.as_ref().is_some_and(|name| KNOWN_ROLES.contains(&name.as_str()));
        // The rules of a role that the package makes were checked with it.
        let is_checked = if is_binding { is_of_own_role } else { is_whole };
        let is_complete = is_checked || !package.permissions.is_empty() && !is_known_role;
        if found.len() > known || is_complete {
            continue;
        }
        let message = format!(
            "the child `{}` is a {kind}: the package can grant only rights that it has itself",
            child.id
        );
        let help = if is_binding {
            "allow it to bind the role, in spec: permissions: [{apiGroups: [rbac.authorization.k8s.io], resources: \
             [clusterroles], resourceNames: [view], verbs: [bind]}]"
        } else {
            "repeat the rules of the role in spec.permissions"
        };
        found.push(Diagnostic::warning("rights::grants", message).located(location).help(help));
    }
    found
}

/// Whether `permissions` allow a verb on roles, or on the role of that name.
fn may(package: &Package, verb: &str, role: Option<&str>) -> bool {
    let has = |words: &[String], wanted: &[&str]| {
        words.iter().any(|word| word == "*" || wanted.contains(&word.as_str()))
    };
    package.permissions.iter().any(|permission| {
        let Permission { api_groups, resources, resource_names, verbs, .. } = permission;
        let is_named = resource_names.is_empty() || role.is_none_or(|role| has(resource_names, &[role]));
        has(verbs, &[verb])
            && has(api_groups, &[RBAC])
            && has(resources, &["roles", "clusterroles"])
            && is_named
    })
}
