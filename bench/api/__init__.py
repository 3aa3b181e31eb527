"""What Python's front door (`import bench`) offers beside the parts of a cell: runs, sweeps, reports, verification."""
