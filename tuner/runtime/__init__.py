"""One trial, the campaign, the evidence."""
