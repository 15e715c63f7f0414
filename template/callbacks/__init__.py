"""What happens around the steps: one behaviour a file."""
