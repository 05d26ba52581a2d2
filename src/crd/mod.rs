//! CustomResourceDefinitions: augmenting, defaults, validation.
