//! The images that the templates of a package name, as far as they do not depend on values.

use std::collections::BTreeSet;

use serde_json::Map;

use super::lint::objects::Names;
use super::model::Package;
use super::plan::{Action, Plan};
use super::template::Known;
use super::template_scan::Outlines;

/// The images of the children and Jobs of a package. One that is computed from an instance is left out: only a rendered object has it.
pub fn images(package: &Package) -> BTreeSet<String> {
    let outlines = Outlines::of(package.files.iter());
    let empty = Map::new();
    let defaults = package.defaults.as_object().unwrap_or(&empty);
    let mut found = BTreeSet::new();
    for resource in &package.resources {
        let names = Names::new(&package.engine, Known { lets: &resource.lets, defaults });
        let visits: Vec<_> = resource.plans.iter().flat_map(Plan::visits).collect();
        let jobs = visits.iter().filter_map(|visit| match &visit.step.action {
            Action::Job { template } => Some(template),
            _ => None,
        });
        for template in resource.children.iter().map(|child| &child.template).chain(jobs) {
            let Some(document) = outlines.document(template) else { continue };
            document.each_entry(&mut |key, value| {
                if key == "image" && value.is_scalar() {
                    found.extend(names.of_part(value).as_literal().filter(|text| is_image(text)));
                }
            });
        }
    }
    found
}

/// Whether a text may name an image: a path in lower case, with a tag and a digest.
fn is_image(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.len() <= 512 && text.chars().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_templates_and_jobs_are_found() {
        let load = |name: &str| images(&crate::load::operator(name)).into_iter().collect::<Vec<_>>();
        // By a default of the package, in a Job and in a partial; the image of the members depends on values.
        assert_eq!(load("etcd"), ["rclone/rclone:1.73.5"]);
        assert_eq!(load("webapp"), Vec::<String>::new());
    }

    #[test]
    fn other_texts_are_no_images() {
        for text in ["", "a b", "-a", "{{ x }}", "a$b"] {
            assert!(!is_image(text), "{text}");
        }
        assert!(is_image("localhost:5000/a/b_c:1.0@sha256:00"));
    }
}
