"""Front, tables and plots."""
