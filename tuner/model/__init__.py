"""The words of the field, as plain values. Imports the standard library only."""
