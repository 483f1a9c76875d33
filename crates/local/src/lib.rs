//! The rest of a cluster in one process: controllers and virtual kubelets.
