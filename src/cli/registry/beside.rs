//! Where the packages of a lock are: beside the package that requires them, as `operetta copy --with-dependencies` writes them, or
//! where the lock says. In both places they are asked for by the digest of the lock, so it does not matter who has put them there.

use operetta_registry::{Error, Options, Place, Reference};

use crate::package::Locked;

/// The reference under which a package of the lock of another package is found. `from`: the reference of that other package.
pub(in crate::cli) async fn locate(
    locked: &Locked,
    from: Option<&str>,
    options: &Options,
) -> Result<String, Error> {
    let named = locked.reference();
    let Some(from) = from else { return Ok(named) };
    let place = Place::open(from, options)?;
    let beside = format!("{}@{}", repository(&place, locked), locked.digest);
    if beside == named {
        return Ok(named);
    }
    match Place::open(&beside, options)?.resolve().await {
        Ok(_) => Ok(beside),
        // Some registries refuse access to repositories that do not exist.
        Err(Error::NotFound { .. } | Error::Unauthorized { .. }) => Ok(named),
        Err(error) => Err(error),
    }
}

/// The place of a package of a lock beside another package: a repository of its name in the same folder of the registry, or the
/// same layout.
pub(super) fn repository(place: &Place, locked: &Locked) -> String {
    let name = place.name();
    match name.rsplit_once('/').filter(|_| Reference::is_one(name)) {
        Some((folder, _)) => format!("{folder}/{}", locked.name),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locked_package_is_beside_the_one_that_requires_it() {
        let locked = Locked {
            name: "cache".to_owned(),
            version: "1.2.0".parse().unwrap(),
            package: "oci://ghcr.io/other/caches".to_owned(),
            digest: format!("sha256:{}", "0a".repeat(32)),
        };
        let folder = tempfile::tempdir().unwrap();
        let layout = folder.path().join("layout").display().to_string();
        for (from, expected) in [
            ("oci://localhost:5000/mirror/acme/shop:1.0.0", "oci://localhost:5000/mirror/acme/cache"),
            ("oci://localhost:5000/shop", "oci://localhost:5000/cache"),
            (&layout, &layout),
        ] {
            let place = Place::create(from, &Options::default()).unwrap();
            assert_eq!(repository(&place, &locked), expected);
        }
    }
}
