"""What a person sees while a study runs: one pure state, two ways to show it."""
