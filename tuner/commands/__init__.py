"""What the commands of :mod:`tuner.cli` share: their options, and how a study is found. Nothing here prints."""
