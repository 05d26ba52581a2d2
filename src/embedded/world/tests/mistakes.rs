//! Mistakes in the text of a world.

use operetta_lang::diag::Source;

use super::World;

/// The mistakes of a text.
fn mistakes(text: &str) -> Vec<String> {
    let text = format!("apiVersion: operetta.dev/v1alpha1\nkind: World\n{text}");
    World::parse(&[Source::new("w.yaml", text)]).unwrap_err().iter().map(ToString::to_string).collect()
}

#[test]
fn mistakes_have_positions() {
    for (text, expected) in [
        ("podz: []", "w.yaml:3:1: unknown key `podz` (podz); did you mean `pods`?"),
        (
            "pods: [{readyAfter: 3}]",
            "w.yaml:3:21: a duration needs a unit, is the number 3 (pods[0].readyAfter); write 3s",
        ),
        ("pods:\n- when: pod.spec ==\n", "w.yaml:4:9: "),
        (
            "pods: [{when: pot.spec}]",
            "w.yaml:3:15: unknown variable `pot` (pods[0].when); did you mean `pod`?",
        ),
        ("pods: [{exitCode: 300}]", "w.yaml:3:19: must be a number from 0 to 255 (pods[0].exitCode)"),
        ("exec: [{stdout: x}]", "w.yaml:3:9: `command` is missing (exec[0])"),
        ("exec: [{command: []}]", "w.yaml:3:18: the command is empty (exec[0].command)"),
        (
            "exec: [{command: [a, ..., ...]}]",
            "w.yaml:3:27: `...` may be in a command once (exec[0].command[2])",
        ),
        (
            "exec: [{command: [a, {x: '('}]}]",
            "w.yaml:3:26: it is no pattern: error: unclosed group (exec[0].command[1])",
        ),
        (
            "exec: [{command: [a, {pod}]}]",
            "w.yaml:3:23: the name `pod` is taken: it is a variable of every rule (exec[0].command[1])",
        ),
        (
            "exec: [{command: [a, {id}]}, {command: [b], stdout: '{{ id }}'}]",
            "w.yaml:3:57: `id` does not exist here (exec[1].stdout)",
        ),
        (
            "let: {x: '{{ id }}'}\nexec: [{command: [a, {id}]}, {command: [b], stdout: '{{ let.x }}'}]",
            "w.yaml:4:57: `let.x` reads `id`, which does not exist here (exec[1].stdout)",
        ),
        ("logs: [{text: '{{ let.x }}'}]", "w.yaml:3:19: `let.x` is not declared in `let` (logs[0].text)"),
        (
            "state: {members: []}\nlogs: [{text: '{{ state.member }}'}]",
            "w.yaml:4:19: `state.member` is not declared in `state` (logs[0].text); did you mean `state.members`?",
        ),
        ("state: {x: '{{ 1 }}'}", "w.yaml:3:8: `x` is a constant and cannot contain a template (state)"),
        (
            "state: {x: []}\npods: [{do: [{add: state.y, item: 1}]}]",
            "w.yaml:4:20: `state.y` is not declared in `state` (pods[0].do[0].add); did you mean `state.x`?",
        ),
        (
            "state: {x: []}\npods: [{do: [{add: state.x}]}]",
            "w.yaml:4:20: `add` needs an `item` (pods[0].do[0].add)",
        ),
        (
            "state: {x: []}\npods: [{do: [{add: state.x, remove: state.x}]}]",
            "w.yaml:4:20: a change is one of: ",
        ),
        (
            "http: [{url: 'http://a/{{ x }}'}]",
            "w.yaml:3:14: a pattern is no template: `{name}` is a part, and `when` compares values (http[0].url)",
        ),
        (
            "http: [{url: 'http://a', json: 1, body: x}]",
            "w.yaml:3:32: a rule has `json` or `body`, not both (http[0].json)",
        ),
        ("http: [{url: 'http://a', when: pod}]", "w.yaml:3:32: `pod` does not exist here (http[0].when)"),
        (
            "let: {a: '{{ let.b }}', b: '{{ let.a }}'}",
            "w.yaml:3:14: these values need each other: a -> b -> a",
        ),
    ] {
        let found = mistakes(text);
        assert!(found.iter().any(|found| found.starts_with(expected)), "{text}\n{expected}\n{found:#?}");
    }
}

#[test]
fn all_mistakes_are_reported() {
    let text = "pods: [{when: pot}]\nexec: [{command: [a], stdout: '{{ x }}'}]\nlogs: [{text: '{{ y }}'}]";
    assert_eq!(mistakes(text).len(), 3);
    assert!(World::parse(&[Source::new("w.yaml", "kind: Worlds")]).is_err());
}
