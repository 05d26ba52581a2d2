use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::api::{ApiKind, Gvk};
use crate::package::{Files, Package, compile, load};
use crate::test_crd::{crd_to_properties, open_crd};

/// A package of a namespaced kind with these entries of its spec and of its resource, and these templates.
pub(super) fn package(spec: &str, resource: &str, templates: &[(&str, &str)]) -> Package {
    of_scope("Namespaced", spec, resource, templates)
}

pub(super) fn of_scope(scope: &str, spec: &str, resource: &str, templates: &[(&str, &str)]) -> Package {
    let operator = format!(
        "apiVersion: operetta.dev/v1alpha1\nkind: OperatorPackage\nmetadata: {{name: web}}\nspec:\n  version: 0.1.0\n{spec}  \
         resources:\n    - crd: crds/web.yaml\n{resource}"
    );
    let crd = crd_to_properties("example.com", "webs", "Web").replace("Namespaced", scope)
        + "            spec: {type: object, properties: {a: {type: string}, \"on\": {type: boolean}}}\n";
    let files = [("operator.yaml", operator.as_str()), ("crds/web.yaml", crd.as_str())];
    let files = Files::from_texts("p", files.into_iter().chain(templates.iter().copied()));
    let compiled = compile(&files).map(|(package, _)| package);
    compiled.unwrap_or_else(|errors| panic!("{}", crate::diag::render(&errors, false)))
}

fn derived(package: &Package) -> Derived {
    derive(&[package], &|_| None)
}

/// Each right as `verb resource` with its place.
fn texts(rights: &Rights) -> BTreeSet<String> {
    rights.iter().map(|right| format!("{right} ({:?})", right.place)).collect()
}

#[test]
fn rights_cover_all_branches_of_a_template() {
    let template = "{% if spec.on %}\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n{% else %}\napiVersion: \
                    networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: a}\n{% endif %}\n";
    let package = package(
        "",
        "      children: [{id: a, template: templates/a.yaml}]\n",
        &[("templates/a.yaml", template)],
    );
    let found = derived(&package);
    assert!(found.guessed.is_empty());
    let verbs = ["get", "list", "watch", "create", "patch", "delete"];
    assert_eq!(
        found.rights.rules(),
        [
            json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs}),
            json!({"apiGroups": ["example.com"], "resources": ["webs/finalizers"], "verbs": ["update"]}),
            json!({"apiGroups": ["networking.k8s.io"], "resources": ["ingresses"], "verbs": verbs}),
        ]
    );
}

#[test]
fn refs_need_rights_in_their_namespaces() {
    let refs = "      refs:
        - {id: own, apiVersion: v1, kind: Secret, name: \"{{ spec.a }}\"}
        - {id: manager, apiVersion: v1, kind: ConfigMap, name: c, namespace: \"{{ operator.namespace }}\"}
        - {id: there, apiVersion: v1, kind: Service, name: s, namespace: kube-system}
        - {id: all, apiVersion: monitoring.coreos.com/v1, kind: ServiceMonitor, selector: {a: b}, namespaces: all}
        - {id: node, apiVersion: v1, kind: Node, name: first}
      status: {x: \"[refs.own, refs.manager, refs.there, refs.all, refs.node] | length\"}
";
    let found = derived(&package("", refs, &[]));
    assert_eq!(found.guessed, BTreeSet::from([Gvk::new("monitoring.coreos.com/v1", "ServiceMonitor")]));
    let expected = [
        "list configmaps in the manager's namespace (Manager)",
        "list nodes (Cluster)",
        "list secrets (Home)",
        "list servicemonitors.monitoring.coreos.com (Everywhere)",
        "list services in kube-system (Namespace(\"kube-system\"))",
    ];
    let expected = expected.into_iter().flat_map(|list| [list.to_owned(), list.replacen("list", "watch", 1)]);
    assert_eq!(texts(&found.rights), expected.collect());
}

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: []}\n";

#[test]
fn plans_add_the_rights_that_their_steps_need() {
    let plans = "      children: [{id: a, template: templates/a.yaml}]
      plans:
        deploy:
          steps:
            - name: group
              steps:
                - {name: run, job: {template: templates/job.yaml}, outputs: {p: {value: message, secret: true}}}
            - {name: call, exec: {child: a, command: [\"true\"]}, idempotent: true}
            - {name: mark, patch: {apiVersion: apps/v1, kind: Deployment, name: d, merge: {metadata: {labels: {a: b}}}}}
";
    let job = "apiVersion: batch/v1\nkind: Job\nspec: {template: {spec: {containers: []}}}\n";
    let package = package("", plans, &[("templates/a.yaml", POD), ("templates/job.yaml", job)]);
    let verbs = |resource: &str| -> Vec<String> {
        let rights = derived(&package).rights;
        let of = rights.iter().filter(|right| right.full_resource() == resource);
        of.map(|right| right.verb.clone()).collect()
    };
    assert_eq!(verbs("jobs.batch"), ["create", "delete", "get", "patch"]);
    assert_eq!(verbs("pods"), ["create", "delete", "get", "list", "patch", "watch"]);
    assert_eq!(verbs("pods/log"), ["get"]);
    assert_eq!(verbs("pods/exec"), ["create", "get"]);
    assert_eq!(verbs("secrets"), ["create", "list", "patch", "watch"]);
    assert_eq!(verbs("deployments.apps"), ["patch"]);
}

#[test]
fn a_command_in_a_workload_needs_its_pods() {
    let deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec: {selector: {matchLabels: {a: \
                      b}}, template: {metadata: {labels: {a: b}}, spec: {containers: []}}}\n";
    let resource = "      children: [{id: a, template: templates/a.yaml}]
      refs: [{id: seen, exec: {child: a, command: [\"true\"]}}]
      status: {x: refs.seen.stdout}
";
    let found = texts(&derived(&package("", resource, &[("templates/a.yaml", deployment)])).rights);
    for right in ["list pods", "watch pods", "get pods", "get pods/exec", "list replicasets.apps"] {
        assert!(found.contains(&format!("{right} (Home)")), "{right}: {found:?}");
    }
    assert!(
        !found.contains("create pods (Home)") && !found.contains("get replicasets.apps (Home)"),
        "{found:?}"
    );
}

#[test]
fn a_command_in_a_child_of_another_kind_needs_its_pods() {
    let set = "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: a}\nspec: {serviceName: a, selector: {matchLabels: {a: b}}, \
               template: {metadata: {labels: {a: b}}, spec: {containers: []}}}\n";
    let resource = "      refs:
        - {id: base, apiVersion: example.com/v1, kind: Base, name: \"{{ spec.a }}\"}
        - {id: seen, exec: {of: base, child: a, command: [\"true\"]}}
      status: {x: refs.seen.stdout}
    - crd: crds/base.yaml
      children: [{id: a, template: templates/a.yaml}]
";
    let crd = open_crd("example.com", "bases", "Base");
    let files = [("templates/a.yaml", set), ("crds/base.yaml", crd.as_str())];
    let found = texts(&derived(&package("", resource, &files)).rights);
    for right in ["list pods", "get pods", "get pods/exec", "create pods/exec", "watch bases.example.com"] {
        assert!(found.contains(&format!("{right} (Home)")), "{right}: {found:?}");
    }
    assert!(!found.contains("create pods (Home)"), "{found:?}");
}

#[test]
fn a_request_to_a_child_reads_its_pod_and_runs_nothing() {
    let resource = "      children: [{id: a, template: templates/a.yaml}]
      refs: [{id: seen, http: {child: a, port: 80}}]
      status: {x: refs.seen.status}
";
    let found = texts(&derived(&package("", resource, &[("templates/a.yaml", POD)])).rights);
    assert!(
        found.contains("get pods (Home)") && !found.iter().any(|right| right.contains("exec")),
        "{found:?}"
    );
}

#[test]
fn jobs_of_cluster_scoped_instances_run_in_the_managers_namespace() {
    let plans = "      plans: {deploy: {steps: [{name: run, job: {template: templates/job.yaml}}]}}\n";
    let job = "apiVersion: batch/v1\nkind: Job\nspec: {template: {spec: {containers: []}}}\n";
    let package = of_scope("Cluster", "", plans, &[("templates/job.yaml", job)]);
    let rights = derived(&package).rights;
    assert!(!rights.is_empty() && rights.iter().all(|right| right.place == Place::Manager), "{rights:?}");
}

#[test]
fn permissions_are_added_and_checked() {
    let spec = "  permissions:
    - {apiGroups: [\"\"], resources: [configmaps], verbs: [get, update]}
    - {apiGroups: [rbac.authorization.k8s.io], resources: [clusterroles], resourceNames: [view], verbs: [bind]}
    - {apiGroups: [apps], resources: [deployment], verbs: [read]}
    - {apiGroups: [\"\"], resources: [deployments], verbs: [list]}
    - {apiGroups: [example.org], resources: [\"*\"], verbs: [list]}
";
    let template = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";
    let resource = "      children: [{id: a, template: templates/a.yaml}]\n";
    let package = package(spec, resource, &[("templates/a.yaml", template)]);
    let found = texts(&derived(&package).rights);
    for right in ["update configmaps (Home)", "bind clusterroles.rbac.authorization.k8s.io view (Home)"] {
        assert!(found.contains(right), "{right}: {found:?}");
    }
    let found: Vec<_> =
        check(&package).iter().map(|d| format!("{}: {}; {:?}", d.code, d.message, d.help)).collect();
    for (code, words) in [
        (
            "rights::needless",
            "a part of this rule is derived from the package and needless here: get configmaps",
        ),
        (
            "rights::unknown",
            "the group apps has no resource `deployment`; Some(\"did you mean `deployments`?\")",
        ),
        ("rights::unknown", "`read` is no verb of Kubernetes"),
        (
            "rights::unknown",
            "the core group has no resource `deployments`; Some(\"it is in apiGroups: [\\\"apps\\\"]\")",
        ),
        ("rights::wildcard", "`*` grants everything"),
    ] {
        assert!(
            found.iter().any(|text| text.starts_with(code) && text.contains(words)),
            "{words}: {found:#?}"
        );
    }
    assert_eq!(found.len(), 5, "{found:#?}");
}

/// The findings about a role of these rules and a binding to that role, in a package with these permissions.
fn grants(permissions: &str, rules: &str, role_ref: &str) -> Vec<String> {
    let head = "apiVersion: rbac.authorization.k8s.io/v1\nmetadata: {name: \"{{ name }}\"}\nkind:";
    let role = format!("{head} Role\nrules: {rules}\n");
    let binding =
        format!("{head} RoleBinding\nroleRef: {{apiGroup: rbac.authorization.k8s.io, {role_ref}}}\n");
    let resource = "      children: [{id: role, template: templates/role.yaml}, {id: bind, template: templates/bind.yaml}]\n";
    let templates = [("templates/role.yaml", role.as_str()), ("templates/bind.yaml", binding.as_str())];
    let found = check(&package(permissions, resource, &templates));
    found.iter().map(|found| format!("{} {found}", found.code)).collect()
}

#[test]
fn a_child_that_grants_rights_needs_permissions() {
    const OWN: &str = "kind: Role, name: \"{{ name }}\"";
    const VIEW: &str = "kind: ClusterRole, name: view";
    const PODS: &str = "[{apiGroups: [\"\"], resources: [pods], verbs: [get, list]}]";
    let of = |rule: &str| format!("  permissions: [{rule}]\n");
    let pods = of("{apiGroups: [\"\"], resources: [pods], verbs: [get, list]}");
    let bind = of(
        "{apiGroups: [rbac.authorization.k8s.io], resources: [clusterroles], resourceNames: [view], verbs: [bind]}",
    );
    let one = of("{apiGroups: [\"\"], resources: [pods], verbs: [get]}");
    // What the package has anyway: it makes roles.
    let known = "[{apiGroups: [rbac.authorization.k8s.io], resources: [roles], verbs: [get]}]";
    for (permissions, rules, role, wanted) in [
        ("", known, OWN, &[("", ""); 0][..]),
        ("", "[]", VIEW, &[("templates/bind.yaml:4:", "the child `bind` is a RoleBinding")]),
        (&bind, "[]", VIEW, &[]),
        (&pods, "[]", VIEW, &[("templates/bind.yaml:4:", "the child `bind` is a RoleBinding")]),
        (
            "",
            PODS,
            OWN,
            &[(
                "templates/role.yaml:4:",
                "the package does not have these rights itself, so the API server refuses the Role of `role`: get pods, list pods;",
            )],
        ),
        (
            &one,
            PODS,
            OWN,
            &[(
                "templates/role.yaml:4:",
                "the package does not have these rights itself, so the API server refuses the Role of `role`: list pods;",
            )],
        ),
        (&pods, PODS, OWN, &[]),
        (
            &pods,
            "[{nonResourceURLs: [/metrics], verbs: [get]}]",
            OWN,
            &[(
                "templates/role.yaml:4:",
                "a package has no rights to URLs itself, so the API server refuses the Role of `role`",
            )],
        ),
        // What an expression yields is unknown.
        (
            "",
            "[{apiGroups: [\"\"], resources: [pods], resourceNames: [\"{{ name }}\"], verbs: [get]}]",
            OWN,
            &[("operator.yaml:8:23:", "the child `role` is a Role")],
        ),
        (
            &one,
            "[{apiGroups: [\"\"], resources: [pods], resourceNames: [\"{{ name }}\"], verbs: [get, list]}]",
            OWN,
            &[],
        ),
    ] {
        let found = grants(permissions, rules, role);
        let is_right = |(found, (at, words)): (&String, &(&str, &str))| {
            found.starts_with(&format!("rights::grants p/{at}")) && found.contains(words)
        };
        assert!(
            found.len() == wanted.len() && found.iter().zip(wanted).all(is_right),
            "{permissions}{rules}: {found:#?}"
        );
    }
}

fn named<'a>(objects: &'a [Value], kind: &str, namespace: Option<&str>, name: &str) -> &'a Value {
    let is_it = |object: &&Value| {
        object["kind"] == kind
            && object["metadata"]["name"] == name
            && object["metadata"]["namespace"].as_str() == namespace
    };
    objects.iter().find(is_it).unwrap_or_else(|| panic!("no {kind} {name} in {namespace:?}: {objects:#?}"))
}

#[test]
fn rights_are_granted_where_they_are_needed() {
    let refs = "      refs:
        - {id: own, apiVersion: v1, kind: Secret, name: \"{{ spec.a }}\"}
        - {id: manager, apiVersion: v1, kind: ConfigMap, name: c, namespace: \"{{ operator.namespace }}\"}
        - {id: node, apiVersion: v1, kind: Node, name: first}
      status: {x: \"[refs.own, refs.manager, refs.node] | length\"}
";
    let package = package("", refs, &[]);
    let rights = derived(&package).rights;
    let resources = |object: &Value| -> Vec<String> {
        let rules = object["rules"].as_array().unwrap().iter();
        rules
            .flat_map(|rule| rule["resources"].as_array().unwrap())
            .map(|r| r.as_str().unwrap().to_owned())
            .collect()
    };
    let all = objects(&package, &rights, &Placement::everywhere("system"));
    assert_eq!(resources(named(&all, "ClusterRole", None, "operetta:web")), ["nodes", "secrets"]);
    assert_eq!(resources(named(&all, "Role", Some("system"), "operetta:web")), ["configmaps"]);
    let impersonate = named(&all, "Role", Some("system"), "operetta:web:impersonate");
    let rule = json!({
        "apiGroups": [""], "resources": ["serviceaccounts"], "resourceNames": ["operetta-web"], "verbs": ["impersonate"],
    });
    assert_eq!(impersonate["rules"], json!([rule]));
    let binding = named(&all, "RoleBinding", Some("system"), "operetta:web:impersonate");
    assert_eq!(binding["subjects"][0]["name"], MANAGER);
    let instances = named(&all, "ClusterRole", None, "operetta:web:instances");
    assert_eq!(instances["metadata"]["labels"][TO_MANAGER], "true");
    let edit = named(&all, "ClusterRole", None, "operetta:web:edit");
    assert_eq!(edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"], "true");

    let placement = Placement {
        namespaces: Some(BTreeSet::from(["a".to_owned(), "b".to_owned()])),
        ..Placement::everywhere("system")
    };
    let all = objects(&package, &rights, &placement);
    assert_eq!(resources(named(&all, "ClusterRole", None, "operetta:web")), ["nodes"]);
    for namespace in ["a", "b"] {
        assert_eq!(resources(named(&all, "Role", Some(namespace), "operetta:web")), ["secrets"]);
        named(&all, "RoleBinding", Some(namespace), "operetta:web");
    }
}

#[test]
fn rules_group_names_and_verbs() {
    let right = |resource: &str, name: Option<&str>, verb: &str| Right {
        place: Place::Home,
        group: "g".into(),
        resource: resource.into(),
        name: name.map(str::to_owned),
        verb: verb.into(),
    };
    let all = [
        right("a", None, "watch"),
        right("a", None, "get"),
        right("b", None, "get"),
        right("b", None, "watch"),
        right("c", Some("x"), "get"),
        right("c", Some("y"), "get"),
    ];
    let rights: Rights = all.into_iter().collect();
    let expected = [
        json!({"apiGroups": ["g"], "resources": ["a", "b"], "verbs": ["get", "watch"]}),
        json!({"apiGroups": ["g"], "resources": ["c"], "resourceNames": ["x", "y"], "verbs": ["get"]}),
    ];
    assert_eq!(rights.rules(), expected);
}

/// No package that ships or serves as an example names a kind whose plural is a guess, and `permissions` of none are needless.
#[test]
fn shipped_packages_have_known_rights() {
    for folder in ["operators", "examples/packages"] {
        for entry in
            std::fs::read_dir(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(folder)).unwrap()
        {
            let path = entry.unwrap().path();
            let (package, _) =
                load(&path).unwrap_or_else(|errors| panic!("{}", crate::diag::render(&errors, false)));
            assert!(derived(&package).guessed.is_empty(), "{}", path.display());
            assert_eq!(check(&package), [], "{}", path.display());
        }
    }
}

#[test]
fn kinds_of_other_packages_have_their_plural() {
    let refs = "      refs: [{id: other, apiVersion: x.org/v1, kind: Mouse, name: m}]\n      status: {x: refs.other.a}\n";
    let package = package("", refs, &[]);
    let served = |gvk: &Gvk| {
        (*gvk.kind == *"Mouse")
            .then(|| ApiKind { plural: "mice".into(), ..ApiKind::built_in("x.org/v1", "Mouse") })
    };
    let found = derive(&[&package], &served);
    assert!(found.guessed.is_empty());
    assert!(texts(&found.rights).contains("list mice.x.org (Cluster)"), "{:?}", found.rights);
}
