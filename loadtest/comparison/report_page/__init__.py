"""What people see of a comparison: tables for a terminal, and a page that needs nothing else."""
