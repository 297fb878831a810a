"""A trained model behind HTTP: what is asked and answered. `raygnn.runtime.serving` runs it."""
