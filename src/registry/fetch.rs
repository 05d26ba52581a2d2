//! Reads a package: its manifest, config and files.

use bytes::Bytes;

use crate::artifact::{Config, parts};
use crate::client::Options;
use crate::error::Error;
use crate::manifest::Stored;
use crate::store::Place;

/// A package that was read.
#[derive(Debug)]
pub struct Fetched {
    /// Its reference with the digest.
    pub name: String,
    /// Where it is.
    pub place: Place,
    /// Its manifest.
    pub manifest: Stored,
    /// What the config states.
    pub config: Config,
    /// The config.
    pub config_bytes: Bytes,
    /// The archive of its files.
    pub layer: Bytes,
}

/// Reads the package of a reference. `most`: how many bytes its archive may have.
///
/// # Errors
/// It cannot be read, is larger, or is no package.
pub async fn fetch(text: &str, options: &Options, most: u64) -> Result<Fetched, Error> {
    let mut place = Place::open(text, options)?;
    let manifest = place.resolve().await?;
    let name = place.name_of(&manifest.descriptor.digest);
    let (config, layer) = parts(&name, &manifest)?;
    if layer.size > most {
        return Err(Error::TooLarge { what: format!("the archive of {name}"), limit: most });
    }
    let config_bytes = place.store.blob(config).await?;
    let config = Config::parse(&name, &config_bytes)?;
    let layer = place.store.blob(layer).await?;
    Ok(Fetched { name, place, manifest, config, config_bytes, layer })
}
