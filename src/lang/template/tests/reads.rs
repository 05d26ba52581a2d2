use super::*;

/// Each path as text: `?` marks a path that may be missing, `!` one of which only the state is tested.
fn shown(reads: &Reads) -> Vec<String> {
    let mark = |on: bool, mark: &'static str| if on { mark } else { "" };
    reads
        .paths
        .iter()
        .map(|path| format!("{path}{}{}", mark(path.guarded, "?"), mark(path.flag, "!")))
        .collect()
}

#[test]
fn reads_of_expressions_are_found() {
    let engine = engine(&[("p.yaml", "a: {{ spec.p }}\nb: {{ x.y }}")]);
    for (text, expected) in [
        ("1 + 2", vec![]),
        ("spec.pod.labels", vec!["spec.pod.labels"]),
        ("spec['pod'][0].x", vec!["spec.pod[0].x"]),
        ("spec.list[i]", vec!["i", "spec.list[*]"]),
        ("spec.a + spec.b * -spec.c", vec!["spec.a", "spec.b", "spec.c"]),
        ("spec.a | default(spec.b)", vec!["spec.a?", "spec.b"]),
        ("(spec.a | default({})).x", vec!["spec.a.x?"]),
        ("spec.a is defined", vec!["spec.a?!"]),
        ("spec.a if spec.b else spec.c", vec!["spec.b?", "spec.a", "spec.c"]),
        ("spec.a and spec.b", vec!["spec.a?", "spec.b"]),
        ("spec.a or spec.b", vec!["spec.a?", "spec.b"]),
        ("not spec.a", vec!["spec.a?"]),
        ("let.x.y", vec!["let.x.y"]),
        ("children.a is ready and children.b is current", vec!["children.a?!", "children.b?!"]),
        ("children.m[i] is not ready", vec!["i", "children.m[*]?!"]),
        ("children.m[0].status.n", vec!["children.m[0].status.n"]),
        (
            "children.m.values() | select('ready') | map(attribute='metadata.name') | list",
            vec!["children.m[*]?!", "children.m[*].metadata.name"],
        ),
        ("children.m | length", vec!["children.m!"]),
        ("children.m.values() | map(attribute='status.n') | sum", vec!["children.m[*].status.n"]),
        (
            "let.peers | selectattr('ordinal', 'lt', spec.size) | sort(attribute='rank') | map(attribute='id')",
            vec!["let.peers[*].ordinal", "spec.size", "let.peers[*].rank", "let.peers[*].id"],
        ),
        ("(let.peers | rejectattr('learner') | first).id", vec!["let.peers[*].learner?", "let.peers[*].id"]),
        ("spec.list | join(spec.sep)", vec!["spec.list", "spec.sep"]),
        ("spec.items | sort | first", vec!["spec.items[*]"]),
        ("spec.items | sort(reverse=spec.last)", vec!["spec.items[*]", "spec.last"]),
        ("spec.map.items() | list", vec!["spec.map[*]"]),
        ("[spec.a, {'x': spec.b}]", vec!["spec.a", "spec.b"]),
        ("range(spec.size)", vec!["spec.size"]),
        ("spec.x < 3 < spec.y", vec!["spec.x", "spec.y"]),
        ("spec.x in spec.y", vec!["spec.x", "spec.y"]),
        ("spec.l[spec.i:]", vec!["spec.i", "spec.l[*]"]),
        ("partial('p.yaml')", vec!["spec.p", "x.y"]),
        ("partial('p.yaml', x=spec.z)", vec!["spec.p", "spec.z.y"]),
        ("spec.map.get('k', spec.d)", vec!["spec.map.k?", "spec.d"]),
        ("cluster.has('policy/v1')", vec!["cluster.has"]),
        ("self.status.x", vec!["self.status.x"]),
        ("refs.tls is known", vec!["refs.tls?!"]),
    ] {
        let expr = engine.expression(text, &at(text)).unwrap();
        let mut found = shown(expr.reads());
        // The function itself is looked up as a field of its object.
        if text.starts_with("cluster") {
            found = found.iter().map(|path| format!("{path}.has")).collect();
        }
        assert_eq!(found, expected, "{text}");
    }
}

#[test]
fn reads_of_templates_are_found() {
    for (text, expected) in [
        ("a: {{ spec.a }}\nb: x{{ spec.b }}", vec!["spec.a", "spec.b"]),
        (
            "{% set c = refs.cluster %}\na: {{ c.spec.size }}\nb: {{ c.status.x }}",
            vec!["refs.cluster.spec.size", "refs.cluster.status.x"],
        ),
        ("{% set x = spec.a + 1 %}a: {{ x }}", vec!["spec.a"]),
        (
            "{% for e in spec.envs %}\n- {{ e.name }}: {{ loop.index }}\n{% endfor %}",
            vec!["spec.envs!", "spec.envs[*].name"],
        ),
        (
            "{% for e in spec.envs if e.on %}\n- {{ e }}\n{% else %}\n- {{ spec.none }}\n{% endfor %}",
            vec!["spec.envs!", "spec.envs[*].on?", "spec.envs[*]", "spec.none"],
        ),
        (
            "{% for k, v in spec.map | dictsort %}\n{{ k }}: {{ v.x }}\n{% endfor %}",
            vec!["spec.map[*]!", "spec.map[*].x"],
        ),
        (
            "{% for m in children.m.values() %}\n- {{ m.metadata.name }}\n{% endfor %}",
            vec!["children.m[*]!", "children.m[*].metadata.name"],
        ),
        (
            "{% if spec.a %}\na: {{ spec.b }}\n{% elif spec.c %}\nb: 1\n{% endif %}",
            vec!["spec.a?", "spec.b", "spec.c?"],
        ),
        (
            "{% macro m(a, b=spec.d) %}{{ a.x }}{{ spec.m }}{% endmacro %}\na: {{ m(spec.a) }}",
            vec!["spec.a", "spec.d", "spec.m"],
        ),
        // A variable that is set in a branch may have the paths of all branches.
        (
            "{% if spec.on %}{% set x = spec.a %}{% else %}{% set x = spec.b %}{% endif %}\na: {{ x.y }}",
            vec!["spec.on?", "spec.a.y", "spec.b.y"],
        ),
        ("{% if spec.on %}{% set x = spec.a %}{% endif %}a: {{ x.y }}", vec!["spec.on?", "spec.a.y", "x.y?"]),
        (
            "{% for i in spec.l %}{% set x = i.n %}{% if i.b %}{% set x = spec.d %}{% endif %}\n- {{ x }}\n{% endfor %}",
            vec!["spec.l!", "spec.l[*].b?", "spec.l[*].n", "spec.d"],
        ),
        ("{% set x = spec.a %}{% set x = spec.b %}a: {{ x }}", vec!["spec.b"]),
        (
            "{% set x = spec.a %}{% if spec.on %}{% set x = spec.b %}{% else %}{% set x = spec.c %}{% endif %}a: {{ x }}",
            vec!["spec.on?", "spec.b", "spec.c"],
        ),
        // A branch does not see what the other one sets.
        (
            "{% if spec.on %}{% set x = spec.a %}{% else %}\na: {{ x.y }}\n{% endif %}",
            vec!["spec.on?", "x.y"],
        ),
        ("{% with x = spec.a %}a: {{ x.b }}{% endwith %}\nb: {{ x.c }}", vec!["spec.a.b", "x.c"]),
        ("{% set x %}{{ spec.a }}{% endset %}a: {{ x }}", vec!["spec.a"]),
        ("{% set a, b = spec.pair %}a: {{ a }}", vec!["spec.pair"]),
        ("{% set ns = namespace(x=spec.a) %}{% set ns.x = spec.b %}a: {{ ns.x }}", vec!["spec.a", "spec.b"]),
        ("# {{ spec.comment }}\na: 1", vec!["spec.comment"]),
    ] {
        let engine = engine(&[("t.yaml", text)]);
        assert_eq!(shown(engine.template("templates/t.yaml").unwrap().reads()), expected, "{text}");
    }
}

#[test]
fn reads_of_partials_have_locations_in_the_partial() {
    let engine = engine(&[
        (
            "a.yaml",
            "x: {{ partial('b.yaml') }}\ny: {{ partial('b.yaml') }}\nz: {{ partial('a.yaml') if spec.deep else 1 }}",
        ),
        ("b.yaml", "l: {{ spec.label }}\nm: {{ partial('c.yaml', v=spec.v) }}"),
        ("c.yaml", "w: {{ v.w }}"),
    ]);
    let reads = engine.template("templates/a.yaml").unwrap().reads();
    assert_eq!(shown(reads), ["spec.label", "spec.v.w", "spec.deep?"]);
    let place = |index: usize| reads.paths[index].location.to_string();
    assert_eq!(place(0), "templates/b.yaml:1:7");
    assert_eq!(place(1), "templates/c.yaml:1:7");
    assert_eq!(place(2), "templates/a.yaml:3:28");
}
