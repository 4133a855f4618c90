"""How a person's orders reach a study: through files in its folder, so that any terminal can give them."""
