"""The page of a report and its sections."""
