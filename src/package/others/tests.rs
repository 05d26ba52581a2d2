use crate::test_crd::open_crd;
use crate::{Files, Package, compile};

/// A package whose kind Guest reaches its kind Base.
fn compiled(scope: &str, reference: &str, exec: &str) -> Result<Package, Vec<String>> {
    of_step(scope, reference, &format!("exec: {{{exec}}}, idempotent: true"))
}

fn of_step(scope: &str, reference: &str, step: &str) -> Result<Package, Vec<String>> {
    let operator = format!(
        "apiVersion: operetta.dev/v1alpha1
kind: OperatorPackage
metadata: {{name: p}}
spec:
  version: 0.1.0
  resources:
    - crd: crds/guest.yaml
      refs:
        - {{id: base, {reference}}}
      plans:
        deploy: {{steps: [{{name: a, {step}}}]}}
    - crd: crds/base.yaml
      children:
        - {{id: m, template: templates/m.yaml, forEach: {{in: range(2), as: i, key: i}}}}
        - {{id: sts, template: templates/sts.yaml}}
        - {{id: svc, template: templates/svc.yaml}}
"
    );
    let member = "apiVersion: v1\nkind: Pod\nmetadata: {name: \"{{ name }}-{{ i }}\"}\nspec: {containers: [{name: c, image: i}, {name: d, image: i}]}\n";
    let sts = "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: \"{{ name }}\"}\nspec: {serviceName: s, selector: {matchLabels: {app: x}}, \
               template: {metadata: {labels: {app: x}}, spec: {containers: [{name: c, image: i}]}}}\n";
    let svc = "apiVersion: v1\nkind: Service\nmetadata: {name: \"{{ name }}\"}\nspec: {selector: {app: x}, ports: [{port: 80}]}\n";
    let files = [
        ("operator.yaml", operator.as_str()),
        ("crds/base.yaml", &open_crd("example.org", "bases", "Base").replace("Namespaced", scope)),
        ("crds/guest.yaml", &open_crd("example.org", "guests", "Guest")),
        ("templates/m.yaml", member),
        ("templates/sts.yaml", sts),
        ("templates/svc.yaml", svc),
    ];
    let told = |found: Vec<crate::diag::Diagnostic>| {
        let wanted = found.iter().filter(|found| found.is_error() || found.code == "package::container");
        wanted.map(|found| format!("{} {}", found.code, found.message)).collect::<Vec<_>>()
    };
    match compile(&Files::from_texts("p", files)) {
        Ok((_, warnings)) if !told(warnings.clone()).is_empty() => Err(told(warnings)),
        Ok((package, _)) => Ok(package),
        Err(errors) => Err(told(errors)),
    }
}

const BASE: &str = "apiVersion: example.org/v1, kind: Base, name: '{{ spec.base }}'";

#[test]
fn pods_of_another_kind_are_reached() {
    let package = compiled("Namespaced", BASE, "of: base, child: sts, ordinal: 0, command: [x]").unwrap();
    let [guest, base] = &package.resources[..] else { panic!() };
    assert!(base.is_reached && !guest.is_reached);
    let kept: Vec<_> = base.child("sts").unwrap().kept_paths().collect();
    assert_eq!(kept, [["spec", "selector"]], "its pods are found by its selector");
    assert_eq!(&*guest.reference("base").unwrap().reads, [["metadata", "uid"]]);
    let keyed = compiled("Namespaced", BASE, "of: base, child: 'm[{{ 0 }}]', container: c, command: [x]");
    assert!(keyed.is_ok(), "{keyed:?}");
}

#[test]
fn unreachable_children_of_other_instances_are_errors() {
    let exec = "of: base, child: sts, command: [x]";
    for (scope, reference, exec, expected) in [
        (
            "Namespaced",
            BASE,
            "of: bas, child: sts, command: [x]",
            "package::unknown-path there is no ref `bas`",
        ),
        (
            "Namespaced",
            BASE,
            "of: base, child: st, command: [x]",
            "package::unknown-child Base has no child `st`",
        ),
        (
            "Namespaced",
            BASE,
            "of: base, child: 'sts[0]', command: [x]",
            "package::value `sts` of Base has no forEach",
        ),
        (
            "Namespaced",
            BASE,
            "of: base, child: 'm[0]', command: [x]",
            "package::container the pods of `m` have several",
        ),
        (
            "Namespaced",
            BASE,
            "of: base, child: 'm[0]', container: e, command: [x]",
            "package::container the pods of `m` have no",
        ),
        (
            "Namespaced",
            "apiVersion: v1, kind: Secret, name: x",
            exec,
            "package::of `of` needs a ref to a kind of this package",
        ),
        (
            "Namespaced",
            "apiVersion: example.org/v1, kind: Base, selector: {a: b}",
            exec,
            "package::of `of` needs a ref to one object",
        ),
        (
            "Namespaced",
            "apiVersion: example.org/v1, kind: Base, name: '{{ i }}', forEach: {in: 'spec.a', as: i}",
            exec,
            "package::of `of` needs a ref to one object",
        ),
        (
            "Namespaced",
            "apiVersion: example.org/v1, kind: Base, name: x, namespace: other",
            exec,
            "package::of `of` reaches instances in the namespace",
        ),
        ("Cluster", BASE, exec, "package::of `of` reaches instances in the namespace"),
    ] {
        let found = compiled(scope, reference, exec).unwrap_err();
        assert!(found.iter().any(|found| found.starts_with(expected)), "{expected}: {found:?}");
    }
}

#[test]
fn requests_go_to_pods_of_children() {
    for http in [
        "of: base, child: sts, ordinal: 0, port: 8008, path: '/a/{{ name }}?b={{ namespace }}', scheme: https, host: x.example",
        "of: base, child: 'm[0]', port: '{{ 8000 + 8 }}', method: POST, json: {a: 1}",
        "of: base, child: sts, port: 80",
    ] {
        let package = of_step("Namespaced", BASE, &format!("http: {{{http}}}"));
        assert!(package.unwrap().resources[1].is_reached, "{http}");
    }
    for (http, expected) in [
        ("of: base, child: sts", "package::missing a request to a child needs a port"),
        ("of: base, child: sts, port: 0", "package::type must be a number from 1 to 65535"),
        ("of: base, child: sts, port: http", "package::type must be a number from 1 to 65535"),
        ("of: base, child: sts, port: 80, path: x", "package::url the path does not begin with a slash"),
        (
            "of: base, child: sts, port: 80, path: '{{ name }}'",
            "package::url the path does not begin with a slash",
        ),
        (
            "of: base, child: sts, port: 80, url: 'http://a.example/'",
            "package::value a request to a child has no `url`",
        ),
        (
            "of: base, child: sts, port: 80, hosts: [a.example]",
            "package::value a request to a child has no `hosts`",
        ),
        (
            "of: base, child: sts, port: 80, redirects: 1",
            "package::value a request to a child has no `redirects`",
        ),
        ("of: base, child: svc, port: 80", "package::value `svc` is a Service, and requests go to pods"),
        ("of: base, child: st, port: 80", "package::unknown-child Base has no child `st`"),
        ("url: 'http://a.example/', port: 80", "package::value `port` requires `child`"),
        ("method: GET", "package::missing the request has neither `url` nor `child`"),
    ] {
        let found = of_step("Namespaced", BASE, &format!("http: {{{http}}}")).unwrap_err();
        assert!(found.iter().any(|found| found.starts_with(expected)), "{expected}: {found:?}");
    }
}
