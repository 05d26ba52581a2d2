//! The packages of the worlds that are explored.

/// Rollouts that wait for a member, and a plan for losses that applies all members.
pub(super) const RESOURCE: &str = "
refs:
  - {id: broken, apiVersion: v1, kind: Secret, name: broken, optional: true}
  - {id: idle, apiVersion: v1, kind: Secret, name: idle, optional: true}
children:
  - {id: m, template: templates/m.yaml, onLoss: failover, forEach: {in: range(spec.size), as: i, key: i}}
plans:
  deploy:
    steps:
      - {name: all, apply: [m]}
  grow:
    trigger: {changed: [spec.size]}
    steps:
      - {name: shrink, forEach: {in: \"children.m | keys | select('ge', spec.size) | list\", as: i}, delete: ['m[{{ i }}]']}
      - {name: whole, wait: {until: \"children.m[0] is ready\"}}
      - {name: works, when: refs.broken is defined, fail: {message: broken}}
      - {name: new, forEach: {in: range(spec.size), as: i}, apply: ['m[{{ i }}]']}
  update:
    trigger: {changed: [spec.text]}
    steps:
      - name: each
        forEach: {in: range(spec.size), as: i}
        steps:
          - {name: whole, wait: {until: \"children.m[0] is ready\"}}
          - {name: works, when: refs.broken is defined, fail: {message: broken}}
          - {name: one, apply: ['m[{{ i }}]']}
  failover:
    steps:
      - {name: note, record: {lost: \"run.lost | default([]) | length\"}}
      - {name: drop, when: refs.idle is undefined, forEach: {in: \"run.lost | default([])\", as: lost}, delete: ['m[{{ lost.key }}]']}
      - {name: works, when: refs.broken is defined, fail: {message: broken}}
      - {name: back, when: refs.idle is undefined, apply: [m]}
  repair:
    priority: 1
    steps:
      - {name: drop, delete: ['m[0]']}
      - {name: works, when: refs.broken is defined, fail: {message: broken}}
      - {name: back, apply: ['m[0]']}
  answer:
    trigger: {condition: \"spec.alarm | default(false)\", for: 0s}
    steps:
      - {name: drop, delete: ['m[0]']}
      - {name: back, apply: ['m[0]']}
  second:
    trigger: {condition: \"spec.smoke | default(false)\", for: 0s}
    steps:
      - {name: drop, delete: ['m[1]']}
      - {name: back, apply: ['m[1]']}
  hold:
    steps:
      - {name: held, interruptible: true, timeout: 10m, wait: {until: refs.broken is defined}}
      - {name: back, apply: ['m[0]']}
  backup:
    exclusive: false
    steps:
      - {name: note, record: {saved: \"'yes'\"}}
";

/// As the package of etcd does: a plan for losses runs the plan that resizes, which deletes, applies one member at a time and waits for
/// each; it lets a run for another loss go first while it waits.
pub(super) const CAREFUL: &str = "
refs:
  - {id: broken, apiVersion: v1, kind: Secret, name: broken, optional: true}
  - {id: idle, apiVersion: v1, kind: Secret, name: idle, optional: true}
children:
  - {id: config, template: templates/config.yaml}
  - {id: loose, template: templates/loose.yaml}
  - {id: m, template: templates/m.yaml, onLoss: failover, forEach: {in: range(spec.size), as: i, key: i}, maxUnavailable: 1, dependsOn: [config]}
plans:
  deploy:
    steps:
      - {name: config, apply: [config]}
      - {name: resize, plan: resize}
  update:
    trigger: {changed: [spec.text]}
    steps:
      - {name: works, when: refs.broken is defined, fail: {message: broken}}
      - {name: config, apply: [config]}
      - {name: each, forEach: {in: range(spec.size), as: i}, when: 'children.m[i] is not current', apply: ['m[{{ i }}]']}
  resize:
    trigger: {changed: [spec.size]}
    steps:
      - {name: shrink, forEach: {in: \"children.m | default({}) | keys | select('ge', spec.size) | list\", as: i}, delete: ['m[{{ i }}]']}
      - name: grow
        forEach: {in: range(spec.size), as: i}
        steps:
          - {name: works, when: refs.broken is defined, fail: {message: broken}}
          - {name: clean, when: 'children.m[i] is undefined', delete: ['m[{{ i }}]']}
          - {name: start, apply: ['m[{{ i }}]'], until: 'children.m[i] is defined'}
          - {name: ready, interruptible: true, wait: {until: 'children.m[i] is ready'}}
  failover:
    steps:
      - {name: clean, when: refs.idle is undefined, forEach: {in: 'run.lost | default([])', as: lost}, delete: ['m[{{ lost.key }}]']}
      - {name: replace, when: refs.idle is undefined, plan: resize}
  repair:
    priority: 1
    interruptible: false
    steps:
      - {name: drop, delete: ['m[0]']}
      - {name: replace, plan: resize}
  answer:
    trigger: {condition: \"spec.alarm | default(false)\", for: 0s}
    steps:
      - {name: drop, delete: ['m[0]']}
      - {name: back, apply: ['m[0]']}
  second:
    trigger: {condition: \"spec.smoke | default(false)\", for: 0s}
    steps:
      - {name: drop, delete: ['m[1]']}
      - {name: back, apply: ['m[1]']}
  hold:
    steps:
      - {name: held, interruptible: true, timeout: 10m, wait: {until: refs.broken is defined}}
      - {name: back, apply: ['m[0]']}
  backup:
    exclusive: false
    steps:
      - {name: whole, wait: {until: 'children.m[0] is ready'}}
      - {name: note, record: {saved: \"'yes'\"}}
";
