"""Methods: the maths of learning from annotators, and the LightningModules around it."""
