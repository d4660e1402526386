"""What is measured side by side with others."""
