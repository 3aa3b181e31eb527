"""Functions of `import bench` that run grids and studies, write reports and verify runs."""
