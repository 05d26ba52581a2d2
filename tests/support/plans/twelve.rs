//! The package `plans-twelve`, whose rollout has twelve steps with effects of every sort: what must hold of it at the end.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Api, UidWatch};
use crate::support::eventually;
use crate::support::ext::{CONFIG_MAP, Kind, LONG, POD, Scene, name_of};
use crate::support::faults::case::Subject;

pub const TWELVE: Subject = Subject {
    folder: "tests/fixtures/packages/plans-twelve",
    name: "plans-twelve",
    group: "fixtures.operetta.dev",
    version: "v1",
    kind: "Voyage",
    plural: "voyages",
    inner: None,
    children: &[CONFIG_MAP, POD],
    elsewhere: &[],
};

/// The results of a run of twelve steps, without the instance's name.
pub async fn outcome(scene: &Scene, kind: Kind, name: &str) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    let status = scene.get(kind, name).await["status"].clone();
    all.insert(
        "status".to_owned(),
        json!([
            status["jobId"],
            status["itemId"],
            status["said"].as_str().map(|said| said.replace(name, "<name>"))
        ]),
    );
    for child in [CONFIG_MAP, POD] {
        for object in scene.list(child).await {
            let own = object["metadata"]["labels"]["operetta.dev/instance"] == name;
            if own
                && object["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "operetta"
                && child.plural == CONFIG_MAP.plural
            {
                all.insert(name_of(&object).replace(name, "<name>"), object["data"].clone());
            } else if own && name_of(&object) == format!("{name}-pod") {
                all.insert("<name>-pod".to_owned(), object["spec"]["containers"][0]["image"].clone());
            }
        }
    }
    all
}

/// Checks the effects of a Voyage's rollout: two Jobs, each created once, and three items of the API, each
/// created once.
pub async fn effects(scene: &Scene, name: &str, jobs: &UidWatch, story: &str) {
    let prefix = format!("{name}-");
    eventually("the watch of Jobs to show both", LONG, async || {
        let counts = jobs.counts();
        let own: Vec<_> = counts.iter().filter(|(job, _)| job.starts_with(&prefix)).collect();
        assert!(own.len() <= 2, "{name} has the Jobs {own:?}; {story}");
        assert!(own.iter().all(|(_, uids)| **uids == 1), "{name} has a Job twice: {own:?}; {story}");
        if own.len() == 2 { Ok(()) } else { Err(format!("{own:?}; {story}")) }
    })
    .await;
    let items = Api::shared().items(&format!("/{}/{name}/items", scene.namespace()));
    assert_eq!(items.len(), 3, "{name}: {items:#?}; {story}");
    assert!(items.iter().all(|item| item.effects == 1), "{name}: {items:#?}; {story}");
}
