//! Other instances of the same package, and which objects are proven to be their children.

use std::sync::Arc;

use super::kind_owner::KindOwner;
use super::observed::Observed;
use super::origins::ItemId;
use crate::children::names::Claim;

/// Another instance of the same package that a ref names.
#[derive(Debug, Clone)]
pub struct Sibling {
    /// Its uid.
    pub uid: Arc<str>,
    /// Its namespace, if it has one.
    pub namespace: Option<Arc<str>>,
    /// What the labels of its children say of it.
    pub claim: Claim,
    /// The live object in the place of each of its items, as the last decision about it has rendered them. `None`: there
    /// was no decision yet.
    pub places: Option<Vec<(ItemId, Arc<Observed>)>>,
}

impl Sibling {
    /// The live objects in the places of a child, or of one member of it.
    pub(in crate::children) fn places_of(
        &self,
        child: &str,
        key: Option<&str>,
    ) -> impl Iterator<Item = &Arc<Observed>> {
        let is_wanted = move |item: &ItemId| item.child() == child && (key.is_none() || item.key() == key);
        let places = self.places.iter().flatten().filter(move |(item, _)| is_wanted(item));
        places.map(|(_, observed)| observed)
    }

    /// Whether an object in one of its places is its child, and not on its way out. `owner`: the package.
    ///
    /// Labels prove nothing, because every editor of an object can write them. So an object counts only if it has the kind,
    /// namespace and name that the package renders for this instance, and if Operetta has applied it for this very instance.
    pub(in crate::children) fn is_parent_of(&self, observed: &Observed, owner: &KindOwner) -> bool {
        observed.is_made_by_us()
            && observed.instance_uid == self.uid
            && observed.claim == self.claim
            && owner.has_had(&observed.package)
            && (observed.owner_reference || observed.guarded || observed.is_to_stay())
            && !observed.terminating
    }
}
