//! What deserves attention in the rights of a package, and the hosts that it calls.

use std::collections::{BTreeMap, BTreeSet};

use super::demands::{Demands, is_read, places_text};
use super::objects::Placement;
use super::rules::{Place, Right, in_order};
use crate::api::BuiltIn;
use crate::children::names::MANAGER_NAMESPACE;
use crate::diag::Diagnostic;
use crate::package::Package;
use crate::reach;

/// The beginning of a remark about wildcards, of which lint warns by itself.
const WILDCARDS: &str = "uses wildcards";
const RBAC: &str = "rbac.authorization.k8s.io";
/// Groups whose objects decide what the API server accepts and serves.
const SERVER: [&str; 3] = ["admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io"];

/// Why something is remarkable, and the resource.
type Remark = (String, String);
/// The verbs on the resource, and the places.
type Uses<'a> = (BTreeSet<&'a str>, BTreeSet<&'a Place>);

/// What deserves attention, one sentence without a subject each.
pub(super) fn remarks(demands: &Demands) -> BTreeSet<String> {
    let mut found: BTreeMap<Remark, Uses<'_>> = BTreeMap::new();
    for right in demands.rights.iter() {
        for what in remarkable(demands, right) {
            let name = right.name.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
            let of = found.entry((what.to_owned(), format!("{}{name}", right.full_resource()))).or_default();
            of.0.insert(&right.verb);
            of.1.insert(&right.place);
        }
    }
    let sentence = |((what, resource), (verbs, places)): (Remark, Uses<'_>)| {
        format!("{what}: {} {resource}{}", in_order(&verbs).join(", "), places_text(&places))
    };
    let calls = demands.calls.iter().map(|host| format!("calls {host}"));
    let powers = demands.powers.iter().map(|power| power.sentence().to_owned());
    found.into_iter().map(sentence).chain(calls).chain(powers).collect()
}

/// Why a right is remarkable.
fn remarkable(demands: &Demands, right: &Right) -> Vec<&'static str> {
    let Right { place, group, resource, verb, .. } = right;
    let is = |word: &str, known: &str| word == known || word == "*";
    let is_read = is_read(right);
    let is_closed = |name: &str| reach::closed(&demands.manager).contains(&name);
    let mut found = Vec::new();
    if [group, resource, verb].into_iter().any(|word| word == "*") {
        found.push(WILDCARDS);
    }
    if *place == Place::Everywhere && is(group, "") && is(resource, "secrets") {
        found.push("reads or writes Secrets of all namespaces");
    }
    let into_pods = ["pods/exec", "pods/attach", "pods/portforward", "pods/ephemeralcontainers"];
    if is(group, "") && into_pods.contains(&resource.as_str()) {
        found.push("runs commands in pods");
    }
    if verb == "impersonate" || resource == "serviceaccounts/token" {
        found.push("acts as other users");
    }
    if is(group, RBAC) && !is_read {
        found.push("changes what others may do");
    }
    if SERVER.iter().any(|server| is(group, server)) && !is_read {
        found.push("changes what the API server accepts");
    }
    match place {
        Place::Namespace(name) if is_closed(name) && !is_read => {
            found.push("writes into a system namespace, which --system-namespaces or --namespaces opens");
        }
        Place::Namespace(name) if is_closed(name) => found.push("reads in a system namespace"),
        Place::Everywhere if demands.chosen.grants(right) => {
            found.push("writes into namespaces that an instance chooses");
        }
        Place::Cluster if !is_read && BuiltIn::has_group(group) && !demands.is_own(right) => {
            found.push("writes objects that belong to no namespace");
        }
        _ => {}
    }
    if group != "*" && !BuiltIn::has_group(group) && !demands.is_own(right) {
        found.push("uses kinds of others");
    }
    found
}

/// What `operetta lint` says of the rights of a package that serves all namespaces; `None` if nothing is remarkable.
pub fn note(package: &Package) -> Option<Diagnostic> {
    let rights = super::derive(&[package], &|_| None).rights;
    let demands = Demands::of(package, &rights, &Placement::everywhere(MANAGER_NAMESPACE));
    let remarks = remarks(&demands).into_iter().filter(|remark| !remark.starts_with(WILDCARDS));
    let remarks: Vec<String> = remarks.collect();
    let message = "people who install the package must agree that it";
    let note = Diagnostic::note("rights::remarkable", message).located(package.location.clone());
    (!remarks.is_empty()).then(|| note.help(remarks.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{of_scope, package};
    use super::*;

    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: []}\n";

    fn found(spec: &str, resource: &str) -> BTreeSet<String> {
        let package = package(spec, resource, &[("templates/a.yaml", POD)]);
        let rights = super::super::derive(&[&package], &|_| None).rights;
        remarks(&Demands::of(&package, &rights, &Placement::everywhere("managers")))
    }

    #[test]
    fn remarkable_rights_and_hosts_are_named() {
        let permissions = "  permissions:
    - {apiGroups: [\"*\"], resources: [configmaps], verbs: [get]}
    - {apiGroups: [rbac.authorization.k8s.io], resources: [clusterroles], resourceNames: [view], verbs: [bind]}
    - {apiGroups: [\"\"], resources: [serviceaccounts], verbs: [impersonate]}
";
        let resource = "      children: [{id: a, template: templates/a.yaml}]
      refs:
        - {id: theirs, apiVersion: cert-manager.io/v1, kind: Certificate, name: c}
        - {id: there, apiVersion: v1, kind: ConfigMap, name: c, namespace: kube-system}
        - {id: ours, apiVersion: v1, kind: ConfigMap, name: c, namespace: \"{{ operator.namespace }}\"}
        - {id: secrets, apiVersion: v1, kind: Secret, name: c}
        - {id: said, exec: {child: a, command: [\"true\"]}}
        - {id: seen, http: {url: \"https://api.example.org:8443/x\"}}
      plans:
        work:
          steps:
            - {name: grant, patch: {apiVersion: rbac.authorization.k8s.io/v1, kind: Role, name: r, merge: {rules: []}}}
            - {name: a, http: {url: \"https://hooks.example.org/{{ name }}\"}}
            - {name: b, http: {url: \"{{ defaults.api }}/x\"}}
            - {name: c, http: {url: \"{{ spec.a }}\", hosts: [\"*.example.com\"]}}
      status: {x: \"[refs.theirs, refs.there, refs.ours, refs.secrets, refs.said, refs.seen] | length\"}
";
        let found =
            found(&format!("  defaults: {{api: \"https://defaults.example.org\"}}\n{permissions}"), resource);
        for expected in [
            "acts as other users: impersonate serviceaccounts in all namespaces",
            "calls *.example.com",
            "calls api.example.org:8443",
            "calls defaults.example.org",
            "calls hooks.example.org",
            "changes what others may do: bind clusterroles.rbac.authorization.k8s.io view in all namespaces",
            "changes what others may do: patch roles.rbac.authorization.k8s.io in all namespaces",
            "reads in a system namespace: list, watch configmaps in kube-system, managers",
            "reads or writes Secrets of all namespaces: list, watch secrets in all namespaces",
            "runs commands in pods: get, create pods/exec in all namespaces",
            "uses kinds of others: list, watch certificates.cert-manager.io in all namespaces",
            "uses wildcards: get configmaps.* in all namespaces",
        ] {
            assert!(found.contains(expected), "{expected}: {found:#?}");
        }
        assert_eq!(found.len(), 12, "{found:#?}");
    }

    #[test]
    fn chosen_and_system_namespaces_and_powers_on_nodes_are_named() {
        let resource = "      children: [{id: a, template: templates/a.yaml}]\n";
        let of = |text: &str, is_cluster: bool| {
            let scope = if is_cluster { "Cluster" } else { "Namespaced" };
            let package = of_scope(scope, "", resource, &[("templates/a.yaml", text)]);
            let rights = super::super::derive(&[&package], &|_| None).rights;
            remarks(&Demands::of(&package, &rights, &Placement::everywhere("managers")))
        };
        let pod = |namespace: &str, spec: &str| {
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: a, namespace: \"{namespace}\"}}\nspec: {spec}\n"
            )
        };
        let verbs = "create, patch, delete pods";
        for (text, is_cluster, expected) in [
            (
                pod("{{ spec.a }}", "{serviceAccountName: \"{{ spec.a }}\"}"),
                true,
                vec![
                    "runs pods with a ServiceAccount that an instance chooses".to_owned(),
                    format!("writes into namespaces that an instance chooses: {verbs} in all namespaces"),
                ],
            ),
            (
                pod("kube-system", "{hostPID: true, volumes: [{name: a, hostPath: {path: /}}]}"),
                false,
                vec![
                    "mounts folders of nodes (hostPath)".to_owned(),
                    "reads in a system namespace: get, list, watch pods in kube-system".to_owned(),
                    "shares network, processes or memory with nodes (hostNetwork, hostPID, hostIPC)"
                        .to_owned(),
                    format!(
                        "writes into a system namespace, which --system-namespaces or --namespaces opens: {verbs} in kube-system"
                    ),
                ],
            ),
            (
                "apiVersion: v1\nkind: Namespace\nmetadata: {name: \"{{ name }}\"}\n".to_owned(),
                true,
                vec![
                    "writes objects that belong to no namespace: create, patch, delete namespaces".to_owned(),
                ],
            ),
        ] {
            assert_eq!(of(&text, is_cluster).into_iter().collect::<Vec<_>>(), expected, "{text}");
        }
    }

    #[test]
    fn ordinary_rights_are_not_remarkable() {
        assert!(found("", "      children: [{id: a, template: templates/a.yaml}]\n").is_empty());
    }
}
