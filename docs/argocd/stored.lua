-- Health of an OperatorRevision and of an InstanceState: they are data.
return {status = "Healthy", message = "stored"}
