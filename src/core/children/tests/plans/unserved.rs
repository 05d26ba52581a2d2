//! Children of a kind that the API server does not serve, in instances with plans.

use super::*;

fn world(spec: &Value) -> World {
    let resource = "
children:
  - {id: m, template: templates/m.yaml}
  - {id: one, template: templates/one.yaml, when: spec.stop}
  - {id: many, template: templates/many.yaml, forEach: {in: range(spec.size), as: key, key: key}}
status:
  one: children.one is defined
  many: children.many | length
plans:
  deploy:
    steps:
      - {name: all, apply: [m]}
      - {name: without, when: children.one is defined, fail: {message: never}}
      - {name: again, apply: [one, many]}
  cleanup:
    steps:
      - {name: drop, delete: [one, many]}
";
    let secret =
        |name: &str| format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: '{{{{ name }}}}-{name}'}}\n");
    let templates = [("m", config("{{ name }}")), ("one", secret("one")), ("many", secret("{{ key }}"))];
    let mut world = World::with_runs(package(resource, &templates), spec);
    world.lost.insert("Secret".into());
    world
}

#[test]
fn runs_do_not_wait_for_the_kind_of_a_child_that_is_not_wanted() {
    let mut world = world(&json!({"size": 0, "text": "x"}));
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
    assert_eq!(world.phases(), [("deploy".into(), Phase::Succeeded)]);
    let status = status_patch(&json!({}), &world.decide().status.unwrap(), "t").unwrap();
    assert_eq!((&status["one"], &status["many"]), (&json!(false), &json!(0)));
}

#[test]
fn runs_wait_for_the_kind_of_a_child_that_is_wanted() {
    for spec in [json!({"size": 0, "stop": true, "text": "x"}), json!({"size": 1, "text": "x"})] {
        let mut world = world(&spec);
        let Verdict::Reconciling { message, .. } = world.settle() else { panic!("{spec}") };
        assert!(message.contains("Secret is lost"), "{message}");
        // Nothing is decided on objects that may be there.
        assert_eq!(world.phases(), [("deploy".into(), Phase::Running)]);
    }
}
