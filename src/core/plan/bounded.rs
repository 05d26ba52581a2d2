//! What is kept in memory of a PlanRun. Everybody who may run a plan can create any number of them, and all of an instance are
//! read for each decision about it.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::run::{CAUSE, DELETE_CHILD, LEFT_OUT, PRUNABLE, Phase, RUN_FINALIZER, SCHEDULED_AT, TAKEN};
use crate::template::json_bytes;

/// How many bytes of memory the parameters of a run may take until it starts.
const MAX_PARAMS: usize = 128 << 10;
/// How many bytes the parameters of all runs of one namespace that have not started may take.
pub const MAX_WAITING_PARAMS: usize = 16 << 20;
/// How many bytes the parameters of a run that deletes a child may take: they are names.
const MAX_NAMES: usize = 8 << 10;
/// How many bytes of metadata are kept as they are.
const MAX_METADATA: usize = 64 << 10;
/// How long an annotation may be that is kept of larger metadata.
const MAX_ANNOTATION: usize = 4 << 10;
/// How many owners are kept of larger metadata.
const MAX_OWNERS: usize = 16;

/// Leaves out of a PlanRun what no decision reads, and parameters that take too much memory: a run with such parameters
/// does not start. `room`: how many bytes the parameters of another run of its namespace may take. `kept`: annotations that
/// are read beside those of runs. Returns how many bytes they take of that.
pub fn bound(run: &mut Value, kept: &[&str], room: usize) -> usize {
    if json_bytes(&run["metadata"]) > MAX_METADATA {
        run["metadata"] = shortened(&run["metadata"], kept);
    }
    let is_deletion = run["spec"]["plan"] == DELETE_CHILD;
    let phase = Phase::deserialize(&run["status"]["phase"]).unwrap_or_default();
    let bytes = run["spec"].get("params").map_or(0, json_bytes);
    if bytes == 0 || matches!(phase, Phase::Running | Phase::Interrupted) && !is_deletion {
        return 0;
    }
    let most = if is_deletion { MAX_NAMES } else { MAX_PARAMS };
    let why = if bytes > most {
        too_large(most)
    } else if is_deletion {
        // A run that deletes a child is found by its parameters, also after its end, and must not lose them
        // to other runs.
        return 0;
    } else if phase.is_final() {
        "it has ended".to_owned()
    } else if bytes > room {
        let megabytes = MAX_WAITING_PARAMS >> 20;
        format!(
            "the parameters of the runs in its namespace that have not started take more than {megabytes} MiB of memory: \
             cancel some, and request it again"
        )
    } else {
        return bytes;
    };
    if let Some(spec) = run["spec"].as_object_mut() {
        spec.remove("params");
    }
    run[LEFT_OUT] = why.into();
    0
}

/// What is wrong with the parameters of a request, if they take too much memory.
pub fn too_large_params(params: &Value) -> Option<String> {
    (json_bytes(params) > MAX_PARAMS).then(|| too_large(MAX_PARAMS))
}

fn too_large(most: usize) -> String {
    let kilobytes = most >> 10;
    format!(
        "the parameters take more than {kilobytes} KiB of memory: put the data in an object, and pass its name"
    )
}

/// The metadata that decisions about runs read.
fn shortened(metadata: &Value, kept: &[&str]) -> Value {
    let fields = [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "deletionTimestamp",
        "generation",
    ];
    let mut short: Map<String, Value> = fields
        .into_iter()
        .filter_map(|field| Some((field.to_owned(), metadata.get(field)?.clone())))
        .collect();
    let names = [TAKEN, CAUSE, SCHEDULED_AT, PRUNABLE];
    let annotation = |name: &&str| {
        let value = metadata["annotations"][*name].as_str().filter(|value| value.len() <= MAX_ANNOTATION)?;
        Some(((*name).to_owned(), Value::from(value)))
    };
    let annotations: Map<String, Value> = names.iter().chain(kept).filter_map(annotation).collect();
    short.insert("annotations".to_owned(), annotations.into());
    if metadata["finalizers"].as_array().into_iter().flatten().any(|name| name == RUN_FINALIZER) {
        short.insert("finalizers".to_owned(), json!([RUN_FINALIZER]));
    }
    let owners = metadata["ownerReferences"].as_array().into_iter().flatten().take(MAX_OWNERS);
    let owners: Vec<Value> = owners.map(|owner| json!({"uid": owner["uid"]})).collect();
    if !owners.is_empty() {
        short.insert("ownerReferences".to_owned(), owners.into());
    }
    short.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::PlanRun;

    fn zeros(count: usize) -> Value {
        json!({"a": vec![0; count]})
    }

    fn run(params: &Value, phase: &str) -> Value {
        let status = if phase.is_empty() { Value::Null } else { json!({"phase": phase}) };
        json!({
            "metadata": {"name": "r", "uid": "u", "annotations": {PRUNABLE: "true", "x/y": "z"}},
            "spec": {"of": {"name": "a"}, "plan": "p", "params": params}, "status": status,
        })
    }

    #[test]
    fn parameters_are_kept_while_a_run_needs_them_and_up_to_a_size() {
        let (small, large) = (zeros(100), zeros(130_000));
        let room = MAX_WAITING_PARAMS;
        for (params, phase, room, is_kept, counts) in [
            (&small, "Pending", room, true, true),
            (&small, "", room, true, true),
            (&small, "Pending", 100, false, false),
            (&small, "Running", 0, true, false),
            (&small, "Failed", room, false, false),
            (&large, "Pending", room, false, false),
            (&large, "Succeeded", room, false, false),
            // A run must not go on with other parameters than it began with.
            (&large, "Interrupted", 0, true, false),
        ] {
            let whole = run(params, phase);
            let mut kept = whole.clone();
            let bytes = bound(&mut kept, &[], room);
            assert_eq!((bytes > 0, kept == whole), (counts, is_kept), "{phase}");
            let parsed = PlanRun::parse(&kept).unwrap();
            assert_eq!(parsed.left_out.is_none(), is_kept, "{phase}");
            assert_eq!(parsed.spec.params == *params, is_kept);
        }
        let deletion = |params: &Value, phase: &str| {
            let mut kept = run(params, phase);
            kept["spec"]["plan"] = DELETE_CHILD.into();
            bound(&mut kept, &[], 0);
            kept["spec"]["params"] == *params
        };
        assert!(
            deletion(&small, "Failed") && !deletion(&zeros(1_000), "Failed") && !deletion(&large, "Running")
        );
    }

    #[test]
    fn large_metadata_is_kept_as_far_as_it_is_read() {
        let owner =
            |index: usize| json!({"kind": "Thing", "name": "x".repeat(200), "uid": format!("u{index}")});
        let mut large = run(&json!({}), "Failed");
        let mut small = large.clone();
        large["metadata"]["labels"] =
            (0..1_000).map(|i| (format!("l{i}"), "x".into())).collect::<Map<_, _>>().into();
        large["metadata"]["annotations"]["x/y"] = "z".repeat(200 << 10).into();
        large["metadata"]["annotations"][CAUSE] = "z".repeat(200 << 10).into();
        large["metadata"]["annotations"]["operetta.dev/called-by"] = "Thing/a".into();
        large["metadata"]["ownerReferences"] = (0..1_000).map(owner).collect();
        bound(&mut large, &["operetta.dev/called-by"], 0);
        assert!(json_bytes(&large) < 20 << 10);
        let parsed = PlanRun::parse(&large).unwrap();
        assert_eq!((&*parsed.name, &*parsed.uid, parsed.owners.len()), ("r", "u", MAX_OWNERS));
        let annotations: Vec<&str> = parsed.annotations.keys().map(String::as_str).collect();
        assert_eq!(annotations, ["operetta.dev/called-by", PRUNABLE]);
        let before = small["metadata"].clone();
        bound(&mut small, &[], 0);
        assert_eq!(small["metadata"], before);
    }
}
